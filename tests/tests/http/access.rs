//! Every route, known or not, as every caller.

use anyhow::Result;
use punctual_core::config::Role;
use punctual_node::http::routes::ROUTES;
use serde_json::json;

use super::{ADMIN, MAIL, OPERATE, READ, Server, noop, problem};

const CALLERS: [(&str, Option<Role>); 7] = [
    ("", None),
    ("Bearer wrong-0123456789-0123456789-0123456789", None),
    ("Bearer ", None),
    ("Basic read-0123456789-0123456789-0123456789", None),
    (READ, Some(Role::Read)),
    (OPERATE, Some(Role::Operate)),
    (ADMIN, Some(Role::Admin)),
];

#[tokio::test]
async fn every_route_asks_for_its_role() -> Result<()> {
    let server = Server::with_tokens().await?;
    for route in ROUTES {
        let path = route.path.replace("{id}", "x");
        for method in ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH"] {
            for (credential, has) in CALLERS {
                let client = match (credential, has) {
                    ("", _) => server.http.clone(),
                    (token, Some(_)) => server.as_(token),
                    (header, None) => server.http.clone().header("Authorization", header),
                };
                let answer = client.send(method, &path, "application/json", b"").await?;
                let seen = format!("{method} {path} as {has:?} {credential}: {}", answer.status);
                let known = route.method == method || (route.method == "GET" && method == "HEAD");
                let expected = match (known, route.role, has) {
                    (true, None, _) => [200, 503].as_slice(),
                    (_, _, None) => &[401],
                    (true, Some(needs), Some(has)) if has < needs => &[403],
                    (true, ..) => &[200, 404, 422],
                    (false, ..) => &[405],
                };
                assert!(expected.contains(&answer.status), "{seen}");
                if answer.status == 401 {
                    assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"punctual\""), "{seen}");
                }
                if [401, 403, 405].contains(&answer.status) && method != "HEAD" {
                    problem(&answer)?;
                }
                if answer.status == 405 {
                    assert!(answer.header("allow").is_some_and(|allow| allow.contains(route.method)), "{seen}");
                }
            }
        }
    }
    assert_eq!(server.waiting("default").await?, 0);
    Ok(())
}

#[tokio::test]
async fn unknown_paths_and_other_spellings_are_closed_too() -> Result<()> {
    let server = Server::with_tokens().await?;
    for path in [
        "/",
        "/api",
        "/api/v1/",
        "/api/v1/jobs/",
        "/metrics/",
        "/metrics/x",
        "//metrics",
        "/METRICS",
        "/%6detrics",
        "/healthz/",
        "/healthz/../metrics",
        "/healthz;/metrics",
        "/healthz%2f..%2fmetrics",
        "/.env",
        "/debug/pprof",
        "/ws",
        "/openapi.json",
    ] {
        for (method, body) in [("GET", ""), ("POST", "{}"), ("HEAD", ""), ("OPTIONS", "")] {
            let answer = server.http.send(method, path, "application/json", body.as_bytes()).await?;
            assert_eq!(answer.status, 401, "{method} {path}");
        }
        let known = server.as_(ADMIN).get(path).await?;
        assert_eq!((known.status, problem(&known)?.as_str()), (404, "not-found"), "{path}");
    }
    let in_query = server.http.get(&format!("/metrics?token={ADMIN}&access_token={ADMIN}")).await?;
    assert_eq!(in_query.status, 401);
    Ok(())
}

#[tokio::test]
async fn a_token_of_one_queue_reaches_no_other() -> Result<()> {
    let server = Server::with_tokens().await?;
    let (mailer, operator) = (server.as_(MAIL), server.as_(OPERATE));
    let refused = mailer.post("/api/v1/jobs", &noop()).await?;
    assert_eq!((refused.status, problem(&refused)?.as_str()), (403, "forbidden"));
    let stored = mailer.post("/api/v1/jobs", &json!({"handler": "demo.noop", "queue": "mail", "id": "m"})).await?;
    assert_eq!(stored.status, 201);
    operator.post("/api/v1/jobs", &json!({"handler": "demo.noop", "id": "d"})).await?;
    operator.post("/api/v1/jobs", &json!({"handler": "demo.noop", "id": "m"})).await?;
    for (path, status) in [
        ("/api/v1/jobs/m", 200),
        ("/api/v1/jobs/m?queue=mail", 200),
        ("/api/v1/jobs/d", 404),
        ("/api/v1/jobs/d?queue=mail", 404),
        ("/api/v1/jobs/d?queue=default", 403),
        ("/metrics", 403),
    ] {
        let answer = mailer.get(path).await?;
        assert_eq!(answer.status, status, "{path}");
        // Of the two jobs with one id it sees its own.
        assert!(status != 200 || answer.json()?["queue"] == "mail", "{path}");
    }
    let lines = b"{\"handler\":\"demo.noop\"}\n{\"handler\":\"demo.noop\",\"queue\":\"mail\"}";
    let bulk = mailer.send("POST", "/api/v1/jobs/bulk", "application/x-ndjson", lines).await?.json()?;
    assert_eq!(bulk["results"][0]["error"]["field"], "queue", "{bulk}");
    assert_eq!(bulk["results"][1]["queue"], "mail", "{bulk}");
    Ok(())
}

#[tokio::test]
async fn without_tokens_this_machine_may_do_everything_and_foreign_pages_nothing() -> Result<()> {
    let server = Server::open().await?;
    assert_eq!(server.http.post("/api/v1/jobs", &noop()).await?.status, 201);
    assert_eq!(server.http.get("/metrics").await?.status, 200);
    let page = server.http.clone().header("Origin", "http://evil.example");
    assert_eq!(problem(&page.post("/api/v1/jobs", &noop()).await?)?, "forbidden");
    // What a form of a foreign page can send without asking first is not taken as JSON.
    let form = server.http.send("POST", "/api/v1/jobs", "text/plain", noop().to_string().as_bytes()).await?;
    assert_eq!(form.status, 415);
    assert_eq!(server.waiting("default").await?, 1);
    Ok(())
}

#[tokio::test]
async fn operators_see_health_and_metrics_only() -> Result<()> {
    let server = Server::with_tokens().await?;
    for route in ROUTES {
        let path = route.path.replace("{id}", "x");
        let answer = server.ops.send(route.method, &path, "application/json", b"{}").await?;
        assert_eq!(answer.status, if route.ops { 200 } else { 404 }, "{path}");
    }
    assert_eq!(problem(&server.ops.get("/api/v1/jobs/x").await?)?, "not-found");
    assert_eq!(problem(&server.ops.send("POST", "/metrics", "", b"").await?)?, "method-not-allowed");
    Ok(())
}
