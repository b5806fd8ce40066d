//! The fetcher of one queue: claims while there is work, blocks on BRPOPLPUSH while there is none.
//!
//! It never claims more than the slots it holds, claims nothing without a fresh beat, and asks for a claim whose reply was lost by
//! the same number again. It does not run handlers and does not settle. Whatever fails is met by waiting; only the pool's flags
//! end the loop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use punctual_core::codec::{DecodeError, decode};
use punctual_core::policy::effective;
use punctual_core::state::Ended;
use punctual_core::store::claim::{ClaimRequest, Claimed, ClaimedJob, MOST};
use punctual_core::store::fetch::Fetch;
use punctual_core::store::packed::FLAG_SUSPECT;

use super::bands::Bands;
use super::flights::Flight;
use super::slots::Taken;
use super::{Pool, Queue};
use crate::execute::execute;
use crate::telemetry::Repeats;

/// Longest wait after an error of Redis.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// How often a node that may not start looks whether it may.
const HOLD: Duration = Duration::from_millis(100);

/// Runs until the pool drains.
pub async fn run(pool: Arc<Pool>, number: usize) {
    let queue = &pool.queues[number];
    let _counted = Counted::new(&pool);
    let (epoch, incarnation) = pool.status.identity();
    let mut fetcher = Fetcher {
        fetch: pool.claims.fetch(&queue.name, &incarnation, pool.block_time()),
        epoch,
        incarnation,
        bands: Bands::new(pool.config.node.strict),
        repeats: Repeats::default(),
        pause: Duration::ZERO,
        hungry: true,
        busy: false,
    };
    while !pool.is_draining() {
        fetcher.round(&pool, queue).await;
    }
    // What the blocked fetch moved before it was woken goes back to the front.
    if !fetcher.put_back(&pool, queue).await {
        // Left to the reaper, which finds the entries in the processing list.
        tracing::warn!(target: "worker_pool", queue = %queue.name, "fetched entries not put back");
    }
}

/// One of the running fetchers, however it ends.
struct Counted<'a>(&'a Pool);

