//! Records that no node of this release can read.

use anyhow::{Context as _, Result};
use punctual_tests::{Aof, RedisServer, message};
use serde_json::json;

use crate::scene::{SOON, Scene, logged_at, noop};

/// Overwrites a stored body; what stood there comes back.
async fn overwrite(scene: &Scene, id: &str, change: impl Fn(&mut Vec<u8>)) -> Result<(Vec<u8>, String)> {
    let mut conn = scene.conn().await?;
    let key = format!("{{{}:default}}:b:{}", scene.ns, &id[24..]);
    let mut body: Option<Vec<u8>> = redis::cmd("HGET").arg(&key).arg(id).query_async(&mut conn).await?;
    let mut body = body.take().context("the job has a body")?;
    change(&mut body);
    redis::cmd("HSET").arg(&key).arg(id).arg(&body).exec_async(&mut conn).await?;
    Ok((body, key))
}

async fn body(scene: &Scene, key: &str, id: &str) -> Result<Option<Vec<u8>>> {
    Ok(redis::cmd("HGET").arg(key).arg(id).query_async(&mut scene.conn().await?).await?)
}

// H-74
#[tokio::test]
async fn corrupt_record_at_the_head_is_set_aside_with_its_bytes_and_the_next_job_runs() -> Result<()> {
    let scene = Scene::shared().await?;
    let ids = scene.enqueue_all((0..4).map(|_| noop())).await?;
    let garbage: [fn(&mut Vec<u8>); 3] =
        [|body| body.truncate(20), |body| body[16..].fill(0xff), |body| *body = b"\x01".to_vec()];
    let mut kept = Vec::new();
    for (id, change) in ids.iter().zip(garbage) {
        kept.push(overwrite(&scene, id, change).await?);
    }
    let node = scene.steady("a").concurrency(1).start().await?;
    let done = node.wait_log(|line| line["message"] == "job finished" && line["job_id"] == *ids[3], SOON).await?;
    scene.until_count("dead", 3, SOON).await?;
    let aside = node.log().matching(message("corrupt record set aside"));
    assert_eq!(aside.len(), 3, "{aside:?}");
    assert!(logged_at(&done)? - logged_at(&aside[0])? < 1_000, "the next job waited");
    for (id, (bytes, key)) in ids.iter().zip(kept) {
        assert_eq!(body(&scene, &key, id).await?, Some(bytes), "the raw bytes are kept");
        let shown = scene.cli.run(&["jobs", "show", id]).await?.ok()?;
        assert_eq!(shown["state"], "dead", "{shown}");
    }
    Ok(())
}

// H-75
#[tokio::test]
async fn record_of_a_newer_release_waits_untouched_for_a_node_that_can_read_it() -> Result<()> {
    let scene = Scene::shared().await?;
    let ids = scene.enqueue_all((0..2).map(|_| noop())).await?;
    let (newer, key) = overwrite(&scene, &ids[0], |body| body[0] = 31).await?;
    let node = scene.steady("a").concurrency(1).start().await?;
    scene.until_state(&ids[1], "succeeded", SOON).await?;
    scene.until_count("scheduled", 1, SOON).await?;
    assert_eq!(scene.count("dead").await?, 0);
    assert_eq!(body(&scene, &key, &ids[0]).await?, Some(newer), "not rewritten");
    // Then the release that can read it comes: here the same node and the old version byte.
    overwrite(&scene, &ids[0], |body| body[0] = 1).await?;
    let job = scene.until_state(&ids[0], "succeeded", SOON).await?;
    assert_eq!((&job["attempt"], &job["crashes"]), (&json!(1), &json!(0)), "{job}");
    assert!(node.exited()?.is_none());
    Ok(())
}

// H-11
#[tokio::test]
async fn entries_without_a_record_are_dropped_and_the_queue_drains() -> Result<()> {
    let redis = RedisServer::options().aof(Aof::Everysec).start().await?;
    let scene = Scene::on(&redis)?;
    let ids = scene.enqueue_all((0..100).map(|_| noop())).await?;
    let mut conn = scene.conn().await?;
    for id in &ids[..50] {
        let key = format!("{{{}:default}}:b:{}", scene.ns, &id[24..]);
        redis::cmd("HDEL").arg(&key).arg(id).exec_async(&mut conn).await?;
    }
    let _node = scene.steady("a").start().await?;
    scene.until_count("succeeded", 50, SOON).await?;
    scene.until_count("ready", 0, SOON).await?;
    let states = scene.states("default").await?;
    assert_eq!((&states["running"], &states["dead"]), (&json!(0), &json!(0)), "{states}");
    let doctor = scene.cli.run(&["doctor"]).await?;
    assert_eq!(doctor.code, 0, "nothing is left of them: {}", doctor.stdout);
    Ok(())
}
