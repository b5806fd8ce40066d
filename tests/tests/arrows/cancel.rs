//! Scheduled | ready | retrying | held → cancelled by a person; a running job is asked to stop.

use punctual_core::job::{Due, NewJob, Priority, UniqueUntil};
use punctual_core::state::State;
use punctual_core::store::cancel::Acted;

use crate::states::{self, bench_with};
use crate::table::{Bench, Q, band, claimed, done, id, ids, job, names, own, unique};

#[tokio::test]
async fn cancel_ends_what_waits_and_frees_its_key() {
    let cases = [
        (
            State::Scheduled,
            "- scheduled A t1000
                            + s A ck- 0 0 0 0 0 0 - t100 cancelled",
        ),
        (State::Ready, "+ s A ck- 0 0 0 0 0 0 - t100 cancelled"),
        (
            State::Retrying,
            "- retrying A t1050
                           - s A tk0 1 0 0 1 t1050 t0 n
                           + s A ck0 1 0 0 1 t1050 t0 n t100 cancelled",
        ),
        (
            State::Held,
            "- held A t50
                       - s A hk- 0 0 0 0 t1 0 - t50 late
                       + s A ck- 0 0 0 0 t1 0 - t100 cancelled",
        ),
    ];
    for (state, expected) in cases {
        let (bench, _) = bench_with(state).await;
        let before = bench.table().await;
        assert_eq!(bench.store.cancel(Q, &ids(&["A"])).await.unwrap(), [Acted::Done(State::Cancelled)], "{state:?}");
        let common = "- u:k A
                      + cancelled A t100
                      + totals cancelled 1";
        bench.changed(&before, &format!("{expected}\n{common}")).await;
    }
}

#[tokio::test]
async fn cancel_asks_a_running_job_to_stop_and_takes_nothing_from_it() {
    let (bench, token) = bench_with(State::Running).await;
    let mut nudges = bench.store.nudges().await.unwrap();
    let before = bench.table().await;
    for _ in 0..2 {
        assert_eq!(bench.store.cancel(Q, &ids(&["A"])).await.unwrap(), [Acted::Done(State::Running)]);
        bench
            .changed(
                &before,
                "- s A rk0 1 0 0 32 0 t0 n
                                + s A rk0 1 0 0 48 0 t0 n",
            )
            .await;
    }
    assert_eq!(crate::table::next(&mut nudges).await, punctual_core::store::nudge::Nudge::Cancel(Q.to_owned()));
    bench.settle("n", "A", token, done()).await;
    assert!(bench.table().await.has("succeeded A"));
}

#[tokio::test]
async fn cancel_of_an_ended_job_is_refused_and_changes_nothing() {
    for state in states::ALL.into_iter().filter(|state| state.is_final()) {
        let (bench, _) = bench_with(state).await;
        let before = bench.table().await;
        assert_eq!(bench.store.cancel(Q, &ids(&["A"])).await.unwrap(), [Acted::WrongState(state)]);
        bench.unchanged(&before).await;
    }
}

#[tokio::test]
async fn cancel_answers_each_id_and_knows_nothing_of_strangers() {
    let bench = Bench::new().await;
    bench.enqueue(&[job("A"), own("order-7")]).await;
    let asked = ["Z", "A", "order-7", "A"].map(crate::table::name_to_id);
    let answers = bench.store.cancel(Q, &asked).await.unwrap();
    let done = Acted::Done(State::Cancelled);
    assert_eq!(answers, [Acted::Unknown, done.clone(), done, Acted::WrongState(State::Cancelled)]);
    assert_eq!(bench.table().await.lines("totals cancelled"), ["totals cancelled 2"]);
}

#[tokio::test]
async fn a_cancelled_ready_job_is_never_run() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&[job("A"), band("B", Priority::High), job("C"), job("D")]).await;
    // One is fetched already.
    bench.fetch("n").await;
    bench.store.cancel(Q, &ids(&["A", "B", "C"])).await.unwrap();
    assert_eq!(names(bench.claim("n", 1, 9).await), ["D"]);
    assert_eq!(bench.table().await.lines("r"), ["run:n {D}"]);
}

#[tokio::test]
async fn a_cancelled_scheduled_job_is_never_promoted() {
    let bench = Bench::new().await;
    bench.enqueue(&[NewJob { due: Due::In(5), ..job("A") }]).await;
    bench.store.cancel(Q, &ids(&["A"])).await.unwrap();
    bench.at(10);
    let before = bench.table().await;
    bench.promote().await;
    bench.changed(&before, "+ fence k0").await;
}

#[tokio::test]
async fn cancel_xor_run_whichever_comes_first() {
    for cancel_first in [true, false] {
        let bench = Bench::new().await;
        bench.join("n").await;
        bench.enqueue(&[job("A")]).await;
        if cancel_first {
            assert_eq!(bench.store.cancel(Q, &ids(&["A"])).await.unwrap(), [Acted::Done(State::Cancelled)]);
            assert_eq!(claimed(bench.claim("n", 1, 1).await).1.len(), 0);
        } else {
            assert_eq!(claimed(bench.claim("n", 1, 1).await).1.len(), 1);
            assert_eq!(bench.store.cancel(Q, &ids(&["A"])).await.unwrap(), [Acted::Done(State::Running)]);
        }
    }
}

#[tokio::test]
async fn cancel_frees_no_key_that_another_job_has_taken() {
    let bench = Bench::new().await;
    let token = bench.run(unique("A", "k", UniqueUntil::Started), "n", 1).await;
    bench.enqueue(&[unique("B", "k", UniqueUntil::Finished)]).await;
    bench.settle("n", "A", token, crate::table::retry(1000)).await;
    bench.store.cancel(Q, &[id("A")]).await.unwrap();
    assert_eq!(bench.table().await.lines("u:"), ["u:k B"]);
}
