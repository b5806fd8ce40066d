//! The packed state of a job and a recorded attempt: short texts that the scripts write and compare by position.

use crate::state::{AttemptOutcome, State};

/// A job's packed state, read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Where it stands.
    pub state: State,
    /// Token of the last claim, 0 when it was never claimed.
    pub token: u64,
    /// Attempts spent, the running one included.
    pub attempt: u32,
    /// Deliveries that ended with the death of their node.
    pub crashes: u32,
    /// Times in a row that no node here knew its handler.
    pub handbacks: u32,
    /// Bits as in `prelude.lua`.
    pub flags: u32,
    /// When its current or next attempt is due; 0 means the body's own due time.
    pub due_ms: u64,
    /// When its last attempt was claimed.
    pub start_ms: u64,
    /// Which incarnation claimed it last.
    pub node: Option<String>,
    /// When it entered an ended state, or was held.
    pub ended_ms: Option<u64>,
    /// Why it ended, at most 200 bytes.
    pub reason: String,
}

/// Set when attempts are recorded in the history.
pub const FLAG_HISTORY: u32 = 1;
/// Set when it comes through the suspects' lane.
pub const FLAG_SUSPECT: u32 = 8;
/// Set when a person asked to cancel it while it runs.
pub const FLAG_CANCEL: u32 = 16;

impl Packed {
    /// Reads a packed state; `None` for anything else.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes);
        let mut letters = text.chars();
        let state = State::from_letter(letters.next()?)?;
        let mut parts = letters.as_str().splitn(10, ' ');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let token = number()?;
        let small = |value: u64| u32::try_from(value).ok();
        let (attempt, crashes, handbacks, flags) = (small(number()?)?, small(number()?)?, small(number()?)?, small(number()?)?);
        let (due_ms, start_ms) = (number()?, number()?);
        let node = parts.next()?;
        let ended_ms = parts.next().and_then(|part| part.split(' ').next()?.parse().ok());
        let reason = text.splitn(10, ' ').nth(9).unwrap_or("").to_owned();
        Some(Self {
            state,
            token,
            attempt,
            crashes,
            handbacks,
            flags,
            due_ms,
            start_ms,
            node: (node != "-").then(|| node.to_owned()),
            ended_ms,
            reason,
        })
    }
}

/// One attempt of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Its number.
    pub number: u32,
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// Its claim's token.
    pub claim: u64,
    /// When it was due; 0 means the body's own due time.
    pub due_ms: u64,
    /// When it was claimed.
    pub started_ms: u64,
    /// When it ended.
    pub ended_ms: u64,
    /// Which incarnation ran it.
    pub node: String,
    /// What went wrong, possibly empty.
    pub error: String,
}

impl Attempt {
    /// Reads a recorded attempt; `None` for anything else.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes);
        let mut parts = text.splitn(8, ' ');
        let number = parts.next()?.parse().ok()?;
        let outcome = AttemptOutcome::from_letter(parts.next()?.chars().next()?)?;
        let mut stamp = || parts.next()?.parse::<u64>().ok();
        let (claim, due_ms, started_ms, ended_ms) = (stamp()?, stamp()?, stamp()?, stamp()?);
        let node = parts.next()?.to_owned();
        Some(Self { number, outcome, claim, due_ms, started_ms, ended_ms, node, error: parts.next().unwrap_or("").to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_and_ended_states_read_back() {
        let running = Packed::parse(b"r1764544196123456 2 1 0 33 1764544196000 1764544196123 web-1-abc").unwrap();
        assert_eq!(
            (running.state, running.token, running.attempt, running.crashes),
            (State::Running, 1_764_544_196_123_456, 2, 1)
        );
        assert_eq!((running.node.as_deref(), running.ended_ms, running.reason.as_str()), (Some("web-1-abc"), None, ""));
        let dead = Packed::parse(b"x1764544196123456 5 0 0 1 7 8 n 1764544199999 it broke: twice").unwrap();
        assert_eq!((dead.ended_ms, dead.reason.as_str()), (Some(1_764_544_199_999), "it broke: twice"));
        let fresh = Packed::parse(b"q0000000000000000 0 0 0 0 5 0 -").unwrap();
        assert_eq!((fresh.node, fresh.token), (None, 0));
        assert_eq!(Packed::parse(b"nonsense"), None);
    }

    #[test]
    fn attempts_keep_errors_with_spaces_and_lines() {
        let attempt = Attempt::parse(b"3 f 1764544196123456 0 5 6 node-1 first line\nsecond").unwrap();
        assert_eq!((attempt.number, attempt.outcome, attempt.error.as_str()), (3, AttemptOutcome::Failed, "first line\nsecond"));
    }
}
