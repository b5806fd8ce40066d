//! Everything that a namespace holds in Redis, as comparable values: for before/after tables of one script.
//!
//! Taken key by key, so only what stands still is seen right; not for a cluster at work.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, bail};
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};

/// Keys with their values, in the order of the keys.
///
/// A value is an object with its type as key: `{"string": "…"}`, `{"list": […]}` in order, `{"set": […]}` sorted,
/// `{"hash": {…}}`, `{"zset": {member: score}}`, `{"stream": [[id, {…}]]}`; keys that expire have
/// `"expires": true` too. Bytes that are not printable ASCII are escaped as in Rust (`\x00`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Key to value.
    pub keys: BTreeMap<String, Value>,
}

impl Snapshot {
    /// Reads all keys that begin with `{namespace}` or `{namespace:`.
    ///
    /// # Errors
    /// When Redis does not answer or holds a type that punctual does not use.
    pub async fn take(conn: &mut MultiplexedConnection, namespace: &str) -> Result<Self> {
        let mut keys = BTreeMap::new();
        for pattern in [format!("{{{namespace}}}*"), format!("{{{namespace}:*}}*")] {
            let mut cursor = 0_u64;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1_000);
                let (next, found): (u64, Vec<Vec<u8>>) = scan.query_async(conn).await?;
                for key in found {
                    // A key may expire between SCAN and here.
                    if let Some(value) = read(conn, &key).await? {
                        keys.insert(escape(&key), value);
                    }
                }
                if next == 0 {
                    break;
                }
                cursor = next;
            }
        }
        Ok(Self { keys })
    }

    /// The value of a key; null when there is no such key.
    #[must_use]
    pub fn get(&self, key: &str) -> &Value {
        self.keys.get(key).unwrap_or(&Value::Null)
    }

    /// Drops the keys that satisfy `which`, such as beats.
    #[must_use]
    pub fn without(mut self, which: impl Fn(&str) -> bool) -> Self {
        self.keys.retain(|key, _| !which(key));
        self
    }

    /// Writes `name` for `text` wherever it occurs in keys and values: for generated ids.
    #[must_use]
    pub fn rename(self, text: &str, name: &str) -> Self {
        self.map_text(&|have| have.replace(text, name))
    }

    /// Writes `<time>` for each decimal number of 13 to 16 digits (milliseconds and microseconds since 1970, and
    /// what is derived from them: terms and tokens) in values and scores. Keys stay.
    #[must_use]
    pub fn blank_times(mut self) -> Self {
        for value in self.keys.values_mut() {
            *value = map_value(value, &blank_digits);
        }
        self
    }

    fn map_text(self, change: &dyn Fn(&str) -> String) -> Self {
        Self { keys: self.keys.iter().map(|(key, value)| (change(key), map_value(value, change))).collect() }
    }

    /// What differs, a line per key that came (`+`), went (`-`) or changed (`~`), the last with a line per field;
    /// empty when nothing does.
    #[must_use]
    pub fn diff(before: &Self, after: &Self) -> String {
        let mut text = String::new();
        compare(&before.keys.iter().collect(), &after.keys.iter().collect(), 0, &mut text);
        text
    }
}

async fn read(conn: &mut MultiplexedConnection, key: &[u8]) -> Result<Option<Value>> {
    let command = |name: &str| {
        let mut command = redis::cmd(name);
        command.arg(key);
        command
    };
    let kind: String = command("TYPE").query_async(conn).await?;
    let content = match kind.as_str() {
        "none" => return Ok(None),
        "string" => {
            let bytes: Option<Vec<u8>> = command("GET").query_async(conn).await?;
            json!(escape(&bytes.unwrap_or_default()))
        }
        "list" => {
            let items: Vec<Vec<u8>> = command("LRANGE").arg(0).arg(-1).query_async(conn).await?;
            items.iter().map(|item| escape(item)).collect()
        }
        "set" => {
            let mut items: Vec<Vec<u8>> = command("SMEMBERS").query_async(conn).await?;
            items.sort();
            items.iter().map(|item| escape(item)).collect()
        }
        "hash" => {
            let fields: Vec<(Vec<u8>, Vec<u8>)> = command("HGETALL").query_async(conn).await?;
            fields.iter().map(|(field, value)| (escape(field), json!(escape(value)))).collect()
        }
        "zset" => {
            let members: Vec<(Vec<u8>, f64)> = command("ZRANGE").arg(0).arg(-1).arg("WITHSCORES").query_async(conn).await?;
            members.iter().map(|(member, score)| (escape(member), number(*score))).collect()
        }
        "stream" => {
            type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);
            let entries: Vec<Entry> = command("XRANGE").arg("-").arg("+").query_async(conn).await?;
            let fields = |fields: &[(Vec<u8>, Vec<u8>)]| -> Value {
                fields.iter().map(|(field, value)| (escape(field), json!(escape(value)))).collect()
            };
            entries.iter().map(|(id, entry)| json!([id, fields(entry)])).collect()
        }
        other => bail!("{} is a {other}, which punctual does not use", escape(key)),
    };
    let ttl_ms: i64 = command("PTTL").query_async(conn).await?;
    let mut value = json!({ kind: content });
    if ttl_ms >= 0 {
        value["expires"] = json!(true);
    }
    Ok(Some(value))
}

