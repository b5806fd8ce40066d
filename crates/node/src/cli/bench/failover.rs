//! How long jobs and due times wait when a node goes away: killed without a word, or drained.
//!
//! The node that goes holds the lease, which is the worst case: its death must be noticed before anybody may judge the dead.

use std::time::{Duration, Instant};

use punctual_core::job::Due;
use punctual_core::state::State;
use punctual_core::store::nudge::Nudge;

use super::measurement::{Measurement, Skip};
use super::node::Node;
use super::place::{Bench, Place, QUEUE, another, request};
use super::timing::{due_us, lateness_ms, started_us};

/// The queue of jobs that become due all the time, so that the first promotion after a change is seen.
const TICKS: &str = "ticks";
const TICK_MS: u64 = 10;
/// Jobs in flight on the node that is killed.
const IN_FLIGHT: usize = 5;
/// Everything runs again within this time, or the measurement has failed.
const WITHIN: Duration = Duration::from_secs(40);
/// How long two nodes are left alone before one of them goes.
const CALM: Duration = Duration::from_secs(1);
/// How long ticks go on after a drain began.
const AFTER_DRAIN: Duration = Duration::from_secs(3);

/// `kill -9` of the holder with jobs in flight: until the last of them runs elsewhere, and until somebody else promotes.
pub(super) async fn killed(bench: &Bench, place: &Place) -> Result<Vec<Measurement>, Skip> {
    let mut first = Node::start(bench, place, "bench-first", &format!("{QUEUE}=1"), true).await?;
    first.until_holder(place).await?;
    let job = request("demo.sleep", r#"{"ms":30000}"#.to_owned(), QUEUE)?;
    let ids = place.load(&job, IN_FLIGHT, |_| Due::Now).await?;
    running(place, &ids, &first.id).await?;
    let second = Node::start(bench, place, "bench-second", &format!("{QUEUE}=1,{TICKS}=1"), true).await?;
    let now = place.store.probe().await?;
    let most = u64::try_from((CALM + WITHIN / 2).as_millis()).unwrap_or(u64::MAX);
    let tick = bench.job(TICKS)?;
    let ticks = place.load(&tick, (most / TICK_MS) as usize, |number| Due::At(now + number as u64 * TICK_MS)).await?;
    tokio::time::sleep(CALM).await;

    let killed_us = place.store.probe().await? as f64 * 1e3;
    first.kill().await?;
    let restarted_us = running(place, &ids, &second.id).await?;
    let after = place.read(TICKS, &ticks).await?;
    // A job that was due after the death can only have been promoted by the other node.
    let promoted = after.iter().filter(|job| due_us(job).is_some_and(|due| due > killed_us)).filter_map(started_us);
    let promoted = promoted.min_by(f64::total_cmp);
    Ok(vec![
        Measurement::new("recovery_s", (restarted_us - killed_us) / 1e6, "s"),
        match promoted {
            Some(at) => Measurement::new("takeover_s", (at - killed_us) / 1e6, "s"),
            None => Measurement::skipped("takeover_s", "nothing was promoted after the kill"),
        },
    ])
}

/// The holder drains, as a stop signal makes it: how late the latest job is that becomes due meanwhile.
pub(super) async fn graceful(bench: &Bench, place: &Place) -> Result<Vec<Measurement>, Skip> {
    let first = Node::start(bench, place, "bench-first", "elsewhere=1", true).await?;
    first.until_holder(place).await?;
    let _second = Node::start(bench, place, "bench-second", &format!("{TICKS}=1"), true).await?;
    let tick = bench.job(TICKS)?;
    place.client.submit(another(&tick)).await?;
    let now = place.store.probe().await?;
    let span = u64::try_from((CALM + AFTER_DRAIN).as_millis()).unwrap_or(u64::MAX);
    let ticks = place.load(&tick, (span / TICK_MS) as usize, |number| Due::At(now + number as u64 * TICK_MS)).await?;
    tokio::time::sleep(CALM).await;
    let drained_us = place.store.probe().await? as f64 * 1e3;
    place.store.publish(&Nudge::Drain(first.id.clone())).await?;
    place.succeeded(TICKS, ticks.len() as u64 + 1).await?;
    let holder = place.store.lease().await?.map(|held| held.holder);
    if holder.is_none_or(|holder| holder == first.id) {
        return Err("the drained node still holds the lease".into());
    }
    let mut after = place.read(TICKS, &ticks).await?;
    after.retain(|job| due_us(job).is_some_and(|due| due > drained_us));
    let latest = lateness_ms(&after).into_iter().max_by(f64::total_cmp).ok_or(Skip::from("nothing was due meanwhile"))?;
    Ok(vec![Measurement::new("takeover_graceful_s", latest / 1e3, "s")])
}

/// Waits until all these jobs run on a node; the moment at which the last was claimed, in microseconds since 1970.
async fn running(place: &Place, ids: &[String], node: &str) -> Result<f64, Skip> {
    let started = Instant::now();
    while started.elapsed() < WITHIN {
        let found = place.read(QUEUE, ids).await?;
        let there = |packed: &punctual_core::store::packed::Packed| {
            packed.state == State::Running && packed.node.as_deref() == Some(node)
        };
        if found.len() == ids.len() && found.iter().all(|job| job.packed.as_ref().is_some_and(there)) {
            return found.iter().filter_map(started_us).max_by(f64::total_cmp).ok_or(Skip::from("no job runs"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(Skip(format!("the jobs did not run on {node} within {WITHIN:?}")))
}
