//! Running → wherever Rust chose.

use std::time::Duration;

use punctual_core::config::Retention;
use punctual_core::job::{NewJob, Priority, UniqueUntil};
use punctual_core::state::{AttemptOutcome, Ended, Limits, Move, State, after};
use punctual_core::store::settle::Settled;

use crate::table::{Bench, Q, band, bury, claimed, done, drop_all, id, ids, job, keep, names, own, retry, to, unique};

fn snooze(delay_ms: u64) -> Move {
    Move { delay: Duration::from_millis(delay_ms), ..to(State::Scheduled, AttemptOutcome::Snoozed) }
}

fn hand_back() -> Move {
    to(State::Ready, AttemptOutcome::HandedBack)
}

fn unroutable(delay_ms: u64) -> Move {
    Move { outcome: None, ..snooze(delay_ms) }
}

#[tokio::test]
async fn settle_keeps_a_succeeded_job_with_its_result() {
    let bench = Bench::new().await;
    let token = bench.run(unique("A", "k", UniqueUntil::Finished), "n", 1).await;
    let before = bench.table().await;
    bench.at(30);
    let end = Move { result: Some("{\"sum\":7}".to_owned()), ..done() };
    assert_eq!(bench.settle("n", "A", token, end).await, Settled::Done);
    bench
        .changed(
            &before,
            "- run:n {A}
                            - s A rk0 1 0 0 32 0 t0 n
                            + s A sk0 1 0 0 0 0 t0 n t30 
                            + succeeded A t30
                            + results A {\"sum\":7}
                            + totals succeeded 1
                            - u:k A",
        )
        .await;
}

#[tokio::test]
async fn settle_leaves_no_trace_of_an_ended_job_that_is_not_kept() {
    let ends =
        [done(), bury("it broke"), to(State::Cancelled, AttemptOutcome::Cancelled), Move { outcome: None, ..bury("deadline") }];
    let half = [Retention { succeeded_max: 0, dead_max: 0, ..keep() }, drop_all()];
    for (end, retention) in ends.iter().flat_map(|end| half.iter().map(move |retention| (end, retention))) {
        let bench = Bench::new().await;
        let token = bench.run(unique("A", "k", UniqueUntil::Finished), "n", 1).await;
        bench.store.note(Q, &crate::note::both("A", token)).await.unwrap();
        let end = Move { result: Some("1".to_owned()), ..end.clone() };
        assert_eq!(bench.settle_keeping(retention, "n", &[("A", token, end.clone())]).await, [Settled::Done]);
        let left: Vec<String> = bench.table().await.0.into_iter().filter(|line| !line.starts_with("nodes ")).collect();
        let word = end.to.word();
        assert_eq!(
            left,
            ["owners n 1 k0", "token k0", &format!("totals {word} 1"), "totals enqueued 1"]
                .map(String::from)
                .into_iter()
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>(),
            "{end:?}"
        );
    }
}

#[tokio::test]
async fn settle_sends_a_failure_to_retrying_with_its_error_in_the_history() {
    let bench = Bench::new().await;
    let token = bench.run(unique("A", "k", UniqueUntil::Finished), "n", 1).await;
    let before = bench.table().await;
    bench.at(30);
    assert_eq!(bench.settle("n", "A", token, retry(5000)).await, Settled::Done);
    bench
        .changed(
            &before,
            "- run:n {A}
                            - s A rk0 1 0 0 32 0 t0 n
                            + s A tk0 1 0 0 1 t5030 t0 n
                            + retrying A t5030
                            + h:A [1 f k0 0 t0 t30 n it broke]",
        )
        .await;
}

#[tokio::test]
async fn settle_buries_with_reason_and_history_and_frees_the_key() {
    let bench = Bench::new().await;
    let token = bench.run(unique("A", "k", UniqueUntil::Finished), "n", 1).await;
    let before = bench.table().await;
    bench.at(30);
    assert_eq!(bench.settle("n", "A", token, bury("no such order")).await, Settled::Done);
    bench
        .changed(
            &before,
            "- run:n {A}
                            - s A rk0 1 0 0 32 0 t0 n
                            + s A xk0 1 0 0 1 0 t0 n t30 no such order
                            + dead A t30
                            + h:A [1 f k0 0 t0 t30 n no such order]
                            + totals dead 1
                            - u:k A",
        )
        .await;
}

#[tokio::test]
async fn settle_keeps_the_whole_error_in_the_history_and_a_short_reason_in_the_state() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    let error = "ä".repeat(4000);
    bench.settle("n", "A", token, bury(&error)).await;
    let view = bench.store.show(&id("A"), Some(Q)).await.unwrap().unwrap();
    assert_eq!(view.last_error, Some(error));
    assert!(view.reason.unwrap().starts_with(&"ä".repeat(99)));
    assert!(bench.raw::<String>("HGET", "s", &[&id("A")]).await.len() < 300);
}

