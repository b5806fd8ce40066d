//! What a handler is: typed arguments in, an outcome out. Registered by name, run by a node or by `punctual run`.
//!
//! ```
//! use punctual_core::backoff::Retry;
//! use punctual_core::handler::{JobContext, Outcome, Registry};
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use std::time::Duration;
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! struct CloseOrder { order_id: u64 }
//!
//! async fn close_order(args: CloseOrder, job: JobContext) -> Outcome {
//!     job.log(format!("closing {}", args.order_id));
//!     Outcome::done(())
//! }
//!
//! let registry = Registry::new()
//!     .register("order.close", close_order)
//!     .retry(Retry::preset("fast"))
//!     .timeout(Duration::from_secs(30));
//! assert!(registry.get("order.close").is_some());
//! ```

mod context;

use std::any::TypeId;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use context::States;
pub use context::{JobContext, JobIdentity, Note};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::backoff::Retry;
use crate::job::{self, FieldError};

/// What a handler says about the attempt. Returning it is the only way to end one.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Done; the JSON text is kept with the job.
    Done(Option<String>),
    /// Failed; try again by the retry policy.
    Retry(String),
    /// Failed; try again after this long.
    RetryAfter(Duration, String),
    /// Not now: run again after this long. Spends no attempt.
    Snooze(Duration),
    /// Will never work: to the dead letters at once.
    Dead(String),
    /// Not worth doing any more: ends as cancelled with this reason.
    Discard(String),
}

impl Outcome {
    /// Done, with a result that is kept as JSON (`()` keeps nothing). A result that cannot be JSON is dead.
    pub fn done(result: impl Serialize) -> Self {
        match serde_json::to_string(&result) {
            Ok(text) if text == "null" => Self::Done(None),
            Ok(text) => Self::Done(Some(text)),
            Err(error) => Self::Dead(format!("result is not JSON: {error}")),
        }
    }

    /// Failed; try again by the retry policy.
    pub fn retry(error: impl Display) -> Self {
        Self::Retry(error.to_string())
    }

    /// Failed; try again after this long.
    pub fn retry_after(wait: Duration, error: impl Display) -> Self {
        Self::RetryAfter(wait, error.to_string())
    }

    /// Run again after this long, without spending an attempt.
    #[must_use]
    pub const fn snooze(wait: Duration) -> Self {
        Self::Snooze(wait)
    }

    /// Will never work.
    pub fn dead(reason: impl Display) -> Self {
        Self::Dead(reason.to_string())
    }

    /// Not worth doing any more.
    pub fn discard(reason: impl Display) -> Self {
        Self::Discard(reason.to_string())
    }
}

impl<T: Serialize, E: Display> From<Result<T, E>> for Outcome {
    /// `Ok` is done, `Err` is retried.
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Self::done(value),
            // `{:#}` prints the whole chain of an anyhow error on one line.
            Err(error) => Self::Retry(format!("{error:#}")),
        }
    }
}

/// Arguments that name their handler, so that a typed client and a handler share them.
///
/// ```
/// # use serde::Serialize;
/// #[derive(Serialize)]
/// struct CloseOrder { order_id: u64 }
/// impl punctual_core::handler::JobArgs for CloseOrder {
///     const HANDLER: &'static str = "order.close";
/// }
/// ```
pub trait JobArgs: Serialize {
    /// The handler's name.
    const HANDLER: &'static str;
}

/// A handler that is a struct, for those that carry settings of their own. Functions need no trait.
pub trait Handler: Send + Sync + 'static {
    /// Its arguments.
    type Args: DeserializeOwned + JsonSchema + Send + 'static;
    /// Runs one attempt. Should return soon after [`JobContext::cancelled`]; at its timeout it is dropped.
    fn run(&self, args: Self::Args, job: JobContext) -> impl Future<Output = Outcome> + Send;
}

type Run = Arc<dyn Fn(&str, JobContext) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync>;
type Check = Arc<dyn Fn(&str) -> Result<(), FieldError> + Send + Sync>;

/// One registered handler with its defaults.
#[derive(Clone)]
pub struct Registered {
    /// Its name.
    pub name: String,
    /// Its default retry policy.
    pub retry: Option<Retry>,
    /// Its default timeout.
    pub timeout: Option<Duration>,
    /// Its default number of attempts.
    pub max_attempts: Option<u32>,
    /// Whether it is one of the `demo` handlers.
    pub demo: bool,
    /// The JSON Schema of its arguments.
    pub schema: serde_json::Value,
    run: Run,
    check: Check,
}

impl Registered {
    /// Runs one attempt. Arguments that do not fit are dead: no retry would mend them.
    pub fn run(&self, args: &str, job: JobContext) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        (self.run)(args, job)
    }

    /// Whether the arguments fit.
    ///
    /// # Errors
    /// The argument that does not, as `args.order_id`.
    pub fn check(&self, args: &str) -> Result<(), FieldError> {
        (self.check)(args)
    }
}

/// The handlers of a binary. A later registration of a name replaces the earlier one.
#[derive(Clone, Default)]
pub struct Registry {
    handlers: BTreeMap<String, Registered>,
    last: String,
    states: Arc<States>,
}

