//! New → scheduled | ready.

use punctual_core::job::{Due, Late, NewJob, Priority, UniqueUntil};
use punctual_core::state::{AttemptOutcome, State};
use punctual_core::store::enqueue::{BATCH, CallId, Enqueued};
use punctual_tests::eventually;
use std::time::Duration;

use crate::table::{Bench, Q, T0, band, claimed, done, drop_all, id, ids, job, names, own, to, unique};

fn ready() -> Enqueued {
    Enqueued::Stored { state: State::Ready, due_ms: T0 }
}

fn scheduled(ms: u64) -> Enqueued {
    Enqueued::Stored { state: State::Scheduled, due_ms: T0 + ms }
}

fn duplicate(name: &str) -> Enqueued {
    Enqueued::Duplicate(name.to_owned())
}

#[tokio::test]
async fn enqueue_stores_a_due_job_as_body_and_entry_only() {
    let bench = Bench::new().await;
    let answer = bench.store.enqueue(&CallId::named("1"), Q, &[job("A")]).await.unwrap();
    assert_eq!(answer, [ready()]);
    bench
        .is("b A 2r- t0 t0 | noop {}
              r2 [A]
              totals enqueued 1
              rc:k1 qt0 (expires)")
        .await;
}

#[tokio::test]
async fn enqueue_takes_jobs_in_their_order() {
    let bench = Bench::new().await;
    let jobs: Vec<NewJob> = ["A", "B", "C"].map(job).into();
    assert_eq!(bench.store.enqueue(&CallId::named("1"), Q, &jobs).await.unwrap(), vec![ready(); 3]);
    bench.enqueue(&[job("D")]).await;
    bench
        .is("b A 2r- t0 t0 | noop {}
              b B 2r- t0 t0 | noop {}
              b C 2r- t0 t0 | noop {}
              b D 2r- t0 t0 | noop {}
              r2 [D C B A]
              totals enqueued 4
              rc:k1 qt0\\nqt0\\nqt0 (expires)")
        .await;
    bench.join("n").await;
    assert_eq!(names(bench.claim("n", 1, 9).await), ["A", "B", "C", "D"]);
}

#[tokio::test]
async fn enqueue_stores_a_whole_batch_in_one_call() {
    let bench = Bench::new().await;
    let jobs: Vec<NewJob> = (0..BATCH).map(|n| job(&format!("{n:03}A"))).collect();
    assert_eq!(bench.enqueue(&jobs).await, vec![ready(); BATCH]);
    assert_eq!(bench.raw::<usize>("LLEN", "r2", &[]).await, BATCH);
    assert_eq!(bench.raw::<String>("HGET", "totals", &["enqueued"]).await, BATCH.to_string());
}

#[tokio::test]
async fn enqueue_puts_each_band_into_its_list_and_rings_one_bell() {
    let bench = Bench::new().await;
    let jobs =
        [band("A", Priority::Low), band("B", Priority::Critical), band("C", Priority::High), band("D", Priority::Critical)];
    bench.enqueue(&jobs).await;
    bench
        .is("b A 3r- t0 t0 | noop {}
              b B 0r- t0 t0 | noop {}
              b C 1r- t0 t0 | noop {}
              b D 0r- t0 t0 | noop {}
              r0 [D B]
              r1 [C]
              r2 [!]
              r3 [A]
              totals enqueued 4")
        .await;
    let before = bench.table().await;
    bench.enqueue(&[band("E", Priority::High), band("F", Priority::Low)]).await;
    bench
        .changed(
            &before,
            "+ b E 1r- t0 t0 | noop {}
                            + b F 3r- t0 t0 | noop {}
                            - r1 [C]
                            + r1 [E C]
                            - r3 [A]
                            + r3 [F A]
                            - totals enqueued 4
                            + totals enqueued 6",
        )
        .await;
}

#[tokio::test]
async fn enqueue_rings_no_bell_while_the_main_list_holds_work() {
    let bench = Bench::new().await;
    // In one call, whatever the order, and in a later one.
    bench.enqueue(&[band("A", Priority::Low), job("B")]).await;
    bench.enqueue(&[band("C", Priority::High)]).await;
    let table = bench.table().await;
    assert_eq!(table.lines("r"), ["r1 [C]", "r2 [B]", "r3 [A]"]);
}

#[tokio::test]
async fn enqueue_rings_no_bell_for_a_job_that_is_stored_already() {
    let bench = Bench::new().await;
    bench.enqueue(&[NewJob { due: Due::In(1), ..band("A", Priority::Critical) }]).await;
    let before = bench.table().await;
    bench.enqueue(&[band("A", Priority::Critical)]).await;
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn enqueue_rings_no_bell_for_a_job_that_is_not_due() {
    let bench = Bench::new().await;
    bench.enqueue(&[NewJob { due: Due::In(1), ..band("A", Priority::Critical) }]).await;
    bench
        .is("b A 0r- t0 t1 | noop {}
              scheduled A t1
              totals enqueued 1")
        .await;
}

#[tokio::test]
async fn enqueue_makes_due_times_by_the_clock_of_redis() {
    let century = 100 * 366 * 86_400_000;
    let cases = [
        (Due::Now, ready()),
        (Due::In(0), ready()),
        (Due::In(1), scheduled(1)),
        (Due::In(century), scheduled(century)),
        (Due::At(T0 + 1), scheduled(1)),
        (Due::At(T0), ready()),
        // Past means now: the job is not late, it was handed in late.
        (Due::At(T0 - 1), ready()),
        (Due::At(0), ready()),
    ];
    for (due, expected) in cases {
        let bench = Bench::new().await;
        assert_eq!(bench.enqueue(&[NewJob { due, ..job("A") }]).await, std::slice::from_ref(&expected), "{due:?}");
        let found = bench.store.find(&id("A"), Some(Q)).await.unwrap().remove(0);
        let record = found.record.unwrap();
        assert_eq!(Enqueued::Stored { state: found.state, due_ms: record.due_ms }, expected, "{due:?}");
        assert_eq!(record.created_ms, T0, "{due:?}");
    }
}

#[tokio::test]
async fn enqueue_keeps_scheduled_jobs_out_of_every_list() {
    let bench = Bench::new().await;
    let jobs = [
        NewJob { due: Due::In(500), late: Late::Skip, grace_ms: 30, ..job("A") },
        NewJob { due: Due::At(T0 + 7), ..own("order-7") },
    ];
    bench.enqueue(&jobs).await;
    bench
        .is("b A 2s+ t0 t500 [0 30 0 - ] | noop {}
              b order-7 2r+ t0 t7 [k0 0 0 - ] | noop {}
              scheduled A t500
              scheduled order-7 t7
              totals enqueued 2")
        .await;
}

#[tokio::test]
async fn enqueue_nudges_only_when_a_job_becomes_the_first_due() {
    use punctual_core::store::nudge::Nudge;
    let bench = Bench::new().await;
    let mut nudges = bench.store.nudges().await.unwrap();
    for (name, due_ms) in [("A", 1000), ("B", 2000), ("C", 500), ("D", 0)] {
        bench.enqueue(&[NewJob { due: Due::In(due_ms), ..job(name) }]).await;
    }
    bench.store.publish(&Nudge::StepDown).await.unwrap();
    let mut got = Vec::new();
    for _ in 0..3 {
        got.push(crate::table::next(&mut nudges).await);
    }
    assert_eq!(got, [Nudge::Due(Q.to_owned()), Nudge::Due(Q.to_owned()), Nudge::StepDown]);
}

#[tokio::test]
async fn enqueue_of_a_known_id_changes_nothing_in_any_state() {
    let bench = Bench::new().await;
    bench.enqueue(&[NewJob { due: Due::In(500), ..job("A") }]).await;
    let held = NewJob { due: Due::In(1), late: Late::Hold, ..job("H") };
    bench.enqueue(&[held]).await;
    bench.at(10);
    bench.promote().await;
    let token = bench.run(job("R"), "n", 1).await;
    bench.settle("n", "R", token, crate::table::retry(1000)).await;
    bench.die(job("X"), "n", 2).await;
    let token = bench.run(job("S"), "n", 3).await;
    bench.settle("n", "S", token, done()).await;
    bench.enqueue(&[job("C")]).await;
    bench.store.cancel(Q, &ids(&["C"])).await.unwrap();
    bench.claim("n", 4, 1).await;
    bench.run(job("B"), "n", 5).await;
    bench.enqueue(&[job("Q")]).await;
    let before = bench.table().await;
    bench.at(20);
    for name in ["A", "B", "C", "H", "Q", "R", "S", "X"] {
        let again = NewJob { due: Due::In(1), ..band(name, Priority::Critical) };
        assert_eq!(bench.enqueue(&[again]).await, [duplicate(&id(name))], "{name}");
        bench.unchanged(&before).await;
    }
}

#[tokio::test]
async fn enqueue_of_one_id_twice_in_a_call_stores_it_once() {
    let bench = Bench::new().await;
    assert_eq!(bench.enqueue(&[job("A"), job("A"), job("B")]).await, [ready(), duplicate(&id("A")), ready()]);
    bench
        .is("b A 2r- t0 t0 | noop {}
              b B 2r- t0 t0 | noop {}
              r2 [B A]
              totals enqueued 2")
        .await;
}

#[tokio::test]
async fn enqueue_with_a_key_holds_it_and_refuses_the_next() {
    let bench = Bench::new().await;
    assert_eq!(bench.enqueue(&[unique("A", "k e y", UniqueUntil::Finished)]).await, [ready()]);
    bench
        .is("b A 2r+ t0 t0 [0 0 0 f k e y] | noop {}
              r2 [A]
              totals enqueued 1
              u:k e y A")
        .await;
    let before = bench.table().await;
    let two = [unique("B", "k e y", UniqueUntil::Started), unique("C", "other", UniqueUntil::Started)];
    assert_eq!(bench.enqueue(&two).await, [duplicate(&id("A")), ready()]);
    bench
        .changed(
            &before,
            "+ b C 2r+ t0 t0 [0 0 0 s other] | noop {}
                            - r2 [A]
                            + r2 [C A]
                            - totals enqueued 1
                            + totals enqueued 2
                            + u:other C",
        )
        .await;
}

#[tokio::test]
async fn enqueue_of_one_key_twice_in_a_call_stores_the_first() {
    let bench = Bench::new().await;
    let jobs = [unique("A", "k", UniqueUntil::Finished), unique("B", "k", UniqueUntil::Finished)];
    assert_eq!(bench.enqueue(&jobs).await, [ready(), duplicate(&id("A"))]);
}

/// Brings a job with a key into each state in turn; `free` = whether the key may be taken there.
async fn key_over_a_life(until: UniqueUntil, free: [bool; 6]) {
    let words = ["scheduled", "ready", "running", "retrying", "handed back", "ended"];
    for (step, (word, free)) in words.iter().zip(free).enumerate() {
        let bench = Bench::new().await;
        bench.enqueue(&[NewJob { due: Due::In(1), ..unique("A", "k", until) }]).await;
        if step >= 1 {
            bench.at(1);
            bench.promote().await;
        }
        if step >= 2 {
            bench.join("n").await;
            let (token, jobs) = claimed(bench.claim("n", 1, 1).await);
            assert_eq!(jobs.len(), 1);
            let end = match step {
                3 => Some(crate::table::retry(1000)),
                4 => Some(to(State::Ready, AttemptOutcome::HandedBack)),
                5 => Some(done()),
                _ => None,
            };
            if let Some(end) = end {
                bench.settle("n", "A", token, end).await;
            }
        }
        let answer = bench.enqueue(&[unique("B", "k", until)]).await.remove(0);
        assert_eq!(matches!(answer, Enqueued::Stored { .. }), free, "{until:?} {word}: {answer:?}");
        let holder: String = bench.raw("GET", "u:k", &[]).await;
        assert_eq!(holder, id(if free { "B" } else { "A" }), "{until:?} {word}");
    }
}

#[tokio::test]
async fn unique_until_started_frees_its_key_at_the_claim() {
    key_over_a_life(UniqueUntil::Started, [false, false, true, true, true, true]).await;
}

#[tokio::test]
async fn unique_until_finished_keeps_its_key_through_retry_and_hand_back() {
    key_over_a_life(UniqueUntil::Finished, [false, false, false, false, false, true]).await;
}

#[tokio::test]
async fn enqueue_steals_a_key_whose_holder_is_no_more() {
    let bench = Bench::new().await;
    // A holder that nobody knows, and one whose end did not free the key: both come from outside.
    bench.raw::<()>("SET", "u:k", &[&id("Z")]).await;
    bench.die(job("X"), "n", 1).await;
    bench.raw::<()>("SET", "u:j", &[&id("X")]).await;
    let jobs = [unique("A", "k", UniqueUntil::Finished), unique("B", "j", UniqueUntil::Finished)];
    assert_eq!(bench.enqueue(&jobs).await, [ready(), ready()]);
    assert_eq!(bench.table().await.lines("u:"), ["u:j B", "u:k A"]);
}

#[tokio::test]
async fn dedupe_refuses_the_same_key_within_its_window_whatever_became_of_the_job() {
    let bench = Bench::new().await;
    let dedupe = |name: &str, span_ms| NewJob { dedupe: Some(("k".to_owned(), span_ms)), ..job(name) };
    let token = bench.run(dedupe("A", 60_000), "n", 1).await;
    assert_eq!(bench.enqueue(&[dedupe("B", 60_000)]).await, [duplicate(&id("A"))]);
    bench.settle_keeping(&drop_all(), "n", &[("A", token, done())]).await;
    let before = bench.table().await;
    assert_eq!(bench.enqueue(&[dedupe("B", 60_000)]).await, [duplicate(&id("A"))]);
    bench.unchanged(&before).await;
    assert_eq!(before.lines("d:"), ["d:k A (expires)"]);
}

#[tokio::test]
async fn dedupe_ends_with_its_window() {
    let bench = Bench::new().await;
    let dedupe = |name: &str| NewJob { dedupe: Some(("k".to_owned(), 100)), ..job(name) };
    bench.enqueue(&[dedupe("A")]).await;
    let second = eventually(Duration::from_secs(10), "the window to end", async || {
        let answer = bench.enqueue(&[dedupe("B")]).await.remove(0);
        (answer != duplicate(&id("A"))).then_some(answer)
    });
    assert_eq!(second.await.unwrap(), ready());
}

#[tokio::test]
async fn enqueue_answers_a_resend_as_the_first_time_even_after_the_job_is_gone() {
    let bench = Bench::new().await;
    let call = CallId::named("1");
    let jobs = [job("A"), NewJob { due: Due::In(50), ..job("B") }, job("A"), unique("C", "k", UniqueUntil::Started)];
    let first = bench.store.enqueue(&call, Q, &jobs).await.unwrap();
    assert_eq!(first, [ready(), scheduled(50), duplicate(&id("A")), ready()]);
    bench.join("n").await;
    let (token, _) = claimed(bench.claim("n", 1, 2).await);
    let ends = [("A", token, done()), ("C", token, done())];
    bench.settle_keeping(&drop_all(), "n", &ends).await;
    bench.store.delete(Q, &ids(&["B"])).await.unwrap();
    let before = bench.table().await;
    bench.is("owners n 1 k0
              rc:k1 qt0\\ndt50\\n=A\\nqt0 (expires)
              nodes n {\"name\":\"n\",\"started_ms\":0,\"queues\":{\"q\":1},\"concurrency\":4,\"version\":\"\",\"draining\":false,\"handlers\":[],\"dead_after_ms\":5000}
              token k0
              totals enqueued 3
              totals succeeded 2").await;
    bench.at(100);
    assert_eq!(bench.store.enqueue(&call, Q, &jobs).await.unwrap(), first);
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn enqueue_stamps_callers_ids_so_that_an_older_entry_is_dropped() {
    let bench = Bench::new().await;
    bench.enqueue(&[own("order-7")]).await;
    assert!(bench.table().await.has("r2 [order-7#k0]"));
    // Deleted while its entry lies in the list, and used again: the list holds two entries, of which one counts.
    bench.store.delete(Q, &["order-7".to_owned()]).await.unwrap();
    bench.at(1);
    assert_eq!(bench.enqueue(&[own("order-7")]).await, [Enqueued::Stored { state: State::Ready, due_ms: T0 + 1 }]);
    bench
        .is("b order-7 2r+ t1 t1 [k1000 0 0 - ] | noop {}
              r2 [order-7#k1000 order-7#k0]
              totals enqueued 2")
        .await;
    bench.join("n").await;
    let before = bench.table().await;
    assert_eq!(names(bench.claim("n", 1, 1).await), ["order-7"]);
    bench
        .changed(
            &before,
            "- r2 [order-7#k1000 order-7#k0]
                            - owners n 0 0
                            + owners n 1 k1000
                            + run:n {order-7}
                            + s order-7 rk1000 1 0 0 0 0 t1 n
                            + token k1000",
        )
        .await;
}

#[tokio::test]
async fn enqueue_is_not_ended_by_what_a_lost_record_left_behind() {
    let bench = Bench::new().await;
    let token = bench.run(own("order-7"), "n", 1).await;
    bench.settle("n", "order-7", token, done()).await;
    // Somebody deletes the record by hand: state and index entry stay.
    let bucket = bench.store.keys().bucket(Q, "order-7");
    bench.command::<()>(redis::cmd("DEL").arg(bucket)).await;
    bench.at(1);
    bench.enqueue(&[own("order-7")]).await;
    let table = bench.table().await;
    assert_eq!((table.lines("s "), table.lines("succeeded")), (vec![], vec![]));
    // Neither is it taken for ended, nor does retention remove it in the old one's place.
    bench.store.trim(Q, &drop_all()).await.unwrap();
    assert_eq!(names(bench.claim("n", 2, 1).await), ["order-7"]);
}

#[tokio::test]
async fn a_named_call_belongs_to_one_request_and_stores_its_jobs_once() {
    let bench = Bench::new().await;
    let named = bench.store.name_call("key", "request").await.unwrap().unwrap();
    assert_eq!(bench.store.name_call("key", "request").await.unwrap(), Some(named.clone()));
    assert_eq!(bench.store.name_call("key", "another request").await.unwrap(), None);
    assert_ne!(bench.store.name_call("other key", "another request").await.unwrap(), Some(named.clone()));
    assert!(bench.table().await.lines("idem:key ").iter().all(|line| line.ends_with("(expires)")));
    let job = NewJob { id: named.job_id(0), ..job("A") };
    for _ in 0..2 {
        assert_eq!(bench.store.enqueue(&named.call("0"), Q, std::slice::from_ref(&job)).await.unwrap(), [ready()]);
    }
    assert_eq!(bench.raw::<usize>("LLEN", "r2", &[]).await, 1);
}
