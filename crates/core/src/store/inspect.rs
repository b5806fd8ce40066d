//! Looking at jobs, never changing them: the documents of `jobs show` and `jobs list`. Actors never come here.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::packed::{Attempt, Packed};
use super::timeline::{self, Run};
use super::{Store, StoreError};
use crate::clock::format_ms;
use crate::codec::{self, DecodeError, Record};
use crate::state::{AttemptOutcome, State};

/// One attempt, as a person sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AttemptView {
    /// Its number; an attempt that was not spent (crashed, handed back, snoozed) shares it with the next.
    pub number: u32,
    /// Which node ran it.
    pub node: String,
    /// Its fencing token.
    pub claim: String,
    /// When it was claimed.
    pub started_at: String,
    /// When it ended; `None` while it runs.
    pub ended_at: Option<String>,
    /// How it ended; `running` while it runs.
    pub outcome: String,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// From due to start.
    pub lateness_ms: u64,
}

/// One step of a job's life.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// The state entered.
    pub state: String,
    /// When.
    pub at: String,
}

/// How far a job said it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// 0 to 100.
    pub percent: f64,
    /// What it said.
    pub text: String,
}

/// A job's whole life: the document of `jobs show`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobView {
    /// Its id.
    pub id: String,
    /// Its handler; empty when the record cannot be read.
    pub handler: String,
    /// Its queue.
    pub queue: String,
    /// Where it stands.
    pub state: State,
    /// Its band.
    pub priority: String,
    /// Its arguments, byte for byte.
    pub args: Box<RawValue>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// When it was stored.
    pub created_at: String,
    /// When its current or next attempt is due.
    pub due_at: String,
    /// Attempts spent.
    pub attempt: u32,
    /// Attempts allowed; filled by whoever knows the handler.
    pub max_attempts: u32,
    /// Deliveries that ended with the death of their node.
    pub crashes: u32,
    /// Every attempt that is recorded.
    pub attempts: Vec<AttemptView>,
    /// Every state with its time.
    pub timeline: Vec<Step>,
    /// What the handler returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// How far it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Why it ended, when it did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Lines that the handler kept with it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub log: Vec<String>,
    /// The body in hexadecimal, when it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw: Option<String>,
}

/// A job as it lies in Redis, for those who resolve policies or edit.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its queue.
    pub queue: String,
    /// Its body's bytes.
    pub body: Vec<u8>,
    /// Its body, read.
    pub record: Result<Record, DecodeError>,
    /// Where it stands.
    pub state: State,
    /// Its packed state, once it has left its first waiting.
    pub packed: Option<Packed>,
}

/// Where to look for a page of jobs.
#[derive(Clone, Debug)]
pub struct Page {
    /// Jobs in these states, one after the other.
    pub states: Vec<State>,
    /// Jobs per page, at most 200.
    pub limit: usize,
    /// Where the last page ended.
    pub cursor: Option<Cursor>,
    /// Only these handlers.
    pub handler: Option<String>,
    /// Only jobs with this tag.
    pub tag: Option<(String, String)>,
}

/// A place in a listing. Its text is opaque to users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    queue: usize,
    state: usize,
    offset: usize,
}

impl Cursor {
    /// The text for the next call.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{:x}.{:x}.{:x}", self.queue, self.state, self.offset)
    }

    /// Reads a cursor; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| usize::from_str_radix(part, 16).ok());
        let cursor = Self { queue: parts.next()??, state: parts.next()??, offset: parts.next()?? };
        parts.next().is_none().then_some(cursor)
    }
}

/// A page of a listing looks at no more entries than this, so that a filter that fits nothing ends.
const LOOKED_AT: usize = 5000;
const CHUNK: usize = 200;

impl Store {
    /// Finds a job by id in one queue, or in every registered queue in one round trip.
    ///
    /// # Errors
    /// As any call.
    pub async fn find(&self, id: &str, queue: Option<&str>) -> Result<Vec<Found>, StoreError> {
        let queues = match queue {
            Some(queue) => vec![queue.to_owned()],
            None => self.queues().await?,
        };
        let pairs: Vec<(String, String)> = queues.into_iter().map(|queue| (queue, id.to_owned())).collect();
        Ok(self.read(&pairs).await?.into_iter().flatten().collect())
    }

    /// Reads jobs by (queue, id) in one round trip.
    ///
    /// # Errors
    /// As any call.
    pub async fn read(&self, pairs: &[(String, String)]) -> Result<Vec<Option<Found>>, StoreError> {
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for (queue, id) in pairs {
            pipeline.cmd("HGET").arg(self.keys.bucket(queue, id)).arg(id);
            pipeline.cmd("HGET").arg(self.keys.queue(queue, "s")).arg(id);
            pipeline.cmd("ZSCORE").arg(self.keys.queue(queue, "scheduled")).arg(id);
        }
        let answers: Vec<Option<Vec<u8>>> = self.link.pipe(&pipeline).await?;
        Ok(answers
            .chunks(3)
            .zip(pairs)
            .map(|(chunk, (queue, _))| {
                let body = chunk[0].clone()?;
                let packed = chunk[1].as_deref().and_then(Packed::parse);
                let waiting = if chunk[2].is_some() { State::Scheduled } else { State::Ready };
                let state = packed.as_ref().map_or(waiting, |packed| packed.state);
                Some(Found { queue: queue.clone(), record: codec::decode(&body), body, state, packed })
            })
            .collect())
    }

