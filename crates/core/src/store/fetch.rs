//! The blocking wake-up: one BRPOPLPUSH per queue on a connection of its own.
//!
//! The moved entry is not a claim yet: it lies in the node's processing list until a claim takes it. The response timeout is well
//! above the block time, and an issued call is never dropped except together with its connection; otherwise the server would move
//! the next job for a reader that has gone.

use std::time::Duration;

use super::{Link, Store, StoreError};

/// How much longer than the block an answer may take.
const SLACK: Duration = Duration::from_secs(5);

/// A fetcher of one queue.
pub struct Fetch {
    link: Link,
    from: String,
    to: String,
    block: Duration,
    client_id: Option<(u64, i64)>,
}

impl Store {
    /// Prepares the fetcher of a queue for one incarnation.
    #[must_use]
    pub fn fetch(&self, queue: &str, incarnation: &str, block: Duration) -> Fetch {
        Fetch {
            link: self.link.blocking(block + SLACK),
            from: self.keys.ready(queue, 2),
            to: self.keys.queue(queue, &format!("p:{incarnation}")),
            block,
            client_id: None,
        }
    }

    /// Wakes a fetcher of this process, so that it reads its reply at once.
    ///
    /// # Errors
    /// As any call; an unknown client is no error.
    pub async fn unblock(&self, client_id: i64) -> Result<(), StoreError> {
        self.link.query(redis::cmd("CLIENT").arg("UNBLOCK").arg(client_id)).await
    }

    /// Whether any band of a queue holds something: what an idle node looks at when its block ends.
    ///
    /// # Errors
    /// As any call.
    pub async fn has_work(&self, queue: &str) -> Result<bool, StoreError> {
        let mut command = redis::cmd("EXISTS");
        for part in ["r0", "r1", "r2", "r3", "suspects"] {
            command.arg(self.keys.queue(queue, part));
        }
        Ok(self.link.query::<u32>(&command).await? > 0)
    }
}

impl Fetch {
    /// The id by which [`Store::unblock`] wakes this fetcher. Asks once per connection.
    ///
    /// # Errors
    /// As any call.
    pub async fn client_id(&mut self) -> Result<i64, StoreError> {
        match self.client_id {
            Some((generation, id)) if generation == self.link.generation() => Ok(id),
            _ => {
                let id = self.link.query(redis::cmd("CLIENT").arg("ID")).await?;
                self.client_id = Some((self.link.generation(), id));
                Ok(id)
            }
        }
    }

    /// Waits until an entry was moved into the processing list (`true`) or the block ended (`false`).
    ///
    /// Not cancel-safe: let it end, or drop the whole fetcher.
    ///
    /// # Errors
    /// As any call; the entry may have been moved all the same, and the next claim finds it.
    pub async fn wait(&mut self) -> Result<bool, StoreError> {
        let mut command = redis::cmd("BRPOPLPUSH");
        command.arg(&self.from).arg(&self.to).arg(self.block.as_secs_f64());
        let moved: Option<Vec<u8>> = self.link.query(&command).await?;
        Ok(moved.is_some())
    }
}
