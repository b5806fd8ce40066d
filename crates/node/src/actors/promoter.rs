//! Holds the cluster's lease, or waits for it; while it holds it, promotes what is due.
//!
//! Sleeps until the earliest of: the next due time, the next renewal, the safety tick. A nudge runs a pass at once. It trusts the
//! lease until two thirds of its lifetime after the last renewal was *sent*, on the monotonic clock; every write carries the term,
//! so that losing the lease costs work and never correctness. A promoter that is stuck renews nothing and thereby loses it.
//! Deliberately absent: claims, deaths, retention.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::clock::{as_ms, format_ms};
use punctual_core::config::Lease as LeaseConfig;
use punctual_core::store::lease::Acquired;
use punctual_core::store::promote::{BATCH, Promoted};
use punctual_core::store::{Store, StoreError};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

use crate::status::{Lease, Status};
use crate::telemetry::Repeats;

/// Backs the nudges: a lost one costs at most this much.
const SAFETY_TICK: Duration = Duration::from_secs(2);
/// How often the list of queues is read again.
const QUEUES_EVERY: Duration = Duration::from_secs(10);
/// Batches of one queue in one pass, so that a burst in one queue neither starves the others nor the renewal.
const BATCHES: usize = 8;

/// What the promoter works on.
pub struct State {
    store: Store,
    status: Arc<Status>,
    config: LeaseConfig,
    held: Option<Held>,
    /// Not before this: somebody else holds the lease, or it was just given up.
    try_at: Instant,
    /// A fence that refused the last term.
    above: u64,
    seen: Option<(String, u64)>,
    queues: BTreeMap<String, Queue>,
    queues_read: Option<Instant>,
    ticked: Instant,
    repeats: Repeats,
}

#[derive(Clone, Copy)]
struct Held {
    term: u64,
    trusted_until: Instant,
    renew_at: Instant,
}

/// What is known of one queue.
#[derive(Clone, Copy)]
struct Queue {
    /// When its next job is due, by this machine's monotonic clock.
    due: Option<Instant>,
    /// Looked at in the next pass whatever is known.
    look: bool,
}

impl State {
    /// A promoter that knows nothing yet.
    #[must_use]
    pub fn new(store: Store, status: Arc<Status>, config: LeaseConfig) -> Self {
        let now = Instant::now();
        Self {
            store,
            status,
            config,
            held: None,
            try_at: now,
            above: 0,
            seen: None,
            queues: BTreeMap::new(),
            queues_read: None,
            ticked: now,
            repeats: Repeats::default(),
        }
    }

    /// The term of the lease, while it is held and trusted.
    #[must_use]
    pub fn term(&self) -> Option<u64> {
        self.held.filter(|held| Instant::now() < held.trusted_until).map(|held| held.term)
    }
}

/// What one pass did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Jobs made ready.
    pub promoted: usize,
    /// When to come back.
    pub again_in: Duration,
}

/// One pass: lease first, then promotion.
pub async fn run_once(state: &mut State) -> Pass {
    let mut promoted = 0;
    let done = async {
        lease(state).await?;
        if state.term().is_some() {
            promoted = promote(state).await?;
        }
        Ok::<(), StoreError>(())
    };
    match done.await {
        Ok(()) => {
            if let Some(times) = state.repeats.recovered() {
                tracing::info!(target: "promoter", times, "promoter recovered");
            }
        }
        Err(error) => {
            if let Some(report) = state.repeats.failed(&error.text) {
                tracing::warn!(target: "promoter", error = %error, times = report.count, "promoter failed");
            }
            drop_untrusted(state, "redis unreachable");
            return Pass { promoted, again_in: Duration::from_millis(250) };
        }
    }
    Pass { promoted, again_in: next_pass(state) }
}

fn next_pass(state: &State) -> Duration {
    let now = Instant::now();
    let Some(held) = state.held else { return state.try_at.saturating_duration_since(now).max(Duration::from_millis(5)) };
    if state.queues.values().any(|queue| queue.look) {
        return Duration::ZERO;
    }
    let due = state.queues.values().filter_map(|queue| queue.due).min().unwrap_or(held.renew_at);
    let tick = state.ticked + SAFETY_TICK;
    due.min(held.renew_at).min(tick).saturating_duration_since(now).max(Duration::from_millis(1))
}

