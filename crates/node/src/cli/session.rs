//! What every command starts from: the flags that all of them take, the configuration, and one connection to Redis.

use std::future::Future;
use std::path::PathBuf;

use punctual_core::client::Client;
use punctual_core::config::{Config, Layers, Loaded};
use punctual_core::handler::Registry;
use punctual_core::store::{Store, StoreError};

use super::failure::Failure;
use super::output::{Format, Output};

/// The flags of every command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Globals {
    /// Configuration file; by default ./config/punctual.toml, else /etc/punctual/punctual.toml.
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) config: Option<PathBuf>,

    /// Redis, as redis://HOST:PORT/DB, rediss://… or unix:///PATH. A password is refused here, because it would show in ps.
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    pub(crate) redis: Option<String>,

    /// First part of every key in Redis: clusters that share a Redis have different ones.
    #[arg(long, global = true, value_name = "NS", help_heading = "Global options")]
    pub(crate) namespace: Option<String>,

    /// What standard output holds: text for people, or one stable JSON document.
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT", help_heading = "Global options")]
    pub(crate) output: Format,
}

/// One command at work.
pub(crate) struct Session {
    pub(crate) globals: Globals,
    pub(crate) out: Output,
    registry: Registry,
}

impl Session {
    pub(crate) fn new(globals: Globals, registry: Registry) -> Self {
        let out = Output::new(globals.output);
        Self { globals, out, registry }
    }

    /// What the global flags say about the configuration.
    pub(crate) fn layers(&self) -> Layers {
        let mut layers = Layers { file: self.globals.config.clone(), ..Layers::default() };
        if let Some(url) = &self.globals.redis {
            layers = layers.flag("--redis", "redis.url", url);
        }
        if let Some(namespace) = &self.globals.namespace {
            layers = layers.flag("--namespace", "redis.namespace", namespace);
        }
        layers
    }

    /// The effective configuration.
    pub(crate) fn load(&self) -> Result<Loaded, Failure> {
        Config::load(&self.layers()).map_err(|errors| Failure::config(&errors))
    }

    /// Every handler of this binary, the `demo` ones included.
    pub(crate) fn all_handlers(&self) -> Registry {
        self.registry.clone()
    }

    /// The handlers that a node with this configuration would have.
    pub(crate) fn handlers(&self, config: &Config) -> Registry {
        let registry = self.registry.clone().state(config.handlers.clone());
        if config.handlers.demo { registry } else { registry.without_demo() }
    }

    /// Connects, and proves it with one round trip.
    pub(crate) async fn connect(&self) -> Result<Cluster, Failure> {
        let cluster = self.prepare()?;
        // The first question goes to the server at once: a client's own enqueue would repeat it for seconds.
        cluster.store().probe().await.map_err(cluster.failed("reach the cluster"))?;
        Ok(cluster)
    }

    /// As [`Session::connect`], without the proof: for the one command that reports what is wrong.
    pub(crate) fn prepare(&self) -> Result<Cluster, Failure> {
        let config = self.load()?.config;
        let store = Store::new(&config.redis).map_err(|error| Failure::redis("connect", &config.redis.url, &error))?;
        let client = Client::over(store, config.jobs.max_payload.as_usize());
        Ok(Cluster { client, registry: self.handlers(&config), config })
    }
}

/// A cluster that answers.
pub(crate) struct Cluster {
    pub(crate) config: Config,
    pub(crate) client: Client,
    /// The handlers that a node with this configuration would have.
    pub(crate) registry: Registry,
}

impl Cluster {
    pub(crate) fn store(&self) -> &Store {
        self.client.store()
    }

    /// Makes the line for an error of Redis; `doing` fits after "failed to".
    pub(crate) fn failed(&self, doing: &'static str) -> impl Fn(StoreError) -> Failure + '_ {
        move |error| Failure::redis(doing, &self.config.redis.url, &error)
    }

    /// Refuses a queue that nobody ever used: a slip of the pen must not look like an empty queue.
    pub(crate) async fn known_queue(&self, queue: &str) -> Result<(), Failure> {
        punctual_core::job::check_queue(queue).map_err(|rule| Failure::usage(format!("queue: {queue:?} {rule}")))?;
        let queues = self.store().queues().await.map_err(self.failed("list the queues"))?;
        if queues.iter().any(|known| known == queue) {
            return Ok(());
        }
        let known = if queues.is_empty() { "there is none yet".to_owned() } else { format!("known: {}", queues.join(", ")) };
        Err(Failure::failed(format!("no queue {queue} in this cluster; {known}")))
    }
}

/// Runs one command's future on this thread: commands wait for Redis and compute nothing.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("start the runtime: {error}")))?;
    let result = runtime.block_on(future);
    // A blocked read of standard input must not keep the process.
    runtime.shutdown_background();
    result
}