impl<'a> Counted<'a> {
    fn new(pool: &'a Pool) -> Self {
        pool.fetchers.fetch_add(1, Ordering::AcqRel);
        Self(pool)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetchers.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Fetcher {
    fetch: Fetch,
    epoch: u64,
    /// Under which name it fetches and claims.
    incarnation: String,
    bands: Bands,
    repeats: Repeats,
    pause: Duration,
    /// Whether there may be work that needs no waiting.
    hungry: bool,
    /// Whether the last claim filled all its slots: then the next one gathers slots.
    busy: bool,
}

impl Fetcher {
    async fn round(&mut self, pool: &Arc<Pool>, queue: &Queue) {
        if self.epoch != pool.epoch() {
            // The last fetch under the old name may have moved an entry; if Redis has forgotten that name, the reaper does not find it.
            if !self.put_back(pool, queue).await {
                stoppable(pool, tokio::time::sleep(HOLD)).await;
                return;
            }
            (self.epoch, self.incarnation) = pool.status.identity();
            self.fetch = pool.claims.fetch(&queue.name, &self.incarnation, pool.block_time());
            self.hungry = true;
        }
        if !self.pause.is_zero() {
            stoppable(pool, tokio::time::sleep(self.pause)).await;
        }
        if !pool.status.may_start() || pool.is_backed_up() {
            stoppable(pool, tokio::time::sleep(HOLD)).await;
            return;
        }
        if self.hungry {
            // Bounded, so that a node whose slots are all busy for an hour still shows that its fetcher lives.
            let take = tokio::time::timeout(pool.block_time(), pool.slots.take(queue.number, MOST, !self.busy));
            // While it waited the node may have got a new name: a claim under the old one would run nothing and charge a crash.
            if let Some(Ok(taken)) = stoppable(pool, take).await
                && self.epoch == pool.epoch()
            {
                self.claim(pool, queue, taken).await;
            }
        } else {
            self.block(pool, queue).await;
        }
        pool.status.fetched(pool.block_time() * 3 + MAX_PAUSE);
    }

    async fn claim(&mut self, pool: &Arc<Pool>, queue: &Queue, taken: Taken<'_>) {
        let slots = taken.count();
        let number = queue.claim_number.load(Ordering::Acquire);
        let request = ClaimRequest {
            queue: &queue.name,
            incarnation: &self.incarnation,
            number,
            slots,
            shares: self.bands.shares(slots),
            suspects: queue.suspects.load(Ordering::Acquire) == 0,
        };
        let claimed = match pool.claims.claim(&request).await {
            Ok(claimed) => claimed,
            Err(error) => {
                // The claim may have been carried out: the same number asks for the same jobs.
                self.failed("claim", &queue.name, &error);
                return;
            }
        };
        self.recovered(&queue.name);
        match claimed {
            Claimed::Jobs { token, now_ms, left, dropped, jobs } => {
                queue.claim_number.store(number + 1, Ordering::Release);
                if dropped > 0 {
                    tracing::debug!(target: "worker_pool", queue = %queue.name, dropped, "stale entries dropped");
                }
                let got = jobs.len();
                self.bands.advance(got);
                self.busy = got >= slots;
                self.hungry = got >= slots || left > 0;
                // More than asked for is the repeated answer of a larger claim, whose slots went back when its reply was lost.
                taken.occupy(got);
                for job in jobs {
                    launch(pool, queue, &job, token, now_ms, self.epoch);
                }
            }
            Claimed::Paused => {
                drop(taken);
                self.rest(pool, queue).await;
                self.hungry = true;
                self.busy = false;
            }
            Claimed::Old => {
                queue.claim_number.fetch_add(1, Ordering::AcqRel);
            }
            Claimed::Gone => {
                pool.gone.notify_one();
                self.pause = HOLD;
            }
        }
    }

    async fn block(&mut self, pool: &Arc<Pool>, queue: &Queue) {
        self.busy = false;
        let wait = tokio::time::timeout(pool.block_time(), pool.slots.wait_free());
        if !matches!(stoppable(pool, wait).await, Some(Ok(()))) {
            return;
        }
        match self.fetch.client_id().await {
            Ok(id) => queue.blocked.store(u64::try_from(id).unwrap_or(0), Ordering::Release),
            Err(error) => return self.failed("connect", &queue.name, &error),
        }
        // Looked at once more after the id is published: draining either sees the id or is seen here.
        if pool.is_draining() {
            return;
        }
        let moved = self.fetch.wait().await;
        queue.blocked.store(0, Ordering::Release);
        match moved {
            Ok(true) => self.hungry = true,
            // The sweep found entries that only a claim takes up.
            Ok(false) if queue.poked.swap(false, Ordering::AcqRel) => self.hungry = true,
            Ok(false) => match pool.data.has_work(&queue.name).await {
                Ok(work) => {
                    self.recovered(&queue.name);
                    self.hungry = work;
                }
                Err(error) => self.failed("look", &queue.name, &error),
            },
            Err(error) => {
                // The entry may have been moved although the reply was lost: a claim looks.
                self.hungry = true;
                self.failed("fetch", &queue.name, &error);
            }
        }
    }

    /// Waits for a nudge or a block time, so that a paused queue is not asked in a loop.
    async fn rest(&self, pool: &Pool, queue: &Queue) {
        let nudged = async {
            let _ = tokio::time::timeout(pool.block_time(), queue.nudged.notified()).await;
        };
        stoppable(pool, nudged).await;
    }

    /// Gives back what the fetch moved and no claim has taken; `false` when Redis did not answer.
    async fn put_back(&self, pool: &Pool, queue: &Queue) -> bool {
        let request = ClaimRequest {
            queue: &queue.name,
            incarnation: &self.incarnation,
            number: queue.claim_number.fetch_add(1, Ordering::AcqRel),
            slots: 0,
            shares: [0; 4],
            suspects: false,
        };
        match tokio::time::timeout(Duration::from_secs(2), pool.claims.claim(&request)).await {
            // A repeated answer: the reply of the last claim was lost, and the drain hands its jobs back.
            Ok(Ok(Claimed::Jobs { token, now_ms, jobs, .. })) => {
                for job in jobs {
                    pool.slots.overdraw(1);
                    launch_and_return(pool, queue, &job, token, now_ms, self.epoch);
                }
            }
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return false,
        }
        true
    }

    fn failed(&mut self, what: &'static str, queue: &str, error: &punctual_core::store::StoreError) {
        self.pause = (self.pause * 2).clamp(Duration::from_millis(50), MAX_PAUSE);
        if let Some(report) = self.repeats.failed(&error.text) {
            tracing::warn!(target: "worker_pool", queue, what, error = %error, times = report.count, "fetch failed");
        }
    }

    fn recovered(&mut self, queue: &str) {
        self.pause = Duration::ZERO;
        if let Some(times) = self.repeats.recovered() {
            tracing::info!(target: "worker_pool", queue, times, "fetch recovered");
        }
    }
}

/// Ends early, with `None`, when the pool drains.
async fn stoppable<T>(pool: &Pool, work: impl Future<Output = T>) -> Option<T> {
    let drained = pool.drained.notified();
    if pool.is_draining() {
        return None;
    }
    tokio::select! {
        biased;
        done = work => Some(done),
        () = drained => None,
    }
}

/// What becomes of a claimed job.
enum Fate {
    /// It runs, with what its handler gets besides the flight.
    Run { args: String, headers: BTreeMap<String, String> },
    /// It waits for another node; `readable` tells whether this one at least can read it.
    Elsewhere { readable: bool },
    /// It ends here.
    Over(Ended),
}

/// What can be said of a claimed job before it runs.
fn prepare(pool: &Pool, queue: &Queue, job: &ClaimedJob, token: u64, now_ms: u64, epoch: u64) -> (Arc<Flight>, Fate) {
    let record = decode(&job.body);
    let suspect = job.packed.flags & FLAG_SUSPECT != 0;
    let name = record.as_ref().map_or_else(|_| String::new(), |record| record.spec.handler.clone());
    let (created_ms, first_due_ms) = record.as_ref().map_or((now_ms, now_ms), |record| (record.created_ms, record.due_ms));
    let due_ms = if job.packed.due_ms > 0 { job.packed.due_ms } else { first_due_ms };
    let age = Duration::from_millis(now_ms.saturating_sub(created_ms));
    let lateness = Duration::from_millis(now_ms.saturating_sub(due_ms));
    let handler = pool.registry.get(&name);
    let limits = record.as_ref().map_or_else(
        |_| (1, punctual_core::backoff::RetryPolicy::default(), pool.config.jobs.timeout),
        |record| {
            let effective = effective(&record.spec, handler, &pool.config);
            (effective.max_attempts, effective.retry, effective.timeout)
        },
    );
    let attempt = job.packed.attempt;
    let times = (age, lateness, due_ms);
    let flight = Flight::new(queue.number, job.id.clone(), name, token, attempt, limits, times, suspect, epoch);
    let fate = match record {
        Err(DecodeError::Corrupt(reason)) => Fate::Over(Ended::Corrupt(reason)),
        Err(DecodeError::Newer(_)) => Fate::Elsewhere { readable: false },
        Ok(_) if handler.is_none() => Fate::Elsewhere { readable: true },
        Ok(record) if record.spec.deadline_ms.is_some_and(|deadline| now_ms > deadline) => Fate::Over(Ended::Deadline),
        Ok(record) => Fate::Run { args: record.spec.args, headers: record.spec.headers },
    };
    (Arc::new(flight), fate)
}

fn launch(pool: &Arc<Pool>, queue: &Queue, job: &ClaimedJob, token: u64, now_ms: u64, epoch: u64) {
    let (flight, fate) = prepare(pool, queue, job, token, now_ms, epoch);
    if !queue.flights.add(&flight) {
        pool.slots.give_back(1);
        return;
    }
    if flight.suspect {
        queue.suspects.fetch_add(1, Ordering::AcqRel);
    }
    match fate {
        Fate::Run { args, headers } => {
            metrics::histogram!("punctual_job_lateness_seconds", "queue" => queue.name.to_string())
                .record(flight.lateness.as_secs_f64());
            pool.handlers.spawn(execute(Arc::clone(pool), flight, args, headers));
        }
        Fate::Elsewhere { readable } => {
            let (pool, queue, times_before) = (Arc::clone(pool), Arc::clone(&queue.name), job.packed.handbacks);
            tokio::spawn(async move {
                let handler = readable.then_some(flight.handler.as_str());
                let wait = pool.peers.wait_for(&pool.data, &queue, handler, times_before).await;
                pool.decide(&flight, Ended::Unroutable(wait));
                pool.execution_ended(&flight);
            });
        }
        Fate::Over(ended) => {
            if let Ended::Corrupt(reason) = &ended {
                tracing::error!(target: "worker_pool", job_id = %flight.id, queue = %queue.name, reason, "corrupt record set aside");
            }
            pool.decide(&flight, ended);
            pool.execution_ended(&flight);
        }
    }
}

fn launch_and_return(pool: &Pool, queue: &Queue, job: &ClaimedJob, token: u64, now_ms: u64, epoch: u64) {
    let (flight, _) = prepare(pool, queue, job, token, now_ms, epoch);
    if queue.flights.add(&flight) {
        pool.decide(&flight, Ended::HandedBack);
    }
    pool.slots.give_back(1);
}