/// Acquires, renews or waits.
async fn lease(state: &mut State) -> Result<(), StoreError> {
    drop_untrusted(state, "not renewed in time");
    if state.status.is_draining() {
        return release(state, Duration::from_secs(3600)).await;
    }
    let node = state.status.incarnation();
    let now = Instant::now();
    if let Some(held) = state.held {
        if now < held.renew_at {
            return Ok(());
        }
        let sent = Instant::now();
        if state.store.renew_lease(&node, held.term, state.config.ttl).await? {
            state.held = Some(fresh(state, held.term, sent));
            tracing::debug!(target: "promoter", node_id = %node, lease_term = held.term, "lease renewed");
        } else {
            lost(state, "held by another");
        }
        return Ok(());
    }
    // A node that may not start jobs may not lead either: it is cut off, or was declared dead.
    if now < state.try_at || !state.status.may_start() {
        state.try_at = state.try_at.max(now + Duration::from_millis(50));
        return Ok(());
    }
    let sent = Instant::now();
    match state.store.acquire_lease(&node, state.config.ttl, state.above).await? {
        Acquired::Mine { term, after } => {
            state.held = Some(fresh(state, term, sent));
            state.above = 0;
            state.seen = Some((node.clone(), term));
            state.queues_read = None;
            // Every queue is visited once in a new term, so that its fence rises whether or not something is due there.
            state.queues.clear();
            state.status.set_lease(Lease { holder: Some(node.clone()), term, mine: true });
            tracing::info!(target: "promoter", node_id = %node, lease_term = term, ttl_ms = as_ms(state.config.ttl),
                after = after.word(), "lease acquired");
        }
        Acquired::Held(held) => {
            let seen = Some((held.holder.clone(), held.term));
            if state.seen != seen {
                state.seen = seen;
                tracing::info!(target: "promoter", node_id = %node, holder = %held.holder, lease_term = held.term,
                    since = %format_ms(held.since_ms), expires_in_ms = as_ms(held.expires_in), "lease held by other");
                state.status.set_lease(Lease { holder: Some(held.holder), term: held.term, mine: false });
            }
            // Spread, so that not every standby asks in the same millisecond.
            let jitter = Duration::from_millis(fastrand::u64(1..150));
            state.try_at = now + held.expires_in + jitter;
        }
    }
    Ok(())
}

fn fresh(state: &State, term: u64, sent: Instant) -> Held {
    Held { term, trusted_until: sent + state.config.ttl * 2 / 3, renew_at: sent + state.config.renew_every }
}

fn drop_untrusted(state: &mut State, reason: &'static str) {
    if state.held.is_some_and(|held| Instant::now() >= held.trusted_until) {
        lost(state, reason);
    }
}

fn lost(state: &mut State, reason: &'static str) {
    if let Some(held) = state.held.take() {
        let node = state.status.incarnation();
        tracing::warn!(target: "promoter", node_id = %node, lease_term = held.term, reason, "lease lost");
        state.seen = None;
        state.try_at = Instant::now();
        state.status.set_lease(Lease { holder: None, term: held.term, mine: false });
    }
}

/// Gives the lease up and leaves it to others for `pause`.
///
/// # Errors
/// As any call; the lease then ends by itself.
pub async fn release(state: &mut State, pause: Duration) -> Result<(), StoreError> {
    state.try_at = state.try_at.max(Instant::now() + pause);
    let Some(held) = state.held.take() else { return Ok(()) };
    let node = state.status.incarnation();
    state.seen = None;
    state.status.set_lease(Lease { holder: None, term: held.term, mine: false });
    if state.store.release_lease(&node, held.term).await? {
        tracing::info!(target: "promoter", node_id = %node, lease_term = held.term, "lease released");
    }
    Ok(())
}

