//! What a node knows of itself, for /readyz, /metrics and logs. Written by the actors, read by anyone; no Redis, no waiting.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Shared by all parts of one node.
#[derive(Debug)]
pub struct Status {
    started: Instant,
    /// How old the last confirmed beat may be before nothing new starts.
    fresh_for: Duration,
    last_beat: Mutex<Option<Instant>>,
    unbroken_since: Mutex<Option<Instant>>,
    draining: AtomicBool,
    lease: Mutex<Lease>,
    fetch: Mutex<Fetch>,
    eviction: Mutex<Option<String>>,
    running: AtomicU64,
    zombies: AtomicU64,
    crowded: AtomicBool,
    incarnation: Mutex<String>,
    epoch: AtomicU64,
    joined_ms: AtomicU64,
}

/// What a node knows of the lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it, as far as this node knows.
    pub holder: Option<String>,
    /// In which term.
    pub term: u64,
    /// Whether it is this node.
    pub mine: bool,
}

#[derive(Debug, Default)]
struct Fetch {
    last_round: Option<Instant>,
    allowed: Duration,
}

/// One line of /readyz.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// Which.
    pub name: &'static str,
    /// Whether it holds.
    pub ok: bool,
    /// What was seen.
    pub detail: String,
}

impl Status {
    /// A node that has not beaten yet. `dead_after` as configured.
    #[must_use]
    pub fn new(dead_after: Duration) -> Self {
        Self {
            started: Instant::now(),
            fresh_for: dead_after * 2 / 3,
            last_beat: Mutex::new(None),
            unbroken_since: Mutex::new(None),
            draining: AtomicBool::new(false),
            lease: Mutex::default(),
            fetch: Mutex::default(),
            eviction: Mutex::default(),
            running: AtomicU64::new(0),
            zombies: AtomicU64::new(0),
            crowded: AtomicBool::new(false),
            incarnation: Mutex::default(),
            epoch: AtomicU64::new(0),
            joined_ms: AtomicU64::new(0),
        }
    }

    /// Name and boot id of the present incarnation.
    #[must_use]
    pub fn incarnation(&self) -> String {
        lock(&self.incarnation).clone()
    }

    /// The number of the present incarnation in this process, from 1; 0 before the first.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The present incarnation with its number, read as one: what was claimed under the one is not settled under the other.
    #[must_use]
    pub fn identity(&self) -> (u64, String) {
        let incarnation = lock(&self.incarnation);
        (self.epoch(), incarnation.clone())
    }

    /// When this process first joined, milliseconds since 1970 by Redis' clock; 0 before.
    #[must_use]
    pub fn joined_ms(&self) -> u64 {
        self.joined_ms.load(Ordering::Relaxed)
    }

