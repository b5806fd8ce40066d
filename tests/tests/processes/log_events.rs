//! The log events that the contract promises: flat objects, constant messages, all fields.

use anyhow::{Result, ensure};
use punctual_tests::{NodeProcess, message};
use serde_json::{Value, json};

use crate::scene::{LATER, SOON, Scene};

/// Fails unless a line with this message has this level and all these fields.
fn assert_event(node: &NodeProcess, text: &str, level: &str, fields: &[&str]) -> Result<()> {
    let lines = node.log().matching(message(text));
    ensure!(!lines.is_empty(), "no line {text:?}; the log ends with:\n{}", node.log().tail(40));
    for line in lines {
        ensure!(line["level"] == *level, "{text} is not {level}: {line}");
        for field in fields {
            ensure!(!line[*field].is_null(), "{text} lacks {field}: {line}");
        }
    }
    Ok(())
}

/// Fails unless every line is a flat object with a lower-case message that holds no value.
fn assert_flat(node: &NodeProcess) -> Result<()> {
    for line in node.log().lines() {
        let Value::Object(fields) = &line else { anyhow::bail!("not an object: {line}") };
        ensure!(fields.values().all(|value| !value.is_object() && !value.is_array()), "nested: {line}");
        for field in ["timestamp", "level", "target", "message"] {
            ensure!(fields.get(field).is_some_and(Value::is_string), "no {field}: {line}");
        }
        let text = line["message"].as_str().unwrap_or_default();
        ensure!(!text.is_empty() && text.to_lowercase() == text, "message is not lower case: {line}");
        ensure!(!text.contains(|c: char| c.is_ascii_digit()), "message holds a value: {line}");
    }
    Ok(())
}

#[tokio::test]
async fn events_of_the_contract_have_their_level_and_all_their_fields() -> Result<()> {
    let scene = Scene::shared().await?;
    let first = scene.node("first").start().await?;
    first.wait_log(message("lease acquired"), SOON).await?;
    let second = scene.node("second").queues("other=1").start().await?;
    second.wait_log(message("lease held by other"), SOON).await?;
    scene.enqueue("demo.noop", &json!({}), &[]).await?;
    let retry = r#"{"backoff":"fixed","base":"100ms"}"#;
    let dead = scene.enqueue("demo.fail", &json!({ "times": 9 }), &["--max-attempts", "2", "--retry", retry]).await?;
    scene.until_state(&dead, "dead", SOON).await?;
    first.wait_log(message("job finished"), SOON).await?;
    let running = scene.enqueue("demo.sleep", &json!({ "ms": 60_000 }), &[]).await?;
    scene.until_state(&running, "running", SOON).await?;
    first.wait_log(message("lease renewed"), SOON).await?;
    first.kill9();
    second.wait_log(message("jobs requeued"), LATER).await?;
    second.term()?;
    assert_eq!(second.wait_exit(SOON).await?.code(), Some(0));

    assert_event(&first, "node started", "INFO", &["node_id"])?;
    assert_event(&first, "http listening", "INFO", &["node_id", "addr"])?;
    assert_event(&first, "lease acquired", "INFO", &["node_id", "lease_term", "ttl_ms", "after"])?;
    assert_event(&first, "lease renewed", "DEBUG", &["node_id", "lease_term"])?;
    let finished = ["job_id", "handler", "queue", "attempt", "outcome", "elapsed_ms", "lateness_ms"];
    assert_event(&first, "job finished", "INFO", &finished)?;
    assert_event(&first, "job failed", "WARN", &finished)?;
    assert_event(&first, "job failed", "WARN", &["error"])?;
    let failed = first.log().matching(message("job failed"));
    assert_eq!(failed.len(), 2, "{failed:?}");
    assert!(failed[0]["next_attempt_at"].is_string() && failed[0]["state"].is_null(), "{}", failed[0]);
    assert!(failed[1]["next_attempt_at"].is_null() && failed[1]["state"] == "dead", "{}", failed[1]);

    assert_event(&second, "lease held by other", "INFO", &["node_id", "holder", "lease_term", "since", "expires_in_ms"])?;
    assert_event(&second, "node dead", "WARN", &["node_id"])?;
    assert_event(&second, "jobs requeued", "WARN", &["from_node", "queue", "count"])?;
    assert_event(&second, "node draining", "INFO", &["node_id"])?;
    assert_event(&second, "lease released", "INFO", &["node_id", "lease_term"])?;
    assert_event(&second, "node stopped", "INFO", &["node_id"])?;
    let after: Vec<Value> = [&first, &second]
        .iter()
        .flat_map(|node| node.log().matching(message("lease acquired")))
        .map(|line| line["after"].clone())
        .collect();
    assert_eq!(after, ["free", "expired"]);
    for (node, actor) in [(&first, "lease acquired"), (&second, "jobs requeued"), (&first, "job finished")] {
        let line = &node.log().matching(message(actor))[0];
        let target = line["target"].as_str().unwrap_or_default();
        assert!(["promoter", "reaper", "worker_pool"].contains(&target), "{line}");
    }
    assert_flat(&first)?;
    assert_flat(&second)
}

// A term once told is told again only when it changes.
#[tokio::test]
async fn standby_names_the_holder_once_and_not_at_every_look() -> Result<()> {
    let scene = Scene::shared().await?;
    let holder = scene.node("holder").start().await?;
    holder.wait_log(message("lease acquired"), SOON).await?;
    let standby = scene.node("standby").start().await?;
    standby.wait_log(message("lease held by other"), SOON).await?;
    let renewed = holder.log().matching(message("lease renewed")).len();
    punctual_tests::eventually(SOON, "ten renewals", async || {
        (holder.log().matching(message("lease renewed")).len() >= renewed + 10).then_some(())
    })
    .await?;
    assert_eq!(standby.log().matching(message("lease held by other")).len(), 1);
    assert_eq!(holder.log().matching(message("lease acquired")).len(), 1);
    Ok(())
}
