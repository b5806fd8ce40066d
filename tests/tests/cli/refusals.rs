//! What is refused changes nothing: exit code 2, a line that names the field, and not one key in Redis.

use anyhow::Result;
use punctual_tests::{RedisServer, Snapshot};

use super::{ORDER, cluster, text};

#[tokio::test]
async fn refused_jobs_name_their_field_and_leave_no_key() -> Result<()> {
    let (cli, namespace) = cluster().await?;
    let deep = format!("{}{}", "[".repeat(70), "]".repeat(70));
    let cases: &[(&[&str], &str)] = &[
        (&["order.clsoe"], "handler: "),
        (&["order.clsoe"], "order.close"),
        (&["order.close"], "args.order_id: "),
        (&["order.close", "--args", r#"{"order_id":-1,"shop":"http://a/"}"#], "args.order_id: "),
        (&["demo.noop", "--args", "{"], "args: "),
        (&["demo.noop", "--args", "@/none/such.json"], "/none/such.json"),
        (&["demo.noop", "--args", &deep], "args: "),
        (&["demo.noop", "--retry", "fats"], "fast"),
        (&["demo.noop", "--retry", r#"{"factor":0}"#], "retry: "),
        (&["demo.noop", "--queue", "A B"], "queue: "),
        (&["demo.noop", "--delay", "5"], "5s"),
        (&["demo.noop", "--at", "2099-01-01T00:00:00"], "--tz"),
        (&["demo.noop", "--at", "1999-01-01T00:00:00Z"], "run_at: "),
        (&["demo.noop", "--id", "01ARZ3NDEKTSV4RRFFQ69G5FAV"], "id: "),
        (&["demo.noop", "--id", ".."], "id: "),
        (&["demo.noop", "--timeout", "0s"], "timeout: "),
        (&["demo.noop", "--unique-key", ""], "unique.key: "),
        (&["demo.noop", "--max-attempts", "0"], "max_attempts: "),
        (&["demo.noop", "--tag", "novalue"], "KEY=VALUE"),
    ];
    for (line, named) in cases {
        let output = cli.run(&[&["enqueue"], *line].concat()).await?;
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{line:?}: {output:?}");
        assert!(output.stderr.contains(named), "{line:?}: {}", output.stderr);
    }
    let mut conn = RedisServer::shared().await?.conn().await?;
    assert_eq!(Snapshot::take(&mut conn, &namespace).await?, Snapshot::default());
    Ok(())
}

#[tokio::test]
async fn handler_that_will_come_is_stored_when_the_caller_says_so() -> Result<()> {
    let (cli, _) = cluster().await?;
    let receipt = cli.run(&["enqueue", "comes.later", "--allow-unknown-handler"]).await?.ok()?;
    assert_eq!(text(&receipt, "state")?, "ready");
    Ok(())
}

#[tokio::test]
async fn deleting_needs_a_yes_where_nobody_can_be_asked() -> Result<()> {
    let (cli, namespace) = cluster().await?;
    let id = cli.run(&["enqueue", "order.close", "--args", ORDER, "--delay", "1h"]).await?.ok()?["id"].clone();
    let id = id.as_str().unwrap_or_default();
    let mut conn = RedisServer::shared().await?.conn().await?;
    let before = Snapshot::take(&mut conn, &namespace).await?;
    let refused = cli.run(&["jobs", "delete", id]).await?;
    assert!(refused.code == 2 && refused.stderr.contains("--yes"), "{refused:?}");
    assert_eq!(Snapshot::take(&mut conn, &namespace).await?, before);
    let document = cli.run(&["jobs", "delete", id, "--yes"]).await?.ok()?;
    assert_eq!(document["results"][0]["ok"], true);
    assert_eq!(cli.run(&["jobs", "show", id]).await?.code, 1);
    Ok(())
}

#[tokio::test]
async fn odd_ids_are_refused_before_they_become_part_of_a_key() -> Result<()> {
    let (cli, namespace) = cluster().await?;
    let long = "x".repeat(129);
    for id in ["..", "a/b", "a:b", "{a}", "a*", "", "a b", "ä", "\u{202e}a", &long, "01arz3ndektsv4rrffq69g5fav"] {
        for command in ["show", "cancel", "retry"] {
            let output = cli.run(&["jobs", command, id]).await?;
            assert_eq!(output.code, 2, "{command} {id:?}: {output:?}");
        }
    }
    for queue in ["A", "{x}", "a*", &long] {
        assert_eq!(cli.run(&["queues", "pause", queue]).await?.code, 2, "{queue:?}");
    }
    let unknown = cli.run(&["queues", "pause", "nosuch"]).await?;
    assert!(unknown.code == 1 && unknown.stderr.contains("nosuch"), "{unknown:?}");
    let mut conn = RedisServer::shared().await?.conn().await?;
    assert_eq!(Snapshot::take(&mut conn, &namespace).await?, Snapshot::default());
    Ok(())
}
