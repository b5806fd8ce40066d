//! Retention for queues where nothing settles: the settles of a busy queue trim by themselves.

use super::script::TRIM;
use super::settle::retain;
use super::{Store, StoreError};
use crate::config::Retention;

/// Most jobs of one set that one call removes.
pub const BATCH: u64 = 200;

impl Store {
    /// Removes ended jobs that are too old or too many; returns how many. Call again while it returns a full batch.
    ///
    /// # Errors
    /// As any call.
    pub async fn trim(&self, queue: &str, retention: &Retention) -> Result<u64, StoreError> {
        let fill = |command: &mut redis::Cmd| {
            retain(command, retention);
            command.arg(BATCH);
        };
        TRIM.run(&self.link, &self.keys.queue_tag(queue), &self.time(), fill).await
    }
}
