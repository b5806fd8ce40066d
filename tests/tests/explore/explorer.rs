//! One run: whole nodes against one Redis, one request at a time, in an order that the choices decide; faults in between; then the
//! faults end and every job must come to its end. After each step everything that must hold is looked at.

mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use punctual_core::backoff::Retry;
use punctual_core::client::Client;
use punctual_core::job::{Due, JobSpec, Late, NewJob, Priority, Unique, UniqueUntil};
use punctual_core::state::State;
use punctual_core::store::requeue::Requeue;
use punctual_core::store::{Keys, Store};

use crate::choices::Choices;
use crate::cluster::{NAMESPACE, Node, QUEUE};
use crate::gate::{EPOCH_US, Gate, Passed, Redis, Request, Server};
use crate::picture::Picture;
use crate::planted::Planted;
use crate::witness::{Witness, Work};

/// Nodes at the start.
const NODES: usize = 3;
/// Steps with faults.
const STEPS: usize = 260;
/// Faults of one run.
const FAULTS: usize = 10;
/// Jobs of one run.
const JOBS: usize = 14;
/// How long everything may take to come to its end after the last fault, in the explorer's time.
const CALM_US: u64 = 240_000_000;
/// And in how many steps: more than any number of nodes needs for their beats and looks in that time.
const CALM_STEPS: usize = 40_000;
/// How long it goes on after that.
const LINGER_US: u64 = 3_000_000;
/// How long a job may lie in a band while a node blocks in a fetch.
const IDLE_US: u64 = 1_000_000;
/// Client and person are no nodes; their connections are theirs.
const CLIENT: usize = 1_000;
/// So often everything that is ready to run is let run: more than any chain of wake-ups between two requests.
const YIELDS: usize = 20;

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// What did not hold.
    pub violation: Option<String>,
    /// A digest of every step and of all that Redis held after it.
    pub hash: u64,
    /// Every decision.
    pub choices: Vec<u32>,
    /// The last steps, for people.
    pub log: Vec<String>,
    /// How often each thing happened.
    pub seen: BTreeMap<&'static str, usize>,
}

/// Runs once. `seed` also seeds the chance inside the product.
pub fn run(server: &mut Server, planted: Option<&Planted>, seed: u64, choices: Choices) -> Report {
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let mut explorer = None;
    let outcome = runtime.block_on(async {
        // While this runs, time moves only when the explorer moves it.
        tokio::task::spawn_blocking(move || held.recv());
        let made = Explorer::new(server, planted, choices)?;
        let explorer = explorer.insert(made);
        explorer.explore().await
    });
    drop(hold);
    let report = match explorer {
        Some(explorer) => Report {
            violation: outcome.err().map(|error| format!("{error:#}")),
            hash: explorer.hash.finish(),
            choices: explorer.choices.made().to_vec(),
            log: explorer.log,
            seen: explorer.seen,
        },
        None => panic!("{outcome:?}"),
    };
    runtime.shutdown_background();
    report
}

struct Explorer<'a> {
    gate: Gate,
    redis: Redis<'a>,
    keys: Keys,
    choices: Choices,
    nodes: Vec<Node>,
    /// Connections on which nothing moves until then.
    stalled: BTreeMap<usize, u64>,
    /// Every claim that was seen, and whose.
    claims: BTreeMap<(String, u64), String>,
    /// Were told to stop; some of them have.
    stopping: Vec<Node>,
    born: usize,
    witness: Witness,
    client: Client,
    person: Store,
    faults: usize,
    jobs: usize,
    named: usize,
    paused: bool,
    before: Picture,
    /// Jobs of `unique until started` that have started.
    started: BTreeSet<String>,
    /// Incarnations that were members once and are no more.
    gone: BTreeSet<String>,
    members: BTreeSet<String>,
    term: u64,
    hash: DefaultHasher,
    log: Vec<String>,
    seen: BTreeMap<&'static str, usize>,
}

impl<'a> Explorer<'a> {
    fn new(server: &'a mut Server, planted: Option<&Planted>, choices: Choices) -> Result<Self> {
        let gate = Gate::new();
        let redis = Redis::new(server, planted, NAMESPACE)?;
        let client = Client::over(Store::over(gate.wire(CLIENT), NAMESPACE), 1_000_000);
        let person = Store::over(gate.wire(CLIENT), NAMESPACE);
        let mut explorer = Self {
            gate,
            redis,
            keys: Keys::new(NAMESPACE),
            choices,
            nodes: Vec::new(),
            stalled: BTreeMap::new(),
            claims: BTreeMap::new(),
            stopping: Vec::new(),
            born: 0,
            witness: Witness::default(),
            client,
            person,
            faults: FAULTS,
            jobs: JOBS,
            named: 0,
            paused: false,
            before: Picture::default(),
            started: BTreeSet::new(),
            gone: BTreeSet::new(),
            members: BTreeSet::new(),
            term: 0,
            hash: DefaultHasher::new(),
            log: Vec::new(),
            seen: BTreeMap::new(),
        };
        for _ in 0..NODES {
            explorer.start_node()?;
        }
        Ok(explorer)
    }

