//! The life of a job as a pure state machine: which states there are, which arrows, and what an attempt's end means.
//!
//! All policy is here: how an outcome becomes a move. The scripts only compare the claim's token and carry the move out.
//! Deliberately absent: Redis, clocks, actors.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::RetryPolicy;

/// Where a job stands. The letters are how the scripts write it into the packed state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waits for its due time.
    Scheduled,
    /// Due; waits for a free slot.
    Ready,
    /// Claimed by one node.
    Running,
    /// Failed; waits for its next attempt.
    Retrying,
    /// Ended well.
    Succeeded,
    /// Gave up; kept for a person.
    Dead,
    /// Ended without success, by a person, a policy or its handler.
    Cancelled,
    /// Too late by its policy; waits for a person.
    Held,
}

impl State {
    /// Every state, in the order in which lists show them.
    pub const ALL: [Self; 8] =
        [Self::Scheduled, Self::Ready, Self::Running, Self::Retrying, Self::Succeeded, Self::Dead, Self::Cancelled, Self::Held];

    /// The letter in the packed state.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Scheduled => 'd',
            Self::Ready => 'q',
            Self::Running => 'r',
            Self::Retrying => 't',
            Self::Succeeded => 's',
            Self::Dead => 'x',
            Self::Cancelled => 'c',
            Self::Held => 'h',
        }
    }

    /// The state of a letter, `None` for an unknown one.
    #[must_use]
    pub fn from_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.letter() == letter)
    }

    /// The public word, as in `jobs list --state`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Retrying => "retrying",
            Self::Succeeded => "succeeded",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
            Self::Held => "held",
        }
    }

    /// The state of a word, `None` for an unknown one.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }

    /// Whether nothing more happens to the job by itself.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Dead | Self::Cancelled)
    }

    /// Whether an arrow leads from `self` to `to`; the store makes no other.
    #[must_use]
    pub const fn may_become(self, to: Self) -> bool {
        use State::{Cancelled, Dead, Held, Ready, Retrying, Running, Scheduled, Succeeded};
        match self {
            // Promotion, lateness, cancel, reschedule.
            Scheduled => matches!(to, Ready | Scheduled | Held | Cancelled),
            Ready => matches!(to, Running | Scheduled | Cancelled | Ready),
            // Settle and reap.
            Running => matches!(to, Succeeded | Retrying | Dead | Cancelled | Scheduled | Ready),
            Retrying => matches!(to, Ready | Retrying | Scheduled | Held | Cancelled),
            // Only a person brings these back.
            Dead | Cancelled | Succeeded => matches!(to, Ready | Scheduled),
            Held => matches!(to, Ready | Scheduled | Cancelled),
        }
    }
}

/// How an attempt ended, in the contract's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    /// The handler was done.
    Succeeded,
    /// The handler said retry or dead.
    Failed,
    /// It ran longer than its timeout.
    TimedOut,
    /// The handler panicked.
    Panicked,
    /// The node died under it.
    Crashed,
    /// Cancelled by a person, or discarded by its handler.
    Cancelled,
    /// The handler asked to be run later, without spending an attempt.
    Snoozed,
    /// Given back unfinished, without spending an attempt.
    HandedBack,
}

impl AttemptOutcome {
    const ALL: [Self; 8] = [
        Self::Succeeded,
        Self::Failed,
        Self::TimedOut,
        Self::Panicked,
        Self::Crashed,
        Self::Cancelled,
        Self::Snoozed,
        Self::HandedBack,
    ];

    /// The letter in a stored attempt.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Succeeded => 's',
            Self::Failed => 'f',
            Self::TimedOut => 't',
            Self::Panicked => 'p',
            Self::Crashed => 'k',
            Self::Cancelled => 'c',
            Self::Snoozed => 'z',
            Self::HandedBack => 'b',
        }
    }

    /// The outcome of a letter, `None` for an unknown one.
    #[must_use]
    pub fn from_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.letter() == letter)
    }

    /// The public word, as in logs and metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Panicked => "panicked",
            Self::Crashed => "crashed",
            Self::Cancelled => "cancelled",
            Self::Snoozed => "snoozed",
            Self::HandedBack => "handed_back",
        }
    }
}

