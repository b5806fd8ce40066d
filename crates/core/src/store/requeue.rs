//! Any state but running → ready | scheduled, by a person: retry, run-now, release, reschedule.

use super::cancel::Acted;
use super::script::REQUEUE;
use super::{Store, StoreError};
use crate::state::State;

/// Which of the four actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// Dead, cancelled or succeeded: run again, attempts and crashes counted anew.
    Retry,
    /// Scheduled or retrying: due now.
    RunNow,
    /// Held: due now.
    Release,
    /// Waiting in any way: due at this instant, milliseconds since 1970.
    Reschedule(u64),
}

impl Requeue {
    const fn from(self) -> &'static str {
        match self {
            Self::Retry => "xcs",
            Self::RunNow => "dt",
            Self::Release => "h",
            Self::Reschedule(_) => "dtqh",
        }
    }
}

impl Store {
    /// Makes jobs of one queue wait anew.
    ///
    /// # Errors
    /// As any call.
    pub async fn requeue(&self, queue: &str, action: Requeue, ids: &[String]) -> Result<Vec<Acted>, StoreError> {
        let due = if let Requeue::Reschedule(at) = action { at.to_string() } else { "n".to_owned() };
        let fill = |command: &mut redis::Cmd| {
            command.arg(action.from()).arg(&due).arg(u8::from(action == Requeue::Retry)).arg(ids);
        };
        let answers: Vec<String> = REQUEUE.run(&self.link, &self.keys.queue_tag(queue), &self.time(), fill).await?;
        Ok(answers
            .iter()
            .map(|answer| {
                let (mark, rest) = answer.split_at(1);
                match mark {
                    "=" => Acted::Conflict(rest.to_owned()),
                    "!" => rest.chars().next().and_then(State::from_letter).map_or(Acted::Unknown, Acted::WrongState),
                    // Rescheduled to an instant that has passed, it is ready at once.
                    "d" => Acted::Done(State::Scheduled),
                    _ => Acted::Done(State::Ready),
                }
            })
            .collect())
    }
}
