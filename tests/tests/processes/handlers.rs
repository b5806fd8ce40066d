//! Handlers that misbehave: their job fails as it should, their node lives, and the jobs beside them do not notice.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use punctual_tests::{eventually, message};
use serde_json::{Value, json};

use crate::scene::{LATER, SOON, Scene, noop, outcomes, sleeper};

const QUICK_RETRY: &str = r#"{"backoff":"fixed","base":"100ms","jitter":0}"#;

fn with(mut job: Value, fields: Value) -> Value {
    if let (Value::Object(job), Value::Object(fields)) = (&mut job, fields) {
        job.extend(fields);
    }
    job
}

// H-63
#[tokio::test]
async fn panic_is_a_failed_attempt_and_the_last_one_kills_the_job_with_its_text() -> Result<()> {
    let scene = Scene::shared().await?;
    let node = scene.steady("a").concurrency(2).start().await?;
    let id = scene.enqueue("demo.panic", &json!({}), &["--max-attempts", "3", "--retry", QUICK_RETRY]).await?;
    let job = scene.until_state(&id, "dead", SOON).await?;
    assert_eq!(outcomes(&job), ["panicked", "panicked", "panicked"], "{job}");
    assert!(job["last_error"].as_str().unwrap_or_default().contains("asked to panic"), "{job}");
    assert_eq!((&job["attempt"], &job["crashes"]), (&json!(3), &json!(0)), "{job}");
    scene.enqueue_all((0..10).map(|_| noop())).await?;
    scene.until_count("succeeded", 10, SOON).await?;
    assert!(node.exited()?.is_none());
    Ok(())
}

// BR-53, H-14
#[tokio::test]
async fn handlers_that_keep_every_thread_busy_do_not_kill_their_node() -> Result<()> {
    let scene = Scene::shared().await?;
    let watcher = scene.node("watcher").queues("idle=1").start().await?;
    watcher.wait_log(message("lease acquired"), SOON).await?;
    let node = scene.node("busy").concurrency(4).start().await?;
    let threads = std::thread::available_parallelism()?.get();
    let spin = json!({ "handler": "demo.spin", "args": { "ms": 4_500 }, "max_attempts": 1 });
    let ids = scene.enqueue_all((0..threads).map(|_| spin.clone())).await?;
    scene.until_count("succeeded", threads as u64, LATER).await?;
    for job in scene.jobs(&ids).await? {
        assert_eq!((outcomes(&job), &job["crashes"]), (vec!["succeeded"], &json!(0)), "{job}");
    }
    assert!(watcher.log().matching(message("node dead")).is_empty());
    assert!(node.log().matching(message("declared dead, joined anew")).is_empty());
    Ok(())
}

// H-64
#[tokio::test]
async fn handler_that_never_yields_times_out_and_keeps_its_slot_until_it_ends() -> Result<()> {
    let scene = Scene::shared().await?;
    let node = scene.steady("a").concurrency(1).start().await?;
    let id = scene.enqueue("demo.spin", &json!({ "ms": 9_000 }), &["--max-attempts", "1", "--timeout", "500ms"]).await?;
    scene.until_state(&id, "running", SOON).await?;
    let next = scene.enqueue("demo.noop", &json!({}), &[]).await?;
    let job = scene.until_state(&id, "dead", Duration::from_secs(8)).await?;
    assert_eq!(outcomes(&job), ["timed_out"], "{job}");
    assert_eq!(scene.job(&next).await?["state"], "ready", "one slot, and the handler is still in it");
    node.wait_log(message("handler ignores its timeout"), SOON).await?;
    scene.until_state(&next, "succeeded", SOON).await?;
    Ok(())
}

