//! Many jobs in one request.

use anyhow::Result;
use serde_json::{Value, json};

use super::{Server, problem, wrong};

const PATH: &str = "/api/v1/jobs/bulk";
const NDJSON: &str = "application/x-ndjson";

#[tokio::test]
async fn refused_items_are_named_and_the_others_are_stored() -> Result<()> {
    let server = Server::open().await?;
    let body = concat!(
        "{\"handler\":\"demo.noop\"}\n",
        "\n",
        "{\"handler\":\"demo.nope\"}\r\n",
        "not json\n",
        "{\"handler\":\"demo.noop\",\"queue\":\"mail\",\"id\":\"a\"}\n",
        "{\"handler\":\"demo.noop\",\"queue\":\"mail\",\"id\":\"a\"}\n",
        "{\"handler\":\"order.close\",\"args\":{\"order_id\":\"s3cret\",\"shop\":\"x\"}}",
    );
    let answer = server.http.send("POST", PATH, NDJSON, body.as_bytes()).await?;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let document = answer.json()?;
    let seen: Vec<Value> = document["results"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|item| match item.get("error") {
            Some(error) => json!([item["line"], error["field"]]),
            None => json!([item["queue"], item["duplicate_of"]]),
        })
        .collect();
    let expected = json!([["default", null], [3, "handler"], [4, "body"], ["mail", null], ["mail", "a"], [7, "args.order_id"]]);
    assert_eq!(Value::from(seen), expected, "{document}");
    assert!(!answer.text().contains("s3cret"));
    assert_eq!((server.waiting("default").await?, server.waiting("mail").await?), (1, 1));
    Ok(())
}

#[tokio::test]
async fn an_array_is_taken_too_and_nothing_is_no_error() -> Result<()> {
    let server = Server::open().await?;
    let items = json!([{"handler": "demo.noop"}, 7, {"handler": "demo.noop", "delay": "1h"}]);
    let answer = server.http.post(PATH, &items).await?.json()?;
    assert_eq!(answer["results"][1]["line"], 2, "{answer}");
    assert_eq!((&answer["results"][0]["state"], &answer["results"][2]["state"]), (&json!("ready"), &json!("scheduled")));
    for empty in ["", "[]", "\n\n"] {
        let answer = server.http.send("POST", PATH, "application/json", empty.as_bytes()).await?;
        assert_eq!((answer.status, answer.json()?), (200, json!({"results": []})));
    }
    let broken = server.http.send("POST", PATH, "application/json", b"[{},").await?;
    assert_eq!((broken.status, wrong(&broken)?), (422, vec!["body".to_owned()]));
    Ok(())
}

#[tokio::test]
async fn thousands_of_jobs_repeated_with_one_key_are_stored_once() -> Result<()> {
    let server = Server::open().await?;
    let line = |n: usize| match n % 100 {
        99 => "{\"handler\":\"demo.nope\"}".to_owned(),
        _ => format!(
            "{{\"handler\":\"demo.noop\",\"queue\":\"{}\",\"delay\":\"1h\"}}",
            if n.is_multiple_of(3) { "mail" } else { "default" }
        ),
    };
    let body = (0..1700).map(line).collect::<Vec<_>>().join("\n");
    let client = server.http.clone().header("Idempotency-Key", "b-1");
    let first = client.send("POST", PATH, NDJSON, body.as_bytes()).await?.json()?;
    let results = first["results"].as_array().map_or(&[][..], Vec::as_slice);
    assert_eq!(results.len(), 1700);
    for (n, result) in results.iter().enumerate() {
        assert_eq!(result.get("error").is_some(), n % 100 == 99, "{n}: {result}");
        assert!(result.get("error").is_some() || (result["queue"] == "mail") == (n % 3 == 0), "{n}: {result}");
    }
    let again = client.send("POST", PATH, NDJSON, body.as_bytes()).await?.json()?;
    assert_eq!(first, again);
    assert_eq!(server.waiting("default").await? + server.waiting("mail").await?, 1683);
    let other = client.send("POST", PATH, NDJSON, b"{\"handler\":\"demo.noop\"}").await?;
    assert_eq!(problem(&other)?, "idempotency-conflict");
    // A handler that comes between two tries shifts nothing: what was stored keeps its ids.
    let client = server.http.clone().header("Idempotency-Key", "b-2");
    let body = b"{\"handler\":\"remote.do\",\"args\":{\"n\":1}}\n{\"handler\":\"demo.noop\",\"delay\":\"1h\"}";
    let before = client.send("POST", PATH, NDJSON, body).await?.json()?;
    server.other_node().await?;
    tokio::time::sleep(std::time::Duration::from_millis(5100)).await;
    let after = client.send("POST", PATH, NDJSON, body).await?.json()?;
    assert_eq!((&before["results"][0]["line"], &after["results"][0]["state"]), (&json!(1), &json!("ready")), "{after}");
    assert_eq!(before["results"][1]["id"], after["results"][1]["id"]);
    Ok(())
}

#[tokio::test]
async fn sizes_are_bounded_as_a_whole_and_by_item() -> Result<()> {
    let server = Server::open().await?;
    let item = |bytes: usize| format!("{{\"handler\":\"demo.noop\",\"tags\":{{\"a\":\"{}\"}}}}", "x".repeat(bytes));
    let body = format!("{}\n{{\"handler\":\"demo.noop\"}}", item(400 * 1024));
    let answer = server.http.send("POST", PATH, NDJSON, body.as_bytes()).await?.json()?;
    assert_eq!(answer["results"][0]["error"]["field"], "body", "{answer}");
    assert_eq!(answer["results"][1]["state"], "ready", "{answer}");
    let whole = vec![b'\n'; (32 << 20) + 1];
    let answer = server.http.send("POST", PATH, NDJSON, &whole).await?;
    assert_eq!((answer.status, problem(&answer)?.as_str()), (413, "too-large"));
    let many = "{}\n".repeat(100_001);
    assert_eq!(server.http.send("POST", PATH, NDJSON, many.as_bytes()).await?.status, 413);
    Ok(())
}
