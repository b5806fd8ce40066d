//! `punctual enqueue --bulk`: stores a file of any length, a few hundred lines per call and a few calls at a time.
//!
//! Nothing grows with the file: lines are read as calls finish, a call takes at most [`LINES`] lines and about [`BYTES`], and
//! the results go out in the order of the lines. What comes slowly through a pipe is stored as it comes. A line that is
//! refused stops nothing; a Redis that cannot be asked stops the reading, and what was under way is still told.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use indicatif::{ProgressBar, ProgressStyle};
use punctual_core::client::Receipt;
use punctual_core::job::{FieldError, JobRequest, NewJob};
use punctual_core::store::enqueue::CallId;
use serde::Serialize;
use tokio::sync::mpsc;

use super::admit::{Admit, Refusal};
use super::failure::Failure;
use super::output::{Output, note};
use super::session::{Cluster, Session, block_on};
use crate::admission::without_values;

mod lines;

use self::lines::{Chunk, Line};

/// Lines of one call.
const LINES: usize = 500;
/// Bytes after which a call is full before it has [`LINES`].
const BYTES: usize = 1 << 20;
/// Calls under way at a time.
const IN_FLIGHT: usize = 4;
/// Refused lines that are shown to a person.
const SHOWN: u64 = 20;
/// What a line may hold besides its arguments: names, tags, headers, policies.
const AROUND_ARGS: usize = 512 * 1024;

