//! Random arrows, and after each: every job is in exactly one place, its record agrees, and nothing else changed.
//!
//! Answers are compared with what the queue held before. The seeds are printed; `PUNCTUAL_SEED` repeats a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use punctual_core::config::Retention;
use punctual_core::job::{Due, Late, NewJob, Priority, Unique, UniqueUntil, new_id};
use punctual_core::state::{AttemptOutcome, Move, State};
use punctual_core::store::cancel::Acted;
use punctual_core::store::claim::{ClaimRequest, Claimed};
use punctual_core::store::edit::Edited;
use punctual_core::store::enqueue::{CallId, Enqueued};
use punctual_core::store::promote::Promoted;
use punctual_core::store::reap::{CrashPolicy, Reaped};
use punctual_core::store::requeue::Requeue;
use punctual_core::store::settle::{Settled, Settlement};
use punctual_tests::{RedisServer, Seed};
use tokio::task::JoinSet;

use crate::picture::Picture;
use crate::table::{Bench, Q, TERM, done, drop_all, keep, own, to};

const SEEDS: u64 = 30;
const STEPS: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_arrows_keep_every_job_in_exactly_one_place() {
    let first = Seed::from_env_or_random().0;
    // A server of its own: each step lists all keys.
    let server = RedisServer::start().await.unwrap();
    let mut running = JoinSet::new();
    for seed in (0..SEEDS).map(|n| first.wrapping_add(n)) {
        let bench = Bench::on(&server).await;
        running.spawn(async move {
            let mut model = Model::new(bench, Rng::with_seed(seed));
            for step in 0..STEPS {
                if let Err(error) = model.step().await {
                    let log = model.log[model.log.len().saturating_sub(40)..].join("\n  ");
                    panic!("PUNCTUAL_SEED={seed}, step {step}: {error:#}\nThe last arrows:\n  {log}");
                }
            }
            model.seen
        });
    }
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    while let Some(ended) = running.join_next().await {
        for (arrow, count) in ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())) {
            *seen.entry(arrow).or_default() += count;
        }
    }
    // Random does not mean rare: each arrow was taken many times.
    println!("{seen:#?}");
    for from in State::ALL {
        for to in State::ALL.into_iter().filter(|to| from.may_become(*to) && from != *to) {
            let arrow = format!("{} -> {}", from.word(), to.word());
            // A retry by hand is due at once; these need a person's reschedule of an ended job, which no command offers.
            let offered = !(from.is_final() && to == State::Scheduled || from == State::Retrying && to == State::Held);
            assert_eq!(seen.contains_key(&arrow), offered, "{arrow} in {SEEDS} runs");
        }
    }
}

#[derive(Clone)]
struct Node {
    name: String,
    number: u64,
    held: Vec<(String, u64)>,
    last: Option<(ClaimRequestCopy, Vec<String>)>,
}

#[derive(Clone, Debug)]
struct ClaimRequestCopy {
    number: u64,
    slots: usize,
    shares: [usize; 4],
    suspects: bool,
}

struct Model {
    bench: Bench,
    rng: Rng,
    now_us: u64,
    term: u64,
    nodes: Vec<Node>,
    /// Declared dead: they may wake up and try things.
    zombies: Vec<Node>,
    born: usize,
    /// Jobs of `unique until started` that have started since they last took their key.
    started: BTreeSet<String>,
    calls: Vec<(CallId, Vec<NewJob>, Vec<Enqueued>)>,
    before: Picture,
    log: Vec<String>,
    seen: BTreeMap<String, usize>,
}

/// Which changes of place an arrow may make, `None` = no such job.
type Allowed = fn(Option<State>, Option<State>) -> bool;

fn nothing(_: Option<State>, _: Option<State>) -> bool {
    false
}

fn trimmed(from: Option<State>, to: Option<State>) -> bool {
    from.is_some_and(State::is_final) && to.is_none()
}

