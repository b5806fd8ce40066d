//! One node as a process of its own: the same binary, configured through its environment.
//!
//! It stands in a process group of its own, so that Ctrl-C reaches the bench alone, and dies with the value that holds it.

use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::measurement::Skip;
use super::place::{Bench, Place};

/// A node is a member of the cluster within this time.
const START: Duration = Duration::from_secs(15);
/// Linux counts CPU time for its readers in hundredths of a second on every machine.
const US_PER_TICK: f64 = 10_000.0;

/// A running node.
pub(super) struct Node {
    child: Child,
    pid: u32,
    /// Its id in the cluster.
    pub(super) id: String,
}

impl Node {
    /// Starts a node on these queues, such as `bench=1`, and waits until it is a member; `keep` says whether succeeded jobs are kept.
    pub(super) async fn start(bench: &Bench, place: &Place, name: &str, queues: &str, keep: bool) -> Result<Self, Skip> {
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(file) = &bench.globals.config {
            command.arg("--config").arg(file);
        }
        if let Some(url) = &bench.globals.redis {
            command.args(["--redis", url]);
        }
        command.args(["--namespace", &place.namespace, "node"]);
        let concurrency = bench.concurrency.to_string();
        let settings = [
            ("NODE__NAME", name),
            ("NODE__QUEUES", queues),
            ("NODE__CONCURRENCY", &concurrency),
            ("HANDLERS__DEMO", "true"),
            ("HTTP__LISTEN", "none"),
            ("HTTP__OPS_LISTEN", "none"),
            ("LOG__LEVEL", "warn"),
            ("LOG__FORMAT", "json"),
            ("RETENTION__SUCCEEDED", if keep { "1h" } else { "0s" }),
        ];
        for (key, value) in settings {
            command.env(format!("PUNCTUAL__{key}"), value);
        }
        // A variable of the user's shell must not point this node at another namespace than its flag does.
        command.env_remove("PUNCTUAL__REDIS__NAMESPACE");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        let mut child = command.spawn()?;
        let pid = child.id().ok_or(Skip::from("the node ended at once"))?;
        let last = last_line(&mut child);
        let mut node = Self { child, pid, id: String::new() };
        let started = Instant::now();
        while started.elapsed() < START {
            if let Some(status) = node.child.try_wait()? {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let said = last.lock().unwrap_or_else(PoisonError::into_inner).clone();
                return Err(Skip(format!("a node ended ({status}): {said}")));
            }
            let views = place.store.node_views().await?;
            if let Some(view) = views.into_iter().find(|view| view.name == name) {
                node.id = view.id;
                return Ok(node);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err("a node did not become a member in time".into())
    }

    /// Kills it as `kill -9` does, and waits for its end.
    pub(super) async fn kill(&mut self) -> Result<(), Skip> {
        Ok(self.child.kill().await?)
    }

    /// CPU time in microseconds that it has used; `None` where the system does not tell.
    pub(super) fn cpu_us(&self) -> Option<f64> {
        cpu_us(&std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?)
    }

    /// Resident memory in MiB: now, and the most it ever was.
    pub(super) fn rss_mib(&self) -> Option<(f64, f64)> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        Some((mib(&status, "VmRSS:")?, mib(&status, "VmHWM:")?))
    }

    /// Waits until it holds the lease.
    pub(super) async fn until_holder(&self, place: &Place) -> Result<(), Skip> {
        let started = Instant::now();
        while started.elapsed() < START {
            if place.store.lease().await?.is_some_and(|held| held.holder == self.id) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err("the node did not get the lease in time".into())
    }
}

/// Keeps the last line of standard error: why a node would not start.
fn last_line(child: &mut Child) -> Arc<Mutex<String>> {
    let last = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&last);
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                *kept.lock().unwrap_or_else(PoisonError::into_inner) = line;
            }
        });
    }
    last
}

/// User and system time of a process: fields 14 and 15, counted after the name, which may hold anything.
fn cpu_us(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) * US_PER_TICK)
}

fn mib(status: &str, field: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<f64>().ok()? / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_s_numbers_are_read() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 25 75 0 0 20 0 5 0 100";
        assert_eq!(cpu_us(stat), Some(1_000_000.0));
        assert_eq!(mib("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n", "VmHWM:"), Some(2.0));
        assert_eq!((cpu_us("nonsense"), mib("", "VmRSS:")), (None, None));
    }
}
