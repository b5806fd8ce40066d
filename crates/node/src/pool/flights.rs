//! The jobs that this node has in its hands: claimed and not yet settled. Outlives every task that fills it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use punctual_core::backoff::RetryPolicy;
use punctual_core::handler::Note;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Why a running job should stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stop {
    /// It should not.
    No = 0,
    /// A person cancelled it.
    Cancelled = 1,
    /// Its claim is no longer this node's: whatever it returns is refused.
    Revoked = 2,
    /// The node stops, or is cut off and was told to cancel.
    HandBack = 3,
}

/// One claimed job.
#[derive(Debug)]
pub struct Flight {
    /// Number of its queue on this node.
    pub queue: usize,
    /// Its id.
    pub id: String,
    /// Its handler's name.
    pub handler: String,
    /// Its claim's token.
    pub token: u64,
    /// Which attempt.
    pub attempt: u32,
    /// Attempts allowed.
    pub max_attempts: u32,
    /// Waits between attempts.
    pub retry: RetryPolicy,
    /// Longest run.
    pub timeout: Duration,
    /// From its creation to its claim.
    pub age: Duration,
    /// From due to claim.
    pub lateness: Duration,
    /// When the attempt was due, milliseconds since 1970.
    pub due_ms: u64,
    /// When it was claimed, by this machine's monotonic clock.
    pub since: Instant,
    /// Whether it came through the suspects' lane.
    pub suspect: bool,
    /// Which incarnation of this node claimed it, counted.
    pub epoch: u64,
    /// Tells the handler to stop.
    pub cancel: CancellationToken,
    stop: AtomicU8,
    /// Set by the first who speaks for the attempt: the handler's end, or the overseer after its timeout.
    decided: AtomicBool,
    /// Notes that wait to be written.
    pub notes: Mutex<Vec<Note>>,
}

impl Flight {
    /// A new flight.
    #[expect(clippy::too_many_arguments, reason = "one constructor for one record; each argument is named at its only call")]
    #[must_use]
    pub fn new(
        queue: usize,
        id: String,
        handler: String,
        token: u64,
        attempt: u32,
        limits: (u32, RetryPolicy, Duration),
        times: (Duration, Duration, u64),
        suspect: bool,
        epoch: u64,
    ) -> Self {
        let (max_attempts, retry, timeout) = limits;
        let (age, lateness, due_ms) = times;
        Self {
            queue,
            id,
            handler,
            token,
            attempt,
            max_attempts,
            retry,
            timeout,
            age,
            lateness,
            due_ms,
            since: Instant::now(),
            suspect,
            epoch,
            cancel: CancellationToken::new(),
            stop: AtomicU8::new(Stop::No as u8),
            decided: AtomicBool::new(false),
            notes: Mutex::default(),
        }
    }

    /// Asks the handler to stop; the first reason counts, except that a revocation beats all.
    pub fn ask_to_stop(&self, why: Stop) {
        let before = self.stop.compare_exchange(Stop::No as u8, why as u8, Ordering::AcqRel, Ordering::Acquire);
        if before.is_err() && why == Stop::Revoked {
            self.stop.store(why as u8, Ordering::Release);
        }
        self.cancel.cancel();
    }

    /// Why it should stop.
    #[must_use]
    pub fn stop(&self) -> Stop {
        match self.stop.load(Ordering::Acquire) {
            1 => Stop::Cancelled,
            2 => Stop::Revoked,
            3 => Stop::HandBack,
            _ => Stop::No,
        }
    }

    /// `true` for the one caller that may say how the attempt ended.
    pub fn decide(&self) -> bool {
        !self.decided.swap(true, Ordering::AcqRel)
    }

    /// Whether somebody has said how the attempt ended.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        self.decided.load(Ordering::Acquire)
    }
}

/// All flights of one queue.
#[derive(Debug, Default)]
pub struct Flights {
    inner: Mutex<BTreeMap<String, Arc<Flight>>>,
}

impl Flights {
    /// Adds one; `false` when this very claim is already held (a claim's reply came twice).
    pub fn add(&self, flight: &Arc<Flight>) -> bool {
        let mut inner = self.lock();
        if inner.get(&flight.id).is_some_and(|held| held.token == flight.token) {
            return false;
        }
        inner.insert(flight.id.clone(), Arc::clone(flight));
        true
    }

    /// Removes one, unless a newer claim of the same job has taken its place.
    pub fn remove(&self, flight: &Flight) {
        let mut inner = self.lock();
        if inner.get(&flight.id).is_some_and(|held| held.token == flight.token) {
            inner.remove(&flight.id);
        }
    }

    /// The flight of an id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<Arc<Flight>> {
        self.lock().get(id).cloned()
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Flight>> {
        self.lock().values().cloned().collect()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<Flight>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
