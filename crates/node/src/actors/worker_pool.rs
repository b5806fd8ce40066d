//! Keeps the fetchers and settlers of all queues running, sweeps, and speaks for attempts that outlived their timeout.
//!
//! The work itself is in `pool/`; everything in flight lies in the shared [`Pool`] and outlives this actor. A fetcher or settler
//! that ended by a panic is a broken invariant: the actor fails, and its supervisor starts it anew over the same pool.
//! Deliberately absent: how a node stops (see `run`), and what an outcome means (see `punctual_core::state`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use punctual_core::config::OnIsolation;
use punctual_core::state::Ended;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::execute::GRACE;
use crate::membership;
use crate::pool::flights::Stop;
use crate::pool::sweeper::{self, Odd};
use crate::pool::{Pool, fetcher, settler};
use crate::telemetry::Repeats;

/// Between two passes.
const EVERY: Duration = Duration::from_millis(250);
/// Between two sweeps of a queue that holds something.
const SWEEP_BUSY: Duration = Duration::from_secs(5);
/// Between two sweeps of a queue that holds nothing.
const SWEEP_IDLE: Duration = Duration::from_secs(15);
/// Between two advertisements of queues and handlers.
const ADVERTISE_EVERY: Duration = Duration::from_secs(60);
/// How long after its timeout a handler that does not yield keeps its claim.
const OVERDUE: Duration = Duration::from_secs(1);
/// How long too many executions may have outlived their claims.
const CROWDED: Duration = Duration::from_secs(15);

/// What the worker pool works on.
pub struct State {
    pool: Arc<Pool>,
    tasks: Vec<JoinHandle<()>>,
    odd: Vec<Odd>,
    swept: Vec<Instant>,
    advertised: Instant,
    crowded_since: Option<Instant>,
    isolated: bool,
    repeats: Repeats,
}

