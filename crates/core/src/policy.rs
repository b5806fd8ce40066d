//! Whose setting counts: a job's own beats its handler's, that beats the configuration of the node that runs it.

use std::time::Duration;

use crate::backoff::{Retry, RetryPolicy};
use crate::config::Config;
use crate::handler::Registered;
use crate::job::JobSpec;

/// What applies to a job on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective {
    /// Attempts in all.
    pub max_attempts: u32,
    /// Waits between attempts.
    pub retry: RetryPolicy,
    /// Longest run of one attempt.
    pub timeout: Duration,
}

/// Resolves what applies. An unknown preset falls back to `default`: a job must not die of a name that another node knows.
#[must_use]
pub fn effective(spec: &JobSpec, handler: Option<&Registered>, config: &Config) -> Effective {
    let named = |retry: &Retry| match retry {
        Retry::Policy(policy) => Some(policy.clone()),
        Retry::Preset(name) => config.retry.presets.get(name).cloned(),
    };
    let own = spec.retry.as_ref().and_then(named);
    let handlers = handler.and_then(|handler| handler.retry.as_ref()).and_then(named);
    let default = config.retry.presets.get("default").cloned();
    let max_attempts = spec
        .max_attempts
        .or_else(|| own.as_ref().and_then(|policy| policy.max_attempts))
        .or_else(|| handler.and_then(|handler| handler.max_attempts))
        .or_else(|| handlers.as_ref().and_then(|policy| policy.max_attempts))
        .unwrap_or(config.jobs.max_attempts);
    let timeout = spec
        .timeout_ms
        .map(Duration::from_millis)
        .or_else(|| handler.and_then(|handler| handler.timeout))
        .unwrap_or(config.jobs.timeout);
    Effective { max_attempts: max_attempts.max(1), retry: own.or(handlers).or(default).unwrap_or_default(), timeout }
}
