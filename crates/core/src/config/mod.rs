//! The configuration: typed, layered, and checked as a whole before anything starts.
//!
//! [`Config::load`] merges built-in defaults < file < environment < flags, then reads every key. It reports all problems at
//! once, each with its key and the layer that said it, and never with a secret in it. Absent: anything that reads the
//! configuration again while the process runs, but for `redis.password_file`.
//!
//! A new key needs a line in `config/default.toml`, a field here, a reader in build.rs and a line in show.rs; tests fail
//! while one of the four is missing.

mod build;
mod check;
mod errors;
mod keys;
mod layers;
mod lines;
mod read;
mod redis_url;
mod show;
mod size;
mod surroundings;
#[cfg(test)]
mod tests;
mod tokens;
mod words;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use figment::Figment;

pub use self::errors::{ConfigErrors, Problem};
pub use self::keys::known_keys;
use self::layers::Layer;
pub use self::layers::{Layers, Override};
use self::read::Reader;
pub use self::redis_url::RedisUrl;
pub use self::show::effective_json;
pub use self::size::Bytes;
pub use self::surroundings::Surroundings;
pub use self::tokens::{Digest, Role, Token};
pub use self::words::{Listen, LogFormat, OnIsolation};
use crate::backoff::RetryPolicy;
pub use crate::duration;

/// The whole configuration. `Debug` shows no secret. Defaults, units and reasons are in `config/default.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where Redis is and how to log in.
    pub redis: Redis,
    /// This node of the cluster.
    pub node: Node,
    /// The right to promote due jobs.
    pub lease: Lease,
    /// What a job gets that does not say otherwise.
    pub jobs: Jobs,
    /// Retry policies by name.
    pub retry: RetryConfig,
    /// How long ended jobs are kept.
    pub retention: Retention,
    /// The HTTP servers.
    pub http: Http,
    /// Log lines.
    pub log: Log,
    /// What the built-in handlers may do.
    pub handlers: Handlers,
}

/// `redis.*`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redis {
    /// `redis://127.0.0.1:6379` by default.
    pub url: RedisUrl,
    /// First part of every key, 1 to 64 of `a-z0-9_-`; `punctual` by default.
    pub namespace: String,
    /// Beats the user in the URL; see [`Redis::username`].
    pub username: Option<String>,
    /// Beats the password in the URL; see [`Redis::password`].
    pub password_file: Option<PathBuf>,
    /// Certificates in PEM that may sign the server's; only with `rediss://`.
    pub ca_file: Option<PathBuf>,
    /// Replicas that must confirm an enqueued job, 0 to 100; 0 by default.
    pub wait_replicas: u32,
    /// Starts although Redis may evict keys; false by default.
    pub allow_eviction: bool,
}

/// `node.*`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// 1 to 253 of `A-Za-z0-9._-`; the pod's or the host's name by default.
    pub name: String,
    /// Jobs that run at the same time, 1 to 100,000; 64 by default.
    pub concurrency: u32,
    /// Queues served, at least one, with weights of 1 to 1,000; `default` with 1 by default.
    pub queues: BTreeMap<String, u32>,
    /// Whether a lighter queue is served only while all heavier ones are empty; false by default.
    pub strict: bool,
    /// Pause between two signs of life, 50 ms to 1 min; 1 s by default.
    pub heartbeat_every: Duration,
    /// Silence after which a node counts as dead, at least 3 × `heartbeat_every`, at most 1 h; 5 s by default.
    pub dead_after: Duration,
    /// Time for running jobs to end after a stop signal, 0 to 1 h; 25 s by default.
    pub drain_timeout: Duration,
    /// What running jobs do while Redis is out of reach; `continue` by default.
    pub on_isolation: OnIsolation,
}

/// `lease.*`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// How long the lease is held without renewal, at least 3 × `renew_every`, at most 10 min; 5 s by default.
    pub ttl: Duration,
    /// Pause between two renewals, 50 ms to 1 min; 1.5 s by default.
    pub renew_every: Duration,
}

/// `jobs.*`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jobs {
    /// Attempts in all, 1 to 10,000; 5 by default.
    pub max_attempts: u32,
    /// Longest run of one attempt, 1 ms to 30 d; 5 min by default.
    pub timeout: Duration,
    /// Deaths of nodes that one job may outlive, 1 to 1,000; 3 by default.
    pub max_crashes: u32,
    /// Largest arguments of a job, 1 B to 16 MiB; 256 KiB by default.
    pub max_payload: Bytes,
}

/// `retry.*`
#[derive(Clone, Debug, PartialEq)]
pub struct RetryConfig {
    /// Policies by name; `fast`, `slow` and `default` are always there.
    pub presets: BTreeMap<String, RetryPolicy>,
}

