//! While this node holds the lease: declares nodes dead and takes their jobs away; keeps retention where nothing settles.
//!
//! Silence is blamed on a node only for time over which this node's own beats were answered without a break: after an outage of
//! Redis nobody is dead yet. When most of the fleet falls silent within a second, the link is the likelier culprit, and it waits
//! once more as long. Every take-over is a script that looks at the beat, or at the claim's token, itself.
//! Deliberately absent: the lease (the promoter's), and any memory beyond what one more pass would find again.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use punctual_core::clock::as_ms;
use punctual_core::config::Retention;
use punctual_core::store::nodes::Buried;
use punctual_core::store::reap::CrashPolicy;
use punctual_core::store::trim::BATCH as TRIM_BATCH;
use punctual_core::store::{Store, StoreError};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

use crate::status::Status;
use crate::telemetry::Repeats;

/// Between two looks at the beats: with `dead_after` this is the longest time until a death is noticed.
const EVERY: Duration = Duration::from_millis(1500);
/// Between two readings of the list of nodes; one that dies unlisted is found among the owners.
const NODES_EVERY: Duration = Duration::from_secs(5);
/// Between two looks at all owners: a fetch that was waiting when its node died can still move an entry.
const OWNERS_EVERY: Duration = Duration::from_secs(10);
/// How long after a death every pass looks at all owners.
const WATCHFUL: Duration = Duration::from_secs(30);
/// Between two rounds of retention.
const TRIM_EVERY: Duration = Duration::from_secs(30);
/// Between two looks for handlers that nobody has any more.
const FORGET_EVERY: Duration = Duration::from_secs(600);
/// How long a dead owner is remembered.
const GONE_FOR: Duration = Duration::from_secs(3600);
/// How far Redis' clock may run away from ours between two looks before it counts as a step.
const CLOCK_STEP: Duration = Duration::from_secs(1);

/// What the reaper works on.
pub struct State {
    store: Store,
    status: Arc<Status>,
    dead_after: Duration,
    crashes: CrashPolicy,
    retention: Retention,
    nodes: Vec<String>,
    nodes_read: Option<Instant>,
    /// Since when each silent node has been seen silent.
    silent: BTreeMap<String, Instant>,
    clock: Option<(u64, Instant)>,
    /// Nobody is dead before this much unbroken time has passed since then.
    trust_since: Instant,
    owners_read: Option<Instant>,
    /// When the last node was declared dead.
    last_death: Option<Instant>,
    trimmed: Instant,
    forgot: Option<Instant>,
    repeats: Repeats,
}

impl State {
    /// A reaper that knows nothing yet.
    #[must_use]
    pub fn new(store: Store, status: Arc<Status>, dead_after: Duration, max_crashes: u32, retention: Retention) -> Self {
        let now = Instant::now();
        Self {
            store,
            status,
            dead_after,
            crashes: CrashPolicy::new(max_crashes),
            retention,
            nodes: Vec::new(),
            nodes_read: None,
            silent: BTreeMap::new(),
            clock: None,
            // The clock cannot have been seen to step before it was seen at all.
            trust_since: now.checked_sub(Duration::from_secs(86_400)).unwrap_or(now),
            owners_read: None,
            last_death: None,
            trimmed: now,
            forgot: None,
            repeats: Repeats::default(),
        }
    }
}

/// What one pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Nodes declared dead.
    pub dead: Vec<String>,
    /// Jobs that will run again.
    pub requeued: u64,
    /// Jobs that killed too many nodes.
    pub buried: u64,
    /// Ended jobs removed by retention.
    pub trimmed: u64,
}

/// One pass. Does nothing unless this node holds the lease.
///
/// # Errors
/// As any call; the next pass begins anew.
pub async fn run_once(state: &mut State) -> Result<Pass, StoreError> {
    let mut pass = Pass::default();
    let lease = state.status.lease();
    if !lease.mine {
        state.silent.clear();
        state.clock = None;
        return Ok(pass);
    }
    let now = Instant::now();
    if state.nodes_read.is_none_or(|at| now.duration_since(at) >= NODES_EVERY) {
        state.nodes = state.store.incarnations().await?;
        state.nodes_read = Some(now);
        let nodes = &state.nodes;
        state.silent.retain(|node, _| nodes.contains(node));
    }
    let doomed = silent_too_long(state).await?;
    for node in doomed {
        match state.store.bury(&node, lease.term).await? {
            // A node that left in peace has no beat either, and may still be on the list that was read a moment ago.
            Buried::Alive | Buried::Left => {}
            Buried::NotHolder => return Ok(pass),
            Buried::Dead => {
                // A beat lives for dead_after, so it had been silent for as long when that was first seen.
                let seen_for = state.silent.get(&node).map_or(Duration::ZERO, Instant::elapsed);
                tracing::warn!(target: "reaper", node_id = %node, silent_ms = as_ms(state.dead_after + seen_for), "node dead");
                pass.dead.push(node);
            }
        }
        state.nodes_read = None;
    }
    let all_owners = state.owners_read.is_none_or(|at| now.duration_since(at) >= OWNERS_EVERY);
    if !pass.dead.is_empty() {
        state.last_death = Some(now);
    }
    // A fetch that the dead node had left waiting takes the next entry of a queue, often at once.
    let watchful = state.last_death.is_some_and(|at| now.duration_since(at) < WATCHFUL);
    if all_owners || watchful {
        reap(state, lease.term, &mut pass).await?;
    }
    if all_owners {
        state.owners_read = Some(now);
    }
    if now.duration_since(state.trimmed) >= TRIM_EVERY {
        state.trimmed = now;
        for queue in state.store.queues().await? {
            pass.trimmed += trim(state, &queue).await?;
        }
    }
    if state.forgot.is_none_or(|at| now.duration_since(at) >= FORGET_EVERY) {
        state.forgot = Some(now);
        forget_handlers(state).await?;
    }
    Ok(pass)
}

