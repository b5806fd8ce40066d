//! What goes wrong: the holder of the lease is killed, another node is killed, and the third is frozen for longer than it may be
//! silent.
//!
//! After each blow the ids that the victim had claimed are read from Redis. It can no longer change them, and the others may not
//! before `dead_after`, so this list is exact: these jobs, and no others, may run a second time. What it had fetched and not yet
//! claimed is read too: it comes back late, but has not run.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use punctual_core::clock;
use punctual_core::state::State;
use punctual_core::store::Store;
use punctual_core::store::inspect::Page;
use tokio::time::{Instant, sleep, sleep_until};

use crate::cluster::{Cluster, DEAD_AFTER, LEASE_TTL, NAMES, QUEUES};
use crate::watch::{Line, Watch};

/// When each blow falls at the earliest, from the start of the stories.
const BLOWS: [Duration; 3] = [Duration::from_secs(5), Duration::from_secs(17), Duration::from_secs(30)];
/// So many jobs should be in flight on a victim.
const WANTED: usize = 4;
/// As long as this it is waited for.
const PATIENCE: Duration = Duration::from_secs(6);
/// How long a container takes to come back.
const RESTART: Duration = Duration::from_secs(3);
/// On top of the times that the product promises, for a busy machine.
const SLACK: Duration = Duration::from_secs(5);

/// What was done to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    Killed,
    Frozen,
}

/// One blow and what came of it.
#[derive(Clone, Debug)]
pub struct Hit {
    pub blow: Blow,
    pub name: &'static str,
    pub node_id: String,
    pub at_ms: u64,
    /// Jobs that it had claimed.
    pub in_flight: BTreeSet<String>,
    /// Jobs that it had fetched and not claimed.
    pub fetched: BTreeSet<String>,
    /// How long nobody held the lease, if the victim did.
    pub takeover_ms: Option<u64>,
}

/// Strikes.
pub struct Chaos<'a> {
    pub cluster: &'a mut Cluster,
    pub store: &'a Store,
    pub watch: &'a Watch,
}

