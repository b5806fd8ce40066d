//! Bounded waits for a condition, and seeds that make a random test repeatable.
//!
//! There is no "sleep and hope" here: a test waits for what it wants to see, and says what that was when it did
//! not come.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep, timeout_at};

/// Pause between two looks at a condition.
pub const POLL: Duration = Duration::from_millis(20);

/// Calls `probe` every 20 ms until it returns a value; at least once, and once more at the very end.
///
/// A probe that hangs is dropped at the deadline, so it must not hold a half-done exchange that matters later.
/// Written as `async || …` or `|| async { … }`; it clones a connection instead of borrowing it. (`AsyncFnMut` would
/// let it borrow, but then no caller could be spawned: the compiler cannot see yet that such futures are `Send`.)
///
/// # Errors
/// When no value came within `timeout`; the text names `what` and the time waited.
pub async fn eventually<T, F>(timeout: Duration, what: &str, mut probe: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + timeout;
    let mut looks = 0_u32;
    loop {
        let last = Instant::now() >= deadline;
        // The grace lets a probe with a round trip in it finish also at the deadline.
        match timeout_at(deadline + Duration::from_secs(1), probe()).await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => looks += 1,
            Err(_) => bail!("waited {timeout:?} for {what}: the probe itself hangs, after {looks} looks"),
        }
        if last {
            bail!("waited {timeout:?} for {what}, in vain ({looks} looks)");
        }
        sleep(POLL).await;
    }
}

/// Calls `probe` every 20 ms for the whole of `span` and fails at the first look at which it returns a complaint.
///
/// For what must *not* happen, such as a second execution.
///
/// # Errors
/// The first complaint, with `what` and the time at which it came.
pub async fn holds<F>(span: Duration, what: &str, mut probe: impl FnMut() -> F) -> Result<()>
where
    F: Future<Output = Option<String>>,
{
    let start = Instant::now();
    while start.elapsed() < span {
        if let Some(complaint) = probe().await {
            bail!("{what} did not hold after {:?}: {complaint}", start.elapsed());
        }
        sleep(POLL).await;
    }
    Ok(())
}

/// The start of a random test's decisions: from `PUNCTUAL_SEED`, else random.
///
/// It is printed at once, with the command that repeats the test; the test runner shows that only for failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Seed {
    /// Takes the seed from `PUNCTUAL_SEED`, else a random one, and prints how to repeat the test.
    ///
    /// # Panics
    /// When `PUNCTUAL_SEED` is not a whole number: a run with another seed would look like a replay.
    #[must_use]
    pub fn from_env_or_random() -> Self {
        let seed = match std::env::var("PUNCTUAL_SEED") {
            Ok(text) => Self(text.parse().unwrap_or_else(|_| panic!("PUNCTUAL_SEED={text} is not a whole number"))),
            Err(_) => Self(fastrand::u64(..)),
        };
        eprintln!("repeat with: {seed}");
        seed
    }

    /// A generator that makes the same decisions for the same seed.
    #[must_use]
    pub fn rng(self) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.0)
    }
}

/// The command that repeats the test on this thread with this seed.
impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PUNCTUAL_SEED={} cargo test -p punctual-tests", self.0)?;
        let exe = std::env::current_exe().ok();
        let stem = exe.as_deref().and_then(|exe| exe.file_stem()).and_then(|stem| stem.to_str()).unwrap_or_default();
        match stem.rsplit_once('-') {
            Some(("punctual_tests", _)) => f.write_str(" --lib")?,
            Some((binary, _)) => write!(f, " --test {binary}")?,
            None => {}
        }
        // The test runner names each test's thread after the test, except when there is only one thread.
        match std::thread::current().name() {
            Some(test) if test != "main" => write!(f, " {test} -- --exact"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[tokio::test]
    async fn eventually_returns_the_first_value_and_names_what_did_not_come() {
        let mut looks = 0;
        let third = || {
            looks += 1;
            ready((looks == 3).then_some(looks))
        };
        assert_eq!(eventually(Duration::from_secs(5), "the third look", third).await.unwrap(), 3);
        // Spawned, because tests wait in tasks of their own too.
        let never = tokio::spawn(async { eventually(Duration::from_millis(50), "godot", async || None::<()>).await });
        let error = never.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("godot"), "{error}");
    }

    #[tokio::test]
    async fn holds_reports_the_first_complaint() {
        holds(Duration::from_millis(50), "calm", async || None).await.unwrap();
        let error = holds(Duration::from_secs(5), "calm", async || Some("storm".to_owned())).await.unwrap_err();
        assert!(error.to_string().contains("storm"), "{error}");
    }

    #[test]
    fn seed_repeats_its_decisions_and_tells_the_command() {
        let seed = Seed(7);
        assert_eq!(seed.rng().u64(..), seed.rng().u64(..));
        let line = seed.to_string();
        assert!(line.starts_with("PUNCTUAL_SEED=7 cargo test -p punctual-tests --lib"), "{line}");
    }
}
