//! Retention for queues where nothing settles.

use std::time::Duration;

use punctual_core::config::Retention;
use punctual_core::state::Move;
use punctual_core::store::trim::BATCH;

use crate::table::{Bench, Q, claimed, done, drop_all, ids, job, keep};

#[tokio::test]
async fn trim_removes_what_is_too_old_with_every_trace() {
    let bench = Bench::new().await;
    bench.join("n").await;
    for (at, name) in [(0, "A"), (50, "B")] {
        bench.at(at);
        bench.enqueue(&[job(name)]).await;
        let (token, _) = claimed(bench.claim("n", at + 1, 1).await);
        bench.store.note(Q, &crate::note::both(name, token)).await.unwrap();
        bench.settle("n", name, token, Move { result: Some("1".to_owned()), ..done() }).await;
    }
    let short = Retention { succeeded: Duration::from_millis(100), ..keep() };
    let before = bench.table().await;
    bench.at(99);
    assert_eq!(bench.store.trim(Q, &short).await.unwrap(), 0);
    bench.unchanged(&before).await;
    bench.at(100);
    assert_eq!(bench.store.trim(Q, &short).await.unwrap(), 1);
    bench
        .changed(
            &before,
            "- b A 2r- t0 t0 | noop {}
                            - s A sk0 1 0 0 6 0 t0 n t0 
                            - succeeded A t0
                            - results A 1
                            - progress A 50 half
                            - l:A [t0 hello]",
        )
        .await;
}

#[tokio::test]
async fn trim_removes_what_is_too_much_the_oldest_first() {
    let bench = Bench::new().await;
    for (at, name) in [(1, "A"), (2, "B"), (3, "C")] {
        bench.at(at);
        bench.die(job(name), "n", at).await;
    }
    bench.enqueue(&["D", "E"].map(job)).await;
    bench.store.cancel(Q, &ids(&["D", "E"])).await.unwrap();
    let two = Retention { dead_max: 2, succeeded_max: 1, ..keep() };
    assert_eq!(bench.store.trim(Q, &two).await.unwrap(), 2);
    let table = bench.table().await;
    assert_eq!(table.lines("dead"), ["dead B t2", "dead C t3"]);
    assert_eq!(table.lines("cancelled"), ["cancelled E t3"]);
    assert!(!table.has("h:A") && !table.has("b A") && !table.has("s A"));
}

#[tokio::test]
async fn trim_takes_bounded_batches() {
    let bench = Bench::new().await;
    let many: Vec<String> = (0..450).map(|n| format!("{n:03}Z")).collect();
    bench.enqueue(&many.iter().map(|name| job(name)).collect::<Vec<_>>()).await;
    let all: Vec<&str> = many.iter().map(String::as_str).collect();
    bench.store.cancel(Q, &ids(&all)).await.unwrap();
    let mut removed = Vec::new();
    loop {
        removed.push(bench.store.trim(Q, &drop_all()).await.unwrap());
        if removed.last() < Some(&BATCH) {
            break;
        }
    }
    assert_eq!(removed, [200, 200, 50]);
    assert_eq!(bench.table().await.lines("s "), [""; 0]);
}

#[tokio::test]
async fn trim_touches_nothing_that_has_not_ended() {
    for state in crate::states::ALL.into_iter().filter(|state| !state.is_final()) {
        let (bench, _) = crate::states::bench_with(state).await;
        let before = bench.table().await;
        bench.at(100_000_000);
        assert_eq!(bench.store.trim(Q, &drop_all()).await.unwrap(), 0);
        bench.unchanged(&before).await;
    }
}