#[tokio::test]
async fn settle_snoozes_without_spending_an_attempt() {
    let bench = Bench::new().await;
    let token = bench.run(unique("A", "k", UniqueUntil::Finished), "n", 1).await;
    let before = bench.table().await;
    bench.at(30);
    assert_eq!(bench.settle("n", "A", token, snooze(1000)).await, Settled::Done);
    bench
        .changed(
            &before,
            "- run:n {A}
                            - s A rk0 1 0 0 32 0 t0 n
                            + s A dk0 0 0 0 1 t1030 t0 n
                            + scheduled A t1030
                            + h:A [1 z k0 0 t0 t30 n ]",
        )
        .await;
}

#[tokio::test]
async fn settle_sends_an_unroutable_job_away_without_history_and_counts_how_often() {
    let bench = Bench::new().await;
    let mut token = bench.run(job("A"), "n", 1).await;
    for times in 1..=3_u64 {
        let before = bench.table().await;
        assert_eq!(bench.settle("n", "A", token, unroutable(10)).await, Settled::Done);
        let now = (times - 1) * 10;
        let (was, due) = (times - 1, now + 10);
        let first = if was == 0 { "0".to_owned() } else { format!("t{now}") };
        let stamp = now * 1000;
        bench
            .changed(
                &before,
                &format!(
                    "- run:n {{A}}
                            - s A rk{stamp} 1 0 {was} 0 {first} t{now} n
                            + s A dk{stamp} 0 0 {times} 0 t{due} t{now} n
                            + scheduled A t{due}"
                ),
            )
            .await;
        bench.at(due);
        bench.promote().await;
        (token, _) = claimed(bench.claim("n", times + 1, 1).await);
    }
    // Any other end begins the count anew.
    bench.settle("n", "A", token, retry(10)).await;
    assert!(bench.table().await.has("s A tk30000 1 0 0 1 "));
}

#[tokio::test]
async fn settle_hands_back_to_the_front_without_spending_an_attempt_and_keeps_the_key() {
    let bench = Bench::new().await;
    let token = bench.run(unique("A", "k", UniqueUntil::Finished), "n", 1).await;
    bench.enqueue(&[job("B"), job("C")]).await;
    let before = bench.table().await;
    bench.at(30);
    assert_eq!(bench.settle("n", "A", token, hand_back()).await, Settled::Done);
    bench
        .changed(
            &before,
            "- run:n {A}
                            - r2 [C B]
                            + r2 [C B A]
                            - s A rk0 1 0 0 32 0 t0 n
                            + s A qk0 0 0 0 1 0 t0 n
                            + h:A [1 b k0 0 t0 t30 n ]",
        )
        .await;
    assert_eq!(names(bench.claim("n", 2, 9).await), ["A", "B", "C"]);
}

#[tokio::test]
async fn settle_hands_back_into_the_jobs_own_band_and_rings() {
    let bench = Bench::new().await;
    let low = NewJob { priority: Priority::Low, ..own("order-7") };
    let token = bench.run(low, "n", 1).await;
    bench.enqueue(&[band("B", Priority::Low)]).await;
    bench.raw::<()>("DEL", "r2", &[]).await;
    bench.settle("n", "order-7", token, hand_back()).await;
    let table = bench.table().await;
    assert_eq!(table.lines("r"), ["r2 [!]", "r3 [B order-7#k0]"]);
}

