//! The cluster-wide right to promote. Compared by holder and term in every script, so losing it costs work, never correctness.

use std::time::Duration;

use redis::{FromRedisValue, Value};

use super::script::{ACQUIRE, RELEASE, RENEW};
use super::{Store, StoreError, TIMELESS};
use crate::clock::as_ms;

/// How the lease became free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Nobody had ever held it.
    Free,
    /// Its holder gave it up.
    Released,
    /// Its holder stopped renewing.
    Expired,
}

impl After {
    /// The word in the log.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Released => "released",
            Self::Expired => "expired",
        }
    }
}

/// Who holds the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The node.
    pub holder: String,
    /// In which term.
    pub term: u64,
    /// Since when, milliseconds since 1970.
    pub since_ms: u64,
    /// How long it lasts unless renewed.
    pub expires_in: Duration,
}

/// What an attempt to take the lease found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// This node holds it now.
    Mine {
        /// The new term.
        term: u64,
        /// How it had become free.
        after: After,
    },
    /// Somebody holds it: possibly this node itself, in an earlier life of the call.
    Held(Held),
}

impl Store {
    /// Takes the lease when nobody holds it; the term will exceed `above`.
    ///
    /// # Errors
    /// As any call. After a lost reply the lease may be this node's; it is then found as held and ends by itself.
    pub async fn acquire_lease(&self, node: &str, ttl: Duration, above: u64) -> Result<Acquired, StoreError> {
        let fill = |command: &mut redis::Cmd| {
            command.arg(node).arg(as_ms(ttl)).arg(above);
        };
        let answer: Vec<Value> = ACQUIRE.run(&self.link, &self.keys.cluster_tag(), &self.time(), fill).await?;
        parse(answer).ok_or_else(|| StoreError::unexpected("a lease that cannot be read"))
    }

    /// Prolongs the lease; `false` when it is not this node's any more.
    ///
    /// # Errors
    /// As any call.
    pub async fn renew_lease(&self, node: &str, term: u64, ttl: Duration) -> Result<bool, StoreError> {
        let fill = |command: &mut redis::Cmd| {
            command.arg(node).arg(format!("{term:016}")).arg(as_ms(ttl));
        };
        Ok(RENEW.run::<u8>(&self.link, &self.keys.cluster_tag(), TIMELESS, fill).await? == 1)
    }

    /// Gives the lease up and wakes the others; `false` when it was not this node's.
    ///
    /// # Errors
    /// As any call.
    pub async fn release_lease(&self, node: &str, term: u64) -> Result<bool, StoreError> {
        let fill = |command: &mut redis::Cmd| {
            command.arg(node).arg(format!("{term:016}"));
        };
        Ok(RELEASE.run::<u8>(&self.link, &self.keys.cluster_tag(), &self.time(), fill).await? == 1)
    }

    /// Who holds the lease now; `None` when it is free.
    ///
    /// # Errors
    /// As any call.
    pub async fn lease(&self) -> Result<Option<Held>, StoreError> {
        let key = self.keys.cluster("lease");
        let mut pipeline = redis::pipe();
        pipeline.cmd("GET").arg(&key).cmd("PTTL").arg(&key);
        let (text, left_ms): (Option<String>, i64) = self.link.pipe(&pipeline).await?;
        Ok(text.and_then(|text| {
            let mut parts = text.split(' ');
            Some(Held {
                holder: parts.next()?.to_owned(),
                term: parts.next()?.parse().ok()?,
                since_ms: parts.next()?.parse().ok()?,
                expires_in: Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)),
            })
        }))
    }
}

fn parse(answer: Vec<Value>) -> Option<Acquired> {
    let mut values = answer.into_iter();
    let mine = u8::from_redis_value(values.next()?).ok()? == 1;
    let mut text = || String::from_redis_value(values.next()?).ok();
    if mine {
        let term = text()?.parse().ok()?;
        let after = match text()?.as_str() {
            "free" => After::Free,
            "released" => After::Released,
            _ => After::Expired,
        };
        return Some(Acquired::Mine { term, after });
    }
    let (holder, term, since_ms) = (text()?, text()?.parse().ok()?, text()?.parse().ok()?);
    let left_ms: i64 = text()?.parse().ok()?;
    let expires_in = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
    Some(Acquired::Held(Held { holder, term, since_ms, expires_in }))
}
