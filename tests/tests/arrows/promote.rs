//! Scheduled | retrying → ready, or by the job's own late policy → cancelled | held.

use punctual_core::job::{Due, Late, NewJob, Priority, UniqueUntil};
use punctual_core::store::promote::{BATCH, Promoted};

use crate::table::{Bench, Q, T0, TERM, band, id, ids, job, moved, names, own, retry, unique};

fn due(name: &str, ms: u64) -> NewJob {
    NewJob { due: Due::In(ms), ..job(name) }
}

#[tokio::test]
async fn promote_moves_a_due_job_and_nothing_before_its_time() {
    let bench = Bench::new().await;
    bench.enqueue(&[due("A", 1000), due("B", 1001)]).await;
    let before = bench.table().await;
    // Never early: the last microsecond of the millisecond before is too soon.
    bench.at_us(999_999);
    assert_eq!(moved(&bench.promote().await), (0, Some(1000), 0, 0));
    bench.changed(&before, "+ fence k0").await;
    let before = bench.table().await;
    bench.at(1000);
    let answer = bench.promote().await;
    let expected =
        Promoted::Moved { now_ms: T0 + 1000, lateness_ms: vec![0], next_due_ms: Some(T0 + 1001), late: 0, phantoms: 0 };
    assert_eq!(answer, expected);
    bench
        .changed(
            &before,
            "- scheduled A t1000
                            + r2 [A]",
        )
        .await;
    let before = bench.table().await;
    bench.at(1501);
    assert_eq!(
        bench.promote().await,
        Promoted::Moved { now_ms: T0 + 1501, lateness_ms: vec![500], next_due_ms: None, late: 0, phantoms: 0 }
    );
    bench
        .changed(
            &before,
            "- scheduled B t1001
                            - r2 [A]
                            + r2 [B A]",
        )
        .await;
}

#[tokio::test]
async fn promote_on_an_empty_queue_writes_its_term_and_nothing_else() {
    let bench = Bench::new().await;
    assert_eq!(moved(&bench.promote().await), (0, None, 0, 0));
    bench.is("fence k0").await;
    assert_eq!(bench.store.promote(Q, TERM - 1, BATCH).await.unwrap(), Promoted::Fenced(TERM));
    bench.is("fence k0").await;
}

#[tokio::test]
async fn promote_sends_each_band_to_its_list_with_its_stamp_and_rings() {
    let bench = Bench::new().await;
    let jobs = [
        NewJob { due: Due::In(5), ..band("A", Priority::Critical) },
        NewJob { due: Due::In(5), ..band("B", Priority::Low) },
        NewJob { due: Due::In(5), ..NewJob { priority: Priority::High, ..own("order-7") } },
    ];
    bench.enqueue(&jobs).await;
    let before = bench.table().await;
    bench.at(5);
    bench.promote().await;
    bench
        .changed(
            &before,
            "- scheduled A t5
                            - scheduled B t5
                            - scheduled order-7 t5
                            + r0 [A]
                            + r1 [order-7#k0]
                            + r2 [!]
                            + r3 [B]
                            + fence k0",
        )
        .await;
    // With work in the main list no bell is needed.
    let bench = Bench::new().await;
    bench.enqueue(&[due("A", 5), NewJob { due: Due::In(5), ..band("B", Priority::Low) }]).await;
    bench.at(5);
    bench.promote().await;
    assert_eq!(bench.table().await.lines("r"), ["r2 [A]", "r3 [B]"]);
}

#[tokio::test]
async fn promote_moves_a_retry_and_keeps_what_it_has_spent() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    bench.at(10);
    bench.settle("n", "A", token, retry(1000)).await;
    let before = bench.table().await;
    bench.at(1009);
    bench.promote().await;
    bench.changed(&before, "+ fence k0").await;
    let before = bench.table().await;
    bench.at(1012);
    assert_eq!(moved(&bench.promote().await), (1, None, 0, 0));
    bench
        .changed(
            &before,
            "- retrying A t1010
                            + r2 [A]
                            - s A tk0 1 0 0 1 t1010 t0 n
                            + s A qk0 1 0 0 1 t1010 t0 n",
        )
        .await;
}

