//! Looking at queues and nodes, never changing them: the documents of `queues show` and `nodes list`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::inspect::id_of;
use super::nodes::NodeInfo;
use super::{Store, StoreError};
use crate::clock::format_ms;
use crate::state::State;

/// Counts of one queue by state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StateCounts {
    /// Waiting for their time.
    pub scheduled: u64,
    /// Due.
    pub ready: u64,
    /// Claimed.
    pub running: u64,
    /// Waiting after a failure.
    pub retrying: u64,
    /// Kept records.
    pub succeeded: u64,
    /// Kept records.
    pub dead: u64,
    /// Kept records.
    pub cancelled: u64,
    /// Waiting for a person.
    pub held: u64,
}

/// The document of `queues show`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QueueView {
    /// Its name.
    pub queue: String,
    /// Whether claims are stopped.
    pub paused: bool,
    /// Jobs by state.
    pub states: StateCounts,
    /// Age of the oldest ready job, `None` when there is none.
    pub oldest_ready_ms: Option<u64>,
    /// Waiting jobs whose handler no live node has, by handler; looked at among the next thousand.
    pub unroutable: BTreeMap<String, u64>,
    /// Due in the next minute.
    pub due_soon: u64,
    /// Counts since the queue began.
    pub totals: BTreeMap<String, u64>,
}

/// One node, as others see it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeView {
    /// Name and boot id.
    pub id: String,
    /// Name.
    pub name: String,
    /// When it registered.
    pub started_at: String,
    /// Since its last beat; `None` when it is silent for longer than it may be.
    pub beat_age_ms: Option<u64>,
    /// Queues with their weights.
    pub queues: BTreeMap<String, u32>,
    /// Slots.
    pub concurrency: u32,
    /// Claimed jobs.
    pub running: u64,
    /// Release.
    pub version: String,
    /// Whether it takes no new jobs.
    pub draining: bool,
    /// Names of its handlers.
    pub handlers: Vec<String>,
}

impl NodeView {
    /// Handlers of the live nodes that serve a queue; `None` when nobody does.
    #[must_use]
    pub fn handlers_of(nodes: &[Self], queue: &str) -> Option<Vec<String>> {
        let mut serving = nodes
            .iter()
            .filter(|node| node.beat_age_ms.is_some() && !node.draining && node.queues.contains_key(queue))
            .peekable();
        serving.peek()?;
        let handlers: BTreeSet<&String> = serving.flat_map(|node| &node.handlers).collect();
        Some(handlers.into_iter().cloned().collect())
    }
}

impl Store {
    /// Counts and ages of one queue. `handlers` are those of the live nodes that serve it, `None` when nobody does: what is not
    /// among them is unroutable.
    ///
    /// # Errors
    /// As any call.
    pub async fn queue(&self, queue: &str, handlers: Option<&[String]>) -> Result<QueueView, StoreError> {
        let now_ms = self.probe().await?;
        let key = |part: &str| self.keys.queue(queue, part);
        let mut pipeline = redis::pipe();
        pipeline.cmd("EXISTS").arg(key("paused")).cmd("HGETALL").arg(key("totals")).cmd("HKEYS").arg(key("owners"));
        for set in ["scheduled", "retrying", "succeeded", "dead", "cancelled", "held"] {
            pipeline.cmd("ZCARD").arg(key(set));
        }
        type Counts = (bool, BTreeMap<String, u64>, Vec<String>, u64, u64, u64, u64, u64, u64);
        let (paused, totals, owners, scheduled, retrying, succeeded, dead, cancelled, held): Counts =
            self.link.pipe(&pipeline).await?;
        let mut pipeline = redis::pipe();
        for part in ["r0", "r1", "r2", "r3", "suspects"] {
            pipeline.cmd("LLEN").arg(key(part)).cmd("LINDEX").arg(key(part)).arg(-1);
        }
        for set in ["scheduled", "retrying"] {
            pipeline.cmd("ZCOUNT").arg(key(set)).arg("-inf").arg(now_ms + 60_000);
        }
        for owner in &owners {
            pipeline.cmd("SCARD").arg(key(&format!("run:{owner}")));
        }
        let answers: Vec<redis::Value> = self.link.pipe(&pipeline).await?;
        let number =
            |index: usize| answers.get(index).and_then(|value| redis::from_redis_value_ref::<u64>(value).ok()).unwrap_or(0);
        let last = |index: usize| {
            answers.get(index).and_then(|value| redis::from_redis_value_ref::<Option<String>>(value).ok()).flatten()
        };
        let bell = u64::from(last(5).as_deref() == Some("!"));
        let ready = (0..5).map(|part| number(part * 2)).sum::<u64>().saturating_sub(bell);
        let running = (0..owners.len()).map(|owner| number(12 + owner)).sum();
        let oldest: Vec<(String, String)> = (0..5)
            .filter_map(|part| last(part * 2 + 1))
            .filter(|entry| entry != "!")
            .map(|entry| (queue.to_owned(), id_of(&entry).to_owned()))
            .collect();
        let oldest_ready_ms = self.read(&oldest).await?.into_iter().flatten().map(|found| {
            let due = found.packed.as_ref().map_or(0, |packed| packed.due_ms);
            let due = if due > 0 { due } else { found.record.as_ref().map_or(now_ms, |record| record.due_ms) };
            now_ms.saturating_sub(due)
        });
        let oldest_ready_ms = oldest_ready_ms.max();
        Ok(QueueView {
            queue: queue.to_owned(),
            paused,
            states: StateCounts { scheduled, ready, running, retrying, succeeded, dead, cancelled, held },
            oldest_ready_ms,
            unroutable: self.unroutable(queue, handlers).await?,
            due_soon: number(10) + number(11),
            totals,
        })
    }

