//! What the worker pool works on: slots, queues, flights, outboxes. Made once per process; actors and tasks come and go over it,
//! so that a restarted fetcher loses nothing.

pub mod bands;
pub mod fetcher;
pub mod flights;
pub mod peers;
pub mod settler;
pub mod slots;
pub mod sweeper;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use punctual_core::client::Client;
use punctual_core::config::Config;
use punctual_core::handler::Registry;
use punctual_core::state::{Ended, Limits, after};
use punctual_core::store::Store;
use punctual_core::store::settle::Settlement;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::status::Status;
use flights::{Flight, Flights, Stop};
use peers::Peers;
use slots::Slots;

/// One queue of this node.
#[derive(Debug)]
pub struct Queue {
    /// Its number.
    pub number: usize,
    /// Its name.
    pub name: Arc<str>,
    /// What it has in its hands.
    pub flights: Flights,
    /// Attempts that ended and wait to be settled.
    pub outbox: Mutex<Vec<(Arc<Flight>, Settlement)>>,
    /// Woken when the outbox or a flight's notes have something.
    pub ended: Notify,
    /// Woken by a nudge: resumed, or something was handed back here.
    pub nudged: Notify,
    /// The number of the next claim. Kept here, because a claim whose reply was lost must be asked for again by its number.
    pub claim_number: AtomicU64,
    /// Suspects in flight.
    pub suspects: AtomicUsize,
    /// Flights with unwritten notes.
    pub noted: Mutex<Vec<Arc<Flight>>>,
    /// The blocked fetch's client id, 0 when it does not block.
    pub blocked: AtomicU64,
    /// Set to make the fetcher claim after it is woken, although no band holds anything.
    pub poked: AtomicBool,
}

/// Everything the worker pool shares.
pub struct Pool {
    /// The node's configuration.
    pub config: Arc<Config>,
    /// Its handlers.
    pub registry: Registry,
    /// What the node knows of itself.
    pub status: Arc<Status>,
    /// The connection of claims, sweeps and settles: one, so that the replies of earlier claims come first.
    pub claims: Store,
    /// The connection of everything else.
    pub data: Store,
    /// For handlers' follow-ups.
    pub client: Client,
    /// The runtime on which handlers run, apart from the node's own.
    pub handlers: tokio::runtime::Handle,
    /// Free slots.
    pub slots: Slots,
    /// The queues, by number.
    pub queues: Vec<Queue>,
    /// Stops claiming.
    pub draining: AtomicBool,
    /// Woken when draining begins.
    pub drained: Notify,
    /// Fetchers that run: a stop waits until each has put back what it had fetched.
    pub fetchers: AtomicUsize,
    /// Executions that outlived their claim.
    pub zombies: AtomicUsize,
    /// Who else could run what this node cannot.
    pub peers: Peers,
    /// Cancelled when only a new process can do better: this one drains and ends with an error.
    pub unfit: CancellationToken,
    /// Told when an owner finds itself gone.
    pub gone: Notify,
}

impl Pool {
    /// A pool without any flight. `claims` and `data` have connections of their own.
    #[must_use]
    pub fn new(
        config: Arc<Config>,
        registry: Registry,
        status: Arc<Status>,
        claims: Store,
        data: Store,
        handlers: tokio::runtime::Handle,
    ) -> Self {
        let names: Vec<(&String, &u32)> = config.node.queues.iter().collect();
        let weights: Vec<u32> = names.iter().map(|(_, weight)| **weight).collect();
        let queues = names
            .iter()
            .enumerate()
            .map(|(number, (name, _))| Queue {
                number,
                name: name.as_str().into(),
                flights: Flights::default(),
                outbox: Mutex::default(),
                ended: Notify::new(),
                nudged: Notify::new(),
                claim_number: AtomicU64::new(1),
                suspects: AtomicUsize::new(0),
                noted: Mutex::default(),
                blocked: AtomicU64::new(0),
                poked: AtomicBool::new(false),
            })
            .collect();
        let capacity = usize::try_from(config.node.concurrency).unwrap_or(usize::MAX);
        let slots = Slots::new(capacity, &weights, config.node.strict);
        let client = Client::over(data.clone(), config.jobs.max_payload.as_usize());
        Self {
            config,
            registry,
            status,
            claims,
            data,
            client,
            handlers,
            slots,
            queues,
            draining: AtomicBool::new(false),
            drained: Notify::new(),
            fetchers: AtomicUsize::new(0),
            zombies: AtomicUsize::new(0),
            peers: Peers::default(),
            unfit: CancellationToken::new(),
            gone: Notify::new(),
        }
    }

    /// How long a blocking fetch waits: longer with more queues, so that an idle node costs the same.
    #[must_use]
    pub fn block_time(&self) -> Duration {
        Duration::from_secs(2).max(Duration::from_millis(500) * u32::try_from(self.queues.len()).unwrap_or(u32::MAX))
    }

    /// The number of the present incarnation. A flight of an earlier one is not settled.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.status.epoch()
    }

    /// Whether claiming has stopped.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Jobs in hand over all queues.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.queues.iter().map(|queue| queue.flights.len()).sum()
    }

    /// Whether the results that wait have piled up so far that nothing new may be claimed: Redis is away.
    #[must_use]
    pub fn is_backed_up(&self) -> bool {
        let waiting: usize = self.queues.iter().map(|queue| lock(&queue.outbox).len()).sum();
        waiting > self.slots.capacity() * 4 + 256
    }

    /// Asks every flight to stop.
    pub fn stop_all(&self, why: Stop) {
        for flight in self.queues.iter().flat_map(|queue| queue.flights.all()) {
            flight.ask_to_stop(why);
        }
    }

    /// Says how an attempt ended: into the outbox, for the settler. Only the first word counts.
    pub fn decide(&self, flight: &Arc<Flight>, ended: Ended) {
        if !flight.decide() {
            return;
        }
        let queue = &self.queues[flight.queue];
        if flight.epoch != self.epoch() || flight.stop() == Stop::Revoked {
            queue.flights.remove(flight);
            return;
        }
        let limits = Limits {
            attempt: flight.attempt,
            max_attempts: flight.max_attempts,
            policy: flight.retry.clone(),
            age: flight.age.saturating_add(flight.since.elapsed()),
            roll: fastrand::f64(),
        };
        let settlement = Settlement { id: flight.id.clone(), token: flight.token, to: after(ended, &limits) };
        lock(&queue.outbox).push((Arc::clone(flight), settlement));
        queue.ended.notify_one();
    }

    /// Gives back what one execution occupied.
    pub fn execution_ended(&self, flight: &Flight) {
        if flight.suspect {
            self.queues[flight.queue].suspects.fetch_sub(1, Ordering::AcqRel);
            self.queues[flight.queue].nudged.notify_one();
        }
        self.slots.give_back(1);
    }
}

/// Locks; a panic elsewhere does not make plain data unusable.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
