//! New → scheduled | ready. Idempotent: a resend of the same call answers as the first one did.

use redis::Cmd;
use sha2::{Digest, Sha256};

use super::script::ENQUEUE;
use super::{Store, StoreError};
use crate::job::{Due, NewJob, UniqueUntil};
use crate::state::State;
use crate::{clock, codec};

/// How long the answer of a call is remembered; a call is resent for half of it at most.
pub const RECEIPT_MS: u64 = 10_000;
/// How long a call is remembered that a caller named.
const NAMED_MS: u64 = 86_400_000;
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
        Self { id: format!("k{digest}"), lifetime_ms: NAMED_MS }
    }

    /// One batch of the call.
    #[must_use]
    pub(crate) fn part(&self, number: u32) -> Self {
        if number == 0 { self.clone() } else { Self { id: format!("{}.{number}", self.id), lifetime_ms: self.lifetime_ms } }
    }
}

/// What a caller's `Idempotency-Key` stands for: for a day the same request gets the same ids and the same receipts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCall {
    digest: String,
    since_ms: u64,
}

impl NamedCall {
    /// One part of the call. The instant belongs to the name: a receipt outlives the key by a moment, and must not answer for
    /// whoever uses the key after it.
    #[must_use]
    pub fn call(&self, part: &str) -> CallId {
        CallId::named(&format!("{}.{}.{part}", self.digest, self.since_ms))
    }

    /// The id of the call's n-th job, in the form of a generated one: the same at each repetition.
    #[must_use]
    pub fn job_id(&self, n: usize) -> String {
        let digest = Sha256::digest(format!("{} {} {n}", self.digest, self.since_ms).as_bytes());
        let random = digest.iter().take(10).fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
        ulid::Ulid::from_parts(self.since_ms, random).to_string()
    }
}

impl Store {
    /// Ties a caller's key (its digest) to one request (its digest) for a day. `None`: it stands for another request already.
    ///
    /// # Errors
    /// As any call; it may be sent again.
    pub async fn name_call(&self, digest: &str, request: &str) -> Result<Option<NamedCall>, StoreError> {
        let now_ms = clock::local_ms();
        let mut command = redis::cmd("SET");
        command.arg(self.keys.cluster(&format!("idem:{digest}"))).arg(format!("{request} {now_ms}"));
        command.arg("NX").arg("GET").arg("PX").arg(NAMED_MS);
        let before: Option<String> = self.link.query(&command).await?;
        let Some(before) = before else { return Ok(Some(NamedCall { digest: digest.to_owned(), since_ms: now_ms })) };
        let (named, since) = before.split_once(' ').unwrap_or_default();
        let since_ms = since.parse().map_err(|_| StoreError::unexpected("an idempotency key without its instant"))?;
        Ok((named == request).then(|| NamedCall { digest: digest.to_owned(), since_ms }))
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_call_gives_each_job_one_id_for_good() {
        let call = NamedCall { digest: "ab".to_owned(), since_ms: 1_790_000_000_000 };
        let ids: Vec<String> = (0..100).map(|n| call.job_id(n)).collect();
        assert!(ids.iter().all(|id| crate::job::is_generated_id(id)));
        assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 100);
        assert_eq!(call.job_id(7), call.clone().job_id(7));
        let later = NamedCall { since_ms: call.since_ms + 1, ..call.clone() };
        assert_ne!(later.job_id(7), call.job_id(7));
        assert_ne!(later.call("0").id, call.call("0").id);
    }
}
