//! Log lines: where they go and how they look. Operators and tests read them, so their form is a contract.
//!
//! They go to stderr, because stdout belongs to the documents of the commands. Off a terminal a line is one flat JSON object:
//! `timestamp`, `level`, `target`, `message`, then the fields of the event, nothing nested. On a terminal it is one line for
//! people. A panic is one line with its place and never its text, which may hold a job's arguments; the text of a handler's
//! panic is kept with its job. Deliberately absent: spans, files, rotation, and any line about a job's arguments.

mod repeats;

use std::fmt::{self, Debug};
use std::io::{IsTerminal, Write};

use punctual_core::clock;
use punctual_core::config::{Log, LogFormat};
use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

pub use self::repeats::{Repeats, Report};

/// Flushes stderr when the process ends in an orderly way. Keep it in `main`.
#[must_use = "dropping it ends the logging of the process"]
#[derive(Debug)]
pub struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        // Nothing is left to tell a failure to.
        let _ = std::io::stderr().flush();
    }
}

/// Begins logging for the whole process. A second call changes nothing, so tests in one process may all call it.
pub fn init(log: &Log) -> Guard {
    let terminal = std::io::stderr().is_terminal();
    let pretty = match log.format {
        LogFormat::Auto => terminal,
        LogFormat::Json => false,
        LogFormat::Pretty => true,
    };
    // The configuration has checked the filter; what only `tracing` refuses falls back rather than ending the process.
    let filter = EnvFilter::try_new(&log.level).unwrap_or_else(|_| EnvFilter::new("info"));
    // Errors of the writer are not reported: the report would go to the same stderr, and panic when that is closed.
    let common = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    let started = if pretty {
        let coloured = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        common.compact().with_ansi(coloured).with_timer(Utc).finish().try_init()
    } else {
        common.event_format(Flat).finish().try_init()
    };
    if started.is_ok() {
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map_or_else(|| "unknown".to_owned(), ToString::to_string);
            let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
            tracing::error!(target: "panic", place, thread, "panic");
        }));
    }
    Guard(())
}

/// RFC 3339 in UTC with milliseconds.
struct Utc;

impl FormatTime for Utc {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        writer.write_str(&clock::format_ms(clock::local_ms()))
    }
}

/// One flat JSON object a line.
struct Flat;

impl<S, N> FormatEvent<S, N> for Flat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let line = line(metadata.level().as_str(), metadata.target(), &fields).map_err(|_| fmt::Error)?;
        writeln!(writer, "{line}")
    }
}

fn line(level: &str, target: &str, fields: &Fields) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::with_capacity(256);
    let mut serializer = serde_json::Serializer::new(&mut bytes);
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry("timestamp", &clock::format_ms(clock::local_ms()))?;
    map.serialize_entry("level", level)?;
    map.serialize_entry("target", target)?;
    map.serialize_entry("message", &fields.message)?;
    for (name, value) in &fields.rest {
        // A key twice in one object is read differently by every reader.
        if !["timestamp", "level", "target", "message"].contains(name) {
            map.serialize_entry(name, value)?;
        }
    }
    map.end()?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The fields of one event.
#[derive(Default)]
struct Fields {
    message: String,
    rest: Vec<(&'static str, Value)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("message", other) => self.message = other.to_string(),
            (name, value) => self.rest.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format!("{value:?}").into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }
    fn record_i128(&mut self, field: &Field, value: i128) {
        self.add(field, value.to_string().into());
    }
    fn record_u128(&mut self, field: &Field, value: u128) {
        // Microseconds and lengths come as u128 and fit; what does not is written as text.
        self.add(field, u64::try_from(value).map_or_else(|_| value.to_string().into(), Value::from));
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, value.to_string().into());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn lines(log: impl FnOnce()) -> Vec<String> {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt().event_format(Flat).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, log);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_line_is_one_flat_object_in_a_fixed_order() {
        let lines = lines(|| {
            let span = tracing::info_span!("outer", hidden = 1);
            let _inside = span.enter();
            tracing::info!(target: "punctual_node::x", node_id = "a-1", ttl_ms = 5000_u64, ratio = 0.5, ok = true, addr = %"[::1]:7", "http listening");
            tracing::warn!(error = "two\nlines \"quoted\"", target = "mine", level = 3, "job failed");
        });
        assert_eq!(lines.len(), 2);
        let (timestamp, rest) = lines[0].split_once(r#"","level""#).unwrap();
        assert_eq!(timestamp.len(), r#"{"timestamp":"2026-03-29T01:00:00.000Z"#.len());
        assert_eq!(
            rest,
            r#":"INFO","target":"punctual_node::x","message":"http listening","node_id":"a-1","ttl_ms":5000,"ratio":0.5,"ok":true,"addr":"[::1]:7"}"#
        );
        let second: serde_json::Map<String, Value> = serde_json::from_str(&lines[1]).unwrap();
        assert_eq!(second["error"], "two\nlines \"quoted\"");
        assert_eq!(second["level"], "WARN");
        assert!(second.values().all(|value| !value.is_object() && !value.is_array()));
        assert_eq!(lines[1].matches("\"target\":").count(), 1);
    }
}
