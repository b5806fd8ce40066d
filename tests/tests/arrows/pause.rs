//! Pausing is a flag that claim reads; nothing moves.

use punctual_core::job::{Due, NewJob, Priority};
use punctual_core::store::claim::Claimed;
use punctual_core::store::nudge::Nudge;
use punctual_core::store::reap::CrashPolicy;

use crate::table::{Bench, Q, TERM, band, claimed, done, job, names, retry};

#[tokio::test]
async fn pause_is_one_key_and_tells_whether_it_was_new() {
    let bench = Bench::new().await;
    bench.enqueue(&[job("A")]).await;
    let before = bench.table().await;
    assert!(bench.store.pause(Q).await.unwrap());
    assert!(!bench.store.pause(Q).await.unwrap());
    bench.changed(&before, "+ paused 1").await;
    assert!(bench.store.resume(Q).await.unwrap());
    assert!(!bench.store.resume(Q).await.unwrap());
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn nothing_starts_while_paused_and_all_does_after() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.join("dying").await;
    bench.enqueue(&["A", "B", "C"].map(job)).await;
    assert_eq!(names(bench.claim("dying", 1, 1).await), ["A"]);
    let (token, _) = claimed(bench.claim("n", 1, 1).await);
    bench.store.pause(Q).await.unwrap();
    // Enqueued, promoted, retried, reaped, handed back: all wait.
    bench.enqueue(&[NewJob { due: Due::In(5), ..job("D") }, band("E", Priority::High), job("F")]).await;
    bench.settle("n", "B", token, retry(5)).await;
    bench.at(10);
    bench.promote().await;
    bench.store.reap(Q, "dying", TERM, &CrashPolicy::new(3)).await.unwrap();
    bench.fetch("n").await;
    for number in 2..5 {
        assert_eq!(bench.claim("n", number, 9).await, Claimed::Paused);
    }
    bench.store.resume(Q).await.unwrap();
    let mut got = names(bench.claim("n", 2, 9).await);
    got.sort();
    assert_eq!(got, ["A", "B", "C", "D", "E", "F"]);
}

#[tokio::test]
async fn what_runs_while_paused_settles() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    bench.store.pause(Q).await.unwrap();
    assert_eq!(bench.settle("n", "A", token, done()).await, punctual_core::store::settle::Settled::Done);
}

#[tokio::test]
async fn resume_rings_for_bands_that_no_fetch_sees_and_nudges() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&[band("A", Priority::Critical)]).await;
    bench.store.pause(Q).await.unwrap();
    // The bell was fetched and is lost with the refused claim.
    bench.fetch("n").await;
    assert_eq!(bench.claim("n", 1, 1).await, Claimed::Paused);
    assert_eq!(bench.table().await.lines("r"), ["r0 [A]"]);
    let mut nudges = bench.store.nudges().await.unwrap();
    bench.store.resume(Q).await.unwrap();
    assert_eq!(crate::table::next(&mut nudges).await, Nudge::Resume(Q.to_owned()));
    assert_eq!(bench.table().await.lines("r"), ["r0 [A]", "r2 [!]"]);
}

#[tokio::test]
async fn resume_leaves_no_bell_in_a_queue_without_work() {
    let bench = Bench::new().await;
    bench.store.pause(Q).await.unwrap();
    bench.store.resume(Q).await.unwrap();
    bench.is("").await;
}