    fn start_node(&mut self) -> Result<()> {
        self.nodes.push(Node::start(&self.gate, self.born, &self.witness)?);
        self.born += 1;
        Ok(())
    }

    async fn explore(&mut self) -> Result<()> {
        for _ in 0..STEPS {
            self.step().await?;
        }
        self.calm().await?;
        self.verdict()
    }

    /// Lets every task run until each waits for a reply or for time.
    async fn settle() {
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
    }

    fn say(&mut self, what: &'static str, detail: &str) {
        *self.seen.entry(what).or_default() += 1;
        let now_us = self.gate.now_us() - EPOCH_US;
        (what, detail, now_us).hash(&mut self.hash);
        self.log.push(format!("{:>9.3} s  {what} {detail}", Duration::from_micros(now_us).as_secs_f64()));
    }

    async fn step(&mut self) -> Result<()> {
        Self::settle().await;
        match self.choices.below(100) {
            0..70 => self.pass_something().await?,
            70..80 => {
                let ms = 1 + self.choices.below(40) as u64;
                self.time_passes(ms).await?;
            }
            80..83 => {
                let ms = 100 + self.choices.below(600) as u64;
                self.time_passes(ms).await?;
            }
            83..93 => self.somebody_acts(),
            _ if self.faults > 0 => self.fault().await?,
            _ => {}
        }
        Ok(())
    }

    /// The requests that may pass now, the oldest first.
    fn ready(&self) -> Vec<Request> {
        let now_us = self.gate.now_us();
        let frozen: Vec<usize> = self.nodes.iter().filter(|node| node.frozen_until_us > now_us).map(|node| node.number).collect();
        let fetchable = self.before.lists.contains_key("r2");
        let passes = |head: &Request| {
            !frozen.contains(&self.gate.node_of(head.line))
                && self.stalled.get(&head.line).is_none_or(|until| *until <= now_us)
                && (fetchable || !head.is_fetch())
        };
        self.gate.heads().into_iter().filter(passes).collect()
    }

    async fn pass_something(&mut self) -> Result<()> {
        let ready = self.ready();
        if ready.is_empty() {
            return self.time_passes(10).await;
        }
        // Mostly in the order of arrival; an old one is not forgotten for ever.
        let which = if self.choices.chance(50) { self.choices.below(ready.len()) } else { 0 };
        self.pass(&ready[which], true)
    }

    fn pass(&mut self, request: &Request, reply: bool) -> Result<()> {
        let name = request.name(&self.redis.scripts);
        let node = self.gate.node_of(request.line);
        let passed = self.redis.pass(&self.gate, request.line, reply)?;
        if passed != Passed::Blocks {
            let who = if node == CLIENT { "client".to_owned() } else { format!("n{node}") };
            self.say(if reply { "pass" } else { "reply lost" }, &format!("{who} {name}"));
            if !request.only_looks(&name) {
                self.look()?;
            }
            if name == "reap" && passed == Passed::Ran {
                let (owner, term) = (request.text(5), request.text(6));
                let gone = self.before.owners.get(&owner).is_none_or(|value| value.starts_with("gone"));
                ensure!(gone || self.before.fence > term.parse()?, "{owner} was reaped and may still claim");
            }
        }
        Ok(())
    }

    async fn time_passes(&mut self, ms: u64) -> Result<()> {
        let end_us = self.gate.now_us() + ms * 1000;
        while self.gate.now_us() < end_us {
            let now_us = self.gate.now_us();
            let next_us = self.redis.next_expiry().filter(|at| *at > now_us).map_or(end_us, |at| at.min(end_us));
            self.gate.set_now_us(next_us);
            tokio::time::advance(Duration::from_micros(next_us - now_us)).await;
            self.redis.expire(&self.gate)?;
            Self::settle().await;
        }
        self.say("time", &format!("{ms} ms"));
        Ok(())
    }

