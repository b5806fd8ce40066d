//! Three `punctual node` processes, as an operator would run them: settings in the environment, one JSON log file per node.
//!
//! Everything that is started here dies with this process: by the kernel on Linux, by `Drop` elsewhere and at Ctrl-C.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use punctual_tests::binary::punctual_bin;
use punctual_tests::process::Process;

/// The three nodes.
pub const NAMES: [&str; 3] = ["node-a", "node-b", "node-c"];
/// One queue per story.
pub const QUEUES: [&str; 3] = ["orders", "articles", "reports"];
/// All keys begin with it.
pub const NAMESPACE: &str = "demo";
/// `node.dead_after`: the product's default, named here because the demo reasons about it.
pub const DEAD_AFTER: Duration = Duration::from_secs(5);
/// `lease.ttl`, likewise.
pub const LEASE_TTL: Duration = Duration::from_secs(5);

/// The nodes.
pub struct Cluster {
    nodes: BTreeMap<&'static str, Process>,
    env: Vec<(String, String)>,
    dir: PathBuf,
}

impl Cluster {
    /// Settings for nodes that log into `dir`; they follow by [`Self::start`]. `http` and `exec` are all that they may reach.
    pub fn new(dir: &Path, redis_url: &str, http: &str, exec: &str) -> Self {
        let queues = QUEUES.map(|queue| format!("{queue}=1")).join(",");
        let list = |item: &str| serde_json::json!([item]).to_string();
        let env = [
            ("REDIS__URL", redis_url.to_owned()),
            ("REDIS__NAMESPACE", NAMESPACE.to_owned()),
            ("NODE__QUEUES", queues),
            ("NODE__DEAD_AFTER", format!("{}s", DEAD_AFTER.as_secs())),
            ("LEASE__TTL", format!("{}s", LEASE_TTL.as_secs())),
            ("HTTP__LISTEN", "127.0.0.1:0".to_owned()),
            ("LOG__FORMAT", "json".to_owned()),
            ("LOG__LEVEL", "info".to_owned()),
            ("HANDLERS__HTTP__ALLOW", list(http)),
            ("HANDLERS__EXEC__ALLOW", list(exec)),
        ];
        let env = env.map(|(key, value)| (format!("PUNCTUAL__{key}"), value)).to_vec();
        Self { nodes: BTreeMap::new(), env, dir: dir.to_owned() }
    }

    /// Starts a process under this name, in place of one that is gone.
    pub fn start(&mut self, name: &'static str) -> Result<()> {
        let log = File::options().create(true).append(true).open(log_file(&self.dir, name))?;
        let mut command = Command::new(punctual_bin());
        for (variable, _) in std::env::vars_os() {
            let text = variable.to_string_lossy();
            if text.starts_with("PUNCTUAL_") || text == "POD_NAME" {
                command.env_remove(&variable);
            }
        }
        command.arg("node").envs(self.env.iter().cloned()).env("PUNCTUAL__NODE__NAME", name);
        // A directory without config/punctual.toml.
        command.current_dir(&self.dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.nodes.insert(name, Process::spawn(command)?);
        Ok(())
    }

    /// SIGKILL: a crash, an out-of-memory kill, a lost machine.
    pub fn kill(&self, name: &str) -> Result<()> {
        let node = self.node(name)?;
        ensure!(node.exited()?.is_none(), "{name} had ended by itself before it was to be killed");
        node.kill9();
        Ok(())
    }

    /// SIGSTOP: a machine that hangs, a container that is throttled, a laptop that sleeps.
    pub fn pause(&self, name: &str) -> Result<()> {
        self.node(name)?.signal(Signal::SIGSTOP)
    }

    /// SIGCONT.
    pub fn resume(&self, name: &str) -> Result<()> {
        self.node(name)?.signal(Signal::SIGCONT)
    }

    /// SIGTERM to this node, and what it ends with.
    pub async fn stop(&self, name: &str) -> Result<Option<i32>> {
        let node = self.node(name)?;
        node.signal(Signal::SIGTERM)?;
        let status = node.wait_exit(Duration::from_secs(15)).await.with_context(|| format!("{name} does not stop"))?;
        Ok(status.code())
    }

    /// Nodes that have ended although nobody ended them.
    pub fn lost(&self) -> Vec<&'static str> {
        self.nodes.iter().filter(|(_, node)| !matches!(node.exited(), Ok(None))).map(|(name, _)| *name).collect()
    }

    fn node(&self, name: &str) -> Result<&Process> {
        self.nodes.get(name).with_context(|| format!("{name} was never started"))
    }
}

/// Where a node's log is, over all of its lives.
pub fn log_file(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.log"))
}
