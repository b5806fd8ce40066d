//! The bytes of a job's body, and nothing else.
//!
//! A body is a header that the scripts read by position, then one bincode value that only Rust reads:
//!
//! | Bytes | Holds |
//! |---|---|
//! | 1 | format version |
//! | 2 | band, `0` to `3` |
//! | 3 | late policy, `r` `s` `h` |
//! | 4 | `+` when an extension follows the times, else `-` |
//! | 5–10, 11–16 | created and due, big-endian milliseconds; written by the enqueue script, by Redis' clock |
//! | extension | `stamp grace_ms max_crashes until unique_key` and a line feed |
//! | rest | bincode of the spec |
//!
//! bincode has no schema evolution: a new field means a new version byte, a new struct and an upgrade function. Trailing bytes
//! are an error, and decoding is limited in size, because a record may come from anywhere that can reach Redis.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::backoff::Retry;
use crate::job::{JobSpec, Late, NewJob, Priority, Unique, UniqueUntil};

/// The version that this binary writes.
pub const VERSION: u8 = 1;
/// Where the extension, or the value, begins.
const FIXED: usize = 16;
/// Nothing longer is decoded; the largest payload allowed is 16 MiB.
const LIMIT: usize = 17 * 1024 * 1024;

/// The pieces of a body as the enqueue script takes them: it puts the times (and the stamp) between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Version, band, late policy.
    pub head: [u8; 3],
    /// `grace_ms max_crashes until unique_key`, or empty.
    pub extension: String,
    /// The bincode value.
    pub value: Vec<u8>,
}

/// A body read back.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its band.
    pub priority: Priority,
    /// What to do when it is late.
    pub late: Late,
    /// How late is still in time.
    pub grace_ms: u64,
    /// When it was stored, by Redis' clock.
    pub created_ms: u64,
    /// When it was first due.
    pub due_ms: u64,
    /// Its unique key.
    pub unique: Option<Unique>,
    /// What runs.
    pub spec: JobSpec,
}

/// Why a body cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by a newer release; a newer node can run it.
    #[error("record version {0} is newer than this binary's {VERSION}")]
    Newer(u8),
    /// Not a body.
    #[error("{0}")]
    Corrupt(String),
}

#[derive(Serialize, Deserialize)]
struct ValueV1 {
    handler: String,
    args: String,
    max_attempts: Option<u32>,
    retry: Option<String>,
    timeout_ms: Option<u64>,
    deadline_ms: Option<u64>,
    tags: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<LIMIT>()
}

/// Encodes a job for the enqueue script.
///
/// # Panics
/// Never: the value is plain data.
#[must_use]
pub fn encode(job: &NewJob) -> Encoded {
    let value = encode_value(&job.spec);
    let plain = job.grace_ms == 0 && job.unique.is_none();
    let extension = if plain {
        String::new()
    } else {
        let (until, key) = match &job.unique {
            Some(Unique { key, until: UniqueUntil::Started }) => ('s', key.as_str()),
            Some(Unique { key, until: UniqueUntil::Finished }) => ('f', key.as_str()),
            None => ('-', ""),
        };
        format!("{} 0 {until} {key}", job.grace_ms)
    };
    Encoded { head: [VERSION, b'0' + job.priority.band(), job.late.letter() as u8], extension, value }
}

/// Encodes the part that only Rust reads.
///
/// # Panics
/// Never: the value is plain data.
#[must_use]
pub fn encode_value(spec: &JobSpec) -> Vec<u8> {
    let value = ValueV1 {
        handler: spec.handler.clone(),
        args: spec.args.clone(),
        max_attempts: spec.max_attempts,
        retry: spec.retry.as_ref().map(Retry::to_text),
        timeout_ms: spec.timeout_ms,
        deadline_ms: spec.deadline_ms,
        tags: spec.tags.clone(),
        headers: spec.headers.clone(),
    };
    bincode::serde::encode_to_vec(value, config()).expect("plain data below the limit always encodes")
}

