//! `http.request`: calls a URL of `handlers.http.allow`, and judges by the status that comes back.
//!
//! Done when the status is expected; 408, 425, 429, 5xx and a broken connection are retried, after the wait that
//! `Retry-After` asks for; anything else is dead. A service that answers after the job's timeout has still been
//! called: it must recognise the repetition by `Idempotency-Key`, which is the job's id in every attempt.
//! Absent on purpose: everything that [`crate::outbound`] leaves out, and templates.

use std::collections::BTreeMap;

use punctual_core::handler::{JobArgs, JobContext, Outcome};
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::outbound::Expect;
use crate::outbound::{self, Call};

/// So much of the body is kept with the job.
const RESULT_BYTES: usize = 4 * 1024;

/// The request to send.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpRequest {
    /// GET by default.
    #[serde(default)]
    pub method: Method,
    /// Must lie below one of the prefixes of `handlers.http.allow`.
    pub url: String,
    /// More headers. Not `Host`, not `Idempotency-Key`, none that begins with `Punctual-`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// A string is sent as it is, anything else as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// The status codes that mean done, such as `200-299` (the default) or `200,201,300-304`.
    #[serde(default)]
    #[schemars(with = "String")]
    pub expect: Expect,
}

impl JobArgs for HttpRequest {
    const HANDLER: &'static str = "http.request";
}

/// The methods that a job may use. `CONNECT` would open a tunnel, `TRACE` would echo our headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are those of HTTP")]
pub enum Method {
    #[default]
    #[serde(alias = "get")]
    Get,
    #[serde(alias = "head")]
    Head,
    #[serde(alias = "post")]
    Post,
    #[serde(alias = "put")]
    Put,
    #[serde(alias = "patch")]
    Patch,
    #[serde(alias = "delete")]
    Delete,
    #[serde(alias = "options")]
    Options,
}

impl From<Method> for reqwest::Method {
    fn from(method: Method) -> Self {
        match method {
            Method::Get => Self::GET,
            Method::Head => Self::HEAD,
            Method::Post => Self::POST,
            Method::Put => Self::PUT,
            Method::Patch => Self::PATCH,
            Method::Delete => Self::DELETE,
            Method::Options => Self::OPTIONS,
        }
    }
}

#[derive(Serialize)]
struct Answer {
    status: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    body: String,
}

/// Sends the request; the result is `{"status":200,"body":"…"}`.
pub async fn http_request(args: HttpRequest, job: JobContext) -> Outcome {
    run(args, &job).await.unwrap_or_else(|failure| failure)
}

