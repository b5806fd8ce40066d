//! What a node costs that has nothing to do: Redis commands a second, and memory.
//!
//! The bench holds the lease itself at first, so that the node is a plain one, and then gives it up to it.

use std::time::Duration;

use super::measurement::{Measurement, Skip};
use super::node::Node;
use super::place::{Bench, Place, QUEUE};

/// A node has said and asked everything once.
const SETTLE: Duration = Duration::from_secs(2);
/// Several rounds of every timer but the slowest.
const WINDOW: Duration = Duration::from_secs(10);
/// Longer than the bench needs the lease for.
const LEASE: Duration = Duration::from_secs(60);

/// Commands a second of one idle node with one queue, those inside scripts included.
pub(super) async fn commands(bench: &Bench, place: &Place) -> Result<Vec<Measurement>, Skip> {
    const ME: &str = "bench";
    let punctual_core::store::lease::Acquired::Mine { term, .. } = place.store.acquire_lease(ME, LEASE, 0).await? else {
        return Err("the lease of a new namespace is held".into());
    };
    let node = Node::start(bench, place, "bench-idle", &format!("{QUEUE}=1"), true).await?;
    let plain = window(place).await?;
    place.store.release_lease(ME, term).await?;
    node.until_holder(place).await?;
    let holder = window(place).await?;
    let rss = match node.rss_mib() {
        Some((now, _)) => Measurement::new("rss_mib", now, "MiB"),
        None => Measurement::skipped("rss_mib", "this system does not tell"),
    };
    Ok(vec![
        Measurement::new("idle_commands_per_s", plain, "commands/s"),
        Measurement::new("idle_commands_per_s_holder", holder, "commands/s"),
        rss,
    ])
}

async fn window(place: &Place) -> Result<f64, Skip> {
    tokio::time::sleep(SETTLE).await;
    let before = place.probe.snapshot().await?;
    tokio::time::sleep(WINDOW).await;
    let spent = place.probe.snapshot().await?.since(&before);
    Ok(spent.commands / WINDOW.as_secs_f64())
}