    /// The whole life of a job; `None` when no queue has it. With several queues holding the id, the first by name.
    ///
    /// # Errors
    /// As any call.
    pub async fn show(&self, id: &str, queue: Option<&str>) -> Result<Option<JobView>, StoreError> {
        let Some(found) = self.find(id, queue).await?.into_iter().next() else { return Ok(None) };
        let name = found.queue.clone();
        let mut pipeline = redis::pipe();
        pipeline.cmd("LRANGE").arg(self.keys.queue(&name, &format!("h:{id}"))).arg(0).arg(-1);
        pipeline.cmd("LRANGE").arg(self.keys.queue(&name, &format!("l:{id}"))).arg(0).arg(-1);
        pipeline.cmd("HGET").arg(self.keys.queue(&name, "results")).arg(id);
        pipeline.cmd("HGET").arg(self.keys.queue(&name, "progress")).arg(id);
        type Extras = (Vec<Vec<u8>>, Vec<Vec<u8>>, Option<String>, Option<String>);
        let (history, log, result, progress): Extras = self.link.pipe(&pipeline).await?;
        let attempts: Vec<Attempt> = history.iter().filter_map(|bytes| Attempt::parse(bytes)).collect();
        let mut view = view(id, &found, &attempts);
        view.log = log.iter().map(|line| log_line(&String::from_utf8_lossy(line))).collect();
        view.result = result.and_then(|text| RawValue::from_string(text).ok());
        view.progress = progress.and_then(|text| {
            let (percent, text) = text.split_once(' ')?;
            Some(Progress { percent: percent.parse().ok()?, text: text.to_owned() })
        });
        Ok(Some(view))
    }

    /// A page of jobs over these queues, and where the next page begins.
    ///
    /// # Errors
    /// As any call.
    pub async fn list(&self, queues: &[String], page: &Page) -> Result<(Vec<JobView>, Option<Cursor>), StoreError> {
        let mut jobs = Vec::new();
        let mut at = page.cursor.clone().unwrap_or(Cursor { queue: 0, state: 0, offset: 0 });
        let mut looked_at = 0;
        while let Some(queue) = queues.get(at.queue) {
            let Some(state) = page.states.get(at.state) else {
                at = Cursor { queue: at.queue + 1, state: 0, offset: 0 };
                continue;
            };
            let entries = self.entries(queue, *state, at.offset).await?;
            if entries.is_empty() {
                at = Cursor { queue: at.queue, state: at.state + 1, offset: 0 };
                continue;
            }
            let pairs: Vec<(String, String)> = entries.iter().map(|entry| (queue.clone(), id_of(entry).to_owned())).collect();
            for ((entry, (_, id)), found) in entries.iter().zip(&pairs).zip(self.read(&pairs).await?) {
                at.offset += 1;
                looked_at += 1;
                // An older entry of a job that is ready again is none: the job would be listed twice.
                let fits = |found: &Found| found.state == *state && (*state != State::Ready || stands_for(entry, &found.body));
                let Some(found) = found.filter(fits) else { continue };
                let fits = found.record.as_ref().map_or(page.handler.is_none() && page.tag.is_none(), |record| {
                    page.handler.as_ref().is_none_or(|handler| *handler == record.spec.handler)
                        && page.tag.as_ref().is_none_or(|(key, value)| record.spec.tags.get(key) == Some(value))
                });
                if fits {
                    jobs.push(view(id, &found, &[]));
                }
                if jobs.len() >= page.limit || looked_at >= LOOKED_AT {
                    return Ok((jobs, Some(at)));
                }
            }
        }
        Ok((jobs, None))
    }

    /// Ids, for ready jobs with their stamps.
    pub(super) async fn entries(&self, queue: &str, state: State, offset: usize) -> Result<Vec<String>, StoreError> {
        if let Some(set) = self.keys.set_of(queue, state) {
            // What waits is listed by its time, what ended by the newest first.
            let read = if state.is_final() { "ZREVRANGE" } else { "ZRANGE" };
            return self.link.query(redis::cmd(read).arg(set).arg(offset).arg(offset + CHUNK - 1)).await;
        }
        let mut ids = Vec::new();
        if state == State::Running {
            let mut pipeline = redis::pipe();
            let owners = self.owners(queue).await?;
            if owners.is_empty() {
                return Ok(ids);
            }
            for (owner, _) in owners {
                pipeline.cmd("SMEMBERS").arg(self.keys.queue(queue, &format!("run:{owner}")));
            }
            let sets: Vec<Vec<String>> = self.link.pipe(&pipeline).await?;
            ids = sets.into_iter().flatten().collect();
            ids.sort();
            return Ok(ids.into_iter().skip(offset).take(CHUNK).collect());
        }
        let mut skip = offset;
        for part in ["r0", "r1", "r2", "r3", "suspects"] {
            let key = self.keys.queue(queue, part);
            let length: usize = self.link.query(redis::cmd("LLEN").arg(&key)).await?;
            if skip >= length {
                skip -= length;
                continue;
            }
            // The next to be taken stands at the right end.
            let end = length - skip;
            let start = end.saturating_sub(CHUNK);
            let entries: Vec<String> = self.link.query(redis::cmd("LRANGE").arg(&key).arg(start).arg(end - 1)).await?;
            return Ok(entries.into_iter().rev().collect());
        }
        Ok(ids)
    }
}

