//! `punctual handlers`: the handlers of this program, what arguments they take, and what a job gets that says nothing else.
//!
//! Asks no cluster: it shows what a node with this program and this configuration would run.

use punctual_core::config::Config;
use punctual_core::duration;
use punctual_core::handler::Registered;
use punctual_core::job::JobSpec;
use punctual_core::policy;
use serde::Serialize;
use serde_json::{Value, json};

use super::failure::Failure;
use super::session::Session;

/// Lists the handlers of this program, with the JSON Schemas of their arguments and their default policies.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: punctual handlers -o json")]
pub(super) struct Args {}

#[derive(Serialize)]
struct Document {
    handlers: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    args_schema: Value,
    defaults: Value,
}

pub(super) fn run(session: &Session, _args: &Args) -> Result<(), Failure> {
    let config = session.load()?.config;
    let registry = session.handlers(&config);
    let document = Document { handlers: registry.iter().map(|handler| entry(handler, &config)).collect() };
    session.out.show(&document, |out| {
        let row = |entry: &Entry| {
            let defaults = &entry.defaults;
            let retry = defaults["retry"].as_str().map_or_else(|| "own policy".to_owned(), str::to_owned);
            let timeout = defaults["timeout"].as_str().unwrap_or_default().to_owned();
            vec![entry.name.clone(), arguments(&entry.args_schema), retry, defaults["max_attempts"].to_string(), timeout]
        };
        let rows: Vec<Vec<String>> = document.handlers.iter().map(row).collect();
        out.table(&["handler", "arguments", "retry", "attempts", "timeout"], &rows)
    })
}

fn entry(handler: &Registered, config: &Config) -> Entry {
    let effective = policy::effective(&no_wishes(&handler.name), Some(handler), config);
    let retry = handler.retry.as_ref().map_or_else(|| json!("default"), |retry| json!(retry));
    let defaults = json!({
        "retry": retry,
        "max_attempts": effective.max_attempts,
        "timeout": duration::format(effective.timeout),
    });
    Entry { name: handler.name.clone(), args_schema: handler.schema.clone(), defaults }
}

/// A job that says nothing about policies.
pub(super) fn no_wishes(handler: &str) -> JobSpec {
    JobSpec {
        handler: handler.to_owned(),
        args: "{}".to_owned(),
        max_attempts: None,
        retry: None,
        timeout_ms: None,
        deadline_ms: None,
        tags: std::collections::BTreeMap::new(),
        headers: std::collections::BTreeMap::new(),
    }
}

/// The names of the arguments; those that may be left out have a question mark.
fn arguments(schema: &Value) -> String {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let names = schema["properties"].as_object().into_iter().flat_map(|properties| properties.keys());
    let names = names.map(|name| if required.contains(&name.as_str()) { name.clone() } else { format!("{name}?") });
    names.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_named_and_optional_ones_marked() {
        let schema = json!({ "properties": { "argv": {}, "cwd": {} }, "required": ["argv"] });
        assert_eq!(arguments(&schema), "argv cwd?");
        assert_eq!(arguments(&json!({ "type": "object" })), "");
    }
}
