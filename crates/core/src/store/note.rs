//! Progress and log lines of running jobs, fenced like everything that writes to one.

use super::script::NOTE;
use super::{Store, StoreError};
use crate::handler::Note;
use crate::state::truncate;

/// A note of one claim.
#[derive(Clone, Debug)]
pub struct JobNote {
    /// The job.
    pub id: String,
    /// Its claim's token.
    pub token: u64,
    /// What it says.
    pub note: Note,
}

impl Store {
    /// Keeps notes of one queue's jobs; returns how many belonged to a current claim.
    ///
    /// # Errors
    /// As any call.
    pub async fn note(&self, queue: &str, notes: &[JobNote]) -> Result<u64, StoreError> {
        let fill = |command: &mut redis::Cmd| {
            for note in notes {
                let (kind, text) = match &note.note {
                    Note::Progress(percent, text) => ("p", format!("{percent} {text}")),
                    Note::Log(line) => ("l", line.clone()),
                };
                command.arg(&note.id).arg(format!("{:016}", note.token)).arg(kind).arg(truncate(text, 1024));
            }
        };
        NOTE.run(&self.link, &self.keys.queue_tag(queue), &self.time(), fill).await
    }
}
