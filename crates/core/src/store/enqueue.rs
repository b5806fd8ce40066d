//! New → scheduled | ready. Idempotent: a resend of the same call answers as the first one did.

use redis::Cmd;

use super::script::ENQUEUE;
use super::{Store, StoreError};
use crate::codec;
use crate::job::{Due, NewJob, UniqueUntil};
use crate::state::State;

/// How long the answer of a call is remembered; a call is resent for half of it at most.
pub const RECEIPT_MS: u64 = 10_000;
/// Most jobs of one script call.
pub const BATCH: usize = 500;

/// What became of one job handed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// Stored.
    Stored {
        /// Scheduled or ready.
        state: State,
        /// When it is due, milliseconds since 1970 by Redis' clock.
        due_ms: u64,
    },
    /// Nothing was changed: this job has the same id, unique key or dedupe key.
    Duplicate(String),
}

/// Which enqueue call this is: the same for every resend of it.
#[derive(Clone, Debug)]
pub struct CallId {
    id: String,
    lifetime_ms: u64,
}

impl CallId {
    /// A call of its own.
    #[must_use]
    pub fn fresh() -> Self {
        Self { id: crate::job::new_id(), lifetime_ms: RECEIPT_MS }
    }

    /// A call that a caller names, remembered for a day: an `Idempotency-Key`, digested.
    #[must_use]
    pub fn named(digest: &str) -> Self {
        Self { id: format!("k{digest}"), lifetime_ms: 86_400_000 }
    }

    /// One batch of the call.
    #[must_use]
    pub(crate) fn part(&self, number: u32) -> Self {
        if number == 0 { self.clone() } else { Self { id: format!("{}.{number}", self.id), lifetime_ms: self.lifetime_ms } }
    }
}

impl Store {
    /// Stores up to [`BATCH`] jobs of one queue in one call; the answers are in their order.
    ///
    /// Not cancel-safe in the sense that a dropped call may have stored its jobs; the same `call` id again is harmless.
    ///
    /// # Errors
    /// As any call. After an error that [`StoreError::may_have_run`] the same call may be sent again.
    pub async fn enqueue(&self, call: &CallId, queue: &str, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
        debug_assert!(jobs.len() <= BATCH && jobs.iter().all(|job| job.queue == queue));
        let encoded: Vec<_> = jobs.iter().map(codec::encode).collect();
        let fill = |command: &mut Cmd| {
            command.arg(&call.id).arg(call.lifetime_ms);
            for (job, body) in jobs.iter().zip(&encoded) {
                let due = match job.due {
                    Due::Now => "n".to_owned(),
                    Due::In(ms) => format!("i{ms}"),
                    Due::At(ms) => format!("a{ms}"),
                };
                let (key, until) = job.unique.as_ref().map_or(("", "-"), |unique| {
                    (unique.key.as_str(), if unique.until == UniqueUntil::Started { "s" } else { "f" })
                });
                let (dedupe, span) = job.dedupe.as_ref().map_or(("", 0), |(key, span)| (key.as_str(), *span));
                command.arg(&job.id).arg(due).arg(&body.head[..]).arg(&body.extension).arg(&body.value);
                command.arg(key).arg(until).arg(dedupe).arg(span);
            }
        };
        let answer: String = ENQUEUE.run(&self.link, &self.keys.queue_tag(queue), &self.time(), fill).await?;
        let answers: Vec<Enqueued> = answer
            .split('\n')
            .map(parse)
            .collect::<Option<_>>()
            .ok_or_else(|| StoreError::unexpected("an enqueue answer that is neither due time nor id"))?;
        if answers.len() == jobs.len() { Ok(answers) } else { Err(StoreError::unexpected("another number of answers than jobs")) }
    }

    /// Registers a queue, so that the promoter looks at it. Producers do so before their first enqueue.
    ///
    /// # Errors
    /// As any call.
    pub async fn register_queue(&self, queue: &str) -> Result<(), StoreError> {
        self.link.query(redis::cmd("SADD").arg(self.keys.cluster("queues")).arg(queue)).await
    }
}

fn parse(line: &str) -> Option<Enqueued> {
    let (mark, rest) = line.split_at_checked(1)?;
    match mark {
        "q" => Some(Enqueued::Stored { state: State::Ready, due_ms: rest.parse().ok()? }),
        "d" => Some(Enqueued::Stored { state: State::Scheduled, due_ms: rest.parse().ok()? }),
        "=" => Some(Enqueued::Duplicate(rest.to_owned())),
        _ => None,
    }
}