#[tokio::test]
async fn settle_ends_a_job_as_cancelled() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    let before = bench.table().await;
    let end = Move { text: "not needed".to_owned(), ..to(State::Cancelled, AttemptOutcome::Cancelled) };
    assert_eq!(bench.settle("n", "A", token, end).await, Settled::Done);
    bench
        .changed(
            &before,
            "- run:n {A}
                            - s A rk0 1 0 0 0 0 t0 n
                            + s A ck0 1 0 0 1 0 t0 n t0 not needed
                            + cancelled A t0
                            + h:A [1 c k0 0 t0 t0 n not needed]
                            + totals cancelled 1",
        )
        .await;
}

#[tokio::test]
async fn settle_carries_out_every_end_that_the_state_machine_knows() {
    let second = Duration::from_secs(1);
    let limits = |attempt, max_attempts| Limits {
        attempt,
        max_attempts,
        policy: punctual_core::backoff::RetryPolicy::default(),
        age: Duration::ZERO,
        roll: 0.5,
    };
    let cases = [
        (Ended::Done(None), "succeeded", 1),
        (Ended::Retry("e".into()), "retrying", 1),
        (Ended::RetryAfter(second, "e".into()), "retrying", 1),
        (Ended::Snooze(second), "scheduled", 0),
        (Ended::Dead("r".into()), "dead", 1),
        (Ended::Discard("r".into()), "cancelled", 1),
        (Ended::TimedOut(second), "retrying", 1),
        (Ended::Panicked("p".into()), "retrying", 1),
        (Ended::Cancelled, "cancelled", 1),
        (Ended::HandedBack, "ready", 0),
        (Ended::Unroutable(second), "scheduled", 0),
        (Ended::Deadline, "dead", 0),
        (Ended::Corrupt("c".into()), "dead", 1),
    ];
    for (ended, word, attempt) in cases {
        for max_attempts in [1, 5] {
            let bench = Bench::new().await;
            let token = bench.run(job("A"), "n", 1).await;
            let end = after(ended.clone(), &limits(1, max_attempts));
            assert_eq!(bench.settle("n", "A", token, end.clone()).await, Settled::Done, "{ended:?}");
            let word = if word == "retrying" && max_attempts == 1 { "dead" } else { word };
            let view = bench.store.show(&id("A"), Some(Q)).await.unwrap().unwrap();
            assert_eq!((view.state.word(), view.attempt), (word, attempt), "{ended:?}");
            let told: Vec<&str> = view.attempts.iter().map(|one| one.outcome.as_str()).collect();
            assert_eq!(told, end.outcome.map(AttemptOutcome::word).into_iter().collect::<Vec<_>>(), "{ended:?}");
            assert_eq!(bench.table().await.lines("run:"), [""; 0], "{ended:?}");
        }
    }
}

