//! Commands that need no Redis: usage, help, configuration, handlers, `run`.

use anyhow::Result;
use punctual_tests::{Cli, CliOutput};
use serde_json::json;

fn cli() -> Cli {
    // Nobody listens there: a command that asks Redis would fail.
    Cli::new("redis://127.0.0.1:1", "local")
}

#[tokio::test]
async fn usage_errors_exit_2_and_help_and_version_exit_0() -> Result<()> {
    for wrong in [&[][..], &["leese"], &["lease", "--nonsense"], &["jobs"], &["enqueue"], &["jobs", "list", "--limit", "201"]] {
        let output = cli().run_plain(wrong).await?;
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{wrong:?}: {output:?}");
        assert!(!output.stderr.is_empty());
    }
    for right in [&["--help"][..], &["enqueue", "-h"], &["jobs", "delete", "--help"], &["--version"]] {
        let output = cli().run_plain(right).await?;
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{right:?}: {output:?}");
    }
    let version = cli().run_plain(&["--version"]).await?.stdout;
    assert!(version.contains("record version") && version.contains("time zone database"), "{version}");
    Ok(())
}

#[tokio::test]
async fn check_config_shows_what_is_in_force_and_names_every_mistake() -> Result<()> {
    let document = cli().env("PUNCTUAL__NODE__CONCURRENCY", "7").run(&["check-config"]).await?.ok()?;
    assert_eq!(document["node"]["concurrency"], json!(7));
    assert_eq!(document["sources"]["node.concurrency"], json!("environment PUNCTUAL__NODE__CONCURRENCY"));
    let table = cli().run_plain(&["check-config"]).await?;
    assert!(table.code == 0 && table.stdout.lines().any(|line| line.starts_with("redis.namespace ")), "{table:?}");
    let wrong =
        cli().env("PUNCTUAL__NODE__CONCURRENCY", "0").env("PUNCTUAL__NODE__CONCURENCY", "1").run(&["check-config"]).await?;
    assert_eq!(wrong.code, 2);
    assert!(wrong.stderr.contains("node.concurrency: ") && wrong.stderr.contains("node.concurency: "), "{}", wrong.stderr);
    Ok(())
}

#[tokio::test]
async fn secrets_are_in_no_output() -> Result<()> {
    let marker = "s3cretMarker";
    let cli = Cli::new(&format!("redis://app:{marker}@127.0.0.1:1/2"), "local").env("PUNCTUAL__LOG__LEVEL", "trace");
    let as_flag = format!("redis://:{marker}@127.0.0.1:1");
    let lines: [&[&str]; 6] = [
        &["check-config"],
        &["lease"],
        &["doctor"],
        &["enqueue", "order.close", "--args", super::ORDER],
        &["jobs", "show", "x"],
        &["lease", "--redis", &as_flag],
    ];
    for line in lines {
        for output in [cli.run(line).await?, cli.run_plain(line).await?] {
            assert!(!output.stdout.contains(marker) && !output.stderr.contains(marker), "{line:?}: {output:?}");
        }
    }
    let refused = cli.run(&["lease", "--redis", &as_flag]).await?;
    assert!(refused.code == 2 && refused.stderr.contains("redis.url"), "{refused:?}");
    Ok(())
}

#[tokio::test]
async fn handlers_are_listed_with_schemas_and_defaults() -> Result<()> {
    let document = cli().run(&["handlers"]).await?.ok()?;
    let handlers = document["handlers"].as_array().cloned().unwrap_or_default();
    let order = handlers.iter().find(|one| one["name"] == "order.close").cloned().unwrap_or_default();
    assert_eq!(super::fields(&order), ["args_schema", "defaults", "name"]);
    assert_eq!(order["defaults"]["retry"], json!("fast"));
    assert_eq!(order["args_schema"]["type"], json!("object"));
    assert!(handlers.iter().all(|one| !one["name"].as_str().unwrap_or_default().starts_with("demo.")));
    Ok(())
}

async fn run(args: &[&str]) -> Result<CliOutput> {
    cli().env("PUNCTUAL__HANDLERS__DEMO", "true").run(&[&["run"], args].concat()).await
}

#[tokio::test]
async fn run_exits_0_only_when_the_handler_is_done() -> Result<()> {
    let done = run(&["demo.noop"]).await?.ok()?;
    assert_eq!((&done["outcome"], &done["state"]), (&json!("succeeded"), &json!("succeeded")));
    let failed = run(&["demo.fail", "--args", r#"{"times":1}"#]).await?;
    assert_eq!((failed.code, &failed.json["outcome"], &failed.json["state"]), (1, &json!("failed"), &json!("retrying")));
    let second = run(&["demo.fail", "--args", r#"{"times":1}"#, "--attempt", "2"]).await?;
    assert_eq!(second.code, 0, "{second:?}");
    let panicked = run(&["demo.panic"]).await?;
    assert_eq!((panicked.code, &panicked.json["outcome"]), (1, &json!("panicked")));
    Ok(())
}

#[tokio::test]
async fn run_refuses_what_would_not_fit() -> Result<()> {
    let unknown = run(&["demo.nop"]).await?;
    assert!(unknown.code == 2 && unknown.stderr.contains("demo.noop"), "{unknown:?}");
    let wrong = run(&["demo.sleep", "--args", r#"{"ms":"x"}"#]).await?;
    assert!(wrong.code == 2 && wrong.stderr.contains("args.ms"), "{wrong:?}");
    let off = cli().run(&["run", "demo.noop"]).await?;
    assert!(off.code == 2 && off.stderr.contains("handlers.demo"), "{off:?}");
    Ok(())
}
