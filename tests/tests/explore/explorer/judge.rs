//! What must hold after each step, and what must have come of a run at its end.

use std::collections::BTreeSet;
use std::hash::Hash as _;

use anyhow::{Context as _, Result, ensure};
use punctual_core::state::State;
use punctual_core::store::packed::FLAG_CANCEL;

use super::Explorer;
use crate::cluster::{NAMESPACE, QUEUE};
use crate::picture::Picture;

impl Explorer<'_> {
    /// Everything that must hold at any time.
    pub(super) fn look(&mut self) -> Result<()> {
        let found: Vec<String> = self.redis.server.ask(&["KEYS", &format!("{{{NAMESPACE}:{QUEUE}}}:*")])?;
        let (parts, questions) = Picture::questions(&self.keys, QUEUE, found)?;
        let answers = self.redis.server.ask_all(&questions)?;
        let after = Picture::of(&self.keys, QUEUE, &parts, answers)?;
        for id in after.bodies.keys() {
            let state = after.state(id);
            if state == Some(State::Running) {
                self.started.insert(id.clone());
            }
            // Brought back by a person it takes its key again.
            if self.before.state(id).is_some_and(State::is_final) && state.is_some_and(|state| !state.is_final()) {
                self.started.remove(id);
            }
        }
        after.check(&self.started)?;
        ensure!(after.token >= self.before.token, "the highest token sank");
        ensure!(after.fence >= self.before.fence, "the fence sank");
        let term: Option<String> = self.redis.server.ask(&["GET", &format!("{{{NAMESPACE}}}:term")])?;
        let term: u64 = term.as_deref().and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(0);
        ensure!(term >= self.term, "the term sank");
        self.term = term;
        for id in self.witness.accepted() {
            ensure!(after.bodies.contains_key(&id), "{id} was accepted and is lost");
        }
        for (id, packed) in &after.states {
            let (from, to) = (self.before.state(id), after.state(id));
            if let (Some(from), Some(to)) = (from, to) {
                ensure!(from == to || from.may_become(to), "{id} went from {from:?} to {to:?}");
            }
            if let Some(old) = self.before.states.get(id) {
                ensure!(packed.token >= old.token, "the token of {id} sank");
                let claimed = packed.state == State::Running && old.state != State::Running;
                ensure!(!claimed || packed.token > self.before.token, "{id} was claimed under an old token");
                ensure!(packed.crashes >= old.crashes || to == Some(State::Ready), "{id} forgot a crash");
                let cancelled = old.state == State::Running && old.flags & FLAG_CANCEL != 0;
                let lives_on = matches!(packed.state, State::Ready | State::Scheduled | State::Retrying);
                ensure!(!cancelled || !lives_on, "{id} was cancelled and goes on");
            }
            if packed.state == State::Running {
                let first_due_ms = after.record(id).map_or(0, |record| record.due_ms);
                let due_ms = if packed.due_ms > 0 { packed.due_ms } else { first_due_ms };
                ensure!(packed.start_ms >= due_ms, "{id} started {} ms early", due_ms - packed.start_ms);
                let held_back = self.before.paused && self.before.state(id) != Some(State::Running);
                ensure!(!held_back, "{id} started in a pause");
                let node = packed.node.clone().unwrap_or_default();
                let claim = (id.clone(), packed.token);
                if !self.claims.contains_key(&claim) {
                    let gone = self.before.owners.get(&node).is_some_and(|owner| owner.starts_with("gone"));
                    ensure!(!gone, "{node} is gone and claimed {id}");
                    self.claims.insert(claim, node);
                }
            }
        }
        let members: BTreeSet<String> =
            self.redis.server.ask::<BTreeSet<String>>(&["HKEYS", &format!("{{{NAMESPACE}}}:nodes")])?;
        for incarnation in self.members.difference(&members) {
            let beats = self.redis.expires_later(&self.keys.beat(incarnation));
            let left = beats && self.stopping.iter().any(|node| node.incarnation() == *incarnation);
            ensure!(!beats || left, "{incarnation} was declared dead and beats");
            // Who left in peace has settled or handed back everything: nothing of it may run twice.
            if !left {
                self.gone.insert(incarnation.clone());
            }
        }
        self.members = members;
        format!("{after:?}").hash(&mut self.hash);
        self.before = after;
        Ok(())
    }

    /// What must have come of it all.
    pub(super) fn verdict(&mut self) -> Result<()> {
        let runs = self.witness.runs();
        let crashed = self.witness.crashed();
        let stopped = |node: &String| self.stopping.iter().any(|one| one.incarnation() == *node);
        for ((id, token), node) in &self.claims {
            let began = runs.iter().any(|run| run.id == *id && run.token == *token);
            let excused = crashed.contains(node) || self.gone.contains(node) || stopped(node);
            ensure!(began || excused, "{node} claimed {id} under {token} and never began it");
        }
        for (id, packed) in &self.before.states {
            let done: Vec<_> = runs.iter().filter(|run| run.id == *id && run.done).collect();
            if packed.state == State::Succeeded {
                let current = done.iter().find(|run| run.token == packed.token);
                current
                    .with_context(|| format!("{id} succeeded by a claim under which nothing was done: {packed:?} {done:?}"))?;
            }
            for (first, _) in done.iter().zip(done.iter().skip(1)) {
                let excused = crashed.contains(&first.incarnation) || self.gone.contains(&first.incarnation);
                ensure!(excused, "{id} was done again although nothing had happened to {}: {done:?}", first.incarnation);
            }
        }
        self.say("end", &format!("{} jobs, {} runs", self.before.bodies.len(), runs.len()));
        Ok(())
    }
}
