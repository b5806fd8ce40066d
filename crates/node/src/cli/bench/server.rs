//! What Redis counts: commands, reads, CPU time, memory. And removing keys by their prefix.
//!
//! Every command that the bench itself sends through here is counted, so that the difference of two snapshots can leave them out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use punctual_core::store::Store;

use super::measurement::Skip;

/// Sends one command for which the store has no function.
macro_rules! ask {
    ($store:expr, $answer:ty, $($word:expr),+ $(,)?) => {{
        let link = $store.link();
        let mut command = Default::default();
        // This crate has no Redis client with which to name the type of a command; the link's signature says it. Nothing is sent.
        let _ = || drop(link.query::<$answer>(&command));
        $(command.arg($word);)+
        link.query::<$answer>(&command).await
    }};
}

/// Asks over a connection of its own.
pub(super) struct Probe {
    store: Store,
    asked: AtomicU64,
}

/// What Redis has counted up to one moment.
pub(super) struct Snapshot {
    calls: BTreeMap<String, u64>,
    cpu_us: f64,
    reads: u64,
    /// Bytes in use.
    pub(super) memory: f64,
    /// Clients that are connected.
    pub(super) clients: u64,
    own: u64,
}

/// What happened between two snapshots, without the probe's own commands.
pub(super) struct Spent {
    /// Commands, those inside scripts included.
    pub(super) commands: f64,
    /// Script calls and blocking fetches: what clients sent, but for the few plain commands of beats and ticks.
    pub(super) requests: f64,
    /// Reads from sockets.
    pub(super) reads: f64,
    /// CPU time of the server.
    pub(super) cpu_us: f64,
}

impl Probe {
    pub(super) fn new(store: Store) -> Self {
        Self { store, asked: AtomicU64::new(0) }
    }

    /// Reads all counters.
    pub(super) async fn snapshot(&self) -> Result<Snapshot, Skip> {
        // This call is missing from its own answer and stands in the next one's.
        let own = self.asked.fetch_add(1, Ordering::Relaxed);
        let text = ask!(self.store, String, "INFO", "all")?;
        parse(&text, own).ok_or(Skip::from("this Redis does not tell its counters"))
    }

    /// A counter of a queue's totals.
    pub(super) async fn total(&self, queue: &str, name: &str) -> Result<u64, Skip> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let key = self.store.keys().queue(queue, "totals");
        Ok(ask!(self.store, Option<u64>, "HGET", key, name)?.unwrap_or(0))
    }

    /// How many jobs of a queue wait for their time.
    pub(super) async fn scheduled(&self, queue: &str) -> Result<u64, Skip> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(ask!(self.store, u64, "ZCARD", self.store.keys().queue(queue, "scheduled"))?)
    }

    /// Removes every key with this prefix, which holds no character that a pattern gives a meaning. Looks until it finds nothing:
    /// what a killed node had sent may arrive behind the first look.
    pub(super) async fn remove(&self, prefix: &str) -> Result<(), Skip> {
        while self.remove_once(prefix).await? > 0 {}
        Ok(())
    }

    async fn remove_once(&self, prefix: &str) -> Result<u64, Skip> {
        let (mut cursor, mut removed) = ("0".to_owned(), 0);
        loop {
            let (next, keys) =
                ask!(self.store, (String, Vec<String>), "SCAN", &cursor, "MATCH", format!("{prefix}*"), "COUNT", 1000)?;
            if !keys.is_empty() {
                removed += ask!(self.store, u64, "UNLINK", &keys)?;
            }
            if next == "0" {
                return Ok(removed);
            }
            cursor = next;
        }
    }
}

fn parse(text: &str, own: u64) -> Option<Snapshot> {
    let mut calls = BTreeMap::new();
    let mut plain = BTreeMap::new();
    for (key, value) in text.lines().filter_map(|line| line.trim_end().split_once(':')) {
        if let Some(command) = key.strip_prefix("cmdstat_") {
            let count = value.split(',').find_map(|part| part.strip_prefix("calls="))?;
            calls.insert(command.to_owned(), count.parse().ok()?);
        } else {
            plain.insert(key, value);
        }
    }
    let number = |key: &str| plain.get(key)?.parse::<f64>().ok();
    let whole = |key: &str| plain.get(key)?.parse::<u64>().ok();
    Some(Snapshot {
        calls,
        cpu_us: (number("used_cpu_user")? + number("used_cpu_sys")?) * 1e6,
        reads: whole("total_reads_processed").unwrap_or(0),
        memory: number("used_memory")?,
        clients: whole("connected_clients").unwrap_or(0),
        own,
    })
}

impl Snapshot {
    /// What was spent since an earlier snapshot of the same probe.
    pub(super) fn since(&self, before: &Self) -> Spent {
        let own = (self.own - before.own) as f64;
        let calls = |name: &str| self.calls.get(name).map_or(0, |now| now - before.calls.get(name).unwrap_or(&0)) as f64;
        Spent {
            commands: self.calls.keys().map(|name| calls(name)).sum::<f64>() - own,
            requests: ["evalsha", "eval", "brpoplpush", "blmove"].map(calls).iter().sum(),
            reads: self.reads.saturating_sub(before.reads) as f64 - own,
            cpu_us: self.cpu_us - before.cpu_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_leave_out_what_the_probe_asked_itself() {
        let text = |evalsha: u64, hget: u64, reads: u64| {
            format!(
                "# Stats\r\nused_cpu_user:1.5\r\nused_cpu_sys:0.5\r\nused_memory:10\r\ntotal_reads_processed:{reads}\r\n\
                 cmdstat_evalsha:calls={evalsha},usec=1\r\ncmdstat_hget:calls={hget},usec=1\r\n"
            )
        };
        let (before, after) = (parse(&text(5, 10, 7), 1).unwrap(), parse(&text(25, 40, 17), 3).unwrap());
        let spent = after.since(&before);
        assert_eq!((spent.commands, spent.requests, spent.reads, spent.cpu_us), (48.0, 20.0, 8.0, 0.0));
        assert!(parse("used_memory:1", 0).is_none());
    }
}
