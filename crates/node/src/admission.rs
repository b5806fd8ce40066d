//! Whether the cluster can run a job at all: its handler exists, and its arguments fit. Asked before a job is stored.
//!
//! A handler of this binary judges its arguments itself; for one that only other nodes have, the JSON Schema that they
//! advertise does. What they advertise is read again when it is older than a few seconds. Messages name fields and types,
//! never the value that was handed in: they travel through logs of proxies and clients. Deliberately absent: the job's own
//! fields, which [`punctual_core::job::JobRequest::check`] checks, and who may produce into which queue.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use jsonschema::Validator;
use punctual_core::client::EnqueueError;
use punctual_core::handler::Registry;
use punctual_core::job::{FieldError, NewJob};
use punctual_core::store::{Store, StoreError};

/// How long an answer about other nodes' handlers is good for.
const FRESH_FOR: Duration = Duration::from_secs(5);

/// Judges jobs. Clones share what they know.
#[derive(Clone)]
pub struct Admission {
    registry: Arc<Registry>,
    store: Store,
    known: Arc<tokio::sync::Mutex<Option<Known>>>,
}

#[derive(Clone)]
struct Known {
    since: Instant,
    handlers: Arc<BTreeMap<String, Schema>>,
}

struct Schema {
    text: serde_json::Value,
    /// Compiled at its first use; `None` when it is no schema, which is no reason to refuse jobs.
    compiled: OnceLock<Option<Validator>>,
}

impl Admission {
    /// Judges by this binary's handlers and by those that other nodes advertise.
    #[must_use]
    pub fn new(registry: Arc<Registry>, store: Store) -> Self {
        Self { registry, store, known: Arc::default() }
    }

    /// Whether some node of the cluster can run this job.
    ///
    /// # Errors
    /// [`EnqueueError::Refused`] names the field, [`EnqueueError::Store`] when Redis had to be asked and could not be.
    pub async fn check(&self, job: &NewJob) -> Result<(), EnqueueError> {
        let (handler, args) = (job.spec.handler.as_str(), job.spec.args.as_str());
        if let Some(own) = self.registry.get(handler) {
            return own.check(args).map_err(|error| EnqueueError::Refused(vec![without_values(error)]));
        }
        match self.handlers().await?.get(handler) {
            Some(schema) => schema.check(args).map_err(EnqueueError::Refused),
            None => Err(EnqueueError::Refused(vec![FieldError::new("handler", format!("no node has a handler {handler:?}"))])),
        }
    }

    /// What other nodes advertise. One caller asks; those who come meanwhile wait for its answer.
    async fn handlers(&self) -> Result<Arc<BTreeMap<String, Schema>>, StoreError> {
        let mut known = self.known.lock().await;
        if let Some(known) = known.as_ref()
            && known.since.elapsed() < FRESH_FOR
        {
            return Ok(Arc::clone(&known.handlers));
        }
        let advertised = self.store.advertised().await?;
        let schema = |text| Schema { text, compiled: OnceLock::new() };
        let handlers = Arc::new(advertised.into_iter().map(|(name, advertised)| (name, schema(advertised.schema))).collect());
        *known = Some(Known { since: Instant::now(), handlers: Arc::clone(&handlers) });
        Ok(handlers)
    }
}

impl Schema {
    fn check(&self, args: &str) -> Result<(), Vec<FieldError>> {
        // The linear engine: a pattern that another node sent must not be able to stall this one.
        let options = || jsonschema::options().with_pattern_options(jsonschema::PatternOptions::regex());
        let Some(validator) = self.compiled.get_or_init(|| options().build(&self.text).ok()) else { return Ok(()) };
        let value = serde_json::from_str(args).map_err(|error| vec![FieldError::new("args", error.to_string())])?;
        let wrong: Vec<FieldError> = validator
            .iter_errors(&value)
            .take(20)
            .map(|error| {
                let path = error.instance_path().as_str().replace('/', ".");
                FieldError::new(format!("args{path}"), error.masked().to_string())
            })
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}

/// Takes the value out of a message of serde: `invalid type: string "…", expected u64` keeps its kind and what was expected.
#[must_use]
pub fn without_values(error: FieldError) -> FieldError {
    let FieldError { field, message } = error;
    let begins = ["invalid type: ", "invalid value: ", "invalid length ", "unknown variant "];
    let message = match (message.find(", expected "), begins.iter().find(|begin| message.starts_with(*begin))) {
        (Some(_), Some(begin)) => {
            // The value may itself hold these words, so the last ones count.
            let expected = message.rfind(", expected ").map_or("", |at| &message[at..]);
            let kind = message[begin.len()..].split(['"', '`', ',']).next().unwrap_or("").trim_end();
            format!("{}{}{expected}", begin.trim_end(), if kind.is_empty() { String::new() } else { format!(" {kind}") })
        }
        _ => message,
    };
    FieldError { field, message }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(text: serde_json::Value) -> Schema {
        Schema { text, compiled: OnceLock::new() }
    }

    #[test]
    fn schemas_of_other_nodes_name_the_field_and_hide_the_value() {
        let text = json!({
            "type": "object", "required": ["id"], "additionalProperties": false,
            "properties": {"id": {"type": "integer"}, "to": {"type": "array", "items": {"type": "string", "pattern": "^a+$"}}},
        });
        let schema = schema(text);
        assert_eq!(schema.check(r#"{"id":7,"to":["aa"]}"#), Ok(()));
        let fields = |args: &str| schema.check(args).unwrap_err().into_iter().map(|error| error.field).collect::<Vec<_>>();
        assert_eq!(fields(r#"{"id":"s3cret"}"#), ["args.id"]);
        assert_eq!(fields(r#"{"id":1,"to":["a","s3cret"]}"#), ["args.to.1"]);
        assert_eq!(fields("{}"), ["args"]);
        for args in [r#"{"id":"s3cret"}"#, r#"{"id":1,"to":["s3cret"]}"#, r#""s3cret""#, r#"{"id":1,"to":"s3cret"}"#] {
            let wrong = schema.check(args).unwrap_err();
            assert!(!format!("{wrong:?}").contains("s3cret"), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_no_schema_refuses_nothing() {
        for text in [json!(7), json!({"type": "nonsense"}), json!({"$ref": "https://elsewhere.example/x"})] {
            assert_eq!(schema(text).check("{}"), Ok(()));
        }
    }

    #[test]
    fn messages_of_serde_lose_their_values() {
        for (message, kept) in [
            (
                r#"invalid type: string "s3cret", expected u64 at line 1 column 5"#,
                "invalid type: string, expected u64 at line 1 column 5",
            ),
            ("invalid value: integer `-1`, expected u64", "invalid value: integer, expected u64"),
            ("invalid type: map, expected u64", "invalid type: map, expected u64"),
            (r#"invalid type: string "a, expected b", expected u64"#, "invalid type: string, expected u64"),
            ("unknown variant `s3cret`, expected `a` or `b`", "unknown variant, expected `a` or `b`"),
            ("missing field `order_id`", "missing field `order_id`"),
        ] {
            assert_eq!(without_values(FieldError::new("args", message)).message, kept);
        }
    }
}
