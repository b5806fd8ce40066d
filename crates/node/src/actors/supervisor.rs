//! Starts the other actors, restarts one that crashed within a budget, and hands nudges on. Past the budget the process exits, so
//! that whoever runs it starts a clean one.
//!
//! An outage of Redis is not a crash and never comes here. A node that was declared dead gets a new incarnation here: what it had
//! in its hands is revoked, because others run it by now.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use punctual_core::store::StoreError;
use punctual_core::store::nudge::Nudge;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{heartbeat, promoter, reaper, worker_pool};
use crate::membership;
use crate::pool::Pool;
use crate::pool::flights::Stop;
use crate::telemetry::Repeats;

/// More restarts than this within [`BUDGET_TIME`] end the process.
const BUDGET: usize = 5;
/// See [`BUDGET`].
const BUDGET_TIME: Duration = Duration::from_secs(60);

/// What the supervisor is told.
#[derive(Debug)]
pub enum Message {
    /// A hint from the cluster.
    Nudge(Nudge),
    /// This node was declared dead.
    Buried,
    /// Take no more jobs and give the lease up; what runs goes on. Answered when the others have been told.
    Drain(Option<RpcReplyPort<()>>),
}

/// What the supervisor needs.
pub struct Arguments {
    /// The worker pool's shared part.
    pub pool: Arc<Pool>,
    /// The heartbeat's own runtime.
    pub heartbeat: tokio::runtime::Handle,
}

/// The supervisor's state.
pub struct State {
    arguments: Arguments,
    heartbeat: Option<ActorRef<heartbeat::Beat>>,
    promoter: Option<ActorRef<promoter::Message>>,
    reaper: Option<ActorRef<reaper::Look>>,
    worker_pool: Option<ActorRef<worker_pool::Message>>,
    restarts: VecDeque<Instant>,
    listener: JoinHandle<()>,
    gone: JoinHandle<()>,
}

/// The actor.
pub struct Supervisor;

impl Actor for Supervisor {
    type Msg = Message;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(&self, myself: ActorRef<Message>, arguments: Arguments) -> Result<State, ActorProcessingErr> {
        let listener = tokio::spawn(listen(Arc::clone(&arguments.pool), myself.clone()));
        let (pool, supervisor) = (Arc::clone(&arguments.pool), myself.clone());
        let gone = tokio::spawn(async move {
            loop {
                pool.gone.notified().await;
                if supervisor.cast(Message::Buried).is_err() {
                    return;
                }
            }
        });
        let mut state = State {
            arguments,
            heartbeat: None,
            promoter: None,
            reaper: None,
            worker_pool: None,
            restarts: VecDeque::new(),
            listener,
            gone,
        };
        start_missing(&mut state, &myself).await?;
        Ok(state)
    }

    async fn handle(&self, myself: ActorRef<Message>, message: Message, state: &mut State) -> Result<(), ActorProcessingErr> {
        let pool = Arc::clone(&state.arguments.pool);
        match message {
            Message::Nudge(Nudge::Due(queue)) => tell(state.promoter.as_ref(), promoter::Message::Due(queue)),
            Message::Nudge(Nudge::Lease) => tell(state.promoter.as_ref(), promoter::Message::Look),
            Message::Nudge(Nudge::StepDown) => {
                if pool.status.lease().mine {
                    tell(state.promoter.as_ref(), promoter::Message::StepDown);
                }
            }
            Message::Nudge(Nudge::Resume(queue)) => tell(state.worker_pool.as_ref(), worker_pool::Message::Resume(queue)),
            Message::Nudge(Nudge::Cancel(queue)) => tell(state.worker_pool.as_ref(), worker_pool::Message::Cancel(queue)),
            Message::Nudge(Nudge::Drain(node)) => {
                if node == pool.status.incarnation() {
                    myself.cast(Message::Drain(None))?;
                }
            }
            Message::Drain(told) => {
                // Asked once more it has nothing to add: what it says of itself must not come after its farewell.
                if !pool.is_draining() {
                    drain(state).await;
                }
                if let Some(told) = told {
                    let _ = told.send(());
                }
            }
            Message::Buried => be_reborn(state).await,
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Message>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let (who, why) = match event {
            SupervisionEvent::ActorFailed(who, error) => (who, error.to_string()),
            SupervisionEvent::ActorTerminated(who, _, reason) => {
                forget(state, &who);
                // An actor that was stopped by the node's own stop is not started again.
                if state.arguments.pool.is_draining() {
                    return Ok(());
                }
                (who, reason.unwrap_or_else(|| "ended".to_owned()))
            }
            _ => return Ok(()),
        };
        let actor = forget(state, &who);
        let now = Instant::now();
        state.restarts.push_back(now);
        while state.restarts.front().is_some_and(|at| now.duration_since(*at) > BUDGET_TIME) {
            state.restarts.pop_front();
        }
        if state.restarts.len() > BUDGET {
            tracing::error!(target: "supervisor", actor, error = %why, "too many restarts");
            state.arguments.pool.unfit.cancel();
            return Ok(());
        }
        tracing::error!(target: "supervisor", actor, error = %why, restarts = state.restarts.len(), "actor restarted");
        start_missing(state, &myself).await
    }

    async fn post_stop(&self, _: ActorRef<Message>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.listener.abort();
        state.gone.abort();
        Ok(())
    }
}

fn tell<M: ractor::Message>(actor: Option<&ActorRef<M>>, message: M) {
    if let Some(actor) = actor {
        // A hint to an actor that is being restarted may be lost: its first pass looks by itself.
        let _ = actor.cast(message);
    }
}

/// Which actor it was; it is started again by [`start_missing`].
fn forget(state: &mut State, who: &ActorCell) -> &'static str {
    let id = who.get_id();
    if state.heartbeat.as_ref().is_some_and(|actor| actor.get_id() == id) {
        state.heartbeat = None;
        "heartbeat"
    } else if state.promoter.as_ref().is_some_and(|actor| actor.get_id() == id) {
        state.promoter = None;
        "promoter"
    } else if state.reaper.as_ref().is_some_and(|actor| actor.get_id() == id) {
        state.reaper = None;
        "reaper"
    } else if state.worker_pool.as_ref().is_some_and(|actor| actor.get_id() == id) {
        state.worker_pool = None;
        "worker_pool"
    } else {
        "unknown"
    }
}

