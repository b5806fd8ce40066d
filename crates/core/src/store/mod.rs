//! The Redis store: one function and one script per arrow of the state machine.
//!
//! Every script gets the tag of the keys it works on and Redis' own time, does a bounded amount of work, and compares a token
//! before it moves anything. What is deliberately absent: retries of whole calls (the caller knows whether repeating is
//! harmless), a trait over it, and any other place in the workspace that talks to Redis.

pub mod cancel;
pub mod claim;
pub mod connect;
pub mod delete;
pub mod edit;
pub mod enqueue;
pub mod fetch;
pub mod inspect;
pub mod keys;
pub mod lease;
pub mod nodes;
pub mod note;
pub mod nudge;
pub mod overview;
pub mod packed;
pub mod pause;
pub mod promote;
pub mod reap;
pub mod repair;
pub mod requeue;
pub(crate) mod script;
pub mod server;
pub mod settle;
pub mod sweep;
mod timeline;
pub mod trim;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use connect::{ByteStream, Kind, Link, StoreError, Wire};
pub use keys::Keys;
pub use script::sources;

use crate::config::Redis;

/// How long a plain command or a script may take. Redis answers scripts in milliseconds; more means that the link is gone.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// The time of scripts that need none: it saves them a command, and an idle cluster half a command a second.
pub(crate) const TIMELESS: &str = "0";

/// One namespace of one Redis, over one connection. Clones share the connection.
#[derive(Clone)]
pub struct Store {
    link: Link,
    keys: Keys,
    test_time_us: Option<Arc<AtomicU64>>,
}

impl Store {
    /// Prepares a store; the first call connects.
    ///
    /// # Errors
    /// When the settings cannot describe a server.
    pub fn new(settings: &Redis) -> Result<Self, StoreError> {
        Ok(Self { link: Link::new(settings, RESPONSE_TIMEOUT)?, keys: Keys::new(&settings.namespace), test_time_us: None })
    }

    /// A store over given streams. For tests.
    #[must_use]
    pub fn over(wire: Wire, namespace: &str) -> Self {
        Self { link: Link::over(wire, RESPONSE_TIMEOUT), keys: Keys::new(namespace), test_time_us: None }
    }

    /// The same namespace over a connection of its own.
    #[must_use]
    pub fn another(&self) -> Self {
        Self { link: self.link.another(RESPONSE_TIMEOUT), keys: self.keys.clone(), test_time_us: self.test_time_us.clone() }
    }

    /// For tests: scripts take this time (microseconds since 1970) instead of Redis' own.
    #[must_use]
    pub fn with_test_time(mut self, time_us: Arc<AtomicU64>) -> Self {
        self.test_time_us = Some(time_us);
        self
    }

    /// The connection.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The names of its keys.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Loads the scripts, so that a first call is not slower than the next.
    ///
    /// # Errors
    /// As any call.
    pub async fn load_scripts(&self) -> Result<(), StoreError> {
        script::load(&self.link).await
    }

    /// Runs a real script that changes nothing; returns Redis' time in milliseconds.
    ///
    /// # Errors
    /// As any call.
    pub async fn probe(&self) -> Result<u64, StoreError> {
        script::PROBE.run(&self.link, &self.keys.cluster_tag(), &self.time(), |_| {}).await
    }

    fn time(&self) -> String {
        self.test_time_us.as_ref().map_or_else(String::new, |time| time.load(Ordering::Relaxed).to_string())
    }
}
