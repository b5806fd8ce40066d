//! Any state but running → ready | scheduled, by a person: retry, run-now, release, reschedule.

use punctual_core::job::{Due, NewJob, Priority, UniqueUntil};
use punctual_core::state::State;
use punctual_core::store::cancel::Acted;
use punctual_core::store::requeue::Requeue;

use crate::states::{self, bench_with};
use crate::table::{Bench, Q, T0, claimed, done, id, ids, job, moved, names, own, unique};

const LATER: Requeue = Requeue::Reschedule(T0 + 5000);

async fn act(bench: &Bench, action: Requeue) -> Acted {
    bench.store.requeue(Q, action, &ids(&["A"])).await.expect("an answer").remove(0)
}

#[tokio::test]
async fn requeue_is_allowed_from_its_states_and_changes_nothing_in_others() {
    use State::{Cancelled, Dead, Held, Ready, Retrying, Scheduled, Succeeded};
    let cases: [(Requeue, &[State]); 4] = [
        (Requeue::Retry, &[Dead, Cancelled, Succeeded]),
        (Requeue::RunNow, &[Scheduled, Retrying]),
        (Requeue::Release, &[Held]),
        (LATER, &[Scheduled, Retrying, Ready, Held]),
    ];
    for (action, allowed) in cases {
        for state in states::ALL {
            let (bench, _) = bench_with(state).await;
            let before = bench.table().await;
            let answer = act(&bench, action).await;
            if allowed.contains(&state) {
                let target = if action == LATER { Scheduled } else { Ready };
                assert_eq!(answer, Acted::Done(target), "{action:?} {state:?}");
                assert!(state.may_become(target), "{action:?} {state:?}");
                let found = bench.store.find(&id("A"), Some(Q)).await.unwrap().remove(0);
                assert_eq!(found.state, target, "{action:?} {state:?}");
            } else {
                assert_eq!(answer, Acted::WrongState(state), "{action:?}");
                bench.unchanged(&before).await;
            }
        }
    }
}

#[tokio::test]
async fn requeue_knows_nothing_of_strangers() {
    let bench = Bench::new().await;
    bench.enqueue(&[NewJob { due: Due::In(9), ..job("A") }]).await;
    let answers = bench.store.requeue(Q, Requeue::RunNow, &ids(&["Z", "A", "Y"])).await.unwrap();
    assert_eq!(answers, [Acted::Unknown, Acted::Done(State::Ready), Acted::Unknown]);
}