impl Model {
    fn new(bench: Bench, rng: Rng) -> Self {
        Self {
            now_us: bench.now_us(),
            bench,
            rng,
            term: TERM,
            nodes: Vec::new(),
            zombies: Vec::new(),
            born: 0,
            started: BTreeSet::new(),
            calls: Vec::new(),
            before: Picture::default(),
            log: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    async fn step(&mut self) -> Result<()> {
        self.pass_time();
        while self.nodes.len() < 3 {
            self.born += 1;
            let name = format!("n{}", self.born);
            self.bench.join(&name).await;
            self.before.owners.insert(name.clone(), "0 0".to_owned());
            self.nodes.push(Node { name, number: 1, held: Vec::new(), last: None });
        }
        let (touched, allowed): (Option<BTreeSet<String>>, Allowed) = match self.rng.u8(0..100) {
            0..18 => self.enqueue().await?,
            18..20 => self.resend().await?,
            20..30 => self.promote().await?,
            30..48 => self.claim().await?,
            48..68 => self.settle().await?,
            68..71 => self.zombie_settles().await?,
            71..74 => self.die().await?,
            74..76 => self.note().await?,
            76..79 => self.cancel().await?,
            79..87 => self.requeue().await?,
            87..89 => self.edit().await?,
            89..91 => self.delete().await?,
            91..94 => self.pause_or_resume().await?,
            94..95 => self.trim().await?,
            95..96 => self.leave().await?,
            96..98 => self.fetch().await?,
            98..99 => self.look().await?,
            _ => self.reap_again().await?,
        };
        let after = self.picture().await?;
        self.started.retain(|id| after.bodies.contains_key(id));
        after.check(&self.started)?;
        self.compare(&after, touched.as_ref(), allowed)?;
        self.before = after;
        Ok(())
    }

    /// The whole queue, in two round trips; its server holds little else.
    async fn picture(&self) -> Result<Picture> {
        let mut command = redis::cmd("KEYS");
        command.arg(format!("{{{}:{Q}}}:*", self.bench.ns));
        let keys = self.bench.store.keys();
        let (parts, questions) = Picture::questions(keys, Q, self.bench.command(&command).await)?;
        let answers = if parts.is_empty() { Vec::new() } else { self.bench.pipe(&questions).await };
        Picture::of(keys, Q, &parts, answers)
    }

    fn pass_time(&mut self) {
        let step_us = match self.rng.u8(0..20) {
            // A script takes longer than this, so no two of them see the same instant; stamps rely on it.
            0..8 => 1,
            8..15 => self.rng.u64(0..3_000_000),
            15..18 => self.rng.u64(0..60_000_000),
            18 => 400_000_000,
            // A failover to a server whose clock is behind.
            _ => {
                self.now_us -= self.rng.u64(0..5_000_000);
                0
            }
        };
        self.now_us += step_us;
        self.bench.at_instant_us(self.now_us);
    }

    fn say(&mut self, what: impl Debug) {
        self.log.push(format!("{} {what:?}", self.now_us));
    }

    /// Nothing but the touched jobs changed, and those by arrows that the state machine knows.
    fn compare(&mut self, after: &Picture, touched: Option<&BTreeSet<String>>, allowed: Allowed) -> Result<()> {
        ensure!(after.token >= self.before.token, "the highest token sank");
        ensure!(after.fence >= self.before.fence, "the fence sank");
        let ids: BTreeSet<&String> = self.before.bodies.keys().chain(after.bodies.keys()).collect();
        for id in ids {
            let (from, to) = (self.before.state(id), after.state(id));
            let mine = touched.is_none_or(|touched| touched.contains(id)) && allowed(from, to);
            if from == to {
                let same =
                    self.before.states.get(id) == after.states.get(id) && self.before.bodies.get(id) == after.bodies.get(id);
                ensure!(same || touched.is_none_or(|touched| touched.contains(id)), "{id} was changed by the way");
            } else {
                // Settles of others remove ended jobs by count.
                ensure!(mine || (trimmed(from, to) && allowed(from, to)), "{id} went from {from:?} to {to:?}");
                if let (Some(from), Some(to)) = (from, to) {
                    ensure!(from.may_become(to), "{id} went from {from:?} to {to:?}, which is no arrow");
                    *self.seen.entry(format!("{} -> {}", from.word(), to.word())).or_default() += 1;
                }
            }
            if let (Some(old), Some(new)) = (self.before.states.get(id), after.states.get(id)) {
                ensure!(new.token >= old.token, "the token of {id} sank");
                let claimed = new.state == State::Running && old.state != State::Running;
                ensure!(!claimed || new.token > self.before.token, "{id} was claimed under an old token");
            }
        }
        Ok(())
    }

    fn pick(&mut self, filter: impl Fn(State) -> bool) -> Option<String> {
        let ids: Vec<String> =
            self.before.bodies.keys().filter(|id| self.before.state(id).is_some_and(&filter)).cloned().collect();
        self.rng.choice(ids)
    }

    /// Mostly jobs that exist, sometimes a stranger.
    fn some_ids(&mut self, most: usize) -> Vec<String> {
        let count = self.rng.usize(1..=most);
        let mut ids: BTreeSet<String> = (0..count).filter_map(|_| self.pick(|_| true)).collect();
        if self.rng.u8(0..8) == 0 {
            ids.insert("no-such-job".to_owned());
        }
        ids.into_iter().collect()
    }

    fn some_job(&mut self) -> NewJob {
        let rng = &mut self.rng;
        let id = match rng.u8(0..10) {
            0..3 => format!("own-{}", rng.u8(0..4)),
            _ => new_id(),
        };
        let due = match rng.u8(0..6) {
            0..3 => Due::Now,
            3 => Due::In(rng.u64(0..5_000)),
            4 => Due::At((self.now_us / 1000).saturating_add_signed(rng.i64(-10_000..60_000))),
            _ => Due::In(rng.u64(0..100_000)),
        };
        let until = if rng.bool() { UniqueUntil::Started } else { UniqueUntil::Finished };
        let unique = (rng.u8(0..3) == 0).then(|| Unique { key: format!("key {}", rng.u8(0..4)), until });
        let late = *rng.choice(&[Late::Run, Late::Run, Late::Skip, Late::Hold]).expect("not empty");
        let grace_ms = if rng.bool() { 0 } else { 3000 };
        let priority = *rng.choice(&Priority::ALL).expect("not empty");
        NewJob { id, due, priority, late, grace_ms, unique, ..own("x") }
    }

    async fn enqueue(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let count = self.rng.usize(1..6);
        let jobs: Vec<NewJob> = (0..count).map(|_| self.some_job()).collect();
        let call = CallId::fresh();
        let answers = self.bench.store.enqueue(&call, Q, &jobs).await?;
        self.say(("enqueue", jobs.iter().map(|job| (&job.id, job.due, &job.unique)).collect::<Vec<_>>(), &answers));
        let mut stored: BTreeMap<String, &NewJob> = BTreeMap::new();
        let now_ms = self.now_us / 1000;
        for (job, answer) in jobs.iter().zip(&answers) {
            let mut twin = (self.before.bodies.contains_key(&job.id) || stored.contains_key(&job.id)).then(|| job.id.clone());
            if let (None, Some(unique)) = (&twin, &job.unique) {
                let held = self.before.unique.get(&unique.key).filter(|holder| self.before.is_living(holder)).cloned();
                let here = stored.values().find(|other| other.unique.as_ref().is_some_and(|other| other.key == unique.key));
                twin = held.or_else(|| here.map(|other| other.id.clone()));
            }
            let due_ms = match job.due {
                Due::Now => now_ms,
                Due::In(ms) => now_ms + ms,
                Due::At(ms) if job.late == Late::Run => ms.max(now_ms),
                Due::At(ms) => ms,
            };
            // What is late already and minds is left to the promoter.
            let state = if due_ms == now_ms { State::Ready } else { State::Scheduled };
            let expected = twin.map_or(Enqueued::Stored { state, due_ms }, Enqueued::Duplicate);
            ensure!(*answer == expected, "{} answered {answer:?} instead of {expected:?}", job.id);
            if matches!(answer, Enqueued::Stored { .. }) {
                stored.insert(job.id.clone(), job);
                self.started.remove(&job.id);
            }
        }
        let touched = stored.into_keys().collect();
        self.calls.push((call, jobs, answers));
        Ok((Some(touched), |from, to| from.is_none() && matches!(to, Some(State::Ready | State::Scheduled))))
    }

    async fn resend(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        // Receipts live for 10 s: only the last calls are that young for sure.
        if let Some((call, jobs, answers)) = self.calls.last() {
            let again = self.bench.store.enqueue(call, Q, jobs).await?;
            ensure!(again == *answers, "resent: {again:?} instead of {answers:?}");
            self.say("resend");
        }
        Ok((Some(BTreeSet::new()), nothing))
    }

    async fn promote(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let now_ms = self.now_us / 1000;
        let due = |set: &str| -> Vec<String> {
            self.before.sets.get(set).into_iter().flatten().filter(|(_, at)| **at <= now_ms).map(|(id, _)| id.clone()).collect()
        };
        let all: BTreeSet<String> = due("scheduled").into_iter().chain(due("retrying")).collect();
        let (mut term, limit) = (self.term, if self.rng.u8(0..4) == 0 { 2 } else { 500 });
        match self.rng.u8(0..6) {
            0 => term -= self.rng.u64(1..4),
            1 => {
                self.term += 1;
                term = self.term;
            }
            _ => {}
        }
        let answer = self.bench.store.promote(Q, term, limit).await?;
        self.say(("promote", term, limit, &answer));
        if term < self.before.fence {
            ensure!(answer == Promoted::Fenced(self.before.fence), "not fenced");
            return Ok((Some(BTreeSet::new()), nothing));
        }
        let Promoted::Moved { lateness_ms, late, phantoms, next_due_ms, .. } = answer else { anyhow::bail!("fenced") };
        let moved = lateness_ms.len() + usize::try_from(late)?;
        ensure!(moved == all.len().min(limit) && phantoms == 0, "moved {moved} of {} due", all.len());
        ensure!(moved < all.len() || next_due_ms.is_none_or(|next| next > now_ms), "left something due");
        Ok((Some(all), |from, to| {
            matches!(from, Some(State::Scheduled | State::Retrying)) && matches!(to, Some(State::Ready))
                || from == Some(State::Scheduled) && matches!(to, Some(State::Cancelled | State::Held))
        }))
    }

    async fn claim(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let at = self.rng.usize(0..self.nodes.len());
        let mut node = self.nodes[at].clone();
        let kind = self.rng.u8(0..10);
        let request = match &node.last {
            // The reply was lost: the same number once more.
            Some((last, _)) if kind == 0 => last.clone(),
            _ => ClaimRequestCopy {
                number: if kind == 1 { node.number.saturating_sub(2) } else { node.number },
                slots: self.rng.usize(0..6),
                shares: [self.rng.usize(0..3), self.rng.usize(0..3), self.rng.usize(0..3), self.rng.usize(0..3)],
                suspects: self.rng.bool(),
            },
        };
        let ClaimRequestCopy { number, slots, shares, suspects } = request;
        let answer =
            self.bench.store.claim(&ClaimRequest { queue: Q, incarnation: &node.name, number, slots, shares, suspects }).await?;
        let told = match &answer {
            Claimed::Jobs { token, left, dropped, jobs, .. } => {
                format!("{token} left {left} dropped {dropped} {:?}", jobs.iter().map(|job| &job.id).collect::<Vec<_>>())
            }
            other => format!("{other:?}"),
        };
        self.say(("claim", &node.name, number, slots, shares, suspects, told));
        let last = node.last.as_ref().map_or(0, |(last, _)| last.number);
        let mut touched = BTreeSet::new();
        match answer {
            Claimed::Gone => anyhow::bail!("a living owner is gone"),
            Claimed::Old => ensure!(number < last, "{number} is not older than {last}"),
            Claimed::Paused => ensure!(self.before.paused && number >= last, "paused"),
            Claimed::Jobs { token, jobs, dropped, .. } => {
                ensure!(number >= last, "an old claim was answered");
                let ids: Vec<String> = jobs.iter().map(|job| job.id.clone()).collect();
                if number == last && number > 0 {
                    let still: BTreeSet<&String> = node
                        .held
                        .iter()
                        .filter(|(id, held)| {
                            let state = self.before.states.get(id);
                            *held == token && state.is_some_and(|state| state.state == State::Running && state.token == token)
                        })
                        .map(|(id, _)| id)
                        .collect();
                    let first: BTreeSet<&String> = node.last.iter().flat_map(|(_, ids)| ids).collect();
                    ensure!(
                        ids.iter().collect::<BTreeSet<_>>() == still.intersection(&first).copied().collect(),
                        "repeated: {ids:?}"
                    );
                } else {
                    ensure!(!self.before.paused, "claimed while paused");
                    ensure!(ids.len() <= slots, "{} jobs for {slots} slots", ids.len());
                    let there = self.before.claimable(&node.name);
                    ensure!(dropped > 0 || ids.len() >= there.min(slots), "{} jobs of {there} for {slots} slots", ids.len());
                    for job in &jobs {
                        ensure!(self.before.state(&job.id) == Some(State::Ready), "{} was not ready", job.id);
                        ensure!(job.packed.token == token && self.before.bodies[&job.id] == job.body, "{}", job.id);
                        self.started.insert(job.id.clone());
                    }
                    node.held.extend(ids.iter().map(|id| (id.clone(), token)));
                    node.last = Some((request, ids.clone()));
                    node.number = number + 1;
                    touched = ids.into_iter().collect();
                }
            }
        }
        self.nodes[at] = node;
        Ok((Some(touched), |from, to| from == Some(State::Ready) && to == Some(State::Running)))
    }

    fn some_move(&mut self) -> Move {
        let delay = Duration::from_millis(self.rng.u64(0..20_000));
        let text = "it broke: twice\nthen again".to_owned();
        let unroutable = Move { delay, outcome: None, ..to(State::Scheduled, AttemptOutcome::Snoozed) };
        let ends = [
            done(),
            Move { result: Some("{}".to_owned()), ..done() },
            Move { delay, text: text.clone(), ..to(State::Retrying, AttemptOutcome::Failed) },
            Move { delay, text: text.clone(), ..to(State::Retrying, AttemptOutcome::TimedOut) },
            Move { text: text.clone(), ..to(State::Dead, AttemptOutcome::Panicked) },
            Move { text: "deadline".to_owned(), outcome: None, ..to(State::Dead, AttemptOutcome::Failed) },
            Move { text, ..to(State::Cancelled, AttemptOutcome::Cancelled) },
            Move { delay, ..to(State::Scheduled, AttemptOutcome::Snoozed) },
            unroutable,
            to(State::Ready, AttemptOutcome::HandedBack),
        ];
        self.rng.choice(ends).expect("not empty")
    }

    fn some_retention(&mut self) -> Retention {
        match self.rng.u8(0..5) {
            0 => drop_all(),
            1 => Retention { succeeded_max: 3, dead_max: 3, ..keep() },
            2 => Retention { succeeded: Duration::from_secs(10), dead: Duration::from_secs(10), ..keep() },
            _ => keep(),
        }
    }

    async fn settle(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let at = self.rng.usize(0..self.nodes.len());
        let mut node = self.nodes[at].clone();
        let result = self.settle_as(&mut node).await;
        self.nodes[at] = node;
        result
    }

    async fn zombie_settles(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let Some(at) = (!self.zombies.is_empty()).then(|| self.rng.usize(0..self.zombies.len())) else {
            return Ok((Some(BTreeSet::new()), nothing));
        };
        let mut node = self.zombies[at].clone();
        if self.before.owners.get(&node.name).is_none_or(|owner| owner.starts_with("gone")) {
            let slots = self.rng.usize(0..3);
            ensure!(self.bench.claim(&node.name, node.number, slots).await == Claimed::Gone, "a dead node claimed");
        }
        let result = self.settle_as(&mut node).await;
        self.zombies[at] = node;
        result
    }

    async fn settle_as(&mut self, node: &mut Node) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let mut ends: BTreeMap<String, u64> = BTreeMap::new();
        for _ in 0..self.rng.usize(1..5) {
            let Some((id, mut token)) = self.rng.choice(node.held.clone()) else { break };
            if self.rng.u8(0..10) == 0 {
                token = token.wrapping_add_signed(self.rng.i64(-1..=1));
            }
            ends.insert(id, token);
        }
        let retention = self.some_retention();
        let settlements: Vec<Settlement> =
            ends.into_iter().map(|(id, token)| Settlement { id, token, to: self.some_move() }).collect();
        if settlements.is_empty() {
            return Ok((Some(BTreeSet::new()), nothing));
        }
        let (_, answers) = self.bench.store.settle(Q, &node.name, &retention, &settlements).await?;
        let told: Vec<_> = settlements
            .iter()
            .zip(&answers)
            .map(|(one, answer)| (&one.id, one.token, one.to.to, one.to.outcome, answer))
            .collect();
        self.log.push(format!("{} settle {} {told:?}", self.now_us, node.name));
        let mut touched = BTreeSet::new();
        for (settlement, answer) in settlements.iter().zip(answers) {
            let state = self.before.states.get(&settlement.id);
            let expected = match state {
                None => Settled::Gone,
                Some(state) if state.token != settlement.token || state.node.as_deref() != Some(&node.name) => Settled::Stale,
                Some(state) if state.state == State::Running => Settled::Done,
                Some(_) => Settled::DoneBefore,
            };
            ensure!(answer == expected, "{} answered {answer:?} instead of {expected:?}", settlement.id);
            if answer == Settled::Done {
                touched.insert(settlement.id.clone());
            }
            // Some are kept, to be sent again later.
            if answer != Settled::Stale && self.rng.bool() {
                node.held.retain(|(id, _)| *id != settlement.id);
            }
        }
        Ok((Some(touched), |from, to| from == Some(State::Running) || trimmed(from, to)))
    }

    async fn die(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let at = self.rng.usize(0..self.nodes.len());
        let node = self.nodes.swap_remove(at);
        let result = self.reap(&node.name).await;
        self.zombies.push(node);
        result
    }

    async fn reap_again(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let names: Vec<String> = self.zombies.iter().map(|node| node.name.clone()).collect();
        let Some(name) = self.rng.choice(names) else { return Ok((Some(BTreeSet::new()), nothing)) };
        if self.rng.bool() {
            self.bench.store.leave(Q, &name, Duration::from_secs(3600)).await?;
        }
        self.reap(&name).await
    }

    async fn reap(&mut self, name: &str) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let running: BTreeSet<String> = self.before.runs.get(name).cloned().unwrap_or_default();
        let entries =
            self.before.lists.get(&format!("p:{name}")).map_or(0, |list| list.iter().filter(|entry| *entry != "!").count());
        let term = if self.rng.u8(0..6) == 0 { self.term - self.rng.u64(1..4) } else { self.term };
        let reaped = self.bench.store.reap(Q, name, term, &CrashPolicy::new(3)).await?;
        self.say(("reap", name, term, &reaped));
        if term < self.before.fence {
            ensure!(reaped == Reaped { fenced: true, ..Reaped::default() }, "not fenced");
            return Ok((Some(BTreeSet::new()), nothing));
        }
        ensure!(!reaped.fenced, "fenced");
        let taken = usize::try_from(reaped.requeued + reaped.buried)?;
        ensure!(taken <= running.len() && !reaped.more, "took {taken} of {}", running.len());
        let known = self.before.owners.contains_key(name);
        ensure!(usize::try_from(reaped.unclaimed)? == if known { entries } else { 0 }, "{entries} entries");
        Ok((Some(running), |from, to| {
            from == Some(State::Running) && matches!(to, Some(State::Ready | State::Retrying | State::Dead | State::Cancelled))
        }))
    }

