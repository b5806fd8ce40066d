//! Rules of a proxy: which command is answered, delayed, cut off or only counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(super) type Matcher = Box<dyn Fn(&[Vec<u8>]) -> bool + Send + Sync>;

pub(super) enum Action {
    CutReply,
    Delay(Duration),
    Answer(String),
    Count,
}

pub(super) struct RuleState {
    matcher: Matcher,
    pub(super) action: Action,
    left: AtomicU64,
    fired: AtomicU64,
}

impl RuleState {
    // True if the rule applies to this command; one of its times is then spent.
    pub(super) fn takes(&self, args: &[Vec<u8>]) -> bool {
        let spend = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
        (self.matcher)(args) && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend).is_ok()
    }

    pub(super) fn fire(&self) {
        self.fired.fetch_add(1, Ordering::SeqCst);
    }
}

/// Handle of a rule at work. Dropping it changes nothing; [`Rule::stop`] ends the rule.
#[derive(Clone)]
pub struct Rule {
    pub(super) state: Arc<RuleState>,
}

impl Rule {
    /// As often as you like.
    pub const ALWAYS: u64 = u64::MAX;

    pub(super) fn new(matcher: Matcher, action: Action, times: u64) -> Self {
        Self { state: Arc::new(RuleState { matcher, action, left: AtomicU64::new(times), fired: AtomicU64::new(0) }) }
    }

    /// How often the rule has had its effect: connections cut, commands delayed, answered or counted.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.state.fired.load(Ordering::SeqCst)
    }

    /// How often it may still match; [`Rule::ALWAYS`] stays as it is.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.state.left.load(Ordering::SeqCst)
    }

    /// No further command matches. What has matched already still has its effect.
    pub fn stop(&self) {
        self.state.left.store(0, Ordering::SeqCst);
    }
}

/// Matches commands by name, in either case, such as `BRPOPLPUSH`.
pub fn command(name: &str) -> impl Fn(&[Vec<u8>]) -> bool + Send + Sync + 'static {
    let name = name.to_owned();
    move |args| args.first().is_some_and(|have| have.eq_ignore_ascii_case(name.as_bytes()))
}

/// Matches commands by name that have an argument which contains `text`, such as the digest of a script or a part
/// of a key.
pub fn command_with(name: &str, text: &str) -> impl Fn(&[Vec<u8>]) -> bool + Send + Sync + 'static {
    let (is_named, text) = (command(name), text.to_owned());
    let contains = move |arg: &Vec<u8>| text.is_empty() || arg.windows(text.len()).any(|part| part == text.as_bytes());
    move |args| is_named(args) && args.iter().skip(1).any(&contains)
}

/// Matches every command that runs a script or a function: EVAL, EVALSHA, FCALL and their read-only forms.
pub fn script_call() -> impl Fn(&[Vec<u8>]) -> bool + Send + Sync + 'static {
    let names = ["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"];
    move |args| args.first().is_some_and(|have| names.iter().any(|name| have.eq_ignore_ascii_case(name.as_bytes())))
}

/// Matches everything, also what the client library sends when it connects.
pub fn any_command() -> impl Fn(&[Vec<u8>]) -> bool + Send + Sync + 'static {
    |_| true
}