async fn start_missing(state: &mut State, myself: &ActorRef<Message>) -> Result<(), ActorProcessingErr> {
    let pool = Arc::clone(&state.arguments.pool);
    let config = &pool.config;
    if state.heartbeat.is_none() {
        let beats = heartbeat::State::new(
            pool.data.another(),
            Arc::clone(&pool.status),
            config.node.heartbeat_every,
            config.node.dead_after,
        );
        let supervisor = myself.clone();
        // Spawned on its own runtime, so that its pass runs there.
        let spawned = state.arguments.heartbeat.spawn(async move {
            let cell = supervisor.get_cell();
            Actor::spawn_linked(None, heartbeat::Heartbeat, (beats, supervisor), cell).await
        });
        state.heartbeat = Some(spawned.await??.0);
    }
    if state.promoter.is_none() {
        let promoter = promoter::State::new(pool.data.another(), Arc::clone(&pool.status), config.lease.clone());
        state.promoter = Some(Actor::spawn_linked(None, promoter::Promoter, promoter, myself.get_cell()).await?.0);
    }
    if state.reaper.is_none() {
        let reaper = reaper::State::new(
            pool.data.clone(),
            Arc::clone(&pool.status),
            config.node.dead_after,
            config.jobs.max_crashes,
            config.retention.clone(),
        );
        state.reaper = Some(Actor::spawn_linked(None, reaper::Reaper, reaper, myself.get_cell()).await?.0);
    }
    if state.worker_pool.is_none() && !pool.is_draining() {
        let actor = Actor::spawn_linked(None, worker_pool::WorkerPool, Arc::clone(&pool), myself.get_cell()).await?;
        state.worker_pool = Some(actor.0);
    }
    Ok(())
}

/// Takes no more jobs. The promoter gives the lease up in its next pass.
async fn drain(state: &mut State) {
    let pool = &state.arguments.pool;
    pool.status.set_draining();
    pool.draining.store(true, Ordering::Release);
    pool.drained.notify_waiters();
    tell(state.promoter.as_ref(), promoter::Message::Look);
    for queue in &pool.queues {
        let blocked = queue.blocked.load(Ordering::Acquire);
        if blocked > 0 {
            let woken = pool.data.unblock(i64::try_from(blocked).unwrap_or(0)).await;
            if let Err(error) = woken {
                tracing::debug!(target: "supervisor", queue = %queue.name, error = %error, "fetcher not woken");
            }
        }
    }
    let incarnation = pool.status.incarnation();
    tracing::info!(target: "supervisor", node_id = %incarnation, running = pool.in_flight(), "node draining");
    if let Err(error) = pool.data.update_node(&incarnation, &membership::info(pool)).await {
        tracing::debug!(target: "supervisor", error = %error, "draining not shown");
    }
}

/// The others have given this node's jobs away: it lets go of them and joins under a new name.
async fn be_reborn(state: &mut State) {
    let pool = &state.arguments.pool;
    let old = pool.status.incarnation();
    // Sound: two parts of the node found out at once, and the first has seen to it. An error says nothing about this node; whoever
    // found it out will find it out again.
    if !matches!(is_sound(pool, &old).await, Ok(false)) {
        return;
    }
    if pool.is_draining() {
        return;
    }
    let new = membership::new_incarnation(&pool.config.node.name);
    if let Err(error) = membership::register(pool, &new).await {
        tracing::warn!(target: "supervisor", error = %error, "not registered again");
        return;
    }
    pool.status.set_incarnation(&new);
    let running = pool.in_flight();
    pool.stop_all(Stop::Revoked);
    pool.status.forget_beat();
    tracing::warn!(target: "supervisor", node_id = %new, was = %old, revoked = running, "declared dead, joined anew");
}

/// Whether an incarnation is a member and an owner of each of its queues.
async fn is_sound(pool: &Pool, incarnation: &str) -> Result<bool, StoreError> {
    let mut sound = pool.data.is_registered(incarnation).await?;
    for queue in &pool.queues {
        sound = sound && pool.claims.sweep(&queue.name, incarnation).await?.owner;
    }
    Ok(sound)
}

/// Hands nudges on; subscribes again after the connection ends. Nothing depends on it.
async fn listen(pool: Arc<Pool>, supervisor: ActorRef<Message>) {
    let mut repeats = Repeats::default();
    loop {
        match pool.data.nudges().await {
            Ok(mut nudges) => {
                if let Some(times) = repeats.recovered() {
                    tracing::info!(target: "supervisor", times, "nudges heard again");
                }
                while let Some(nudge) = nudges.next().await {
                    if supervisor.cast(Message::Nudge(nudge)).is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                if let Some(report) = repeats.failed(&error.text) {
                    tracing::warn!(target: "supervisor", error = %error, times = report.count, "nudges not heard");
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