/// What came back from running a handler once.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// Done, with the JSON text of its result.
    Done(Option<String>),
    /// Failed; try again by the policy.
    Retry(String),
    /// Failed; try again after this long.
    RetryAfter(Duration, String),
    /// Not now: run again after this long, no attempt spent.
    Snooze(Duration),
    /// Will never work.
    Dead(String),
    /// Not worth doing any more.
    Discard(String),
    /// Longer than its timeout.
    TimedOut(Duration),
    /// Panicked, with the panic's text.
    Panicked(String),
    /// A person cancelled it while it ran.
    Cancelled,
    /// The node stops; the attempt truly ended before its work was done.
    HandedBack,
    /// This binary has no such handler, or cannot read the record's version; wait this long.
    Unroutable(Duration),
    /// Its deadline had passed before it could start.
    Deadline,
    /// The record cannot be read.
    Corrupt(String),
}

/// What the policy needs to know about the attempt that ended.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Attempts spent, the one that ended included; 1 or more.
    pub attempt: u32,
    /// Attempts allowed in all.
    pub max_attempts: u32,
    /// Waits between attempts.
    pub policy: RetryPolicy,
    /// How old the job is, for `until`.
    pub age: Duration,
    /// 0 to 1, chooses within the jitter.
    pub roll: f64,
}

/// Where the job goes: the one thing a settle carries out.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// The state it enters.
    pub to: State,
    /// For scheduled and retrying: how long from now until it is due.
    pub delay: Duration,
    /// How the attempt is recorded; `None` leaves no record (an unknown handler would fill the history).
    pub outcome: Option<AttemptOutcome>,
    /// The error of the attempt, or the reason of the end; at most [`MAX_ERROR_BYTES`].
    pub text: String,
    /// The JSON text of the result.
    pub result: Option<String>,
}

/// Longest error text that is kept, in bytes.
pub const MAX_ERROR_BYTES: usize = 8 * 1024;

