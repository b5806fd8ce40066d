//! Which keys exist: those of `config/default.toml`, which is therefore the one list of them.
//!
//! A key that does not exist is an error in every layer, because a setting that is silently ignored is found when it hurts.

use std::sync::LazyLock;

use figment::providers::{Format, Toml};
use figment::value::{Dict, Value};

use super::errors::Problem;
use super::layers::Layer;

/// The lowest layer, as text.
pub(super) const DEFAULTS: &str = include_str!("../../../../config/default.toml");

/// Tables that are values of one key, because their inner names are the user's.
pub(super) const QUEUES: &str = "node.queues";
pub(super) const PRESETS: &str = "retry.presets";

/// The fields of a retry policy.
pub(super) const POLICY: [&str; 8] = ["backoff", "base", "factor", "cap", "jitter", "delays", "max_attempts", "until"];

static DEFAULT_TREE: LazyLock<Dict> =
    LazyLock::new(|| Toml::from_str(DEFAULTS).expect("the embedded defaults are TOML, which a test guards"));

static KNOWN: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut keys = Vec::new();
    leaves(&DEFAULT_TREE, &mut Vec::new(), &|path| [QUEUES, PRESETS].contains(&path), &mut |path, _| keys.push(path.join(".")));
    keys
});

/// Every key of the configuration, dotted and sorted, such as `node.concurrency`.
///
/// `node.queues`, `retry.presets` and `http.tokens` are one key each: what is in them is named by the user.
///
/// ```
/// assert!(punctual_core::config::known_keys().contains(&"redis.url".to_owned()));
/// ```
#[must_use]
pub fn known_keys() -> Vec<String> {
    KNOWN.clone()
}

pub(super) fn default_tree() -> &'static Dict {
    &DEFAULT_TREE
}

/// Calls `visit` with each value that is not a table, or is one that `whole` names by its dotted path, or is empty.
pub(super) fn leaves(
    dict: &Dict,
    path: &mut Vec<String>,
    whole: &dyn Fn(&str) -> bool,
    visit: &mut dyn FnMut(&[String], &Value),
) {
    for (key, value) in dict {
        path.push(key.clone());
        match value {
            Value::Dict(_, inner) if !inner.is_empty() && !whole(&path.join(".")) => leaves(inner, path, whole, visit),
            _ => visit(path, value),
        }
        path.pop();
    }
}

/// What a path stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A key with a value.
    Key,
    /// A table of keys.
    Section,
    /// Within a table that is one key's value.
    Within(&'static str),
    /// Nothing.
    Unknown,
}

pub(super) fn place(path: &str) -> Place {
    let below = |outer: &str| path.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'));
    if KNOWN.iter().any(|key| key == path) {
        Place::Key
    } else if let Some(outer) = [QUEUES, PRESETS, "http.tokens"].into_iter().find(|outer| below(outer)) {
        Place::Within(outer)
    } else if KNOWN.iter().any(|key| key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'))) {
        Place::Section
    } else {
        Place::Unknown
    }
}

/// Takes out of a layer what no key can hold, so that it cannot cover a lower layer, and says so.
pub(super) fn prune(layer: &mut Layer, problems: &mut Vec<Problem>) {
    let mut wrong: Vec<(Vec<String>, String)> = Vec::new();
    sift(&mut layer.dict, &mut Vec::new(), &mut wrong);
    for (path, message) in wrong {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        problems.push(layer.problem(&path, message));
    }
}

fn sift(dict: &mut Dict, path: &mut Vec<String>, wrong: &mut Vec<(Vec<String>, String)>) {
    dict.retain(|key, value| {
        path.push(key.clone());
        let dotted = path.join(".");
        // A quoted key with a dot in it would otherwise pass for two.
        let place = if key.contains('.') { Place::Unknown } else { place(&dotted) };
        let keep = match (place, &mut *value) {
            (Place::Section, Value::Dict(_, inner)) => {
                sift(inner, path, wrong);
                true
            }
            (Place::Section, _) => {
                wrong.push((path.clone(), "is a table of keys, not a value".to_owned()));
                false
            }
            (Place::Key, Value::Dict(_, presets)) if dotted == PRESETS => {
                sift_presets(presets, path, wrong);
                true
            }
            (Place::Key | Place::Within(_), _) => true,
            (Place::Unknown, Value::Dict(_, inner)) if !inner.is_empty() => {
                leaves(inner, path, &|_| false, &mut |path, _| wrong.push((path.to_vec(), unknown(&path.join(".")))));
                false
            }
            (Place::Unknown, _) => {
                wrong.push((path.clone(), unknown(&dotted)));
                false
            }
        };
        path.pop();
        keep
    });
}