async fn run(args: HttpRequest, job: &JobContext) -> Result<Outcome, Outcome> {
    let mut headers = outbound::headers(&args.headers)?;
    let body = match args.body {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.into_bytes()),
        Some(json) => {
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            Some(json.to_string().into_bytes())
        }
    };
    let expect = args.expect.clone();
    let reply =
        outbound::send(Call { method: args.method.into(), url: args.url, headers, body, expect: args.expect }, job).await?;
    if expect.contains(reply.status) {
        Ok(Outcome::done(Answer { status: reply.status, body: reply.text(RESULT_BYTES) }))
    } else {
        Err(reply.failure())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::testing::{Server, answer, calling, error_of, job_with, result_of};

    async fn call(args: Value, allow: &[&str]) -> Outcome {
        http_request(serde_json::from_value(args).unwrap(), calling(allow)).await
    }

    #[tokio::test]
    async fn the_request_carries_its_identity_and_the_answer_is_kept() {
        let server = Server::start(|_| answer(200, "", "hello")).await;
        let args = json!({ "method": "POST", "url": server.url("/a?b=c"), "headers": {"X-Shop": "7"}, "body": {"n": 1} });
        let outcome = call(args, &[&server.url("/")]).await;
        assert_eq!(result_of(&outcome), json!({ "status": 200, "body": "hello" }));
        let request = server.requests().remove(0);
        assert_eq!((request.line.as_str(), request.body.as_str()), ("POST /a?b=c HTTP/1.1", r#"{"n":1}"#));
        let headers = [
            ("host", format!("127.0.0.1:{}", server.port)),
            ("punctual-job-id", "job-1".to_owned()),
            ("punctual-attempt", "1".to_owned()),
            ("punctual-claim", "42".to_owned()),
            ("idempotency-key", "job-1".to_owned()),
            ("content-type", "application/json".to_owned()),
            ("x-shop", "7".to_owned()),
        ];
        for (name, value) in headers {
            assert_eq!(request.header(name), [value], "{name}");
        }
    }

    #[tokio::test]
    async fn a_text_is_sent_as_it_is_and_an_empty_answer_has_no_body() {
        let server = Server::start(|_| answer(204, "", "")).await;
        let outcome = call(json!({ "method": "put", "url": server.url("/"), "body": "{not json" }), &[&server.url("/")]).await;
        assert_eq!(outcome, Outcome::done(json!({ "status": 204 })));
        assert_eq!(server.requests()[0].body, "{not json");
        assert!(server.requests()[0].header("content-type").is_empty());
    }

    #[tokio::test]
    async fn headers_cannot_be_overridden() {
        let server = Server::start(|_| answer(200, "", "")).await;
        for name in ["Host", "punctual-CLAIM", "Punctual-Job-Id", "Punctual-Attempt", "Idempotency-Key", "Content-Length"] {
            let outcome = call(json!({ "url": server.url("/"), "headers": {name: "9"} }), &[&server.url("/")]).await;
            assert!(matches!(&outcome, Outcome::Dead(reason) if reason.contains(name)), "{outcome:?}");
        }
        assert!(server.requests().is_empty());
    }

    #[tokio::test]
    async fn statuses_are_done_retried_or_dead() {
        for (status, expect, right) in [
            (200, "200-299", "done"),
            (299, "200-299", "done"),
            (404, "200,404", "done"),
            (302, "300-304", "done"),
            (500, "500", "done"),
            (408, "200-299", "retry"),
            (425, "200-299", "retry"),
            (429, "200-299", "retry"),
            (500, "200-299", "retry"),
            (503, "200-299", "retry"),
            (599, "200-299", "retry"),
            (200, "201", "dead"),
            (304, "200-299", "dead"),
            (400, "200-299", "dead"),
            (401, "200-299", "dead"),
            (404, "200-299", "dead"),
            (410, "200-299", "dead"),
            (302, "200-299", "dead"),
        ] {
            let server = Server::start(move |_| answer(status, "", "")).await;
            let outcome = call(json!({ "url": server.url("/"), "expect": expect }), &[&server.url("/")]).await;
            let got = match &outcome {
                Outcome::Done(_) => "done",
                Outcome::Retry(_) => "retry",
                Outcome::Dead(_) => "dead",
                _ => "other",
            };
            assert_eq!(got, right, "{status} {expect}: {outcome:?}");
        }
    }

    #[tokio::test]
    async fn retry_after_is_honoured_where_a_retry_helps() {
        let server = Server::start(|request| {
            answer(if request.line.contains("/gone") { 410 } else { 503 }, "retry-after: 7\r\n", "later")
        })
        .await;
        let busy = call(json!({ "url": server.url("/x?token=secret") }), &[&server.url("/")]).await;
        let text = format!("GET {}: status 503: later", server.url("/x"));
        assert_eq!(busy, Outcome::retry_after(Duration::from_secs(7), text));
        assert!(matches!(call(json!({ "url": server.url("/gone") }), &[&server.url("/")]).await, Outcome::Dead(_)));
    }

    #[tokio::test]
    async fn no_redirect_leaves_the_list() {
        let inside = Server::start(|_| answer(200, "", "metadata")).await;
        let targets = [
            inside.url("/"),
            format!("http://localhost:{}/", inside.port),
            format!("http://[::1]:{}/", inside.port),
            format!("http://0x7f000001:{}/", inside.port),
            format!("http://2130706433:{}/", inside.port),
            format!("//127.1:{}/", inside.port),
            "http://169.254.169.254/latest/meta-data/".to_owned(),
            "/other".to_owned(),
            "../other".to_owned(),
            "file:///etc/passwd".to_owned(),
            "http://".to_owned(),
        ];
        for target in targets {
            let location = target.clone();
            let server = Server::start(move |_| answer(307, &format!("location: {location}\r\n"), "")).await;
            let outcome = call(json!({ "method": "POST", "url": server.url("/hooks/1") }), &[&server.url("/hooks/")]).await;
            let reason = error_of(&outcome);
            assert!(matches!(outcome, Outcome::Dead(_)), "{target}: {outcome:?}");
            assert!(reason.contains("handlers.http.allow") || reason.contains("not a URL"), "{target}: {reason}");
            assert_eq!(server.requests().len(), 1, "{target}");
        }
        assert!(inside.requests().is_empty());
    }

    #[tokio::test]
    async fn redirects_on_the_list_are_followed_without_the_jobs_secrets() {
        let other = Server::start(|_| answer(200, "", "there")).await;
        let location = other.url("/b");
        let server = Server::start(move |request| match request.line.split(' ').nth(1) {
            Some("/a") => answer(307, "location: /again\r\n", ""),
            _ => answer(303, &format!("location: {location}\r\n"), ""),
        })
        .await;
        let args = json!({ "method": "POST", "url": server.url("/a"), "body": "x", "headers": {"Authorization": "Bearer secret", "X-Api-Key": "secret"} });
        let outcome = call(args, &[&server.url("/"), &other.url("/")]).await;
        assert_eq!(result_of(&outcome)["body"], "there");
        assert_eq!(server.lines(), ["POST /a", "POST /again"]);
        assert_eq!(server.requests()[1].body, "x");
        assert_eq!(server.requests()[1].header("x-api-key"), ["secret"]);
        let last = other.requests().remove(0);
        assert_eq!((last.line.as_str(), last.body.as_str()), ("GET /b HTTP/1.1", ""));
        assert!(!last.head.contains("secret"), "{}", last.head);
        assert_eq!(last.header("idempotency-key"), ["job-1"]);
    }

    #[tokio::test]
    async fn a_circle_of_redirects_ends() {
        let server = Server::start(|_| answer(302, "location: /\r\n", "")).await;
        let outcome = call(json!({ "url": server.url("/") }), &[&server.url("/")]).await;
        assert!(matches!(&outcome, Outcome::Dead(reason) if reason.contains("more than 5 redirects")), "{outcome:?}");
        assert_eq!(server.requests().len(), 6);
    }

    #[tokio::test]
    async fn tricks_reach_nobody() {
        let server = Server::start(|_| answer(200, "", "")).await;
        let port = server.port;
        let allow = ["https://api.example.com/v1", &format!("http://shop.test:{port}/"), &server.url("/open/")];
        for url in [
            format!("http://localhost:{port}/"),
            format!("http://127.0.0.1:{port}/"),
            format!("http://127.1:{port}/open/"),
            format!("http://2130706433:{port}/"),
            format!("http://0x7f000001:{port}/"),
            format!("http://017700000001:{port}/"),
            format!("http://0:{port}/open/"),
            format!("http://[::1]:{port}/open/"),
            format!("http://[::]:{port}/open/"),
            format!("http://[::ffff:127.0.0.1]:{port}/open/"),
            format!("http://shop.test@127.0.0.1:{port}/"),
            format!("http://shop.test:{port}@127.0.0.1:{port}/"),
            format!("http://127.0.0.1:{port}/open/../closed"),
            format!("http://127.0.0.1:{port}/open/%2e%2e/closed"),
            format!("http://127.0.0.1:{port}/open/..%2fclosed"),
            format!("http://127.0.0.1:{port}/open/..;/closed"),
            format!("http://127.0.0.1:{port}\\open\\..\\closed"),
            format!("http://127.0.0.1:{port}#/open/"),
            format!("http://127.0.0.1:{port}/?/open/"),
            format!("https://127.0.0.1:{port}/open/"),
        ] {
            // The first few are the allowed address in another spelling, and only the path keeps them out.
            let outcome = call(json!({ "url": url }), &allow).await;
            let spelled = url.starts_with("http://127.1:");
            assert_eq!(
                matches!(&outcome, Outcome::Dead(reason) if reason.contains("handlers.http.allow")),
                !spelled,
                "{url}: {outcome:?}"
            );
        }
        assert_eq!(server.lines(), ["GET /open/"]);
    }

    /// Names of this machine's hosts file are real names that resolve to an address inside.
    #[tokio::test]
    async fn an_allowed_name_that_resolves_to_this_machine_is_refused() {
        let server = Server::start(|_| answer(200, "", "")).await;
        let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
        let names = hosts.lines().filter(|line| line.starts_with("127.")).flat_map(|line| line.split_whitespace().skip(1));
        for name in names.filter(|name| *name != "localhost" && !name.starts_with('#')) {
            let url = format!("http://{name}:{}/", server.port);
            let outcome = call(json!({ "url": url }), &[&url]).await;
            assert!(
                matches!(&outcome, Outcome::Dead(reason) if reason.contains("127.") && reason.contains("not public")),
                "{outcome:?}"
            );
        }
        let url = format!("http://localhost:{}/", server.port);
        assert!(matches!(call(json!({ "url": url }), &[&url]).await, Outcome::Done(_)));
        assert_eq!(server.requests().len(), 1);
    }

    #[tokio::test]
    async fn an_endless_body_is_cut() {
        let server = Server::start_with(|_, mut stream| async move {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await;
            // Ends when the other side closes.
            while stream.write_all(&[b'x'; 65536]).await.is_ok() {}
        })
        .await;
        let outcome = call(json!({ "url": server.url("/") }), &[&server.url("/")]).await;
        let body = result_of(&outcome)["body"].as_str().unwrap().to_owned();
        assert!(body.len() <= 4096 && body.starts_with("xxx") && body.ends_with("x…"));
    }

    #[tokio::test]
    async fn a_connection_that_breaks_is_retried() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let url = format!("http://{closed}/x?token=secret");
        let outcome = call(json!({ "url": url }), &[&format!("http://{closed}")]).await;
        assert!(matches!(&outcome, Outcome::Retry(text) if text.contains("refused") && !text.contains("secret")), "{outcome:?}");

        let server = Server::start(|request| match request.line.as_str() {
            "GET /half HTTP/1.1" => "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
            "GET /noise HTTP/1.1" => "SSH-2.0-noise\r\n",
            _ => "",
        })
        .await;
        for path in ["/half", "/noise", "/silence"] {
            let outcome = call(json!({ "url": server.url(path) }), &[&server.url("/")]).await;
            assert!(matches!(outcome, Outcome::Retry(_)), "{path}: {outcome:?}");
        }
        let tls = call(
            json!({ "url": format!("https://127.0.0.1:{}/", server.port) }),
            &[&format!("https://127.0.0.1:{}", server.port)],
        )
        .await;
        assert!(matches!(tls, Outcome::Retry(_)), "{tls:?}");
    }

    #[tokio::test]
    async fn a_silent_service_does_not_hold_a_cancelled_job() {
        let server = Server::start_with(|_, stream| async move {
            std::future::pending::<()>().await;
            drop(stream);
        })
        .await;
        let (job, cancel) = job_with(&[&server.url("/")], &[], 1);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            cancel.cancel();
        });
        let started = Instant::now();
        let outcome = http_request(serde_json::from_value(json!({ "url": server.url("/") })).unwrap(), job).await;
        assert!(error_of(&outcome).contains("cancelled") && started.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn an_empty_list_allows_nothing() {
        let outcome = call(json!({ "url": "https://example.com/" }), &[]).await;
        assert_eq!(outcome, Outcome::dead("https://example.com/ is not on handlers.http.allow"));
    }
}
