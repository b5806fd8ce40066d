//! Answers that get lost: between client and server, between server and Redis, and in the middle of many jobs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use punctual_tests::{Proxy, RedisServer};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::{Server, noop, problem};

/// Whether a command of Redis brings jobs of `demo.noop`.
fn brings_jobs(command: &[Vec<u8>]) -> bool {
    let is_script = command.first().is_some_and(|name| name.to_ascii_uppercase().starts_with(b"EVAL"));
    is_script && command.iter().skip(4).any(|argument| argument.windows(9).any(|part| part == b"demo.noop"))
}

async fn behind_a_proxy() -> Result<(Server, Proxy)> {
    let redis = RedisServer::shared().await?;
    let proxy = Proxy::start(redis.port())?;
    let server = Server::start(&redis.url_via(proxy.port()), Vec::new()).await?;
    // The first call of a script is sent twice: Redis does not know it yet.
    assert_eq!(server.http.post("/api/v1/jobs", &json!({"handler": "demo.noop", "queue": "warm"})).await?.status, 201);
    Ok((server, proxy))
}

#[tokio::test]
async fn clients_that_lost_their_answers_repeat_and_store_nothing_twice() -> Result<()> {
    let server = Server::open().await?;
    let body = r#"{"handler":"demo.noop","delay":"1h"}"#;
    for n in 0..200 {
        let request = format!(
            "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nIdempotency-Key: lost-{n}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = tokio::net::TcpStream::connect(server.addr).await?;
        stream.write_all(request.as_bytes()).await?;
        // Some are gone before the server looks, some while Redis works, some after the answer.
        tokio::time::sleep(Duration::from_micros(n * 20)).await;
    }
    for n in 0..200 {
        let client = server.http.clone().header("Idempotency-Key", &format!("lost-{n}"));
        let again = client.send("POST", "/api/v1/jobs", "application/json", body.as_bytes()).await?;
        assert_eq!(again.status, 201, "{}", again.text());
    }
    assert_eq!(server.waiting("default").await?, 200);
    Ok(())
}

#[tokio::test]
async fn a_reply_that_redis_lost_is_asked_for_again() -> Result<()> {
    let (server, proxy) = behind_a_proxy().await?;
    for _ in 0..20 {
        let cut = proxy.cut_reply(brings_jobs, 1);
        let answer = server.http.post("/api/v1/jobs", &noop()).await?;
        assert_eq!(answer.status, 201, "{}", answer.text());
        assert!(answer.json()?.get("duplicate_of").is_none());
        assert_eq!(cut.fired(), 1);
    }
    assert_eq!(server.waiting("default").await?, 20);
    Ok(())
}

#[tokio::test]
async fn a_bulk_that_broke_off_tells_what_it_did_and_its_key_completes_it() -> Result<()> {
    let (server, proxy) = behind_a_proxy().await?;
    let calls = AtomicU64::new(0);
    let after_the_first = move |command: &[Vec<u8>]| brings_jobs(command) && calls.fetch_add(1, Ordering::Relaxed) > 0;
    proxy.answer_error(after_the_first, "BUSY a script runs", u64::MAX);
    let body = "{\"handler\":\"demo.noop\",\"delay\":\"1h\"}\n".repeat(1100);
    let client = server.http.clone().header("Idempotency-Key", "b").timeout(Duration::from_secs(30));
    let send = || client.send("POST", "/api/v1/jobs/bulk", "application/x-ndjson", body.as_bytes());
    let broken = send().await?;
    assert_eq!((broken.status, problem(&broken)?.as_str()), (503, "redis-unavailable"));
    let done = broken.json()?["results"].as_array().cloned().unwrap_or_default();
    assert_eq!((done.len(), server.waiting("default").await?), (500, 500));
    proxy.clear_rules();
    let whole = send().await?.json()?["results"].as_array().cloned().unwrap_or_default();
    assert_eq!((whole.len(), server.waiting("default").await?), (1100, 1100));
    assert_eq!(whole[..500], done);
    Ok(())
}