    async fn note(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let at = self.rng.usize(0..self.nodes.len());
        let Some((id, token)) = self.rng.choice(self.nodes[at].held.clone()) else { return Ok((Some(BTreeSet::new()), nothing)) };
        let kept = self.bench.store.note(Q, &crate::note::both(&id, token)).await?;
        self.say(("note", &id, token, kept));
        let current = self.before.states.get(&id).is_some_and(|state| state.state == State::Running && state.token == token);
        ensure!(kept == if current { 2 } else { 0 }, "kept {kept}");
        Ok((Some([id].into()), nothing))
    }

    async fn cancel(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let ids = self.some_ids(3);
        let answers = self.bench.store.cancel(Q, &ids).await?;
        self.say(("cancel", &ids, &answers));
        for (id, answer) in ids.iter().zip(answers) {
            let expected = match self.before.state(id) {
                None => Acted::Unknown,
                Some(State::Running) => Acted::Done(State::Running),
                Some(state) if state.is_final() => Acted::WrongState(state),
                Some(_) => Acted::Done(State::Cancelled),
            };
            ensure!(answer == expected, "{id}: {answer:?} instead of {expected:?}");
        }
        Ok((Some(ids.into_iter().collect()), |from, to| !from.is_none_or(State::is_final) && to == Some(State::Cancelled)))
    }

