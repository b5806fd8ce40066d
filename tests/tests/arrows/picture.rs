//! Everything that a queue holds, read in two round trips, and what must be true of it at any time.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use punctual_core::codec::{self, Record};
use punctual_core::job::{Priority, UniqueUntil};
use punctual_core::state::State;
use punctual_core::store::Keys;
use punctual_core::store::packed::{FLAG_HISTORY, FLAG_SUSPECT, Packed};
use redis::{Pipeline, Value};

/// A queue as it lies in Redis.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    pub bodies: BTreeMap<String, Vec<u8>>,
    pub states: BTreeMap<String, Packed>,
    /// Sorted sets by name.
    pub sets: BTreeMap<String, BTreeMap<String, u64>>,
    /// Ready lists, suspects and processing lists by name; the next to be taken stands last.
    pub lists: BTreeMap<String, Vec<String>>,
    /// Claimed ids by incarnation.
    pub runs: BTreeMap<String, BTreeSet<String>>,
    pub unique: BTreeMap<String, String>,
    pub owners: BTreeMap<String, String>,
    /// Which ids have a history, log lines, results or progress.
    pub extras: BTreeMap<&'static str, BTreeSet<String>>,
    pub token: u64,
    pub fence: u64,
    pub paused: bool,
    pub totals: BTreeMap<String, u64>,
}

const EXTRAS: [&str; 4] = ["h", "l", "results", "progress"];

impl Picture {
    /// How to read a queue: a question for each of its keys, and what each is about. Every key must be registered.
    pub fn questions(keys: &Keys, queue: &str, mut found: Vec<String>) -> Result<(Vec<String>, Pipeline)> {
        found.sort();
        let prefix = keys.queue(queue, "");
        let mut pipeline = redis::pipe();
        let mut parts = Vec::new();
        for key in &found {
            ensure!(keys.is_registered(key), "{key} is not in the registry");
            let part = key[prefix.len()..].to_owned();
            match part.split(':').next().unwrap_or_default() {
                "b" | "s" | "owners" | "results" | "progress" | "totals" => pipeline.cmd("HGETALL").arg(key),
                "r0" | "r1" | "r2" | "r3" | "suspects" | "p" | "h" | "l" => pipeline.cmd("LRANGE").arg(key).arg(0).arg(-1),
                "run" => pipeline.cmd("SMEMBERS").arg(key),
                "u" | "d" | "rc" | "fence" | "token" | "paused" => pipeline.cmd("GET").arg(key),
                _ => pipeline.cmd("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES"),
            };
            parts.push(part);
        }
        Ok((parts, pipeline))
    }

    /// Puts the answers together.
    pub fn of(keys: &Keys, queue: &str, parts: &[String], answers: Vec<Value>) -> Result<Self> {
        let mut picture = Self::default();
        for extra in EXTRAS {
            picture.extras.insert(extra, BTreeSet::new());
        }
        for (part, value) in parts.iter().zip(answers) {
            picture.add(keys, queue, part, value).with_context(|| part.clone())?;
        }
        Ok(picture)
    }

    fn add(&mut self, keys: &Keys, queue: &str, part: &str, value: Value) -> Result<()> {
        let (kind, name) = part.split_once(':').unwrap_or((part, ""));
        match kind {
            "b" => {
                for (id, body) in redis::from_redis_value::<Vec<(String, Vec<u8>)>>(value)? {
                    ensure!(keys.bucket(queue, &id) == keys.queue(queue, part), "{id} is in a wrong bucket");
                    self.bodies.insert(id, body);
                }
            }
            "s" => {
                for (id, text) in redis::from_redis_value::<Vec<(String, Vec<u8>)>>(value)? {
                    let packed = Packed::parse(&text).with_context(|| format!("{id}: {}", String::from_utf8_lossy(&text)))?;
                    self.states.insert(id, packed);
                }
            }
            "owners" => self.owners = redis::from_redis_value(value)?,
            "totals" => self.totals = redis::from_redis_value(value)?,
            "results" | "progress" => {
                let ids: BTreeMap<String, String> = redis::from_redis_value(value)?;
                self.extras.entry(if kind == "results" { "results" } else { "progress" }).or_default().extend(ids.into_keys());
            }
            "h" | "l" => {
                self.extras.entry(if kind == "h" { "h" } else { "l" }).or_default().insert(name.to_owned());
            }
            "r0" | "r1" | "r2" | "r3" | "suspects" | "p" => {
                self.lists.insert(part.to_owned(), redis::from_redis_value(value)?);
            }
            "run" => {
                self.runs.insert(name.to_owned(), redis::from_redis_value(value)?);
            }
            "u" => {
                self.unique.insert(name.to_owned(), redis::from_redis_value(value)?);
            }
            "token" => self.token = redis::from_redis_value::<String>(value)?.parse()?,
            "fence" => self.fence = redis::from_redis_value::<String>(value)?.parse()?,
            "paused" => self.paused = true,
            "d" | "rc" => {}
            set => {
                let members: Vec<(String, f64)> = redis::from_redis_value(value)?;
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole milliseconds")]
                let members = members.into_iter().map(|(id, score)| (id, score as u64)).collect();
                self.sets.insert(set.to_owned(), members);
            }
        }
        Ok(())
    }

