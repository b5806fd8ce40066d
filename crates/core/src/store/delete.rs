//! Any state → gone, by a person.

use super::script::DELETE;
use super::{Store, StoreError};

impl Store {
    /// Removes jobs of one queue with every trace; `false` for unknown ids. A running job's handler is asked to stop, and its
    /// settle finds it gone.
    ///
    /// # Errors
    /// As any call.
    pub async fn delete(&self, queue: &str, ids: &[String]) -> Result<Vec<bool>, StoreError> {
        let fill = |command: &mut redis::Cmd| {
            command.arg(ids);
        };
        let removed: Vec<u8> = DELETE.run(&self.link, &self.keys.queue_tag(queue), &self.time(), fill).await?;
        Ok(removed.into_iter().map(|one| one == 1).collect())
    }
}
