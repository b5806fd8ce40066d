//! Running → wherever the state machine chose; many jobs in one call, each fenced by its claim's token.

use std::time::Duration;

use redis::Cmd;

use super::script::SETTLE;
use super::{Store, StoreError};
use crate::clock::as_ms;
use crate::config::Retention;
use crate::state::Move;

/// Most jobs of one settle.
pub const MOST: usize = 500;

/// One attempt's end.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The job.
    pub id: String,
    /// Its claim's token.
    pub token: u64,
    /// Where it goes.
    pub to: Move,
}

/// What became of one settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Moved.
    Done,
    /// Moved before, by a call whose answer was lost.
    DoneBefore,
    /// Another claim is current: nothing changed.
    Stale,
    /// No such job any more: deleted, or ended and not kept.
    Gone,
}

impl Store {
    /// Settles up to [`MOST`] attempts of one queue. Returns Redis' time in milliseconds and an answer for each, in order.
    /// The same call may be sent again after any error: what was done answers as done before, or gone when it is not kept.
    ///
    /// # Errors
    /// As any call.
    pub async fn settle(
        &self,
        queue: &str,
        incarnation: &str,
        retention: &Retention,
        settlements: &[Settlement],
    ) -> Result<(u64, Vec<Settled>), StoreError> {
        let fill = |command: &mut Cmd| {
            command.arg(incarnation);
            retain(command, retention);
            for settlement in settlements {
                let to = &settlement.to;
                command.arg(&settlement.id).arg(format!("{:016}", settlement.token));
                command.arg(to.to.letter().to_string()).arg(as_ms(to.delay));
                command.arg(to.outcome.map_or_else(|| "-".to_owned(), |outcome| outcome.letter().to_string()));
                command.arg(&to.text).arg(to.result.as_deref().unwrap_or(""));
            }
        };
        let mut answer: Vec<i64> = SETTLE.run(&self.link, &self.keys.queue_tag(queue), &self.time(), fill).await?;
        if answer.len() != settlements.len() + 1 {
            return Err(StoreError::unexpected("another number of answers than settlements"));
        }
        let now_ms = u64::try_from(answer.remove(0)).unwrap_or(0);
        let settled = answer.into_iter().map(|code| match code {
            1 => Settled::Done,
            2 => Settled::DoneBefore,
            -1 => Settled::Gone,
            _ => Settled::Stale,
        });
        Ok((now_ms, settled.collect()))
    }
}

/// The four retention arguments that settle and trim share.
pub(super) fn retain(command: &mut Cmd, retention: &Retention) {
    let bounded = |age: Duration| as_ms(age);
    command.arg(bounded(retention.succeeded)).arg(retention.succeeded_max);
    command.arg(bounded(retention.dead)).arg(retention.dead_max);
}
