//! The client for services that enqueue: no actor and no server in its dependency tree.
//!
//! ```no_run
//! use punctual_core::client::Client;
//! use punctual_core::config::Config;
//! use punctual_core::handler::JobArgs;
//! use std::time::Duration;
//!
//! #[derive(serde::Serialize)]
//! struct CloseOrder { order_id: u64 }
//! impl JobArgs for CloseOrder { const HANDLER: &'static str = "order.close"; }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(Config::for_redis("redis://127.0.0.1:6379")?).await?;
//! let job = client.enqueue(CloseOrder { order_id: 7 }).delay(Duration::from_secs(30 * 60)).await?;
//! println!("{} is due at {}", job.id, job.due_at);
//! # Ok(()) }
//! ```

use std::borrow::Borrow;
use std::collections::HashMap;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::backoff::Retry;
use crate::config::Config;
use crate::handler::JobArgs;
use crate::job::{FieldError, JobRequest, NewJob, Priority, Unique, UniqueUntil};
use crate::state::State;
use crate::store::enqueue::{BATCH, CallId, Enqueued};
use crate::store::{Store, StoreError};
use crate::{clock, duration};

/// A queue is registered again after this long, in case Redis has forgotten it.
const REGISTER_EVERY: Duration = Duration::from_secs(60);
/// A call is resent for this long; its receipt lives twice as long.
const RESEND_FOR: Duration = Duration::from_secs(5);

/// What became of a job handed in: the document of `enqueue`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The job's id; for a duplicate, that of the job that is already there.
    pub id: String,
    /// Where it stands.
    pub state: State,
    /// Its queue.
    pub queue: String,
    /// When it is due.
    pub due_at: String,
    /// Set when nothing was stored because this job has the same id or key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate_of: Option<String>,
}

/// Why a job was not stored.
#[derive(Debug, thiserror::Error)]
pub enum EnqueueError {
    /// The request is wrong; nothing was stored.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<FieldError>),
    /// Redis could not be asked. The job may have been stored; the same id again tells.
    #[error("store the job: {0}")]
    Store(#[from] StoreError),
    /// There is no cluster here: `punctual run` runs handlers without Redis.
    #[error("no cluster to enqueue into: this handler runs without Redis")]
    NoCluster,
}

/// Enqueues jobs. Cheap to clone; clones share one connection.
#[derive(Clone)]
pub struct Client {
    store: Store,
    max_payload: usize,
    registered: Arc<Mutex<HashMap<String, (u64, Instant)>>>,
}

impl Client {
    /// Connects, and proves it with one round trip.
    ///
    /// # Errors
    /// When Redis cannot be reached or refuses the user.
    pub async fn connect(config: impl Borrow<Config>) -> Result<Self, StoreError> {
        let config = config.borrow();
        let store = Store::new(&config.redis)?;
        store.probe().await?;
        Ok(Self::over(store, config.jobs.max_payload.as_usize()))
    }

    /// A client over a store that is already there.
    #[must_use]
    pub fn over(store: Store, max_payload: usize) -> Self {
        Self { store, max_payload, registered: Arc::default() }
    }

    /// The store behind it.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Largest arguments in bytes.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        self.max_payload
    }

    /// Begins a job of a typed handler; await it to store it.
    #[expect(clippy::needless_pass_by_value, reason = "arguments are made for the call: a reference would only add noise to it")]
    pub fn enqueue<A: JobArgs>(&self, args: A) -> Enqueue {
        let text = serde_json::to_string(&args).map_err(|error| error.to_string());
        Enqueue::new(Some(self.clone()), A::HANDLER, text)
    }

    /// Begins a job of a handler known by name only.
    pub fn enqueue_named(&self, handler: &str, args: &serde_json::Value) -> Enqueue {
        Enqueue::new(Some(self.clone()), handler, Ok(args.to_string()))
    }

    /// Stores one checked job. Resent for a few seconds while the connection breaks; never stored twice.
    ///
    /// # Errors
    /// When Redis cannot be asked.
    pub async fn submit(&self, job: NewJob) -> Result<Receipt, StoreError> {
        let mut receipts = self.submit_many(&CallId::fresh(), vec![job]).await?;
        receipts.pop().ok_or_else(|| StoreError::unexpected("no answer for a job"))
    }

    /// Stores checked jobs, each queue's in batches of one call; the answers are in their order. A batch is stored whole or not
    /// at all; `call` names the whole, so that the same jobs under the same name are stored once.
    ///
    /// # Errors
    /// When Redis cannot be asked; batches before the error are stored.
    pub async fn submit_many(&self, call: &CallId, jobs: Vec<NewJob>) -> Result<Vec<Receipt>, StoreError> {
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by(|a, b| jobs[*a].queue.cmp(&jobs[*b].queue));
        let mut slots: Vec<Option<NewJob>> = jobs.into_iter().map(Some).collect();
        let mut receipts: Vec<Option<Receipt>> = vec![None; slots.len()];
        let mut rest = order.as_slice();
        let mut batch_number = 0_u32;
        while let Some(first) = rest.first() {
            let queue = slots[*first].as_ref().expect("each slot is taken once").queue.clone();
            let same = rest.iter().take(BATCH).take_while(|at| slots[**at].as_ref().is_some_and(|job| job.queue == queue));
            let (batch, after) = rest.split_at(same.count());
            rest = after;
            let jobs: Vec<NewJob> = batch.iter().map(|at| slots[*at].take().expect("each slot is taken once")).collect();
            let answers = self.call(&call.part(batch_number), &queue, &jobs).await?;
            batch_number += 1;
            for ((at, job), answer) in batch.iter().zip(&jobs).zip(answers) {
                receipts[*at] = Some(self.receipt(job, answer).await?);
            }
        }
        Ok(receipts.into_iter().flatten().collect())
    }