    async fn requeue(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        use State::{Cancelled, Dead, Held, Ready, Retrying, Scheduled, Succeeded};
        let at = (self.now_us / 1000).saturating_add_signed(self.rng.i64(-5_000..20_000));
        let actions: [(Requeue, &[State]); 4] = [
            (Requeue::Retry, &[Dead, Cancelled, Succeeded]),
            (Requeue::RunNow, &[Scheduled, Retrying]),
            (Requeue::Release, &[Held]),
            (Requeue::Reschedule(at), &[Scheduled, Retrying, Ready, Held]),
        ];
        let (action, from) = self.rng.choice(actions).expect("not empty");
        // One id that fits, and others.
        let mut ids = self.some_ids(2);
        if let Some(fits) = self.pick(|state| from.contains(&state))
            && !ids.contains(&fits)
        {
            ids.push(fits);
        }
        let answers = self.bench.store.requeue(Q, action, &ids).await?;
        self.say(("requeue", action, &ids, &answers));
        let mut touched = BTreeSet::new();
        let mut taken: BTreeMap<String, String> = BTreeMap::new();
        for (id, answer) in ids.iter().zip(answers) {
            let state = self.before.state(id);
            let unique = self.before.record(id).and_then(|record| record.unique);
            let holder = unique.as_ref().and_then(|unique| {
                taken
                    .get(&unique.key)
                    .or_else(|| self.before.unique.get(&unique.key).filter(|holder| self.before.is_living(holder)))
                    .cloned()
            });
            let expected = match state {
                None => Acted::Unknown,
                Some(state) if !from.contains(&state) => Acted::WrongState(state),
                Some(state) if state.is_final() && holder.as_ref().is_some_and(|holder| holder != id) => {
                    Acted::Conflict(holder.context("a holder")?)
                }
                Some(_) => Acted::Done(match action {
                    Requeue::Reschedule(at) if at > self.now_us / 1000 => Scheduled,
                    _ => Ready,
                }),
            };
            ensure!(answer == expected, "{id}: {answer:?} instead of {expected:?}");
            if matches!(answer, Acted::Done(_)) {
                touched.insert(id.clone());
                if state.is_some_and(State::is_final) {
                    self.started.remove(id);
                    taken.extend(unique.map(|unique| (unique.key, id.clone())));
                }
            }
        }
        Ok((Some(touched), |_, to| matches!(to, Some(Ready | Scheduled))))
    }

