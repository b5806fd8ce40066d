//! Commands that talk to a running node: `--wait`, draining, stepping down, and a doctor with nothing to find.

use std::time::Duration;

use anyhow::Result;
use punctual_tests::{Aof, Cli, NodeProcess, RedisServer, eventually, fresh_namespace};
use serde_json::json;

use super::text;

async fn with_node() -> Result<(Cli, NodeProcess)> {
    let (url, namespace) = (RedisServer::shared().await?.url(), fresh_namespace());
    let node = NodeProcess::builder(&url, &namespace).quick().start().await?;
    // The demo handlers are off here: what the node advertises lets their jobs in.
    Ok((Cli::new(&url, &namespace), node))
}

#[tokio::test]
async fn wait_follows_a_job_to_its_end() -> Result<()> {
    let (cli, _node) = with_node().await?;
    let done = cli.run(&["enqueue", "demo.sleep", "--args", r#"{"ms":100}"#, "--delay", "200ms", "--wait"]).await?;
    assert_eq!((done.code, &done.json["state"]), (0, &json!("succeeded")), "{done:?}");
    assert_eq!(done.json["attempts"][0]["outcome"], "succeeded");
    assert!(done.stderr.contains(text(&done.json, "id")?), "{}", done.stderr);
    let dead = cli.run(&["enqueue", "demo.fail", "--args", r#"{"times":9}"#, "--max-attempts", "1", "--wait"]).await?;
    assert_eq!((dead.code, &dead.json["state"]), (1, &json!("dead")), "{dead:?}");
    let error = text(&dead.json, "last_error")?;
    assert!(error.contains("as asked"), "{error}");
    let args = cli.run(&["enqueue", "demo.sleep", "--args", r#"{"ms":"x"}"#]).await?;
    assert!(args.code == 2 && args.stderr.contains("args.ms"), "{args:?}");
    Ok(())
}

#[tokio::test]
async fn drained_node_says_so_and_stays_up() -> Result<()> {
    let (cli, node) = with_node().await?;
    let id = node.node_id().await?;
    let listed = cli.run(&["nodes", "list"]).await?.ok()?["nodes"][0].clone();
    for field in ["id", "name", "started_at", "beat_age_ms", "queues", "concurrency", "running", "version", "draining"] {
        assert!(!listed[field].is_null(), "{field} is not in {listed}");
    }
    let drained = cli.run(&["nodes", "drain", &id]).await?;
    assert_eq!((drained.code, &drained.json["results"][0]["state"]), (0, &json!("draining")), "{drained:?}");
    assert_eq!(cli.run(&["nodes", "list"]).await?.ok()?["nodes"][0]["draining"], true);
    assert!(node.exited()?.is_none());
    Ok(())
}

#[tokio::test]
async fn stepping_down_begins_another_term() -> Result<()> {
    let (cli, node) = with_node().await?;
    let held = eventually(Duration::from_secs(10), "a holder", async || {
        let lease = cli.run(&["lease"]).await.ok()?.json;
        lease["holder"].is_string().then_some(lease)
    })
    .await?;
    assert_eq!(text(&held, "holder")?, node.node_id().await?);
    let after = cli.run(&["lease", "--step-down"]).await?.ok()?;
    assert!(after["holder"].is_string() && after["term"].as_u64() > held["term"].as_u64(), "{held} {after}");
    Ok(())
}

#[tokio::test]
async fn doctor_finds_nothing_in_a_healthy_cluster() -> Result<()> {
    let redis = RedisServer::options().aof(Aof::Everysec).start().await?;
    let _node = NodeProcess::builder(&redis.url(), "healthy").quick().start().await?;
    let cli = Cli::new(&redis.url(), "healthy");
    eventually(Duration::from_secs(15), "a clean bill of health", async || {
        (cli.run(&["doctor"]).await.ok()?.code == 0).then_some(())
    })
    .await
}