    /// Producers and people.
    fn somebody_acts(&mut self) {
        match self.choices.below(8) {
            0..5 if self.jobs > 0 => self.enqueue(),
            5 => {
                let Some(id) = self.some_job(|state| !state.is_final()) else { return };
                self.say("cancel", &id);
                let person = self.person.clone();
                tokio::spawn(async move { person.cancel(QUEUE, &[id]).await });
            }
            6 => {
                let now_ms = self.gate.now_us() / 1000;
                let (action, id) = match self.choices.below(3) {
                    0 => (Requeue::RunNow, self.some_job(|state| matches!(state, State::Scheduled | State::Retrying))),
                    1 => (Requeue::Retry, self.some_job(|state| matches!(state, State::Dead | State::Cancelled))),
                    _ => {
                        let at = now_ms + self.choices.below(2_000) as u64;
                        (Requeue::Reschedule(at), self.some_job(|state| !state.is_final() && state != State::Running))
                    }
                };
                let Some(id) = id else { return };
                self.say("requeue", &format!("{action:?} {id}"));
                let person = self.person.clone();
                tokio::spawn(async move { person.requeue(QUEUE, action, &[id]).await });
            }
            7 => {
                self.paused = !self.paused;
                self.pause();
            }
            _ => {}
        }
    }

    fn pause(&mut self) {
        self.say(if self.paused { "pause" } else { "resume" }, "");
        let (person, paused) = (self.person.clone(), self.paused);
        tokio::spawn(async move { if paused { person.pause(QUEUE).await } else { person.resume(QUEUE).await } });
    }

    fn some_job(&mut self, wanted: impl Fn(State) -> bool) -> Option<String> {
        let ids: Vec<&String> = self.before.bodies.keys().filter(|id| self.before.state(id).is_some_and(&wanted)).collect();
        (!ids.is_empty()).then(|| (*self.choices.one_of(&ids)).clone())
    }

    fn enqueue(&mut self) {
        let count = 1 + self.choices.below(3).min(self.jobs - 1);
        for _ in 0..count {
            self.jobs -= 1;
            let choices = &mut self.choices;
            let work = Work {
                ms: [0, 20, 200, 900][choices.below(4)],
                fails: u32::from(choices.chance(25)),
                snoozes: choices.chance(10),
            };
            let due = if choices.chance(40) { Due::In(choices.below(1_500) as u64) } else { Due::Now };
            let unique = choices.chance(25).then(|| Unique {
                key: format!("key {}", choices.below(2)),
                until: if choices.chance(50) { UniqueUntil::Started } else { UniqueUntil::Finished },
            });
            let priority = if choices.chance(25) { *choices.one_of(&Priority::ALL) } else { Priority::Normal };
            self.submit(&work, due, unique, priority);
        }
    }

