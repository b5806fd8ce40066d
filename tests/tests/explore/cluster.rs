//! Whole nodes in this process: the product's own actors, pool and store, over the gate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use punctual_core::config::{Config, Retention};
use punctual_core::handler::Registry;
use punctual_core::store::Store;
use punctual_node::actors::supervisor::{Arguments, Message, Supervisor};
use punctual_node::pool::Pool;
use punctual_node::status::Status;
use punctual_node::{membership, run};
use ractor::{Actor, ActorRef};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::gate::Gate;
use crate::witness::{Here, Witness, work};

/// The queue of every job.
pub const QUEUE: &str = "default";
/// The namespace.
pub const NAMESPACE: &str = "x";
/// How long a node may be silent, and how long the lease lasts.
pub const LIFE: Duration = Duration::from_secs(1);

/// A configuration whose clocks run fast.
pub fn config(name: &str) -> Result<Config> {
    let mut config = Config::for_redis("redis://127.0.0.1:1")?;
    config.redis.namespace = NAMESPACE.to_owned();
    config.node.name = name.to_owned();
    config.node.concurrency = 2;
    config.node.drain_timeout = LIFE / 2;
    config.node.dead_after = LIFE;
    config.node.heartbeat_every = LIFE / 4;
    config.lease.ttl = LIFE;
    config.lease.renew_every = LIFE / 4;
    config.node.queues = BTreeMap::from([(QUEUE.to_owned(), 1)]);
    let long = Duration::from_secs(86_400 * 365);
    config.retention = Retention { succeeded: long, succeeded_max: 100_000, dead: long, dead_max: 100_000 };
    Ok(config)
}

/// One process, as far as the others can tell.
pub struct Node {
    /// Its number, which no other life of it shares.
    pub number: usize,
    /// What its actors share.
    pub pool: Arc<Pool>,
    here: Arc<Here>,
    boot: JoinHandle<Option<ActorRef<Message>>>,
    /// Until when nothing of it passes the gate.
    pub frozen_until_us: u64,
}

impl Node {
    /// Starts a node; it joins as soon as its requests pass.
    pub fn start(gate: &Gate, number: usize, witness: &Witness) -> Result<Self> {
        let config = Arc::new(config(&format!("n{number}"))?);
        let status = Arc::new(Status::new(config.node.dead_after));
        status.set_incarnation(&membership::new_incarnation(&config.node.name));
        let here = Arc::new(Here { witness: witness.clone(), status: Arc::clone(&status), alive: AtomicBool::new(true) });
        let registry = Registry::new().state(Arc::clone(&here)).register("work", work);
        let store = Store::over(gate.wire(number), NAMESPACE);
        let runtime = tokio::runtime::Handle::current();
        let pool = Arc::new(Pool::new(config, registry, status, store.another(), store, runtime));
        let boot = tokio::spawn(boot(Arc::clone(&pool)));
        Ok(Self { number, pool, here, boot, frozen_until_us: 0 })
    }

    /// Its name in its present life.
    pub fn incarnation(&self) -> String {
        self.pool.status.incarnation()
    }

    /// SIGTERM: the task ends when the process has.
    pub fn stop(&mut self) -> JoinHandle<()> {
        let (pool, boot) = (Arc::clone(&self.pool), std::mem::replace(&mut self.boot, tokio::spawn(async { None })));
        tokio::spawn(async move {
            if !boot.is_finished() {
                // A signal while Redis is still away: nothing was begun.
                boot.abort();
            }
            if let Ok(Some(supervisor)) = boot.await {
                run::stop(&pool, &supervisor, &CancellationToken::new(), false).await;
                supervisor.stop(None);
            }
        })
    }

    /// kill -9: what it had sent is under way, everything else is over.
    pub async fn crash(self, gate: &Gate) {
        self.here.alive.store(false, Ordering::Relaxed);
        self.here.witness.crash(&self.incarnation());
        gate.abandon(self.number);
        self.pool.draining.store(true, Ordering::Release);
        self.pool.drained.notify_waiters();
        self.boot.abort();
        if let Ok(Some(supervisor)) = self.boot.await {
            supervisor.kill();
        }
    }
}

async fn boot(pool: Arc<Pool>) -> Option<ActorRef<Message>> {
    let incarnation = pool.status.incarnation();
    loop {
        let sent = Instant::now();
        match membership::register(&pool, &incarnation).await {
            Ok(()) => {
                pool.status.beat_confirmed(sent);
                break;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    let arguments = Arguments { pool, heartbeat: tokio::runtime::Handle::current() };
    Actor::spawn(None, Supervisor, arguments).await.ok().map(|(supervisor, _)| supervisor)
}
