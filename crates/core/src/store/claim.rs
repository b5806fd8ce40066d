//! Ready → running: many jobs in one call, fenced by a token that only grows.

use redis::{Cmd, FromRedisValue, Value};

use super::packed::Packed;
use super::script::CLAIM;
use super::{Store, StoreError};

/// Most jobs of one claim.
pub const MOST: usize = 500;

/// What a claim asks for.
#[derive(Clone, Debug)]
pub struct ClaimRequest<'a> {
    /// The queue.
    pub queue: &'a str,
    /// Who claims.
    pub incarnation: &'a str,
    /// Grows by one with every claim of this incarnation on this queue; the same number again gives the same jobs.
    pub number: u64,
    /// Free slots, 0 to [`MOST`]; with 0 what the fetcher moved goes back.
    pub slots: usize,
    /// How many of the slots are meant for each band, most urgent first; the rest goes to the most urgent.
    pub shares: [usize; 4],
    /// Whether a suspect may come along.
    pub suspects: bool,
}

/// What a claim got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The incarnation owns nothing here: never joined, or declared dead.
    Gone,
    /// A later claim was here before: a reply that crossed with another.
    Old,
    /// The queue is paused.
    Paused,
    /// Jobs, possibly none.
    Jobs {
        /// The claim's fencing token.
        token: u64,
        /// Redis' time in milliseconds: when the jobs started.
        now_ms: u64,
        /// How many entries are left in the bands; only known when all slots were filled.
        left: u64,
        /// Entries that were dropped: no record, an older stamp, or no longer ready.
        dropped: u64,
        /// The jobs.
        jobs: Vec<ClaimedJob>,
    },
}

/// One claimed job, not yet decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedJob {
    /// Its id.
    pub id: String,
    /// Its body, for [`crate::codec::decode`].
    pub body: Vec<u8>,
    /// Its state as it is now: running, with the attempt's number.
    pub packed: Packed,
}

impl Store {
    /// Claims jobs. The same request may be sent again after any error.
    ///
    /// # Errors
    /// As any call.
    pub async fn claim(&self, request: &ClaimRequest<'_>) -> Result<Claimed, StoreError> {
        let fill = |command: &mut Cmd| {
            command.arg(request.incarnation).arg(request.number).arg(request.slots.min(MOST));
            for share in request.shares {
                command.arg(share);
            }
            command.arg(u8::from(request.suspects));
        };
        let answer: Vec<Value> = CLAIM.run(&self.link, &self.keys.queue_tag(request.queue), &self.time(), fill).await?;
        parse(answer).ok_or_else(|| StoreError::unexpected("a claim that cannot be read"))
    }
}

fn parse(answer: Vec<Value>) -> Option<Claimed> {
    let mut values = answer.into_iter();
    let word = String::from_redis_value(values.next()?).ok()?;
    match word.as_str() {
        "gone" => return Some(Claimed::Gone),
        "old" => return Some(Claimed::Old),
        "paused" => return Some(Claimed::Paused),
        "ok" => {}
        _ => return None,
    }
    let token = String::from_redis_value(values.next()?).ok()?.parse().ok()?;
    let mut number = || u64::from_redis_value(values.next()?).ok();
    let (now_ms, left, dropped) = (number()?, number()?, number()?);
    let mut jobs = Vec::with_capacity(values.len() / 3);
    while let Some(id) = values.next() {
        let id = String::from_redis_value(id).ok()?;
        let body = Vec::<u8>::from_redis_value(values.next()?).ok()?;
        let packed = Packed::parse(&Vec::<u8>::from_redis_value(values.next()?).ok()?)?;
        jobs.push(ClaimedJob { id, body, packed });
    }
    Some(Claimed::Jobs { token, now_ms, left, dropped, jobs })
}