    async fn call(&self, call: &CallId, queue: &str, jobs: &[NewJob]) -> Result<Vec<Enqueued>, StoreError> {
        let give_up = Instant::now() + RESEND_FOR;
        let mut wait = Duration::from_millis(20);
        loop {
            let answer = match self.register(queue).await {
                Ok(()) => self.store.enqueue(call, queue, jobs).await,
                Err(error) => Err(error),
            };
            match answer {
                // Full means that nothing was stored and that waiting a moment will not help a producer.
                Err(error)
                    if error.is_transient() && error.kind != crate::store::Kind::Full && Instant::now() + wait < give_up =>
                {
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_millis(500));
                }
                answer => return answer,
            }
        }
    }

    async fn register(&self, queue: &str) -> Result<(), StoreError> {
        let generation = self.store.link().generation();
        let known = {
            let registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
            registered.get(queue).is_some_and(|(at, when)| *at == generation && when.elapsed() < REGISTER_EVERY)
        };
        if known && generation > 0 {
            return Ok(());
        }
        self.store.register_queue(queue).await?;
        let generation = self.store.link().generation();
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        registered.insert(queue.to_owned(), (generation, Instant::now()));
        Ok(())
    }

    async fn receipt(&self, job: &NewJob, answer: Enqueued) -> Result<Receipt, StoreError> {
        match answer {
            Enqueued::Stored { state, due_ms } => Ok(Receipt {
                id: job.id.clone(),
                state,
                queue: job.queue.clone(),
                due_at: clock::format_ms(due_ms),
                duplicate_of: None,
            }),
            Enqueued::Duplicate(id) => {
                let there = self.store.find(&id, Some(&job.queue)).await?.into_iter().next();
                // A dedupe key may outlive its job: then only the id is left to tell.
                let state = there.as_ref().map_or(State::Succeeded, |found| found.state);
                let due_ms = there.map_or(0, |found| {
                    let later = found.packed.map_or(0, |packed| packed.due_ms);
                    if later > 0 { later } else { found.record.map_or(0, |record| record.due_ms) }
                });
                Ok(Receipt {
                    id: id.clone(),
                    state,
                    queue: job.queue.clone(),
                    due_at: clock::format_ms(due_ms),
                    duplicate_of: Some(id),
                })
            }
        }
    }
}

/// A job being described; awaiting it stores it.
#[must_use = "a job is stored when this is awaited"]
pub struct Enqueue {
    client: Option<Client>,
    request: JobRequest,
    wrong: Vec<FieldError>,
}

impl Enqueue {
    pub(crate) fn new(client: Option<Client>, handler: &str, args: Result<String, String>) -> Self {
        let mut wrong = Vec::new();
        let args = args.and_then(|text| RawValue::from_string(text).map_err(|error| error.to_string()));
        let args = args.map_err(|message| wrong.push(FieldError::new("args", message))).ok();
        Self { client, request: JobRequest { handler: handler.to_owned(), args, ..JobRequest::default() }, wrong }
    }

    /// Into this queue instead of `default`.
    pub fn queue(mut self, queue: &str) -> Self {
        self.request.queue = Some(queue.to_owned());
        self
    }

    /// Due so long after it is stored.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.request.delay = Some(duration::format(delay));
        self
    }

    /// Due at this instant, milliseconds since 1970.
    pub fn run_at_ms(mut self, at_ms: u64) -> Self {
        self.request.run_at = Some(clock::format_ms(at_ms));
        self
    }

    /// In this band.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.request.priority = Some(priority.word().to_owned());
        self
    }

    /// Attempts allowed in all.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.request.max_attempts = Some(attempts);
        self
    }

    /// Its own retry policy.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.request.retry = serde_json::to_value(retry).ok();
        self
    }

    /// Longest run of one attempt.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.request.timeout = Some(duration::format(timeout));
        self
    }

    /// At most one waiting or running job of the queue holds this key.
    pub fn unique(mut self, key: &str, until: UniqueUntil) -> Self {
        self.request.unique = Some(Unique { key: key.to_owned(), until });
        self
    }

    /// The same key, or the same handler and arguments, is a duplicate for this long.
    pub fn dedupe_for(mut self, span: Duration) -> Self {
        self.request.dedupe_for = Some(duration::format(span));
        self
    }

    /// The caller's own id: storing it again changes nothing.
    pub fn id(mut self, id: &str) -> Self {
        self.request.id = Some(id.to_owned());
        self
    }

    /// A pair for people and filters.
    pub fn tag(mut self, key: &str, value: &str) -> Self {
        self.request.tags.insert(key.to_owned(), value.to_owned());
        self
    }
}

impl IntoFuture for Enqueue {
    type Output = Result<Receipt, EnqueueError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let client = self.client.ok_or(EnqueueError::NoCluster)?;
            if !self.wrong.is_empty() {
                return Err(EnqueueError::Refused(self.wrong));
            }
            let job = self.request.check(client.max_payload).map_err(EnqueueError::Refused)?;
            Ok(client.submit(job).await?)
        })
    }
}
