//! `punctual dev`: one command to everything, one per directory, and data that survive.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use punctual_tests::binary::{punctual_bin, redis_server_bin};
use punctual_tests::process::Process;
use punctual_tests::{Cli, eventually};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);

struct Dev {
    process: Process,
    /// What it said when Redis was up.
    document: Value,
    cli: Cli,
}

fn command(dir: &Path) -> Result<Command> {
    let mut command = Command::new(punctual_bin());
    command.args(["dev", "--port", "0", "-o", "json"]).current_dir(dir).env("REDIS_SERVER", redis_server_bin()?);
    command.env("PUNCTUAL__REDIS__URL", "redis://127.0.0.1:1").stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped());
    Ok(command)
}

async fn start(dir: &Path) -> Result<Dev> {
    let process = Process::spawn(command(dir)?)?;
    let (out, err) = (process.take_stdout().context("a pipe")?, process.take_stderr().context("a pipe")?);
    // The node's log is not looked at, but a full pipe would stop it.
    std::thread::spawn(move || BufReader::new(err).lines().map_while(Result::ok).count());
    let document = tokio::task::spawn_blocking(move || serde_json::Deserializer::from_reader(out).into_iter().next());
    let document: Value = tokio::time::timeout(SOON, document).await??.context("dev says where it is")??;
    let cli = Cli::new(document["redis"].as_str().context("redis is a URL")?, "punctual");
    Ok(Dev { process, document, cli })
}

impl Dev {
    async fn stop(self) -> Result<()> {
        self.process.signal(Signal::SIGINT)?;
        assert_eq!(self.process.wait_exit(SOON).await?.code(), Some(0));
        Ok(())
    }
}

#[tokio::test]
async fn dev_runs_jobs_keeps_its_data_and_is_alone_in_its_directory() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let dev = start(dir.path()).await?;
    assert!(dev.document["url"].as_str().unwrap_or_default().starts_with("http://127.0.0.1:"), "{}", dev.document);
    let node = async || dev.cli.run(&["nodes", "list"]).await.ok()?.json["nodes"][0]["id"].is_string().then_some(());
    eventually(SOON, "the node", node).await?;
    let done = dev.cli.run(&["enqueue", "demo.sleep", "--args", r#"{"ms":1}"#, "--wait"]).await?;
    assert_eq!(done.code, 0, "{done:?}");
    dev.cli.run(&["enqueue", "demo.noop", "--delay", "1h", "--id", "later"]).await?.ok()?;

    let second = tokio::task::spawn_blocking({
        let mut command = command(dir.path())?;
        move || command.output()
    });
    let second = tokio::time::timeout(SOON, second).await???;
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(1) && said.contains("another punctual dev") && said.contains("--data"), "{said}");

    let cli = dev.cli.clone();
    dev.stop().await?;
    assert_eq!(cli.run(&["lease"]).await?.code, 1, "Redis is stopped with it");
    let again = start(dir.path()).await?;
    assert_eq!(again.cli.run(&["jobs", "show", "later"]).await?.ok()?["state"], "scheduled");
    again.stop().await
}

#[tokio::test]
async fn redis_of_a_killed_dev_is_stopped_by_the_next_one() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let dev = start(dir.path()).await?;
    dev.cli.run(&["enqueue", "order.close", "--args", super::ORDER, "--delay", "1h", "--id", "later"]).await?.ok()?;
    dev.process.kill9();
    assert_eq!(dev.cli.run(&["jobs", "show", "later"]).await?.code, 0, "Redis lives on");
    let next = start(dir.path()).await?;
    assert_eq!(next.cli.run(&["jobs", "show", "later"]).await?.ok()?["state"], "scheduled");
    next.stop().await
}

#[tokio::test]
async fn dev_refuses_another_redis_and_says_when_there_is_none() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let run = |args: &[&str], env: &[(&str, &str)]| -> Result<(Option<i32>, String)> {
        let output = command(dir.path())?.args(args).envs(env.iter().copied()).output()?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let (code, said) = run(&["--redis", "redis://127.0.0.1:1"], &[])?;
    assert!(code == Some(2) && said.contains("punctual node"), "{said}");
    let (code, said) = run(&[], &[("PATH", "/nowhere"), ("REDIS_SERVER", "/bin/true")])?;
    assert!(code == Some(1) && said.contains("passed over /bin/true") && said.contains("install redis-server"), "{said}");
    Ok(())
}