#[tokio::test]
async fn settle_under_a_stale_token_changes_nothing() {
    let bench = Bench::new().await;
    let old = bench.run(unique("A", "k", UniqueUntil::Finished), "n", 1).await;
    bench.settle("n", "A", old, hand_back()).await;
    bench.at(1);
    let (new, _) = claimed(bench.claim("n", 2, 1).await);
    let before = bench.table().await;
    for end in [done(), retry(5), bury("x"), snooze(5), hand_back(), unroutable(5)] {
        for token in [old, old + 1, new - 1, new + 1, 0] {
            assert_eq!(bench.settle("n", "A", token, end.clone()).await, Settled::Stale, "{token} {end:?}");
        }
    }
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn settle_by_another_incarnation_changes_nothing_even_with_the_token() {
    // A failover may forget the highest token and give it once more: token and incarnation are compared together.
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    bench.join("other").await;
    let before = bench.table().await;
    assert_eq!(bench.settle("other", "A", token, done()).await, Settled::Stale);
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn settle_answers_a_resend_as_done_before_and_changes_nothing() {
    for end in [done(), retry(5000), bury("x"), snooze(5), hand_back(), unroutable(5)] {
        let bench = Bench::new().await;
        let token = bench.run(unique("A", "k", UniqueUntil::Finished), "n", 1).await;
        assert_eq!(bench.settle("n", "A", token, end.clone()).await, Settled::Done);
        let before = bench.table().await;
        bench.at(3);
        assert_eq!(bench.settle("n", "A", token, end.clone()).await, Settled::DoneBefore, "{end:?}");
        bench.unchanged(&before).await;
    }
}

#[tokio::test]
async fn settle_of_a_job_that_is_gone_makes_no_ghost() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    bench.settle_keeping(&drop_all(), "n", &[("A", token, done())]).await;
    let before = bench.table().await;
    for end in [done(), retry(5), bury("x"), snooze(5), hand_back()] {
        assert_eq!(bench.settle("n", "A", token, end).await, Settled::Gone);
        assert_eq!(bench.settle("n", "Z", 1, done()).await, Settled::Gone);
    }
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn settle_of_a_lost_record_clears_what_is_left_of_it() {
    for end in [done(), retry(5), bury("x"), snooze(5), hand_back(), unroutable(5)] {
        let bench = Bench::new().await;
        let token = bench.run(job("A"), "n", 1).await;
        bench.store.note(Q, &crate::note::both("A", token)).await.unwrap();
        // The record is deleted by hand while the handler runs.
        let bucket = bench.store.keys().bucket(Q, &id("A"));
        bench.command::<()>(redis::cmd("DEL").arg(bucket)).await;
        assert_eq!(bench.settle("n", "A", token, end.clone()).await, Settled::Gone, "{end:?}");
        bench.is("nodes n {\"name\":\"n\",\"started_ms\":0,\"queues\":{\"q\":1},\"concurrency\":4,\"version\":\"\",\"draining\":false,\"handlers\":[],\"dead_after_ms\":5000}
                  owners n 1 k0
                  token k0
                  totals enqueued 1").await;
    }
}

#[tokio::test]
async fn retention_clears_what_is_left_of_a_success_whose_record_was_lost() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    let bucket = bench.store.keys().bucket(Q, &id("A"));
    bench.command::<()>(redis::cmd("DEL").arg(bucket)).await;
    assert_eq!(bench.settle("n", "A", token, done()).await, Settled::Done);
    assert_eq!(bench.store.trim(Q, &drop_all()).await.unwrap(), 1);
    let table = bench.table().await;
    assert_eq!((table.lines("s "), table.lines("succeeded")), (vec![], vec![]));
}

#[tokio::test]
async fn settle_of_a_lost_state_lets_go_of_the_id() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    bench.raw::<()>("DEL", "s", &[]).await;
    assert_eq!(bench.settle("n", "A", token, done()).await, Settled::Gone);
    // Else the node could never leave.
    assert!(bench.store.leave(Q, "n", Duration::ZERO).await.unwrap());
}

#[tokio::test]
async fn settle_answers_each_of_a_mixed_batch_by_itself() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&["A", "B", "C", "D", "E", "F", "G"].map(job)).await;
    let (token, _) = claimed(bench.claim("n", 1, 7).await);
    bench.settle("n", "F", token, done()).await;
    let before = bench.table().await;
    bench.at(30);
    let ends = [
        ("A", token, done()),
        ("B", token, retry(100)),
        ("C", token + 1, done()),
        ("D", token, bury("x")),
        ("F", token, done()),
        ("Z", token, done()),
        ("E", token, hand_back()),
        ("G", token, snooze(9)),
    ];
    let (now_ms, answers) = {
        let ends: Vec<_> = ends
            .iter()
            .map(|(name, token, to)| punctual_core::store::settle::Settlement { id: id(name), token: *token, to: to.clone() })
            .collect();
        bench.store.settle(Q, "n", &keep(), &ends).await.unwrap()
    };
    assert_eq!(now_ms, crate::table::T0 + 30);
    use Settled::{Done, DoneBefore, Gone, Stale};
    assert_eq!(answers, [Done, Done, Stale, Done, DoneBefore, Gone, Done, Done]);
    bench
        .changed(
            &before,
            "- run:n {A B C D E G}
                            + run:n {C}
                            - s A rk0 1 0 0 0 0 t0 n
                            + s A sk0 1 0 0 0 0 t0 n t30 
                            + succeeded A t30
                            - totals succeeded 1
                            + totals succeeded 2
                            - s B rk0 1 0 0 0 0 t0 n
                            + s B tk0 1 0 0 1 t130 t0 n
                            + retrying B t130
                            + h:B [1 f k0 0 t0 t30 n it broke]
                            - s D rk0 1 0 0 0 0 t0 n
                            + s D xk0 1 0 0 1 0 t0 n t30 x
                            + dead D t30
                            + h:D [1 f k0 0 t0 t30 n x]
                            + totals dead 1
                            - s E rk0 1 0 0 0 0 t0 n
                            + s E qk0 0 0 0 1 0 t0 n
                            + r2 [E]
                            + h:E [1 b k0 0 t0 t30 n ]
                            - s G rk0 1 0 0 0 0 t0 n
                            + s G dk0 0 0 0 1 t39 t0 n
                            + scheduled G t39
                            + h:G [1 z k0 0 t0 t30 n ]",
        )
        .await;
}

