//! A node from its first breath to its last: the boot order and the stop order, on one page.
//!
//! Boot: logs → signals → HTTP (so that liveness answers while Redis is still away) → Redis, its eviction policy and scripts →
//! registration with a first beat → actors.
//! Stop: unready, no new claims, lease given up → running jobs end → what is left is aborted and handed back → results are settled →
//! queues left, registration removed → exit 0. Every step has a deadline. A second signal skips the waiting.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use punctual_core::config::{Config, Loaded};
use punctual_core::handler::Registry;
use punctual_core::store::{Kind, Store, StoreError};
use ractor::{Actor, ActorRef};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::actors::supervisor::{self, Supervisor};
use crate::execute::GRACE;
use crate::http;
use crate::membership;
use crate::pool::Pool;
use crate::pool::flights::Stop;
use crate::status::Status;
use crate::telemetry::{self, Repeats};

/// How long a node waits for Redis at its start before it gives up.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// How long the supervisor may take to tell the others that this node drains.
const TELL: Duration = Duration::from_secs(5);
/// How long results may take to be settled at the end.
const FLUSH: Duration = Duration::from_secs(5);

/// Runs one node until a signal ends it.
#[must_use]
pub fn node(loaded: Loaded, registry: Registry) -> ExitCode {
    let config = Arc::new(loaded.config);
    let _logs = telemetry::init(&config.log);
    let registry = registry.state(config.handlers.clone());
    let registry = if config.handlers.demo { registry } else { registry.without_demo() };
    // Two runtimes: handlers may keep theirs busy, the node's own goes on.
    let own = tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("punctual").enable_all().build();
    // Two threads at least, so that one handler that never yields does not stop the others.
    let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2));
    let handlers =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).thread_name("handler").enable_all().build();
    let (Ok(own), Ok(handlers)) = (own, handlers) else {
        tracing::error!(target: "node", "threads cannot be started");
        return ExitCode::FAILURE;
    };
    let ended = own.block_on(live(config, registry, handlers.handle().clone()));
    // A handler that ignores everything must not keep the process alive.
    handlers.shutdown_background();
    own.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(target: "node", error = %format!("{error:#}"), "node failed");
            ExitCode::FAILURE
        }
    }
}

/// Counts the signals that ask the node to stop.
#[derive(Clone, Default)]
struct Signals {
    first: CancellationToken,
    second: CancellationToken,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        let signals = Self::default();
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        // A terminal that goes away is no reason to stop a server.
        let mut hup = signal(SignalKind::hangup())?;
        let told = signals.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = int.recv() => {}
                    _ = hup.recv() => continue,
                }
                if told.first.is_cancelled() {
                    told.second.cancel();
                } else {
                    told.first.cancel();
                }
            }
        });
        Ok(signals)
    }
}

async fn live(config: Arc<Config>, registry: Registry, handlers: tokio::runtime::Handle) -> anyhow::Result<()> {
    let signals = Signals::listen()?;
    let status = Arc::new(Status::new(config.node.dead_after));
    let incarnation = membership::new_incarnation(&config.node.name);
    status.set_incarnation(&incarnation);
    let store = Store::new(&config.redis)?;
    let pool = Arc::new(Pool::new(Arc::clone(&config), registry, Arc::clone(&status), store.another(), store.clone(), handlers));

    let http_stop = CancellationToken::new();
    let servers = serve(&pool, &http_stop).await?;

    // A signal while Redis is still away is a clean exit: nothing was begun.
    tokio::select! {
        ready = join(&pool) => ready?,
        () = signals.first.cancelled() => return Ok(()),
    }
    let (heartbeat, heartbeat_stop) = own_thread("heartbeat")?;
    let arguments = supervisor::Arguments { pool: Arc::clone(&pool), heartbeat };
    let (supervisor, supervised) =
        Actor::spawn(None, Supervisor, arguments).await.map_err(|error| anyhow::anyhow!("start the actors: {error}"))?;
    tracing::info!(target: "node", node_id = %incarnation, version = env!("CARGO_PKG_VERSION"), concurrency = config.node.concurrency,
        queues = %pool.queues.iter().map(|queue| queue.name.to_string()).collect::<Vec<_>>().join(","), "node started");

    let failed = tokio::select! {
        () = signals.first.cancelled() => false,
        () = pool.unfit.cancelled() => true,
    };
    watchdog(config.node.drain_timeout + GRACE + FLUSH + Duration::from_secs(3), &signals, i32::from(failed));
    stop(&pool, &supervisor, &signals.second, failed).await;
    supervisor.stop(None);
    let _ = tokio::time::timeout(Duration::from_secs(2), supervised).await;
    drop(heartbeat_stop);
    http_stop.cancel();
    let _ = tokio::time::timeout(Duration::from_secs(1), servers).await;
    tracing::info!(target: "node", node_id = %status.incarnation(), left = pool.in_flight(), "node stopped");
    if failed { Err(anyhow::anyhow!("stopped by itself, see the errors above; a new process may do better")) } else { Ok(()) }
}

