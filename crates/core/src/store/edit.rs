//! New arguments for a job that does not run. The state stays what it is.

use super::script::EDIT;
use super::{Store, StoreError};
use crate::codec;
use crate::job::JobSpec;

/// What an edit did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edited {
    /// Changed.
    Done,
    /// It runs, has succeeded, or was changed by somebody else meanwhile.
    Refused,
    /// No such job in this queue.
    Unknown,
}

impl Store {
    /// Replaces what a job runs with; `body` is the body as it was read, so that two editors do not overwrite each other.
    ///
    /// # Errors
    /// As any call.
    pub async fn edit(&self, queue: &str, id: &str, body: &[u8], spec: &JobSpec) -> Result<Edited, StoreError> {
        let value = codec::encode_value(spec);
        let fill = |command: &mut redis::Cmd| {
            command.arg(id).arg(body).arg(&value);
        };
        let answer: i64 = EDIT.run(&self.link, &self.keys.queue_tag(queue), &self.time(), fill).await?;
        Ok(match answer {
            1 => Edited::Done,
            0 => Edited::Refused,
            _ => Edited::Unknown,
        })
    }
}