impl Registry {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers an async function `(Args, JobContext) -> Outcome` (or anything that becomes one, such as a `Result`).
    ///
    /// # Panics
    /// When the name is not `[A-Za-z0-9._-]{1,128}`: a mistake in the program, shown at its first start.
    #[must_use]
    pub fn register<A, F, Fut>(self, name: &str, function: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        F: Fn(A, JobContext) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: Into<Outcome>,
    {
        let function = Arc::new(function);
        self.insert::<A>(
            name,
            Arc::new(move |text, job| match parse_args::<A>(text) {
                Ok(args) => {
                    let future = function(args, job);
                    Box::pin(async move { future.await.into() })
                }
                Err(error) => Box::pin(std::future::ready(Outcome::Dead(error.to_string()))),
            }),
        )
    }

    /// Registers a struct that implements [`Handler`].
    ///
    /// # Panics
    /// As [`Registry::register`].
    #[must_use]
    pub fn register_handler<H: Handler>(self, name: &str, handler: H) -> Self {
        let handler = Arc::new(handler);
        self.insert::<H::Args>(
            name,
            Arc::new(move |text, job| match parse_args::<H::Args>(text) {
                Ok(args) => {
                    let handler = Arc::clone(&handler);
                    Box::pin(async move { handler.run(args, job).await })
                }
                Err(error) => Box::pin(std::future::ready(Outcome::Dead(error.to_string()))),
            }),
        )
    }

    fn insert<A: DeserializeOwned + JsonSchema + 'static>(mut self, name: &str, run: Run) -> Self {
        if let Err(rule) = job::check_handler_name(name) {
            panic!("handler name {name:?} {rule}");
        }
        name.clone_into(&mut self.last);
        let registered = Registered {
            name: name.to_owned(),
            retry: None,
            timeout: None,
            max_attempts: None,
            demo: false,
            schema: schemars::schema_for!(A).to_value(),
            run,
            check: Arc::new(|text| parse_args::<A>(text).map(|_| ())),
        };
        self.handlers.insert(name.to_owned(), registered);
        self
    }

    fn change(mut self, change: impl FnOnce(&mut Registered)) -> Self {
        let last = self.handlers.get_mut(&self.last).expect("a default follows the registration that it belongs to");
        change(last);
        self
    }

    /// The retry policy of the handler just registered; a job's own beats it.
    #[must_use]
    pub fn retry(self, retry: Retry) -> Self {
        self.change(|last| last.retry = Some(retry))
    }

    /// The timeout of the handler just registered; a job's own beats it.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.change(|last| last.timeout = Some(timeout))
    }

    /// The number of attempts of the handler just registered; a job's own beats it.
    #[must_use]
    pub fn max_attempts(self, attempts: u32) -> Self {
        self.change(|last| last.max_attempts = Some(attempts.max(1)))
    }

    /// Marks the handler just registered as one for trying things: left out unless `handlers.demo = true`.
    #[must_use]
    pub fn demo(self) -> Self {
        self.change(|last| last.demo = true)
    }

    /// Injects something that every handler can reach by its type: a pool, a client, settings.
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        let mut states = States::clone(&self.states);
        states.insert(TypeId::of::<T>(), Arc::new(state));
        self.states = Arc::new(states);
        self
    }

    /// Leaves the `demo` handlers out.
    #[must_use]
    pub fn without_demo(mut self) -> Self {
        self.handlers.retain(|_, handler| !handler.demo);
        self
    }

    /// The handler of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Registered> {
        self.handlers.get(name)
    }

    /// All handlers, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Registered> {
        self.handlers.values()
    }

    /// All names, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.handlers.keys().cloned().collect()
    }
}

fn parse_args<A: DeserializeOwned>(text: &str) -> Result<A, FieldError> {
    let mut reader = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let message = error.inner().to_string();
        // A missing or unknown field is named only in serde's message; its path is that of the object around it.
        let inner =
            message.split('`').nth(1).filter(|_| message.starts_with("missing field") || message.starts_with("unknown field"));
        let path = match (path.as_str(), inner) {
            ("." | "", Some(field)) => format!("args.{field}"),
            (path, Some(field)) if !path.ends_with(field) => format!("args.{path}.{field}"),
            ("." | "", None) => "args".to_owned(),
            (path, _) => format!("args.{path}"),
        };
        FieldError::new(path, message)
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Args {
        order_id: u64,
    }

    struct Double;
    impl Handler for Double {
        type Args = Args;
        async fn run(&self, args: Args, job: JobContext) -> Outcome {
            Outcome::done(args.order_id * *job.state::<u64>())
        }
    }

    fn context(registry: &Registry) -> JobContext {
        let identity = JobIdentity {
            id: "1".into(),
            queue: "default".into(),
            handler: "h".into(),
            attempt: 1,
            due_ms: 0,
            claim: 1,
            headers: BTreeMap::new(),
        };
        JobContext::new(identity, CancellationToken::new(), registry, None, |_| {})
    }

    #[tokio::test]
    async fn functions_and_structs_run_with_injected_state() {
        let registry = Registry::new()
            .state(3_u64)
            .register("double", |args: Args, _job: JobContext| async move { Ok::<_, String>(args.order_id) })
            .register_handler("triple", Double)
            .timeout(Duration::from_secs(1));
        let run = |name: &str, args: &str| registry.get(name).unwrap().run(args, context(&registry));
        assert_eq!(run("double", r#"{"order_id":7}"#).await, Outcome::Done(Some("7".into())));
        assert_eq!(run("triple", r#"{"order_id":7}"#).await, Outcome::Done(Some("21".into())));
        assert!(matches!(run("triple", r#"{"order_id":"x"}"#).await, Outcome::Dead(_)));
        assert_eq!(registry.get("triple").unwrap().timeout, Some(Duration::from_secs(1)));
        assert_eq!(registry.get("double").unwrap().timeout, None);
    }

    #[test]
    fn arguments_that_do_not_fit_name_the_field() {
        let registry = Registry::new().register_handler("h", Double);
        let field = |args: &str| registry.get("h").unwrap().check(args).unwrap_err().field;
        assert_eq!(field("{}"), "args.order_id");
        assert_eq!(field(r#"{"order_id":-1}"#), "args.order_id");
        assert_eq!(field("7"), "args");
    }
}
