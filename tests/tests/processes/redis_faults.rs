//! A Redis that forgets its scripts, is killed, freezes or stays away: results land, nobody is buried for the store's silence.

use std::time::Duration;

use anyhow::Result;
use punctual_tests::{Aof, RedisServer, eventually, message};
use serde_json::json;

use crate::scene::{LATER, SOON, Scene, outcomes};

// H-49
#[tokio::test]
async fn scripts_that_are_flushed_all_the_time_cost_no_job() -> Result<()> {
    let redis = RedisServer::start().await?;
    let scene = Scene::on(&redis)?;
    let node = scene.steady("a").concurrency(4).start().await?;
    let mut conn = scene.conn().await?;
    let flush = async {
        let mut flushed = 0;
        loop {
            let done: redis::RedisResult<()> = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut conn).await;
            done?;
            flushed += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
            if flushed > 100_000 {
                return Ok::<(), anyhow::Error>(());
            }
        }
    };
    let work = async {
        let mut ids = scene.enqueue_all((0..150).map(|_| scene.witnessed("0.01"))).await?;
        let later = (0..30).map(|n| {
            let mut job = scene.witnessed("0");
            job["delay"] = json!(format!("{}ms", 20 * n + 100));
            job
        });
        ids.extend(scene.enqueue_all(later).await?);
        scene.until_count("succeeded", 180, LATER).await?;
        scene.assert_ran_once(&ids)
    };
    tokio::select! {
        done = work => done?,
        ended = flush => ended?,
    }
    assert!(node.log().matching(|line| line["level"] == "ERROR").is_empty());
    Ok(())
}

// H-46, H-124, design promise 1
#[tokio::test]
async fn killed_redis_that_wrote_everything_down_loses_nothing() -> Result<()> {
    let mut redis = RedisServer::options().aof(Aof::Always).start().await?;
    let scene = Scene::on(&redis)?;
    let _nodes = [scene.steady("a").concurrency(4).start().await?, scene.steady("b").concurrency(4).start().await?];
    let ids = scene.enqueue_all((0..150).map(|_| scene.witnessed("0.1"))).await?;
    for share in [20, 60] {
        eventually(SOON, "jobs to flow", async || (scene.witness().len() >= share).then_some(())).await?;
        redis.kill9();
        redis.restart().await?;
    }
    scene.until_count("succeeded", 150, LATER).await?;
    scene.assert_ran_once(&ids)?;
    scene.until_nothing_is_held(SOON).await
}

// H-124
#[tokio::test]
async fn nobody_is_dead_after_an_outage_longer_than_dead_after() -> Result<()> {
    let mut redis = RedisServer::options().aof(Aof::Always).start().await?;
    let scene = Scene::on(&redis)?;
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(scene.node(name).concurrency(6).start().await?);
    }
    let ids = scene.enqueue_all((0..18).map(|_| scene.witnessed("12"))).await?;
    scene.until_count("running", 18, SOON).await?;
    redis.shutdown().await?;
    // More than twice the two seconds after which a silent node is dead.
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    redis.restart().await?;
    scene.until_count("succeeded", 18, LATER).await?;
    scene.assert_ran_once(&ids)?;
    for node in &nodes {
        assert!(node.log().matching(message("node dead")).is_empty());
        assert!(node.log().matching(message("jobs requeued")).is_empty());
    }
    for job in scene.jobs(&ids).await? {
        assert_eq!((&job["attempt"], &job["crashes"]), (&json!(1), &json!(0)), "{job}");
    }
    Ok(())
}

