//! New arguments for a job that does not run.

use punctual_core::job::JobSpec;
use punctual_core::state::State;
use punctual_core::store::edit::Edited;
use punctual_core::store::requeue::Requeue;

use crate::states::{self, bench_with};
use crate::table::{Bench, Q, claimed, id, ids, own};

async fn read(bench: &Bench, id: &str) -> (Vec<u8>, JobSpec) {
    let found = bench.store.find(id, Some(Q)).await.expect("an answer").remove(0);
    (found.body, found.record.expect("an answer").spec)
}

fn with_args(spec: &JobSpec, args: &str) -> JobSpec {
    JobSpec { args: args.to_owned(), ..spec.clone() }
}

#[tokio::test]
async fn edit_replaces_the_arguments_and_nothing_else() {
    for state in states::ALL {
        let (bench, _) = bench_with(state).await;
        let (body, spec) = read(&bench, &id("A")).await;
        let before = bench.table().await;
        let answer = bench.store.edit(Q, &id("A"), &body, &with_args(&spec, "[1,2]")).await.unwrap();
        if matches!(state, State::Running | State::Succeeded) {
            assert_eq!(answer, Edited::Refused, "{state:?}");
            bench.unchanged(&before).await;
            continue;
        }
        assert_eq!(answer, Edited::Done, "{state:?}");
        let old = before.lines("b A")[0];
        bench.changed(&before, &format!("- {old}\n+ {}", old.replace("{}", "[1,2]"))).await;
    }
}

#[tokio::test]
async fn edit_of_an_unknown_job_makes_none() {
    let bench = Bench::new().await;
    let spec = own("x").spec;
    assert_eq!(bench.store.edit(Q, &id("A"), b"", &spec).await.unwrap(), Edited::Unknown);
    bench.is("").await;
}

#[tokio::test]
async fn edit_of_a_body_that_somebody_else_changed_is_refused() {
    let (bench, _) = bench_with(State::Scheduled).await;
    let (body, spec) = read(&bench, &id("A")).await;
    assert_eq!(bench.store.edit(Q, &id("A"), &body, &with_args(&spec, "1")).await.unwrap(), Edited::Done);
    let before = bench.table().await;
    assert_eq!(bench.store.edit(Q, &id("A"), &body, &with_args(&spec, "2")).await.unwrap(), Edited::Refused);
    bench.unchanged(&before).await;
    // A requeue changes the stamp, so it counts as a change too.
    let (body, spec) = read(&bench, &id("A")).await;
    bench.store.requeue(Q, Requeue::RunNow, &ids(&["A"])).await.unwrap();
    assert_eq!(bench.store.edit(Q, &id("A"), &body, &with_args(&spec, "3")).await.unwrap(), Edited::Refused);
}

#[tokio::test]
async fn a_claim_between_reading_and_editing_wins() {
    let (bench, _) = bench_with(State::Ready).await;
    let (body, spec) = read(&bench, &id("A")).await;
    bench.join("n").await;
    bench.claim("n", 1, 1).await;
    let before = bench.table().await;
    assert_eq!(bench.store.edit(Q, &id("A"), &body, &with_args(&spec, "1")).await.unwrap(), Edited::Refused);
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn the_next_attempt_runs_with_what_was_edited() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&[own("order-7")]).await;
    let (body, spec) = read(&bench, "order-7").await;
    bench.store.edit(Q, "order-7", &body, &with_args(&spec, "{\"n\":1.0}")).await.unwrap();
    let (_, jobs) = claimed(bench.claim("n", 1, 1).await);
    assert_eq!(punctual_core::codec::decode(&jobs[0].body).unwrap().spec.args, "{\"n\":1.0}");
}