/// Reads a body.
///
/// # Errors
/// [`DecodeError::Newer`] for a later version, [`DecodeError::Corrupt`] for anything that is not a body.
pub fn decode(body: &[u8]) -> Result<Record, DecodeError> {
    let corrupt = |what: &str| DecodeError::Corrupt(what.to_owned());
    match body.first() {
        None => return Err(corrupt("empty")),
        Some(&VERSION) => {}
        Some(0) => return Err(corrupt("version 0")),
        Some(&version) if version < 32 => return Err(DecodeError::Newer(version)),
        Some(_) => return Err(corrupt("not a record of punctual")),
    }
    if body.len() < FIXED {
        return Err(corrupt("shorter than its header"));
    }
    let band = body[1].wrapping_sub(b'0');
    let priority = *Priority::ALL.get(usize::from(band)).ok_or_else(|| corrupt("unknown band"))?;
    let late = Late::from_letter(char::from(body[2])).ok_or_else(|| corrupt("unknown late policy"))?;
    let time = |from: usize| body[from..from + 6].iter().fold(0_u64, |ms, byte| ms << 8 | u64::from(*byte));
    let (created_ms, due_ms) = (time(4), time(10));
    let mut rest = &body[FIXED..];
    let (mut grace_ms, mut unique) = (0, None);
    match body[3] {
        b'-' => {}
        b'+' => {
            let end = rest.iter().position(|byte| *byte == b'\n').ok_or_else(|| corrupt("extension without end"))?;
            let text = std::str::from_utf8(&rest[..end]).map_err(|_| corrupt("extension is not text"))?;
            let mut parts = text.splitn(5, ' ');
            let _stamp = parts.next();
            grace_ms = parts.next().and_then(|part| part.parse().ok()).ok_or_else(|| corrupt("extension without grace"))?;
            let _max_crashes = parts.next();
            let until = parts.next().ok_or_else(|| corrupt("extension without until"))?;
            let key = parts.next().ok_or_else(|| corrupt("extension without key"))?.to_owned();
            unique = match until {
                "s" => Some(Unique { key, until: UniqueUntil::Started }),
                "f" => Some(Unique { key, until: UniqueUntil::Finished }),
                _ => None,
            };
            rest = &rest[end + 1..];
        }
        _ => return Err(corrupt("unknown extension mark")),
    }
    let (value, used): (ValueV1, usize) =
        bincode::serde::decode_from_slice(rest, config()).map_err(|error| DecodeError::Corrupt(error.to_string()))?;
    if used != rest.len() {
        return Err(corrupt("bytes after the end"));
    }
    let retry = value.retry.map(|text| Retry::parse(&text)).transpose().map_err(DecodeError::Corrupt)?;
    let spec = JobSpec {
        handler: value.handler,
        args: value.args,
        max_attempts: value.max_attempts,
        retry,
        timeout_ms: value.timeout_ms,
        deadline_ms: value.deadline_ms,
        tags: value.tags,
        headers: value.headers,
    };
    Ok(Record { priority, late, grace_ms, created_ms, due_ms, unique, spec })
}

/// The stamp in a body's header, `0` for none: an entry in a ready list stands for the job only with the same one. `None` when
/// there is no header to be read.
#[must_use]
pub fn stamp(body: &[u8]) -> Option<&str> {
    match body.get(3)? {
        b'+' => std::str::from_utf8(body.get(FIXED..)?.split(|byte| *byte == b' ').next()?).ok(),
        _ => Some("0"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobRequest;

    /// What the enqueue script makes of the pieces.
    fn assemble(encoded: &Encoded, created_ms: u64, due_ms: u64) -> Vec<u8> {
        let mut body = encoded.head.to_vec();
        body.push(if encoded.extension.is_empty() { b'-' } else { b'+' });
        body.extend(&created_ms.to_be_bytes()[2..]);
        body.extend(&due_ms.to_be_bytes()[2..]);
        if !encoded.extension.is_empty() {
            body.extend(format!("0 {}\n", encoded.extension).bytes());
        }
        body.extend(&encoded.value);
        body
    }

    fn job(text: &str) -> NewJob {
        JobRequest::from_json(text).unwrap().check(1 << 20).unwrap()
    }

    #[test]
    fn version_1_bytes_stay_what_they_are() {
        let encoded = encode(&job(r#"{"handler":"order.close","args":{"order_id":7},"max_attempts":3,"tags":{"shop":"de"}}"#));
        let body = assemble(&encoded, 0x0102_0304_0506, 0x0102_0304_0507);
        let golden = b"\x012r-\x01\x02\x03\x04\x05\x06\x01\x02\x03\x04\x05\x07\x0border.close\x0e{\"order_id\":7}\x01\x03\x00\x00\x00\x01\x04shop\x02de\x00";
        assert_eq!(body, golden);
        assert_eq!(decode(golden).unwrap().spec.args, r#"{"order_id":7}"#);
    }

    #[test]
    fn bodies_read_back() {
        let all = r#"{"handler":"a","args":[1,"ä"],"priority":"critical","late":{"policy":"hold","grace":"5s"},"retry":{"base":"1s"},
            "timeout":"3s","unique":{"key":"k e y","until":"started"},"headers":{"traceparent":"00-1"}}"#;
        let new = job(all);
        let record = decode(&assemble(&encode(&new), 5, 6)).unwrap();
        assert_eq!(record.spec, new.spec);
        assert_eq!((record.priority, record.late, record.grace_ms), (Priority::Critical, Late::Hold, 5000));
        assert_eq!(record.unique, new.unique);
        assert_eq!((record.created_ms, record.due_ms), (5, 6));
    }

    #[test]
    fn damaged_bodies_are_errors_and_never_panics() {
        let good = assemble(&encode(&job(r#"{"handler":"a","unique":{"key":"k"}}"#)), 1, 2);
        for end in 0..good.len() {
            assert!(decode(&good[..end]).is_err(), "cut at {end}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert!(matches!(decode(&longer), Err(DecodeError::Corrupt(_))));
        let mut newer = good.clone();
        newer[0] = 2;
        assert_eq!(decode(&newer), Err(DecodeError::Newer(2)));
        for seed in 0..2000_u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut bytes = good.clone();
            for _ in 0..3 {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            let _ = decode(&bytes);
        }
    }
}
