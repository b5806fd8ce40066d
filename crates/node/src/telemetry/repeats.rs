//! A failure that repeats is one line at its start, few while it lasts, and one when it is over.
//!
//! Redis away for ten minutes must not be ten thousand lines. Pure: whoever loops over something that fails keeps one
//! [`Repeats`] and logs what it answers. Deliberately absent: the line itself, whose fields only the caller knows.

use std::time::Duration;

use tokio::time::Instant;

/// Another text is told at once, but not more often than this: two failures may alternate.
const CHANGE_EVERY: Duration = Duration::from_secs(1);
/// The same text is told again after this long.
const REMIND_EVERY: Duration = Duration::from_secs(60);

/// Counts failures in a row.
#[derive(Debug)]
pub struct Repeats {
    last: Option<String>,
    count: u64,
    since: Instant,
    told: Instant,
}

/// What is worth a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Failures since the last success, this one included.
    pub count: u64,
    /// Since the first of them.
    pub since: Duration,
}

impl Default for Repeats {
    fn default() -> Self {
        let now = Instant::now();
        Self { last: None, count: 0, since: now, told: now }
    }
}

impl Repeats {
    /// Nothing has failed yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// It failed. Answers when that is worth a line: the first time, when the text changes, at 10, 100, 1,000, …, and once a
    /// minute.
    pub fn failed(&mut self, text: &str) -> Option<Report> {
        self.failed_at(text, Instant::now())
    }

    /// As [`Repeats::failed`], at a given instant.
    pub fn failed_at(&mut self, text: &str, now: Instant) -> Option<Report> {
        if self.count == 0 {
            self.since = now;
        }
        self.count += 1;
        let quiet = now.saturating_duration_since(self.told);
        let changed = self.last.as_deref() != Some(text) && (self.count == 1 || quiet >= CHANGE_EVERY);
        let round = self.count >= 10 && self.count == 10_u64.pow(self.count.ilog10());
        if !changed && !round && quiet < REMIND_EVERY {
            return None;
        }
        self.last = Some(text.to_owned());
        self.told = now;
        Some(Report { count: self.count, since: now.saturating_duration_since(self.since) })
    }

    /// It went well. Answers how often it had failed before, when it had.
    pub fn recovered(&mut self) -> Option<u64> {
        let count = std::mem::take(&mut self.count);
        self.last = None;
        (count > 0).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_minutes_of_one_failure_are_few_lines() {
        let (start, mut repeats) = (Instant::now(), Repeats::new());
        let at = |ms| start + Duration::from_millis(ms);
        let told: Vec<u64> =
            (0..6000).filter_map(|n| repeats.failed_at("refused", at(n * 100))).map(|report| report.count).collect();
        assert_eq!(told[..4], [1, 10, 100, 700]);
        assert!(told.len() < 15, "{told:?}");
        assert_eq!(repeats.recovered(), Some(6000));
        assert_eq!(repeats.recovered(), None);
        assert_eq!(repeats.failed_at("refused", at(700_000)), Some(Report { count: 1, since: Duration::ZERO }));
    }

    #[test]
    fn a_change_is_told_and_alternating_texts_are_not_a_flood() {
        let (start, mut repeats) = (Instant::now(), Repeats::new());
        let at = |ms| start + Duration::from_millis(ms);
        assert!(repeats.failed_at("refused", at(0)).is_some());
        assert!(repeats.failed_at("timed out", at(10)).is_none());
        let report = repeats.failed_at("timed out", at(1500)).unwrap();
        assert_eq!(report, Report { count: 3, since: Duration::from_millis(1500) });
        let told = (0..1000).filter(|n| repeats.failed_at(["a", "b"][n % 2], at(2000 + *n as u64)).is_some()).count();
        assert!(told <= 3, "{told}");
    }
}
