//! What `doctor` looks for and mends: damage from outside, such as evictions, hand-made deletions or an older dump.
//!
//! The only place that scans. Reading goes in pages and changes nothing; mending looks again inside a script.

use std::collections::HashSet;

use super::script::REPAIR;
use super::{Store, StoreError};

/// Damage of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The queue.
    pub queue: String,
    /// `index`, `state`, `unique`, `lost` or `owner`, as in `repair.lua`.
    pub kind: &'static str,
    /// For `index`: the set, `run:…` for one of claims.
    pub name: String,
    /// Ids, keys or incarnations.
    pub ids: Vec<String>,
}

const PAGE: usize = 500;

impl Store {
    /// Looks through one queue. Jobs that move while it looks may be named; mending looks again.
    ///
    /// # Errors
    /// As any call.
    pub async fn examine(&self, queue: &str) -> Result<Vec<Damage>, StoreError> {
        let mut found = Vec::new();
        let mut add = |kind, name: &str, ids: Vec<String>| {
            if !ids.is_empty() {
                found.push(Damage { queue: queue.to_owned(), kind, name: name.to_owned(), ids });
            }
        };
        let mut placed: HashSet<String> = HashSet::new();
        for set in ["scheduled", "retrying", "succeeded", "dead", "cancelled", "held"] {
            let mut missing = Vec::new();
            let mut from = 0_usize;
            loop {
                let mut command = redis::cmd("ZRANGE");
                command.arg(self.keys.queue(queue, set)).arg(from).arg(from + PAGE - 1);
                let ids: Vec<String> = self.link.query(&command).await?;
                for (id, there) in ids.iter().zip(self.bodies_exist(queue, &ids).await?) {
                    placed.insert(id.clone());
                    if !there {
                        missing.push(id.clone());
                    }
                }
                if ids.len() < PAGE {
                    break;
                }
                from += PAGE;
            }
            add("index", set, missing);
        }
        for list in ["r0", "r1", "r2", "r3", "suspects"] {
            let entries: Vec<String> =
                self.link.query(redis::cmd("LRANGE").arg(self.keys.queue(queue, list)).arg(0).arg(-1)).await?;
            placed.extend(entries.iter().map(|entry| entry.split('#').next().unwrap_or(entry).to_owned()));
        }
        let owners: HashSet<String> = self.owners(queue).await?.into_iter().map(|(owner, _)| owner).collect();
        let mut strays = HashSet::new();
        for (pattern, read) in [("run:", "SMEMBERS"), ("p:", "LRANGE")] {
            for key in self.scan(&self.keys.queue(queue, &format!("{pattern}*"))).await? {
                let mut command = redis::cmd(read);
                command.arg(&key);
                if read == "LRANGE" {
                    command.arg(0).arg(-1);
                }
                let ids: Vec<String> = self.link.query(&command).await?;
                placed.extend(ids.iter().map(|entry| entry.split('#').next().unwrap_or(entry).to_owned()));
                if pattern == "run:" {
                    let mut missing = Vec::new();
                    for page in ids.chunks(PAGE) {
                        let there = self.bodies_exist(queue, page).await?;
                        missing.extend(page.iter().zip(there).filter(|(_, there)| !there).map(|(id, _)| id.clone()));
                    }
                    add("index", &key[self.keys.queue(queue, "").len()..], missing);
                }
                let owner = key.rsplit_once(pattern).map_or("", |(_, owner)| owner).to_owned();
                if !owners.contains(&owner) {
                    strays.insert(owner);
                }
            }
        }
        add("owner", "", strays.into_iter().collect());
        let mut lost = Vec::new();
        for key in self.scan(&self.keys.queue(queue, "b:*")).await? {
            let ids: Vec<String> = self.link.query(redis::cmd("HKEYS").arg(&key)).await?;
            lost.extend(ids.into_iter().filter(|id| !placed.contains(id)));
        }
        add("lost", "", lost);
        let mut stateless = Vec::new();
        let states: Vec<String> = self.link.query(redis::cmd("HKEYS").arg(self.keys.queue(queue, "s"))).await?;
        for page in states.chunks(PAGE) {
            let there = self.bodies_exist(queue, page).await?;
            stateless.extend(page.iter().zip(there).filter(|(_, there)| !there).map(|(id, _)| id.clone()));
        }
        add("state", "", stateless);
        let prefix = self.keys.queue(queue, "u:");
        let mut free = Vec::new();
        for key in self.scan(&format!("{prefix}*")).await? {
            let holder: Option<String> = self.link.query(redis::cmd("GET").arg(&key)).await?;
            if let Some(holder) = holder
                && !self.bodies_exist(queue, std::slice::from_ref(&holder)).await?.first().copied().unwrap_or(true)
            {
                free.push(key[prefix.len()..].to_owned());
            }
        }
        add("unique", "", free);
        Ok(found)
    }

    /// Mends what [`Store::examine`] found; returns how much of it was still damaged and is mended.
    ///
    /// # Errors
    /// As any call.
    pub async fn repair(&self, damage: &Damage) -> Result<u64, StoreError> {
        let mut mended = 0;
        for page in damage.ids.chunks(PAGE) {
            let fill = |command: &mut redis::Cmd| {
                command.arg(damage.kind).arg(&damage.name).arg(page);
            };
            mended += REPAIR.run::<u64>(&self.link, &self.keys.queue_tag(&damage.queue), &self.time(), fill).await?;
        }
        Ok(mended)
    }

    async fn bodies_exist(&self, queue: &str, ids: &[String]) -> Result<Vec<bool>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for id in ids {
            pipeline.cmd("HEXISTS").arg(self.keys.bucket(queue, id)).arg(id);
        }
        self.link.pipe(&pipeline).await
    }

    async fn scan(&self, pattern: &str) -> Result<Vec<String>, StoreError> {
        let mut keys = Vec::new();
        let mut cursor = 0_u64;
        loop {
            let mut command = redis::cmd("SCAN");
            command.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(PAGE);
            let (next, page): (u64, Vec<String>) = self.link.query(&command).await?;
            keys.extend(page);
            cursor = next;
            if cursor == 0 {
                return Ok(keys);
            }
        }
    }
}
