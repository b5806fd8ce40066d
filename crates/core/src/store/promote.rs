//! Scheduled | retrying → ready, for what is due by Redis' clock. Fenced by the lease's term.

use super::script::PROMOTE;
use super::{Store, StoreError};

/// Most jobs of one call: bounded, so that a burst neither blocks Redis nor outlives the lease.
pub const BATCH: usize = 500;

/// What one promotion did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Promoted {
    /// A later term was here before: this promoter has lost the lease, or the cluster has forgotten its terms.
    Fenced(u64),
    /// Moved what was due.
    Moved {
        /// Redis' time in milliseconds.
        now_ms: u64,
        /// How late each moved job was, milliseconds.
        lateness_ms: Vec<u64>,
        /// When the next one is due, milliseconds since 1970.
        next_due_ms: Option<u64>,
        /// Jobs that were too late by their own policy: cancelled or held.
        late: u64,
        /// Index entries without a record, dropped.
        phantoms: u64,
    },
}

impl Store {
    /// Promotes up to `limit` due jobs of a queue. May be sent again after any error.
    ///
    /// # Errors
    /// As any call.
    pub async fn promote(&self, queue: &str, term: u64, limit: usize) -> Result<Promoted, StoreError> {
        let fill = |command: &mut redis::Cmd| {
            command.arg(format!("{term:016}")).arg(limit.min(BATCH));
        };
        let answer: Vec<i64> = PROMOTE.run(&self.link, &self.keys.queue_tag(queue), &self.time(), fill).await?;
        match answer.as_slice() {
            [fence] => Ok(Promoted::Fenced(u64::try_from(*fence).unwrap_or(0))),
            [0, now, next, late, phantoms, lateness @ ..] => Ok(Promoted::Moved {
                now_ms: u64::try_from(*now).unwrap_or(0),
                lateness_ms: lateness.iter().map(|ms| u64::try_from(*ms).unwrap_or(0)).collect(),
                next_due_ms: u64::try_from(*next).ok(),
                late: u64::try_from(*late).unwrap_or(0),
                phantoms: u64::try_from(*phantoms).unwrap_or(0),
            }),
            _ => Err(StoreError::unexpected("a promotion that cannot be read")),
        }
    }

    /// When the first job of each queue is due, without a script: what the safety tick looks at.
    ///
    /// # Errors
    /// As any call.
    pub async fn next_due(&self, queues: &[String]) -> Result<Vec<Option<u64>>, StoreError> {
        if queues.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for queue in queues {
            for set in ["scheduled", "retrying"] {
                pipeline.cmd("ZRANGE").arg(self.keys.queue(queue, set)).arg(0).arg(0).arg("WITHSCORES");
            }
        }
        let firsts: Vec<Vec<(String, f64)>> = self.link.pipe(&pipeline).await?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "scores are whole milliseconds below 2^53")]
        let due = |first: &Vec<(String, f64)>| first.first().map(|(_, score)| *score as u64);
        Ok(firsts.chunks(2).map(|pair| pair.iter().filter_map(due).min()).collect())
    }
}