#[tokio::test]
async fn promote_under_an_older_term_is_refused_and_changes_nothing() {
    let bench = Bench::new().await;
    bench.enqueue(&[due("A", 0), due("B", 5), due("C", 10)]).await;
    bench.at(5);
    let (old, new) = (TERM, TERM + 1);
    assert_eq!(moved(&bench.store.promote(Q, new, BATCH).await.unwrap()).0, 1);
    let before = bench.table().await;
    bench.at(10);
    assert_eq!(bench.store.promote(Q, old, BATCH).await.unwrap(), Promoted::Fenced(new));
    assert_eq!(bench.store.promote(Q, 1, BATCH).await.unwrap(), Promoted::Fenced(new));
    bench.unchanged(&before).await;
    // The same term goes on, and a later one raises the fence.
    assert_eq!(moved(&bench.store.promote(Q, new, BATCH).await.unwrap()).0, 1);
    bench.enqueue(&[due("D", 1)]).await;
    bench.at(20);
    assert_eq!(moved(&bench.store.promote(Q, new + 5, BATCH).await.unwrap()).0, 1);
    assert_eq!(bench.table().await.lines("fence"), ["fence k6"]);
}

#[tokio::test]
async fn promote_sees_the_fence_before_it_looks_whether_anything_is_due() {
    let bench = Bench::new().await;
    bench.enqueue(&[due("A", 5)]).await;
    bench.at(5);
    bench.store.promote(Q, TERM + 1, BATCH).await.unwrap();
    assert_eq!(bench.store.promote(Q, TERM, BATCH).await.unwrap(), Promoted::Fenced(TERM + 1));
}

#[tokio::test]
async fn promote_asks_the_policy_of_a_job_that_was_handed_in_late() {
    let bench = Bench::new().await;
    let job = |name: &str, ms: u64, late| NewJob { due: Due::At(T0 - ms), late, grace_ms: 50, ..job(name) };
    let jobs = [job("S", 51, Late::Skip), job("H", 51, Late::Hold), job("J", 50, Late::Skip), job("R", 51, Late::Run)];
    bench.enqueue(&jobs).await;
    assert_eq!(bench.table().await.lines("r2"), ["r2 [R]"]);
    assert_eq!(moved(&bench.promote().await), (1, None, 2, 0));
    let after = bench.table().await;
    assert_eq!(after.lines("r2"), ["r2 [J R]"]);
    assert_eq!((after.lines("cancelled"), after.lines("held")), (vec!["cancelled S t0"], vec!["held H t0"]));
}

#[tokio::test]
async fn promote_runs_skips_or_holds_a_late_job_by_its_own_policy() {
    let job =
        |name: &str, late, grace_ms| NewJob { due: Due::In(100), late, grace_ms, ..unique(name, name, UniqueUntil::Finished) };
    let bench = Bench::new().await;
    bench.enqueue(&[job("R", Late::Run, 0), job("S", Late::Skip, 50), job("H", Late::Hold, 50)]).await;
    // At the end of the grace all are in time.
    let in_time = Bench::new().await;
    in_time.enqueue(&[job("R", Late::Run, 0), job("S", Late::Skip, 50), job("H", Late::Hold, 50)]).await;
    in_time.at(150);
    assert_eq!(moved(&in_time.promote().await), (3, None, 0, 0));
    assert_eq!(in_time.table().await.lines("r2"), ["r2 [S R H]"]);

    let before = bench.table().await;
    bench.at(151);
    assert_eq!(moved(&bench.promote().await), (1, None, 2, 0));
    bench
        .changed(
            &before,
            "- scheduled R t100
                            - scheduled S t100
                            - scheduled H t100
                            + r2 [R]
                            + s S ck- 0 0 0 0 t100 0 - t151 late
                            + s H hk- 0 0 0 0 t100 0 - t151 late
                            + cancelled S t151
                            + held H t151
                            - u:S S
                            + totals cancelled 1
                            + fence k0",
        )
        .await;
}

#[tokio::test]
async fn promote_never_calls_a_retry_late() {
    let bench = Bench::new().await;
    let strict = NewJob { late: Late::Skip, ..job("A") };
    let token = bench.run(strict, "n", 1).await;
    bench.settle("n", "A", token, retry(1000)).await;
    bench.at(60_000);
    assert_eq!(moved(&bench.promote().await), (1, None, 0, 0));
    assert!(bench.table().await.has("r2 [A]"));
}