impl State {
    /// Starts a fetcher and a settler for every queue.
    #[must_use]
    pub fn start(pool: Arc<Pool>) -> Self {
        let mut tasks = Vec::new();
        for number in 0..pool.queues.len() {
            tasks.push(tokio::spawn(fetcher::run(Arc::clone(&pool), number)));
            tasks.push(tokio::spawn(settler::run(Arc::clone(&pool), number)));
        }
        let now = Instant::now();
        let odd = pool.queues.iter().map(|_| Odd::default()).collect();
        let swept = pool.queues.iter().map(|_| now).collect();
        Self { pool, tasks, odd, swept, advertised: now, crowded_since: None, isolated: false, repeats: Repeats::default() }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// One pass: overdue attempts, isolation, sweeps that are due.
///
/// # Errors
/// When a fetcher or settler has ended although the pool does not drain.
pub async fn run_once(state: &mut State) -> Result<(), String> {
    let pool = Arc::clone(&state.pool);
    let fetchers_ended = state.tasks.iter().any(JoinHandle::is_finished);
    if fetchers_ended && !pool.is_draining() {
        return Err("a fetcher or settler ended by itself".to_owned());
    }
    overdue(&pool);
    give_way(state);
    isolation(state);
    let running = pool.slots.capacity().saturating_sub(pool.slots.free());
    let crowded = state.crowded_since.is_some();
    pool.status.set_running(running as u64, pool.zombies.load(Ordering::Acquire) as u64, crowded);
    for number in 0..pool.queues.len() {
        let queue = &pool.queues[number];
        let period = if queue.flights.is_empty() { SWEEP_IDLE } else { SWEEP_BUSY };
        if state.swept[number].elapsed() >= period {
            sweep(state, number).await;
        }
    }
    if state.advertised.elapsed() >= ADVERTISE_EVERY {
        state.advertised = Instant::now();
        if let Err(error) = membership::advertise(&pool).await {
            tracing::debug!(target: "worker_pool", error = %error, "not advertised");
        }
    }
    Ok(())
}

/// Ends attempts whose handler ignores its timeout or its cancellation: the claim is settled, the slot stays occupied.
fn overdue(pool: &Arc<Pool>) {
    for flight in pool.queues.iter().flat_map(|queue| queue.flights.all()) {
        if flight.is_decided() || flight.since.elapsed() < flight.timeout + GRACE + OVERDUE {
            continue;
        }
        flight.cancel.cancel();
        pool.zombies.fetch_add(1, Ordering::AcqRel);
        tracing::warn!(target: "worker_pool", job_id = %flight.id, handler = %flight.handler, timeout_ms = flight.timeout.as_millis() as u64,
            "handler ignores its timeout");
        pool.decide(&flight, Ended::TimedOut(flight.timeout));
    }
}

/// Gives way to a new process when too many executions have outlived their claims: a quarter of the slots, at most 16.
fn give_way(state: &mut State) {
    let pool = &state.pool;
    let (zombies, slots) = (pool.zombies.load(Ordering::Acquire), pool.slots.capacity());
    if zombies < (slots / 4).clamp(1, 16) {
        state.crowded_since = None;
        return;
    }
    // Some end after all.
    let crowded = state.crowded_since.get_or_insert_with(Instant::now).elapsed() >= CROWDED;
    if crowded && !pool.is_draining() && !pool.unfit.is_cancelled() {
        tracing::error!(target: "worker_pool", zombies, slots, "too many executions past their claim");
        pool.unfit.cancel();
    }
}

/// What running jobs do while Redis is out of reach for longer than the node may be silent.
fn isolation(state: &mut State) {
    let pool = &state.pool;
    let isolated = pool.status.beat_age().is_some_and(|age| age > pool.config.node.dead_after);
    if isolated && !state.isolated && pool.config.node.on_isolation == OnIsolation::Cancel {
        tracing::warn!(target: "worker_pool", running = pool.in_flight(), "isolated from redis, cancelling");
        pool.stop_all(Stop::HandBack);
    }
    state.isolated = isolated;
}

async fn sweep(state: &mut State, number: usize) {
    let pool = Arc::clone(&state.pool);
    let queue = &pool.queues[number];
    state.swept[number] = Instant::now();
    match sweeper::sweep(&pool, queue, &mut state.odd[number]).await {
        Ok(pass) => {
            state.repeats.recovered();
            if pass.gone && !pool.is_draining() {
                pool.gone.notify_one();
            }
        }
        Err(error) => {
            if let Some(report) = state.repeats.failed(&error.text) {
                tracing::warn!(target: "worker_pool", queue = %queue.name, error = %error, times = report.count, "sweep failed");
            }
        }
    }
}

/// What the worker pool is told.
#[derive(Clone, Debug)]
pub enum Message {
    /// Its own timer.
    Pass,
    /// A queue goes on after a pause.
    Resume(String),
    /// A running job of a queue should stop.
    Cancel(String),
}

/// The actor.
pub struct WorkerPool;

impl Actor for WorkerPool {
    type Msg = Message;
    type State = State;
    type Arguments = Arc<Pool>;

    async fn pre_start(&self, myself: ActorRef<Message>, pool: Arc<Pool>) -> Result<State, ActorProcessingErr> {
        myself.cast(Message::Pass)?;
        Ok(State::start(pool))
    }

    async fn handle(&self, myself: ActorRef<Message>, message: Message, state: &mut State) -> Result<(), ActorProcessingErr> {
        let number = |state: &State, name: &str| state.pool.queues.iter().position(|queue| &*queue.name == name);
        match message {
            Message::Pass => {
                run_once(state).await?;
                myself.send_after(EVERY, || Message::Pass);
            }
            Message::Resume(name) => {
                if let Some(number) = number(state, &name) {
                    state.pool.queues[number].nudged.notify_one();
                }
            }
            Message::Cancel(name) => {
                if let Some(number) = number(state, &name)
                    && !state.pool.queues[number].flights.is_empty()
                {
                    sweep(state, number).await;
                }
            }
        }
        Ok(())
    }
}
