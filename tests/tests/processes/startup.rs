//! What a node says and how it ends when the Redis it finds will not do.

use std::time::{Duration, Instant};

use anyhow::Result;
use punctual_tests::port::free_port;
use punctual_tests::{NodeProcess, RedisServer, message};
use serde_json::Value;

use crate::scene::SOON;

/// Starts a node that must give up at once, with one line of level error, and returns that line's text.
async fn refused(url: &str) -> Result<String> {
    let started = Instant::now();
    let node = NodeProcess::builder(url, "startup").spawn()?;
    assert_eq!(node.wait_exit(SOON).await?.code(), Some(1));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let errors = node.log().matching(|line| line["level"] == "ERROR");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(node.log().lines().len() <= 10, "{}", node.log().tail(30));
    assert!(node.log().lines().iter().all(|line| !line.to_string().contains("s3cret")), "{}", node.log().tail(30));
    Ok(errors[0]["error"].as_str().unwrap_or_default().to_owned())
}

// H-44
#[tokio::test]
async fn redis_that_evicts_is_refused_unless_allowed() -> Result<()> {
    let redis = RedisServer::options().maxmemory_policy("allkeys-lru").start().await?;
    let text = refused(&redis.url()).await?;
    assert!(text.contains("maxmemory-policy is allkeys-lru") && text.contains("redis.allow_eviction"), "{text}");
    let node = NodeProcess::builder(&redis.url(), "startup").set("redis.allow_eviction", "true").start().await?;
    node.wait_log(message("keys may be evicted, as allowed"), SOON).await?;
    Ok(())
}

// H-48, H-111
#[tokio::test]
async fn wrong_and_missing_passwords_are_refused_and_never_shown() -> Result<()> {
    let redis = RedisServer::options().requirepass("s3cret-right").start().await?;
    let missing = refused(&format!("redis://127.0.0.1:{}", redis.port())).await?;
    let wrong = refused(&format!("redis://:s3cret-wrong@127.0.0.1:{}", redis.port())).await?;
    for text in [missing, wrong] {
        assert!(text.contains("redis.password_file"), "{text}");
    }
    NodeProcess::builder(&redis.url(), "startup").start().await?;
    Ok(())
}

// H-50: it may be about to be promoted, so a node says what it sees and waits.
#[tokio::test]
async fn replica_is_named_as_one_and_used_once_it_is_promoted() -> Result<()> {
    let (primary, replica) = (RedisServer::start().await?, RedisServer::start().await?);
    let mut conn = replica.conn().await?;
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(primary.port()).exec_async(&mut conn).await?;
    let node = NodeProcess::builder(&replica.url(), "startup").spawn()?;
    let waiting = node.wait_log(message("waiting for redis"), SOON).await?;
    assert!(waiting["error"].as_str().unwrap_or_default().contains("replica"), "{waiting}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(node.exited()?.is_none());
    assert!(node.log().matching(message("waiting for redis")).len() <= 3, "{}", node.log().tail(30));
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut conn).await?;
    node.node_id().await?;
    Ok(())
}

// H-103
#[tokio::test]
async fn node_waits_for_a_redis_that_is_not_there_yet_with_few_lines() -> Result<()> {
    let port = free_port()?;
    let node = NodeProcess::builder(&format!("redis://127.0.0.1:{port}"), "startup").spawn()?;
    node.wait_log(message("waiting for redis"), SOON).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let said = node.log().matching(message("waiting for redis"));
    assert!(said.len() <= 4, "{said:?}");
    assert!(said.iter().all(|line| line["level"] == "WARN" && line["times"].is_u64()), "{said:?}");
    assert!(node.exited()?.is_none());
    let _redis = RedisServer::options().port(port).start().await?;
    node.node_id().await?;
    Ok(())
}

// H-104
#[tokio::test]
async fn bad_configuration_is_exit_code_2_and_names_the_key() -> Result<()> {
    for (key, value) in [("node.concurrency", "0"), ("node.dead_after", "1s"), ("lease.ttl", "2s"), ("node.colour", "red")] {
        let node = NodeProcess::builder("redis://127.0.0.1:1", "startup").set(key, value).spawn()?;
        assert_eq!(node.wait_exit(SOON).await?.code(), Some(2), "{key}");
        let lines: Vec<String> = node.log().lines().iter().map(Value::to_string).collect();
        assert!(lines.iter().any(|line| line.contains(key)), "{key}: {lines:?}");
    }
    Ok(())
}
