//! Running → ready | retrying | dead for the jobs of a dead incarnation, and its fetched entries back to the front.

use std::collections::BTreeMap;
use std::time::Duration;

use super::script::{LEAVE, REAP};
use super::{Store, StoreError};
use crate::clock::as_ms;

/// Most jobs of one call.
pub const BATCH: usize = 100;

/// What one call took away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Running jobs that will run again.
    pub requeued: u64,
    /// Running jobs that have now killed too many nodes.
    pub buried: u64,
    /// Entries fetched but not claimed: back in the list, charged nothing.
    pub unclaimed: u64,
    /// Whether another call is needed.
    pub more: bool,
    /// A later term was here before: nothing was changed, and this reaper no longer holds the lease.
    pub fenced: bool,
}

/// How crashes are met.
#[derive(Clone, Debug)]
pub struct CrashPolicy {
    /// At this crash a job is dead.
    pub max_crashes: u32,
    /// The waits before the second, third … delivery after a crash; the last repeats.
    pub waits: Vec<Duration>,
}

impl CrashPolicy {
    /// The cluster's: 5 s doubling to a minute.
    #[must_use]
    pub fn new(max_crashes: u32) -> Self {
        Self { max_crashes, waits: [5, 10, 20, 40, 60].into_iter().map(Duration::from_secs).collect() }
    }
}

impl Store {
    /// Takes up to [`BATCH`] jobs of a dead incarnation away from it, under the lease of `term`. May be sent again after any error.
    ///
    /// # Errors
    /// As any call.
    pub async fn reap(&self, queue: &str, incarnation: &str, term: u64, policy: &CrashPolicy) -> Result<Reaped, StoreError> {
        let fill = |command: &mut redis::Cmd| {
            command.arg(incarnation).arg(format!("{term:016}")).arg(BATCH).arg(policy.max_crashes);
            for wait in &policy.waits {
                command.arg(as_ms(*wait));
            }
        };
        let answer: Vec<u64> = REAP.run(&self.link, &self.keys.queue_tag(queue), &self.time(), fill).await?;
        match answer.as_slice() {
            [_fence] => Ok(Reaped { fenced: true, ..Reaped::default() }),
            [requeued, buried, unclaimed, more] => {
                Ok(Reaped { requeued: *requeued, buried: *buried, unclaimed: *unclaimed, more: *more == 1, fenced: false })
            }
            _ => Err(StoreError::unexpected("a reaping that cannot be read")),
        }
    }

    /// Who has, or had, lists in a queue; `true` for those that are already known to be gone.
    ///
    /// # Errors
    /// As any call.
    pub async fn owners(&self, queue: &str) -> Result<Vec<(String, bool)>, StoreError> {
        let owners: BTreeMap<String, String> =
            self.link.query(redis::cmd("HGETALL").arg(self.keys.queue(queue, "owners"))).await?;
        Ok(owners.into_iter().map(|(incarnation, value)| (incarnation, value.starts_with("gone"))).collect())
    }

    /// Ends an ownership: at once for a node that stops (`gone_for` zero), or when a dead one has been gone for so long.
    /// `false` while it still holds something here.
    ///
    /// # Errors
    /// As any call.
    pub async fn leave(&self, queue: &str, incarnation: &str, gone_for: Duration) -> Result<bool, StoreError> {
        let fill = |command: &mut redis::Cmd| {
            command.arg(incarnation).arg(as_ms(gone_for));
        };
        let left: u8 = LEAVE.run(&self.link, &self.keys.queue_tag(queue), &self.time(), fill).await?;
        Ok(left == 1)
    }
}
