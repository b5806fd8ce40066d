//! Makes the typed configuration out of the merged layers, key by key in the order of `config/default.toml`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use figment::value::{Dict, Value};
use serde_json::json;

use super::keys::{PRESETS, QUEUES, quoted, slug};
use super::read::{Given, Reader, within};
use super::tokens::tokens;
use super::words::filter;
use super::{
    Allow, Bytes, Config, Handlers, Http, Jobs, Lease, Listen, Log, LogFormat, Node, OnIsolation, Redis, RedisUrl, Retention,
    RetryConfig,
};
use crate::backoff::RetryPolicy;

const MS: fn(u64) -> Duration = Duration::from_millis;
const SECONDS: fn(u64) -> Duration = Duration::from_secs;
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const LARGEST_PAYLOAD: Bytes = Bytes(16 << 20);

pub(super) fn config(reader: &mut Reader, host_name: &str) -> Config {
    Config {
        redis: Redis {
            url: reader.take("redis.url", |given| RedisUrl::parse(given.value.as_str().ok_or("expected text in quotes")?)),
            namespace: reader.text("redis.namespace", slug),
            username: reader.optional("redis.username"),
            password_file: reader.path("redis.password_file"),
            ca_file: reader.path("redis.ca_file"),
            wait_replicas: reader.whole("redis.wait_replicas", 0, 100),
            allow_eviction: reader.flag("redis.allow_eviction"),
        },
        node: Node {
            name: Some(reader.text("node.name", node_name))
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| host_name.to_owned()),
            concurrency: reader.whole("node.concurrency", 1, 100_000),
            queues: reader.take(QUEUES, queues),
            strict: reader.flag("node.strict"),
            heartbeat_every: reader.duration("node.heartbeat_every", MS(50), SECONDS(MINUTE)),
            dead_after: reader.duration("node.dead_after", MS(150), SECONDS(HOUR)),
            drain_timeout: reader.duration("node.drain_timeout", Duration::ZERO, SECONDS(HOUR)),
            on_isolation: reader.word("node.on_isolation", &[OnIsolation::Continue, OnIsolation::Cancel]),
        },
        lease: Lease {
            ttl: reader.duration("lease.ttl", MS(150), SECONDS(10 * MINUTE)),
            renew_every: reader.duration("lease.renew_every", MS(50), SECONDS(MINUTE)),
        },
        jobs: Jobs {
            max_attempts: reader.whole("jobs.max_attempts", 1, 10_000),
            timeout: reader.duration("jobs.timeout", MS(1), SECONDS(30 * DAY)),
            max_crashes: reader.whole("jobs.max_crashes", 1, 1000),
            max_payload: reader
                .take("jobs.max_payload", |given| within(given.size()?, Bytes(1), LARGEST_PAYLOAD, |size| size.to_string())),
        },
        retry: RetryConfig { presets: presets(reader) },
        retention: Retention {
            succeeded: reader.duration("retention.succeeded", Duration::ZERO, SECONDS(3650 * DAY)),
            succeeded_max: reader.whole("retention.succeeded_max", 0, 100_000_000),
            dead: reader.duration("retention.dead", Duration::ZERO, SECONDS(3650 * DAY)),
            dead_max: reader.whole("retention.dead_max", 0, 100_000_000),
        },
        http: Http {
            listen: reader.take("http.listen", |given| Listen::parse(given.text()?)),
            ops_listen: reader.take("http.ops_listen", |given| Listen::parse(given.text()?)),
            tokens: tokens(reader),
        },
        log: Log {
            format: reader.word("log.format", &[LogFormat::Auto, LogFormat::Json, LogFormat::Pretty]),
            level: reader.text("log.level", filter),
        },
        handlers: Handlers {
            demo: reader.flag("handlers.demo"),
            http: Allow { allow: reader.take("handlers.http.allow", |given| allowed(given, url_prefix)) },
            exec: Allow { allow: reader.take("handlers.exec.allow", |given| allowed(given, program)) },
        },
    }
}

fn node_name(name: &str) -> Result<(), String> {
    let fits = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
    if name.len() <= 253 && name.bytes().all(fits) {
        Ok(())
    } else {
        Err(format!("must be 1 to 253 of A-Z, a-z, 0-9, . _ and -, got {}", quoted(name)))
    }
}

