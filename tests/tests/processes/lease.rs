//! The lease when its holder goes: by a signal, by kill -9, by a pause.

use std::time::Duration;

use anyhow::Result;
use punctual_tests::{NodeProcess, message};
use serde_json::json;

use crate::scene::{LATER, SOON, Scene, logged_at};

/// A holder and a standby with this lease.
async fn pair(scene: &Scene, ttl: Duration, renew_every: Duration) -> Result<(NodeProcess, NodeProcess)> {
    let holder = scene.node("holder").lease(ttl, renew_every).start().await?;
    holder.wait_log(message("lease acquired"), SOON).await?;
    let standby = scene.node("standby").lease(ttl, renew_every).start().await?;
    let held = standby.wait_log(message("lease held by other"), SOON).await?;
    assert_eq!(held["holder"], holder.node_id().await?);
    Ok((holder, standby))
}

// Long enough that only the release can be the reason.
#[tokio::test]
async fn stopped_holder_gives_the_lease_up_and_another_has_it_at_once() -> Result<()> {
    let scene = Scene::shared().await?;
    let (holder, standby) = pair(&scene, Duration::from_secs(30), Duration::from_secs(5)).await?;
    holder.term()?;
    let acquired = standby.wait_log(message("lease acquired"), SOON).await?;
    let released = holder.wait_log(message("lease released"), SOON).await?;
    let gap = logged_at(&acquired)? - logged_at(&released)?;
    assert!(gap <= 500, "free for {gap} ms");
    assert_eq!(acquired["after"], "released");
    assert!(acquired["lease_term"].as_u64() > released["lease_term"].as_u64());
    assert!(holder.wait_exit(SOON).await?.success());
    Ok(())
}

// H-22
#[tokio::test]
async fn killed_holder_is_followed_within_the_ttl_and_two_seconds() -> Result<()> {
    let scene = Scene::shared().await?;
    let ttl = Duration::from_secs(3);
    let (holder, standby) = pair(&scene, ttl, Duration::from_millis(800)).await?;
    let killed = std::time::Instant::now();
    holder.kill9();
    let acquired = standby.wait_log(message("lease acquired"), SOON).await?;
    assert!(killed.elapsed() <= ttl + Duration::from_secs(2), "{:?}", killed.elapsed());
    assert_eq!(acquired["after"], "expired");
    // What is due is promoted by the successor.
    let id = scene.enqueue("demo.noop", &json!({}), &["--delay", "300ms"]).await?;
    scene.until_state(&id, "succeeded", SOON).await?;
    Ok(())
}

// H-12, H-22, H-23
#[tokio::test]
async fn frozen_holder_finds_its_lease_lost_and_names_the_new_one() -> Result<()> {
    let scene = Scene::shared().await?;
    let (holder, standby) = pair(&scene, Duration::from_millis(1_500), Duration::from_millis(400)).await?;
    holder.stop()?;
    standby.wait_log(message("lease acquired"), SOON).await?;
    let mark = holder.log().mark();
    holder.cont()?;
    let lost = holder.log().wait_after(mark, message("lease lost"), SOON).await?;
    assert!(lost["reason"].is_string() && lost["lease_term"].is_u64(), "{lost}");
    let held = holder.log().wait_after(mark, message("lease held by other"), LATER).await?;
    assert_eq!(held["holder"], standby.node_id().await?);
    assert!(held["lease_term"].as_u64() > lost["lease_term"].as_u64(), "{lost} {held}");
    Ok(())
}
