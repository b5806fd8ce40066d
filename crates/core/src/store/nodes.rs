//! Who is in the cluster: registration, beats, and the declaration of a death.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::script::BURY;
use super::{Store, StoreError};
use crate::clock::as_ms;

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Name without the boot id.
    pub name: String,
    /// When it registered, milliseconds since 1970 by Redis' clock.
    pub started_ms: u64,
    /// Queues with their weights.
    pub queues: BTreeMap<String, u32>,
    /// Slots.
    pub concurrency: u32,
    /// Release.
    pub version: String,
    /// Whether it takes no new jobs.
    pub draining: bool,
    /// Names of its handlers.
    pub handlers: Vec<String>,
    /// How long it may be silent, milliseconds.
    pub dead_after_ms: u64,
}

/// What nodes advertise of one handler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advertised {
    /// JSON Schema of its arguments.
    pub schema: serde_json::Value,
    /// When a node last said that it has it, milliseconds since 1970.
    pub seen_ms: u64,
}

/// What the reaper says when it declares a node dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buried {
    /// It is dead now.
    Dead,
    /// It beats.
    Alive,
    /// It is no member: it left, or was declared dead before.
    Left,
    /// This reaper no longer holds the lease in its term.
    NotHolder,
}

impl Store {
    /// Registers an incarnation and joins the owners of each of its queues. May be sent again, but not by a node that was declared
    /// dead: it takes a new incarnation.
    ///
    /// # Errors
    /// As any call.
    pub async fn register_node(&self, incarnation: &str, info: &NodeInfo) -> Result<(), StoreError> {
        self.update_node(incarnation, info).await?;
        // Per queue, because each lies in a slot of its own.
        for queue in info.queues.keys() {
            let mut command = redis::cmd("HSETNX");
            command.arg(self.keys.queue(queue, "owners")).arg(incarnation).arg("0 0");
            self.link.query::<()>(&command).await?;
        }
        Ok(())
    }