// H-64
#[tokio::test]
async fn node_whose_slots_never_come_back_finishes_the_rest_and_gives_way_to_a_new_process() -> Result<()> {
    let scene = Scene::shared().await?;
    let node = scene.steady("a").concurrency(4).set("node.drain_timeout", "10m").start().await?;
    let flags = ["--max-attempts", "1", "--timeout", "300ms"];
    let stuck = scene.enqueue("demo.spin", &json!({ "ms": 600_000 }), &flags).await?;
    scene.until_state(&stuck, "dead", SOON).await?;
    // One more job is under way when the node notices; it is seen through.
    let running = scene.enqueue("demo.sleep", &json!({ "ms": 20_000 }), &["--max-attempts", "1"]).await?;
    scene.until_state(&running, "running", SOON).await?;
    node.wait_log(message("too many executions past their claim"), LATER).await?;
    let exit = node.wait_exit(LATER).await?;
    assert_eq!(exit.code(), Some(1), "{exit}");
    assert_eq!(outcomes(&scene.job(&running).await?), ["succeeded"]);
    let _next = scene.steady("a").start().await?;
    let job = scene.enqueue("demo.noop", &json!({}), &[]).await?;
    scene.until_state(&job, "succeeded", SOON).await?;
    Ok(())
}

// H-64
#[tokio::test]
async fn handler_that_ignores_its_cancellation_is_ended_after_a_grace() -> Result<()> {
    let scene = Scene::shared().await?;
    let _node = scene.steady("a").concurrency(1).start().await?;
    let flags = ["--max-attempts", "2", "--retry", QUICK_RETRY, "--timeout", "500ms"];
    let id = scene.enqueue("demo.ignore", &json!({ "ms": 60_000 }), &flags).await?;
    let job = scene.until_state(&id, "dead", SOON).await?;
    assert_eq!(outcomes(&job), ["timed_out", "timed_out"], "{job}");
    let next = scene.enqueue("demo.noop", &json!({}), &[]).await?;
    scene.until_state(&next, "succeeded", SOON).await?;
    Ok(())
}

// H-89
#[tokio::test]
async fn running_job_is_cancelled_within_a_second() -> Result<()> {
    let scene = Scene::shared().await?;
    let _node = scene.steady("a").start().await?;
    let id = scene.enqueue("demo.sleep", &json!({ "ms": 60_000 }), &[]).await?;
    scene.until_state(&id, "running", SOON).await?;
    let asked = Instant::now();
    let answer = scene.cli.run(&["jobs", "cancel", &id]).await?.ok()?;
    assert_eq!(answer["results"][0]["ok"], true, "{answer}");
    let job = scene.until_state(&id, "cancelled", SOON).await?;
    ensure!(asked.elapsed() < Duration::from_millis(1_500), "{:?}", asked.elapsed());
    assert_eq!(outcomes(&job), ["cancelled"], "{job}");
    Ok(())
}

// BR-51, H-07
#[tokio::test]
async fn job_that_is_deleted_while_it_runs_costs_a_line_and_frees_its_slot() -> Result<()> {
    let scene = Scene::shared().await?;
    let node = scene.steady("a").concurrency(1).start().await?;
    let args = json!({ "argv": ["/bin/sh", "-c", "sleep 2; exit 1"] });
    let id = scene.enqueue("process.exec", &args, &[]).await?;
    scene.until_state(&id, "running", SOON).await?;
    // Whatever the command answers for a running job, its record goes: by hand, as a restored snapshot would.
    let mut conn = scene.conn().await?;
    let tag = format!("{{{}:default}}", scene.ns);
    for key in [format!("{tag}:b:{}", &id[24..]), format!("{tag}:s")] {
        let removed: u64 = redis::cmd("HDEL").arg(&key).arg(&id).query_async(&mut conn).await?;
        assert_eq!(removed, 1, "{key}");
    }
    let next = scene.enqueue("demo.noop", &json!({}), &[]).await?;
    scene.until_state(&next, "succeeded", SOON).await?;
    let lines = node.log().matching(|line| line["job_id"] == *id && line["level"] != "DEBUG");
    assert!((1..=2).contains(&lines.len()), "{lines:?}");
    assert_eq!(scene.cli.run(&["jobs", "show", &id]).await?.code, 1, "it stays deleted");
    Ok(())
}