    /// Jobs that wait because no live node has their handler, among the next thousand of the scheduled set and of each band.
    async fn unroutable(&self, queue: &str, handlers: Option<&[String]>) -> Result<BTreeMap<String, u64>, StoreError> {
        let mut counts = BTreeMap::new();
        let key = self.keys.queue(queue, "scheduled");
        let mut ids: Vec<String> = self.link.query(redis::cmd("ZRANGE").arg(key).arg(0).arg(999)).await?;
        ids.extend(self.entries(queue, State::Ready, 0).await?.iter().map(|entry| id_of(entry).to_owned()));
        let pairs: Vec<(String, String)> = ids.into_iter().filter(|id| id != "!").map(|id| (queue.to_owned(), id)).collect();
        for found in self.read(&pairs).await?.into_iter().flatten() {
            if let Ok(record) = &found.record
                && handlers.is_none_or(|handlers| {
                    // Until a node has met it nobody knows: another release may have the handler.
                    let met = found.packed.as_ref().is_some_and(|packed| packed.handbacks > 0);
                    met && !handlers.contains(&record.spec.handler)
                })
            {
                *counts.entry(record.spec.handler.clone()).or_insert(0) += 1;
            }
        }
        Ok(counts)
    }

    /// Every registered node.
    ///
    /// # Errors
    /// As any call.
    pub async fn node_views(&self) -> Result<Vec<NodeView>, StoreError> {
        let raw: BTreeMap<String, String> = self.link.query(redis::cmd("HGETALL").arg(self.keys.cluster("nodes"))).await?;
        let mut views = Vec::with_capacity(raw.len());
        for (id, text) in raw {
            let Ok(info) = serde_json::from_str::<NodeInfo>(&text) else { continue };
            let mut pipeline = redis::pipe();
            pipeline.cmd("PTTL").arg(self.keys.beat(&id));
            for queue in info.queues.keys() {
                pipeline.cmd("SCARD").arg(self.keys.queue(queue, &format!("run:{id}")));
            }
            let answers: Vec<i64> = self.link.pipe(&pipeline).await?;
            let left = answers.first().copied().unwrap_or(-2);
            let running = answers.iter().skip(1).filter_map(|count| u64::try_from(*count).ok()).sum();
            views.push(NodeView {
                id,
                name: info.name,
                started_at: format_ms(info.started_ms),
                beat_age_ms: u64::try_from(left).ok().map(|left| info.dead_after_ms.saturating_sub(left)),
                queues: info.queues,
                concurrency: info.concurrency,
                running,
                version: info.version,
                draining: info.draining,
                handlers: info.handlers,
            });
        }
        Ok(views)
    }
}