    /// Where a job stands; `None` when there is none.
    pub fn state(&self, id: &str) -> Option<State> {
        self.bodies.get(id)?;
        if let Some(packed) = self.states.get(id) {
            return Some(packed.state);
        }
        let scheduled = self.sets.get("scheduled").is_some_and(|set| set.contains_key(id));
        Some(if scheduled { State::Scheduled } else { State::Ready })
    }

    /// Whether the job may still run by itself or by a person's release.
    pub fn is_living(&self, id: &str) -> bool {
        self.state(id).is_some_and(|state| !state.is_final())
    }

    pub fn record(&self, id: &str) -> Option<Record> {
        codec::decode(self.bodies.get(id)?).ok()
    }

    /// The entry that stands for the job in a ready list.
    fn entry(&self, id: &str) -> String {
        let body = &self.bodies[id];
        let stamp = if body[3] == b'+' {
            let text = String::from_utf8_lossy(&body[16..]).into_owned();
            text.split(' ').next().unwrap_or("0").to_owned()
        } else {
            "0".to_owned()
        };
        if stamp == "0" { id.to_owned() } else { format!("{id}#{stamp}") }
    }

    /// In which lists the job's present entry lies, each as often as it lies there.
    pub fn places(&self, id: &str) -> Vec<&str> {
        let entry = self.entry(id);
        let count = |list: &Vec<String>| list.iter().filter(|one| **one == entry).count();
        self.lists.iter().flat_map(|(name, list)| std::iter::repeat_n(name.as_str(), count(list))).collect()
    }

    /// Jobs that a claim without suspects would find: in the bands, or fetched by this incarnation.
    pub fn claimable(&self, node: &str) -> usize {
        let own = format!("p:{node}");
        let there = |place: &str| place.starts_with('r') || place == own;
        self.bodies
            .keys()
            .filter(|id| self.state(id) == Some(State::Ready) && self.places(id).iter().any(|one| there(one)))
            .count()
    }

    /// What must be true at any time. `started` = jobs whose key is free because they have been claimed.
    pub fn check(&self, started: &BTreeSet<String>) -> Result<()> {
        for id in self.bodies.keys() {
            self.check_job(id).with_context(|| format!("job {id}, {:?}", self.states.get(id)))?;
        }
        for (what, ids) in self.indexed() {
            for id in ids {
                ensure!(self.bodies.contains_key(id), "{what} names {id}, which has no record");
            }
        }
        for (node, ids) in &self.runs {
            for id in ids {
                let claimed = self
                    .states
                    .get(id)
                    .is_some_and(|packed| packed.node.as_deref() == Some(node) && packed.state == State::Running);
                ensure!(claimed, "run:{node} names {id}, which does not run there");
            }
            ensure!(self.owners.contains_key(node), "run:{node} has no owner");
        }
        for name in self.lists.keys() {
            let owner = name.strip_prefix("p:");
            ensure!(owner.is_none_or(|owner| self.owners.contains_key(owner)), "{name} has no owner");
        }
        for (name, list) in &self.lists {
            let bells = list.iter().filter(|entry| *entry == "!").count();
            let most = usize::from(name == "r2" || name.starts_with("p:"));
            ensure!(bells <= most || name.starts_with("p:"), "{bells} bells in {name}");
        }
        self.check_keys(started)
    }

