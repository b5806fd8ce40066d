//! What a handler can know of the job that it runs, and tell about it.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{JobArgs, Registry};
use crate::client::{Client, Enqueue};

/// Something a handler tells about a running job.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// How far it is, 0 to 100, and a short text.
    Progress(f64, String),
    /// A line kept with the job (the last 100 are).
    Log(String),
}

type NoteSink = Arc<dyn Fn(Note) + Send + Sync>;
/// What [`Registry::state`] injected, by type.
pub(super) type States = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;

/// What a handler can know of and do with the job it runs. Cheap to clone.
#[derive(Clone)]
pub struct JobContext {
    inner: Arc<Context>,
}

struct Context {
    identity: JobIdentity,
    cancel: CancellationToken,
    notes: NoteSink,
    client: Option<Client>,
    states: Arc<States>,
}

/// Which attempt of which job this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobIdentity {
    /// The job's id, unique within its queue.
    pub id: String,
    /// Its queue.
    pub queue: String,
    /// The handler's name.
    pub handler: String,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// When this attempt was due, milliseconds since 1970 by Redis' clock.
    pub due_ms: u64,
    /// The claim's fencing token: it only grows. Hand it to your own database to refuse stale writers.
    pub claim: u64,
    /// Pairs that the producer sent along.
    pub headers: BTreeMap<String, String>,
}

impl JobContext {
    /// Makes a context; nodes and `punctual run` do this.
    pub fn new(
        identity: JobIdentity,
        cancel: CancellationToken,
        registry: &Registry,
        client: Option<Client>,
        notes: impl Fn(Note) + Send + Sync + 'static,
    ) -> Self {
        let states = Arc::clone(&registry.states);
        Self { inner: Arc::new(Context { identity, cancel, notes: Arc::new(notes), client, states }) }
    }

    /// The job's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.inner.identity.id
    }

    /// Which attempt of which job this is.
    #[must_use]
    pub fn identity(&self) -> &JobIdentity {
        &self.inner.identity
    }

    /// Which attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.inner.identity.attempt
    }

    /// The claim's fencing token.
    #[must_use]
    pub fn claim(&self) -> u64 {
        self.inner.identity.claim
    }

    /// When this attempt was due, milliseconds since 1970.
    #[must_use]
    pub fn due_ms(&self) -> u64 {
        self.inner.identity.due_ms
    }

    /// Ends when the job is cancelled, timed out, or its node must let go of it. Cancel-safe.
    pub async fn cancelled(&self) {
        self.inner.cancel.cancelled().await;
    }

    /// Whether the handler should stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancel.is_cancelled()
    }

    /// The token behind [`JobContext::cancelled`], to hand on.
    #[must_use]
    pub fn cancellation(&self) -> &CancellationToken {
        &self.inner.cancel
    }

    /// Says how far the job is, 0 to 100; the newest is kept and written at most a few times a second.
    pub fn progress(&self, percent: f64, text: impl Into<String>) {
        (self.inner.notes)(Note::Progress(percent.clamp(0.0, 100.0), text.into()));
    }

    /// Keeps a line with the job.
    pub fn log(&self, line: impl Into<String>) {
        (self.inner.notes)(Note::Log(line.into()));
    }

    /// What [`Registry::state`] injected.
    ///
    /// # Panics
    /// When nothing of this type was injected: a mistake in the registry that the first run shows; the attempt fails.
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(&self) -> Arc<T> {
        let found = self.inner.states.get(&TypeId::of::<T>()).cloned();
        found.and_then(|state| state.downcast().ok()).unwrap_or_else(|| {
            panic!("no state of type {} was injected; add .state(…) to the registry", std::any::type_name::<T>())
        })
    }

    /// Stores a follow-up job. The claim is not checked: give it an id or a unique key when a re-run must not repeat it.
    ///
    /// # Errors
    /// When awaited: as [`Client::enqueue`]; in `punctual run`, that there is no cluster.
    #[expect(clippy::needless_pass_by_value, reason = "arguments are made for the call: a reference would only add noise to it")]
    pub fn enqueue<A: JobArgs>(&self, args: A) -> Enqueue {
        Enqueue::new(self.inner.client.clone(), A::HANDLER, serde_json::to_string(&args).map_err(|error| error.to_string()))
    }
}