#[tokio::test]
async fn promote_sends_suspects_through_their_lane() {
    let bench = Bench::new().await;
    crate::reap::suspect(&bench, band("A", Priority::Low)).await;
    bench.at(60_000);
    let before = bench.table().await;
    assert_eq!(moved(&bench.promote().await), (1, None, 0, 0));
    bench
        .changed(
            &before,
            "- retrying A t5000
                            + suspects [A]
                            + r2 [!]
                            - s A tk2 0 2 0 9 t5000 t0 n2
                            + s A qk2 0 2 0 9 t5000 t0 n2",
        )
        .await;
}

#[tokio::test]
async fn promote_drops_entries_without_a_record_with_what_is_left_of_them() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    bench.settle("n", "A", token, retry(5)).await;
    bench.enqueue(&[due("B", 5), due("C", 5)]).await;
    for name in ["A", "B"] {
        let bucket = bench.store.keys().bucket(Q, &id(name));
        bench.command::<()>(redis::cmd("DEL").arg(bucket)).await;
    }
    let before = bench.table().await;
    bench.at(5);
    assert_eq!(moved(&bench.promote().await), (1, None, 0, 2));
    bench
        .changed(
            &before,
            "- scheduled B t5
                            - scheduled C t5
                            - retrying A t5
                            + r2 [C]
                            - s A tk0 1 0 0 1 t5 t0 n
                            - h:A [1 f k0 0 t0 t0 n it broke]
                            + fence k0",
        )
        .await;
}

#[tokio::test]
async fn promote_takes_a_burst_in_bounded_batches_and_in_order() {
    let bench = Bench::new().await;
    let jobs: Vec<NewJob> = (0..1200).map(|n| due(&format!("{n:04}"), 100)).collect();
    for page in jobs.chunks(400) {
        bench.enqueue(page).await;
    }
    bench.at(100);
    // Asked for more, it still moves a batch.
    let mut sizes = Vec::new();
    loop {
        let (count, next, ..) = moved(&bench.store.promote(Q, TERM, 10_000).await.unwrap());
        sizes.push(count);
        if next.is_none() {
            break;
        }
        assert_eq!(next, Some(100));
    }
    assert_eq!(sizes, [BATCH, BATCH, 200]);
    let entries: Vec<String> = bench.raw("LRANGE", "r2", &["0", "-1"]).await;
    let in_order: Vec<String> = (0..1200).rev().map(|n| id(&format!("{n:04}"))).collect();
    assert_eq!(entries, in_order);
    bench.join("n").await;
    assert_eq!(names(bench.claim("n", 1, 3).await), ["", "1", "2"]);
}

#[tokio::test]
async fn promote_moves_no_more_than_asked_for_and_retries_after_first_waits() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    bench.settle("n", "A", token, retry(1)).await;
    bench.enqueue(&[due("B", 5), due("C", 6)]).await;
    bench.at(10);
    for expected in ["r2 [B]", "r2 [C B]", "r2 [A C B]"] {
        assert_eq!(moved(&bench.store.promote(Q, TERM, 1).await.unwrap()).0, 1);
        assert_eq!(bench.table().await.lines("r2"), [expected]);
    }
}

#[tokio::test]
async fn next_due_tells_the_earliest_of_each_queue() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    bench.enqueue(&[due("B", 500)]).await;
    let queues = [Q.to_owned(), "other".to_owned()];
    assert_eq!(bench.store.next_due(&queues).await.unwrap(), [Some(T0 + 500), None]);
    bench.settle("n", "A", token, retry(300)).await;
    assert_eq!(bench.store.next_due(&queues).await.unwrap(), [Some(T0 + 300), None]);
    assert_eq!(bench.store.next_due(&[]).await.unwrap(), []);
}

#[tokio::test]
async fn promote_brings_ended_jobs_back_never() {
    let bench = Bench::new().await;
    bench.die(job("A"), "n", 1).await;
    bench.enqueue(&[due("B", 5)]).await;
    bench.store.cancel(Q, &ids(&["B"])).await.unwrap();
    let before = bench.table().await;
    bench.at(10_000_000);
    assert_eq!(moved(&bench.promote().await), (0, None, 0, 0));
    bench.changed(&before, "+ fence k0").await;
}