#[tokio::test]
async fn settle_moves_a_full_batch_in_one_call() {
    let bench = Bench::new().await;
    bench.join("n").await;
    let jobs: Vec<NewJob> = (0..500).map(|n| job(&format!("{n:03}Z"))).collect();
    bench.enqueue(&jobs).await;
    let (token, _) = claimed(bench.claim("n", 1, 500).await);
    let all: Vec<String> = jobs.iter().map(|job| job.id.clone()).collect();
    let ends: Vec<(&str, u64, Move)> = all.iter().map(|id| (id.as_str(), token, retry(7))).collect();
    assert_eq!(bench.settle_keeping(&keep(), "n", &ends).await, vec![Settled::Done; 500]);
    assert_eq!(bench.raw::<usize>("ZCARD", "retrying", &[]).await, 500);
}

#[tokio::test]
async fn settle_records_a_success_only_after_a_history_has_begun() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    bench.settle("n", "A", token, retry(0)).await;
    bench.promote().await;
    bench.at(5);
    let (token, _) = claimed(bench.claim("n", 2, 1).await);
    bench.at(9);
    bench.settle("n", "A", token, done()).await;
    assert_eq!(bench.table().await.lines("h:A"), ["h:A [1 f k0 0 t0 t0 n it broke 2 s k5000 t0 t5 t9 n ]"]);
}

#[tokio::test]
async fn settle_keeps_the_last_hundred_attempts() {
    let bench = Bench::new().await;
    let mut token = bench.run(job("A"), "n", 1).await;
    for number in 2..=120 {
        bench.settle("n", "A", token, retry(0)).await;
        bench.promote().await;
        (token, _) = claimed(bench.claim("n", number, 1).await);
    }
    let attempts = bench.store.show(&id("A"), Some(Q)).await.unwrap().unwrap().attempts;
    let numbers: Vec<u32> = attempts.iter().map(|one| one.number).collect();
    assert_eq!(numbers, (20..=120).collect::<Vec<_>>());
}

#[tokio::test]
async fn retention_by_count_removes_the_oldest_with_every_trace() {
    let bench = Bench::new().await;
    let two = Retention { succeeded_max: 2, dead_max: 2, ..keep() };
    bench.join("n").await;
    for (number, name) in (1..).zip(["A", "B", "C", "D"]) {
        bench.at(number);
        bench.enqueue(&[job(name)]).await;
        let (token, _) = claimed(bench.claim("n", number, 1).await);
        bench.store.note(Q, &crate::note::both(name, token)).await.unwrap();
        let end = if number % 2 == 0 { bury("x") } else { Move { result: Some("1".to_owned()), ..done() } };
        bench.settle_keeping(&two, "n", &[(name, token, end)]).await;
    }
    let all = bench.table().await;
    assert_eq!(all.lines("succeeded"), ["succeeded A t1", "succeeded C t3"]);
    assert_eq!(all.lines("dead"), ["dead B t2", "dead D t4"]);
    for (number, name) in (5..).zip(["E", "F"]) {
        bench.at(number);
        bench.enqueue(&[job(name)]).await;
        let (token, _) = claimed(bench.claim("n", number, 1).await);
        let end = if number % 2 == 0 { bury("x") } else { done() };
        bench.settle_keeping(&two, "n", &[(name, token, end)]).await;
    }
    let table = bench.table().await;
    assert_eq!(table.lines("succeeded"), ["succeeded C t3", "succeeded E t5"]);
    assert_eq!(table.lines("dead"), ["dead D t4", "dead F t6"]);
    for gone in ["b A", "s A", "results A", "progress A", "h:A", "l:A", "b B", "s B", "progress B", "h:B", "l:B"] {
        assert!(all.has(gone) != ["results B", "h:A"].contains(&gone), "{gone} before");
        assert!(!table.has(gone), "{gone} stayed");
    }
}