// BR-57, H-61
#[tokio::test]
async fn poison_job_dies_after_three_crashes_and_the_jobs_beside_it_succeed() -> Result<()> {
    let scene = Scene::shared().await?;
    let start = |number: usize| scene.node(&format!("n{number}")).concurrency(8).start();
    let mut nodes = Vec::new();
    for number in 0..3 {
        nodes.push(start(number).await?);
    }
    let poison = json!({ "handler": "demo.abort", "max_attempts": 1 });
    let jobs = (0..41).map(|n| if n == 5 { poison.clone() } else { sleeper(300) });
    let ids = scene.enqueue_all(jobs).await?;
    let mut deaths = 0;
    let deadline = Instant::now() + LATER;
    let buried = loop {
        ensure!(Instant::now() < deadline, "not dead after {deaths} deaths: {}", scene.job(&ids[5]).await?);
        for (number, node) in nodes.iter_mut().enumerate() {
            if node.exited()?.is_some() {
                deaths += 1;
                *node = start(number).await?;
            }
        }
        let job = scene.job(&ids[5]).await?;
        if job["state"] == "dead" {
            break job;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((&buried["crashes"], deaths), (&json!(3), 3), "{buried}");
    assert!(buried["reason"] == "killed its node 3 times", "{buried}");
    scene.until_count("succeeded", 40, LATER).await?;
    for job in scene.jobs(&ids).await?.iter().filter(|job| job["handler"] != "demo.abort") {
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    }
    Ok(())
}

// BR-61, H-68, H-70
#[tokio::test]
async fn huge_error_of_invalid_bytes_is_kept_short_and_readable() -> Result<()> {
    let scene = Scene::shared().await?;
    let _node = scene.steady("a").start().await?;
    let script = r"head -c 5000000 /dev/zero | tr '\0' '\377' >&2; printf '\377\376\200' >&2; exit 1";
    let job = json!({ "handler": "process.exec", "args": { "argv": ["/bin/sh", "-c", script] } });
    let job = with(job, json!({ "max_attempts": 2, "retry": { "backoff": "fixed", "base": "100ms" } }));
    let ids = scene.enqueue_all([job]).await?;
    let job = scene.until_state(&ids[0], "dead", SOON).await?;
    assert_eq!(outcomes(&job), ["failed", "failed"], "{job}");
    for attempt in job["attempts"].as_array().into_iter().flatten() {
        let error = attempt["error"].as_str().unwrap_or_default();
        assert!(error.starts_with("exit 1") && error.len() <= 8_192, "{} bytes", error.len());
    }
    Ok(())
}

// H-71: each way to end.
#[tokio::test]
async fn exit_codes_end_a_job_as_they_say() -> Result<()> {
    let scene = Scene::shared().await?;
    let _node = scene.steady("a").start().await?;
    let exec = |script: &str| json!({ "handler": "process.exec", "args": { "argv": ["/bin/sh", "-c", script] } });
    let retry = json!({ "max_attempts": 2, "retry": { "backoff": "fixed", "base": "100ms" } });
    let scripts = ["exit 0", "exit 65", "test $PUNCTUAL_ATTEMPT = 2 || exit 75", "kill -9 $$"];
    let ids = scene.enqueue_all(scripts.map(|script| with(exec(script), retry.clone()))).await?;
    let ends = ["succeeded", "dead", "succeeded", "dead"];
    let tries: [&[&str]; 4] = [&["succeeded"], &["failed"], &["failed", "succeeded"], &["failed", "failed"]];
    for ((id, state), tries) in ids.iter().zip(ends).zip(tries) {
        let job = scene.until_state(id, state, SOON).await?;
        assert_eq!(outcomes(&job), tries, "{job}");
    }
    Ok(())
}

// H-65: what a program leaves behind goes with its node's drain, and its job is handed back.
#[tokio::test]
async fn drained_node_leaves_no_program_behind() -> Result<()> {
    let scene = Scene::shared().await?;
    let node = scene.steady("a").drain_timeout(Duration::from_millis(300)).start().await?;
    let marker = format!("600.{:07}", std::process::id());
    let args = json!({ "argv": ["/bin/sh", "-c", format!("sleep {marker} & sleep {marker}")] });
    let id = scene.enqueue("process.exec", &args, &["--max-attempts", "1"]).await?;
    let runs = || {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        processes
            .filter_map(|path| std::fs::read(path.join("cmdline")).ok())
            .any(|line| String::from_utf8_lossy(&line).contains(&marker))
    };
    eventually(SOON, "the program to run", async || runs().then_some(())).await?;
    node.term()?;
    assert_eq!(node.wait_exit(SOON).await?.code(), Some(0));
    eventually(SOON, "the program to be gone", async || (!runs()).then_some(())).await?;
    let job = scene.job(&id).await?;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("ready"), &json!(0)), "{job}");
    Ok(())
}