/// Cuts a text to `max` bytes on a character boundary.
#[must_use]
pub fn truncate(mut text: String, max: usize) -> String {
    if text.len() > max {
        let mut end = max.saturating_sub('…'.len_utf8());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The whole policy: what becomes of a job whose attempt ended so.
#[must_use]
pub fn after(ended: Ended, limits: &Limits) -> Move {
    let go =
        |to, delay, outcome, text: String, result| Move { to, delay, outcome, text: truncate(text, MAX_ERROR_BYTES), result };
    let zero = Duration::ZERO;
    match ended {
        Ended::Done(result) => go(State::Succeeded, zero, Some(AttemptOutcome::Succeeded), String::new(), result),
        Ended::Retry(error) => retry(None, AttemptOutcome::Failed, error, limits),
        Ended::RetryAfter(wait, error) => retry(Some(wait), AttemptOutcome::Failed, error, limits),
        Ended::TimedOut(limit) => {
            let text = format!("timed out after {}", crate::duration::format(limit));
            retry(None, AttemptOutcome::TimedOut, text, limits)
        }
        Ended::Panicked(text) => retry(None, AttemptOutcome::Panicked, format!("panicked: {text}"), limits),
        Ended::Snooze(wait) => go(State::Scheduled, wait, Some(AttemptOutcome::Snoozed), String::new(), None),
        Ended::Dead(reason) => go(State::Dead, zero, Some(AttemptOutcome::Failed), reason, None),
        Ended::Discard(reason) => go(State::Cancelled, zero, Some(AttemptOutcome::Cancelled), reason, None),
        Ended::Cancelled => go(State::Cancelled, zero, Some(AttemptOutcome::Cancelled), "cancelled".to_owned(), None),
        Ended::HandedBack => go(State::Ready, zero, Some(AttemptOutcome::HandedBack), String::new(), None),
        Ended::Unroutable(wait) => go(State::Scheduled, wait, None, String::new(), None),
        Ended::Deadline => go(State::Dead, zero, None, "deadline".to_owned(), None),
        Ended::Corrupt(reason) => go(State::Dead, zero, Some(AttemptOutcome::Failed), format!("corrupt record: {reason}"), None),
    }
}

fn retry(wait: Option<Duration>, outcome: AttemptOutcome, error: String, limits: &Limits) -> Move {
    let text = truncate(error, MAX_ERROR_BYTES);
    let delay = wait.unwrap_or_else(|| limits.policy.delay(limits.attempt, limits.roll));
    let too_old = limits.policy.until.is_some_and(|until| limits.age.saturating_add(delay) > until);
    let to = if limits.attempt >= limits.max_attempts || too_old { State::Dead } else { State::Retrying };
    Move { to, delay: if to == State::Dead { Duration::ZERO } else { delay }, outcome: Some(outcome), text, result: None }
}

/// The wait of a job that no handler here can run: 1 s doubling to 30 s.
#[must_use]
pub fn unroutable_wait(times_before: u32) -> Duration {
    Duration::from_secs((1_u64 << times_before.min(5)).min(30))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(attempt: u32, max_attempts: u32) -> Limits {
        Limits { attempt, max_attempts, policy: RetryPolicy::default(), age: Duration::ZERO, roll: 0.5 }
    }

    #[test]
    fn every_end_makes_an_arrow_that_leaves_running() {
        let ends = [
            Ended::Done(None),
            Ended::Retry("e".into()),
            Ended::RetryAfter(Duration::from_secs(1), "e".into()),
            Ended::Snooze(Duration::from_secs(1)),
            Ended::Dead("r".into()),
            Ended::Discard("r".into()),
            Ended::TimedOut(Duration::from_secs(1)),
            Ended::Panicked("p".into()),
            Ended::Cancelled,
            Ended::HandedBack,
            Ended::Unroutable(Duration::from_secs(1)),
            Ended::Deadline,
            Ended::Corrupt("c".into()),
        ];
        for end in ends {
            let next = after(end.clone(), &limits(1, 5));
            assert!(State::Running.may_become(next.to), "{end:?} -> {next:?}");
        }
    }

    #[test]
    fn last_attempt_buries_and_earlier_ones_retry() {
        assert_eq!(after(Ended::Retry("e".into()), &limits(4, 5)).to, State::Retrying);
        assert_eq!(after(Ended::Retry("e".into()), &limits(5, 5)).to, State::Dead);
        assert_eq!(after(Ended::Panicked("e".into()), &limits(1, 1)).to, State::Dead);
    }

    #[test]
    fn until_buries_before_the_attempts_are_spent() {
        let old = Limits {
            age: Duration::from_secs(86_400),
            policy: RetryPolicy { until: Some(Duration::from_secs(86_400)), ..RetryPolicy::default() },
            ..limits(1, 50)
        };
        assert_eq!(after(Ended::Retry("e".into()), &old).to, State::Dead);
    }

    #[test]
    fn letters_and_words_are_unique() {
        for state in State::ALL {
            assert_eq!(State::from_letter(state.letter()), Some(state));
            assert_eq!(State::from_word(state.word()), Some(state));
        }
        for outcome in AttemptOutcome::ALL {
            assert_eq!(AttemptOutcome::from_letter(outcome.letter()), Some(outcome));
        }
    }

    #[test]
    fn long_errors_are_cut_on_a_character() {
        let cut = truncate("ä".repeat(10_000), MAX_ERROR_BYTES);
        assert!(cut.len() <= MAX_ERROR_BYTES && cut.ends_with('…'));
    }

    #[test]
    fn unroutable_waits_double_to_half_a_minute() {
        let waits: Vec<u64> = [0, 1, 2, 3, 4, 5, 40].into_iter().map(|n| unroutable_wait(n).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
    }
}
