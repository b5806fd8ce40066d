//! Queues of running nodes: pauses, handlers that only some nodes have, weights, bands and delays.

use std::time::Duration;

use anyhow::{Context as _, Result};
use punctual_tests::wait::holds;
use serde_json::json;

use crate::scene::{SOON, Scene, instant, noop, outcomes, sleeper};

/// A job that nobody could run waits half a minute at last, and then meets the wrong node once or twice more.
const UNROUTABLE: Duration = Duration::from_secs(60);

// H-90, BR-105
#[tokio::test]
async fn nothing_starts_while_paused_and_everything_after() -> Result<()> {
    let scene = Scene::shared().await?;
    let _node = scene.steady("a").start().await?;
    let failing = json!({ "handler": "demo.fail", "args": { "times": 1 }, "max_attempts": 1 });
    let dead = scene.enqueue_all((0..5).map(|_| failing.clone())).await?;
    scene.until_count("dead", 5, SOON).await?;
    scene.cli.run(&["queues", "pause", "default"]).await?.ok()?;
    scene.enqueue_all((0..10).map(|_| noop())).await?;
    let mut delayed = noop();
    delayed["delay"] = json!("500ms");
    scene.enqueue_all((0..5).map(|_| delayed.clone())).await?;
    let mut retry = vec!["jobs", "retry"];
    retry.extend(dead.iter().map(String::as_str));
    scene.cli.run(&retry).await?.ok()?;
    // The delayed ones become ready meanwhile; none starts.
    scene.until_count("ready", 20, SOON).await?;
    holds(Duration::from_secs(3), "the pause", async || {
        let states = scene.states("default").await.ok()?;
        (states["ready"] != 20).then(|| states.to_string())
    })
    .await?;
    scene.cli.run(&["queues", "resume", "default"]).await?.ok()?;
    let resumed = std::time::Instant::now();
    // Retried jobs have their attempts anew: one of them is the failure that was asked for.
    scene.until_count("ready", 0, SOON).await?;
    assert!(resumed.elapsed() < Duration::from_secs(5), "{:?}", resumed.elapsed());
    scene.until_count("running", 0, SOON).await?;
    let states = scene.states("default").await?;
    let ended = states["succeeded"].as_u64().unwrap_or(0) + states["dead"].as_u64().unwrap_or(0);
    assert_eq!(ended, 20, "{states}");
    assert!(states["succeeded"].as_u64() >= Some(15), "{states}");
    Ok(())
}

// H-90: a job that runs when the pause comes ends normally; the one behind it waits.
#[tokio::test]
async fn pause_lets_the_running_job_end_and_holds_the_next() -> Result<()> {
    let scene = Scene::shared().await?;
    let _node = scene.steady("a").concurrency(1).start().await?;
    let first = scene.enqueue("demo.sleep", &json!({ "ms": 1_500 }), &[]).await?;
    scene.until_state(&first, "running", SOON).await?;
    let second = scene.enqueue("demo.noop", &json!({}), &[]).await?;
    scene.cli.run(&["queues", "pause", "default"]).await?.ok()?;
    scene.until_state(&first, "succeeded", SOON).await?;
    holds(Duration::from_secs(2), "the pause", async || {
        let job = scene.job(&second).await.ok()?;
        (job["state"] != "ready").then(|| job.to_string())
    })
    .await?;
    scene.cli.run(&["queues", "resume", "default"]).await?.ok()?;
    scene.until_state(&second, "succeeded", SOON).await?;
    Ok(())
}

