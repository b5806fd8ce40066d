//! The nodes' logs, followed as an operator follows them: the lines about the lease, deaths and recoveries are printed when they
//! come, all lines are kept for the verdict.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use punctual_core::clock;
use punctual_tests::eventually;
use serde_json::Value;

use crate::screen::{Ink, Screen};

/// So many equal lines of one node in a row are printed; the rest is counted.
const SHOWN: usize = 2;
/// So many ordinary retries are printed.
const RETRIES_SHOWN: usize = 3;

/// One line of one node's log.
#[derive(Clone, Debug)]
pub struct Line {
    /// When, milliseconds since 1970.
    pub at_ms: u64,
    /// The fields; a string when it was no JSON, such as what a crash leaves behind.
    pub value: Value,
}

impl Line {
    pub fn message(&self) -> &str {
        self.value["message"].as_str().unwrap_or_default()
    }

    pub fn text(&self, field: &str) -> &str {
        self.value[field].as_str().unwrap_or_default()
    }

    pub fn number(&self, field: &str) -> u64 {
        self.value[field].as_u64().unwrap_or(0)
    }

    fn is_error(&self) -> bool {
        self.value.is_string() || self.text("level") == "ERROR"
    }
}

#[derive(Default)]
struct Tail {
    offset: u64,
    rest: Vec<u8>,
}

#[derive(Default)]
struct Seen {
    tails: Vec<Tail>,
    lines: Vec<Line>,
    ids: BTreeMap<&'static str, String>,
    holder: Option<(String, u64)>,
    retries: usize,
}