    async fn edit(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let Some(id) = self.pick(|_| true) else { return Ok((Some(BTreeSet::new()), nothing)) };
        let mut body = self.before.bodies[&id].clone();
        let mut spec = self.before.record(&id).context("readable")?.spec;
        spec.args = format!("[{}]", self.rng.u32(..));
        let stale = self.rng.u8(0..4) == 0;
        if stale {
            body.push(0);
        }
        let answer = self.bench.store.edit(Q, &id, &body, &spec).await?;
        self.say(("edit", &id, answer));
        let refused = stale || matches!(self.before.state(&id), Some(State::Running | State::Succeeded));
        ensure!(answer == if refused { Edited::Refused } else { Edited::Done }, "{answer:?}");
        Ok((Some(if refused { BTreeSet::new() } else { [id].into() }), nothing))
    }

    async fn delete(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let ids = self.some_ids(2);
        let answers = self.bench.store.delete(Q, &ids).await?;
        self.say(("delete", &ids, &answers));
        let expected: Vec<bool> = ids.iter().map(|id| self.before.bodies.contains_key(id)).collect();
        ensure!(answers == expected, "{answers:?} instead of {expected:?}");
        Ok((Some(ids.into_iter().collect()), |_, to| to.is_none()))
    }

    async fn pause_or_resume(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let paused = self.before.paused;
        // Mostly open, else nothing happens.
        if paused || self.rng.bool() {
            ensure!(self.bench.store.resume(Q).await? == paused, "resume");
            self.say("resume");
        } else {
            ensure!(self.bench.store.pause(Q).await? != paused, "pause");
            self.say("pause");
        }
        Ok((Some(BTreeSet::new()), nothing))
    }

