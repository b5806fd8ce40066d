//! One job: stored, shown, and stored once.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{ADMIN, OPERATE, Server, noop, problem, wrong};

fn id(document: &Value) -> Result<String> {
    Ok(document["id"].as_str().with_context(|| format!("no id in {document}"))?.to_owned())
}

#[tokio::test]
async fn a_job_is_stored_and_shown() -> Result<()> {
    let server = Server::open().await?;
    let body = json!({
        "handler": "order.close", "args": {"order_id": 7, "shop": "http://shop.example/"}, "queue": "mail",
        "delay": "30m", "priority": "high", "tags": {"shop": "de"},
    });
    let stored = server.http.post("/api/v1/jobs", &body).await?;
    assert_eq!(stored.status, 201, "{}", stored.text());
    let receipt = stored.json()?;
    let mut names: Vec<&String> = receipt.as_object().context("an object")?.keys().collect();
    names.sort();
    assert_eq!(names, ["due_at", "id", "queue", "state"]);
    assert_eq!((&receipt["state"], &receipt["queue"]), (&json!("scheduled"), &json!("mail")));
    for query in ["", "?queue=mail"] {
        let shown = server.http.get(&format!("/api/v1/jobs/{}{query}", id(&receipt)?)).await?;
        assert_eq!((shown.status, shown.header("cache-control")), (200, Some("no-store")));
        let view = shown.json()?;
        assert_eq!(view["args"], body["args"]);
        assert_eq!((&view["due_at"], &view["priority"]), (&receipt["due_at"], &json!("high")));
        // The preset `fast` of the handler: three retries.
        assert_eq!(view["max_attempts"], 4, "{view}");
    }
    for path in ["/api/v1/jobs/none", "/api/v1/jobs/%2e%2e", "/api/v1/jobs/a%2Fb", "/api/v1/jobs/%ff", "/api/v1/jobs/a%0Ab"] {
        let answer = server.http.get(path).await?;
        assert_eq!((answer.status, problem(&answer)?.as_str()), (404, "not-found"), "{path}");
    }
    assert_eq!(server.http.get(&format!("/api/v1/jobs/{}?queue=other", id(&receipt)?)).await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn what_is_there_already_is_told_and_not_stored_again() -> Result<()> {
    let server = Server::open().await?;
    for body in [
        json!({"handler": "demo.noop", "id": "order-17"}),
        json!({"handler": "demo.noop", "unique": {"key": "k"}, "delay": "1h"}),
        json!({"handler": "demo.noop", "dedupe_for": "1h"}),
    ] {
        let first = server.http.post("/api/v1/jobs", &body).await?;
        let again = server.http.post("/api/v1/jobs", &body).await?;
        assert_eq!((first.status, again.status), (201, 200), "{body}");
        let (first, again) = (first.json()?, again.json()?);
        assert_eq!(again["duplicate_of"], first["id"], "{again}");
        assert_eq!((&again["id"], &again["state"], &again["due_at"]), (&first["id"], &first["state"], &first["due_at"]));
    }
    assert_eq!(server.waiting("default").await?, 3);
    Ok(())
}

#[tokio::test]
async fn one_idempotency_key_is_one_answer_for_good() -> Result<()> {
    let server = Server::with_tokens().await?;
    let keyed = |token: &str, key: &str| server.as_(token).header("Idempotency-Key", key);
    let body = json!({"handler": "demo.noop", "delay": "1h"});
    let first = keyed(OPERATE, "k-1").post("/api/v1/jobs", &body).await?;
    assert_eq!(first.status, 201);
    let job = id(&first.json()?)?;
    let same = keyed(OPERATE, "k-1").post("/api/v1/jobs", &body).await?;
    assert_eq!((same.status, same.json()?), (201, first.json()?));
    let parallel = (0..20).map(|_| {
        let (client, body) = (keyed(OPERATE, "k-2"), body.clone());
        async move { client.post("/api/v1/jobs", &body).await }
    });
    let mut answers = Vec::new();
    for answer in futures_util::future::join_all(parallel).await {
        answers.push(answer?.json()?);
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(server.waiting("default").await?, 2);

    let other = keyed(OPERATE, "k-1").post("/api/v1/jobs", &json!({"handler": "demo.noop", "queue": "mail"})).await?;
    assert_eq!((other.status, problem(&other)?.as_str()), (409, "idempotency-conflict"));
    // The key of another token is another key, and the job's end does not make the key forget.
    let others = keyed(ADMIN, "k-1").post("/api/v1/jobs", &body).await?.json()?;
    assert_ne!(id(&others)?, job);
    assert_eq!(server.store.delete("default", std::slice::from_ref(&job)).await?, [true]);
    let later = keyed(OPERATE, "k-1").post("/api/v1/jobs", &body).await?;
    assert_eq!((later.status, later.json()?), (201, first.json()?));
    assert_eq!(server.as_(OPERATE).get(&format!("/api/v1/jobs/{job}")).await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn a_refused_request_leaves_its_key_free() -> Result<()> {
    let server = Server::open().await?;
    let client = server.http.clone().header("Idempotency-Key", "k");
    assert_eq!(client.post("/api/v1/jobs", &json!({"handler": "demo.nope"})).await?.status, 422);
    assert_eq!(client.post("/api/v1/jobs", &noop()).await?.status, 201);
    let bad = server.http.clone().header("Idempotency-Key", &"x".repeat(256)).post("/api/v1/jobs", &noop()).await?;
    assert_eq!((bad.status, wrong(&bad)?), (422, vec!["Idempotency-Key".to_owned()]));
    Ok(())
}

#[tokio::test]
async fn handlers_of_other_nodes_are_known_by_what_they_advertise() -> Result<()> {
    let server = Server::open().await?;
    server.other_node().await?;
    let ask = |args: Value| json!({"handler": "remote.do", "args": args});
    assert_eq!(server.http.post("/api/v1/jobs", &ask(json!({"n": 1}))).await?.status, 201);
    let refused = server.http.post("/api/v1/jobs", &ask(json!({"n": "s3cret"}))).await?;
    assert_eq!((refused.status, wrong(&refused)?), (422, vec!["args.n".to_owned()]));
    assert!(!refused.text().contains("s3cret"));
    Ok(())
}
