//! The command line as a script sees it: exit codes, documents, refusals that change nothing, and what it says when Redis
//! is not what it should be.
//!
//! `live` and `dev` start real nodes; everything else needs a Redis only, or nothing at all.

mod bulk;
mod dev;
mod documents;
mod live;
mod local;
mod redis_errors;
mod refusals;

use anyhow::{Context as _, Result};
use punctual_tests::{Cli, RedisServer, fresh_namespace};
use serde_json::Value;

/// Arguments that `order.close` takes.
const ORDER: &str = r#"{"order_id":7,"shop":"http://shop.example/"}"#;

/// Commands against a namespace of their own on the shared server, with the demo handlers.
async fn cluster() -> Result<(Cli, String)> {
    let namespace = fresh_namespace();
    let cli = Cli::new(&RedisServer::shared().await?.url(), &namespace).env("PUNCTUAL__HANDLERS__DEMO", "true");
    Ok((cli, namespace))
}

/// A field of a document that is text.
fn text<'a>(document: &'a Value, field: &str) -> Result<&'a str> {
    document[field].as_str().with_context(|| format!("{field} is not text in {document}"))
}

/// The names of an object's fields, sorted.
fn fields(document: &Value) -> Vec<&str> {
    document.as_object().map(|object| object.keys().map(String::as_str).collect()).unwrap_or_default()
}
