//! Redis does what it was asked, and the reply is lost: no job is lost with it and none runs twice.

use anyhow::{Context as _, Result, ensure};
use punctual_tests::{Proxy, RedisServer, Rule, command, command_with};
use redis::aio::MultiplexedConnection;

use crate::scene::{LATER, SOON, Scene};

/// The digest by which nodes call a script: the prelude and the script, as they lie in the repository.
pub async fn digest(conn: &mut MultiplexedConnection, stem: &str) -> Result<String> {
    let read = |stem: &str| {
        let path = format!("{}/../crates/core/src/store/{stem}.lua", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).with_context(|| path)
    };
    let text = format!("{}\n{}", read("prelude")?, read(stem)?);
    Ok(redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(conn).await?)
}

/// Cuts about every other reply of what matches.
fn cut_some(proxy: &Proxy, matches: impl Fn(&[Vec<u8>]) -> bool + Send + Sync + 'static) -> Rule {
    proxy.cut_reply(move |args| matches(args) && fastrand::bool(), Rule::ALWAYS)
}

/// Runs many short jobs through a node that claims few at a time, while replies of this script are lost.
async fn script_replies_are_lost(stem: &str, at_least: u64) -> Result<()> {
    let redis = RedisServer::shared().await?;
    let proxy = Proxy::start(redis.port())?;
    let scene = Scene::via(redis, proxy.port())?;
    let node = scene.steady("a").concurrency(3).start().await?;
    let cut = cut_some(&proxy, command_with("EVALSHA", &digest(&mut scene.conn().await?, stem).await?));
    let ids = scene.enqueue_all((0..150).map(|_| scene.witnessed("0"))).await?;
    scene.until_count("succeeded", 150, LATER).await?;
    cut.stop();
    ensure!(cut.fired() >= at_least, "only {} replies were lost: is the binary as new as the scripts?", cut.fired());
    scene.assert_ran_once(&ids)?;
    scene.until_nothing_is_held(SOON).await?;
    for job in scene.jobs(&ids[..10]).await? {
        assert_eq!((&job["attempt"], &job["crashes"]), (&1.into(), &0.into()), "{job}");
    }
    assert_eq!(scene.count("dead").await?, 0);
    node.term()?;
    assert_eq!(node.wait_exit(SOON).await?.code(), Some(0));
    Ok(())
}

// H-02, H-54
#[tokio::test]
async fn lost_reply_of_a_claim_is_asked_for_again() -> Result<()> {
    script_replies_are_lost("claim", 8).await
}

// H-06, H-54
#[tokio::test]
async fn lost_reply_of_a_settle_settles_once() -> Result<()> {
    script_replies_are_lost("settle", 5).await
}

// H-02, BR-39, BR-41: the entry is in the processing list of a node that lives and does not know it.
#[tokio::test]
async fn lost_reply_of_the_blocking_fetch_loses_no_job() -> Result<()> {
    let redis = RedisServer::shared().await?;
    let proxy = Proxy::start(redis.port())?;
    let scene = Scene::via(redis, proxy.port())?;
    let _node = scene.steady("a").start().await?;
    let cut = proxy.cut_reply(command("BRPOPLPUSH"), 25);
    let mut ids = Vec::new();
    while cut.left() > 0 {
        ensure!(ids.len() < 200, "{} replies were lost in 200 jobs", cut.fired());
        let stored = scene.enqueue_all([scene.witnessed("0")]).await?;
        scene.until_state(&stored[0], "succeeded", SOON).await?;
        ids.extend(stored);
    }
    scene.assert_ran_once(&ids)?;
    scene.until_nothing_is_held(SOON).await
}

// H-02, H-06: everything at once, on two nodes.
#[tokio::test]
async fn replies_of_anything_may_be_lost_and_every_job_still_runs_once() -> Result<()> {
    let redis = RedisServer::shared().await?;
    let proxy = Proxy::start(redis.port())?;
    let scene = Scene::via(redis, proxy.port())?;
    let _nodes = [scene.steady("a").concurrency(3).start().await?, scene.steady("b").concurrency(3).start().await?];
    let cut = proxy.cut_reply(|_| fastrand::u8(..12) == 0, Rule::ALWAYS);
    let ids = scene.enqueue_all((0..150).map(|_| scene.witnessed("0.02"))).await?;
    scene.until_count("succeeded", 150, LATER).await?;
    cut.stop();
    ensure!(cut.fired() >= 10, "only {} replies were lost", cut.fired());
    scene.assert_ran_once(&ids)?;
    scene.until_nothing_is_held(SOON).await
}

// BR-73, H-48: each of these answers passes, and the fetch goes on.
#[tokio::test]
async fn error_answers_of_a_redis_that_changes_end_no_loop() -> Result<()> {
    let redis = RedisServer::shared().await?;
    let proxy = Proxy::start(redis.port())?;
    let scene = Scene::via(redis, proxy.port())?;
    let node = scene.steady("a").start().await?;
    let mut ids = Vec::new();
    for text in [
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "LOADING Redis is loading the dataset in memory",
        "READONLY You can't write against a read only replica.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "ERR something nobody has heard of",
    ] {
        let answered = proxy.answer_error(|args| !args[0].eq_ignore_ascii_case(b"HELLO"), text, 6);
        ids.extend(scene.enqueue_all((0..5).map(|_| scene.witnessed("0"))).await?);
        scene.until_count("succeeded", ids.len() as u64, SOON).await.with_context(|| format!("after {text}"))?;
        ensure!(answered.fired() > 0, "{text} was never answered");
        answered.stop();
    }
    assert!(node.exited()?.is_none());
    scene.assert_ran_once(&ids)?;
    scene.until_nothing_is_held(SOON).await
}
