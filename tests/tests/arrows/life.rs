//! Whole lives: what exists at any time is registered, and what ended and is not kept has left nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use punctual_core::job::{Due, Late, NewJob, Priority, UniqueUntil};
use punctual_core::state::{AttemptOutcome, Move, State};
use punctual_core::store::enqueue::CallId;
use punctual_core::store::keys::REGISTRY;
use punctual_core::store::reap::CrashPolicy;
use punctual_core::store::requeue::Requeue;
use punctual_tests::{RedisServer, Snapshot};

use crate::table::{Bench, Q, TERM, band, bury, claimed, done, drop_all, id, ids, job, own, retry, to, unique};

#[tokio::test]
async fn every_key_of_a_full_life_is_registered_and_every_registered_key_occurs() {
    let bench = Bench::new().await;
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    // `table` asserts that all are registered; here the patterns are counted.
    async fn look(bench: &Bench, seen: &mut BTreeSet<&'static str>) {
        bench.table().await;
        let mut conn = RedisServer::shared().await.unwrap().conn().await.unwrap();
        let snapshot = Snapshot::take(&mut conn, &bench.ns).await.unwrap();
        for (key, value) in &snapshot.keys {
            let part = key.split_once("}:").unwrap().1;
            let kind = REGISTRY
                .iter()
                .filter(|kind| kind.pattern.strip_suffix('*').map_or(kind.pattern == part, |prefix| part.starts_with(prefix)))
                .max_by_key(|kind| kind.pattern.len())
                .unwrap();
            assert!(value.get(kind.kind).is_some(), "{key} is no {}", kind.kind);
            assert_eq!(kind.per_queue, key.starts_with(&format!("{{{}:", bench.ns)), "{key}");
            seen.insert(kind.pattern);
        }
    }
    bench.store.advertise(&[Q], &[("noop".to_owned(), advertised())].into()).await.unwrap();
    bench.store.name_call("digest", "request").await.unwrap();
    bench.store.acquire_lease("n", Duration::from_secs(60), 0).await.unwrap();
    bench.store.beat("n", Duration::from_secs(60)).await.unwrap();
    let jobs = [
        band("A", Priority::Critical),
        band("B", Priority::High),
        unique("C", "k", UniqueUntil::Finished),
        band("D", Priority::Low),
        NewJob { due: Due::In(5), late: Late::Hold, ..own("held-1") },
        NewJob { due: Due::In(100), dedupe: Some(("d".to_owned(), 60_000)), ..job("E") },
    ];
    bench.store.enqueue(&CallId::named("1"), Q, &jobs).await.unwrap();
    look(&bench, &mut seen).await;
    bench.join("n").await;
    bench.fetch("n").await;
    bench.store.pause(Q).await.unwrap();
    look(&bench, &mut seen).await;
    bench.store.resume(Q).await.unwrap();
    bench.at(10);
    bench.store.promote(Q, TERM, 100).await.unwrap();
    let (token, _) = claimed(bench.claim("n", 1, 9).await);
    bench.store.note(Q, &crate::note::both("A", token)).await.unwrap();
    look(&bench, &mut seen).await;
    bench.settle("n", "A", token, Move { result: Some("1".to_owned()), ..done() }).await;
    bench.settle("n", "B", token, retry(5)).await;
    bench.settle("n", "C", token, bury("x")).await;
    bench.settle("n", "D", token, to(State::Cancelled, AttemptOutcome::Cancelled)).await;
    look(&bench, &mut seen).await;
    crate::reap::suspect(&bench, job("S")).await;
    bench.at(60_000);
    bench.promote().await;
    look(&bench, &mut seen).await;
    let all: BTreeSet<&str> = REGISTRY.iter().map(|kind| kind.pattern).collect();
    assert_eq!(all.difference(&seen).collect::<Vec<_>>(), [&""; 0], "registered, but never seen");
}

fn advertised() -> punctual_core::store::nodes::Advertised {
    punctual_core::store::nodes::Advertised { schema: serde_json::json!({}), seen_ms: 1 }
}

