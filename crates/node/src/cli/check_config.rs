//! `punctual check-config`: reads all layers, checks them as a whole, and shows what is in force and who said so.
//!
//! Secrets are `***`. What is wrong is told all at once, with exit code 2, before any of it can hurt.

use punctual_core::config::effective_json;
use serde_json::Value;

use super::failure::Failure;
use super::session::Session;

/// Checks the configuration and prints what is in force, with where each value came from.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: punctual check-config --config /etc/punctual/punctual.toml")]
pub(super) struct Args {}

pub(super) fn run(session: &Session, _args: &Args) -> Result<(), Failure> {
    let loaded = session.load()?;
    let document = effective_json(&loaded);
    session.out.show(&document, |out| {
        let mut rows = Vec::new();
        leaves("", &document, &document["sources"], &mut rows);
        out.table(&["key", "value", "from"], &rows)
    })
}

/// One row per value; tables that came as one value, such as `node.queues`, stay one row.
fn leaves(key: &str, value: &Value, sources: &Value, rows: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(table) if sources[key].is_null() => {
            for (name, value) in table {
                if !(key.is_empty() && name == "sources") {
                    let dot = if key.is_empty() { "" } else { "." };
                    leaves(&format!("{key}{dot}{name}"), value, sources, rows);
                }
            }
        }
        _ => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let text = if value.is_null() { String::new() } else { text };
            rows.push(vec![key.to_owned(), text, sources[key].as_str().unwrap_or_default().to_owned()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_rows_with_their_sources() {
        let tree = json!({
            "node": { "name": "n", "queues": { "default": 1 }, "strict": null },
            "sources": { "node.name": "flag --name", "node.queues": "built-in default" },
        });
        let mut rows = Vec::new();
        leaves("", &tree, &tree["sources"], &mut rows);
        let rows: Vec<String> = rows.iter().map(|row| row.join("|")).collect();
        assert_eq!(rows, ["node.name|n|flag --name", r#"node.queues|{"default":1}|built-in default"#, "node.strict||"]);
    }
}
