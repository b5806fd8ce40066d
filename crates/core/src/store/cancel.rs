//! Scheduled | ready | retrying | held → cancelled, by a person. A running job is asked to stop.

use super::script::CANCEL;
use super::{Store, StoreError};
use crate::state::State;

/// What an action on one id did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acted {
    /// Done; the state it has now.
    Done(State),
    /// The job is in a state in which the action makes no sense; unchanged.
    WrongState(State),
    /// No such job in this queue.
    Unknown,
    /// Another living job holds its unique key.
    Conflict(String),
}

impl Store {
    /// Cancels jobs of one queue. A running one answers `Done(Running)`: its handler was asked to stop.
    ///
    /// # Errors
    /// As any call.
    pub async fn cancel(&self, queue: &str, ids: &[String]) -> Result<Vec<Acted>, StoreError> {
        let fill = |command: &mut redis::Cmd| {
            command.arg(ids);
        };
        let letters: Vec<String> = CANCEL.run(&self.link, &self.keys.queue_tag(queue), &self.time(), fill).await?;
        Ok(letters
            .iter()
            .map(|letter| match letter.chars().next().and_then(State::from_letter) {
                None => Acted::Unknown,
                Some(State::Running) => Acted::Done(State::Running),
                Some(state) if state.is_final() => Acted::WrongState(state),
                Some(_) => Acted::Done(State::Cancelled),
            })
            .collect())
    }
}
