//! Whether the process lives, whether it can serve, and its metrics.
//!
//! `/healthz` never looks at Redis: an orchestrator that restarts nodes because Redis is away makes an outage worse.
//! `/readyz` runs a real script, because a server that answers PING may still refuse every job. Both are open to anyone, so
//! they say little, and many who ask at a time cost Redis one script. Deliberately absent: the text of errors.

use std::time::{Duration, Instant};

use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use punctual_core::store::Store;
use serde_json::json;

use super::App;
use super::auth::Caller;
use super::problem::{Problem, Refusal};
use crate::status::Check;

/// Redis has this long to run a script.
const PROBE_WITHIN: Duration = Duration::from_secs(1);
/// An answer of Redis is good for this long.
const PROBE_FRESH: Duration = Duration::from_millis(250);

/// Asks Redis to run a script, once for all who ask at a time.
pub(super) struct Prober {
    store: Store,
    last: tokio::sync::Mutex<Option<(Instant, Check)>>,
}

impl Prober {
    pub(super) fn new(store: Store) -> Self {
        Self { store, last: tokio::sync::Mutex::default() }
    }

    async fn check(&self) -> Check {
        let mut last = self.last.lock().await;
        if let Some((at, check)) = last.as_ref()
            && at.elapsed() < PROBE_FRESH
        {
            return check.clone();
        }
        let store = self.store.clone();
        let begun = Instant::now();
        // Its own task: dropped at the deadline it could not tell the link that its connection is dead.
        let probe = tokio::spawn(async move { store.probe().await });
        let (ok, detail) = match tokio::time::timeout(PROBE_WITHIN, probe).await {
            Ok(Ok(Ok(_))) => (true, format!("a script answered in {} ms", begun.elapsed().as_millis())),
            Ok(Ok(Err(error))) => (false, error.kind.word().to_owned()),
            Ok(Err(_)) => (false, "the check itself failed".to_owned()),
            Err(_) => (false, format!("no answer within {} ms", PROBE_WITHIN.as_millis())),
        };
        let check = Check { name: "redis", ok, detail };
        *last = Some((Instant::now(), check.clone()));
        check
    }
}

/// The process is alive.
pub(super) async fn alive() -> Response {
    Json(json!({ "ok": true })).into_response()
}

/// Whether the node can serve, and which check fails.
pub(super) async fn ready(State(app): State<App>) -> Response {
    let mut checks = app.status().checks();
    checks.push(app.prober().check().await);
    let ok = checks.iter().all(|check| check.ok);
    let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ok": ok, "checks": checks }))).into_response()
}

/// The metrics, for a caller who may see all queues.
pub(super) async fn metrics(State(app): State<App>, caller: Option<Extension<Caller>>) -> Response {
    // The server of the operators asks nobody who they are.
    if caller.is_some_and(|Extension(caller)| caller.queues.is_some()) {
        let detail = "metrics tell of all queues, and this token does not reach all";
        return Problem::new(Refusal::Forbidden, detail).into_response();
    }
    app.sampler().sample().await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics().render()).into_response()
}
