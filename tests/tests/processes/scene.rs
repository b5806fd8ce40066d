//! One cluster: a namespace on a Redis, its command line, its nodes, and the witness to which its jobs write.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use punctual_tests::{Cli, Http, NodeBuilder, NodeProcess, RedisServer, eventually, fresh_namespace};
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tempfile::TempDir;

/// For what takes a second or two on an idle machine.
pub const SOON: Duration = Duration::from_secs(30);
/// For what takes ten seconds or more on an idle machine.
pub const LATER: Duration = Duration::from_secs(90);

/// A cluster of a test's own.
pub struct Scene {
    /// Where its nodes find Redis; the command line goes there directly.
    node_url: String,
    direct_url: String,
    /// Its namespace.
    pub ns: String,
    /// Its command line.
    pub cli: Cli,
    dir: TempDir,
}

impl Scene {
    /// On the server that all tests share.
    pub async fn shared() -> Result<Self> {
        Self::on(RedisServer::shared().await?)
    }

    /// On a server of the test's own.
    pub fn on(redis: &RedisServer) -> Result<Self> {
        Self::via(redis, redis.port())
    }

    /// The nodes reach Redis through a proxy on this port.
    pub fn via(redis: &RedisServer, port: u16) -> Result<Self> {
        let ns = fresh_namespace();
        let cli = Cli::new(&redis.url(), &ns).env("PUNCTUAL__HANDLERS__DEMO", "true");
        let dir = tempfile::Builder::new().prefix("punctual-witness-").tempdir()?;
        Ok(Self { node_url: redis.url_via(port), direct_url: redis.url(), ns, cli, dir })
    }

    /// A node on which deaths show within two seconds, and which two slow cores do not kill.
    pub fn node(&self, name: &str) -> NodeBuilder {
        let ms = Duration::from_millis;
        self.steady(name).heartbeat(ms(300), ms(2_000)).lease(ms(1_500), ms(400))
    }

    /// A node with the product's own timing: nobody is declared dead in a test of something else.
    pub fn steady(&self, name: &str) -> NodeBuilder {
        NodeProcess::builder(&self.node_url, &self.ns).name(name).set("handlers.exec.allow", "/bin/sh")
    }

    /// A connection to its Redis.
    pub async fn conn(&self) -> Result<MultiplexedConnection> {
        Ok(redis::Client::open(self.direct_url.as_str())?.get_multiplexed_async_connection().await?)
    }

    /// Stores one job with further flags; returns its id.
    pub async fn enqueue(&self, handler: &str, args: &Value, flags: &[&str]) -> Result<String> {
        let args = args.to_string();
        let mut line = vec!["enqueue", handler, "--args", &args];
        line.extend(flags);
        let stored = self.cli.run(&line).await?.ok()?;
        Ok(stored["id"].as_str().context("a stored job has an id")?.to_owned())
    }

    /// Stores jobs, each the body of POST /api/v1/jobs, in one call; returns their ids.
    pub async fn enqueue_all(&self, jobs: impl IntoIterator<Item = Value>) -> Result<Vec<String>> {
        let lines: Vec<String> = jobs.into_iter().map(|job| job.to_string()).collect();
        let stored = self.cli.run_with_input(&["enqueue", "--bulk", "-"], &lines.join("\n")).await?.ok()?;
        let stored = match stored {
            Value::Array(stored) => stored,
            one => vec![one],
        };
        let ids: Option<Vec<String>> = stored.iter().map(|one| Some(one["id"].as_str()?.to_owned())).collect();
        ids.filter(|ids| ids.len() == lines.len()).with_context(|| format!("an id for each of {} lines", lines.len()))
    }

    /// The document of `jobs show`.
    pub async fn job(&self, id: &str) -> Result<Value> {
        self.cli.run(&["jobs", "show", id]).await?.ok()
    }

    /// How many jobs of a queue are in each state; all zero while nobody knows the queue.
    pub async fn states(&self, queue: &str) -> Result<Value> {
        let shown = self.cli.run(&["queues", "show", queue]).await?;
        Ok(if shown.code == 0 { shown.json["states"].clone() } else { json!({}) })
    }

    /// How many jobs of the queue `default` are in a state.
    pub async fn count(&self, state: &str) -> Result<u64> {
        Ok(self.states("default").await?[state].as_u64().unwrap_or(0))
    }