impl Chaos<'_> {
    /// The whole programme.
    pub async fn rage(mut self) -> Result<Vec<Hit>> {
        let start = Instant::now();
        let mut hits: Vec<Hit> = Vec::new();
        for (number, at) in BLOWS.into_iter().enumerate() {
            sleep_until(start + at).await;
            let holder = self.holder_name().await?;
            let untouched: Vec<&'static str> =
                NAMES.into_iter().filter(|name| hits.iter().all(|hit| hit.name != *name)).collect();
            // First the holder, then one that does not hold the lease, then whoever is left: mostly the new holder.
            let victim = if number == 0 { Some(holder) } else { untouched.iter().copied().find(|name| *name != holder) };
            let victim = victim.or(untouched.first().copied()).context("there are three nodes and three blows")?;
            let blow = if number == 2 { Blow::Frozen } else { Blow::Killed };
            hits.push(self.strike(blow, victim, victim == holder).await?);
        }
        Ok(hits)
    }

    async fn strike(&mut self, blow: Blow, name: &'static str, holder: bool) -> Result<Hit> {
        let node_id = self.watch.id(name).with_context(|| format!("{name} has not started"))?;
        let patience = Instant::now() + PATIENCE;
        loop {
            let running = in_flight(self.store, &node_id).await?.len();
            if running >= WANTED || (running > 0 && Instant::now() >= patience) {
                break;
            }
            ensure!(!self.cluster.lost().contains(&name), "{name} has ended by itself");
            ensure!(Instant::now() < patience + PATIENCE, "{name} runs no jobs at all");
            sleep(Duration::from_millis(10)).await;
        }
        let mark = self.watch.mark();
        let at_ms = clock::local_ms();
        match blow {
            Blow::Killed => self.cluster.kill(name)?,
            Blow::Frozen => self.cluster.pause(name)?,
        }
        // What the victim had sent before arrives within this time.
        sleep(Duration::from_millis(200)).await;
        let in_flight = in_flight(self.store, &node_id).await?;
        let mut fetched = fetched(self.store, &node_id).await?;
        let how = if blow == Blow::Killed { "kill -9" } else { "kill -STOP" };
        let lease = if holder { "holds the lease, " } else { "" };
        self.watch.announce(&format!("{how} {name}: it {lease}has {} jobs in flight", in_flight.len()));

        let mut takeover_ms = None;
        if holder {
            let other = |line: &Line| line.message() == "lease acquired" && line.text("node_id") != node_id;
            let line = self.watch.wait(mark, "another node to acquire the lease", LEASE_TTL + SLACK, other).await?;
            takeover_ms = Some(line.at_ms.saturating_sub(at_ms));
        }
        // A container takes a while to come back; and the blocking call of a frozen node may fetch one more entry meanwhile.
        sleep(RESTART.saturating_sub(Duration::from_millis(clock::local_ms().saturating_sub(at_ms)))).await;
        fetched.extend(self::fetched(self.store, &node_id).await?);
        if blow == Blow::Killed {
            self.watch.announce(&format!("{name} starts again, as a new process"));
            self.cluster.start(name)?;
        }
        let dead = |line: &Line| line.message() == "node dead" && line.text("node_id") == node_id;
        let line = self.watch.wait(mark, &format!("{name} to be declared dead"), DEAD_AFTER * 2 + SLACK, dead).await?;
        // Its last beat may be up to a second older than the blow.
        let silent_ms = line.at_ms.saturating_sub(at_ms);
        ensure!(silent_ms + 1100 >= clock::as_ms(DEAD_AFTER), "{name} was declared dead after {silent_ms} ms, too early");
        if !in_flight.is_empty() {
            let back = |line: &Line| line.message() == "jobs requeued" && line.text("from_node") == node_id;
            self.watch.wait(mark, "its jobs to be requeued", SLACK, back).await?;
        }
        if blow == Blow::Frozen {
            // Long enough for its jobs to be running elsewhere when it wakes up.
            sleep(Duration::from_millis(600)).await;
            self.watch.announce(&format!("kill -CONT {name}: it wakes up and thinks that nothing has happened"));
            self.cluster.resume(name)?;
        }
        let joined = |line: &Line| {
            matches!(line.message(), "node started" | "declared dead, joined anew")
                && line.text("node_id").starts_with(name)
                && line.text("node_id") != node_id
        };
        self.watch.wait(mark, &format!("{name} to be back"), SLACK * 2, joined).await?;
        Ok(Hit { blow, name, node_id, at_ms, in_flight, fetched, takeover_ms })
    }

    async fn holder_name(&self) -> Result<&'static str> {
        let name = || {
            let (id, _) = self.watch.holder()?;
            NAMES.into_iter().find(|name| self.watch.id(name).as_ref() == Some(&id))
        };
        let look = || std::future::ready(name());
        punctual_tests::eventually(LEASE_TTL + SLACK, "a node to hold the lease", look).await
    }
}

/// The ids that a node has claimed.
async fn in_flight(store: &Store, node_id: &str) -> Result<BTreeSet<String>> {
    let page = Page { states: vec![State::Running], limit: 200, cursor: None, handler: None, tag: None };
    let (jobs, _) = store.list(&QUEUES.map(str::to_owned), &page).await?;
    let on_it = jobs.into_iter().filter(|job| job.attempts.last().is_some_and(|attempt| attempt.node == node_id));
    Ok(on_it.map(|job| job.id).collect())
}

/// The ids that a node has taken off the ready lists and not claimed.
async fn fetched(store: &Store, node_id: &str) -> Result<BTreeSet<String>> {
    let mut pipeline = redis::pipe();
    for queue in QUEUES {
        pipeline.cmd("LRANGE").arg(store.keys().queue(queue, &format!("p:{node_id}"))).arg(0).arg(-1);
    }
    let entries: Vec<Vec<String>> = store.link().pipe(&pipeline).await?;
    Ok(entries.into_iter().flatten().filter_map(|entry| entry.split('#').next().map(str::to_owned)).collect())
}
