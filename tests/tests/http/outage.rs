//! Redis away: killed, frozen, back again.

use std::time::{Duration, Instant};

use anyhow::Result;
use punctual_tests::{RedisServer, Response, eventually};
use serde_json::json;

use super::{Server, noop, problem};

/// A second, and half of one for a busy machine.
const ANSWERED: Duration = Duration::from_millis(1500);

async fn timed(request: impl Future<Output = Result<Response>>) -> Result<Response> {
    let begun = Instant::now();
    let response = request.await?;
    assert!(begun.elapsed() < ANSWERED, "{:?}: {}", begun.elapsed(), response.text());
    Ok(response)
}

/// What every route answers while Redis is away.
async fn check_away(server: &Server) -> Result<()> {
    let http = &server.http;
    assert_eq!(timed(http.get("/healthz")).await?.status, 200);
    // An answer of Redis is good for a moment.
    let ready = eventually(Duration::from_secs(2), "/readyz to notice", || async {
        timed(http.get("/readyz")).await.ok().filter(|ready| ready.status == 503)
    })
    .await?;
    let document = ready.json()?;
    let failing = document["checks"].as_array().into_iter().flatten().filter(|check| check["ok"] == false);
    let failing: Vec<&str> = failing.filter_map(|check| check["name"].as_str()).collect();
    assert_eq!(failing, ["redis"], "{document}");
    let metrics = timed(http.get("/metrics")).await?;
    assert!(metrics.status == 200 && metrics.text().contains("punctual_queue_jobs"));
    let keyed = http.clone().header("Idempotency-Key", "k");
    let bulk = http.send("POST", "/api/v1/jobs/bulk", "application/json", b"[{\"handler\":\"demo.noop\"}]");
    for answer in [
        timed(http.post("/api/v1/jobs", &noop())).await?,
        timed(keyed.post("/api/v1/jobs", &noop())).await?,
        timed(http.post("/api/v1/jobs", &json!({"handler": "remote.do"}))).await?,
        timed(bulk).await?,
        timed(http.get("/api/v1/jobs/x")).await?,
    ] {
        assert_eq!((answer.status, problem(&answer)?.as_str()), (503, "redis-unavailable"));
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    // What is wrong without Redis is told without Redis.
    assert_eq!(timed(http.post("/api/v1/jobs", &json!({"handler": ""}))).await?.status, 422);
    Ok(())
}

async fn check_back(server: &Server) -> Result<()> {
    eventually(Duration::from_secs(15), "the server to be ready again", || async {
        (server.http.get("/readyz").await.ok()?.status == 200).then_some(())
    })
    .await?;
    assert_eq!(server.http.post("/api/v1/jobs", &noop()).await?.status, 201);
    Ok(())
}

#[tokio::test]
async fn a_killed_redis_is_a_503_within_a_second_and_a_restart_heals() -> Result<()> {
    let mut redis = RedisServer::start().await?;
    let server = Server::start(&redis.url(), Vec::new()).await?;
    check_back(&server).await?;
    assert_eq!(server.http.get("/metrics").await?.status, 200);
    redis.kill9();
    check_away(&server).await?;
    redis.restart().await?;
    check_back(&server).await
}

#[tokio::test]
async fn a_frozen_redis_is_a_503_within_a_second_and_thawing_heals() -> Result<()> {
    let mut redis = RedisServer::start().await?;
    let server = Server::start(&redis.url(), Vec::new()).await?;
    check_back(&server).await?;
    assert_eq!(server.http.get("/metrics").await?.status, 200);
    redis.pause()?;
    check_away(&server).await?;
    redis.resume()?;
    check_back(&server).await
}

#[tokio::test]
async fn a_full_redis_refuses_and_says_so() -> Result<()> {
    let redis = RedisServer::options().set("maxmemory", "100kb").start().await?;
    let server = Server::start(&redis.url(), Vec::new()).await?;
    // The server alone needs more than that, so the first job is refused.
    let refused = timed(server.http.post("/api/v1/jobs", &noop())).await?;
    assert_eq!((refused.status, problem(&refused)?.as_str()), (503, "redis-unavailable"));
    assert!(refused.text().contains("out of memory"), "{}", refused.text());
    Ok(())
}
