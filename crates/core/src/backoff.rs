//! Retry policies: how long a failed job waits before its next attempt, and when it gives up.
//!
//! Pure arithmetic. Every sum saturates and every wait is capped, so that the two-thousandth failure waits
//! no longer than the cap and never less than zero. What is absent: clocks, Redis, and presets' names
//! (those live in the configuration).

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The shape of the waits between attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Backoff {
    /// `base · factor^(n−1)` before the n-th retry.
    #[default]
    Exponential,
    /// `base · n`.
    Linear,
    /// `base`, always.
    Fixed,
    /// The n-th of `delays`; the last one repeats.
    List,
}

/// How a job is retried. In JSON: `{"backoff":"exponential","base":"5s","factor":2,"cap":"1h","jitter":0.1}`.
///
/// ```
/// use punctual_core::backoff::RetryPolicy;
/// let policy: RetryPolicy = serde_json::from_str(r#"{"base":"5s","factor":2,"jitter":0}"#).unwrap();
/// assert_eq!(policy.delay(3, 0.5).as_secs(), 20);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// Shape of the waits; `exponential` by default.
    pub backoff: Backoff,
    /// First wait, 60 s by default.
    #[serde(with = "crate::duration")]
    pub base: Duration,
    /// Growth per retry of `exponential`, 1 to 100; 2 by default.
    pub factor: f64,
    /// Longest wait before jitter, 1 h by default.
    #[serde(with = "crate::duration")]
    pub cap: Duration,
    /// Each wait is multiplied by a uniform number from `1 − jitter` to `1 + jitter`; 0 to 1, 0.1 by default.
    pub jitter: f64,
    /// The waits of `list`.
    #[serde(with = "crate::duration::list")]
    pub delays: Vec<Duration>,
    /// Attempts in all, the first included; absent = the job's, the handler's or the node's own number.
    pub max_attempts: Option<u32>,
    /// Gives up when the next attempt would start later than this after the job was created.
    #[serde(with = "crate::duration::option")]
    pub until: Option<Duration>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            backoff: Backoff::Exponential,
            base: Duration::from_secs(60),
            factor: 2.0,
            cap: Duration::from_secs(3600),
            jitter: 0.1,
            delays: Vec::new(),
            max_attempts: None,
            until: None,
        }
    }
}

impl RetryPolicy {
    /// The wait before retry number `retry` (1 = the first one); `roll` from 0 to 1 chooses within the jitter.
    ///
    /// Saturates: any `retry` up to `u32::MAX` gives a wait between zero and `cap × (1 + jitter)`.
    #[must_use]
    pub fn delay(&self, retry: u32, roll: f64) -> Duration {
        let n = retry.max(1);
        let base = self.base.as_secs_f64();
        let seconds = match self.backoff {
            Backoff::Fixed => base,
            Backoff::Linear => base * f64::from(n),
            // Powers are computed in floats, which go to infinity instead of wrapping to a negative wait.
            Backoff::Exponential => base * self.factor.max(1.0).powf(f64::from(n - 1)),
            Backoff::List => {
                let last = self.delays.len().saturating_sub(1);
                let index = usize::try_from(n - 1).unwrap_or(usize::MAX).min(last);
                self.delays.get(index).map_or(base, Duration::as_secs_f64)
            }
        };
        let cap = self.cap.as_secs_f64();
        let seconds = if seconds.is_finite() { seconds.min(cap) } else { cap };
        let jitter = self.jitter.clamp(0.0, 1.0);
        let spread = 1.0 - jitter + 2.0 * jitter * roll.clamp(0.0, 1.0);
        Duration::try_from_secs_f64((seconds * spread).max(0.0)).unwrap_or(self.cap)
    }

