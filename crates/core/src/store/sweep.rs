//! What Redis thinks one incarnation holds, to compare with what the node knows.

use redis::{FromRedisValue, Value};

use super::script::SWEEP;
use super::{Store, StoreError, TIMELESS};

/// What Redis has under an incarnation's name in one queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Whether it still is an owner here.
    pub owner: bool,
    /// Entries fetched and not claimed.
    pub unclaimed: u64,
    /// Claimed jobs.
    pub jobs: Vec<SweptJob>,
}

/// One claimed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweptJob {
    /// Its id.
    pub id: String,
    /// Its claim's token; 0 when its state says that it does not run.
    pub token: u64,
    /// Whether a person asked to cancel it.
    pub cancel: bool,
}

impl Store {
    /// Looks at what an incarnation holds in a queue. Changes nothing.
    ///
    /// # Errors
    /// As any call.
    pub async fn sweep(&self, queue: &str, incarnation: &str) -> Result<Swept, StoreError> {
        let fill = |command: &mut redis::Cmd| {
            command.arg(incarnation);
        };
        let answer: Vec<Value> = SWEEP.run(&self.link, &self.keys.queue_tag(queue), TIMELESS, fill).await?;
        parse(answer).ok_or_else(|| StoreError::unexpected("a sweep that cannot be read"))
    }
}

fn parse(answer: Vec<Value>) -> Option<Swept> {
    let mut values = answer.into_iter();
    let owner = String::from_redis_value(values.next()?).ok()?;
    let unclaimed = u64::from_redis_value(values.next()?).ok()?;
    let mut jobs = Vec::new();
    while let Some(id) = values.next() {
        let id = String::from_redis_value(id).ok()?;
        let token = String::from_redis_value(values.next()?).ok()?.parse().ok()?;
        let cancel = u8::from_redis_value(values.next()?).ok()? == 1;
        jobs.push(SweptJob { id, token, cancel });
    }
    Some(Swept { owner: !owner.is_empty() && !owner.starts_with("gone"), unclaimed, jobs })
}