// H-125
#[tokio::test]
async fn results_of_jobs_that_ended_while_redis_was_frozen_land() -> Result<()> {
    let mut redis = RedisServer::start().await?;
    let scene = Scene::on(&redis)?;
    let node = scene.steady("a").concurrency(20).start().await?;
    let ids = scene.enqueue_all((0..60).map(|_| scene.witnessed("1"))).await?;
    eventually(SOON, "jobs to run", async || (scene.witness().len() >= 20).then_some(())).await?;
    redis.pause()?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    redis.resume()?;
    scene.until_count("succeeded", 60, LATER).await?;
    scene.assert_ran_once(&ids)?;
    for job in scene.jobs(&ids).await? {
        assert_eq!((&job["attempt"], &job["crashes"]), (&json!(1), &json!(0)), "{job}");
        assert_eq!(outcomes(&job), ["succeeded"], "{job}");
    }
    assert!(node.exited()?.is_none());
    Ok(())
}

// H-103, H-125: away for long, then back.
#[tokio::test]
async fn outage_is_few_lines_in_the_log_and_work_goes_on_by_itself() -> Result<()> {
    let mut redis = RedisServer::options().aof(Aof::Always).start().await?;
    let scene = Scene::on(&redis)?;
    let node = scene.node("a").start().await?;
    let id = scene.enqueue("demo.sleep", &json!({ "ms": 3_000 }), &["--max-attempts", "1"]).await?;
    scene.until_state(&id, "running", SOON).await?;
    redis.shutdown().await?;
    let mark = node.log().mark();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let said = node.log().mark() - mark;
    assert!(said <= 40, "{said} lines in 8 s:\n{}", node.log().tail(60));
    redis.restart().await?;
    let job = scene.until_state(&id, "succeeded", SOON).await?;
    assert_eq!((&job["attempt"], &job["crashes"]), (&json!(1), &json!(0)), "{job}");
    let next = scene.enqueue("demo.noop", &json!({}), &["--delay", "100ms"]).await?;
    scene.until_state(&next, "succeeded", SOON).await?;
    Ok(())
}

// H-60, H-59
#[tokio::test]
async fn emptied_redis_is_joined_again_and_works() -> Result<()> {
    let redis = RedisServer::start().await?;
    let scene = Scene::on(&redis)?;
    let node = scene.node("a").start().await?;
    scene.enqueue_all((0..20).map(|_| scene.witnessed("0.5"))).await?;
    eventually(SOON, "jobs to run", async || (!scene.witness().is_empty()).then_some(())).await?;
    let done: redis::RedisResult<()> = redis::cmd("FLUSHALL").query_async(&mut scene.conn().await?).await;
    done?;
    let ids = scene.enqueue_all((0..10).map(|_| scene.witnessed("0"))).await?;
    scene.until_count("succeeded", 10, LATER).await?;
    let delayed = scene.enqueue("demo.noop", &json!({}), &["--delay", "100ms"]).await?;
    scene.until_state(&delayed, "succeeded", SOON).await?;
    for job in scene.jobs(&ids).await? {
        assert_eq!(job["attempt"], 1, "{job}");
    }
    assert!(node.exited()?.is_none());
    Ok(())
}

// H-48, H-70: a right that is taken away and given back, as by an edit of the ACL.
#[tokio::test]
async fn results_wait_while_redis_denies_the_node_its_rights() -> Result<()> {
    let redis = RedisServer::start().await?;
    let scene = Scene::on(&redis)?;
    let node = scene.steady("a").concurrency(10).start().await?;
    let ids = scene.enqueue_all((0..10).map(|_| scene.witnessed("1"))).await?;
    eventually(SOON, "jobs to run", async || (scene.witness().len() == 10).then_some(())).await?;
    let mut conn = scene.conn().await?;
    redis::cmd("ACL").arg(&["SETUSER", "default", "-evalsha", "-eval"]).exec_async(&mut conn).await?;
    node.wait_log(message("settle failed"), SOON).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    redis::cmd("ACL").arg(&["SETUSER", "default", "+evalsha", "+eval"]).exec_async(&mut conn).await?;
    scene.until_count("succeeded", 10, SOON).await?;
    scene.assert_ran_once(&ids)?;
    assert!(node.log().matching(message("settle failed")).len() <= 4, "{}", node.log().tail(40));
    Ok(())
}
