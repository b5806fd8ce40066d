//! What a producer hands in, checked before anything is stored.
//!
//! [`JobRequest`] is the public document (one line of `--bulk`, the body of `POST /api/v1/jobs`); [`JobRequest::check`] turns
//! it into a [`NewJob`] or names every field that is wrong. The handler's own argument schema is checked by whoever knows it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::backoff::Retry;
use crate::{clock, duration};

/// The queue of jobs that name none.
pub const DEFAULT_QUEUE: &str = "default";
/// Deepest nesting of arguments.
pub const MAX_ARGS_DEPTH: usize = 64;
const CENTURY_MS: u64 = 100 * 366 * 86_400_000;
const DAY_MS: u64 = 86_400_000;

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

/// The document of the `late` field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LateRequest {
    /// What to do.
    #[serde(default)]
    pub policy: Late,
    /// How late is still in time; none = 0.
    #[serde(default)]
    pub grace: Option<String>,
}

/// The public document of one job to be stored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// Name of the handler, `[A-Za-z0-9._-]{1,128}`.
    pub handler: String,
    /// Any JSON, kept byte for byte; `{}` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Box<RawValue>>,
    /// `[a-z0-9_-]{1,64}`; `default` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// From now, humantime; not together with `run_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
    /// RFC 3339 with offset; up to a day ago (then it is due at once) and up to a century ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<String>,
    /// `low`, `normal`, `high` or `critical`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// 1 to 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// A preset's name or a policy object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<serde_json::Value>,
    /// Longest run of one attempt, humantime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// RFC 3339; not started after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// A key that only one living job may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique: Option<Unique>,
    /// The same key (or the same handler and arguments) is a duplicate for this long, humantime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedupe_for: Option<String>,
    /// What to do when it is promoted late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<LateRequest>,
    /// The caller's own id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Up to 16 pairs for people and filters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Up to 32 pairs that travel with the job, such as a trace's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
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

impl JobRequest {
    /// Reads one document; the error names the field.
    ///
    /// # Errors
    /// The first field that is unknown, missing or of another type.
    pub fn from_json(text: &str) -> Result<Self, FieldError> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let request: Self = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let path = error.path().to_string();
            let message = error.inner().to_string();
            // serde names the field of a missing or unknown one only inside its message.
            let named = message.split('`').nth(1).filter(|_| path == "." || path.is_empty()).map(str::to_owned);
            FieldError::new(named.unwrap_or(if path == "." { "body".to_owned() } else { path }), message)
        })?;
        reader.end().map_err(|error| FieldError::new("body", error.to_string()))?;
        Ok(request)
    }

    /// Checks every field; `max_payload` bounds the arguments' bytes.
    ///
    /// # Errors
    /// Every field that is wrong, not only the first.
    pub fn check(self, max_payload: usize) -> Result<NewJob, Vec<FieldError>> {
        let mut wrong = Vec::new();
        let mut refuse = |field: &str, message: String| wrong.push(FieldError::new(field, message));
        if let Err(message) = check_handler_name(&self.handler) {
            refuse("handler", message);
        }
        let args = self.args.map_or_else(|| "{}".to_owned(), |raw| raw.get().to_owned());
        if args.len() > max_payload {
            refuse("args", format!("{} bytes are more than the {max_payload} that jobs.max_payload allows", args.len()));
        } else if json_depth(&args) > MAX_ARGS_DEPTH {
            refuse("args", format!("nested deeper than {MAX_ARGS_DEPTH} levels"));
        }
        let queue = self.queue.unwrap_or_else(|| DEFAULT_QUEUE.to_owned());
        if let Err(message) = check_queue(&queue) {
            refuse("queue", message);
        }
        let due = match (&self.delay, &self.run_at) {
            (Some(_), Some(_)) => {
                refuse("run_at", "give either delay or run_at, not both".to_owned());
                Due::Now
            }
            (Some(delay), None) => duration_ms(delay, CENTURY_MS).map_or_else(
                |message| {
                    refuse("delay", message);
                    Due::Now
                },
                |ms| if ms == 0 { Due::Now } else { Due::In(ms) },
            ),
            (None, Some(at)) => check_instant(at).map_or_else(
                |message| {
                    refuse("run_at", message);
                    Due::Now
                },
                Due::At,
            ),
            (None, None) => Due::Now,
        };
        let priority = self.priority.as_deref().map_or(Some(Priority::Normal), Priority::from_word).unwrap_or_else(|| {
            refuse("priority", "must be low, normal, high or critical".to_owned());
            Priority::Normal
        });
        if self.max_attempts.is_some_and(|n| n == 0 || n > 1000) {
            refuse("max_attempts", "must be from 1 to 1000".to_owned());
        }
        let retry = self.retry.and_then(|value| {
            let parsed = match &value {
                serde_json::Value::String(name) => Retry::parse(name),
                other => Retry::parse(&other.to_string()),
            };
            parsed.map_err(|message| refuse("retry", message)).ok()
        });
        let timeout_ms = self.timeout.and_then(|text| match duration_ms(&text, 366 * DAY_MS) {
            Ok(0) => {
                refuse("timeout", "must be longer than zero".to_owned());
                None
            }
            Ok(ms) => Some(ms),
            Err(message) => {
                refuse("timeout", message);
                None
            }
        });
        let deadline_ms = self.deadline.and_then(|text| check_instant(&text).map_err(|message| refuse("deadline", message)).ok());
        if let Some(unique) = &self.unique
            && let Err(message) = check_key(&unique.key)
        {
            refuse("unique.key", message);
        }
        let dedupe_ms = self.dedupe_for.and_then(|text| match duration_ms(&text, 366 * DAY_MS) {
            Ok(0) => None,
            Ok(ms) => Some(ms),
            Err(message) => {
                refuse("dedupe_for", message);
                None
            }
        });
        let (late, grace_ms) = self.late.map_or((Late::Run, 0), |late| {
            let grace = late.grace.map_or(Ok(0), |text| duration_ms(&text, 366 * DAY_MS));
            (late.policy, grace.map_err(|message| refuse("late.grace", message)).unwrap_or(0))
        });
        if let Some(id) = &self.id
            && let Err(message) = check_own_id(id)
        {
            refuse("id", message);
        }
        check_pairs("tags", &self.tags, 16, 1024, &mut refuse);
        check_pairs("headers", &self.headers, 32, 8192, &mut refuse);
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let dedupe = dedupe_ms.map(|ms| {
            let key = self.unique.as_ref().map_or_else(|| fingerprint(&self.handler, &args), |unique| unique.key.clone());
            (key, ms)
        });
        let spec = JobSpec {
            handler: self.handler,
            args,
            max_attempts: self.max_attempts,
            retry,
            timeout_ms,
            deadline_ms,
            tags: self.tags,
            headers: self.headers,
        };
        let id = self.id.unwrap_or_else(new_id);
        Ok(NewJob { id, queue, due, priority, late, grace_ms, unique: self.unique, dedupe, spec })
    }
}