#[tokio::test]
async fn retention_by_age_counts_from_the_end_of_the_job() {
    let bench = Bench::new().await;
    let short = Retention { succeeded: Duration::from_millis(100), ..keep() };
    bench.join("n").await;
    bench.enqueue(&["A", "B", "C"].map(job)).await;
    let (token, _) = claimed(bench.claim("n", 1, 3).await);
    bench.settle_keeping(&short, "n", &[("A", token, done())]).await;
    bench.at(99);
    bench.settle_keeping(&short, "n", &[("B", token, done())]).await;
    assert_eq!(bench.table().await.lines("succeeded"), ["succeeded A t0", "succeeded B t99"]);
    bench.at(100);
    bench.settle_keeping(&short, "n", &[("C", token, done())]).await;
    assert_eq!(bench.table().await.lines("succeeded"), ["succeeded B t99", "succeeded C t100"]);
}

#[tokio::test]
async fn cancelled_jobs_are_kept_as_long_as_succeeded_ones() {
    let only_dead = Retention { succeeded: Duration::ZERO, succeeded_max: 0, ..keep() };
    let only_succeeded = Retention { dead: Duration::ZERO, dead_max: 0, ..keep() };
    for (retention, kept) in [(only_dead, false), (only_succeeded, true)] {
        let bench = Bench::new().await;
        let token = bench.run(job("A"), "n", 1).await;
        bench.settle_keeping(&retention, "n", &[("A", token, to(State::Cancelled, AttemptOutcome::Cancelled))]).await;
        assert_eq!(bench.table().await.has("cancelled A"), kept);
        bench.enqueue(&[job("B")]).await;
        bench.store.cancel(Q, &ids(&["B"])).await.unwrap();
        bench.store.trim(Q, &retention).await.unwrap();
        assert_eq!(bench.table().await.has("cancelled B"), kept);
    }
}

#[tokio::test]
async fn settle_frees_no_key_that_another_job_has_taken() {
    let bench = Bench::new().await;
    let token = bench.run(unique("A", "k", UniqueUntil::Started), "n", 1).await;
    bench.enqueue(&[unique("B", "k", UniqueUntil::Finished)]).await;
    bench.settle("n", "A", token, bury("x")).await;
    assert_eq!(bench.table().await.lines("u:"), ["u:k B"]);
}

#[tokio::test]
async fn settle_obeys_a_cancel_that_came_while_the_job_ran() {
    // Else the person was told that the job is being stopped, and it goes on with its next attempt.
    for (end, letter) in [(retry(5), 'f'), (snooze(5), 'z'), (hand_back(), 'b')] {
        let bench = Bench::new().await;
        let token = bench.run(unique("A", "k", UniqueUntil::Finished), "n", 1).await;
        bench.store.cancel(Q, &ids(&["A"])).await.unwrap();
        let before = bench.table().await;
        bench.at(3);
        let text = end.text.clone();
        assert_eq!(bench.settle("n", "A", token, end).await, Settled::Done);
        bench
            .changed(
                &before,
                &format!(
                    "- run:n {{A}}
                            - s A rk0 1 0 0 48 0 t0 n
                            + s A ck0 1 0 0 1 0 t0 n t3 cancelled
                            + cancelled A t3
                            + h:A [1 {letter} k0 0 t0 t3 n {text}]
                            + totals cancelled 1
                            - u:k A"
                ),
            )
            .await;
    }
    // What has ended has ended.
    for (end, state) in [(done(), "succeeded"), (bury("x"), "dead")] {
        let bench = Bench::new().await;
        let token = bench.run(job("A"), "n", 1).await;
        bench.store.cancel(Q, &ids(&["A"])).await.unwrap();
        bench.settle("n", "A", token, end).await;
        assert!(bench.table().await.has(&format!("{state} A")));
    }
}
