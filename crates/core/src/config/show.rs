//! The effective configuration as a document, with secrets as `***`. Written out by hand: a new secret cannot slip into it.

use std::collections::BTreeMap;

use figment::Profile;
use figment::value::{Tag, Value};
use serde_json::json;

use super::keys::{PRESETS, known_keys, leaves};
use super::read::Reader;
use super::{Loaded, duration};

/// The effective tree in the form of the file, and under `sources` where each value came from.
///
/// Tokens show neither digest nor file, and a URL with a password shows `***@` in its place.
#[must_use]
pub fn effective_json(loaded: &Loaded) -> serde_json::Value {
    let config = &loaded.config;
    let (redis, node, jobs) = (&config.redis, &config.node, &config.jobs);
    let mut url = redis.url.to_string();
    if redis.url.password().is_some() {
        url = url.replacen("://", "://***@", 1);
    }
    let tokens: Vec<serde_json::Value> = config
        .http
        .tokens
        .iter()
        .map(|token| json!({ "name": token.name, "role": token.role.to_string(), "sha256": "***", "queues": token.queues }))
        .collect();
    json!({
        "redis": {
            "url": url,
            "namespace": redis.namespace,
            "username": redis.username,
            "password_file": redis.password_file,
            "ca_file": redis.ca_file,
            "wait_replicas": redis.wait_replicas,
            "allow_eviction": redis.allow_eviction,
        },
        "node": {
            "name": node.name,
            "concurrency": node.concurrency,
            "queues": node.queues,
            "strict": node.strict,
            "heartbeat_every": duration::format(node.heartbeat_every),
            "dead_after": duration::format(node.dead_after),
            "drain_timeout": duration::format(node.drain_timeout),
            "on_isolation": node.on_isolation.to_string(),
        },
        "lease": {
            "ttl": duration::format(config.lease.ttl),
            "renew_every": duration::format(config.lease.renew_every),
        },
        "jobs": {
            "max_attempts": jobs.max_attempts,
            "timeout": duration::format(jobs.timeout),
            "max_crashes": jobs.max_crashes,
            "max_payload": jobs.max_payload.to_string(),
        },
        "retry": { "presets": config.retry.presets },
        "retention": {
            "succeeded": duration::format(config.retention.succeeded),
            "succeeded_max": config.retention.succeeded_max,
            "dead": duration::format(config.retention.dead),
            "dead_max": config.retention.dead_max,
        },
        "http": {
            "listen": config.http.listen.to_string(),
            "ops_listen": config.http.ops_listen.to_string(),
            "tokens": tokens,
        },
        "log": { "format": config.log.format.to_string(), "level": config.log.level },
        "handlers": {
            "demo": config.handlers.demo,
            "http": { "allow": config.handlers.http.allow },
            "exec": { "allow": config.handlers.exec.allow },
        },
        "sources": loaded.sources,
    })
}

/// Where each value came from; a file without its lines, which change with every edit.
pub(super) fn sources(reader: &Reader) -> BTreeMap<String, String> {
    let mut sources = BTreeMap::new();
    let mut note = |path: &[String], tag: Tag| {
        let Some(metadata) = reader.figment.get_metadata(tag) else { return };
        let file = metadata.source.as_ref().and_then(|source| source.file_path());
        let source = file.map_or_else(|| metadata.interpolate(&Profile::Default, path), |path| path.display().to_string());
        sources.insert(path.join("."), source);
    };
    for key in known_keys() {
        let Ok(value) = reader.figment.find_value(&key) else { continue };
        let mut path: Vec<String> = key.split('.').map(str::to_owned).collect();
        match &value {
            Value::Dict(_, presets) if key == PRESETS => {
                leaves(presets, &mut path, &|_| false, &mut |path, value| note(path, value.tag()));
            }
            value => note(&path, value.tag()),
        }
    }
    sources
}
