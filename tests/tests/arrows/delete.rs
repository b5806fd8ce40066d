//! Any state → gone.

use std::time::Duration;

use punctual_core::job::{NewJob, UniqueUntil};
use punctual_core::state::State;
use punctual_core::store::nudge::Nudge;
use punctual_core::store::settle::Settled;

use crate::states::{self, bench_with};
use crate::table::{Bench, Q, claimed, done, ids, job, names, own, retry, unique};

#[tokio::test]
async fn delete_removes_a_job_of_any_state_with_every_trace() {
    for state in states::ALL {
        let (bench, token) = bench_with(state).await;
        bench.store.note(Q, &crate::note::both("A", token)).await.unwrap();
        let before = bench.table().await;
        assert_eq!(bench.store.delete(Q, &ids(&["A"])).await.unwrap(), [true], "{state:?}");
        // All that named the job, except an entry in a ready list: it is dropped when its turn comes.
        let gone: Vec<String> = before
            .0
            .iter()
            .filter(|line| line.split([' ', ':']).any(|word| word == "A" || word == "{A}"))
            .map(|line| format!("- {line}"))
            .collect();
        bench.changed(&before, &gone.join("\n")).await;
        let after = bench.table().await;
        let left: Vec<&String> = after.0.iter().filter(|line| line.contains('A')).collect();
        let expected: &[&str] = if matches!(state, State::Ready | State::Cancelled) { &["r2 [A]"] } else { &[] };
        assert_eq!(left, expected, "{state:?}");
    }
}

#[tokio::test]
async fn delete_answers_each_id() {
    let bench = Bench::new().await;
    bench.enqueue(&[job("A"), own("order-7")]).await;
    let asked = ["Z", "A", "order-7", "A"].map(crate::table::name_to_id);
    assert_eq!(bench.store.delete(Q, &asked).await.unwrap(), [false, true, true, false]);
    let before = bench.table().await;
    assert_eq!(bench.store.delete(Q, &asked).await.unwrap(), [false; 4]);
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn a_deleted_running_job_is_gone_for_its_settle_and_its_node_may_leave() {
    let (bench, token) = bench_with(State::Running).await;
    let mut nudges = bench.store.nudges().await.unwrap();
    bench.store.delete(Q, &ids(&["A"])).await.unwrap();
    assert_eq!(crate::table::next(&mut nudges).await, Nudge::Cancel(Q.to_owned()));
    let before = bench.table().await;
    for end in [done(), retry(5)] {
        assert_eq!(bench.settle("n", "A", token, end).await, Settled::Gone);
    }
    assert_eq!(bench.store.note(Q, &crate::note::both("A", token)).await.unwrap(), 0);
    bench.unchanged(&before).await;
    assert!(bench.store.leave(Q, "n", Duration::ZERO).await.unwrap());
}

#[tokio::test]
async fn a_callers_id_used_again_is_nothing_to_the_deleted_jobs_node() {
    let bench = Bench::new().await;
    let old = bench.run(own("order-7"), "n", 1).await;
    bench.store.delete(Q, &["order-7".to_owned()]).await.unwrap();
    bench.at(1);
    bench.enqueue(&[own("order-7")]).await;
    let before = bench.table().await;
    assert_eq!(bench.settle("n", "order-7", old, done()).await, Settled::Gone);
    bench.unchanged(&before).await;
    let (new, jobs) = claimed(bench.claim("n", 2, 1).await);
    assert_eq!(jobs.len(), 1);
    assert_eq!(bench.settle("n", "order-7", old, done()).await, Settled::Stale);
    assert_eq!(bench.settle("n", "order-7", new, done()).await, Settled::Done);
}

#[tokio::test]
async fn delete_takes_only_the_named_job_out_of_shared_keys() {
    let bench = Bench::new().await;
    let own_key = |name: &str| NewJob { ..unique(name, name, UniqueUntil::Finished) };
    bench.enqueue(&["A", "B", "C"].map(own_key)).await;
    bench.join("n").await;
    let (token, _) = claimed(bench.claim("n", 1, 2).await);
    let before = bench.table().await;
    bench.store.delete(Q, &ids(&["A"])).await.unwrap();
    bench
        .changed(
            &before,
            "- b A 2r+ t0 t0 [0 0 0 f A] | noop {}
                            - s A rk0 1 0 0 32 0 t0 n
                            - run:n {A B}
                            + run:n {B}
                            - u:A A",
        )
        .await;
    assert_eq!(bench.settle("n", "B", token, done()).await, Settled::Done);
    assert_eq!(names(bench.claim("n", 2, 9).await), ["C"]);
}
