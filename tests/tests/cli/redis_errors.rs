//! Redis that is away, refuses the login, is a replica or is full: one line with what, where and what to do; exit code 1.

use anyhow::Result;
use punctual_tests::{Cli, CliOutput, RedisServer};

const LINE: [&str; 2] = ["enqueue", "demo.noop"];

fn cli(url: &str) -> Cli {
    Cli::new(url, "errors").env("PUNCTUAL__HANDLERS__DEMO", "true")
}

/// Checks code and form, and returns the one line.
fn line(output: CliOutput, place: &str) -> String {
    assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{output:?}");
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    assert!(output.stderr.starts_with("error: failed to ") && output.stderr.contains(place), "{}", output.stderr);
    output.stderr
}

#[tokio::test]
async fn missing_server() -> Result<()> {
    let said = line(cli("redis://:s3cret@127.0.0.1:1/3").run(&LINE).await?, "redis://127.0.0.1:1/3");
    assert!(said.contains("--redis") && said.contains("punctual dev") && !said.contains("s3cret"), "{said}");
    let doctor = cli("redis://127.0.0.1:1").run(&["doctor"]).await?;
    assert_eq!((doctor.code, &doctor.json["checks"][0]["ok"]), (1, &serde_json::json!(false)), "{doctor:?}");
    Ok(())
}

#[tokio::test]
async fn wrong_password_and_none() -> Result<()> {
    let redis = RedisServer::options().requirepass("right").start().await?;
    let place = format!("127.0.0.1:{}", redis.port());
    for url in [format!("redis://:s3cret@{place}"), format!("redis://{place}")] {
        let said = line(cli(&url).run(&LINE).await?, &place);
        assert!(said.contains("redis.password_file") && !said.contains("s3cret"), "{said}");
    }
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), "right\n")?;
    let right = cli(&format!("redis://{place}")).env("PUNCTUAL__REDIS__PASSWORD_FILE", &file.path().display().to_string());
    assert_eq!(right.run(&LINE).await?.code, 0);
    Ok(())
}

#[tokio::test]
async fn replica_and_full_server() -> Result<()> {
    let primary = RedisServer::start().await?;
    let replica = RedisServer::options().set("replicaof", &format!("127.0.0.1 {}", primary.port())).start().await?;
    let place = format!("127.0.0.1:{}", replica.port());
    // A replica serves stale data or none while it catches up; either way the line names it.
    let said = line(cli(&replica.url()).run(&LINE).await?, &place);
    assert!(said.contains("replica") || said.contains("cannot serve now"), "{said}");
    let full = RedisServer::options().set("maxmemory", "1mb").start().await?;
    let said = line(cli(&full.url()).run(&LINE).await?, &format!("127.0.0.1:{}", full.port()));
    assert!(said.contains("out of memory") && said.contains("maxmemory"), "{said}");
    Ok(())
}

#[tokio::test]
async fn user_without_rights() -> Result<()> {
    let redis = RedisServer::start().await?;
    let mut conn = redis.conn().await?;
    let acl = ["SETUSER", "low", "on", ">pw", "~*", "+ping", "+hello", "+client"];
    let () = redis::cmd("ACL").arg(&acl[..]).query_async(&mut conn).await?;
    let place = format!("127.0.0.1:{}", redis.port());
    let said = line(cli(&format!("redis://low:pw@{place}")).run(&LINE).await?, &place);
    assert!(said.contains("may not"), "{said}");
    Ok(())
}