    fn submit(&mut self, work: &Work, due: Due, unique: Option<Unique>, priority: Priority) {
        self.named += 1;
        let job = NewJob {
            id: format!("job-{:02}", self.named),
            queue: QUEUE.to_owned(),
            due,
            priority,
            late: Late::Run,
            grace_ms: 0,
            unique,
            dedupe: None,
            spec: JobSpec {
                handler: "work".to_owned(),
                args: serde_json::to_string(work).expect("plain data"),
                max_attempts: Some(3),
                retry: Some(Retry::parse(r#"{"backoff":"fixed","base":"300ms","jitter":0}"#).expect("a policy")),
                timeout_ms: Some(5_000),
                deadline_ms: None,
                tags: BTreeMap::new(),
                headers: BTreeMap::new(),
            },
        };
        self.say("enqueue", &format!("{} {work:?} {due:?}", job.id));
        let (client, witness) = (self.client.clone(), self.witness.clone());
        tokio::spawn(async move {
            let id = job.id.clone();
            // Unique keys turn some away; only what was stored counts.
            if let Ok(receipt) = client.submit(job).await
                && receipt.id == id
                && receipt.duplicate_of.is_none()
            {
                witness.accept(&id);
            }
        });
    }

    fn is_fenced(&self, head: &Request) -> bool {
        matches!(head.name(&self.redis.scripts).as_str(), "claim" | "promote" | "reap" | "bury" | "settle")
    }

    async fn fault(&mut self) -> Result<()> {
        self.faults -= 1;
        let heads: Vec<Request> = self.ready().into_iter().filter(|head| !head.is_fetch()).collect();
        match self.choices.below(12) {
            0 | 1 if !heads.is_empty() => {
                let head = self.choices.one_of(&heads).clone();
                let name = head.name(&self.redis.scripts);
                self.say("request lost", &name);
                self.gate.cut(head.line);
            }
            2 | 3 if !heads.is_empty() => {
                let head = self.choices.one_of(&heads).clone();
                self.pass(&head, false)?;
            }
            4 => {
                let which = self.choices.below(self.nodes.len());
                let node = self.nodes.remove(which);
                self.say("crash", &node.incarnation());
                node.crash(&self.gate).await;
                self.start_node()?;
            }
            8 | 9 => {
                let which = self.choices.below(self.nodes.len());
                let mut node = self.nodes.remove(which);
                self.say("stop", &node.incarnation());
                drop(node.stop());
                self.stopping.push(node);
                self.start_node()?;
            }
            // Longer than an answer may take: the request is sent again while the first is still under way.
            10 | 11 if !heads.is_empty() => {
                let head = self.choices.one_of(&heads).clone();
                let ms = 300 + self.choices.below(5_000) as u64;
                self.say("stall", &format!("{} {ms} ms", head.name(&self.redis.scripts)));
                self.stalled.insert(head.line, self.gate.now_us() + ms * 1000);
            }
            5 => {
                let ms = 300 + self.choices.below(4_200) as u64;
                let until = self.gate.now_us() + ms * 1000;
                // Rather one that is in the middle of something that only an owner, or the leader, may do.
                let busy: Vec<usize> = (0..self.nodes.len())
                    .filter(|at| {
                        let number = self.nodes[*at].number;
                        heads.iter().any(|head| self.gate.node_of(head.line) == number && self.is_fenced(head))
                    })
                    .collect();
                let which = if !busy.is_empty() && self.choices.chance(70) {
                    *self.choices.one_of(&busy)
                } else {
                    self.choices.below(self.nodes.len())
                };
                self.nodes[which].frozen_until_us = until;
                let name = self.nodes[which].incarnation();
                self.say("freeze", &format!("{name} {ms} ms"));
            }
            6 => {
                let ms = 1_000 + self.choices.below(1_500) as u64;
                self.say("jump", "");
                self.time_passes(ms).await?;
            }
            7 => {
                self.say("scripts forgotten", "");
                self.redis.forget_scripts()?;
            }
            _ => {}
        }
        Ok(())
    }

    /// No more faults: everything passes in order, and every job comes to its end.
    async fn calm(&mut self) -> Result<()> {
        self.say("calm", "");
        for node in &mut self.nodes {
            node.frozen_until_us = 0;
        }
        self.stalled.clear();
        while self.jobs > 0 {
            self.enqueue();
        }
        // More than one node has slots for, in a band that only the bell tells of, and long enough that the others are missed.
        for _ in 0..8 {
            let work = Work { ms: 900, fails: 0, snoozes: false };
            self.submit(&work, Due::Now, None, Priority::High);
        }
        self.paused = false;
        let end_us = self.gate.now_us() + CALM_US;
        let (mut ended_us, mut idle_us, mut steps) = (None, None, 0);
        // A moment longer than until all have ended: what a late step does would show.
        while ended_us.is_none_or(|at| self.gate.now_us() < at + LINGER_US) {
            Self::settle().await;
            steps += 1;
            ensure!(steps < CALM_STEPS, "no rest after {steps} steps of calm");
            // What a dead process had sent does not come for ever.
            for head in self.gate.heads() {
                if self.gate.is_abandoned(head.line) {
                    let comes_late = !head.is_fetch() && self.choices.chance(50);
                    if !comes_late {
                        self.gate.cut(head.line);
                    }
                }
            }
            // The person looks whether the resume got through.
            if self.before.paused && !self.gate.heads().iter().any(|head| self.gate.node_of(head.line) == CLIENT) {
                self.pause();
            }
            match self.ready().first().cloned() {
                Some(request) => self.pass(&request, true)?,
                None => self.time_passes(40).await?,
            }
            // Whoever blocks in a fetch has a free slot: he must be woken for whatever lies in a band.
            let free = self.gate.heads().iter().any(|head| head.is_fetch() && !self.gate.is_abandoned(head.line));
            let waits =
                self.before.lists.iter().any(|(name, list)| name.starts_with('r') && list.iter().any(|entry| entry != "!"));
            idle_us = if free && waits && !self.before.paused { idle_us.or(Some(self.gate.now_us())) } else { None };
            ensure!(idle_us.is_none_or(|at| self.gate.now_us() < at + IDLE_US), "jobs wait beside a node that was not woken");
            let ended = self.before.bodies.keys().all(|id| self.before.state(id).is_some_and(State::is_final));
            let idle = self.before.runs.is_empty() && self.before.lists.values().all(|list| list.iter().all(|one| one == "!"));
            ended_us = if ended && idle { ended_us.or(Some(self.gate.now_us())) } else { None };
            if self.gate.now_us() > end_us {
                let open: Vec<String> = self
                    .before
                    .bodies
                    .keys()
                    .filter(|id| !self.before.state(id).is_some_and(State::is_final))
                    .map(|id| format!("{id} {:?}", self.before.state(id)))
                    .collect();
                bail!("after {} s of calm these have not ended: {open:?}; lists {:?}", CALM_US / 1_000_000, self.before.lists);
            }
        }
        Ok(())
    }
}
