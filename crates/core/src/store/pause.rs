//! Pausing is a flag that claim reads; nothing moves.

use super::script::RESUME;
use super::{Store, StoreError};

impl Store {
    /// Whether nothing of a queue may start.
    ///
    /// # Errors
    /// As any call.
    pub async fn is_paused(&self, queue: &str) -> Result<bool, StoreError> {
        self.link.query(redis::cmd("EXISTS").arg(self.keys.queue(queue, "paused"))).await
    }

    /// Stops new claims of a queue; what runs goes on. `true` when it was not paused before.
    ///
    /// # Errors
    /// As any call.
    pub async fn pause(&self, queue: &str) -> Result<bool, StoreError> {
        let mut command = redis::cmd("SET");
        command.arg(self.keys.queue(queue, "paused")).arg(1).arg("NX");
        Ok(self.link.query::<Option<String>>(&command).await?.is_some())
    }

    /// Lets claims go on and wakes the nodes. `true` when it was paused.
    ///
    /// # Errors
    /// As any call.
    pub async fn resume(&self, queue: &str) -> Result<bool, StoreError> {
        Ok(RESUME.run::<u8>(&self.link, &self.keys.queue_tag(queue), &self.time(), |_| {}).await? == 1)
    }
}
