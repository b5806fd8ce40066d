//! Signals: running jobs end, nothing is lost, nothing runs twice, and every way out ends in time with exit code 0.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use punctual_tests::port::free_port;
use punctual_tests::{NodeProcess, Proxy, RedisServer, eventually, message};
use serde_json::{Value, json};

use crate::scene::{LATER, SOON, Scene, noop, outcomes, sleeper};

async fn drains(signal: impl Fn(&NodeProcess) -> Result<()>) -> Result<()> {
    let scene = Scene::shared().await?;
    let node = scene.node("a").concurrency(8).start().await?;
    let ids = scene.enqueue_all((0..28).map(|_| scene.witnessed("1.5"))).await?;
    scene.until_count("running", 8, SOON).await?;
    signal(&node)?;
    assert_eq!(node.wait_exit(SOON).await?.code(), Some(0));
    assert_eq!(node.wait_log(message("node stopped"), SOON).await?["left"], 0);
    let states = scene.states("default").await?;
    let started = scene.witness().len() as u64;
    assert_eq!((&states["succeeded"], &states["ready"]), (&json!(started), &json!(28 - started)), "{states}");
    assert_eq!((&states["running"], &states["dead"], &states["retrying"]), (&json!(0), &json!(0), &json!(0)), "{states}");
    assert_eq!(scene.held_lists().await?, Vec::<String>::new());
    assert_eq!(scene.cli.run(&["nodes", "list"]).await?.ok()?["nodes"], json!([]));
    assert_eq!(scene.cli.run(&["lease"]).await?.ok()?["holder"], json!(null));
    let _successor = scene.node("a").concurrency(20).start().await?;
    scene.until_count("succeeded", 28, LATER).await?;
    scene.assert_ran_once(&ids)
}

// H-97, H-98
#[tokio::test]
async fn sigterm_lets_running_jobs_end_and_leaves_the_rest_untouched() -> Result<()> {
    drains(NodeProcess::term).await
}

// H-100
#[tokio::test]
async fn sigint_drains_like_sigterm() -> Result<()> {
    drains(NodeProcess::int).await
}

