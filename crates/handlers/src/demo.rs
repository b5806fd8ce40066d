//! `demo.*`: handlers for trying things, and for the tests that need a job to end in a certain way.
//!
//! They are off unless `handlers.demo = true`, because three of them are made to hurt: `demo.spin` keeps a thread of
//! the node busy, `demo.ignore` keeps its slot after it was told to stop, `demo.abort` ends the process.
//! Absent on purpose: any input or output, so that what a benchmark measures is the cluster.

use std::time::{Duration, Instant};

use punctual_core::handler::{JobContext, Outcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// No arguments.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Nothing {}

/// How long it takes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Millis {
    /// Milliseconds.
    pub ms: u64,
}

/// How often it fails.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// So many first attempts fail.
    pub times: u32,
}

/// `demo.noop`: done at once. It allocates nothing, because benchmarks run it by the hundred thousand.
pub async fn noop(_args: Nothing, _job: JobContext) -> Outcome {
    Outcome::Done(None)
}

/// `demo.sleep`: takes so long, and stops early when it is cancelled.
pub async fn sleep(args: Millis, job: JobContext) -> Outcome {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(args.ms)) => Outcome::Done(None),
        () = job.cancelled() => Outcome::retry("cancelled"),
    }
}

/// `demo.fail`: fails the first attempts, then is done.
pub async fn fail(args: Times, job: JobContext) -> Outcome {
    let attempt = job.attempt();
    if attempt <= args.times {
        Outcome::retry(format!("failure {attempt} of {}, as asked", args.times))
    } else {
        Outcome::Done(None)
    }
}

/// `demo.panic`: panics, which is a failed attempt.
///
/// # Panics
/// Always.
pub async fn panic(_args: Nothing, _job: JobContext) -> Outcome {
    panic!("demo.panic was asked to panic")
}

/// `demo.spin`: computes for so long and never yields, as a handler that forgot `spawn_blocking` does.
pub async fn spin(args: Millis, _job: JobContext) -> Outcome {
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(args.ms) {
        std::hint::spin_loop();
    }
    Outcome::Done(None)
}

/// `demo.ignore`: takes so long and does not listen when it is cancelled.
pub async fn ignore(args: Millis, _job: JobContext) -> Outcome {
    tokio::time::sleep(Duration::from_millis(args.ms)).await;
    Outcome::Done(None)
}

/// `demo.abort`: ends the whole process, as a crash in foreign code does; the reaper must find its job.
pub async fn abort(_args: Nothing, _job: JobContext) -> Outcome {
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{attempt, job};

    #[tokio::test]
    async fn sleep_stops_early_when_cancelled_and_ignore_does_not() {
        let (job, cancel) = job();
        cancel.cancel();
        assert_eq!(sleep(Millis { ms: u64::MAX }, job.clone()).await, Outcome::retry("cancelled"));
        assert_eq!(ignore(Millis { ms: 1 }, job.clone()).await, Outcome::Done(None));
        assert_eq!(spin(Millis { ms: 1 }, job).await, Outcome::Done(None));
    }

    #[tokio::test]
    async fn fail_fails_so_many_first_attempts() {
        assert_eq!(fail(Times { times: 2 }, attempt(1)).await, Outcome::retry("failure 1 of 2, as asked"));
        assert_eq!(fail(Times { times: 2 }, attempt(2)).await, Outcome::retry("failure 2 of 2, as asked"));
        assert_eq!(fail(Times { times: 2 }, attempt(3)).await, Outcome::Done(None));
    }

    #[tokio::test]
    #[should_panic(expected = "asked to panic")]
    async fn panic_panics() {
        panic(Nothing {}, attempt(1)).await;
    }
}
