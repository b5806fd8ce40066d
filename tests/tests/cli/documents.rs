//! The documents of commands, which scripts rely on: more fields may follow, none may vanish.

use anyhow::Result;
use punctual_tests::RedisServer;
use serde_json::{Value, json};

use super::{ORDER, cluster, fields, text};

/// Whether all of these fields are there.
fn has(document: &Value, wanted: &str) {
    let have = fields(document);
    for field in wanted.split_whitespace() {
        assert!(have.contains(&field), "{field} is not in {document}");
    }
}

#[tokio::test]
async fn enqueue_tells_where_the_job_is_and_duplicates_change_nothing() -> Result<()> {
    let (cli, _) = cluster().await?;
    let line = ["enqueue", "order.close", "--args", ORDER, "--delay", "1h", "--id", "o-7", "--tag", "a=b"];
    let first = cli.run(&line).await?.ok()?;
    assert_eq!(fields(&first), ["due_at", "id", "queue", "state"]);
    assert_eq!((&first["id"], &first["state"], &first["queue"]), (&json!("o-7"), &json!("scheduled"), &json!("default")));
    let again = cli.run(&line).await?.ok()?;
    assert_eq!((&again["duplicate_of"], &again["due_at"]), (&json!("o-7"), &first["due_at"]));

    let keyed = ["enqueue", "demo.noop", "--unique-key", "k", "--delay", "1h"];
    let holder = cli.run(&keyed).await?.ok()?;
    assert_eq!(cli.run(&keyed).await?.ok()?["duplicate_of"], holder["id"]);
    let deduped = ["enqueue", "demo.sleep", "--args", r#"{"ms":1}"#, "--dedupe-for", "1h"];
    let stored = cli.run(&deduped).await?.ok()?;
    assert!(stored["duplicate_of"].is_null());
    assert_eq!(cli.run(&deduped).await?.ok()?["duplicate_of"], stored["id"]);

    let plain = cli.run_plain(&["enqueue", "demo.noop"]).await?;
    assert!(plain.code == 0 && plain.stdout.trim_end().len() == 26, "the id alone: {plain:?}");
    let piped = cli.run_with_input(&["enqueue", "order.close", "--args", "-"], ORDER).await?.ok()?;
    assert_eq!(text(&piped, "state")?, "ready");
    Ok(())
}

#[tokio::test]
async fn show_and_list_have_the_fields_of_the_contract() -> Result<()> {
    let (cli, _) = cluster().await?;
    for (id, tenant) in [("o-1", "tenant=acme"), ("o-2", "tenant=other"), ("o-3", "tenant=acme")] {
        cli.run(&["enqueue", "order.close", "--args", ORDER, "--queue", "mail", "--delay", "1h", "--id", id, "--tag", tenant])
            .await?
            .ok()?;
    }
    let job = cli.run(&["jobs", "show", "o-1"]).await?.ok()?;
    has(&job, "id handler queue state priority args tags created_at due_at attempt max_attempts crashes attempts timeline");
    // Its handler's preset says 3 retries.
    assert_eq!((&job["max_attempts"], &job["timeline"][0]["state"]), (&json!(4), &json!("scheduled")));
    assert_eq!(job["args"], serde_json::from_str::<Value>(ORDER)?);

    let ids = |document: &Value| -> Vec<String> {
        document["jobs"].as_array().into_iter().flatten().filter_map(|job| job["id"].as_str().map(str::to_owned)).collect()
    };
    let acme = cli.run(&["jobs", "list", "--tag", "tenant=acme", "--state", "scheduled,dead"]).await?.ok()?;
    assert_eq!(ids(&acme), ["o-1", "o-3"]);
    assert!(acme["next_cursor"].is_null());
    let first = cli.run(&["jobs", "list", "--queue", "mail", "--limit", "2"]).await?.ok()?;
    let next = text(&first, "next_cursor")?;
    let second = cli.run(&["jobs", "list", "--queue", "mail", "--limit", "2", "--cursor", next]).await?.ok()?;
    assert_eq!([ids(&first), ids(&second)].concat(), ["o-1", "o-2", "o-3"]);
    assert_eq!(ids(&cli.run(&["jobs", "list", "--handler", "demo.noop"]).await?.ok()?), [""; 0]);
    assert_eq!(cli.run(&["jobs", "list", "--queue", "mial"]).await?.code, 1);

    let table = cli.run_plain(&["jobs", "show", "o-1"]).await?.stdout;
    assert!(table.contains("Timeline") && table.contains("order.close"), "{table}");
    Ok(())
}

#[tokio::test]
async fn actions_answer_for_each_id_and_fail_when_any_did() -> Result<()> {
    let (cli, _) = cluster().await?;
    let later = ["enqueue", "order.close", "--args", ORDER, "--delay", "1h", "--id"];
    cli.run(&[&later[..], &["a"]].concat()).await?.ok()?;
    let act = async |line: &[&str]| -> Result<(i32, Value)> {
        let output = cli.run(&[&["jobs"], line].concat()).await?;
        Ok((output.code, output.json["results"][0].clone()))
    };
    let mixed = cli.run(&["jobs", "cancel", "a", "nosuch"]).await?;
    assert_eq!(mixed.code, 1);
    assert_eq!(mixed.json["results"][0], json!({"id": "a", "ok": true, "state": "cancelled"}));
    assert_eq!((&mixed.json["results"][1]["ok"], &mixed.json["results"][1]["state"]), (&json!(false), &Value::Null));
    assert_eq!(act(&["retry", "a"]).await?, (0, json!({"id": "a", "ok": true, "state": "ready"})));
    let (code, result) = act(&["release", "a"]).await?;
    assert_eq!((code, &result["ok"], &result["state"]), (1, &json!(false), &json!("ready")));
    assert_eq!(act(&["reschedule", "a", "--at", "2099-01-01T00:00", "--tz", "Asia/Shanghai"]).await?.1["state"], "scheduled");
    let shown = cli.run(&["jobs", "show", "a"]).await?.ok()?;
    assert_eq!(text(&shown, "due_at")?, "2098-12-31T16:00:00.000Z");
    let changed = r#"{"order_id":8,"shop":"http://shop.example/"}"#;
    assert_eq!(act(&["edit", "a", "--args", changed]).await?.0, 0);
    assert_eq!(cli.run(&["jobs", "show", "a"]).await?.ok()?["args"]["order_id"], 8);
    assert_eq!(cli.run(&["jobs", "edit", "a", "--args", "{}"]).await?.code, 2);
    assert_eq!(act(&["run-now", "a"]).await?, (0, json!({"id": "a", "ok": true, "state": "ready"})));
    Ok(())
}

#[tokio::test]
async fn id_in_two_queues_needs_the_queue() -> Result<()> {
    let (cli, _) = cluster().await?;
    for queue in ["one", "two"] {
        cli.run(&["enqueue", "demo.noop", "--id", "same", "--queue", queue, "--delay", "1h"]).await?.ok()?;
    }
    let shown = cli.run(&["jobs", "show", "same"]).await?;
    assert!(shown.code == 2 && shown.stderr.contains("one, two"), "{shown:?}");
    let refused = cli.run(&["jobs", "cancel", "same"]).await?;
    assert!(refused.code == 1 && refused.json["results"][0]["error"].as_str().unwrap_or_default().contains("--queue"));
    assert_eq!(cli.run(&["jobs", "cancel", "same", "--queue", "two"]).await?.code, 0);
    assert_eq!(cli.run(&["jobs", "show", "same", "--queue", "one"]).await?.ok()?["state"], "scheduled");
    Ok(())
}

#[tokio::test]
async fn queues_nodes_and_lease_have_their_documents_without_a_node() -> Result<()> {
    let (cli, _) = cluster().await?;
    cli.run(&["enqueue", "demo.noop", "--queue", "mail"]).await?.ok()?;
    let queue = cli.run(&["queues", "show", "mail"]).await?.ok()?;
    has(&queue, "queue paused states oldest_ready_ms unroutable totals");
    has(&queue["states"], "scheduled ready running retrying succeeded dead cancelled held");
    assert_eq!(queue["states"]["ready"], 1);
    assert_eq!(cli.run(&["queues", "pause", "mail"]).await?.ok()?["paused"], true);
    assert_eq!(cli.run(&["queues", "show", "mail"]).await?.ok()?["paused"], true);
    assert_eq!(cli.run(&["queues", "resume", "mail"]).await?.ok()?["changed"], true);
    assert_eq!(cli.run(&["queues", "list"]).await?.ok()?["queues"][0]["queue"], "mail");
    assert_eq!(cli.run(&["nodes", "list"]).await?.ok()?, json!({"nodes": []}));
    let lease = cli.run(&["lease"]).await?.ok()?;
    has(&lease, "holder term expires_in_ms");
    assert!(lease["holder"].is_null());
    assert_eq!(cli.run(&["nodes", "drain", "nosuch"]).await?.code, 1);
    Ok(())
}

#[tokio::test]
async fn doctor_finds_damage_says_what_to_do_and_repairs_it() -> Result<()> {
    let (cli, namespace) = cluster().await?;
    cli.run(&["enqueue", "demo.noop", "--id", "hurt", "--delay", "1h", "--unique-key", "k"]).await?.ok()?;
    let check = |document: &Value, name: &str| -> Value {
        document["checks"].as_array().into_iter().flatten().find(|check| check["name"] == name).cloned().unwrap_or_default()
    };
    let before = cli.run(&["doctor"]).await?;
    assert_eq!((before.code, &before.json["ok"]), (1, &json!(false)), "no node beats: {before:?}");
    assert_eq!((&check(&before.json, "index")["ok"], &check(&before.json, "reachable")["ok"]), (&json!(true), &json!(true)));
    for check in before.json["checks"].as_array().into_iter().flatten() {
        has(check, "name ok detail");
        assert_eq!(check["ok"] == true, check["todo"].is_null(), "{check}");
    }

    let mut conn = RedisServer::shared().await?.conn().await?;
    let buckets: Vec<String> = redis::cmd("KEYS").arg(format!("{{{namespace}:default}}:b:*")).query_async(&mut conn).await?;
    let () = redis::cmd("DEL").arg(buckets).query_async(&mut conn).await?;
    let hurt = cli.run(&["doctor"]).await?.json;
    for (kind, ids) in [("index", "hurt"), ("unique", "k")] {
        let check = check(&hurt, kind);
        assert!(check["ok"] == false && text(&check, "detail")?.contains(ids), "{check}");
        assert!(text(&check, "todo")?.contains("--repair"));
    }
    let repaired = cli.run(&["doctor", "--repair"]).await?.json;
    assert_eq!(
        (&repaired["repaired"], &check(&repaired, "index")["ok"], &check(&repaired, "unique")["ok"]),
        (&json!(2), &json!(true), &json!(true))
    );
    Ok(())
}

#[tokio::test]
async fn reader_that_goes_away_is_no_panic() -> Result<()> {
    let (cli, namespace) = cluster().await?;
    cli.run(&["enqueue", "demo.noop"]).await?.ok()?;
    let url = RedisServer::shared().await?.url();
    let bin = punctual_tests::binary::punctual_bin();
    for line in ["jobs list", "jobs list -o json", "handlers -o json", "--help", "lease 2>&1", "enqueue demo.noop 2>&1"] {
        // The reader has gone before anything is written, unless the command is quicker than a process that does nothing.
        let script = format!("{} {line} | :; echo ${{PIPESTATUS[0]}}", bin.display());
        let mut command = tokio::process::Command::new("bash");
        command.args(["-c", &script]).env("PUNCTUAL__REDIS__URL", &url).env("PUNCTUAL__REDIS__NAMESPACE", &namespace);
        let output = command.env("PUNCTUAL__HANDLERS__DEMO", "true").output().await?;
        let (code, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(code.trim_end() == "0" && !said.contains("panicked"), "{line}: exit code {code}{said}");
    }
    Ok(())
}
