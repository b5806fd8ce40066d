//! The way to Redis: slow, silent, or leading to a server that has become a replica.

use std::time::Duration;

use anyhow::Result;
use punctual_tests::{Proxy, RedisServer, eventually, message};
use serde_json::json;

use crate::lost_replies::digest;
use crate::scene::{LATER, SOON, Scene, outcomes};

// H-10, BR-39, BR-43: an idle node has nothing to complain about, and its next job does not wait for a block to end.
#[tokio::test]
async fn idle_node_logs_no_trouble_and_starts_the_next_job_at_once() -> Result<()> {
    let scene = Scene::shared().await?;
    let node = scene.steady("a").start().await?;
    node.wait_log(message("lease acquired"), SOON).await?;
    let mark = node.log().mark();
    // Three block times and more than every response timeout.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let said: Vec<_> = node.log().lines()[mark..].iter().filter(|line| line["level"] != "DEBUG").cloned().collect();
    assert_eq!(said, Vec::<serde_json::Value>::new());
    for _ in 0..5 {
        let id = scene.enqueue("demo.noop", &json!({}), &[]).await?;
        let job = scene.until_state(&id, "succeeded", SOON).await?;
        let lateness = job["attempts"][0]["lateness_ms"].as_i64().unwrap_or(i64::MAX);
        assert!((0..=500).contains(&lateness), "{job}");
    }
    Ok(())
}

// H-03, BR-49: what follows the move is held up for longer than the reaper's interval.
#[tokio::test]
async fn late_claim_after_the_move_is_still_the_only_run() -> Result<()> {
    let redis = RedisServer::shared().await?;
    let proxy = Proxy::start(redis.port())?;
    let scene = Scene::via(redis, proxy.port())?;
    let _slow = scene.steady("slow").concurrency(10).start().await?;
    let held = proxy.delay_command(
        punctual_tests::command_with("EVALSHA", &digest(&mut scene.conn().await?, "claim").await?),
        Duration::from_millis(2_500),
    );
    let ids = scene.enqueue_all((0..30).map(|_| scene.witnessed("0.1"))).await?;
    eventually(SOON, "claims to be late", async || (held.fired() >= 2).then_some(())).await?;
    scene.until_count("succeeded", 30, LATER).await?;
    held.stop();
    scene.assert_ran_once(&ids)?;
    scene.until_nothing_is_held(SOON).await
}

// H-22
#[tokio::test]
async fn slow_way_to_redis_flaps_no_lease_and_loses_no_job() -> Result<()> {
    let redis = RedisServer::shared().await?;
    let proxy = Proxy::start(redis.port())?;
    let scene = Scene::via(redis, proxy.port())?;
    let holder = scene.steady("holder").concurrency(10).start().await?;
    holder.wait_log(message("lease acquired"), SOON).await?;
    let standby = scene.steady("standby").concurrency(10).start().await?;
    standby.wait_log(message("lease held by other"), SOON).await?;
    proxy.delay(Duration::from_millis(150));
    let ids = scene.enqueue_all((0..40).map(|_| scene.witnessed("0.1"))).await?;
    scene.until_count("succeeded", 40, LATER).await?;
    scene.assert_ran_once(&ids)?;
    for node in [&holder, &standby] {
        assert!(node.log().matching(message("lease lost")).is_empty());
        assert!(node.log().matching(message("node dead")).is_empty());
    }
    Ok(())
}

// H-55
#[tokio::test]
async fn black_hole_is_noticed_and_left_behind_without_a_restart() -> Result<()> {
    let redis = RedisServer::shared().await?;
    let proxy = Proxy::start(redis.port())?;
    let scene = Scene::via(redis, proxy.port())?;
    let node = scene.steady("a").start().await?;
    let first = scene.enqueue("demo.noop", &json!({}), &[]).await?;
    scene.until_state(&first, "succeeded", SOON).await?;
    proxy.black_hole();
    node.wait_log(message("beat not answered"), SOON).await?;
    proxy.pass();
    let ids = scene.enqueue_all((0..10).map(|_| scene.witnessed("0"))).await?;
    scene.until_count("succeeded", 11, SOON).await?;
    scene.assert_ran_once(&ids)?;
    scene.until_nothing_is_held(SOON).await
}

// BR-73, BR-79, H-50: the server is demoted with jobs running, and promoted again.
#[tokio::test]
async fn results_of_jobs_that_ended_while_redis_was_read_only_land() -> Result<()> {
    let redis = RedisServer::start().await?;
    let scene = Scene::on(&redis)?;
    let node = scene.steady("a").concurrency(20).start().await?;
    let ids = scene.enqueue_all((0..40).map(|_| scene.witnessed("1"))).await?;
    eventually(SOON, "jobs to run", async || (scene.witness().len() == 20).then_some(())).await?;
    let mut conn = scene.conn().await?;
    // Of a primary that is not there: it keeps its data and refuses writes.
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).exec_async(&mut conn).await?;
    node.wait_log(message("settle failed"), SOON).await?;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut conn).await?;
    scene.until_count("succeeded", 40, LATER).await?;
    scene.assert_ran_once(&ids)?;
    for job in scene.jobs(&ids).await? {
        assert_eq!((&job["attempt"], &job["crashes"]), (&json!(1), &json!(0)), "{job}");
    }
    scene.until_nothing_is_held(SOON).await
}

// H-125
#[tokio::test]
async fn isolated_node_that_was_told_to_cancel_stops_its_jobs_and_others_run_them() -> Result<()> {
    let redis = RedisServer::shared().await?;
    let proxy = Proxy::start(redis.port())?;
    let cut_off = Scene::via(redis, proxy.port())?;
    let node = cut_off.node("cut-off").set("node.on_isolation", "cancel").start().await?;
    let id = cut_off.enqueue("demo.sleep", &json!({ "ms": 60_000 }), &["--max-attempts", "1"]).await?;
    cut_off.until_state(&id, "running", SOON).await?;
    proxy.black_hole();
    let told = node.wait_log(message("isolated from redis, cancelling"), SOON).await?;
    assert_eq!(told["running"], 1, "{told}");
    proxy.pass();
    // Handed back when Redis is there again, or taken away by then: in both cases it is not spent and runs once more.
    let job = eventually(SOON, "the job to run again", async || {
        let job = cut_off.job(&id).await.ok()?;
        (job["state"] == "running" && job["attempts"].as_array().is_some_and(|attempts| attempts.len() >= 2)).then_some(job)
    })
    .await?;
    assert_eq!(job["attempt"], 1, "{job}");
    assert!(["handed_back", "crashed"].contains(&outcomes(&job)[0]), "{job}");
    Ok(())
}