    async fn trim(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let retention = self.some_retention();
        let removed = self.bench.store.trim(Q, &retention).await?;
        self.say(("trim", removed));
        Ok((None, trimmed))
    }

    async fn leave(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let at = self.rng.usize(0..self.nodes.len());
        let name = self.nodes[at].name.clone();
        let left = self.bench.store.leave(Q, &name, Duration::ZERO).await?;
        self.say(("leave", &name, left));
        let empty = !self.before.runs.contains_key(&name) && !self.before.lists.contains_key(&format!("p:{name}"));
        ensure!(left == empty, "left {left}");
        if left {
            let node = self.nodes.swap_remove(at);
            self.zombies.push(node);
        }
        Ok((Some(BTreeSet::new()), nothing))
    }

    /// BRPOPLPUSH of a living node, sometimes of one that died while it waited.
    async fn fetch(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let dead: Vec<&Node> = self.zombies.iter().filter(|node| self.before.owners.contains_key(&node.name)).collect();
        let name = match self.rng.choice(dead) {
            Some(node) if self.rng.u8(0..4) == 0 => node.name.clone(),
            _ => self.nodes[self.rng.usize(0..self.nodes.len())].name.clone(),
        };
        let entry = self.bench.fetch(&name).await;
        self.say(("fetch", &name, entry));
        Ok((Some(BTreeSet::new()), nothing))
    }

