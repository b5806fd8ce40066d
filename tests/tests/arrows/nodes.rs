//! Registration, beats, and the declaration of a death.

use std::collections::BTreeMap;
use std::time::Duration;

use punctual_core::store::nodes::{Advertised, Buried, NodeInfo};
use punctual_tests::eventually;

use crate::table::{Bench, T0, job};

const LONG: Duration = Duration::from_secs(60);

async fn lease(bench: &Bench, node: &str) -> u64 {
    use punctual_core::store::lease::Acquired;
    match bench.store.acquire_lease(node, LONG, 0).await.expect("an answer") {
        Acquired::Mine { term, .. } => term,
        Acquired::Held(held) => panic!("held by {held:?}"),
    }
}

#[tokio::test]
async fn registration_joins_the_owners_of_each_queue_and_keeps_their_claims() {
    let bench = Bench::new().await;
    bench.join("n").await;
    let line = "nodes n {\"name\":\"n\",\"started_ms\":0,\"queues\":{\"q\":1},\"concurrency\":4,\"version\":\"\",\"draining\":false,\"handlers\":[],\"dead_after_ms\":5000}";
    bench.is(&format!("{line}\nowners n 0 0")).await;
    bench.enqueue(&[job("A")]).await;
    bench.claim("n", 7, 1).await;
    let before = bench.table().await;
    bench.join("n").await;
    bench.unchanged(&before).await;
    assert!(bench.store.is_registered("n").await.unwrap());
    assert_eq!(bench.store.incarnations().await.unwrap(), ["n"]);
    bench.store.deregister_node("n").await.unwrap();
    bench.changed(&before, &format!("- {line}")).await;
    assert!(!bench.store.is_registered("n").await.unwrap());
}

#[tokio::test]
async fn advertised_queues_and_handlers_are_told_until_forgotten() {
    let bench = Bench::new().await;
    let one = Advertised { schema: serde_json::json!({"type": "object"}), seen_ms: T0 };
    let handlers: BTreeMap<String, Advertised> = [("noop".to_owned(), one.clone()), ("old".to_owned(), one)].into();
    bench.store.advertise(&["q", "mail"], &handlers).await.unwrap();
    bench.store.register_queue("other").await.unwrap();
    assert_eq!(bench.store.queues().await.unwrap(), ["mail", "other", "q"]);
    assert_eq!(bench.store.advertised().await.unwrap(), handlers);
    bench
        .is("queues {mail other q}
              handlers noop {\"schema\":{\"type\":\"object\"},\"seen_ms\":t0}
              handlers old {\"schema\":{\"type\":\"object\"},\"seen_ms\":t0}")
        .await;
    let before = bench.table().await;
    bench.store.forget_handlers(&["old".to_owned()]).await.unwrap();
    bench.changed(&before, "- handlers old {\"schema\":{\"type\":\"object\"},\"seen_ms\":t0}").await;
    bench.store.advertise(&["q"], &BTreeMap::new()).await.unwrap();
    bench.changed(&before, "- handlers old {\"schema\":{\"type\":\"object\"},\"seen_ms\":t0}").await;
}

#[tokio::test]
async fn beats_tell_who_is_alive() {
    let bench = Bench::new().await;
    bench.store.beat("a", LONG).await.unwrap();
    bench.store.beat("b", Duration::from_millis(1)).await.unwrap();
    assert!(bench.table().await.has("beat:a 1 (expires)"));
    let asked = ["a", "b", "c"].map(String::from);
    eventually(Duration::from_secs(10), "the short beat to end", async || {
        let (now_ms, alive) = bench.store.beats(&asked).await.unwrap();
        assert!(now_ms > 0);
        (alive == [true, false, false]).then_some(())
    })
    .await
    .unwrap();
    assert_eq!(bench.store.beats(&[]).await.unwrap().1, [false; 0]);
}

#[tokio::test]
async fn bury_declares_dead_who_does_not_beat_under_the_present_term_only() {
    let bench = Bench::new().await;
    bench.join("n").await;
    let term = lease(&bench, "reaper").await;
    bench.store.beat("n", LONG).await.unwrap();
    let before = bench.table().await;
    assert_eq!(bench.store.bury("n", term).await.unwrap(), Buried::Alive);
    bench.command::<()>(redis::cmd("DEL").arg(bench.store.keys().beat("n"))).await;
    for wrong in [term - 1, term + 1, 0] {
        assert_eq!(bench.store.bury("n", wrong).await.unwrap(), Buried::NotHolder);
    }
    bench.changed(&before, "- beat:n 1 (expires)").await;
    let before = bench.table().await;
    assert_eq!(bench.store.bury("n", term).await.unwrap(), Buried::Dead);
    let line = before.lines("nodes n")[0];
    bench.changed(&before, &format!("- {line}")).await;
    assert!(!bench.store.is_registered("n").await.unwrap());
    // The next reaper may say it again.
    assert_eq!(bench.store.bury("n", term).await.unwrap(), Buried::Left);
}

#[tokio::test]
async fn bury_without_a_lease_is_refused() {
    let bench = Bench::new().await;
    bench.join("n").await;
    let before = bench.table().await;
    assert_eq!(bench.store.bury("n", 1).await.unwrap(), Buried::NotHolder);
    bench.unchanged(&before).await;
    let term = lease(&bench, "reaper").await;
    bench.store.release_lease("reaper", term).await.unwrap();
    assert_eq!(bench.store.bury("n", term).await.unwrap(), Buried::NotHolder);
    assert!(bench.store.is_registered("n").await.unwrap());
}

#[tokio::test]
async fn node_views_tell_age_of_the_beat_and_what_runs() {
    let bench = Bench::new().await;
    bench.run(job("A"), "n", 1).await;
    bench.run(job("B"), "n", 2).await;
    bench.join("silent").await;
    let info = NodeInfo { draining: true, ..NodeInfo::default() };
    bench.store.update_node("other", &info).await.unwrap();
    bench.store.beat("n", Duration::from_secs(5)).await.unwrap();
    let views = bench.store.node_views().await.unwrap();
    let told: Vec<_> =
        views.iter().map(|view| (view.id.as_str(), view.running, view.draining, view.beat_age_ms.is_some())).collect();
    assert_eq!(told, [("n", 2, false, true), ("other", 0, true, false), ("silent", 0, false, false)]);
    assert!(views[0].beat_age_ms.unwrap() < 4000);
}
