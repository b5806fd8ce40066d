//! What users hand in on a command line: JSON as text, file or standard input; pairs; instants.

use std::fs::File;
use std::io::{self, Read};

use punctual_core::job::FieldError;
use punctual_core::{clock, job};
use serde_json::value::RawValue;

use super::failure::Failure;

/// Most that is read before anything is checked: well above the largest `jobs.max_payload`.
const MOST_BYTES: u64 = 32 << 20;

/// Reads `--args`: JSON as it stands, `@FILE`, or `-` for standard input. The bytes are kept as they are.
pub(crate) fn json(text: &str) -> Result<Box<RawValue>, Failure> {
    let (what, text) = match text.strip_prefix('@') {
        Some("") => return Err(Failure::usage("args: @ stands before the name of a file")),
        Some(path) => (path.to_owned(), File::open(path).and_then(read).map_err(|error| unreadable(path, &error))?),
        None if text == "-" => {
            ("standard input".to_owned(), read(io::stdin().lock()).map_err(|error| unreadable("standard input", &error))?)
        }
        None => (String::new(), text.to_owned()),
    };
    let place = if what.is_empty() { what } else { format!(" in {what}") };
    RawValue::from_string(text).map_err(|error| Failure::usage(format!("args: not JSON{place}: {error}")))
}

fn read(from: impl Read) -> io::Result<String> {
    let mut text = String::new();
    from.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if u64::try_from(text.len()).is_ok_and(|length| length > MOST_BYTES) {
        return Err(io::Error::other(format!("more than {} MiB", MOST_BYTES >> 20)));
    }
    Ok(text)
}

fn unreadable(what: &str, error: &io::Error) -> Failure {
    Failure::usage(format!("args: read {what}: {error}"))
}

/// Reads `key=value`; the value may be empty and may hold more `=`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE, such as tenant=acme".to_owned()),
    }
}

/// Reads an instant of a job, RFC 3339 or the local time of `zone`; returns it as RFC 3339 in UTC.
pub(crate) fn instant(field: &str, text: &str, zone: Option<&str>) -> Result<String, FieldError> {
    let at = match zone {
        Some(zone) => clock::parse_instant_in(text, zone),
        None => clock::parse_instant(text).map_err(|message| format!("{message}, or a local time with --tz ZONE")),
    };
    let text = clock::format_ms(at.map_err(|message| FieldError::new(field, message))?);
    job::check_instant(&text).map_err(|message| FieldError::new(field, message))?;
    Ok(text)
}

/// Checks an id before it becomes part of a key.
pub(crate) fn id(text: &str) -> Result<String, String> {
    job::check_id(text).map(|()| text.to_owned())
}

/// Checks the name of a queue.
pub(crate) fn queue(text: &str) -> Result<String, String> {
    job::check_queue(text).map(|()| text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn json_keeps_its_bytes_and_names_the_file_when_it_is_none() {
        assert_eq!(json(r#" {"b":1.0, "a":12345678901234567890} "#).unwrap().get(), r#"{"b":1.0, "a":12345678901234567890}"#);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"{\"a\":1}\n").unwrap();
        let path = file.path().display().to_string();
        assert_eq!(json(&format!("@{path}")).unwrap().get(), r#"{"a":1}"#);
        file.write_all(b"x").unwrap();
        let error = json(&format!("@{path}")).unwrap_err();
        assert!(error.lines()[0].contains(&path), "{error:?}");
        for wrong in ["@", "@/none/such", "{", "", "{} {}"] {
            assert_eq!(json(wrong).unwrap_err().lines().len(), 1, "{wrong}");
        }
    }

    #[test]
    fn pairs_split_at_the_first_sign() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(pair("a="), Ok(("a".to_owned(), String::new())));
        assert!(pair("=b").is_err() && pair("a").is_err());
    }

    #[test]
    fn local_times_need_a_zone() {
        let berlin = instant("run_at", "2099-07-01T02:00:00", Some("Europe/Berlin")).unwrap();
        assert_eq!(berlin, "2099-07-01T00:00:00.000Z");
        assert_eq!(instant("run_at", "2099-07-01T02:00:00+02:00", None).unwrap(), berlin);
        let error = instant("run_at", "2099-07-01T02:00:00", None).unwrap_err();
        assert!(error.field == "run_at" && error.message.contains("--tz"), "{error}");
        assert!(instant("run_at", "2099-07-01T02:00:00", Some("Mars/Base")).unwrap_err().message.contains("Mars/Base"));
        assert!(instant("deadline", "1999-01-01T00:00:00Z", None).is_err());
    }
}
