//! A node of the cluster as a real child process: `punctual node` with its settings in the environment.
//!
//! Every node gets a working directory of its own, so that no configuration file of the repository is read.

mod builder;

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

pub use builder::NodeBuilder;

use crate::log::{Log, message};
use crate::process::Process;

/// Time within which a node is up or has said something, on a busy machine with two cores.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(20);

/// A `punctual node` process; dropping it kills it. When a test fails, its last log lines are printed.
#[derive(Debug)]
pub struct NodeProcess {
    // Before `dir`: the process ends before its directory goes.
    process: Process,
    log: Log,
    dir: TempDir,
}

impl NodeProcess {
    /// Settings for a node of the cluster `namespace` on the Redis at `redis_url`.
    #[must_use]
    pub fn builder(redis_url: &str, namespace: &str) -> NodeBuilder {
        NodeBuilder::new(redis_url, namespace)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its working directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Everything it has logged.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Waits for a log line that satisfies `matches`; lines already there count.
    ///
    /// # Errors
    /// When none came within `timeout`.
    pub async fn wait_log(&self, matches: impl Fn(&Value) -> bool, timeout: Duration) -> Result<Value> {
        self.log.wait(matches, timeout).await
    }

    /// Its node id, from its first line `node started`.
    ///
    /// # Errors
    /// When that line does not come.
    pub async fn node_id(&self) -> Result<String> {
        let line = self.wait_log(message("node started"), NODE_TIMEOUT).await?;
        Ok(line["node_id"].as_str().context("`node started` has a node_id")?.to_owned())
    }

    /// Where its API listens, from its first line `http listening` (the API's comes before the operators').
    ///
    /// # Errors
    /// When that line does not come.
    pub async fn http_addr(&self) -> Result<SocketAddr> {
        self.listening(0).await
    }

    /// Where it answers `/healthz`, `/readyz` and `/metrics` without a token, if `http.ops_listen` and
    /// `http.listen` are both set: its second line `http listening`.
    ///
    /// # Errors
    /// When that line does not come.
    pub async fn ops_addr(&self) -> Result<SocketAddr> {
        self.listening(1).await
    }

    async fn listening(&self, nth: usize) -> Result<SocketAddr> {
        let seen = AtomicUsize::new(0);
        let is_nth = |line: &Value| message("http listening")(line) && seen.fetch_add(1, Ordering::Relaxed) == nth;
        let line = self.wait_log(is_nth, NODE_TIMEOUT).await?;
        line["addr"].as_str().context("`http listening` has an addr")?.parse().context("addr is an address with a port")
    }

    /// Asks it to drain (SIGTERM).
    ///
    /// # Errors
    /// When it has ended.
    pub fn term(&self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)
    }

    /// Asks it to drain as Ctrl-C does (SIGINT).
    ///
    /// # Errors
    /// When it has ended.
    pub fn int(&self) -> Result<()> {
        self.process.signal(Signal::SIGINT)
    }

    /// Kills it at once (SIGKILL), as a crash or an out-of-memory kill would.
    pub fn kill9(&self) {
        self.process.kill9();
    }

    /// Freezes it (SIGSTOP).
    ///
    /// # Errors
    /// When it has ended.
    pub fn stop(&self) -> Result<()> {
        self.process.signal(Signal::SIGSTOP)
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    /// When it has ended.
    pub fn cont(&self) -> Result<()> {
        self.process.signal(Signal::SIGCONT)
    }

    /// Sends any other signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// How it ended, or `None` while it runs.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn exited(&self) -> Result<Option<ExitStatus>> {
        self.process.exited()
    }

    /// Waits for its end and for the rest of its log.
    ///
    /// # Errors
    /// When it still runs after `timeout`; the text holds the last lines of the log.
    pub async fn wait_exit(&self, timeout: Duration) -> Result<ExitStatus> {
        let status = self.process.wait_exit(timeout).await;
        let status = status.map_err(|error| error.context(format!("the log ends with:\n{}", self.log.tail(30))))?;
        self.log.wait_end();
        Ok(status)
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("node {} logged last:\n{}", self.pid(), self.log.tail(30));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    // A script stands in for the binary: what is tested is the harness.
    const FAKE: &str = r#"
echo "{\"message\":\"node started\",\"node_id\":\"$PUNCTUAL__NODE__NAME-1\"}" >&2
echo "{\"message\":\"http listening\",\"addr\":\"127.0.0.1:1234\"}" >&2
echo "{\"message\":\"http listening\",\"addr\":\"127.0.0.1:1235\"}" >&2
echo "{\"message\":\"$1 $PUNCTUAL__RETENTION__SUCCEEDED $PUNCTUAL__NODE__DEAD_AFTER\"}" >&2
trap 'echo "{\"message\":\"node stopped\"}" >&2; exit 0' TERM
while :; do sleep 0.05; done
"#;

    #[tokio::test]
    async fn node_is_observed_signalled_and_ended() {
        let dir = tempfile::tempdir().unwrap();
        let fake = dir.path().join("punctual.sh");
        std::fs::write(&fake, FAKE).unwrap();
        let start = || {
            let settings = NodeProcess::builder("redis://127.0.0.1:1/0", "t").name("a").quick().set("retention.succeeded", "0s");
            let mut command = Command::new("sh");
            command.arg(&fake);
            settings.launch(command).unwrap()
        };
        let node = start();
        assert_eq!(node.node_id().await.unwrap(), "a-1");
        assert_eq!(node.http_addr().await.unwrap().port(), 1234);
        assert_eq!(node.ops_addr().await.unwrap().port(), 1235);
        node.wait_log(message("node 0s 1000ms"), NODE_TIMEOUT).await.unwrap();
        node.stop().unwrap();
        node.term().unwrap();
        assert!(node.wait_exit(Duration::from_millis(200)).await.is_err(), "a frozen process does not end");
        node.cont().unwrap();
        assert_eq!(node.wait_exit(NODE_TIMEOUT).await.unwrap().code(), Some(0));
        assert_eq!(node.log().matching(message("node stopped")).len(), 1);
        assert!(node.term().is_err());

        let victim = start();
        victim.node_id().await.unwrap();
        victim.kill9();
        assert_eq!(victim.wait_exit(NODE_TIMEOUT).await.unwrap().signal(), Some(9));
    }
}
