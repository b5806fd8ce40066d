//! The steps of a job's life, as far as its record proves them.
//!
//! Nothing is stored for the timeline alone: a waiting job becomes ready at its due time, and what a person did between two
//! attempts shows in what came after. Deliberately absent: the wait as held of a job that was released.

use super::inspect::Found;
use crate::codec;
use crate::state::{AttemptOutcome, State};

/// One attempt.
pub(super) struct Run {
    pub(super) number: u32,
    /// `None` while it runs.
    pub(super) outcome: Option<AttemptOutcome>,
    pub(super) due_ms: u64,
    pub(super) started_ms: u64,
    pub(super) ended_ms: Option<u64>,
}

/// Every state with the instant at which it was entered, milliseconds since 1970, in order.
pub(super) fn steps(found: &Found, runs: &[Run]) -> Vec<(State, u64)> {
    let mut steps = Steps(Vec::new());
    if let Ok(record) = &found.record {
        steps.enter(if record.due_ms > record.created_ms { State::Scheduled } else { State::Ready }, record.created_ms);
    }
    let packed = found.packed.as_ref();
    let ended_ms = packed.and_then(|packed| packed.ended_ms);
    let mut crashes = 0;
    for (index, run) in runs.iter().enumerate() {
        steps.wait_in(State::Ready, run.due_ms.min(run.started_ms));
        steps.enter(State::Running, run.started_ms);
        let (Some(outcome), Some(run_ended_ms)) = (run.outcome, run.ended_ms) else { continue };
        crashes += u32::from(outcome == AttemptOutcome::Crashed);
        let next = runs.get(index + 1);
        // Attempts are counted anew only when a person brings back what had ended.
        let brought_back =
            next.map_or(packed.is_some_and(|packed| packed.attempt < run.number), |next| next.number <= run.number);
        let state = match outcome {
            _ if next.is_none() && ended_ms == Some(run_ended_ms) => found.state,
            AttemptOutcome::Succeeded => State::Succeeded,
            AttemptOutcome::Cancelled => State::Cancelled,
            AttemptOutcome::Snoozed => State::Scheduled,
            AttemptOutcome::HandedBack => State::Ready,
            AttemptOutcome::Crashed if crashes == 1 => State::Ready,
            AttemptOutcome::Failed | AttemptOutcome::TimedOut | AttemptOutcome::Panicked if brought_back => State::Dead,
            _ => State::Retrying,
        };
        steps.enter(state, run_ended_ms);
    }
    let first_due_ms = found.record.as_ref().map_or(0, |record| record.due_ms);
    match (found.state, ended_ms) {
        (State::Ready, _) => {
            let due_ms = packed.map_or(0, |packed| packed.due_ms);
            steps.wait_in(State::Ready, if due_ms > 0 { due_ms } else { first_due_ms });
        }
        // Rescheduled by a person: then the record was stamped.
        (State::Scheduled, _) => {
            let stamp_us = codec::stamp(&found.body).and_then(|stamp| stamp.parse::<u64>().ok()).unwrap_or(0);
            steps.wait_in(State::Scheduled, stamp_us / 1000);
        }
        (state, Some(ended_ms)) if steps.0.last() != Some(&(state, ended_ms)) => steps.enter(state, ended_ms),
        _ => {}
    }
    steps.0
}

struct Steps(Vec<(State, u64)>);

impl Steps {
    /// Time never goes back, although Redis' clock may after a failover.
    fn enter(&mut self, state: State, at_ms: u64) {
        let before_ms = self.0.last().map_or(0, |(_, at_ms)| *at_ms);
        self.0.push((state, at_ms.max(before_ms)));
    }

    fn wait_in(&mut self, state: State, at_ms: u64) {
        if self.0.last().is_none_or(|(last, _)| *last != state) {
            self.enter(state, at_ms);
        }
    }
}