/// What became of one line: one document with `-o json`.
#[derive(Debug, Serialize)]
struct Told {
    line: u64,
    #[serde(flatten)]
    fate: Fate,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Fate {
    Stored(Receipt),
    Refused { error: FieldError },
}

#[derive(Default)]
struct Counts {
    stored: u64,
    duplicates: u64,
    refused: u64,
}

pub(super) fn run(session: &Session, file: &Path, unknown_handlers: bool) -> Result<(), Failure> {
    let (input, length): (Box<dyn io::Read + Send>, _) = if file == Path::new("-") {
        (Box::new(io::stdin()), None)
    } else {
        let wrong = |error: io::Error| Failure::usage(format!("--bulk: read {}: {error}", file.display()));
        let input = File::open(file).map_err(wrong)?;
        let length = input.metadata().map_err(wrong)?;
        (Box::new(input), Some(length.len()).filter(|_| length.is_file()))
    };
    block_on(async {
        let cluster = session.connect().await?;
        let admit = Admit::new(session, &cluster, unknown_handlers);
        let longest = cluster.client.max_payload() + AROUND_ARGS;
        let (chunks, arriving) = mpsc::channel(1);
        let reader = tokio::task::spawn_blocking(move || lines::read(input, longest, (LINES, BYTES), &chunks));
        let summary = store(session.out, &cluster, &admit, arriving, bar(length)).await?;
        if let Some(failure) = summary.stopped {
            // The reader may sit in a read that never ends; nobody waits for it.
            return Err(failure);
        }
        let read = reader.await.map_err(|error| Failure::failed(format!("read the lines: {error}")))?;
        read.map_err(|error| Failure::failed(format!("read {}: {error}", file.display())))?;
        if summary.counts.refused > 0 { Err(Failure::told()) } else { Ok(()) }
    })
}

struct Summary {
    counts: Counts,
    stopped: Option<Failure>,
}

async fn store(
    out: Output,
    cluster: &Cluster,
    admit: &Admit,
    arriving: mpsc::Receiver<Chunk>,
    bar: ProgressBar,
) -> Result<Summary, Failure> {
    let stop = AtomicBool::new(false);
    let chunks = stream::unfold(arriving, |mut arriving| async {
        let chunk = if stop.load(Ordering::Relaxed) { None } else { arriving.recv().await };
        chunk.map(|chunk| (chunk, arriving))
    });
    let calls = chunks.map(|chunk| {
        let stop = &stop;
        async move {
            let bytes = chunk.bytes;
            let (told, failure) = one_call(cluster, admit, chunk).await;
            stop.fetch_or(failure.is_some(), Ordering::Relaxed);
            (bytes, told, failure)
        }
    });
    let mut results = std::pin::pin!(calls.buffered(IN_FLIGHT));
    let mut summary = Summary { counts: Counts::default(), stopped: None };
    while let Some((bytes, told, failure)) = results.next().await {
        let text = documents_and_notes(out, &told, &mut summary.counts)?;
        bar.suspend(|| out.text(&text))?;
        bar.inc(bytes);
        bar.set_message(summary.counts.to_string());
        summary.stopped = summary.stopped.or(failure);
    }
    bar.finish_and_clear();
    let counts = &summary.counts;
    if out.is_json() {
        note(counts);
    } else {
        out.text(&counts.to_string())?;
    }
    Ok(summary)
}

/// Checks the lines of a chunk and stores the good ones in one go.
async fn one_call(cluster: &Cluster, admit: &Admit, chunk: Chunk) -> (Vec<Told>, Option<Failure>) {
    let mut told: Vec<Told> = Vec::with_capacity(chunk.lines.len());
    let (mut jobs, mut places) = (Vec::new(), Vec::new());
    let mut failure: Option<Failure> = None;
    for Line { number, text } in chunk.lines {
        let checked = match &failure {
            // Asked once, a Redis that does not answer is not asked again for every line that follows.
            Some(failure) => Err(not_stored(failure)),
            None => match checked(cluster, admit, text).await {
                Ok(job) => Ok(job),
                // One field is named per line, the first that is wrong.
                Err(Refusal::Fields(wrong)) => {
                    Err(wrong.into_iter().next().unwrap_or_else(|| FieldError::new("body", "refused")))
                }
                Err(Refusal::Store(error)) => {
                    Err(not_stored(failure.insert(cluster.failed("ask which handlers there are")(error))))
                }
            },
        };
        match checked {
            Ok(job) => {
                jobs.push(job);
                places.push(number);
            }
            Err(error) => told.push(Told { line: number, fate: Fate::Refused { error } }),
        }
    }
    if jobs.is_empty() {
        return (told, failure);
    }
    let failure = match cluster.client.submit_many(&CallId::fresh(), jobs).await {
        Ok(receipts) => {
            let stored = places.into_iter().zip(receipts);
            told.extend(stored.map(|(line, receipt)| Told { line, fate: Fate::Stored(receipt) }));
            failure
        }
        Err(error) => {
            let maybe = if error.may_have_run() { "may be stored or not" } else { "not stored" };
            let failure = cluster.failed("store the jobs")(error);
            let message = format!("{maybe}: {}", failure.lines().join("; "));
            told.extend(places.into_iter().map(|line| {
                let error = FieldError::new("redis", message.clone());
                Told { line, fate: Fate::Refused { error } }
            }));
            Some(failure)
        }
    };
    told.sort_by_key(|one| one.line);
    (told, failure)
}

fn not_stored(failure: &Failure) -> FieldError {
    FieldError::new("redis", format!("not stored: {}", failure.lines().join("; ")))
}

async fn checked(cluster: &Cluster, admit: &Admit, text: Result<String, String>) -> Result<NewJob, Refusal> {
    let text = text.map_err(|message| Refusal::Fields(vec![FieldError::new("body", message)]))?;
    let request = JobRequest::from_json(&text).map_err(|wrong| Refusal::Fields(vec![without_values(wrong)]))?;
    let job = request.check(cluster.client.max_payload()).map_err(Refusal::Fields)?;
    admit.check(&job).await.map(|()| job)
}

/// Counts the lines of one call. Returns their documents when documents are wanted; a person gets the refused ones as notes.
fn documents_and_notes(out: Output, told: &[Told], counts: &mut Counts) -> Result<String, Failure> {
    let mut text = String::new();
    for one in told {
        match &one.fate {
            Fate::Stored(receipt) if receipt.duplicate_of.is_some() => counts.duplicates += 1,
            Fate::Stored(_) => counts.stored += 1,
            Fate::Refused { .. } => counts.refused += 1,
        }
        if out.is_json() {
            let line = serde_json::to_string(one).map_err(|error| Failure::failed(format!("write JSON: {error}")))?;
            text.push_str(&line);
            text.push('\n');
        } else if let Fate::Refused { error } = &one.fate {
            match counts.refused {
                refused if refused <= SHOWN => note(format!("line {}: {error}", one.line)),
                refused if refused == SHOWN + 1 => note("more lines are refused; -o json tells them all"),
                _ => {}
            }
        }
    }
    Ok(text)
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} stored, {} duplicates, {} refused", self.stored, self.duplicates, self.refused)
    }
}

/// A bar on a terminal, nothing elsewhere.
fn bar(length: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match length {
        Some(length) => (ProgressBar::new(length), "{bar:30} {bytes}/{total_bytes} {msg} {eta}"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} {msg}"),
    };
    bar.enable_steady_tick(Duration::from_millis(200));
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
