//! What an outsider sees of the jobs: who accepted what, and each run of a handler. The verdict rests on it, not on Redis alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use punctual_core::handler::{JobContext, Outcome};
use punctual_node::status::Status;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One run of a handler.
#[derive(Clone, Debug)]
pub struct Run {
    pub id: String,
    pub token: u64,
    pub incarnation: String,
    /// Whether it did its work, and the process lived to tell.
    pub done: bool,
}

#[derive(Debug, Default)]
struct Book {
    accepted: BTreeSet<String>,
    runs: Vec<Run>,
    tries: BTreeMap<String, u32>,
    /// Incarnations that crashed.
    crashed: BTreeSet<String>,
}

/// Everything seen. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Witness(Arc<Mutex<Book>>);

impl Witness {
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An enqueue was confirmed.
    pub fn accept(&self, id: &str) {
        self.lock().accepted.insert(id.to_owned());
    }

    /// A process ended without a word.
    pub fn crash(&self, incarnation: &str) {
        self.lock().crashed.insert(incarnation.to_owned());
    }

    /// Jobs that were confirmed.
    pub fn accepted(&self) -> BTreeSet<String> {
        self.lock().accepted.clone()
    }

    /// Incarnations that crashed.
    pub fn crashed(&self) -> BTreeSet<String> {
        self.lock().crashed.clone()
    }

    /// All runs, in the order in which they began.
    pub fn runs(&self) -> Vec<Run> {
        self.lock().runs.clone()
    }

    fn begin(&self, id: &str, token: u64, incarnation: String) -> (usize, u32) {
        let mut book = self.lock();
        book.runs.push(Run { id: id.to_owned(), token, incarnation, done: false });
        let tries = book.tries.entry(id.to_owned()).or_default();
        *tries += 1;
        let tries = *tries;
        (book.runs.len() - 1, tries)
    }
}

/// Where a handler runs.
#[derive(Debug)]
pub struct Here {
    pub witness: Witness,
    pub status: Arc<Status>,
    /// `false` once the process has crashed: what still runs of it is a ghost.
    pub alive: AtomicBool,
}

/// What a job of the explorer does.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// How long it takes.
    pub ms: u64,
    /// So many first runs fail.
    pub fails: u32,
    /// Then this run asks to be run later instead.
    pub snoozes: bool,
}

/// The handler.
pub async fn work(args: Work, job: JobContext) -> Outcome {
    let here = job.state::<Arc<Here>>();
    let (run, tries) = here.witness.begin(job.id(), job.claim(), here.status.incarnation());
    let stopped = tokio::select! {
        biased;
        () = job.cancelled() => true,
        () = tokio::time::sleep(Duration::from_millis(args.ms)) => false,
    };
    if stopped || !here.alive.load(Ordering::Relaxed) {
        return Outcome::retry("stopped");
    }
    if tries <= args.fails {
        return Outcome::retry("as asked");
    }
    if args.snoozes && tries == args.fails + 1 {
        return Outcome::Snooze(Duration::from_millis(150));
    }
    here.witness.lock().runs[run].done = true;
    Outcome::Done(None)
}