    /// Waits until exactly so many jobs of the queue `default` are in a state.
    pub async fn until_count(&self, state: &str, count: u64, within: Duration) -> Result<()> {
        let what = format!("{count} {state} jobs");
        let reached = eventually(within, &what, async || (self.count(state).await.ok()? == count).then_some(())).await;
        match reached {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(format!("at last: {}", self.states("default").await?))),
        }
    }

    /// Waits until a job is in a state; returns its document.
    pub async fn until_state(&self, id: &str, state: &str, within: Duration) -> Result<Value> {
        let what = format!("job {id} to be {state}");
        let reached = eventually(within, &what, async || self.job(id).await.ok().filter(|job| job["state"] == *state)).await;
        match reached {
            Ok(job) => Ok(job),
            Err(error) => Err(error.context(format!("at last: {}", self.job(id).await?))),
        }
    }

    /// The documents of these jobs.
    pub async fn jobs(&self, ids: &[String]) -> Result<Vec<Value>> {
        let mut jobs = Vec::new();
        for id in ids {
            jobs.push(self.job(id).await?);
        }
        Ok(jobs)
    }

    /// A job that writes its id into the witness when it starts and then takes so many seconds, such as `0.05`.
    pub fn witnessed(&self, seconds: &str) -> Value {
        let script = format!("echo \"$PUNCTUAL_JOB_ID\" >> {}; sleep {seconds}", self.witness_path().display());
        json!({ "handler": "process.exec", "args": { "argv": ["/bin/sh", "-c", script] }, "max_attempts": 1 })
    }

    /// A job that writes this word into the witness when it starts.
    pub fn saying(&self, word: &str) -> Value {
        let script = format!("echo {word} >> {}", self.witness_path().display());
        json!({ "handler": "process.exec", "args": { "argv": ["/bin/sh", "-c", script] }, "max_attempts": 1 })
    }

    /// The lines of the witness, in the order in which they were written.
    pub fn witness(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.witness_path()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Fails unless each of these jobs, and no other, has started exactly once.
    pub fn assert_ran_once(&self, ids: &[String]) -> Result<()> {
        let mut starts: BTreeMap<String, u32> = ids.iter().map(|id| (id.clone(), 0)).collect();
        for id in self.witness() {
            *starts.entry(id).or_insert(0) += 1;
        }
        starts.retain(|_, count| *count != 1);
        ensure!(starts.is_empty() && !ids.is_empty(), "not started exactly once: {starts:?}");
        Ok(())
    }

    /// The keys of lists in which an incarnation holds entries or jobs.
    pub async fn held_lists(&self) -> Result<Vec<String>> {
        let mut conn = self.conn().await?;
        let mut held = Vec::new();
        for part in ["p:*", "run:*"] {
            let pattern = format!("{{{}:*}}:{part}", self.ns);
            held.extend(redis::cmd("KEYS").arg(pattern).query_async::<Vec<String>>(&mut conn).await?);
        }
        Ok(held)
    }

    /// Waits until no incarnation holds anything.
    pub async fn until_nothing_is_held(&self, within: Duration) -> Result<()> {
        eventually(within, "all processing lists to be empty", async || {
            self.held_lists().await.ok().filter(Vec::is_empty).map(drop)
        })
        .await
    }

    fn witness_path(&self) -> PathBuf {
        self.dir.path().join("witness")
    }
}

/// A `demo.sleep` that may be tried once.
pub fn sleeper(ms: u64) -> Value {
    json!({ "handler": "demo.sleep", "args": { "ms": ms }, "max_attempts": 1 })
}

/// A `demo.noop` that may be tried once.
pub fn noop() -> Value {
    json!({ "handler": "demo.noop", "max_attempts": 1 })
}

/// The outcomes of a job's attempts.
pub fn outcomes(job: &Value) -> Vec<&str> {
    job["attempts"].as_array().into_iter().flatten().filter_map(|attempt| attempt["outcome"].as_str()).collect()
}

/// The sum of a counter over all its labels.
pub async fn metric(node: &NodeProcess, name: &str) -> Result<f64> {
    let text = Http::new(node.http_addr().await?).get("/metrics").await?.text();
    let lines = text.lines().filter(|line| line.starts_with(name) && !line.starts_with('#'));
    Ok(lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
}

/// When a line was logged, in milliseconds since 1970.
pub fn logged_at(line: &Value) -> Result<i64> {
    instant(&line["timestamp"])
}

/// An RFC 3339 text as milliseconds since 1970.
pub fn instant(text: &Value) -> Result<i64> {
    let text = text.as_str().context("an instant is a text")?;
    Ok(text.parse::<jiff::Timestamp>().with_context(|| format!("instant {text}"))?.as_millisecond())
}