// BR-45, H-69
#[tokio::test]
async fn node_without_the_handler_spends_no_attempt_and_unroutable_jobs_are_told() -> Result<()> {
    let scene = Scene::shared().await?;
    let knows = scene.steady("knows").concurrency(8).start().await?;
    let _knows_not = scene.steady("knows-not").concurrency(4).set("handlers.demo", "false").start().await?;
    let ids = scene.enqueue_all((0..20).map(|_| noop())).await?;
    scene.until_count("succeeded", 20, UNROUTABLE).await?;
    for job in scene.jobs(&ids).await? {
        assert_eq!((&job["attempt"], outcomes(&job)), (&json!(1), vec!["succeeded"]), "{job}");
    }
    knows.term()?;
    assert!(knows.wait_exit(SOON).await?.success());
    let left = scene.enqueue_all((0..3).map(|_| noop())).await?;
    scene.until_count("scheduled", 3, SOON).await?;
    let shown = scene.cli.run(&["queues", "show", "default"]).await?.ok()?;
    assert_eq!(shown["unroutable"], json!({ "demo.noop": 3 }), "{shown}");
    // They wait and are not lost: a node that can comes back.
    let _knows = scene.steady("knows").start().await?;
    scene.until_count("succeeded", 23, UNROUTABLE).await?;
    for job in scene.jobs(&left).await? {
        assert_eq!((&job["attempt"], &job["crashes"]), (&json!(1), &json!(0)), "{job}");
    }
    Ok(())
}

// H-69: the wait grows only while nobody could run the job.
#[tokio::test]
async fn job_that_another_node_can_run_never_waits_longer_than_the_first_step() -> Result<()> {
    let scene = Scene::shared().await?;
    // The one that cannot is by far the quicker to fetch.
    let _knows_not = scene.steady("knows-not").concurrency(16).set("handlers.demo", "false").start().await?;
    let _knows = scene.steady("knows").concurrency(1).start().await?;
    let ids = scene.enqueue_all((0..12).map(|_| sleeper(100))).await?;
    punctual_tests::eventually(UNROUTABLE, "all to succeed", async || {
        let jobs = scene.jobs(&ids).await.ok()?;
        let now = jiff::Timestamp::now().as_millisecond();
        for job in jobs.iter().filter(|job| job["state"] == "scheduled") {
            let wait = instant(&job["due_at"]).expect("an instant") - now;
            assert!(wait <= 1_100, "waits {wait} ms: {job}");
        }
        jobs.iter().all(|job| job["state"] == "succeeded").then_some(())
    })
    .await
}

// H-79
#[tokio::test]
async fn queues_share_a_node_by_weight_and_none_starves() -> Result<()> {
    let scene = Scene::shared().await?;
    let on = |queue: &str| {
        let mut job = scene.saying(queue);
        job["queue"] = json!(queue);
        job
    };
    scene.enqueue_all((0..60).map(|_| on("heavy"))).await?;
    scene.enqueue_all((0..60).map(|_| on("light"))).await?;
    let _node = scene.steady("a").concurrency(1).queues("heavy=4,light=1").start().await?;
    punctual_tests::eventually(SOON, "both queues to drain", async || (scene.witness().len() == 120).then_some(())).await?;
    let order = scene.witness();
    let heavy = order[..50].iter().filter(|word| *word == "heavy").count();
    assert!((34..=46).contains(&heavy), "{heavy} of the first 50 came from the queue of weight 4 beside 1");
    Ok(())
}

// H-08
#[tokio::test]
async fn bands_come_out_in_order_whatever_way_they_went_in() -> Result<()> {
    let scene = Scene::shared().await?;
    let mut jobs = Vec::new();
    for (word, delay) in [("low", None), ("high", Some("400ms")), ("normal", None), ("critical", Some("300ms")), ("high", None)] {
        for _ in 0..3 {
            let mut job = scene.saying(word);
            job["priority"] = json!(word);
            if let Some(delay) = delay {
                job["delay"] = json!(delay);
            }
            jobs.push(job);
        }
    }
    let node = scene.steady("a").concurrency(1).set("node.strict", "true").start().await?;
    // The queue must be known before it is paused.
    let first = scene.enqueue("demo.noop", &json!({}), &[]).await?;
    scene.until_state(&first, "succeeded", SOON).await?;
    scene.cli.run(&["queues", "pause", "default"]).await?.ok()?;
    scene.enqueue_all(jobs).await?;
    scene.until_count("ready", 15, SOON).await?;
    scene.cli.run(&["queues", "resume", "default"]).await?.ok()?;
    scene.until_count("succeeded", 16, SOON).await?;
    let order = scene.witness();
    let expected = [("critical", 3), ("high", 6), ("normal", 3), ("low", 3)];
    let expected: Vec<&str> = expected.iter().flat_map(|(word, count)| std::iter::repeat_n(*word, *count)).collect();
    assert_eq!(order, expected);
    assert!(node.exited()?.is_none());
    Ok(())
}

