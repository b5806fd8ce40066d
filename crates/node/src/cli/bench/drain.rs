//! How fast one node works a backlog off, and what that costs Redis and the node.
//!
//! The node is up and the queue is full but paused before the clock starts, so that starting and loading are not counted.

use std::time::{Duration, Instant};

use punctual_core::job::Due;

use super::enqueue::{memory, rate};
use super::measurement::{Measurement, Skip, rounded};
use super::node::Node;
use super::place::{Bench, Place, QUEUE};

/// With succeeded jobs kept, within the configured bounds.
pub(super) async fn kept(bench: &Bench, place: &Place) -> Result<Vec<Measurement>, Skip> {
    let drained = drain("drain_kept", bench, place, true).await?;
    let mut measured = vec![drained.rate];
    measured.push(match drained.rss_mib {
        Some(most) => Measurement::new("rss_mib_backlog", most, "MiB"),
        None => Measurement::skipped("rss_mib_backlog", "this system does not tell"),
    });
    Ok(measured)
}

/// With succeeded jobs removed at once.
pub(super) async fn discarded(bench: &Bench, place: &Place) -> Result<Vec<Measurement>, Skip> {
    let drained = drain("drain_discarded", bench, place, false).await?;
    let left = Measurement::new("bytes_finished", drained.bytes_left / bench.jobs as f64, "bytes/job");
    Ok(vec![drained.rate, left])
}

struct Drained {
    rate: Measurement,
    bytes_left: f64,
    rss_mib: Option<f64>,
}

async fn drain(name: &'static str, bench: &Bench, place: &Place, keep: bool) -> Result<Drained, Skip> {
    place.store.pause(QUEUE).await?;
    let node = Node::start(bench, place, "bench-worker", &format!("{QUEUE}=1"), keep).await?;
    node.until_holder(place).await?;
    let empty = memory(place).await?;
    place.load(&bench.job(QUEUE)?, bench.jobs, |_| Due::Now).await?;
    place.forget_receipts(QUEUE).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;

    let (before, cpu) = (place.probe.snapshot().await?, node.cpu_us());
    let started = Instant::now();
    place.store.resume(QUEUE).await?;
    place.succeeded(QUEUE, bench.jobs as u64).await?;
    let elapsed = started.elapsed();
    let (after, cpu_after) = (place.probe.snapshot().await?, node.cpu_us());

    let mut rate = rate(name, bench.jobs, elapsed, &after.since(&before));
    rate.node_cpu_us_per_job = cpu.zip(cpu_after).map(|(before, after)| rounded((after - before) / bench.jobs as f64));
    let rss_mib = node.rss_mib().map(|(_, most)| most);
    Ok(Drained { rate, bytes_left: memory(place).await? - empty, rss_mib })
}