/// Makes a ULID; later ones of one process sort after earlier ones, also within a millisecond.
#[must_use]
pub fn new_id() -> String {
    use std::sync::Mutex;
    static GENERATOR: Mutex<ulid::Generator> = Mutex::new(ulid::Generator::new());
    let mut generator = GENERATOR.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match generator.generate() {
        Ok(id) => id,
        Err(overflow) => overflow.commit_overflow_random(),
    }
    .to_string()
}

/// Whether a text has the form of a generated id: 26 characters of Crockford's base 32.
#[must_use]
pub fn is_generated_id(id: &str) -> bool {
    let bytes = id.as_bytes();
    bytes.len() == 26
        && matches!(bytes[0], b'0'..=b'7')
        && bytes.iter().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'H' | b'J' | b'K' | b'M' | b'N' | b'P'..=b'T' | b'V'..=b'Z'))
}

/// Whether `id` can name a job at all, generated or the caller's own.
///
/// # Errors
/// The rule that it breaks.
pub fn check_id(id: &str) -> Result<(), String> {
    if is_generated_id(id) { Ok(()) } else { check_own_id(id) }
}

fn check_own_id(id: &str) -> Result<(), String> {
    let fits = (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if !fits || id == "." || id == ".." {
        return Err("must be 1 to 128 characters of A-Z a-z 0-9 . _ - and neither . nor ..".to_owned());
    }
    if is_generated_id(&id.to_ascii_uppercase()) {
        return Err("has the form of a generated id (ULID); choose another".to_owned());
    }
    Ok(())
}

/// Checks a queue's name.
///
/// # Errors
/// The rule, when it is broken.
pub fn check_queue(name: &str) -> Result<(), String> {
    let fits = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-'));
    if fits { Ok(()) } else { Err("must be 1 to 64 characters of a-z 0-9 _ -".to_owned()) }
}

/// Checks a handler's name.
///
/// # Errors
/// The rule, when it is broken.
pub fn check_handler_name(name: &str) -> Result<(), String> {
    let fits =
        (1..=128).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if fits { Ok(()) } else { Err("must be 1 to 128 characters of A-Z a-z 0-9 . _ -".to_owned()) }
}

fn check_key(key: &str) -> Result<(), String> {
    if (1..=200).contains(&key.len()) && !key.chars().any(char::is_control) {
        Ok(())
    } else {
        Err("must be 1 to 200 bytes without control characters".to_owned())
    }
}

fn check_pairs(field: &str, pairs: &BTreeMap<String, String>, count: usize, bytes: usize, refuse: &mut impl FnMut(&str, String)) {
    if pairs.len() > count {
        refuse(field, format!("at most {count} pairs, got {}", pairs.len()));
    }
    for (key, value) in pairs {
        if key.is_empty() || key.len() > 64 || key.chars().any(char::is_control) || value.len() > bytes {
            refuse(field, format!("{key:?}: keys are 1 to 64 bytes without control characters, values at most {bytes} bytes"));
        }
    }
}

fn duration_ms(text: &str, max_ms: u64) -> Result<u64, String> {
    let ms = clock::as_ms(duration::parse(text)?);
    if ms > max_ms {
        return Err(format!("{text:?} is longer than the {} years allowed", (max_ms / (366 * DAY_MS)).max(1)));
    }
    Ok(ms)
}

/// Checks an instant of a job: up to a day ago, up to a century ahead.
///
/// # Errors
/// What is wrong with it.
pub fn check_instant(text: &str) -> Result<u64, String> {
    let at = clock::parse_instant(text)?;
    let now = clock::local_ms();
    if at.saturating_add(DAY_MS) < now || at > now.saturating_add(CENTURY_MS) {
        return Err(format!("{text:?} must lie between a day ago and a hundred years ahead"));
    }
    Ok(at)
}

/// The key of jobs that are duplicates by content: handler and arguments, the arguments' keys sorted.
fn fingerprint(handler: &str, args: &str) -> String {
    use sha2::{Digest, Sha256};
    // serde_json's map is sorted, so permuted keys give one text.
    let canonical = serde_json::from_str::<serde_json::Value>(args).map_or_else(|_| args.to_owned(), |value| value.to_string());
    let digest = Sha256::digest(format!("{handler}\n{canonical}").as_bytes());
    digest.iter().take(16).fold(String::new(), |mut hex, byte| {
        use std::fmt::Write;
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn json_depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// The timeout of an attempt that names none anywhere else.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Vec<String> {
        match JobRequest::from_json(text) {
            Err(error) => vec![error.field],
            Ok(request) => request.check(1000).map_or_else(|wrong| wrong.into_iter().map(|e| e.field).collect(), |_| vec![]),
        }
    }

    #[test]
    fn bad_fields_are_named_all_at_once() {
        let cases: &[(&str, &[&str])] = &[
            (r#"{"handler":"a"}"#, &[]),
            (r#"{}"#, &["handler"]),
            (r#"{"handler":""}"#, &["handler"]),
            (r#"{"handler":"a b"}"#, &["handler"]),
            (r#"{"handler":"a","queue":"A"}"#, &["queue"]),
            (r#"{"handler":"a","queue":"{x}"}"#, &["queue"]),
            (r#"{"handler":"a","delay":"5"}"#, &["delay"]),
            (r#"{"handler":"a","delay":"200years"}"#, &["delay"]),
            (r#"{"handler":"a","delay":"1s","run_at":"2026-12-01T00:00:00Z"}"#, &["run_at"]),
            (r#"{"handler":"a","run_at":"1999-01-01T00:00:00Z"}"#, &["run_at"]),
            (r#"{"handler":"a","run_at":"2199-01-01T00:00:00Z"}"#, &["run_at"]),
            (r#"{"handler":"a","run_at":"tomorrow"}"#, &["run_at"]),
            (r#"{"handler":"a","priority":"9"}"#, &["priority"]),
            (r#"{"handler":"a","priority":9}"#, &["priority"]),
            (r#"{"handler":"a","max_attempts":0}"#, &["max_attempts"]),
            (r#"{"handler":"a","max_attempts":-1}"#, &["max_attempts"]),
            (r#"{"handler":"a","retry":{"factor":0}}"#, &["retry"]),
            (r#"{"handler":"a","timeout":"0s"}"#, &["timeout"]),
            (r#"{"handler":"a","id":"..","queue":""}"#, &["queue", "id"]),
            (r#"{"handler":"a","id":"01ARZ3NDEKTSV4RRFFQ69G5FAV"}"#, &["id"]),
            (r#"{"handler":"a","id":"01arz3ndektsv4rrffq69g5fav"}"#, &["id"]),
            (r#"{"handler":"a","id":"a:b"}"#, &["id"]),
            (r#"{"handler":"a","unique":{"key":""}}"#, &["unique.key"]),
            (r#"{"handler":"a","colour":"red"}"#, &["colour"]),
        ];
        for (text, expected) in cases {
            assert_eq!(fields(text), *expected, "{text}");
        }
        let deep = format!(r#"{{"handler":"a","args":{}{}}}"#, "[".repeat(65), "]".repeat(65));
        assert_eq!(fields(&deep), ["args"]);
        let large = format!(r#"{{"handler":"a","args":"{}"}}"#, "x".repeat(1000));
        assert_eq!(fields(&large), ["args"]);
    }

    #[test]
    fn args_keep_their_bytes() {
        let text = r#"{"handler":"a","args":{"b":1.0,"a":12345678901234567890, "a":[ ]}}"#;
        let job = JobRequest::from_json(text).unwrap().check(1000).unwrap();
        assert_eq!(job.spec.args, r#"{"b":1.0,"a":12345678901234567890, "a":[ ]}"#);
    }

    #[test]
    fn generated_ids_sort_and_never_equal_an_own_one() {
        let ids: Vec<String> = (0..1000).map(|_| new_id()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ids.iter().all(|id| is_generated_id(id) && check_own_id(id).is_err()));
    }

    #[test]
    fn permuted_arguments_have_one_fingerprint() {
        assert_eq!(fingerprint("h", r#"{"a":1,"b":2}"#), fingerprint("h", r#"{"b":2, "a":1}"#));
        assert_ne!(fingerprint("h", r#"{"a":1}"#), fingerprint("g", r#"{"a":1}"#));
    }
}
