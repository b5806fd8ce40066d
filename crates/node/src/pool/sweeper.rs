//! Compares what Redis thinks this node holds with what it does hold.
//!
//! A reply can be lost between a move in Redis and the node's knowledge of it. What the node holds but Redis does not is revoked;
//! what Redis has under the node's name and the node does not know is handed back. Both only when two looks in a row agree,
//! because a claim or a settle may be on its way between them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use punctual_core::state::{Ended, Limits, after};
use punctual_core::store::StoreError;
use punctual_core::store::settle::Settlement;

use super::flights::Stop;
use super::{Pool, Queue};

/// What the last look found odd, by queue.
#[derive(Debug, Default)]
pub struct Odd {
    strangers: HashSet<(String, u64)>,
    missing: HashSet<(String, u64)>,
    unclaimed: bool,
}

/// What one look did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Jobs asked to stop because a person cancelled them.
    pub cancelled: usize,
    /// Jobs held here that Redis gave to others.
    pub revoked: usize,
    /// Jobs handed back that this node never heard of.
    pub returned: usize,
    /// Whether the incarnation is no owner any more.
    pub gone: bool,
}

/// Looks once at one queue.
///
/// # Errors
/// As any call; nothing was decided then.
pub async fn sweep(pool: &Arc<Pool>, queue: &Queue, odd: &mut Odd) -> Result<Pass, StoreError> {
    let (epoch, incarnation) = pool.status.identity();
    // Taken before asking: what is claimed meanwhile is in the answer but not here, and is not a stranger for long.
    let held: Vec<_> = queue.flights.all().into_iter().filter(|flight| flight.epoch == epoch).collect();
    let swept = pool.claims.sweep(&queue.name, &incarnation).await?;
    let mut pass = Pass { gone: !swept.owner, ..Pass::default() };
    if pass.gone {
        return Ok(pass);
    }
    if swept.unclaimed > 0 && odd.unclaimed {
        // A move that was carried out after its fetcher had given up on it: no band shows it, so the fetcher is told.
        queue.poked.store(true, Ordering::Release);
        let blocked = queue.blocked.load(Ordering::Acquire);
        if blocked > 0 {
            pool.data.unblock(i64::try_from(blocked).unwrap_or(0)).await?;
        }
    }
    odd.unclaimed = swept.unclaimed > 0;
    let there: HashSet<(&str, u64)> = swept.jobs.iter().map(|job| (job.id.as_str(), job.token)).collect();
    let mut missing = HashSet::new();
    for flight in held {
        if there.contains(&(flight.id.as_str(), flight.token)) || flight.is_decided() {
            continue;
        }
        let key = (flight.id.clone(), flight.token);
        if odd.missing.contains(&key) {
            pass.revoked += 1;
            flight.ask_to_stop(Stop::Revoked);
            tracing::warn!(target: "worker_pool", job_id = %flight.id, queue = %queue.name, claim = flight.token, "claim revoked");
        } else {
            missing.insert(key);
        }
    }
    odd.missing = missing;
    let mut strangers = HashSet::new();
    for job in &swept.jobs {
        if let Some(flight) = queue.flights.get(&job.id).filter(|flight| flight.token == job.token) {
            if job.cancel && flight.stop() == Stop::No && !flight.is_decided() {
                pass.cancelled += 1;
                flight.ask_to_stop(Stop::Cancelled);
            }
            continue;
        }
        let key = (job.id.clone(), job.token);
        if job.token > 0 && odd.strangers.contains(&key) {
            hand_back(pool, queue, &incarnation, &key).await?;
            pass.returned += 1;
        } else {
            strangers.insert(key);
        }
    }
    odd.strangers = strangers;
    if pass.returned > 0 {
        tracing::warn!(target: "worker_pool", queue = %queue.name, count = pass.returned, "unknown claims handed back");
    }
    Ok(pass)
}

async fn hand_back(pool: &Pool, queue: &Queue, incarnation: &str, (id, token): &(String, u64)) -> Result<(), StoreError> {
    let limits = Limits {
        attempt: 1,
        max_attempts: u32::MAX,
        policy: punctual_core::backoff::RetryPolicy::default(),
        age: Duration::ZERO,
        roll: 0.5,
    };
    let settlement = Settlement { id: id.clone(), token: *token, to: after(Ended::HandedBack, &limits) };
    pool.claims.settle(&queue.name, incarnation, &pool.config.retention, &[settlement]).await?;
    Ok(())
}
