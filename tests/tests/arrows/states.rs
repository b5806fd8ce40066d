//! One job in each state, for arrows that depend on where a job stands.

use punctual_core::job::{Due, Late, NewJob, UniqueUntil};
use punctual_core::state::State;

use crate::table::{Bench, Q, bury, done, id, retry, unique};

/// All of them.
pub const ALL: [State; 8] = State::ALL;

/// A queue with one job in this state, and its claim's token if it ever was claimed. The job is always `A` with the key `k`; the
/// time stands at 100 ms after the beginning.
pub async fn bench_with(state: State) -> (Bench, u64) {
    let bench = Bench::new().await;
    let token = bring(&bench, state).await;
    bench.at(100);
    (bench, token)
}

async fn bring(bench: &Bench, state: State) -> u64 {
    let job = unique("A", "k", UniqueUntil::Finished);
    let (token, end) = match state {
        State::Scheduled => {
            bench.enqueue(&[NewJob { due: Due::In(1000), ..job }]).await;
            return 0;
        }
        State::Ready => {
            bench.enqueue(&[job]).await;
            return 0;
        }
        State::Held => {
            bench.enqueue(&[NewJob { due: Due::In(1), late: Late::Hold, ..job }]).await;
            bench.at(50);
            bench.promote().await;
            return 0;
        }
        State::Cancelled => {
            bench.enqueue(&[job]).await;
            bench.at(50);
            bench.store.cancel(Q, &[id("A")]).await.expect("cancelled");
            return 0;
        }
        State::Running => return bench.run(job, "n", 1).await,
        State::Retrying => (bench.run(job, "n", 1).await, retry(1000)),
        State::Succeeded => (bench.run(job, "n", 1).await, done()),
        State::Dead => (bench.run(job, "n", 1).await, bury("it broke")),
    };
    bench.at(50);
    bench.settle("n", "A", token, end).await;
    token
}
