//! `enqueue --bulk`: a result for every line, and lines that are refused stop none of the others.

use anyhow::Result;
use punctual_tests::RedisServer;
use serde_json::{Value, json};

use super::{cluster, fields};

#[tokio::test]
async fn refused_lines_are_named_and_the_others_are_stored() -> Result<()> {
    let (cli, _) = cluster().await?;
    let input = [
        r#"{"handler":"demo.noop","id":"a"}"#,
        r#"{"handler":"demo.sleep","args":{"ms":"x"}}"#,
        "",
        "nonsense",
        r#"{"handler":"nosuch"}"#,
        r#"{"handler":"demo.noop","retry":"fats"}"#,
        r#"{"handler":"demo.noop","colour":"red"}"#,
        r#"{"handler":"demo.noop","id":"a"}"#,
        r#"{"handler":"demo.noop","queue":"mail","delay":"1h"}"#,
    ]
    .join("\n");
    let output = cli.run_with_input(&["enqueue", "--bulk", "-"], &input).await?;
    assert_eq!(output.code, 1, "{output:?}");
    let lines = output.json.as_array().cloned().unwrap_or_default();
    let errors: Vec<(Value, Value)> = lines
        .iter()
        .filter(|one| !one["error"].is_null())
        .map(|one| (one["line"].clone(), one["error"]["field"].clone()))
        .collect();
    let expected = [(2, "args.ms"), (4, "body"), (5, "handler"), (6, "retry"), (7, "colour")];
    assert_eq!(errors, expected.map(|(line, field)| (json!(line), json!(field))));
    let stored: Vec<&Value> = lines.iter().filter(|one| one["error"].is_null()).collect();
    assert_eq!(fields(stored[0]), ["due_at", "id", "line", "queue", "state"]);
    assert_eq!((&stored[1]["duplicate_of"], &stored[2]["queue"]), (&json!("a"), &json!("mail")));
    assert_eq!(cli.run(&["queues", "show", "default"]).await?.ok()?["states"]["ready"], 1);
    assert_eq!(cli.run(&["queues", "show", "mail"]).await?.ok()?["states"]["scheduled"], 1);
    Ok(())
}

#[tokio::test]
async fn thousands_of_lines_are_stored_in_their_order() -> Result<()> {
    let (cli, _) = cluster().await?;
    let count = 5_000;
    let input: String = (0..count).map(|n| format!("{{\"handler\":\"demo.noop\",\"id\":\"j-{n}\"}}\n")).collect();
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("jobs.ndjson");
    std::fs::write(&file, &input)?;
    let output = cli.run(&["enqueue", "--bulk", &file.display().to_string()]).await?;
    assert_eq!(output.code, 0, "{}", output.stderr);
    let lines = output.json.as_array().cloned().unwrap_or_default();
    assert_eq!(lines.len(), count);
    assert!(lines.iter().enumerate().all(|(n, one)| one["line"] == n + 1 && one["id"] == format!("j-{n}")));
    let plain = cli.run_plain(&["enqueue", "--bulk", &file.display().to_string()]).await?;
    assert_eq!((plain.code, plain.stdout.trim_end()), (0, "0 stored, 5000 duplicates, 0 refused"));
    Ok(())
}

#[tokio::test]
async fn redis_that_is_full_stops_the_reading_and_every_line_is_told() -> Result<()> {
    let redis = RedisServer::options().set("maxmemory", "1mb").start().await?;
    let cli = punctual_tests::Cli::new(&redis.url(), "full").env("PUNCTUAL__HANDLERS__DEMO", "true");
    let output = cli.run_with_input(&["enqueue", "--bulk", "-"], &"{\"handler\":\"demo.noop\"}\n".repeat(20)).await?;
    assert!(output.code == 1 && output.stderr.contains("out of memory"), "{output:?}");
    let lines = output.json.as_array().cloned().unwrap_or_default();
    assert!(lines.len() == 20 && lines.iter().all(|one| one["error"]["field"] == "redis"), "{output:?}");
    Ok(())
}
