//! Many jobs in one request: `POST /api/v1/jobs/bulk`, NDJSON or an array, an answer per item.
//!
//! Items are stored in chunks, each queue's part of a chunk whole or not at all; a refused item stops nobody else's. When
//! Redis goes away in between, the answer is a 503 with the results so far: the items after them may or may not be stored,
//! and the same request with the same `Idempotency-Key` stores only what is missing. Only a few such requests run at a time,
//! because each may hold its whole body in memory. Deliberately absent: storing while the body still arrives.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use punctual_core::client::{EnqueueError, Receipt};
use punctual_core::job::{FieldError, NewJob};
use punctual_core::store::enqueue::{BATCH, CallId, NamedCall};
use serde::Serialize;
use serde_json::value::RawValue;

use super::App;
use super::auth::{self, Caller};
use super::body::{self, Limits};
use super::idempotency::{self, Key};
use super::jobs::{ANSWER_WITHIN, ENVELOPE, parse};
use super::problem::{Problem, Refusal};

const ROUTE: &str = "POST /api/v1/jobs/bulk";
const LIMITS: Limits = Limits {
    types: &["application/x-ndjson", "application/ndjson", "application/jsonl", "application/json"],
    bytes: 32 << 20,
    within: Duration::from_secs(120),
    pause: Duration::from_secs(10),
};
/// Most items of one request.
const MAX_ITEMS: usize = 100_000;
/// Requests at a time, and how long another one waits for its turn.
pub(super) const AT_A_TIME: usize = 4;
const TURN_WITHIN: Duration = Duration::from_secs(5);
/// A chunk may hold megabytes, so it has longer than a single job once Redis has answered at all.
const CHUNK_WITHIN: Duration = Duration::from_secs(10);

/// What became of one item.
#[derive(Serialize)]
#[serde(untagged)]
enum Outcome {
    Stored(Receipt),
    Refused { line: usize, error: FieldError },
}

#[derive(Serialize)]
pub(super) struct Results {
    results: Vec<Outcome>,
}

/// Stores many jobs; the answers are in the order of the items, blank lines left out.
pub(super) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Results>, Problem> {
    let turn = tokio::time::timeout(TURN_WITHIN, app.bulk_turn()).await;
    let _turn = turn.map_err(|_| Problem::new(Refusal::TooManyRequests, "too many bulk requests at a time"))?;
    let text = body::read(&headers, body, LIMITS).await?;
    let key = Key::read(&headers, &caller, ROUTE, &text)?;
    let items = split(&text)?;
    if items.len() > MAX_ITEMS {
        return Err(Problem::new(Refusal::TooLarge, format!("more than {MAX_ITEMS} jobs in one request")));
    }
    let store = app.client().store();
    let begin = async {
        store.probe().await?;
        match key {
            Some(key) => key.name(store).await.map(Some),
            None => Ok(None),
        }
    };
    let named = tokio::time::timeout(ANSWER_WITHIN, begin).await.map_err(|_| Problem::late())??;
    let mut results = Vec::with_capacity(items.len());
    for (number, chunk) in items.chunks(BATCH).enumerate() {
        let answer = tokio::time::timeout(CHUNK_WITHIN, store_chunk(&app, &caller, named.as_ref(), number, chunk)).await;
        match answer.unwrap_or_else(|_| Err(Problem::late())) {
            Ok(outcomes) => results.extend(outcomes),
            Err(problem) => {
                let results = serde_json::to_value(&results).unwrap_or_default();
                return Err(problem.with_results(results));
            }
        }
    }
    Ok(Json(Results { results }))
}

/// The items with their numbers: lines count from 1 with blank ones, items of an array count from 1.
fn split(text: &str) -> Result<Vec<(usize, &str)>, Problem> {
    if !text.trim_start().starts_with('[') {
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        return Ok(lines.filter(|(_, line)| !line.is_empty()).collect());
    }
    let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| Problem::field("body", error.to_string()))?;
    Ok(items.into_iter().enumerate().map(|(index, item)| (index + 1, item.get())).collect())
}

async fn store_chunk(
    app: &App,
    caller: &Caller,
    named: Option<&NamedCall>,
    number: usize,
    chunk: &[(usize, &str)],
) -> Result<Vec<Outcome>, Problem> {
    let mut refused = Vec::new();
    let (mut lines, mut jobs) = (Vec::new(), Vec::new());
    for (line, text) in chunk {
        match admit(app, caller, text).await {
            Ok((mut job, own_id)) => {
                if let (Some(named), false) = (named, own_id) {
                    job.id = named.job_id(*line);
                }
                lines.push(*line);
                jobs.push(job);
            }
            Err(EnqueueError::Refused(errors)) => refused.extend(errors.into_iter().next().map(|error| (*line, error))),
            Err(error) => return Err(error.into()),
        }
    }
    // A handler may have come or gone since the key's first request: then other items are stored, and its receipt, which
    // counts answers and not items, must not answer for them. Their ids still tell which are there.
    let call =
        named.map_or_else(CallId::fresh, |named| named.call(&format!("{number}.{}", idempotency::hex(&format!("{lines:?}")))));
    let receipts = app.client().submit_many(&call, jobs).await?;
    app.count_enqueued(&receipts);
    let stored = lines.into_iter().zip(receipts.into_iter().map(Outcome::Stored));
    let refused = refused.into_iter().map(|(line, error)| (line, Outcome::Refused { line, error }));
    let mut outcomes: Vec<(usize, Outcome)> = stored.chain(refused).collect();
    outcomes.sort_by_key(|(line, _)| *line);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

async fn admit(app: &App, caller: &Caller, text: &str) -> Result<(NewJob, bool), EnqueueError> {
    let max_payload = app.client().max_payload();
    let refuse = |field: &str, message: String| EnqueueError::Refused(vec![FieldError::new(field, message)]);
    if text.len() > max_payload + ENVELOPE {
        return Err(refuse("body", format!("is larger than {} bytes", max_payload + ENVELOPE)));
    }
    let (job, own_id) = parse(text, max_payload).map_err(EnqueueError::Refused)?;
    if !caller.reaches(&job.queue) {
        return Err(refuse("queue", auth::out_of_reach(&job.queue)));
    }
    app.admit(&job).await?;
    Ok((job, own_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_arrays_are_numbered_from_one() {
        let lines =
            |text: &str| split(text).map_err(drop).unwrap().into_iter().map(|(n, item)| format!("{n}{item}")).collect::<Vec<_>>();
        assert_eq!(lines("{}\n\n {\"a\":1}\r\nx\n"), ["1{}", "3{\"a\":1}", "4x"]);
        assert_eq!(lines("\n [ {} , 7,\n[1, 2]]"), ["1{}", "27", "3[1, 2]"]);
        assert!(lines("").is_empty());
        assert!(split("[{},").is_err());
    }
}