    /// What only looks finds a healthy queue, and changes nothing.
    async fn look(&mut self) -> Result<(Option<BTreeSet<String>>, Allowed)> {
        let damage = self.bench.store.examine(Q).await?;
        ensure!(damage.is_empty(), "{damage:?}");
        for node in &self.nodes {
            let swept = self.bench.store.sweep(Q, &node.name).await?;
            let expected: BTreeSet<String> = self.before.runs.get(&node.name).cloned().unwrap_or_default();
            ensure!(swept.owner && swept.jobs.iter().map(|job| job.id.clone()).collect::<BTreeSet<_>>() == expected, "{swept:?}");
        }
        let page =
            punctual_core::store::inspect::Page { states: State::ALL.into(), limit: 200, cursor: None, handler: None, tag: None };
        let (jobs, next) = self.bench.store.list(&[Q.to_owned()], &page).await?;
        let listed: BTreeSet<&String> = jobs.iter().map(|job| &job.id).collect();
        ensure!(listed.len() == jobs.len(), "a job is listed twice");
        // What a node has fetched and not claimed is in no band.
        let fetched = |id: &String| self.before.state(id) == Some(State::Ready) && self.before.places(id)[0].starts_with("p:");
        let expected: BTreeSet<&String> = self.before.bodies.keys().filter(|id| !fetched(id)).collect();
        ensure!(next.is_some() || listed == expected, "listed {} of {}", listed.len(), expected.len());
        Ok((Some(BTreeSet::new()), nothing))
    }
}
