//! Nodes that are killed or frozen: what they had in their hands runs again elsewhere, is charged to the crash and to nobody's
//! attempts, and what they say when they come back is refused.

use std::time::Duration;

use anyhow::Result;
use punctual_tests::{eventually, message};
use serde_json::json;

use crate::scene::{LATER, SOON, Scene, metric, noop, outcomes, sleeper};

// H-62, H-18, H-20, BR-55
#[tokio::test]
async fn killed_node_costs_its_jobs_no_attempt_and_its_successor_of_the_same_name_runs_them() -> Result<()> {
    let scene = Scene::shared().await?;
    let first = scene.node("worker").concurrency(20).start().await?;
    let ids = scene.enqueue_all((0..20).map(|_| sleeper(4_000))).await?;
    scene.until_count("running", 20, SOON).await?;
    first.kill9();
    let second = scene.node("worker").concurrency(20).start().await?;
    assert_ne!(first.node_id().await?, second.node_id().await?, "another life of a node is another node");
    scene.until_count("succeeded", 20, LATER).await?;
    for job in scene.jobs(&ids).await? {
        assert_eq!((&job["attempt"], &job["crashes"]), (&json!(1), &json!(1)), "{job}");
        assert_eq!(outcomes(&job), ["crashed", "succeeded"], "{job}");
        assert_eq!(job["attempts"][0]["node"], first.node_id().await?);
        assert_eq!(job["attempts"][1]["node"], second.node_id().await?);
    }
    assert_eq!(scene.count("dead").await?, 0);
    scene.until_nothing_is_held(SOON).await
}

// BR-77
#[tokio::test]
async fn two_nodes_of_one_name_are_told_apart_and_the_killed_ones_job_is_recovered() -> Result<()> {
    let scene = Scene::shared().await?;
    let first = scene.node("twin").start().await?;
    let id = scene.enqueue("demo.sleep", &json!({ "ms": 3_000 }), &["--max-attempts", "1"]).await?;
    scene.until_state(&id, "running", SOON).await?;
    let second = scene.node("twin").start().await?;
    let warned = second.wait_log(message("another living node has this name"), SOON).await?;
    assert_eq!(warned["other"], first.node_id().await?);
    first.kill9();
    let job = scene.until_state(&id, "succeeded", LATER).await?;
    assert_eq!((&job["attempt"], &job["crashes"]), (&json!(1), &json!(1)), "{job}");
    Ok(())
}

// H-05, H-12, BR-47
#[tokio::test]
async fn result_of_a_node_that_slept_past_its_death_is_refused() -> Result<()> {
    let scene = Scene::shared().await?;
    let frozen = scene.node("frozen").concurrency(4).start().await?;
    let script = "sleep 2; echo $PUNCTUAL_CLAIM";
    let args = json!({ "argv": ["/bin/sh", "-c", script] });
    let id = scene.enqueue("process.exec", &args, &["--max-attempts", "1"]).await?;
    scene.until_state(&id, "running", SOON).await?;
    let other = scene.node("other").concurrency(4).start().await?;
    frozen.stop()?;
    let settled = scene.until_state(&id, "succeeded", LATER).await?;
    assert_eq!(outcomes(&settled), ["crashed", "succeeded"], "{settled}");
    assert_eq!(settled["attempts"][1]["node"], other.node_id().await?);
    let mark = frozen.log().mark();
    frozen.cont()?;
    frozen.log().wait_after(mark, message("declared dead, joined anew"), SOON).await?;
    let refused = frozen.wait_log(message("stale claim rejected"), SOON).await?;
    assert_eq!(refused["job_id"], *id);
    assert!(metric(&frozen, "punctual_stale_claims_rejected_total").await? >= 1.0);
    let after = scene.job(&id).await?;
    assert_eq!(settled, after, "the late writer changed nothing");
    let stdout = after["result"]["stdout"].as_str().unwrap_or_default().trim();
    assert_eq!(
        json!(stdout),
        json!(after["attempts"][1]["claim"].as_str().map_or_else(|| after["attempts"][1]["claim"].to_string(), str::to_owned))
    );
    // It is a member again, and works.
    other.term()?;
    assert!(other.wait_exit(SOON).await?.success());
    let ids = scene.enqueue_all((0..10).map(|_| noop())).await?;
    scene.until_count("succeeded", 11, SOON).await?;
    for job in scene.jobs(&ids).await? {
        assert_eq!((&job["attempt"], &job["crashes"]), (&json!(1), &json!(0)), "{job}");
    }
    Ok(())
}

// H-12, H-122: a pause shorter than dead_after costs nothing.
#[tokio::test]
async fn short_pause_of_a_node_kills_nobody() -> Result<()> {
    let scene = Scene::shared().await?;
    let paused = scene.steady("paused").start().await?;
    let watcher = scene.steady("watcher").queues("idle=1").start().await?;
    let id = scene.enqueue("demo.sleep", &json!({ "ms": 2_500 }), &["--max-attempts", "1"]).await?;
    scene.until_state(&id, "running", SOON).await?;
    paused.stop()?;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    paused.cont()?;
    let job = scene.until_state(&id, "succeeded", SOON).await?;
    assert_eq!((&job["attempt"], &job["crashes"]), (&json!(1), &json!(0)), "{job}");
    assert!(watcher.log().matching(message("node dead")).is_empty());
    Ok(())
}

// H-19, BR-75: recovered between dead_after and dead_after plus a scan, with room for a slow machine.
#[tokio::test]
async fn death_is_noticed_after_dead_after_and_not_before() -> Result<()> {
    let scene = Scene::shared().await?;
    let ms = Duration::from_millis;
    let settings = |name: &str| scene.node(name).heartbeat(ms(500), ms(4_000));
    let survivor = settings("survivor").queues("idle=1").start().await?;
    let victim = settings("victim").start().await?;
    let id = scene.enqueue("demo.sleep", &json!({ "ms": 60_000 }), &[]).await?;
    scene.until_state(&id, "running", SOON).await?;
    // Its own beats must have gone on without a break for dead_after, or the survivor waits for that first.
    eventually(SOON, "the survivor to hold the lease and trust its beats", async || {
        survivor.log().matching(message("lease acquired")).first().map(drop)
    })
    .await?;
    tokio::time::sleep(ms(4_500)).await;
    let killed = std::time::Instant::now();
    victim.kill9();
    survivor.wait_log(message("node dead"), SOON).await?;
    let after = killed.elapsed();
    assert!(after >= ms(3_000), "dead after {after:?}, before its last beat ran out");
    assert!(after <= ms(9_000), "dead only after {after:?}");
    let requeued = survivor.wait_log(message("jobs requeued"), SOON).await?;
    assert_eq!((&requeued["count"], &requeued["from_node"]), (&json!(1), &json!(victim.node_id().await?)));
    assert_eq!(scene.job(&id).await?["state"], "ready");
    Ok(())
}
