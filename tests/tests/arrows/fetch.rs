//! The blocking wake-up: BRPOPLPUSH from the main list to an incarnation's processing list.

use std::time::{Duration, Instant};

use punctual_core::job::{Due, NewJob, Priority};

use crate::table::{Bench, Q, band, job, names};

const BLOCK: Duration = Duration::from_secs(20);

#[tokio::test]
async fn fetch_moves_the_next_entry_and_claims_nothing() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&["A", "B"].map(job)).await;
    let before = bench.table().await;
    let mut fetch = bench.store.fetch(Q, "n", BLOCK);
    assert!(fetch.wait().await.unwrap());
    bench
        .changed(
            &before,
            "- r2 [B A]
             + r2 [B]
             + p:n [A]",
        )
        .await;
    assert_eq!(names(bench.claim("n", 1, 1).await), ["A"]);
}

#[tokio::test]
async fn fetch_ends_with_its_block_when_nothing_comes() {
    let bench = Bench::new().await;
    bench.enqueue(&[NewJob { due: Due::In(1000), ..job("A") }]).await;
    let before = bench.table().await;
    assert!(!bench.store.fetch(Q, "n", Duration::from_millis(50)).wait().await.unwrap());
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn a_waiting_fetch_wakes_for_work_in_any_band_and_lane() {
    for priority in Priority::ALL {
        let bench = Bench::new().await;
        bench.join("n").await;
        let mut fetch = bench.store.fetch(Q, "n", BLOCK);
        let waiting = tokio::spawn(async move { fetch.wait().await });
        bench.enqueue(&[band("A", priority)]).await;
        assert!(waiting.await.unwrap().unwrap(), "{priority:?}");
        assert_eq!(names(bench.claim("n", 1, 1).await), ["A"], "{priority:?}");
    }
    let bench = Bench::new().await;
    crate::reap::suspect(&bench, job("A")).await;
    bench.join("n").await;
    let mut fetch = bench.store.fetch(Q, "n", BLOCK);
    let waiting = tokio::spawn(async move { fetch.wait().await });
    bench.at(60_000);
    bench.promote().await;
    assert!(waiting.await.unwrap().unwrap());
    assert_eq!(names(bench.claim_with("n", 1, 1, [0; 4], true).await), ["A"]);
}

#[tokio::test]
async fn unblock_wakes_a_waiting_fetch() {
    let bench = Bench::new().await;
    let mut fetch = bench.store.fetch(Q, "n", BLOCK);
    let client = fetch.client_id().await.unwrap();
    assert_eq!(fetch.client_id().await.unwrap(), client);
    let start = Instant::now();
    let waiting = tokio::spawn(async move { fetch.wait().await });
    while !waiting.is_finished() {
        bench.store.unblock(client).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(!waiting.await.unwrap().unwrap());
    assert!(start.elapsed() < BLOCK);
}

#[tokio::test]
async fn has_work_looks_at_all_bands_and_suspects() {
    for part in ["r0", "r1", "r2", "r3", "suspects"] {
        let bench = Bench::new().await;
        assert!(!bench.store.has_work(Q).await.unwrap());
        bench.raw::<()>("LPUSH", part, &["x"]).await;
        assert!(bench.store.has_work(Q).await.unwrap(), "{part}");
    }
    let bench = Bench::new().await;
    bench.enqueue(&[NewJob { due: Due::In(1000), ..job("A") }]).await;
    assert!(!bench.store.has_work(Q).await.unwrap());
}
