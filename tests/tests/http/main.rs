//! The HTTP API as a client sees it, on a real Redis: who may do what, what is stored, what is refused and how, and what is
//! answered while Redis is away.
//!
//! The servers run inside the test process, without the actors of a node: nothing runs the jobs. Nodes as processes are
//! other tests' subject.

mod access;
mod bulk;
mod jobs;
mod lost_replies;
mod operations;
mod outage;
mod refusals;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use punctual_core::client::Client;
use punctual_core::config::{Config, Digest, Role, Token};
use punctual_core::store::Store;
use punctual_core::store::nodes::Advertised;
use punctual_node::http::{self, App};
use punctual_node::status::Status;
use punctual_tests::{Http, RedisServer, Response, fresh_namespace};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

const READ: &str = "read-0123456789-0123456789-0123456789";
const OPERATE: &str = "operate-0123456789-0123456789-0123456789";
const ADMIN: &str = "admin-0123456789-0123456789-0123456789";
/// Operates on the queue `mail` only.
const MAIL: &str = "mail-0123456789-0123456789-0123456789";

/// Both servers of a node over one namespace.
struct Server {
    /// Without a token.
    http: Http,
    /// The operators' server.
    ops: Http,
    addr: SocketAddr,
    store: Store,
    status: Arc<Status>,
    _stop: DropGuard,
}

impl Server {
    /// On the shared Redis, with the four tokens above.
    async fn with_tokens() -> Result<Self> {
        Self::start(&RedisServer::shared().await?.url(), tokens()).await
    }

    /// On the shared Redis, open to everybody on this machine.
    async fn open() -> Result<Self> {
        Self::start(&RedisServer::shared().await?.url(), Vec::new()).await
    }

    async fn start(redis: &str, tokens: Vec<Token>) -> Result<Self> {
        let mut config = Config::for_redis(redis)?;
        config.redis.namespace = fresh_namespace();
        config.http.tokens = tokens;
        let store = Store::new(&config.redis)?;
        let status = Arc::new(Status::new(Duration::from_secs(600)));
        status.beat_confirmed(tokio::time::Instant::now());
        status.fetched(Duration::from_secs(600));
        let client = Client::over(store.clone(), config.jobs.max_payload.as_usize());
        let registry = Arc::new(punctual_handlers::registry());
        let app = App::new(client, registry, Arc::new(config), Arc::clone(&status), punctual_node::metrics::install());
        let stop = CancellationToken::new();
        let mut addrs = Vec::new();
        for (key, router) in [("http.listen", http::router(app.clone())), ("http.ops_listen", http::ops_router(app))] {
            let listener = http::bind(key, "127.0.0.1:0".parse()?, "test-1").await?;
            addrs.push(listener.local_addr()?);
            tokio::spawn(http::serve(listener, router, stop.clone()));
        }
        let (http, ops) = (Http::new(addrs[0]), Http::new(addrs[1]));
        Ok(Self { http, ops, addr: addrs[0], store, status, _stop: stop.drop_guard() })
    }

    fn as_(&self, token: &str) -> Http {
        self.http.clone().token(token)
    }

    /// A node that has the handler `remote.do` with an integer `n` as its argument.
    async fn other_node(&self) -> Result<()> {
        let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
        let handlers = BTreeMap::from([("remote.do".to_owned(), Advertised { schema, seen_ms: 0 })]);
        Ok(self.store.advertise(&["default"], &handlers).await?)
    }

    /// Jobs that wait in a queue.
    async fn waiting(&self, queue: &str) -> Result<u64> {
        let view = self.store.queue(queue, Some(&[])).await?;
        Ok(view.states.ready + view.states.scheduled)
    }
}

fn tokens() -> Vec<Token> {
    let token = |name: &str, text: &str, role, queues| Token { name: name.to_owned(), role, digest: Digest::of(text), queues };
    vec![
        token("reader", READ, Role::Read, None),
        token("operator", OPERATE, Role::Operate, None),
        token("boss", ADMIN, Role::Admin, None),
        token("mailer", MAIL, Role::Operate, Some(vec!["mail".to_owned()])),
    ]
}

/// The last part of a problem's `type`, after a look at everything that all problems share.
fn problem(response: &Response) -> Result<String> {
    let document = response.json()?;
    assert_eq!(response.header("content-type"), Some("application/problem+json"), "{document}");
    assert_eq!(response.header("x-content-type-options"), Some("nosniff"), "{document}");
    assert_eq!(document["status"], response.status, "{document}");
    assert!(document["title"].is_string() && document["detail"].is_string(), "{document}");
    let kind = document["type"].as_str().and_then(|kind| kind.strip_prefix("urn:punctual:problem:"));
    Ok(kind.with_context(|| format!("{document}"))?.to_owned())
}

/// The fields that a problem names.
fn wrong(response: &Response) -> Result<Vec<String>> {
    let document = response.json()?;
    let errors = document["errors"].as_array().with_context(|| format!("no errors in {document}"))?;
    assert!(errors.iter().all(|error| error["message"].is_string()), "{document}");
    Ok(errors.iter().filter_map(|error| error["field"].as_str().map(str::to_owned)).collect())
}

fn noop() -> Value {
    json!({"handler": "demo.noop"})
}