/// Follows the logs; clones share what was seen.
#[derive(Clone)]
pub struct Watch {
    screen: Arc<Screen>,
    started_ms: u64,
    files: Arc<Vec<(&'static str, PathBuf)>>,
    seen: Arc<Mutex<Seen>>,
}

impl Watch {
    /// Follows these files, which need not exist yet.
    pub fn start(screen: Arc<Screen>, started_ms: u64, files: Vec<(&'static str, PathBuf)>) -> Self {
        let tails = files.iter().map(|_| Tail::default()).collect();
        let seen = Arc::new(Mutex::new(Seen { tails, ..Seen::default() }));
        let watch = Self { screen, started_ms, files: Arc::new(files), seen };
        let follower = watch.clone();
        tokio::spawn(async move {
            loop {
                follower.look();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        watch
    }

    /// The node id under which a node runs now.
    pub fn id(&self, name: &str) -> Option<String> {
        self.lock().ids.get(name).cloned()
    }

    /// Who holds the lease according to the last line about it, with the term.
    pub fn holder(&self) -> Option<(String, u64)> {
        self.lock().holder.clone()
    }

    /// How many lines there are.
    pub fn mark(&self) -> usize {
        self.lock().lines.len()
    }

    /// All lines with this message.
    pub fn lines(&self, message: &str) -> Vec<Line> {
        self.matching(|line| line.message() == message)
    }

    /// Lines that tell of a defect: level ERROR, or no JSON at all.
    pub fn errors(&self) -> Vec<Line> {
        self.matching(Line::is_error)
    }

    /// Waits for a line behind the first `mark` ones.
    pub async fn wait(&self, mark: usize, what: &str, timeout: Duration, fits: impl Fn(&Line) -> bool) -> Result<Line> {
        let look = || std::future::ready(self.lock().lines.iter().skip(mark).find(|line| fits(line)).cloned());
        eventually(timeout, what, look).await
    }

    /// Reads what the files have grown by, and prints what matters.
    pub fn look(&self) {
        let mut seen = self.lock();
        let mut fresh = Vec::new();
        for (number, (name, path)) in self.files.iter().enumerate() {
            let tail = &mut seen.tails[number];
            // A file that is not there yet is empty.
            let Ok(mut file) = File::open(path) else { continue };
            let mut bytes = Vec::new();
            if file.seek(SeekFrom::Start(tail.offset)).is_err() || file.read_to_end(&mut bytes).is_err() {
                continue;
            }
            tail.offset += bytes.len() as u64;
            tail.rest.extend(bytes);
            let Some(end) = tail.rest.iter().rposition(|byte| *byte == b'\n') else { continue };
            let whole: Vec<u8> = tail.rest.drain(..=end).collect();
            for line in String::from_utf8_lossy(&whole).lines().filter(|line| !line.is_empty()) {
                let value: Value = serde_json::from_str(line).unwrap_or_else(|_| Value::String(line.to_owned()));
                let at_ms = value["timestamp"].as_str().and_then(|text| clock::parse_instant(text).ok());
                fresh.push((*name, Line { at_ms: at_ms.unwrap_or_else(clock::local_ms), value }));
            }
        }
        // Of different nodes, in the order of their clocks; of one node, in the order of its file.
        fresh.sort_by_key(|(_, line)| line.at_ms);
        let mut printed = Vec::new();
        let mut row = (String::new(), 0_usize);
        for (name, line) in fresh {
            seen.note(name, &line);
            if let Some(text) = self.tell(&mut seen, name, &line) {
                let key = format!("{name} {}", line.message());
                row = if row.0 == key { (key, row.1 + 1) } else { (key, 1) };
                match row.1 {
                    ..=SHOWN => printed.push(text),
                    more if more == SHOWN + 1 => printed.push(self.row(line.at_ms, name, &self.more(1))),
                    more => {
                        printed.pop();
                        printed.push(self.row(line.at_ms, name, &self.more(more - SHOWN)));
                    }
                }
            }
            seen.lines.push(line);
        }
        drop(seen);
        for text in printed {
            self.screen.say(text);
        }
    }

    /// Announces what the demo itself does now.
    pub fn announce(&self, text: &str) {
        self.look();
        let mark = self.screen.ink(Ink::Bold, format!("▶ {text}"));
        self.screen.say(self.row(clock::local_ms(), "──────", &mark));
    }

    fn more(&self, count: usize) -> String {
        self.screen.ink(Ink::Dim, format!("… and {count} more of these"))
    }

    fn row(&self, at_ms: u64, name: &str, text: &str) -> String {
        #[expect(clippy::cast_precision_loss, reason = "seconds of a demo, for people")]
        let seconds = at_ms.saturating_sub(self.started_ms) as f64 / 1000.0;
        format!("{} {} {text}", self.screen.ink(Ink::Dim, format!("{seconds:6.1} s")), self.screen.ink(Ink::Cyan, name))
    }

    /// What an operator would want to see of this line, if anything.
    fn tell(&self, seen: &mut Seen, name: &str, line: &Line) -> Option<String> {
        let (ink, fields): (Ink, &[&str]) = match line.message() {
            "lease acquired" => (Ink::Green, &["lease_term", "after"]),
            "lease held by other" => (Ink::Dim, &["holder", "lease_term", "since"]),
            "lease lost" => (Ink::Yellow, &["lease_term", "reason"]),
            "lease released" => (Ink::Green, &["lease_term"]),
            "node started" | "node stopped" => (Ink::Dim, &["node_id"]),
            "node dead" => (Ink::Yellow, &["node_id", "silent_ms"]),
            "declared dead, joined anew" => (Ink::Yellow, &["node_id", "was", "revoked"]),
            "jobs requeued" | "jobs dead after crashes" => (Ink::Yellow, &["from_node", "queue", "count"]),
            "stale claim rejected" | "claim revoked" => (Ink::Yellow, &["queue", "job_id", "claim"]),
            "job failed" if line.text("state") == "dead" => (Ink::Red, &["state", "job_id", "error"]),
            "job failed" if seen.retries < RETRIES_SHOWN => {
                seen.retries += 1;
                (Ink::Dim, &["attempt", "next_attempt_at", "job_id", "error"])
            }
            _ if line.is_error() => (Ink::Red, &["target", "error"]),
            _ => return None,
        };
        let shown = |field: &&str| match &line.value[*field] {
            Value::Null => None,
            Value::String(text) => Some(format!("{field}={}", short(text))),
            other => Some(format!("{field}={other}")),
        };
        let fields: Vec<String> = fields.iter().filter_map(shown).collect();
        let message = line.value.as_str().unwrap_or_else(|| line.message());
        Some(self.row(line.at_ms, name, &format!("{} {}", self.screen.ink(ink, short(message)), fields.join(" "))))
    }

    fn matching(&self, fits: impl Fn(&Line) -> bool) -> Vec<Line> {
        self.lock().lines.iter().filter(|line| fits(line)).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    fn note(&mut self, name: &'static str, line: &Line) {
        match line.message() {
            "node started" | "declared dead, joined anew" => {
                self.ids.insert(name, line.text("node_id").to_owned());
            }
            "lease acquired" => self.holder = Some((line.text("node_id").to_owned(), line.number("lease_term"))),
            "lease lost" | "lease released" if self.holder.as_ref().is_some_and(|(id, _)| *id == line.text("node_id")) => {
                self.holder = None;
            }
            _ => {}
        }
    }
}

fn short(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let end = line.char_indices().nth(110).map_or(line.len(), |(index, _)| index);
    if end < line.len() { format!("{}…", &line[..end]) } else { line.to_owned() }
}