fn queues(given: &Given) -> Result<BTreeMap<String, u32>, String> {
    let mut queues = BTreeMap::new();
    for (name, weight) in given.table()? {
        slug(&name)?;
        let weight = weight.whole().and_then(|weight| within(weight, 1, 1000, |weight| weight.to_string()));
        let weight = weight.and_then(|weight| u32::try_from(weight).map_err(|error| error.to_string()));
        let weight = weight.map_err(|message| format!("the weight of {name} {}", message.replace("expected", "must be")))?;
        if queues.insert(name.clone(), weight).is_some() {
            return Err(format!("names {name} twice"));
        }
    }
    if queues.is_empty() { Err("must name at least one queue, such as { default = 1 }".to_owned()) } else { Ok(queues) }
}

fn allowed(given: &Given, check: fn(&str) -> Result<(), String>) -> Result<Vec<String>, String> {
    let list = given.list()?;
    list.iter().try_for_each(|entry| check(entry))?;
    Ok(list)
}

/// The handler of HTTP requests judges the list; what could never match, or would match too much, is refused here.
fn url_prefix(text: &str) -> Result<(), String> {
    let rest = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    let named = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    let plain = !text.chars().any(|c| c.is_whitespace() || c.is_control());
    if named && plain {
        Ok(())
    } else {
        Err(format!("must hold URL prefixes such as https://api.example.com/, got {}", quoted(text)))
    }
}

fn program(text: &str) -> Result<(), String> {
    let plain = Path::new(text).is_absolute() && text.len() > 1 && !text.chars().any(char::is_control);
    if plain { Ok(()) } else { Err(format!("must hold absolute paths such as /usr/bin/php, got {}", quoted(text))) }
}

/// Reads each value of each preset by itself, so that all wrong ones are reported, then the presets as wholes.
fn presets(reader: &mut Reader) -> BTreeMap<String, RetryPolicy> {
    let given = reader.given(PRESETS);
    let Value::Dict(_, presets) = given.value else {
        reader.refuse(PRESETS, "expected tables such as [retry.presets.fast]".to_owned());
        return BTreeMap::new();
    };
    let mut policies = BTreeMap::new();
    for (name, preset) in presets {
        let Value::Dict(_, fields) = preset else { continue };
        let mut whole = serde_json::Map::new();
        for (field, value) in &fields {
            let alone = policy_value(&reader.part(value.clone()), field).and_then(|value| {
                let policy = serde_json::from_value::<RetryPolicy>(json!({ field: value }));
                policy.map(|_| value).map_err(|error| error.to_string())
            });
            match alone {
                Ok(value) => drop(whole.insert(field.clone(), value)),
                Err(message) => refuse_field(reader, &name, field, &fields, message),
            }
        }
        match serde_json::from_value::<RetryPolicy>(whole.into()) {
            Ok(policy) => {
                if let Err(message) = policy.check() {
                    let (field, rest) = message.split_once(' ').unwrap_or(("", &message));
                    refuse_field(reader, &name, field, &fields, rest.to_owned());
                }
                policies.insert(name, policy);
            }
            Err(error) => refuse_field(reader, &name, "", &fields, error.to_string()),
        }
    }
    policies
}

fn refuse_field(reader: &mut Reader, name: &str, field: &str, fields: &Dict, message: String) {
    // A value that is missing was forgotten by whoever chose the kind of backoff.
    let value = fields.get(field).or_else(|| fields.get("backoff")).or_else(|| fields.values().next());
    let key = format!("{PRESETS}.{name}.{field}");
    let key = key.trim_end_matches('.').to_owned();
    let origin = value.map_or_else(String::new, |value| reader.origin(value.tag(), &key.split('.').collect::<Vec<_>>()));
    reader.refuse_from(PRESETS, key, message, origin);
}

/// The JSON of one value of a policy; text of the environment becomes what the field needs.
fn policy_value(given: &Given, field: &str) -> Result<serde_json::Value, String> {
    match (field, &given.value) {
        ("factor" | "jitter", Value::String(_, text)) if given.text => {
            let number: f64 = text.trim().parse().map_err(|_| format!("expected a number, got {}", quoted(text)))?;
            Ok(json!(number))
        }
        ("max_attempts", _) => Ok(json!(u32::try_from(given.whole()?).map_err(|_| "must be from 1 to 4294967295".to_owned())?)),
        ("delays", _) => Ok(json!(given.list()?)),
        (_, value) => serde_json::to_value(value).map_err(|error| error.to_string()),
    }
}