    /// Says what is wrong with the numbers, in words that follow a field's name.
    ///
    /// # Errors
    /// One line for the first number out of its range.
    pub fn check(&self) -> Result<(), String> {
        if !self.factor.is_finite() || !(1.0..=100.0).contains(&self.factor) {
            return Err(format!("factor must be from 1 to 100, got {}", self.factor));
        }
        if !self.jitter.is_finite() || !(0.0..=1.0).contains(&self.jitter) {
            return Err(format!("jitter must be from 0 to 1, got {}", self.jitter));
        }
        if self.max_attempts == Some(0) {
            return Err("max_attempts must be at least 1".to_owned());
        }
        if self.backoff == Backoff::List && self.delays.is_empty() {
            return Err("delays must name at least one wait when backoff is list".to_owned());
        }
        if self.cap > Duration::from_secs(366 * 86_400) {
            return Err("cap must be at most one year".to_owned());
        }
        Ok(())
    }
}

/// What a handler or a job asks for: a preset by name, or a policy of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Retry {
    /// The name of a preset of `retry.presets`.
    Preset(String),
    /// A policy written out.
    Policy(RetryPolicy),
}

impl Retry {
    /// Names a preset: `fast`, `slow`, `default`, or one that the configuration adds.
    #[must_use]
    pub fn preset(name: &str) -> Self {
        Self::Preset(name.to_owned())
    }

    /// Reads the text of `--retry` or of a stored job: a JSON object, or a preset's name.
    ///
    /// # Errors
    /// A line that says what is wrong with the object.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim_start().starts_with('{') {
            let policy: RetryPolicy = serde_json::from_str(text).map_err(|error| error.to_string())?;
            policy.check()?;
            Ok(Self::Policy(policy))
        } else {
            Ok(Self::Preset(text.to_owned()))
        }
    }

    /// The text that [`Retry::parse`] reads back.
    #[must_use]
    pub fn to_text(&self) -> String {
        match self {
            Self::Preset(name) => name.clone(),
            Self::Policy(policy) => serde_json::to_string(policy).expect("a policy is plain data"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_never_leave_zero_to_cap_however_many_failures() {
        let policy = RetryPolicy { jitter: 0.0, ..RetryPolicy::default() };
        for retry in [0, 1, 31, 32, 62, 63, 64, 1000, 1_000_000, u32::MAX] {
            let wait = policy.delay(retry, 0.5);
            assert!(wait > Duration::ZERO && wait <= policy.cap, "retry {retry}: {wait:?}");
        }
    }

    #[test]
    fn shapes_follow_their_formulas() {
        let base = RetryPolicy { base: Duration::from_secs(5), jitter: 0.0, ..RetryPolicy::default() };
        let seconds = |policy: &RetryPolicy| (1..=4).map(|n| policy.delay(n, 0.9).as_secs()).collect::<Vec<_>>();
        assert_eq!(seconds(&base), [5, 10, 20, 40]);
        assert_eq!(seconds(&RetryPolicy { backoff: Backoff::Linear, ..base.clone() }), [5, 10, 15, 20]);
        assert_eq!(seconds(&RetryPolicy { backoff: Backoff::Fixed, ..base.clone() }), [5, 5, 5, 5]);
        let list = vec![Duration::from_secs(1), Duration::from_secs(10)];
        assert_eq!(seconds(&RetryPolicy { backoff: Backoff::List, delays: list, ..base }), [1, 10, 10, 10]);
    }

    #[test]
    fn jitter_spreads_around_the_wait() {
        let policy = RetryPolicy { base: Duration::from_secs(10), jitter: 0.1, ..RetryPolicy::default() };
        assert_eq!(policy.delay(1, 0.0), Duration::from_secs(9));
        assert_eq!(policy.delay(1, 1.0), Duration::from_secs(11));
    }

    #[test]
    fn text_reads_back() {
        for text in ["fast", r#"{"backoff":"list","delays":["1s","10s"],"max_attempts":3}"#] {
            let retry = Retry::parse(text).unwrap();
            assert_eq!(Retry::parse(&retry.to_text()).unwrap(), retry);
        }
        assert!(Retry::parse(r#"{"factor":0.5}"#).is_err());
        assert!(Retry::parse(r#"{"base":5}"#).unwrap_err().contains("5s"));
    }
}