#[tokio::test]
async fn retry_begins_attempts_anew_and_takes_the_key_again() {
    let (bench, _) = bench_with(State::Dead).await;
    let before = bench.table().await;
    assert_eq!(act(&bench, Requeue::Retry).await, Acted::Done(State::Ready));
    bench
        .changed(
            &before,
            "- dead A t50
                            - s A xk0 1 0 0 1 0 t0 n t50 it broke
                            + s A qk0 0 0 0 1 t100 t0 n
                            - b A 2r+ t0 t0 [0 0 0 f k] | noop {}
                            + b A 2r+ t0 t0 [k100000 0 0 f k] | noop {}
                            + r2 [A#k100000]
                            + u:k A",
        )
        .await;
    let (_, jobs) = claimed(bench.claim("n", 2, 1).await);
    assert_eq!((jobs[0].packed.attempt, jobs[0].packed.due_ms), (1, T0 + 100));
}

#[tokio::test]
async fn retry_of_a_succeeded_job_drops_its_result() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    let end = punctual_core::state::Move { result: Some("7".to_owned()), ..done() };
    bench.settle("n", "A", token, end).await;
    let before = bench.table().await;
    bench.at(100);
    assert_eq!(act(&bench, Requeue::Retry).await, Acted::Done(State::Ready));
    bench
        .changed(
            &before,
            "- succeeded A t0
                            - results A 7
                            - s A sk0 1 0 0 0 0 t0 n t0 
                            + s A qk0 0 0 0 0 t100 t0 n
                            - b A 2r- t0 t0 | noop {}
                            + b A 2r+ t0 t0 [k100000 0 0 - ] | noop {}
                            + r2 [A#k100000]",
        )
        .await;
}

#[tokio::test]
async fn retry_whose_key_another_job_holds_is_refused_and_changes_nothing() {
    for state in [State::Dead, State::Cancelled, State::Succeeded] {
        let (bench, _) = bench_with(state).await;
        bench.enqueue(&[unique("B", "k", UniqueUntil::Finished)]).await;
        let before = bench.table().await;
        assert_eq!(act(&bench, Requeue::Retry).await, Acted::Conflict(id("B")));
        bench.unchanged(&before).await;
        // Once the holder has ended, the key is free.
        bench.store.cancel(Q, &ids(&["B"])).await.unwrap();
        assert_eq!(act(&bench, Requeue::Retry).await, Acted::Done(State::Ready));
        assert_eq!(bench.table().await.lines("u:"), ["u:k A"]);
    }
}

#[tokio::test]
async fn retry_steals_a_key_whose_holder_is_no_more() {
    let (bench, _) = bench_with(State::Dead).await;
    bench.raw::<()>("SET", "u:k", &[&id("Z")]).await;
    assert_eq!(act(&bench, Requeue::Retry).await, Acted::Done(State::Ready));
    assert_eq!(bench.table().await.lines("u:"), ["u:k A"]);
}

#[tokio::test]
async fn run_now_makes_a_waiting_job_due_once() {
    let (bench, _) = bench_with(State::Scheduled).await;
    let before = bench.table().await;
    assert_eq!(act(&bench, Requeue::RunNow).await, Acted::Done(State::Ready));
    // The second time it is ready, and stays so once.
    assert_eq!(act(&bench, Requeue::RunNow).await, Acted::WrongState(State::Ready));
    bench
        .changed(
            &before,
            "- scheduled A t1000
                            + s A qk- 0 0 0 0 t100 0 -
                            - b A 2r+ t0 t1000 [0 0 0 f k] | noop {}
                            + b A 2r+ t0 t1000 [k100000 0 0 f k] | noop {}
                            + r2 [A#k100000]",
        )
        .await;
    bench.at(2000);
    assert_eq!(moved(&bench.promote().await).0, 0);
    bench.join("n").await;
    assert_eq!(names(bench.claim("n", 1, 9).await), ["A"]);
}

#[tokio::test]
async fn run_now_of_a_retry_keeps_what_it_has_spent() {
    let (bench, _) = bench_with(State::Retrying).await;
    let before = bench.table().await;
    assert_eq!(act(&bench, Requeue::RunNow).await, Acted::Done(State::Ready));
    bench
        .changed(
            &before,
            "- retrying A t1050
                            - s A tk0 1 0 0 1 t1050 t0 n
                            + s A qk0 1 0 0 1 t100 t0 n
                            - b A 2r+ t0 t0 [0 0 0 f k] | noop {}
                            + b A 2r+ t0 t0 [k100000 0 0 f k] | noop {}
                            + r2 [A#k100000]",
        )
        .await;
}

#[tokio::test]
async fn run_now_of_a_suspect_keeps_it_in_its_lane() {
    let bench = Bench::new().await;
    crate::reap::suspect(&bench, job("A")).await;
    bench.at(100);
    assert_eq!(act(&bench, Requeue::RunNow).await, Acted::Done(State::Ready));
    let table = bench.table().await;
    assert_eq!((table.lines("suspects"), table.lines("r")), (vec!["suspects [A#k100000]"], vec!["r2 [!]"]));
}

#[tokio::test]
async fn release_lets_a_held_job_run() {
    let (bench, _) = bench_with(State::Held).await;
    let before = bench.table().await;
    assert_eq!(act(&bench, Requeue::Release).await, Acted::Done(State::Ready));
    bench
        .changed(
            &before,
            "- held A t50
                            - s A hk- 0 0 0 0 t1 0 - t50 late
                            + s A qk- 0 0 0 0 t100 0 -
                            - b A 2h+ t0 t1 [0 0 0 f k] | noop {}
                            + b A 2h+ t0 t1 [k100000 0 0 f k] | noop {}
                            + r2 [A#k100000]",
        )
        .await;
}

#[tokio::test]
async fn reschedule_of_a_ready_job_leaves_no_double() {
    let (bench, _) = bench_with(State::Ready).await;
    let before = bench.table().await;
    assert_eq!(act(&bench, LATER).await, Acted::Done(State::Scheduled));
    bench
        .changed(
            &before,
            "+ scheduled A t5000
                            + s A dk- 0 0 0 0 t5000 0 -
                            - b A 2r+ t0 t0 [0 0 0 f k] | noop {}
                            + b A 2r+ t0 t0 [k100000 0 0 f k] | noop {}",
        )
        .await;
    // The old entry is dropped while the job waits …
    bench.join("n").await;
    bench.raw::<()>("LPUSH", "r2", &[&id("A")]).await;
    assert_eq!(names(bench.claim("n", 1, 1).await), [""; 0]);
    // … and when it is ready again.
    bench.raw::<()>("LPUSH", "r2", &[&id("A")]).await;
    bench.at(5000);
    bench.promote().await;
    assert_eq!(bench.table().await.lines("r2"), ["r2 [A#k100000 A]"]);
    assert_eq!(names(bench.claim("n", 2, 9).await), ["A"]);
    assert_eq!(names(bench.claim("n", 3, 9).await), [""; 0]);
}

#[tokio::test]
async fn reschedule_moves_a_waiting_job_in_both_directions() {
    let (bench, _) = bench_with(State::Scheduled).await;
    for due in [5000, 200, 900] {
        assert_eq!(act(&bench, Requeue::Reschedule(T0 + due)).await, Acted::Done(State::Scheduled));
        assert_eq!(bench.table().await.lines("scheduled"), [format!("scheduled A t{due}")]);
    }
    bench.at(899);
    assert_eq!(moved(&bench.promote().await).0, 0);
    bench.at(900);
    assert_eq!(moved(&bench.promote().await).0, 1);
}

#[tokio::test]
async fn reschedule_to_the_past_makes_the_job_ready_and_says_so() {
    for due in [T0 + 100, T0, 1] {
        let (bench, _) = bench_with(State::Scheduled).await;
        assert_eq!(act(&bench, Requeue::Reschedule(due)).await, Acted::Done(State::Ready), "{due}");
        assert_eq!(bench.table().await.lines("r2"), ["r2 [A#k100000]"]);
    }
}

#[tokio::test]
async fn requeue_twice_in_a_microsecond_makes_two_stamps() {
    let (bench, _) = bench_with(State::Ready).await;
    act(&bench, Requeue::Reschedule(1)).await;
    act(&bench, Requeue::Reschedule(1)).await;
    // And so when the time has gone back.
    bench.at(50);
    act(&bench, Requeue::Reschedule(1)).await;
    assert_eq!(bench.table().await.lines("r2"), ["r2 [A#k100002 A#k100001 A#k100000 A]"]);
    bench.join("n").await;
    assert_eq!(names(bench.claim("n", 1, 9).await), ["A"]);
    assert_eq!(bench.table().await.lines("r"), ["run:n {A}"]);
}

#[tokio::test]
async fn requeue_stamps_callers_ids_anew_and_keeps_their_header() {
    let bench = Bench::new().await;
    let job = NewJob { grace_ms: 7, due: Due::In(1000), priority: Priority::Critical, ..own("order-7") };
    bench.enqueue(&[job]).await;
    bench.at(3);
    bench.store.requeue(Q, Requeue::RunNow, &["order-7".to_owned()]).await.unwrap();
    bench
        .is("b order-7 0r+ t0 t1000 [k3000 7 0 - ] | noop {}
              s order-7 qk- 0 0 0 0 t3 0 -
              r0 [order-7#k3000]
              r2 [!]
              totals enqueued 1")
        .await;
}

#[tokio::test]
async fn a_cancelled_ready_job_that_is_retried_runs_once() {
    let (bench, _) = bench_with(State::Cancelled).await;
    assert_eq!(bench.table().await.lines("r2"), ["r2 [A]"]);
    act(&bench, Requeue::Retry).await;
    bench.join("n").await;
    let (token, jobs) = claimed(bench.claim("n", 1, 9).await);
    assert_eq!(jobs.len(), 1);
    bench.settle("n", "A", token, done()).await;
    assert_eq!(names(bench.claim("n", 2, 9).await), [""; 0]);
}