fn escape(bytes: &[u8]) -> String {
    // Quotes are left as they are: payloads are JSON, and nobody reads `\"` with pleasure.
    let escape = |byte: u8| match byte {
        b'"' | b'\'' => char::from(byte).to_string(),
        _ => byte.escape_ascii().to_string(),
    };
    bytes.iter().copied().map(escape).collect()
}

// Scores are milliseconds nearly always; 1.764e12 would be hard to compare by eye.
#[expect(clippy::cast_possible_truncation, reason = "checked to be a whole number in the exact range of f64")]
fn number(score: f64) -> Value {
    if score.fract() == 0.0 && score.abs() < 9.0e15 { json!(score as i64) } else { json!(score) }
}

fn blank_digits(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let digits = rest[start..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - start);
        let (before, tail) = rest.split_at(start);
        let (run, after) = tail.split_at(digits);
        out.push_str(before);
        out.push_str(if (13..=16).contains(&digits) { "<time>" } else { run });
        rest = after;
    }
    out + rest
}

fn map_value(value: &Value, change: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(text)),
        Value::Number(number) => {
            let text = number.to_string();
            let changed = change(&text);
            if changed == text { value.clone() } else { Value::String(changed) }
        }
        Value::Array(items) => items.iter().map(|item| map_value(item, change)).collect(),
        Value::Object(fields) => fields.iter().map(|(field, value)| (change(field), map_value(value, change))).collect(),
        Value::Null | Value::Bool(_) => value.clone(),
    }
}

fn compare(before: &BTreeMap<&String, &Value>, after: &BTreeMap<&String, &Value>, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    let mut names: Vec<&&String> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let line = match (before.get(*name), after.get(*name)) {
            (None, Some(new)) => format!("+ {name} {new}"),
            (Some(old), None) => format!("- {name} {old}"),
            (Some(old), Some(new)) if old != new => match (old, new) {
                (Value::Object(old), Value::Object(new)) => {
                    writeln!(text, "{indent}~ {name}").expect("a String takes all");
                    compare(&old.iter().collect(), &new.iter().collect(), depth + 1, text);
                    continue;
                }
                _ => format!("~ {name} {old} -> {new}"),
            },
            _ => continue,
        };
        writeln!(text, "{indent}{line}").expect("a String takes all");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis_server::{RedisServer, fresh_namespace};

    #[tokio::test]
    async fn snapshot_holds_every_type_of_one_namespace_and_diff_names_each_change() {
        let mut conn = RedisServer::shared().await.unwrap().conn().await.unwrap();
        let ns = fresh_namespace();
        let key = |name: &str| format!("{{{ns}:q}}:{name}");
        let global = format!("{{{ns}}}:term");
        let mut write = redis::pipe();
        write.set(&global, b"1\x00").ignore().rpush(key("list"), &["b", "a"]).ignore().sadd(key("set"), &["b", "a"]).ignore();
        write.hset(key("hash"), "job-1", "{\"x\":1}").ignore().zadd(key("zset"), "job-1", 1_764_000_000_123_u64).ignore();
        write.cmd("XADD").arg(key("stream")).arg("1-1").arg("f").arg("v").ignore();
        write.pset_ex(key("beat"), "x", 60_000).ignore().set(format!("{{{ns}2:q}}:other"), "x").ignore();
        let () = write.query_async(&mut conn).await.unwrap();
        let before = Snapshot::take(&mut conn, &ns).await.unwrap();
        let expected = [
            (global.as_str(), json!({"string": "1\\x00"})),
            (&key("beat"), json!({"string": "x", "expires": true})),
            (&key("hash"), json!({"hash": {"job-1": "{\"x\":1}"}})),
            (&key("list"), json!({"list": ["b", "a"]})),
            (&key("set"), json!({"set": ["a", "b"]})),
            (&key("stream"), json!({"stream": [["1-1", {"f": "v"}]]})),
            (&key("zset"), json!({"zset": {"job-1": 1_764_000_000_123_u64}})),
        ];
        let expected = Snapshot { keys: expected.into_iter().map(|(key, value)| (key.to_owned(), value)).collect() };
        assert_eq!(before, expected);

        let mut change = redis::pipe();
        change.del(key("set")).ignore().hset(key("hash"), "job-2", "y").ignore().zadd(key("zset"), "job-1", 5).ignore();
        change.set(key("new"), "1").ignore();
        let () = change.query_async(&mut conn).await.unwrap();
        let after = Snapshot::take(&mut conn, &ns).await.unwrap();
        let tidy = |snapshot: Snapshot| snapshot.blank_times().rename(&ns, "NS").rename("job-1", "JOB");
        let diff = Snapshot::diff(&tidy(before.clone()), &tidy(after));
        let lines = [
            "~ {NS:q}:hash",
            "  ~ hash",
            "    + job-2 \"y\"",
            "+ {NS:q}:new {\"string\":\"1\"}",
            "- {NS:q}:set {\"set\":[\"a\",\"b\"]}",
            "~ {NS:q}:zset",
            "  ~ zset",
            "    ~ JOB \"<time>\" -> 5",
        ];
        assert_eq!(diff, lines.join("\n") + "\n");
        assert_eq!(Snapshot::diff(&before, &before), "");
        assert_eq!(before.without(|key| key.contains(":q}")).keys.len(), 1);
    }

    #[test]
    fn blanking_spares_short_and_long_numbers() {
        assert_eq!(blank_digits("a1;1764000000123;1764000000123456|12345678901234567"), "a1;<time>;<time>|12345678901234567");
    }
}
