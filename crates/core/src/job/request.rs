//! The public document of a job, and its check: every field that is wrong is named before anything is stored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::names::check_own_id;
use super::{DEFAULT_QUEUE, Due, FieldError, JobSpec, Late, NewJob, Priority, Unique, check_handler_name, check_queue, new_id};
use crate::backoff::Retry;
use crate::{clock, duration};

/// Deepest nesting of arguments.
pub const MAX_ARGS_DEPTH: usize = 64;
/// No job is promoted in the very millisecond in which it is due: without a grace nearly all would be too late.
const DEFAULT_GRACE_MS: u64 = 30_000;
const CENTURY_MS: u64 = 100 * 366 * 86_400_000;
const DAY_MS: u64 = 86_400_000;

/// The document of the `late` field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LateRequest {
    /// What to do.
    #[serde(default)]
    pub policy: Late,
    /// How late is still in time, humantime; 30 s when absent.
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
    /// 1 to 10,000.
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
        if self.max_attempts.is_some_and(|n| n == 0 || n > 10_000) {
            refuse("max_attempts", "must be from 1 to 10000".to_owned());
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
        let deadline_ms =
            self.deadline.and_then(|text| check_deadline(&text, due).map_err(|message| refuse("deadline", message)).ok());
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
            let grace = late.grace.map_or(Ok(DEFAULT_GRACE_MS), |text| duration_ms(&text, 366 * DAY_MS));
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

/// A deadline must leave the job a chance to start; this machine's clock may be a minute ahead of Redis'.
fn check_deadline(text: &str, due: Due) -> Result<u64, String> {
    let (at, now) = (check_instant(text)?, clock::local_ms());
    let due_ms = match due {
        Due::Now => now,
        Due::In(ms) => now.saturating_add(ms),
        Due::At(ms) => ms.max(now),
    };
    if at.saturating_add(60_000) < due_ms {
        return Err(format!("{text:?} has passed by {}, when the job is due: it would never start", clock::format_ms(due_ms)));
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
            (r#"{"handler":"a","delay":"2h","deadline":"2199-01-01T00:00:00Z"}"#, &["deadline"]),
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
    fn late_without_a_grace_has_half_a_minute() {
        let grace = |late: &str| {
            let request = JobRequest::from_json(&format!(r#"{{"handler":"a","late":{late}}}"#)).unwrap();
            request.check(1000).unwrap().grace_ms
        };
        assert_eq!(grace(r#"{"policy":"skip"}"#), 30_000);
        assert_eq!(grace(r#"{"policy":"hold","grace":"0s"}"#), 0);
        assert_eq!(grace(r#"{"policy":"skip","grace":"1500ms"}"#), 1_500);
    }

    #[test]
    fn args_keep_their_bytes() {
        let text = r#"{"handler":"a","args":{"b":1.0,"a":12345678901234567890, "a":[ ]}}"#;
        let job = JobRequest::from_json(text).unwrap().check(1000).unwrap();
        assert_eq!(job.spec.args, r#"{"b":1.0,"a":12345678901234567890, "a":[ ]}"#);
    }

    #[test]
    fn permuted_arguments_have_one_fingerprint() {
        assert_eq!(fingerprint("h", r#"{"a":1,"b":2}"#), fingerprint("h", r#"{"b":2, "a":1}"#));
        assert_ne!(fingerprint("h", r#"{"a":1}"#), fingerprint("g", r#"{"a":1}"#));
    }
}
