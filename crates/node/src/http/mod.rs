//! The HTTP servers of a node: the API on `http.listen`, and health and metrics alone on `http.ops_listen`.
//!
//! Bodies equal the documents of the commands of the same name. Every answer that refuses is a problem document, no GET
//! changes anything, and Redis away is an answer within a second. The dashboard and the other routes of the contract come
//! with their features. axum is used in this module and nowhere else.

mod auth;
mod body;
mod bulk;
mod health;
mod idempotency;
mod jobs;
mod problem;
pub mod routes;
mod serve;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use futures_util::FutureExt;
use metrics_exporter_prometheus::PrometheusHandle;
use punctual_core::client::Client;
use punctual_core::config::Config;
use punctual_core::handler::Registry;
use tokio::sync::{Semaphore, SemaphorePermit};

use self::problem::{Problem, Refusal};
pub use self::serve::{BindError, bind, serve};
use crate::admission::Admission;
use crate::metrics::Sampler;
use crate::status::Status;

/// What the routes work with. Cheap to clone.
#[derive(Clone)]
pub struct App {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    registry: Arc<Registry>,
    config: Arc<Config>,
    status: Arc<Status>,
    metrics: PrometheusHandle,
    admission: Admission,
    sampler: Sampler,
    prober: health::Prober,
    bulk: Semaphore,
}

impl App {
    /// Puts the parts of a node together for its servers. `metrics` is what [`crate::metrics::install`] returns.
    #[must_use]
    pub fn new(
        client: Client,
        registry: Arc<Registry>,
        config: Arc<Config>,
        status: Arc<Status>,
        metrics: PrometheusHandle,
    ) -> Self {
        let store = client.store().clone();
        let inner = Inner {
            admission: Admission::new(Arc::clone(&registry), store.clone()),
            sampler: Sampler::new(store.clone(), config.node.queues.keys().cloned().collect()),
            prober: health::Prober::new(store),
            bulk: Semaphore::new(bulk::AT_A_TIME),
            client,
            registry,
            config,
            status,
            metrics,
        };
        Self { inner: Arc::new(inner) }
    }

    fn client(&self) -> &Client {
        &self.inner.client
    }

    fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    fn config(&self) -> &Config {
        &self.inner.config
    }

    fn status(&self) -> &Status {
        &self.inner.status
    }

    fn metrics(&self) -> &PrometheusHandle {
        &self.inner.metrics
    }

    fn admission(&self) -> &Admission {
        &self.inner.admission
    }

    fn sampler(&self) -> &Sampler {
        &self.inner.sampler
    }

    fn prober(&self) -> &health::Prober {
        &self.inner.prober
    }

    async fn bulk_turn(&self) -> Option<SemaphorePermit<'_>> {
        self.inner.bulk.acquire().await.ok()
    }
}

/// The router of `http.listen`: every route, with the credentials that the table asks for.
pub fn router(app: App) -> Router {
    let routes = routes::ROUTES.iter().fold(Router::new(), |router, route| {
        let handler: MethodRouter<App> = (route.handler)();
        let handler = match route.role {
            Some(role) => handler.route_layer(middleware::from_fn_with_state(role, auth::authorize)),
            None => handler,
        };
        router.route(route.path, handler)
    });
    // Layers stand before what was added so far, so the fallbacks come first: an unknown path asks for a token too.
    let guarded = with_fallbacks(routes).layer(middleware::from_fn_with_state(app.clone(), auth::authenticate));
    guarded.layer(middleware::from_fn(finish)).with_state(app)
}

/// The router of `http.ops_listen`: health and metrics, without credentials.
pub fn ops_router(app: App) -> Router {
    let ops = routes::ROUTES.iter().filter(|route| route.ops);
    let routes = ops.fold(Router::new(), |router, route| router.route(route.path, (route.handler)()));
    with_fallbacks(routes).layer(middleware::from_fn(finish)).with_state(app)
}

fn with_fallbacks(router: Router<App>) -> Router<App> {
    router
        .fallback(|| async { Problem::new(Refusal::NotFound, "no route has this path") })
        .method_not_allowed_fallback(|| async { Problem::new(Refusal::MethodNotAllowed, "see the Allow header") })
}

/// Makes a panic an answer, and adds the headers that every answer has.
async fn finish(request: Request, next: Next) -> Response {
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = answer.unwrap_or_else(|_| Problem::new(Refusal::Internal, "this is a defect").into_response());
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Answers change at any moment, and some hold arguments that no cache should keep.
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