    /// Tells the cluster which queues and handlers there are. Repeated every minute, in case Redis has forgotten them.
    ///
    /// # Errors
    /// As any call.
    pub async fn advertise(&self, queues: &[&str], handlers: &BTreeMap<String, Advertised>) -> Result<(), StoreError> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("SADD").arg(self.keys.cluster("queues")).arg(queues).ignore();
        if !handlers.is_empty() {
            let command = pipeline.cmd("HSET").arg(self.keys.cluster("handlers"));
            for (name, advertised) in handlers {
                command.arg(name).arg(serde_json::to_string(advertised).expect("plain data"));
            }
            pipeline.ignore();
        }
        self.link.pipe(&pipeline).await
    }

    /// Takes an incarnation out of the list of nodes; its queues are left one by one before.
    ///
    /// # Errors
    /// As any call.
    pub async fn deregister_node(&self, incarnation: &str) -> Result<(), StoreError> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("HDEL").arg(self.keys.cluster("nodes")).arg(incarnation).ignore();
        pipeline.cmd("DEL").arg(self.keys.beat(incarnation)).ignore();
        self.link.pipe(&pipeline).await
    }

    /// One beat: one plain command, so that thousands of nodes cost little.
    ///
    /// # Errors
    /// As any call.
    pub async fn beat(&self, incarnation: &str, dead_after: Duration) -> Result<(), StoreError> {
        let key = self.keys.beat(incarnation);
        // A server at its memory limit refuses SET; without beats no node would claim, and nothing would ever make room.
        let mut command = redis::cmd("PEXPIRE");
        command.arg(&key).arg(as_ms(dead_after));
        if self.link.query::<bool>(&command).await? {
            return Ok(());
        }
        let mut command = redis::cmd("SET");
        command.arg(&key).arg(1).arg("PX").arg(as_ms(dead_after));
        self.link.query(&command).await
    }

    /// Whether an incarnation is still registered: `false` tells it that it was declared dead.
    ///
    /// # Errors
    /// As any call.
    pub async fn is_registered(&self, incarnation: &str) -> Result<bool, StoreError> {
        self.link.query(redis::cmd("HEXISTS").arg(self.keys.cluster("nodes")).arg(incarnation)).await
    }

    /// Which incarnations are registered, sorted.
    ///
    /// # Errors
    /// As any call.
    pub async fn incarnations(&self) -> Result<Vec<String>, StoreError> {
        let mut incarnations: Vec<String> = self.link.query(redis::cmd("HKEYS").arg(self.keys.cluster("nodes"))).await?;
        incarnations.sort();
        Ok(incarnations)
    }

    /// Redis' time in milliseconds, and whether each of these incarnations beats.
    ///
    /// # Errors
    /// As any call.
    pub async fn beats(&self, incarnations: &[String]) -> Result<(u64, Vec<bool>), StoreError> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("TIME");
        if incarnations.is_empty() {
            let ((seconds, micros),): ((u64, u64),) = self.link.pipe(&pipeline).await?;
            return Ok((seconds * 1000 + micros / 1000, Vec::new()));
        }
        let command = pipeline.cmd("MGET");
        for incarnation in incarnations {
            command.arg(self.keys.beat(incarnation));
        }
        let ((seconds, micros), beats): ((u64, u64), Vec<Option<Vec<u8>>>) = self.link.pipe(&pipeline).await?;
        Ok((seconds * 1000 + micros / 1000, beats.iter().map(Option::is_some).collect()))
    }

    /// What every node says of itself that beats.
    ///
    /// # Errors
    /// As any call.
    pub async fn live_nodes(&self) -> Result<Vec<NodeInfo>, StoreError> {
        let raw: BTreeMap<String, String> = self.link.query(redis::cmd("HGETALL").arg(self.keys.cluster("nodes"))).await?;
        let (ids, texts): (Vec<String>, Vec<String>) = raw.into_iter().unzip();
        let (_, beats) = self.beats(&ids).await?;
        let live = texts.iter().zip(beats).filter(|(_, beats)| *beats);
        Ok(live.filter_map(|(text, _)| serde_json::from_str(text).ok()).collect())
    }

    /// Declares an incarnation dead unless it beats, under the lease of `term`.
    ///
    /// # Errors
    /// As any call.
    pub async fn bury(&self, incarnation: &str, term: u64) -> Result<Buried, StoreError> {
        let fill = |command: &mut redis::Cmd| {
            command.arg(incarnation).arg(format!("{term:016}"));
        };
        let answer: i64 = BURY.run(&self.link, &self.keys.cluster_tag(), &self.time(), fill).await?;
        Ok(match answer {
            1 => Buried::Dead,
            0 => Buried::Alive,
            2 => Buried::Left,
            _ => Buried::NotHolder,
        })
    }

    /// Marks a node as draining for those who look.
    ///
    /// # Errors
    /// As any call.
    pub async fn update_node(&self, incarnation: &str, info: &NodeInfo) -> Result<(), StoreError> {
        let text = serde_json::to_string(info).expect("a node's info is plain data");
        self.link.query(redis::cmd("HSET").arg(self.keys.cluster("nodes")).arg(incarnation).arg(text)).await
    }

    /// Every queue that anybody registered.
    ///
    /// # Errors
    /// As any call.
    pub async fn queues(&self) -> Result<Vec<String>, StoreError> {
        let mut queues: Vec<String> = self.link.query(redis::cmd("SMEMBERS").arg(self.keys.cluster("queues"))).await?;
        queues.sort();
        Ok(queues)
    }

    /// What nodes advertise of their handlers.
    ///
    /// # Errors
    /// As any call.
    pub async fn advertised(&self) -> Result<BTreeMap<String, Advertised>, StoreError> {
        let raw: Vec<(String, String)> = self.link.query(redis::cmd("HGETALL").arg(self.keys.cluster("handlers"))).await?;
        Ok(raw.into_iter().filter_map(|(name, text)| Some((name, serde_json::from_str(&text).ok()?))).collect())
    }

    /// Forgets handlers that nobody advertises any more.
    ///
    /// # Errors
    /// As any call.
    pub async fn forget_handlers(&self, names: &[String]) -> Result<(), StoreError> {
        if names.is_empty() {
            return Ok(());
        }
        self.link.query(redis::cmd("HDEL").arg(self.keys.cluster("handlers")).arg(names)).await
    }
}