/// `retention.*`: age and count both bound, per queue; 0 removes at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How long succeeded and cancelled jobs are kept, 0 to 3650 d; 1 h by default.
    pub succeeded: Duration,
    /// How many of each are kept, 0 to 100,000,000; 10,000 by default.
    pub succeeded_max: u64,
    /// How long dead jobs are kept, 0 to 3650 d; 30 d by default.
    pub dead: Duration,
    /// How many dead jobs are kept, 0 to 100,000,000; 100,000 by default.
    pub dead_max: u64,
}

/// `http.*`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// API and dashboard; `127.0.0.1:7070` by default. Without tokens always an address of this machine alone.
    pub listen: Listen,
    /// Health and metrics only, without tokens; nowhere by default.
    pub ops_listen: Listen,
    /// Who may use the API; nobody from outside by default. Names and digests are unique.
    pub tokens: Vec<Token>,
}

/// `log.*`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// `auto` by default: pretty on a terminal, JSON elsewhere.
    pub format: LogFormat,
    /// A filter of `tracing`, checked: `info` by default, or `info,TARGET=debug`.
    pub level: String,
}

/// `handlers.*`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handlers {
    /// Whether the `demo.*` handlers are registered; false by default.
    pub demo: bool,
    /// URL prefixes for `http.request`.
    pub http: Allow,
    /// Absolute paths for `process.exec`, `*` inside one path part.
    pub exec: Allow,
}

/// What a handler may reach; nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allow {
    /// The list; never holds empty texts.
    pub allow: Vec<String>,
}

/// A configuration with where its values came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// Dotted key → `built-in default`, a file's path, `environment PUNCTUAL__NODE__NAME` or `flag --redis`. Presets are listed
    /// by single values, such as `retry.presets.fast.base`.
    pub sources: BTreeMap<String, String>,
    /// The file that was read.
    pub file: Option<PathBuf>,
}

impl Config {
    /// Merges and checks all layers: this process's environment, and the file that `layers` names or that is found.
    ///
    /// # Errors
    /// Every problem of every layer, in one go.
    pub fn load(layers: &Layers) -> Result<Loaded, ConfigErrors> {
        Self::load_in(layers, &Surroundings::of_process())
    }

    /// As [`Config::load`], with the environment and the searched places given: for tests.
    ///
    /// # Errors
    /// Every problem of every layer, in one go.
    pub fn load_in(layers: &Layers, surroundings: &Surroundings) -> Result<Loaded, ConfigErrors> {
        let (mut reader, file) = layered(layers, surroundings)?;
        let config = build::config(&mut reader, &surroundings.host_name);
        check::across(&config, &mut reader);
        if reader.problems.is_empty() {
            Ok(Loaded { config, sources: show::sources(&reader), file })
        } else {
            Err(ConfigErrors { problems: reader.problems })
        }
    }

    /// The defaults with another Redis: what a service needs that only enqueues.
    ///
    /// ```
    /// let config = punctual_core::config::Config::for_redis("redis://127.0.0.1:6390/1").unwrap();
    /// assert_eq!(config.redis.url.port(), Some(6390));
    /// ```
    ///
    /// # Errors
    /// When `url` is not one that [`RedisUrl::parse`] takes.
    pub fn for_redis(url: &str) -> Result<Self, ConfigErrors> {
        let url = RedisUrl::parse(url)
            .map_err(|message| ConfigErrors { problems: vec![Problem { key: "redis.url".to_owned(), message, origin: None }] })?;
        let mut config = Self::default();
        config.redis.url = url;
        Ok(config)
    }
}

impl Default for Config {
    /// The built-in defaults alone, without file and environment, but for the name of the pod or host.
    fn default() -> Self {
        let surroundings = Surroundings { env: Vec::new(), search: Vec::new(), ..Surroundings::of_process() };
        Self::load_in(&Layers::default(), &surroundings).expect("the embedded defaults pass, which a test guards").config
    }
}

/// Merges the layers. Keys that do not exist are noted; a file that cannot be read or parsed ends it here.
fn layered(layers: &Layers, surroundings: &Surroundings) -> Result<(Reader, Option<PathBuf>), ConfigErrors> {
    let mut problems = Vec::new();
    let mut stack = vec![Layer::built_in(), Layer::overrides(&layers.defaults, &mut problems)];
    let found = layers::find_file(layers.file.as_ref(), &surroundings.search).and_then(|found| {
        let Some((path, text)) = found else { return Ok(None) };
        let mut layer = Layer::file(&path.display().to_string(), &text)?;
        keys::prune(&mut layer, &mut problems);
        stack.push(layer);
        Ok(Some(path))
    });
    stack.push(Layer::environment(&surroundings.env, &mut problems));
    stack.push(Layer::overrides(&layers.flags, &mut problems));
    match found {
        Ok(file) => {
            layers::replace_whole(&mut stack);
            let figment = stack.into_iter().fold(Figment::new(), Figment::merge);
            Ok((Reader::new(figment, problems), file))
        }
        // Without its file, what remains would be judged against defaults that the file may have changed.
        Err(problem) => {
            problems.insert(0, problem);
            Err(ConfigErrors { problems })
        }
    }
}
