//! Sweep looks and changes nothing; leave ends an ownership.

use std::time::Duration;

use punctual_core::store::reap::CrashPolicy;
use punctual_core::store::sweep::{Swept, SweptJob};

use crate::table::{Bench, Q, TERM, done, id, ids, job, retry};

#[tokio::test]
async fn sweep_tells_what_an_incarnation_holds_and_changes_nothing() {
    let bench = Bench::new().await;
    assert_eq!(bench.store.sweep(Q, "n").await.unwrap(), Swept::default());
    let token = bench.run(job("A"), "n", 1).await;
    bench.at(5);
    let later = bench.run(job("B"), "n", 2).await;
    bench.enqueue(&[job("C"), job("D")]).await;
    bench.fetch("n").await;
    bench.store.cancel(Q, &ids(&["B"])).await.unwrap();
    let before = bench.table().await;
    let mut swept = bench.store.sweep(Q, "n").await.unwrap();
    swept.jobs.sort_by(|a, b| a.id.cmp(&b.id));
    let jobs = vec![SweptJob { id: id("A"), token, cancel: false }, SweptJob { id: id("B"), token: later, cancel: true }];
    assert_eq!(swept, Swept { owner: true, unclaimed: 1, jobs });
    assert_eq!(bench.store.sweep(Q, "other").await.unwrap(), Swept::default());
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn sweep_tells_an_owner_that_it_is_gone() {
    let bench = Bench::new().await;
    bench.join("n").await;
    assert!(bench.store.sweep(Q, "n").await.unwrap().owner);
    bench.store.reap(Q, "n", TERM, &CrashPolicy::new(3)).await.unwrap();
    assert!(!bench.store.sweep(Q, "n").await.unwrap().owner);
}

#[tokio::test]
async fn sweep_gives_no_token_for_an_id_whose_state_does_not_run() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    bench.settle("n", "A", token, retry(1000)).await;
    for name in ["A", "Z"] {
        bench.raw::<()>("SADD", "run:n", &[&id(name)]).await;
        let jobs = bench.store.sweep(Q, "n").await.unwrap().jobs;
        assert_eq!(jobs, [SweptJob { id: id(name), token: 0, cancel: false }]);
        bench.raw::<()>("SREM", "run:n", &[&id(name)]).await;
    }
}

#[tokio::test]
async fn sweep_tells_more_jobs_than_lua_can_unpack() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    let others: Vec<String> = (0..9000).map(|n| format!("other-{n}")).collect();
    for page in others.chunks(1000) {
        let page: Vec<&str> = page.iter().map(String::as_str).collect();
        bench.raw::<()>("SADD", "run:n", &page).await;
    }
    let jobs = bench.store.sweep(Q, "n").await.unwrap().jobs;
    assert_eq!(jobs.len(), 9001);
    assert!(jobs.contains(&SweptJob { id: id("A"), token, cancel: false }));
}

#[tokio::test]
async fn leave_ends_an_ownership_only_when_nothing_is_left() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    let before = bench.table().await;
    assert!(!bench.store.leave(Q, "n", Duration::ZERO).await.unwrap());
    bench.unchanged(&before).await;
    bench.settle("n", "A", token, done()).await;
    bench.enqueue(&[job("B")]).await;
    bench.fetch("n").await;
    let before = bench.table().await;
    assert!(!bench.store.leave(Q, "n", Duration::ZERO).await.unwrap());
    bench.unchanged(&before).await;
    bench.claim("n", 2, 0).await;
    let before = bench.table().await;
    assert!(bench.store.leave(Q, "n", Duration::ZERO).await.unwrap());
    let owner = before.lines("owners")[0];
    bench.changed(&before, &format!("- {owner}")).await;
    // Again, and by one who never was there.
    assert!(bench.store.leave(Q, "n", Duration::ZERO).await.unwrap());
    assert!(bench.store.leave(Q, "stranger", Duration::from_secs(1)).await.unwrap());
}

#[tokio::test]
async fn a_dead_owner_leaves_after_its_time_and_a_living_one_never_so() {
    let bench = Bench::new().await;
    let hour = Duration::from_secs(3600);
    bench.join("n").await;
    bench.at(10_000_000);
    assert!(!bench.store.leave(Q, "n", hour).await.unwrap());
    bench.store.reap(Q, "n", TERM, &CrashPolicy::new(3)).await.unwrap();
    let before = bench.table().await;
    bench.at(13_599_999);
    assert!(!bench.store.leave(Q, "n", hour).await.unwrap());
    bench.unchanged(&before).await;
    bench.at(13_600_000);
    assert!(bench.store.leave(Q, "n", hour).await.unwrap());
    bench.changed(&before, "- owners n gone t10000000").await;
}

#[tokio::test]
async fn a_dead_owner_stays_while_a_late_fetch_lies_in_its_list() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.store.reap(Q, "n", TERM, &CrashPolicy::new(3)).await.unwrap();
    bench.enqueue(&[job("A")]).await;
    bench.fetch("n").await;
    bench.at(10_000_000);
    assert!(!bench.store.leave(Q, "n", Duration::from_millis(1)).await.unwrap());
    assert_eq!(bench.store.reap(Q, "n", TERM, &CrashPolicy::new(3)).await.unwrap().unclaimed, 1);
    assert!(bench.store.leave(Q, "n", Duration::from_millis(1)).await.unwrap());
}