fn sift_presets(presets: &mut Dict, path: &mut Vec<String>, wrong: &mut Vec<(Vec<String>, String)>) {
    presets.retain(|name, value| {
        path.push(name.clone());
        let keep = if let Err(message) = slug(name) {
            wrong.push((path.clone(), message));
            false
        } else if let Value::Dict(_, fields) = value {
            fields.retain(|field, _| {
                let known = POLICY.contains(&field.as_str());
                if !known {
                    let dotted = path.join(".");
                    path.push(field.clone());
                    wrong.push((path.clone(), format!("unknown key, the nearest is {dotted}.{}", nearest(field, &POLICY))));
                    path.pop();
                }
                known
            });
            true
        } else {
            wrong.push((path.clone(), "must be a table such as { base = \"5s\", factor = 2 }".to_owned()));
            false
        };
        path.pop();
        keep
    });
}

/// The message for a key that does not exist.
pub(super) fn unknown(path: &str) -> String {
    format!("unknown key, the nearest is {}", nearest(path, &KNOWN))
}

/// Checks the name of a namespace, a queue or a preset.
pub(super) fn slug(name: &str) -> Result<(), String> {
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_' || c == b'-';
    if (1..=64).contains(&name.len()) && name.bytes().all(fits) {
        Ok(())
    } else {
        Err(format!("must be 1 to 64 of a-z, 0-9, _ and -, got {}", quoted(name)))
    }
}

/// A user's text for a message: escaped, so that it stays on one line, and cut, so that the line stays readable.
pub(super) fn quoted(text: &str) -> String {
    if text.chars().count() <= 64 { format!("{text:?}") } else { format!("{:?}…", text.chars().take(64).collect::<String>()) }
}

/// The candidate with the fewest typing slips. A right last part in the wrong table counts as two slips; among equals, one
/// of the same table is meant.
pub(super) fn nearest<'a, T: AsRef<str>>(name: &str, candidates: &'a [T]) -> &'a str {
    let parts = |key: &str| key.rsplit_once('.').map_or((String::new(), key.to_owned()), |(a, b)| (a.to_owned(), b.to_owned()));
    let (table, last) = parts(name);
    let slips = |key: &&str| {
        let (other_table, other_last) = parts(key);
        (distance(name, key).min(distance(&last, &other_last) + 2), table != other_table)
    };
    candidates.iter().map(AsRef::as_ref).min_by_key(slips).unwrap_or_default()
}

/// Insertions, deletions and replacements between two texts.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    // Names are short; the bound keeps a key of a megabyte from costing a minute.
    for (index, from) in from.chars().take(128).enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, to) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_key_forgives_slips_and_wrong_tables() {
        for (typed, meant) in [
            ("redis.ulr", "redis.url"),
            ("node.concurency", "node.concurrency"),
            ("concurrency", "node.concurrency"),
            ("redis.concurrency", "node.concurrency"),
            ("nodes.name", "node.name"),
            ("redis.password", "redis.password_file"),
            ("http.token", "http.tokens"),
            ("jobs.typo", "jobs.timeout"),
        ] {
            assert_eq!(nearest(typed, &KNOWN), meant, "{typed}");
        }
    }

    #[test]
    fn places() {
        assert_eq!(place("node"), Place::Section);
        assert_eq!(place("handlers.http"), Place::Section);
        assert_eq!(place("node.queues"), Place::Key);
        assert_eq!(place("node.queues.mail"), Place::Within(QUEUES));
        assert_eq!(place("node.queuesx"), Place::Unknown);
        assert_eq!(place("node.roles"), Place::Unknown);
        assert_eq!(place(""), Place::Unknown);
    }
}