// H-98, H-86, BR-85
#[tokio::test]
async fn job_longer_than_the_drain_goes_back_to_the_front_without_spending_an_attempt() -> Result<()> {
    let scene = Scene::shared().await?;
    let node = scene.node("a").concurrency(1).drain_timeout(Duration::from_millis(500)).start().await?;
    let long = scene.enqueue("demo.sleep", &json!({ "ms": 60_000 }), &["--max-attempts", "1"]).await?;
    scene.until_state(&long, "running", SOON).await?;
    scene.enqueue_all((0..3).map(|_| sleeper(60_000))).await?;
    let told = Instant::now();
    node.term()?;
    assert_eq!(node.wait_exit(SOON).await?.code(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(8), "{:?}", told.elapsed());
    let job = scene.job(&long).await?;
    assert_eq!((&job["state"], &job["attempt"], &job["crashes"]), (&json!("ready"), &json!(0), &json!(0)), "{job}");
    assert_eq!(scene.held_lists().await?, Vec::<String>::new());
    let _successor = scene.node("b").concurrency(1).start().await?;
    let job = scene.until_state(&long, "running", SOON).await?;
    assert_eq!((&job["attempt"], &job["crashes"]), (&json!(1), &json!(0)), "{job}");
    assert_eq!(scene.count("ready").await?, 3, "it came before those that had not begun");
    Ok(())
}

// H-100
#[tokio::test]
async fn second_signal_hands_back_at_once() -> Result<()> {
    let scene = Scene::shared().await?;
    let node = scene.node("a").drain_timeout(Duration::from_secs(100)).start().await?;
    let ids = scene.enqueue_all((0..5).map(|_| sleeper(60_000))).await?;
    scene.until_count("running", 5, SOON).await?;
    node.term()?;
    node.wait_log(message("node draining"), SOON).await?;
    assert!(node.exited()?.is_none());
    let told = Instant::now();
    node.int()?;
    assert_eq!(node.wait_exit(SOON).await?.code(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
    for job in scene.jobs(&ids).await? {
        assert_eq!((&job["state"], &job["attempt"], &job["crashes"]), (&json!("ready"), &json!(0), &json!(0)), "{job}");
    }
    Ok(())
}

// H-100
#[tokio::test]
async fn signal_before_redis_is_there_is_a_clean_exit() -> Result<()> {
    let redis = format!("redis://127.0.0.1:{}", free_port()?);
    let node = NodeProcess::builder(&redis, "nobody").spawn()?;
    node.wait_log(message("waiting for redis"), SOON).await?;
    let told = Instant::now();
    node.term()?;
    assert_eq!(node.wait_exit(SOON).await?.code(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
    Ok(())
}

// H-98, design promise 5
#[tokio::test]
async fn rolling_restart_of_three_nodes_under_load_runs_every_job_once() -> Result<()> {
    let scene = Scene::shared().await?;
    let start = |name: String| scene.steady(&name).concurrency(4).start();
    let mut nodes = Vec::new();
    for number in 0..3 {
        nodes.push(start(format!("n{number}")).await?);
    }
    let mut ids = Vec::new();
    for round in 0..2 {
        for (number, node) in nodes.iter_mut().enumerate() {
            ids.extend(scene.enqueue_all((0..60).map(|_| scene.witnessed("0.05"))).await?);
            // Under load: some of them have begun, most have not.
            let begun = scene.witness().len();
            eventually(SOON, "jobs to flow", async || (scene.witness().len() > begun).then_some(())).await?;
            node.term()?;
            assert_eq!(node.wait_exit(SOON).await?.code(), Some(0), "round {round}");
            *node = start(format!("n{number}")).await?;
        }
    }
    scene.until_count("succeeded", ids.len() as u64, LATER).await?;
    scene.assert_ran_once(&ids)?;
    scene.until_nothing_is_held(SOON).await?;
    for node in &nodes {
        assert!(node.log().matching(message("jobs requeued")).is_empty(), "a graceful stop leaves nothing to the reaper");
    }
    Ok(())
}

// H-97, BR-83: the queue is short, so that the signal often meets a fetch that is just being served.
#[tokio::test]
async fn entry_that_is_fetched_while_the_node_stops_is_not_orphaned() -> Result<()> {
    let scene = Scene::shared().await?;
    let mut ids = Vec::new();
    for round in 0..12_u64 {
        let node = scene.steady(&format!("n{round}")).concurrency(2).start().await?;
        let feed = async {
            let mut fed = Vec::new();
            for _ in 0..12 {
                fed.extend(scene.enqueue_all([scene.witnessed("0")]).await?);
            }
            Ok::<_, anyhow::Error>(fed)
        };
        let stop = async {
            tokio::time::sleep(Duration::from_millis(30 * round)).await;
            node.term()?;
            node.wait_exit(SOON).await
        };
        let (fed, ended) = tokio::join!(feed, stop);
        ids.extend(fed?);
        assert_eq!(ended?.code(), Some(0));
        assert_eq!(scene.held_lists().await?, Vec::<String>::new(), "round {round}");
    }
    let _last = scene.steady("last").start().await?;
    scene.until_count("succeeded", ids.len() as u64, LATER).await?;
    scene.assert_ran_once(&ids)
}

// H-99, BR-81
#[tokio::test]
async fn drain_ends_in_time_although_redis_vanished_and_others_recover_the_job() -> Result<()> {
    let redis = RedisServer::shared().await?;
    let proxy = Proxy::start(redis.port())?;
    let scene = Scene::via(redis, proxy.port())?;
    let cut_off = scene.node("cut-off").drain_timeout(Duration::from_secs(2)).start().await?;
    let id = scene.enqueue("demo.sleep", &json!({ "ms": 1_000 }), &["--max-attempts", "1"]).await?;
    scene.until_state(&id, "running", SOON).await?;
    let told = Instant::now();
    cut_off.term()?;
    proxy.black_hole();
    assert_eq!(cut_off.wait_exit(SOON).await?.code(), Some(0));
    assert!(told.elapsed() < Duration::from_secs(16), "{:?}", told.elapsed());
    proxy.pass();
    let _other = scene.node("other").start().await?;
    let job = scene.until_state(&id, "succeeded", LATER).await?;
    assert_eq!(outcomes(&job).last(), Some(&"succeeded"), "{job}");
    assert_eq!(job["attempt"], 1, "{job}");
    Ok(())
}

// H-98: results that come in the last moment of the drain are recorded.
#[tokio::test]
async fn job_that_ends_just_before_the_drain_does_is_recorded() -> Result<()> {
    let scene = Scene::shared().await?;
    let node = scene.node("a").drain_timeout(Duration::from_secs(4)).start().await?;
    let ids = scene.enqueue_all((0..10).map(|n| sleeper(3_000 + 50 * n))).await?;
    scene.until_count("running", 10, SOON).await?;
    node.term()?;
    assert_eq!(node.wait_exit(SOON).await?.code(), Some(0));
    for job in scene.jobs(&ids).await? {
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    }
    Ok(())
}

// H-97: nothing new begins on a node that was told to stop, whatever is enqueued.
#[tokio::test]
async fn draining_node_starts_nothing_new() -> Result<()> {
    let scene = Scene::shared().await?;
    let node = scene.node("a").start().await?;
    let long = scene.enqueue("demo.sleep", &json!({ "ms": 3_000 }), &[]).await?;
    scene.until_state(&long, "running", SOON).await?;
    node.term()?;
    node.wait_log(message("node draining"), SOON).await?;
    scene.enqueue_all((0..10).map(|_| noop())).await?;
    assert_eq!(node.wait_exit(SOON).await?.code(), Some(0));
    let states = scene.states("default").await?;
    assert_eq!((&states["ready"], &states["succeeded"]), (&json!(10), &json!(1)), "{states}");
    Ok(())
}

// H-86, H-85: a job that is handed back or whose node is killed keeps its unique key; one that ended frees it.
#[tokio::test]
async fn unique_key_survives_a_hand_back_and_a_crash_and_ends_with_its_job() -> Result<()> {
    let scene = Scene::shared().await?;
    let unique = ["--unique-key", "order-7", "--unique-until", "finished", "--max-attempts", "1"];
    let enqueue =
        async || scene.cli.run(&[&["enqueue", "demo.sleep", "--args", r#"{"ms":2500}"#][..], &unique[..]].concat()).await?.ok();
    let first = scene.node("a").drain_timeout(Duration::from_millis(100)).start().await?;
    let id = enqueue().await?["id"].as_str().unwrap_or_default().to_owned();
    scene.until_state(&id, "running", SOON).await?;
    first.term()?;
    assert_eq!(first.wait_exit(SOON).await?.code(), Some(0));
    assert_eq!(scene.job(&id).await?["state"], "ready");
    assert_eq!(enqueue().await?["duplicate_of"], *id);
    let second = scene.node("b").start().await?;
    scene.until_state(&id, "running", SOON).await?;
    second.kill9();
    let _third = scene.node("c").start().await?;
    assert_eq!(enqueue().await?["duplicate_of"], *id);
    scene.until_state(&id, "succeeded", LATER).await?;
    assert!(enqueue().await?["duplicate_of"].is_null(), "the key is free again");
    Ok(())
}

// A node that leaves does not stay on the list, drained before or not, and its start is its start.
#[tokio::test]
async fn node_that_leaves_is_off_the_list_and_draining_does_not_change_its_start() -> Result<()> {
    let scene = Scene::shared().await?;
    let leader = scene.node("leader").start().await?;
    leader.wait_log(message("lease acquired"), SOON).await?;
    let list = async || -> Result<Vec<Value>> {
        let shown = scene.cli.run(&["nodes", "list"]).await?.ok()?;
        Ok(shown["nodes"].as_array().cloned().unwrap_or_default())
    };
    for life in 0..4 {
        let node = scene.node("other").start().await?;
        let id = node.node_id().await?;
        eventually(SOON, "both nodes", async || (list().await.ok()?.len() == 2).then_some(())).await?;
        let began = list().await?.into_iter().find(|one| one["id"] == id.as_str()).context("the node")?["started_at"].clone();
        if life % 2 == 0 {
            scene.cli.run(&["nodes", "drain", &id]).await?.ok()?;
            let drained = list().await?.into_iter().find(|one| one["id"] == id.as_str()).context("the node")?;
            assert_eq!((&drained["draining"], &drained["started_at"]), (&json!(true), &began));
        }
        node.term()?;
        assert!(node.wait_exit(SOON).await?.success());
        let left = list().await?;
        assert_eq!(left.len(), 1, "{left:?}");
    }
    assert_eq!(list().await?.len(), 1);
    Ok(())
}