#[tokio::test]
async fn after_a_full_life_only_counters_and_fences_are_left() {
    let bench = Bench::new().await;
    bench.join("n").await;
    let jobs: Vec<NewJob> = (0..40)
        .map(|n| NewJob {
            priority: Priority::ALL[n % 4],
            due: if n % 3 == 0 { Due::In(5) } else { Due::Now },
            ..if n % 2 == 0 {
                unique(&format!("{n}Z"), &format!("k{n}"), [UniqueUntil::Started, UniqueUntil::Finished][n / 2 % 2])
            } else {
                own(&format!("own-{n}"))
            }
        })
        .collect();
    bench.enqueue(&jobs).await;
    let mut number = 0;
    for round in 0..20_u64 {
        bench.at(round * 10_000);
        bench.promote().await;
        let dying = format!("dying-{round}");
        bench.join(&dying).await;
        bench.claim_with(&dying, 1, 3, [1; 4], true).await;
        bench.store.reap(Q, &dying, TERM, &CrashPolicy::new(3)).await.unwrap();
        number += 1;
        let (token, jobs) = claimed(bench.claim_with("n", number, 9, [1; 4], true).await);
        for (n, job) in jobs.into_iter().enumerate() {
            bench.store.note(Q, &crate::note::both(&job.id, token)).await.unwrap();
            let attempt = u64::from(job.packed.attempt);
            let end = match (n as u64 + round + attempt) % 8 {
                0 => retry(5000),
                1 => Move { outcome: None, ..to(State::Scheduled, AttemptOutcome::Snoozed) },
                2 => to(State::Scheduled, AttemptOutcome::Snoozed),
                3 => to(State::Ready, AttemptOutcome::HandedBack),
                4 => bury("x"),
                5 => to(State::Cancelled, AttemptOutcome::Cancelled),
                _ => Move { result: Some("1".to_owned()), ..done() },
            };
            let keep = if n % 2 == 0 { crate::table::keep() } else { drop_all() };
            bench.settle_keeping(&keep, "n", &[(&job.id, token, end)]).await;
        }
    }
    // What still waits is cancelled by hand; what ended is removed by retention.
    let waiting: Vec<String> = jobs.iter().map(|job| job.id.clone()).collect();
    bench.store.cancel(Q, &waiting).await.unwrap();
    bench.claim_with("n", number + 1, 0, [0; 4], false).await;
    while bench.store.trim(Q, &drop_all()).await.unwrap() > 0 {}
    // Entries of cancelled jobs are dropped as they are met.
    for more in 2..30 {
        bench.claim_with("n", number + more, 50, [0; 4], true).await;
    }
    for round in 0..20 {
        let gone = format!("dying-{round}");
        bench.at(10_000_000);
        assert!(bench.store.leave(Q, &gone, Duration::from_millis(1)).await.unwrap());
        bench.store.deregister_node(&gone).await.unwrap();
    }
    assert!(bench.store.leave(Q, "n", Duration::ZERO).await.unwrap());
    bench.store.deregister_node("n").await.unwrap();
    let parts: BTreeSet<String> = bench.table().await.0.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(parts, ["fence", "token", "totals"].map(String::from).into());
}

#[tokio::test]
async fn a_job_handed_from_node_to_node_tells_its_whole_life() {
    let bench = Bench::new().await;
    bench.enqueue(&[NewJob { due: Due::In(1000), ..job("A") }]).await;
    bench.at(1000);
    bench.promote().await;
    bench.at(1010);
    bench.join("n1").await;
    bench.claim("n1", 1, 1).await;
    bench.at(1100);
    bench.store.reap(Q, "n1", TERM, &CrashPolicy::new(3)).await.unwrap();
    bench.at(1110);
    bench.join("n2").await;
    let (token, _) = claimed(bench.claim("n2", 1, 1).await);
    bench.at(1200);
    bench.settle("n2", "A", token, retry(500)).await;
    bench.at(1300);
    bench.store.cancel(Q, &ids(&["A"])).await.unwrap();
    bench.at(1400);
    bench.store.requeue(Q, Requeue::Retry, &ids(&["A"])).await.unwrap();
    bench.at(1410);
    let (token, _) = claimed(bench.claim("n2", 2, 1).await);
    bench.at(1500);
    bench.settle("n2", "A", token, done()).await;
    let view = bench.store.show(&id("A"), Some(Q)).await.unwrap().unwrap();
    let attempts: Vec<_> =
        view.attempts.iter().map(|one| (one.number, one.node.as_str(), one.outcome.as_str(), one.lateness_ms)).collect();
    assert_eq!(attempts, [(1, "n1", "crashed", 10), (1, "n2", "failed", 110), (1, "n2", "succeeded", 10)]);
    assert_eq!((view.state.word(), view.attempt, view.crashes), ("succeeded", 1, 0));
}
