//! Settings of a node, given as environment variables, and its start.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::NodeProcess;
use crate::binary::punctual_command;
use crate::log::Log;
use crate::process::Process;

/// Settings of a node that is not started yet.
///
/// From the start: demo handlers on, HTTP on a free port of 127.0.0.1, logs as JSON at level `debug`; everything else
/// is the product's own default.
#[derive(Clone, Debug)]
pub struct NodeBuilder {
    env: BTreeMap<String, String>,
    args: Vec<String>,
}

impl NodeBuilder {
    pub(super) fn new(redis_url: &str, namespace: &str) -> Self {
        Self { env: BTreeMap::new(), args: Vec::new() }
            .set("redis.url", redis_url)
            .set("redis.namespace", namespace)
            .set("handlers.demo", "true")
            .set("http.listen", "127.0.0.1:0")
            .set("log.format", "json")
            .set("log.level", "debug")
    }

    /// Sets a key of the configuration by its name in the file, such as `("retention.succeeded", "0s")`.
    #[must_use]
    pub fn set(self, key: &str, value: &str) -> Self {
        self.env(&format!("PUNCTUAL__{}", key.replace('.', "__").to_uppercase()), value)
    }

    /// Sets any variable of the environment, such as `LD_PRELOAD`.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Adds an argument behind `punctual node`.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// `node.name`.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        self.set("node.name", name)
    }

    /// `node.concurrency`.
    #[must_use]
    pub fn concurrency(self, jobs: usize) -> Self {
        self.set("node.concurrency", &jobs.to_string())
    }

    /// `node.queues`, such as `default=1,mail=3`.
    #[must_use]
    pub fn queues(self, queues: &str) -> Self {
        self.set("node.queues", queues)
    }

    /// `node.heartbeat_every` and `node.dead_after`.
    #[must_use]
    pub fn heartbeat(self, every: Duration, dead_after: Duration) -> Self {
        self.set("node.heartbeat_every", &millis(every)).set("node.dead_after", &millis(dead_after))
    }

    /// `lease.ttl` and `lease.renew_every`.
    #[must_use]
    pub fn lease(self, ttl: Duration, renew_every: Duration) -> Self {
        self.set("lease.ttl", &millis(ttl)).set("lease.renew_every", &millis(renew_every))
    }

    /// `node.drain_timeout`.
    #[must_use]
    pub fn drain_timeout(self, timeout: Duration) -> Self {
        self.set("node.drain_timeout", &millis(timeout))
    }

    /// `http.listen`; `none` for no API.
    #[must_use]
    pub fn http_listen(self, address: &str) -> Self {
        self.set("http.listen", address)
    }

    /// `http.ops_listen`, such as `127.0.0.1:0`.
    #[must_use]
    pub fn ops_listen(self, address: &str) -> Self {
        self.set("http.ops_listen", address)
    }

    /// Deaths and a lost lease are noticed in 1 to 2 s instead of 5 to 10: for tests that wait for them.
    #[must_use]
    pub fn quick(self) -> Self {
        let ms = Duration::from_millis;
        self.heartbeat(ms(200), ms(1_000)).lease(ms(1_000), ms(300))
    }

    /// Starts the process and returns at once.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(self) -> Result<NodeProcess> {
        self.launch(punctual_command())
    }

    // The tests of the harness launch a stand-in.
    pub(super) fn launch(self, mut command: Command) -> Result<NodeProcess> {
        let dir = tempfile::Builder::new().prefix("punctual-node-").tempdir()?;
        command.arg("node").args(&self.args).envs(&self.env).current_dir(dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let process = Process::spawn(command)?;
        let log = Log::capture(process.take_stderr().context("the child's standard error is a pipe")?);
        Ok(NodeProcess { process, log, dir })
    }

    /// Starts the process and waits for its line `node started`.
    ///
    /// # Errors
    /// When the line does not come; the text holds the last lines of the log.
    pub async fn start(self) -> Result<NodeProcess> {
        let node = self.spawn()?;
        node.node_id().await?;
        Ok(node)
    }
}

fn millis(span: Duration) -> String {
    format!("{}ms", span.as_millis())
}
