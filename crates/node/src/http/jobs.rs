//! One job: stored by `POST /api/v1/jobs`, shown by `GET /api/v1/jobs/{id}`.
//!
//! Whatever Redis does, the answer comes within a second. A request that is given up then may have been carried out: the
//! same `Idempotency-Key`, or the same id, tells. Deliberately absent: resending beyond that second, because whoever gets a
//! 503 sends again.

use std::collections::HashSet;
use std::time::Duration;

use axum::Extension;
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use punctual_core::backoff::Retry;
use punctual_core::client::{EnqueueError, Receipt};
use punctual_core::job::{self, FieldError, JobRequest, NewJob};
use punctual_core::policy;
use punctual_core::store::enqueue::CallId;
use punctual_core::store::inspect::{Found, JobView};
use serde::Deserialize;

use super::App;
use super::auth::Caller;
use super::body::{self, Limits};
use super::idempotency::Key;
use super::problem::{Problem, Refusal};
use crate::admission::without_values;

/// The route, for the scope of its keys.
const ROUTE: &str = "POST /api/v1/jobs";
/// What a document may hold beside its arguments.
pub(super) const ENVELOPE: usize = 64 * 1024;
/// Redis has this long; the rest of the second is for the way.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_millis(900);

/// Stores one job: 201 with its receipt, 200 when one with the same id or key is there.
pub(super) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let limits = Limits {
        types: &["application/json"],
        bytes: app.client().max_payload() + ENVELOPE,
        within: Duration::from_secs(30),
        pause: Duration::from_secs(10),
    };
    let text = body::read(&headers, body, limits).await?;
    let key = Key::read(&headers, &caller, ROUTE, &text)?;
    let (job, own_id) = parse(&text, app.client().max_payload()).map_err(Problem::fields)?;
    caller.must_reach(&job.queue)?;
    let answer = tokio::time::timeout(ANSWER_WITHIN, store(&app, key, job, own_id)).await;
    let receipt = answer.map_err(|_| Problem::late())??;
    let status = if receipt.duplicate_of.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(receipt)).into_response())
}

/// Reads and checks one document; tells also whether it brings its own id.
pub(super) fn parse(text: &str, max_payload: usize) -> Result<(NewJob, bool), Vec<FieldError>> {
    let request = JobRequest::from_json(text).map_err(|error| {
        let mut error = without_values(error);
        // Where the text breaks off, the path ends in a part that nobody wrote.
        if let Some(known) = error.field.strip_suffix('?') {
            error.field = if known.is_empty() { "body".to_owned() } else { known.trim_end_matches('.').to_owned() };
        }
        vec![error]
    })?;
    let own_id = request.id.is_some();
    Ok((request.check(max_payload)?, own_id))
}

async fn store(app: &App, key: Option<Key>, mut job: NewJob, own_id: bool) -> Result<Receipt, Problem> {
    app.admit(&job).await?;
    let call = match key {
        None => CallId::fresh(),
        Some(key) => {
            let named = key.name(app.client().store()).await?;
            if !own_id {
                job.id = named.job_id(0);
            }
            named.call("0")
        }
    };
    let receipt = app.client().submit_many(&call, vec![job]).await?.pop();
    let receipt = receipt.ok_or_else(|| Problem::new(Refusal::Internal, "Redis gave no answer for the job"))?;
    app.count_enqueued(std::slice::from_ref(&receipt));
    Ok(receipt)
}

/// The query of [`show`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShowQuery {
    queue: Option<String>,
}

/// Shows the whole life of a job. Ids are per queue: without `queue` every queue within reach is asked.
pub(super) async fn show(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<String>, PathRejection>,
    query: Result<Query<ShowQuery>, QueryRejection>,
) -> Result<Json<JobView>, Problem> {
    let absent = || Problem::new(Refusal::NotFound, "no job has this id");
    let Path(id) = path.map_err(|_| absent())?;
    let Query(ShowQuery { queue }) = query.map_err(|_| Problem::field("query", "takes only queue"))?;
    if let Some(queue) = &queue {
        job::check_queue(queue).map_err(|message| Problem::field("queue", message))?;
        caller.must_reach(queue)?;
    }
    // What cannot be an id is not looked for: it would only name a key that nobody wrote.
    job::check_id(&id).map_err(|_| absent())?;
    let answer = tokio::time::timeout(ANSWER_WITHIN, view(&app, &caller, &id, queue.as_deref())).await;
    answer.map_err(|_| Problem::late())??.map(Json).ok_or_else(absent)
}

async fn view(app: &App, caller: &Caller, id: &str, queue: Option<&str>) -> Result<Option<JobView>, Problem> {
    let store = app.client().store();
    let found = store.find(id, queue).await?.into_iter().find(|found| caller.reaches(&found.queue));
    let Some(Found { queue, record, .. }) = found else { return Ok(None) };
    let Some(mut view) = store.show(id, Some(&queue)).await? else { return Ok(None) };
    if let Ok(record) = &record {
        let handler = app.registry().get(&record.spec.handler);
        view.max_attempts = policy::effective(&record.spec, handler, app.config()).max_attempts;
    }
    Ok(Some(view))
}

impl App {
    /// Whether a job that is well formed can also be run: its handler, its arguments, its retry preset.
    pub(super) async fn admit(&self, job: &NewJob) -> Result<(), EnqueueError> {
        self.admission().check(job).await?;
        match &job.spec.retry {
            // The node that runs it would fall back to `default`; whoever misspelt a name would never learn of it.
            Some(Retry::Preset(name)) if !self.config().retry.presets.contains_key(name) => {
                Err(EnqueueError::Refused(vec![FieldError::new("retry", format!("no preset {name:?} in retry.presets"))]))
            }
            _ => Ok(()),
        }
    }

    /// Counts receipts of jobs that are new. A repeated answer of the same key counts again.
    pub(super) fn count_enqueued(&self, receipts: &[Receipt]) {
        let queues: HashSet<&str> = receipts.iter().map(|receipt| receipt.queue.as_str()).collect();
        for queue in queues {
            let stored = receipts.iter().filter(|receipt| receipt.queue == queue && receipt.duplicate_of.is_none()).count();
            let label = self.sampler().queue_label(queue);
            metrics::counter!("punctual_jobs_enqueued_total", "queue" => label).increment(stored as u64);
        }
    }
}