async fn promote(state: &mut State) -> Result<usize, StoreError> {
    let now = Instant::now();
    if state.queues_read.is_none_or(|at| now.duration_since(at) >= QUEUES_EVERY) {
        let names = state.store.queues().await?;
        state.queues.retain(|name, _| names.contains(name));
        for name in names {
            state.queues.entry(name).or_insert(Queue { due: None, look: true });
        }
        state.queues_read = Some(now);
    }
    if now.duration_since(state.ticked) >= SAFETY_TICK {
        tick(state).await?;
    }
    let mut promoted = 0;
    let due: Vec<String> = state
        .queues
        .iter()
        .filter(|(_, queue)| queue.look || queue.due.is_some_and(|due| due <= Instant::now()))
        .map(|(name, _)| name.clone())
        .collect();
    for name in due {
        for batch in 1..=BATCHES {
            let Some(term) = state.term() else { return Ok(promoted) };
            let sent = Instant::now();
            match state.store.promote(&name, term, BATCH).await? {
                Promoted::Fenced(fence) => {
                    state.above = fence;
                    lost(state, "refused by a later term");
                    return Ok(promoted);
                }
                Promoted::Moved { now_ms, lateness_ms, next_due_ms, late, phantoms } => {
                    report(&name, &lateness_ms, late, phantoms);
                    promoted += lateness_ms.len();
                    let more = next_due_ms.is_some_and(|due| due <= now_ms);
                    let queue = Queue {
                        due: next_due_ms.map(|due| sent + Duration::from_millis(due.saturating_sub(now_ms))),
                        look: more && batch == BATCHES,
                    };
                    state.queues.insert(name.clone(), queue);
                    if !more {
                        break;
                    }
                }
            }
        }
    }
    Ok(promoted)
}

/// The safety tick: peeks at the first due time of every queue without a script.
async fn tick(state: &mut State) -> Result<(), StoreError> {
    state.ticked = Instant::now();
    let names: Vec<String> = state.queues.keys().cloned().collect();
    for (name, first) in names.iter().zip(state.store.next_due(&names).await?) {
        if let Some(queue) = state.queues.get_mut(name) {
            // Only the script knows Redis' clock: whatever is not already awaited is looked at.
            queue.look |= first.is_some() && queue.due.is_none();
        }
    }
    Ok(())
}

fn report(queue: &str, lateness_ms: &[u64], late: u64, phantoms: u64) {
    let histogram = metrics::histogram!("punctual_promotion_lateness_seconds", "queue" => queue.to_owned());
    for ms in lateness_ms {
        histogram.record(Duration::from_millis(*ms).as_secs_f64());
    }
    if late > 0 {
        tracing::info!(target: "promoter", queue, count = late, "jobs too late by their policy");
    }
    if phantoms > 0 {
        tracing::warn!(target: "promoter", queue, count = phantoms, "index entries without a record dropped");
    }
}

/// What the promoter is told.
#[derive(Clone, Debug)]
pub enum Message {
    /// Its own timer; only the newest counts.
    Wake(u64),
    /// A queue's earliest due time moved forward.
    Due(String),
    /// The lease is free, or draining began.
    Look,
    /// Give the lease up for a while.
    StepDown,
}

/// The actor.
pub struct Promoter;

impl Actor for Promoter {
    type Msg = Message;
    type State = (State, u64);
    type Arguments = State;

    async fn pre_start(&self, myself: ActorRef<Message>, state: State) -> Result<Self::State, ActorProcessingErr> {
        myself.cast(Message::Wake(0))?;
        Ok((state, 0))
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        (state, timer): &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            // A pass that ran since then has set another timer.
            Message::Wake(number) if number != *timer => return Ok(()),
            Message::Wake(_) => {}
            Message::Due(name) => {
                // A standby has nothing to do with it, and a queue nobody has heard of is looked up at once.
                match (state.held.is_some(), state.queues.get_mut(&name)) {
                    (false, _) => return Ok(()),
                    (true, Some(queue)) => queue.look = true,
                    (true, None) => state.queues_read = None,
                }
            }
            Message::Look => {
                if state.held.is_none() {
                    state.try_at = Instant::now();
                }
            }
            Message::StepDown => {
                let pause = state.config.ttl + state.config.ttl / 2;
                if let Err(error) = release(state, pause).await {
                    tracing::warn!(target: "promoter", error = %error, "lease not released");
                }
            }
        }
        let pass = run_once(state).await;
        *timer += 1;
        let number = *timer;
        myself.send_after(pass.again_in, move || Message::Wake(number));
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Message>, (state, _): &mut Self::State) -> Result<(), ActorProcessingErr> {
        if let Err(error) = release(state, Duration::from_secs(3600)).await {
            tracing::warn!(target: "promoter", error = %error, "lease not released");
        }
        Ok(())
    }
}