    fn indexed(&self) -> Vec<(String, Vec<&String>)> {
        let mut all: Vec<(String, Vec<&String>)> = vec![("s".to_owned(), self.states.keys().collect())];
        all.extend(self.sets.iter().map(|(name, set)| (name.clone(), set.keys().collect())));
        all.extend(self.runs.iter().map(|(name, set)| (format!("run:{name}"), set.iter().collect())));
        all.extend(self.extras.iter().map(|(name, set)| ((*name).to_owned(), set.iter().collect())));
        all
    }

    fn check_job(&self, id: &str) -> Result<()> {
        let state = self.state(id).context("no state")?;
        let packed = self.states.get(id);
        let record = self.record(id).context("unreadable")?;
        // In exactly the one index of its state, with the time that its record tells.
        for (name, set) in &self.sets {
            let score = set.get(id);
            ensure!(
                score.is_some() == (name == state.word()),
                "{state:?} and {} in {name}",
                if score.is_some() { "is" } else { "is not" }
            );
            if let Some(score) = score {
                let due = packed.map_or(record.due_ms, |packed| if packed.due_ms > 0 { packed.due_ms } else { record.due_ms });
                let ended = packed.and_then(|packed| packed.ended_ms);
                let expected = if matches!(state, State::Scheduled | State::Retrying) { Some(due) } else { ended };
                ensure!(Some(*score) == expected, "{name} says {score}, its record {expected:?}");
            }
        }
        ensure!(
            matches!(state, State::Ready | State::Running) || self.sets.get(state.word()).is_some_and(|set| set.contains_key(id)),
            "in no index"
        );
        let runs: Vec<&String> = self.runs.iter().filter(|(_, ids)| ids.contains(id)).map(|(node, _)| node).collect();
        let node = packed.and_then(|packed| packed.node.as_ref()).filter(|_| state == State::Running);
        ensure!(runs == node.into_iter().collect::<Vec<_>>(), "runs on {runs:?}");
        // A present entry in exactly one list while it is ready; an older one may lie anywhere.
        let places = self.places(id);
        let suspect = packed.is_some_and(|packed| packed.flags & FLAG_SUSPECT != 0);
        if state == State::Ready {
            ensure!(places.len() == 1, "its entry lies in {places:?}");
            let band = format!("r{}", record.priority.band());
            let fetched = record.priority == Priority::Normal && places[0].starts_with("p:");
            let expected = if suspect { "suspects" } else { &band };
            ensure!(places[0] == expected || (fetched && !suspect), "its entry lies in {places:?} instead of {expected}");
        } else if state != State::Cancelled {
            ensure!(places.is_empty(), "an entry lies in {places:?}");
        } else {
            ensure!(places.len() <= 1, "entries lie in {places:?}");
        }
        let history = packed.is_some_and(|packed| packed.flags & FLAG_HISTORY != 0);
        ensure!(history == self.extras["h"].contains(id), "a history that its state does not know, or none");
        if let Some(packed) = packed {
            ensure!(
                packed.ended_ms.is_some() == (state.is_final() || state == State::Held),
                "when it ended: {:?}",
                packed.ended_ms
            );
            ensure!(state != State::Running || packed.attempt >= 1, "runs without an attempt");
            ensure!(packed.token <= self.token + 10, "a token that was never given");
        }
        Ok(())
    }

    fn check_keys(&self, started: &BTreeSet<String>) -> Result<()> {
        let mut expected = BTreeMap::new();
        for id in self.bodies.keys().filter(|id| self.is_living(id)) {
            let Some(unique) = self.record(id).and_then(|record| record.unique) else { continue };
            if unique.until == UniqueUntil::Finished || !started.contains(id) {
                let other = expected.insert(unique.key.clone(), id.clone());
                ensure!(other.is_none(), "{id} and {other:?} should both hold {}", unique.key);
            }
        }
        ensure!(self.unique == expected, "keys {:?}, living holders {expected:?}", self.unique);
        Ok(())
    }
}
