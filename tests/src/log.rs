//! The log of a child, line by line, while it runs.
//!
//! A thread reads the pipe, so that a child never blocks on a full one, whatever the test is doing.

use std::future::ready;
use std::io::{BufRead as _, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use crate::wait::eventually;

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<Value>,
    ended: bool,
}

/// All lines that a child has written so far. A line that is not JSON, such as a panic's, is kept as a string.
#[derive(Clone, Debug, Default)]
pub struct Log {
    shared: Arc<Shared>,
}

impl Log {
    /// Reads `pipe` to its end on a thread of its own.
    ///
    /// # Panics
    /// When no thread can be started.
    #[must_use]
    pub fn capture(pipe: impl Read + Send + 'static) -> Self {
        let log = Self::default();
        let shared = Arc::clone(&log.shared);
        let read = move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                let text = String::from_utf8_lossy(&line).into_owned();
                let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
                shared.state.lock().unwrap_or_else(PoisonError::into_inner).lines.push(value);
            }
            shared.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
            shared.ended.notify_all();
        };
        std::thread::Builder::new().name("log-reader".to_owned()).spawn(read).expect("a test process may start a thread");
        log
    }

    /// A copy of all lines so far.
    #[must_use]
    pub fn lines(&self) -> Vec<Value> {
        self.with(<[Value]>::to_vec)
    }

    /// How many lines there are: the place from which [`Self::wait_after`] looks only at what comes now.
    #[must_use]
    pub fn mark(&self) -> usize {
        self.with(<[Value]>::len)
    }

    /// All lines so far that satisfy `matches`.
    #[must_use]
    pub fn matching(&self, matches: impl Fn(&Value) -> bool) -> Vec<Value> {
        self.with(|lines| lines.iter().filter(|line| matches(line)).cloned().collect())
    }

    /// Waits for a line that satisfies `matches`, and returns the first; lines already there count.
    ///
    /// # Errors
    /// When none came within `timeout`; the text holds the last lines.
    pub async fn wait(&self, matches: impl Fn(&Value) -> bool, timeout: Duration) -> Result<Value> {
        self.wait_after(0, matches, timeout).await
    }

    /// Waits for a line that satisfies `matches` behind the first `mark` lines.
    ///
    /// # Errors
    /// When none came within `timeout`; the text holds the last lines.
    pub async fn wait_after(&self, mark: usize, matches: impl Fn(&Value) -> bool, timeout: Duration) -> Result<Value> {
        let mut next = mark;
        let probe = || {
            ready(self.with(|lines| {
                let fresh = lines.get(next..).unwrap_or_default();
                next += fresh.len();
                fresh.iter().find(|line| matches(line)).cloned()
            }))
        };
        let found = eventually(timeout, "a line in the log", probe).await;
        found.map_err(|error| error.context(format!("the log ends with:\n{}", self.tail(30))))
    }

    /// The last `count` lines as text.
    #[must_use]
    pub fn tail(&self, count: usize) -> String {
        let text = |line: &Value| line.as_str().map_or_else(|| line.to_string(), str::to_owned);
        self.with(|lines| lines[lines.len().saturating_sub(count)..].iter().map(text).collect::<Vec<_>>().join("\n"))
    }

    /// Waits until the pipe is closed and all lines are here; gives up after a second, because a grandchild may
    /// hold the pipe open.
    pub fn wait_end(&self) {
        let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.shared.ended.wait_timeout_while(state, Duration::from_secs(1), |state| !state.ended);
    }

    fn with<T>(&self, read: impl FnOnce(&[Value]) -> T) -> T {
        read(&self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).lines)
    }
}

/// Matches log lines by their constant message, such as `lease acquired`.
pub fn message(text: &str) -> impl Fn(&Value) -> bool {
    move |line| line["message"] == *text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn log_keeps_json_and_other_lines_and_finds_only_fresh_ones_after_a_mark() {
        let log = Log::capture(&b"{\"message\":\"node started\",\"node_id\":\"a-1\"}\nthread panicked\n"[..]);
        log.wait_end();
        let line = log.wait(message("node started"), Duration::from_secs(5)).await.unwrap();
        assert_eq!(line["node_id"], "a-1");
        assert_eq!(log.lines()[1], "thread panicked");
        let error = log.wait_after(log.mark(), message("node started"), Duration::ZERO).await.unwrap_err();
        assert!(format!("{error:#}").contains("thread panicked"), "{error:#}");
        assert_eq!(log.matching(Value::is_string).len(), 1);
    }
}
