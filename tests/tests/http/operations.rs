//! Health, readiness and metrics while all is well.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{ADMIN, READ, Server, noop};

fn failing(document: &Value) -> Vec<&str> {
    let checks = document["checks"].as_array().map_or(&[][..], Vec::as_slice);
    checks.iter().filter(|check| check["ok"] != true).filter_map(|check| check["name"].as_str()).collect()
}

#[tokio::test]
async fn readiness_names_what_fails() -> Result<()> {
    let server = Server::open().await?;
    let ready = server.http.get("/readyz").await?;
    assert_eq!((ready.status, ready.json()?["ok"].as_bool()), (200, Some(true)), "{}", ready.text());
    assert!(ready.json()?["checks"].as_array().is_some_and(|checks| checks.iter().any(|check| check["name"] == "redis")));
    server.status.set_draining();
    for client in [&server.http, &server.ops] {
        let draining = client.get("/readyz").await?;
        assert_eq!((draining.status, failing(&draining.json()?)), (503, vec!["accepting"]));
    }
    assert_eq!(server.http.get("/healthz").await?.status, 200);
    assert_eq!(server.http.send("HEAD", "/healthz", "", b"").await?.body, b"");
    Ok(())
}

#[tokio::test]
async fn metrics_of_the_contract_are_there() -> Result<()> {
    let server = Server::with_tokens().await?;
    assert_eq!(server.http.get("/metrics").await?.status, 401);
    let client = server.as_(ADMIN);
    for _ in 0..3 {
        assert_eq!(client.post("/api/v1/jobs", &noop()).await?.status, 201);
    }
    let bulk = b"{\"handler\":\"demo.noop\",\"queue\":\"invented\"}";
    client.send("POST", "/api/v1/jobs/bulk", "application/json", bulk).await?;
    let answer = server.as_(READ).get("/metrics").await?;
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = answer.text();
    for name in [
        "punctual_jobs_enqueued_total",
        "punctual_job_lateness_seconds_bucket",
        "punctual_promotion_lateness_seconds_bucket",
        "punctual_queue_jobs",
        "punctual_queue_oldest_ready_seconds",
        "punctual_queue_due_soon",
        "punctual_lease_held",
        "punctual_lease_term",
        "punctual_nodes",
        "punctual_stale_claims_rejected_total",
        "punctual_jobs_requeued_total",
        "punctual_jobs_unroutable",
        "punctual_redis_errors_total",
        "punctual_redis_command_seconds_bucket",
    ] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name} is missing in\n{text}");
    }
    let count = |line: &str| -> Result<u64> {
        let found = text.lines().find_map(|one| one.strip_prefix(line)).with_context(|| format!("{line} in\n{text}"))?;
        Ok(found.trim().parse()?)
    };
    // The recorder is the process's, so other tests may have counted too.
    assert!(count("punctual_jobs_enqueued_total{queue=\"default\"}")? >= 3);
    assert!(count("punctual_jobs_enqueued_total{queue=\"unknown\"}")? >= 1);
    assert!(!text.contains("invented"));
    Ok(())
}
