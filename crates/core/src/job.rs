//! What a job is: the words of its document, and the checked job that is stored.
//!
//! [`JobRequest`] is the public document (one line of `--bulk`, the body of `POST /api/v1/jobs`); [`JobRequest::check`] turns
//! it into a [`NewJob`] or names every field that is wrong. The handler's own argument schema is checked by whoever knows it.

mod names;
mod request;

use std::collections::BTreeMap;
use std::time::Duration;

pub use names::{check_handler_name, check_id, check_queue, is_generated_id, new_id};
pub use request::{JobRequest, LateRequest, MAX_ARGS_DEPTH, check_instant};
use serde::{Deserialize, Serialize};

use crate::backoff::Retry;

/// The queue of jobs that name none.
pub const DEFAULT_QUEUE: &str = "default";
/// One thing wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldError {
    /// The field's path, such as `retry.factor`.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl FieldError {
    /// Makes one.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Four bands, taken in weighted order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// First.
    Critical,
    /// Second.
    High,
    /// The default.
    #[default]
    Normal,
    /// Last.
    Low,
}

impl Priority {
    /// All bands, the most urgent first; the index is the band's digit in keys and records.
    pub const ALL: [Self; 4] = [Self::Critical, Self::High, Self::Normal, Self::Low];

    /// The band's digit, 0 to 3.
    #[must_use]
    pub const fn band(self) -> u8 {
        self as u8
    }

    /// The public word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }

    /// The band of a word, `None` for anything but the four.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.word() == word)
    }
}

/// What becomes of a job that is promoted later than its grace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Late {
    /// Runs all the same.
    #[default]
    Run,
    /// Ends as cancelled, reason `late`.
    Skip,
    /// Waits as held for a person.
    Hold,
}

impl Late {
    /// The letter in a record.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Run => 'r',
            Self::Skip => 's',
            Self::Hold => 'h',
        }
    }

    /// The policy of a letter.
    #[must_use]
    pub fn from_letter(letter: char) -> Option<Self> {
        [Self::Run, Self::Skip, Self::Hold].into_iter().find(|one| one.letter() == letter)
    }
}

/// How long a unique key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UniqueUntil {
    /// Until the job starts.
    Started,
    /// Until it ends for good.
    Finished,
}

/// A key that at most one waiting or running job of a queue may hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unique {
    /// Any text of 1 to 200 bytes without control characters.
    pub key: String,
    /// `finished` by default.
    #[serde(default = "finished")]
    pub until: UniqueUntil,
}

const fn finished() -> UniqueUntil {
    UniqueUntil::Finished
}

/// When a job is due, as handed in; Redis' clock makes the instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// At once.
    Now,
    /// So many milliseconds after it is stored.
    In(u64),
    /// At this instant, milliseconds since 1970.
    At(u64),
}

/// The immutable part of a job: what runs, and its own policies.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSpec {
    /// The handler's name.
    pub handler: String,
    /// The arguments' JSON text, byte for byte as handed in.
    pub args: String,
    /// Attempts allowed, when the job says so itself.
    pub max_attempts: Option<u32>,
    /// Its own retry policy.
    pub retry: Option<Retry>,
    /// Its own timeout in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Not started after this instant, milliseconds since 1970.
    pub deadline_ms: Option<u64>,
    /// For people and filters.
    pub tags: BTreeMap<String, String>,
    /// Travel with the job.
    pub headers: BTreeMap<String, String>,
}

/// A checked job, ready to be stored.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// A generated ULID, or the caller's id.
    pub id: String,
    /// Its queue.
    pub queue: String,
    /// When it is due.
    pub due: Due,
    /// Its band.
    pub priority: Priority,
    /// What to do when it is late.
    pub late: Late,
    /// How late is still in time, milliseconds.
    pub grace_ms: u64,
    /// The key it holds while it lives.
    pub unique: Option<Unique>,
    /// Key and time span in milliseconds during which the same key is a duplicate.
    pub dedupe: Option<(String, u64)>,
    /// What runs.
    pub spec: JobSpec,
}

/// The timeout of an attempt that names none anywhere else.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
