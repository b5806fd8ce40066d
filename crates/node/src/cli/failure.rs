//! Why a command did not do what it was asked: an exit code, and lines that say what, where and what to do.
//!
//! No line holds a password: servers are named by [`RedisUrl`]'s own text, which has host, port and database only.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use punctual_core::config::{ConfigErrors, RedisUrl};
use punctual_core::job::FieldError;
use punctual_core::store::{Kind, StoreError};

/// Why a command ended with an exit code other than 0.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    lines: Vec<String>,
}

impl Failure {
    /// Bad usage or bad configuration: exit code 2. Nothing was changed.
    pub(crate) fn usage(line: impl Display) -> Self {
        Self { code: 2, lines: vec![line.to_string()] }
    }

    /// The operation failed: exit code 1.
    pub(crate) fn failed(line: impl Display) -> Self {
        Self { code: 1, lines: vec![line.to_string()] }
    }

    /// Exit code 1 without a line of its own: what was printed tells already.
    pub(crate) fn told() -> Self {
        Self { code: 1, lines: Vec::new() }
    }

    /// Every problem of a configuration.
    pub(crate) fn config(errors: &ConfigErrors) -> Self {
        Self { code: 2, lines: errors.problems.iter().map(ToString::to_string).collect() }
    }

    /// Every field of a request that was refused.
    pub(crate) fn fields(wrong: &[FieldError]) -> Self {
        Self { code: 2, lines: wrong.iter().map(ToString::to_string).collect() }
    }

    /// Redis did not do what `doing` names, such as `read the lease`.
    pub(crate) fn redis(doing: &str, url: &RedisUrl, error: &StoreError) -> Self {
        let said = first_line(&error.text);
        let (what, advice) = match error.kind {
            Kind::Unreachable => (
                format!("no answer from Redis at {url} ({said})"),
                "start it, or name another with --redis, PUNCTUAL__REDIS__URL or redis.url; punctual dev brings its own",
            ),
            Kind::Auth => (
                format!("Redis at {url} refuses the login ({said})"),
                "check redis.username, and the password in redis.password_file or PUNCTUAL__REDIS__URL",
            ),
            Kind::Permission => (
                format!("the user may not do this on Redis at {url} ({said})"),
                "give the user the commands, keys and channels that punctual needs",
            ),
            Kind::ReadOnly => (
                format!("Redis at {url} is a read-only replica, nothing was changed"),
                "name the primary with --redis or redis.url",
            ),
            Kind::Full => (
                format!("Redis at {url} is out of memory, nothing was stored"),
                "raise its maxmemory, or delete jobs that nobody needs",
            ),
            Kind::Busy => (format!("Redis at {url} cannot serve now ({said})"), "try again in a moment"),
            Kind::Wrong => (
                format!("Redis at {url}: {said}"),
                "check that it is Redis 7.0 or Valkey 7.2 or newer, and that nothing else writes into redis.namespace",
            ),
        };
        Self::failed(format!("failed to {doing}: {what}; {advice}"))
    }

    /// The lines, as they are printed after `error: `.
    pub(crate) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Prints the lines on standard error; the exit code is left.
    pub(crate) fn report(&self) -> ExitCode {
        let mut stderr = std::io::stderr().lock();
        for line in &self.lines {
            // A reader of standard error that has gone away is no reason to end in a panic.
            let _ = writeln!(stderr, "error: {line}");
        }
        ExitCode::from(self.code)
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_errors_are_one_line_with_place_and_advice_and_without_the_password() {
        let url = RedisUrl::parse("redis://app:s3cret@db.example:6390/2").unwrap();
        let kinds = [Kind::Unreachable, Kind::Busy, Kind::ReadOnly, Kind::Full, Kind::Auth, Kind::Permission, Kind::Wrong];
        for kind in kinds {
            let error = StoreError { kind, text: "first\nsecond".to_owned() };
            let failure = Failure::redis("read the lease", &url, &error);
            let [line] = failure.lines() else { panic!("{kind:?}: {failure:?}") };
            assert!(line.starts_with("failed to read the lease: ") && line.contains("db.example:6390/2"), "{line}");
            assert!(line.contains("; ") && !line.contains("s3cret") && !line.contains("second"), "{line}");
        }
    }
}