/// The id in an entry of a ready list.
pub(super) fn id_of(entry: &str) -> &str {
    entry.split('#').next().unwrap_or(entry)
}

/// Whether an entry of a ready list is the present one of the job with this body.
fn stands_for(entry: &str, body: &[u8]) -> bool {
    let stamp = entry.split_once('#').map_or("0", |(_, stamp)| stamp);
    codec::stamp(body).is_none_or(|own| own == stamp)
}

fn log_line(text: &str) -> String {
    match text.split_once(' ') {
        Some((at, line)) => format!("{} {line}", at.parse().map_or_else(|_| at.to_owned(), format_ms)),
        None => text.to_owned(),
    }
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap_or_else(|_| RawValue::from_string("null".to_owned()).expect("null is JSON"))
}

fn view(id: &str, found: &Found, history: &[Attempt]) -> JobView {
    let record = found.record.as_ref().ok();
    let packed = found.packed.as_ref();
    let spec = record.map(|record| &record.spec);
    let first_due = record.map_or(0, |record| record.due_ms);
    let due = |ms: u64| if ms > 0 { ms } else { first_due };
    let mut attempts = Vec::with_capacity(history.len() + 1);
    let mut runs = Vec::with_capacity(history.len() + 1);
    let mut tell = |run: Run, node: &str, claim: u64, error: &str| {
        attempts.push(AttemptView {
            number: run.number,
            node: node.to_owned(),
            claim: claim.to_string(),
            started_at: format_ms(run.started_ms),
            ended_at: run.ended_ms.map(format_ms),
            outcome: run.outcome.map_or("running", AttemptOutcome::word).to_owned(),
            error: (!error.is_empty()).then(|| error.to_owned()),
            lateness_ms: run.started_ms.saturating_sub(run.due_ms),
        });
        runs.push(run);
    };
    for one in history {
        let (outcome, ended_ms) = (Some(one.outcome), Some(one.ended_ms));
        let run = Run { number: one.number, outcome, due_ms: due(one.due_ms), started_ms: one.started_ms, ended_ms };
        tell(run, &one.node, one.claim, &one.error);
    }
    // A first attempt that runs or succeeded has no history: the packed state tells it.
    if let Some(packed) = packed
        && (packed.state == State::Running
            || (packed.state == State::Succeeded && packed.flags & super::packed::FLAG_HISTORY == 0))
    {
        let ended_ms = packed.ended_ms.filter(|_| packed.state != State::Running);
        let outcome = ended_ms.map(|_| AttemptOutcome::Succeeded);
        let run = Run { number: packed.attempt, outcome, due_ms: due(packed.due_ms), started_ms: packed.start_ms, ended_ms };
        tell(run, packed.node.as_deref().unwrap_or(""), packed.token, "");
    }
    let step = |(state, at_ms): (State, u64)| Step { state: state.word().to_owned(), at: format_ms(at_ms) };
    JobView {
        id: id.to_owned(),
        handler: spec.map_or_else(String::new, |spec| spec.handler.clone()),
        queue: found.queue.clone(),
        state: found.state,
        priority: record.map_or("normal", |record| record.priority.word()).to_owned(),
        args: raw(spec.map_or("null", |spec| &spec.args)),
        tags: spec.map(|spec| spec.tags.clone()).unwrap_or_default(),
        created_at: format_ms(record.map_or(0, |record| record.created_ms)),
        due_at: format_ms(due(packed.map_or(0, |packed| packed.due_ms))),
        attempt: packed.map_or(0, |packed| packed.attempt),
        max_attempts: spec.and_then(|spec| spec.max_attempts).unwrap_or(0),
        crashes: packed.map_or(0, |packed| packed.crashes),
        timeline: timeline::steps(found, &runs).into_iter().map(step).collect(),
        last_error: attempts.iter().rev().find_map(|attempt| attempt.error.clone()),
        attempts,
        result: None,
        progress: None,
        reason: packed.map(|packed| packed.reason.clone()).filter(|reason| !reason.is_empty()),
        log: Vec::new(),
        raw: found.record.as_ref().err().map(|_| {
            found.body.iter().take(4096).fold(String::new(), |mut hex, byte| {
                use std::fmt::Write;
                let _ = write!(hex, "{byte:02x}");
                hex
            })
        }),
    }
}