/// Which nodes have been silent for longer than they may.
async fn silent_too_long(state: &mut State) -> Result<Vec<String>, StoreError> {
    let asked = Instant::now();
    let (redis_ms, beats) = state.store.beats(&state.nodes).await?;
    let now = Instant::now();
    if let Some((before_ms, at)) = state.clock.replace((redis_ms, asked)) {
        let ours = as_ms(asked.duration_since(at));
        let theirs = redis_ms.saturating_sub(before_ms);
        if redis_ms < before_ms || ours.abs_diff(theirs) > as_ms(CLOCK_STEP) {
            // A step of Redis' clock ends every beat at once, whoever lives.
            tracing::warn!(target: "reaper", ours_ms = ours, theirs_ms = theirs, "clock of redis stepped");
            state.trust_since = now;
        }
    }
    for (node, beats) in state.nodes.iter().zip(beats) {
        if beats {
            state.silent.remove(node);
        } else {
            state.silent.entry(node.clone()).or_insert(now);
        }
    }
    let Some(unbroken) = state.status.unbroken_since() else { return Ok(Vec::new()) };
    let trusted = now.duration_since(unbroken.max(state.trust_since));
    let newest = state.silent.values().max().copied();
    let together = newest.map_or(0, |newest| {
        state.silent.values().filter(|since| newest.duration_since(**since) <= Duration::from_secs(1)).count()
    });
    let mass = together >= 3 && together * 2 > state.nodes.len();
    let needed = if mass { state.dead_after * 2 } else { state.dead_after };
    if trusted < needed {
        return Ok(Vec::new());
    }
    // A beat lives for dead_after, so a missing one is old enough by itself; a mass silence is watched for as long again.
    let watched = if mass { state.dead_after } else { Duration::ZERO };
    let own = state.status.incarnation();
    Ok(state
        .silent
        .iter()
        .filter(|(node, since)| **node != own && now.duration_since(**since) >= watched)
        .map(|(node, _)| node.clone())
        .collect())
}

/// Takes the jobs of every owner that is no member (any more), queue by queue, while the lease is held in `term`.
async fn reap(state: &State, term: u64, pass: &mut Pass) -> Result<(), StoreError> {
    for queue in state.store.queues().await? {
        // In this order: a node becomes a member before it becomes an owner, so whoever owns something here and is no member a
        // moment later has ceased to be one.
        let owners = state.store.owners(&queue).await?;
        let members: HashSet<String> = state.store.incarnations().await?.into_iter().collect();
        for (owner, already_gone) in owners.into_iter().filter(|(owner, _)| !members.contains(owner)) {
            let mut requeued = 0;
            loop {
                let reaped = state.store.reap(&queue, &owner, term, &state.crashes).await?;
                if reaped.fenced {
                    return Ok(());
                }
                requeued += reaped.requeued + reaped.unclaimed;
                pass.buried += reaped.buried;
                if reaped.buried > 0 {
                    tracing::warn!(target: "reaper", from_node = %owner, queue, count = reaped.buried, "jobs dead after crashes");
                }
                if !reaped.more {
                    break;
                }
            }
            if requeued > 0 {
                metrics::counter!("punctual_jobs_requeued_total", "queue" => queue.clone()).increment(requeued);
                tracing::warn!(target: "reaper", from_node = %owner, queue, count = requeued, "jobs requeued");
                pass.requeued += requeued;
            } else if already_gone {
                state.store.leave(&queue, &owner, GONE_FOR).await?;
            }
        }
    }
    Ok(())
}

async fn trim(state: &State, queue: &str) -> Result<u64, StoreError> {
    let mut removed = 0;
    // Bounded, so that a backlog of millions is worked off over several passes.
    for _ in 0..50 {
        let page = state.store.trim(queue, &state.retention).await?;
        removed += page;
        if page < TRIM_BATCH {
            break;
        }
    }
    Ok(removed)
}

async fn forget_handlers(state: &State) -> Result<(), StoreError> {
    let now_ms = state.store.probe().await?;
    let advertised: BTreeMap<_, _> = state.store.advertised().await?;
    let old: Vec<String> = advertised
        .into_iter()
        .filter(|(_, advertised)| now_ms.saturating_sub(advertised.seen_ms) > as_ms(GONE_FOR))
        .map(|(name, _)| name)
        .collect();
    state.store.forget_handlers(&old).await
}

/// The reaper's only message.
pub struct Look;

/// The actor.
pub struct Reaper;

impl Actor for Reaper {
    type Msg = Look;
    type State = State;
    type Arguments = State;

    async fn pre_start(&self, myself: ActorRef<Look>, state: State) -> Result<State, ActorProcessingErr> {
        myself.cast(Look)?;
        Ok(state)
    }

    async fn handle(&self, myself: ActorRef<Look>, _: Look, state: &mut State) -> Result<(), ActorProcessingErr> {
        match run_once(state).await {
            Ok(_) => {
                if let Some(times) = state.repeats.recovered() {
                    tracing::info!(target: "reaper", times, "reaper recovered");
                }
            }
            Err(error) => {
                if let Some(report) = state.repeats.failed(&error.text) {
                    tracing::warn!(target: "reaper", error = %error, times = report.count, "reaper failed");
                }
            }
        }
        myself.send_after(EVERY.min(state.dead_after / 2), || Look);
        Ok(())
    }
}