// H-79: the default serves the urgent first and lets low have a share.
#[tokio::test]
async fn low_jobs_start_although_urgent_ones_never_end() -> Result<()> {
    let scene = Scene::shared().await?;
    let job = |word: &str| {
        let mut job = scene.saying(word);
        job["priority"] = json!(word);
        job
    };
    scene.enqueue_all((0..60).map(|_| job("critical"))).await?;
    scene.enqueue_all((0..5).map(|_| job("low"))).await?;
    let _node = scene.steady("a").concurrency(1).start().await?;
    scene.until_count("succeeded", 65, SOON).await?;
    let first_low = scene.witness().iter().position(|word| word == "low").context("low ran")?;
    assert!((1..=20).contains(&first_low), "the first low job was number {first_low}");
    Ok(())
}

// BR-35
#[tokio::test]
async fn shorter_delay_that_comes_later_is_not_kept_waiting() -> Result<()> {
    let scene = Scene::shared().await?;
    let _node = scene.steady("a").start().await?;
    let six_hours = scene.enqueue("demo.noop", &json!({}), &["--delay", "6h"]).await?;
    let minute = scene.enqueue("demo.noop", &json!({}), &["--delay", "60s"]).await?;
    let second = scene.enqueue("demo.noop", &json!({}), &["--delay", "1s"]).await?;
    let job = scene.until_state(&second, "succeeded", SOON).await?;
    let lateness = job["attempts"][0]["lateness_ms"].as_i64().context("lateness")?;
    assert!((0..=500).contains(&lateness), "{lateness} ms late");
    for id in [&six_hours, &minute] {
        assert_eq!(scene.job(id).await?["state"], "scheduled");
    }
    Ok(())
}

// BR-33
#[tokio::test]
async fn long_delays_stay_exact_and_wait() -> Result<()> {
    let scene = Scene::shared().await?;
    let _node = scene.steady("a").start().await?;
    let delays = ["30days", "50days", "366days", "2147483648ms", "4294967296ms"];
    let job = |delay: &str| json!({ "handler": "demo.noop", "delay": delay });
    let ids = scene.enqueue_all(delays.map(job)).await?;
    let probe = scene.enqueue("demo.noop", &json!({}), &["--delay", "500ms"]).await?;
    scene.until_state(&probe, "succeeded", SOON).await?;
    holds(Duration::from_secs(3), "the wait", async || {
        let states = scene.states("default").await.ok()?;
        (states["scheduled"] != 5).then(|| states.to_string())
    })
    .await?;
    let day: i64 = 86_400_000;
    for (job, delay) in scene.jobs(&ids).await?.iter().zip([30 * day, 50 * day, 366 * day, 1 << 31, 1 << 32]) {
        let at = |field: &str| {
            let text = job[field].as_str().context("an instant")?;
            crate::scene::logged_at(&json!({ "timestamp": text }))
        };
        assert_eq!(at("due_at")? - at("created_at")?, delay, "{job}");
    }
    Ok(())
}

// BR-37: a delay longer than every lease runs once, with three nodes that all look.
#[tokio::test]
async fn delayed_job_starts_once_on_three_nodes() -> Result<()> {
    let scene = Scene::shared().await?;
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(scene.node(name).start().await?);
    }
    let delayed = (0..50).map(|n| {
        let mut job = scene.witnessed("0");
        job["delay"] = json!(format!("{}ms", 4_000 + 20 * n));
        job
    });
    let ids = scene.enqueue_all(delayed).await?;
    scene.until_count("succeeded", 50, Duration::from_secs(60)).await?;
    scene.assert_ran_once(&ids)?;
    for job in scene.jobs(&ids).await? {
        let lateness = job["attempts"][0]["lateness_ms"].as_i64().context("lateness")?;
        assert!((0..=5_000).contains(&lateness), "never early, and hardly late: {job}");
    }
    Ok(())
}