    /// The process joins; only the first time counts.
    pub fn joined(&self, now_ms: u64) {
        let _ = self.joined_ms.compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A new incarnation begins.
    pub fn set_incarnation(&self, incarnation: &str) {
        let mut present = lock(&self.incarnation);
        incarnation.clone_into(&mut present);
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// A beat was answered that had been sent at `sent`. A gap of half of `dead_after` breaks the row: Redis, or this node, was away.
    pub fn beat_confirmed(&self, sent: Instant) {
        let before = lock(&self.last_beat).replace(sent);
        let broken = before.is_none_or(|before| sent.saturating_duration_since(before) > self.fresh_for * 3 / 4);
        if broken {
            *lock(&self.unbroken_since) = Some(sent);
        }
    }

    /// Since when this node's beats have been answered without a break; `None` while they are not.
    #[must_use]
    pub fn unbroken_since(&self) -> Option<Instant> {
        if self.may_start() { *lock(&self.unbroken_since) } else { None }
    }

    /// The beats no longer count: the node was declared dead.
    pub fn forget_beat(&self) {
        *lock(&self.last_beat) = None;
    }

    /// Since the last confirmed beat was sent; `None` before the first.
    #[must_use]
    pub fn beat_age(&self) -> Option<Duration> {
        lock(&self.last_beat).map(|at| at.elapsed())
    }

    /// Whether new jobs may start: the last confirmed beat is younger than two thirds of `dead_after`, so that nobody can have
    /// declared this node dead meanwhile.
    #[must_use]
    pub fn may_start(&self) -> bool {
        self.beat_age().is_some_and(|age| age < self.fresh_for)
    }

    /// The node stops taking jobs.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether the node takes no new jobs.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// What the promoter learned of the lease.
    pub fn set_lease(&self, lease: Lease) {
        metrics::gauge!("punctual_lease_held").set(if lease.mine { 1.0 } else { 0.0 });
        #[expect(clippy::cast_precision_loss, reason = "terms are microseconds since 1970, below 2^53")]
        metrics::gauge!("punctual_lease_term").set(lease.term as f64);
        *lock(&self.lease) = lease;
    }

    /// What this node knows of the lease.
    #[must_use]
    pub fn lease(&self) -> Lease {
        lock(&self.lease).clone()
    }

    /// A fetcher finished a round; the next one is expected within `allowed`.
    pub fn fetched(&self, allowed: Duration) {
        let mut fetch = lock(&self.fetch);
        fetch.last_round = Some(Instant::now());
        fetch.allowed = allowed;
    }

    /// The eviction policy that was seen at the last look, `None` when it may not be asked.
    pub fn set_eviction(&self, policy: Option<String>) {
        *lock(&self.eviction) = policy;
    }

    /// How many executions there are now, how many of them have outlived their claim, and whether those are too many.
    pub fn set_running(&self, running: u64, zombies: u64, crowded: bool) {
        self.crowded.store(crowded, Ordering::Relaxed);
        self.running.store(running, Ordering::Relaxed);
        self.zombies.store(zombies, Ordering::Relaxed);
    }

    /// How many executions there are.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    /// Since the process began.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// The checks that need no round trip; /readyz adds a real script's.
    #[must_use]
    pub fn checks(&self) -> Vec<Check> {
        let beat = self.beat_age();
        let fetch = lock(&self.fetch);
        let fetching = fetch.last_round.map(|at| at.elapsed());
        let fetch_ok = fetching.is_some_and(|age| age <= fetch.allowed) || self.is_draining();
        let eviction = lock(&self.eviction).clone();
        let zombies = self.zombies.load(Ordering::Relaxed);
        vec![
            Check {
                name: "accepting",
                ok: !self.is_draining(),
                detail: if self.is_draining() { "draining" } else { "takes jobs" }.to_owned(),
            },
            Check {
                name: "heartbeat",
                ok: self.may_start(),
                detail: beat.map_or_else(
                    || "no beat confirmed yet".to_owned(),
                    |age| format!("last confirmed {} ms ago", age.as_millis()),
                ),
            },
            Check {
                name: "fetch",
                ok: fetch_ok,
                detail: fetching
                    .map_or_else(|| "no round yet".to_owned(), |age| format!("last round {} ms ago", age.as_millis())),
            },
            Check {
                name: "executions",
                ok: !self.crowded.load(Ordering::Relaxed),
                detail: format!("{} running, {zombies} of them past their claim", self.running()),
            },
            Check {
                name: "eviction",
                ok: true,
                detail: eviction
                    .map_or_else(|| "policy may not be asked".to_owned(), |policy| format!("maxmemory-policy {policy}")),
            },
        ]
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_executions_past_their_claim_turn_the_node_unready() {
        let status = Status::new(Duration::from_secs(60));
        let executions = || status.checks().into_iter().find(|check| check.name == "executions").expect("a check");
        status.set_running(4, 1, false);
        assert!(executions().ok && executions().detail.contains("1 of them"));
        status.set_running(4, 2, true);
        assert!(!executions().ok);
        status.set_running(4, 0, false);
        assert!(executions().ok);
    }
}