/// Starts the HTTP servers: the API first, then the operators' address.
async fn serve(pool: &Pool, stop: &CancellationToken) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    let app = http::App::new(
        pool.client.clone(),
        Arc::new(pool.registry.clone()),
        Arc::clone(&pool.config),
        Arc::clone(&pool.status),
        crate::metrics::install(),
    );
    let node_id = pool.status.incarnation();
    let config = &pool.config.http;
    let mut servers = Vec::new();
    if let Some(addr) = config.listen.addr() {
        let listener = http::bind("http.listen", addr, &node_id).await?;
        servers.push(tokio::spawn(http::serve(listener, http::router(app.clone()), stop.clone())));
    }
    if let Some(addr) = config.ops_listen.addr() {
        let listener = http::bind("http.ops_listen", addr, &node_id).await?;
        servers.push(tokio::spawn(http::serve(listener, http::ops_router(app), stop.clone())));
    }
    Ok(tokio::spawn(async move {
        for server in servers {
            let _ = server.await;
        }
    }))
}

/// Waits for Redis, looks at what it is, and becomes a member.
async fn join(pool: &Pool) -> anyhow::Result<()> {
    let give_up = Instant::now() + START_PATIENCE;
    let mut repeats = Repeats::default();
    let mut pause = Duration::from_millis(100);
    loop {
        let error = match try_join(pool).await {
            Ok(()) => return Ok(()),
            Err(JoinError::Final(error)) => return Err(error),
            Err(JoinError::Store(error)) => error,
        };
        let server = pool.config.redis.url.to_string();
        if !error.is_transient() || Instant::now() > give_up {
            let hint = match error.kind {
                Kind::Auth => "check redis.username and redis.password_file",
                Kind::Permission => "the user lacks a right that punctual needs",
                Kind::ReadOnly => "this server is a replica: name its primary in redis.url",
                _ => "check redis.url and that the server runs",
            };
            return Err(anyhow::anyhow!("use redis at {server}: {error} ({hint})"));
        }
        if let Some(report) = repeats.failed(&error.text) {
            tracing::warn!(target: "node", redis = %server, error = %error, times = report.count, "waiting for redis");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

enum JoinError {
    /// May mend itself, or not, by its kind.
    Store(StoreError),
    /// A person must act.
    Final(anyhow::Error),
}

async fn try_join(pool: &Pool) -> Result<(), JoinError> {
    let server = pool.data.server().await.map_err(JoinError::Store)?;
    let policy = server.eviction.clone().unwrap_or_default();
    if server.evicts() && !pool.config.redis.allow_eviction {
        return Err(JoinError::Final(anyhow::anyhow!(
            "redis may throw jobs away: maxmemory-policy is {policy}; set it to noeviction, or redis.allow_eviction = true to run all the same"
        )));
    }
    if !server.version.is_empty() && !server.is_supported() {
        return Err(JoinError::Final(anyhow::anyhow!(
            "{} {} is too old: punctual needs Redis 7.0 or Valkey 7.2",
            server.product,
            server.version
        )));
    }
    if server.role == "slave" {
        let text = "READONLY this server is a replica".to_owned();
        return Err(JoinError::Store(StoreError { kind: Kind::ReadOnly, text }));
    }
    if server.eviction.is_none() {
        tracing::warn!(target: "node", "the eviction policy may not be asked; make sure that it is noeviction");
    } else if server.evicts() {
        tracing::warn!(target: "node", policy = %policy, "keys may be evicted, as allowed");
    }
    if !server.version.is_empty() && !server.aof {
        tracing::warn!(target: "node", "append-only file is off: a restart of redis loses jobs");
    }
    pool.status.set_eviction(server.eviction);
    pool.data.load_scripts().await.map_err(JoinError::Store)?;
    let sent = Instant::now();
    let incarnation = pool.status.incarnation();
    membership::register(pool, &incarnation).await.map_err(JoinError::Store)?;
    pool.status.beat_confirmed(sent);
    for other in membership::namesakes(pool, &incarnation).await.map_err(JoinError::Store)? {
        tracing::warn!(target: "node", name = %pool.config.node.name, other = %other, "another living node has this name");
    }
    Ok(())
}

/// A runtime on a thread of its own; it ends when the returned sender is dropped.
fn own_thread(name: &str) -> anyhow::Result<(tokio::runtime::Handle, std::sync::mpsc::Sender<()>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (done, ended) = tokio::sync::oneshot::channel::<()>();
    std::thread::Builder::new().name(format!("{name}-stop")).spawn(move || {
        let _ = stopped.recv();
        drop(done);
    })?;
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        runtime.block_on(async {
            let _ = ended.await;
        });
    })?;
    Ok((handle, stop))
}

/// The stop order. Returns when nothing is left to do, or when its time is over; `hurry` does the fast half. A node that `failed`
/// has no actors to see its jobs through. The actors are still there afterwards.
pub async fn stop(pool: &Arc<Pool>, supervisor: &ActorRef<supervisor::Message>, hurry: &CancellationToken, failed: bool) {
    let began = Instant::now();
    let told = supervisor.call(|told| supervisor::Message::Drain(Some(told)), Some(TELL));
    let ended_by_itself = async {
        // Nobody waits for an execution that has outlived its claim.
        let busy = || pool.slots.capacity() - pool.slots.free() > pool.zombies.load(Ordering::Acquire);
        while pool.in_flight() > 0 || busy() || !pool.is_draining() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // Without its actors a node cannot see its jobs through; with jobs that do not end it can see through the others.
    let patience =
        if failed && pool.zombies.load(Ordering::Acquire) == 0 { Duration::ZERO } else { pool.config.node.drain_timeout };
    let drained = async {
        // Redis may be away: then nobody can be told, and the jobs come first.
        let _ = told.await;
        ended_by_itself.await;
    };
    tokio::select! {
        () = drained => {}
        () = tokio::time::sleep(patience) => {}
        () = hurry.cancelled() => {}
    }
    if pool.in_flight() > 0 {
        tracing::info!(target: "node", running = pool.in_flight(), waited_ms = began.elapsed().as_millis() as u64, "handing back");
        pool.stop_all(Stop::HandBack);
        // What will not end is left to the reaper: handing it back while it runs would run it twice at once.
        let fast = hurry.is_cancelled();
        let grace = if fast { Duration::from_secs(1) } else { GRACE + Duration::from_millis(500) };
        settled(pool, grace + if fast { Duration::from_millis(500) } else { FLUSH }).await;
    }
    // The fetchers put back what they had fetched; one that blocks ends with its block at the latest.
    let put_back = async {
        while pool.fetchers.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = tokio::time::timeout(pool.block_time() + Duration::from_secs(1), put_back).await;
    // A put-back may have brought jobs of a claim whose reply was lost.
    settled(pool, Duration::from_secs(1)).await;
    let farewell = async {
        let incarnation = pool.status.incarnation();
        // A fetch that is still under way may move one more entry: then the reaper must look here.
        let mut clean = pool.fetchers.load(Ordering::Acquire) == 0;
        if !clean {
            return Ok(());
        }
        for queue in &pool.queues {
            clean &= pool.data.leave(&queue.name, &incarnation, Duration::ZERO).await?;
        }
        // With jobs left behind the beat must run out, so that the reaper takes them.
        if clean {
            pool.data.deregister_node(&incarnation).await?;
        }
        Ok::<(), StoreError>(())
    };
    match tokio::time::timeout(Duration::from_secs(2), farewell).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(target: "node", error = %error, "not deregistered"),
        Err(_) => tracing::warn!(target: "node", "not deregistered in time"),
    }
}

async fn settled(pool: &Pool, within: Duration) {
    let all = async {
        while pool.in_flight() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = tokio::time::timeout(within, all).await;
}

/// Ends the process should the stop itself hang: a thread that needs no runtime.
fn watchdog(within: Duration, signals: &Signals, code: i32) {
    let second = signals.second.clone();
    let spawned = std::thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
        let step = Duration::from_millis(100);
        let (mut waited, mut fast) = (Duration::ZERO, None);
        loop {
            std::thread::sleep(step);
            waited += step;
            if fast.is_none() && second.is_cancelled() {
                fast = Some(waited + Duration::from_secs(5));
            }
            if waited > within || fast.is_some_and(|limit| waited > limit) {
                // Everything that matters lies in Redis; the reaper takes what this process leaves.
                std::process::exit(code);
            }
        }
    });
    if spawned.is_err() {
        tracing::warn!(target: "node", "no watchdog for the stop");
    }
}
