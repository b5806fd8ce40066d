//! One attempt, from the handler's first line to its outcome: panic, timeout and cancellation are caught here and nowhere else.
//!
//! Runs on the handlers' runtime. A handler that never yields cannot be stopped by it; the overseer in the worker pool then speaks
//! for the attempt, and the slot stays occupied until the handler truly ends.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use punctual_core::handler::{JobContext, JobIdentity, Note, Outcome};
use punctual_core::state::{Ended, truncate};

use crate::pool::flights::{Flight, Stop};
use crate::pool::{Pool, lock};

/// How long a handler that was asked to stop may take to do so, before its future is dropped.
pub const GRACE: Duration = Duration::from_secs(2);
/// Longest panic text kept, in bytes.
const MAX_PANIC: usize = 2000;

/// Runs one attempt and says how it ended. Never panics; gives the slot back in any case.
pub async fn execute(pool: Arc<Pool>, flight: Arc<Flight>, args: String, headers: BTreeMap<String, String>) {
    // Speaks for the attempt should anything below unwind, such as a panic while the handler's future is dropped.
    let mut last_word = LastWord { pool: &pool, flight: &flight, ended: None };
    let ended = attempt(&pool, &flight, &args, headers).await;
    last_word.ended = Some(ended);
}

struct LastWord<'a> {
    pool: &'a Arc<Pool>,
    flight: &'a Arc<Flight>,
    ended: Option<Ended>,
}

impl Drop for LastWord<'_> {
    fn drop(&mut self) {
        if self.flight.is_decided() {
            // The overseer spoke first: this was a zombie, and now it is gone.
            self.pool.zombies.fetch_sub(1, Ordering::AcqRel);
        }
        let ended = self.ended.take().unwrap_or_else(|| Ended::Panicked("in the drop of its future".to_owned()));
        self.pool.decide(self.flight, ended);
        self.pool.execution_ended(self.flight);
    }
}

async fn attempt(pool: &Arc<Pool>, flight: &Arc<Flight>, args: &str, headers: BTreeMap<String, String>) -> Ended {
    let Some(handler) = pool.registry.get(&flight.handler) else {
        return Ended::Unroutable(Duration::from_secs(1));
    };
    let identity = JobIdentity {
        id: flight.id.clone(),
        queue: pool.queues[flight.queue].name.to_string(),
        handler: flight.handler.clone(),
        attempt: flight.attempt,
        due_ms: flight.due_ms,
        claim: flight.token,
        headers,
    };
    let sink = (Arc::downgrade(pool), Arc::downgrade(flight));
    let notes = move |note| {
        // Weak, because a handler may keep its context for ever.
        if let (Some(pool), Some(flight)) = (sink.0.upgrade(), sink.1.upgrade()) {
            keep_note(&pool, &flight, note);
        }
    };
    let context = JobContext::new(identity, flight.cancel.clone(), &pool.registry, Some(pool.client.clone()), notes);
    // The call itself may panic before there is a future.
    let run = AssertUnwindSafe(async { handler.run(args, context).await }).catch_unwind();
    tokio::pin!(run);
    let ended = tokio::select! {
        biased;
        done = &mut run => return finished(flight, done),
        () = tokio::time::sleep(flight.timeout) => Ended::TimedOut(flight.timeout),
        () = flight.cancel.cancelled() => stopped(flight),
    };
    // Asked to stop: it may clean up for a moment; what it returns now counts only if it was done after all.
    flight.cancel.cancel();
    match tokio::time::timeout(GRACE, &mut run).await {
        Ok(Ok(Outcome::Done(result))) if !matches!(ended, Ended::TimedOut(_)) => Ended::Done(result),
        _ => ended,
    }
}

fn stopped(flight: &Flight) -> Ended {
    match flight.stop() {
        Stop::Cancelled => Ended::Cancelled,
        Stop::No | Stop::Revoked | Stop::HandBack => Ended::HandedBack,
    }
}

fn finished(flight: &Flight, done: Result<Outcome, Box<dyn Any + Send>>) -> Ended {
    let outcome = match done {
        Ok(outcome) => outcome,
        Err(panic) => return Ended::Panicked(panic_text(panic.as_ref())),
    };
    // A handler that noticed the cancellation by itself and gave up was cancelled; it did not fail.
    if flight.stop() != Stop::No && !matches!(outcome, Outcome::Done(_)) {
        return stopped(flight);
    }
    match outcome {
        Outcome::Done(result) => Ended::Done(result),
        Outcome::Retry(error) => Ended::Retry(error),
        Outcome::RetryAfter(wait, error) => Ended::RetryAfter(wait, error),
        Outcome::Snooze(wait) => Ended::Snooze(wait),
        Outcome::Dead(reason) => Ended::Dead(reason),
        Outcome::Discard(reason) => Ended::Discard(reason),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "with something that is not text".to_owned());
    truncate(text, MAX_PANIC)
}

/// Notes wait in the flight; of progress only the newest is kept, of lines the last hundred.
fn keep_note(pool: &Pool, flight: &Arc<Flight>, note: Note) {
    let first = {
        let mut notes = lock(&flight.notes);
        if matches!(note, Note::Progress(..)) {
            notes.retain(|old| !matches!(old, Note::Progress(..)));
        }
        if notes.len() >= 100 {
            notes.remove(0);
        }
        notes.push(note);
        notes.len() == 1
    };
    if first {
        let queue = &pool.queues[flight.queue];
        lock(&queue.noted).push(Arc::clone(flight));
        queue.ended.notify_one();
    }
}
