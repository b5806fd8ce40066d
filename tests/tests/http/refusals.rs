//! What is refused, how, and what a refusal never says.

use anyhow::Result;
use serde_json::json;

use super::{Server, noop, problem, wrong};

const MARKER: &str = "s3cret-marker";

#[tokio::test]
async fn wrong_fields_are_all_named() -> Result<()> {
    let server = Server::open().await?;
    let cases = [
        ("", "body"),
        ("{", "body"),
        ("[]", "body"),
        (r#"{"handler":"demo.noop"}{}"#, "body"),
        (r#"{"args":{}}"#, "handler"),
        (r#"{"handler":"demo.noop","colour":"red"}"#, "colour"),
        (r#"{"handler":"demo.nope"}"#, "handler"),
        (r#"{"handler":"demo.noop","queue":"{x}"}"#, "queue"),
        (r#"{"handler":"demo.noop","delay":"5"}"#, "delay"),
        (r#"{"handler":"demo.noop","run_at":"tomorrow"}"#, "run_at"),
        (r#"{"handler":"demo.noop","priority":50}"#, "priority"),
        (r#"{"handler":"demo.noop","retry":"fastt"}"#, "retry"),
        (r#"{"handler":"demo.noop","retry":{"factor":0}}"#, "retry"),
        (r#"{"handler":"demo.noop","max_attempts":0}"#, "max_attempts"),
        (r#"{"handler":"demo.noop","id":".."}"#, "id"),
        (r#"{"handler":"demo.sleep","args":{"ms":"x"}}"#, "args.ms"),
        (r#"{"handler":"order.close","args":{}}"#, "args.order_id"),
    ];
    for (body, field) in cases {
        let answer = server.http.send("POST", "/api/v1/jobs", "application/json", body.as_bytes()).await?;
        assert_eq!((answer.status, problem(&answer)?.as_str()), (422, "validation"), "{body}");
        assert_eq!(wrong(&answer)?, [field], "{body}: {}", answer.text());
    }
    let many = json!({"handler": "a b", "queue": "A", "delay": "5", "priority": "urgent"});
    let mut fields = wrong(&server.http.post("/api/v1/jobs", &many).await?)?;
    fields.sort();
    assert_eq!(fields, ["delay", "handler", "priority", "queue"]);
    let deep = format!(r#"{{"handler":"demo.noop","args":{}{}}}"#, "[".repeat(5000), "]".repeat(5000));
    let answer = server.http.send("POST", "/api/v1/jobs", "application/json", deep.as_bytes()).await?;
    assert_eq!(answer.status, 422);
    for (path, field) in
        [("/api/v1/jobs/x?queue=A", "queue"), ("/api/v1/jobs/x?colour=red", "query"), ("/api/v1/jobs/x?queue=a&queue=b", "query")]
    {
        assert_eq!(wrong(&server.http.get(path).await?)?, [field], "{path}");
    }
    assert_eq!(server.waiting("default").await?, 0);
    Ok(())
}

#[tokio::test]
async fn types_and_sizes_are_refused_before_anything_is_read() -> Result<()> {
    let server = Server::open().await?;
    for content_type in ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/x-ndjson"] {
        let answer = server.http.send("POST", "/api/v1/jobs", content_type, noop().to_string().as_bytes()).await?;
        assert_eq!((answer.status, problem(&answer)?.as_str()), (415, "unsupported-media-type"), "{content_type}");
    }
    let packed = server.http.clone().header("Content-Encoding", "gzip").post("/api/v1/jobs", &noop()).await?;
    assert_eq!(packed.status, 415);
    let body = json!({"handler": "demo.noop", "args": "x".repeat(256 * 1024)});
    let answer = server.http.post("/api/v1/jobs", &body).await?;
    assert_eq!((answer.status, wrong(&answer)?), (422, vec!["args".to_owned()]));
    for size in [321 * 1024, 5 << 20] {
        let body = json!({"handler": "demo.noop", "args": "x".repeat(size)});
        let answer = server.http.post("/api/v1/jobs", &body).await?;
        assert_eq!((answer.status, problem(&answer)?.as_str()), (413, "too-large"));
    }
    // Without a length in front, the bytes are counted as they come.
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000)).repeat(6) + "0\r\n\r\n";
    let streamed = server.http.clone().header("Transfer-Encoding", "chunked").send("PATCH", "/", "", b"").await?;
    assert_eq!(streamed.status, 404);
    let answer = raw(&server, &format!("POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}")).await?;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    Ok(())
}

async fn raw(server: &Server, request: &str) -> Result<String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(server.addr).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn no_refusal_repeats_what_may_be_a_secret() -> Result<()> {
    let server = Server::with_tokens().await?;
    let with_token = server.as_(&format!("{MARKER}-0123456789-0123456789-0123456789"));
    assert!(!with_token.post("/api/v1/jobs", &noop()).await?.text().contains(MARKER));
    let client = server.as_(super::OPERATE);
    let bodies = [
        json!({"handler": "order.close", "args": {"order_id": MARKER, "shop": "x"}}),
        json!({"handler": "order.close", "args": {"order_id": [MARKER], "shop": "x"}}),
        json!({"handler": "order.close", "args": {"order_id": 1, "shop": {"password": MARKER}}}),
        json!({"handler": "order.close", "args": MARKER}),
        json!({"handler": "demo.sleep", "args": {"ms": MARKER}}),
        json!({"handler": "demo.nope", "args": MARKER}),
        json!({"handler": "demo.noop", "args": MARKER, "queue": "A"}),
        json!({"handler": "demo.noop", "tags": {"a": {"b": MARKER}}}),
        json!({"handler": "demo.noop", "max_attempts": MARKER}),
        json!({"handler": "demo.noop", "headers": {"authorization": MARKER}, "delay": "x"}),
        json!({"handler": "demo.noop", "args": format!("{MARKER}{}", "x".repeat(300 * 1024))}),
        json!({"handler": "demo.noop", "unique": {"key": "", "until": MARKER}}),
    ];
    for body in bodies {
        let answer = client.post("/api/v1/jobs", &body).await?;
        assert!([413, 422].contains(&answer.status), "{}", answer.status);
        assert!(!answer.text().contains(MARKER), "{}", answer.text());
    }
    let broken = client.send("POST", "/api/v1/jobs", "application/json", format!("{{\"args\": {MARKER}").as_bytes()).await?;
    assert!(!broken.text().contains(MARKER), "{}", broken.text());
    Ok(())
}
