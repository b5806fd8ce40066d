//! The layers of a configuration, from the lowest to the highest: built-in defaults, a command's own defaults, one file,
//! the environment, flags. figment merges them and remembers which layer each value came from.
//!
//! The environment and flags are text: nothing here guesses types, so that a node named `0123456` or `true` keeps its name.
//! The keys' readers turn text into what they need (read.rs).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Metadata, Profile, Provider};

use super::errors::Problem;
use super::keys::{self, PRESETS, Place, QUEUES};
use super::lines::line_of;
use super::read::read_text;

/// One value that the command line sets. `Debug` hides the value, which may be a URL with a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Override {
    /// Dotted key, such as `redis.url`.
    pub key: String,
    /// The value in the form that an environment variable takes.
    pub value: String,
    /// Who says so, for messages: `flag --redis`. A password in `redis.url` is refused when this begins with `flag `.
    pub origin: String,
}

impl fmt::Debug for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Override").field("key", &self.key).field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// What the command line says about the configuration.
///
/// ```
/// use punctual_core::config::Layers;
/// let layers = Layers::default().flag("--redis", "redis.url", "redis://10.0.0.5").command_default("dev", "handlers.demo", "true");
/// assert_eq!(layers.flags[0].origin, "flag --redis");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layers {
    /// The file of `--config`, which must exist; without it the usual places are searched.
    pub file: Option<PathBuf>,
    /// Below the file: defaults that one command changes.
    pub defaults: Vec<Override>,
    /// Above everything.
    pub flags: Vec<Override>,
}

impl Layers {
    /// Adds a flag, by its name as typed, such as `--redis`.
    #[must_use]
    pub fn flag(mut self, flag: &str, key: &str, value: impl Into<String>) -> Self {
        self.flags.push(Override { key: key.to_owned(), value: value.into(), origin: format!("flag {flag}") });
        self
    }

    /// Adds a default of one command, such as `handlers.demo = true` of `dev`; every layer of the user beats it.
    #[must_use]
    pub fn command_default(mut self, command: &str, key: &str, value: impl Into<String>) -> Self {
        let origin = format!("default of punctual {command}");
        self.defaults.push(Override { key: key.to_owned(), value: value.into(), origin });
        self
    }
}

/// Who speaks in a layer, and how to point at one of its keys.
#[derive(Clone)]
enum Origin {
    BuiltIn,
    File { name: String, text: Arc<str> },
    Text(Arc<BTreeMap<String, String>>),
}

impl Origin {
    fn describe(&self, path: &[&str]) -> String {
        match self {
            Self::BuiltIn => "built-in default".to_owned(),
            Self::File { name, text } => match line_of(text, path) {
                Some(line) => format!("{name} line {line}"),
                None => name.clone(),
            },
            // A part of a value, such as one token of a list, was said by whoever said the value.
            Self::Text(names) => {
                let name = (1..=path.len()).rev().find_map(|end| names.get(&path[..end].join(".")));
                name.cloned().unwrap_or_else(|| "the environment".to_owned())
            }
        }
    }
}

/// One layer, checked for its keys but not yet for its values.
pub(super) struct Layer {
    origin: Origin,
    pub(super) dict: Dict,
}

impl Layer {
    pub(super) fn problem(&self, path: &[&str], message: String) -> Problem {
        // A quoted key may hold anything, line breaks included; a message is one line.
        let key = path.join(".").escape_debug().to_string();
        Problem { key, message, origin: Some(self.origin.describe(path)) }
    }

    pub(super) fn built_in() -> Self {
        Self { origin: Origin::BuiltIn, dict: keys::default_tree().clone() }
    }

    /// A layer of text from (key, value, origin).
    pub(super) fn text(entries: impl IntoIterator<Item = (String, String, String)>, problems: &mut Vec<Problem>) -> Self {
        let mut dict = Dict::new();
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        for (key, value, origin) in entries {
            let refused = match keys::place(&key) {
                Place::Key if key == PRESETS => Some(format!("set single values of it, such as {PRESETS}.fast.base")),
                Place::Key => None,
                Place::Within(PRESETS) => preset_field(&key).err(),
                Place::Within(QUEUES) => Some(format!("set {QUEUES} as a whole, such as default=1,mail=3")),
                Place::Within(outer) => Some(format!("set {outer} as a whole, as a list in TOML")),
                Place::Section => Some("is a table of keys, not a value".to_owned()),
                Place::Unknown => Some(keys::unknown(&key)),
            };
            let refused = refused.or_else(|| names.get(&key).map(|other| format!("is set twice, also by {other}")));
            if let Some(message) = refused {
                problems.push(Problem { key: key.escape_debug().to_string(), message, origin: Some(origin) });
            } else {
                insert(&mut dict, &key, value);
                names.insert(key, origin);
            }
        }
        Self { origin: Origin::Text(Arc::new(names)), dict }
    }

    /// The layer of the variables that begin with `PUNCTUAL__`. A single underscore is somebody else's: Kubernetes sets
    /// `PUNCTUAL_PORT` and its like for a service of that name.
    pub(super) fn environment(env: &[(OsString, OsString)], problems: &mut Vec<Problem>) -> Self {
        let mut entries = Vec::new();
        for (name, value) in env {
            let name = name.to_string_lossy();
            let dotted = |rest: &str| rest.split("__").map(str::to_lowercase).collect::<Vec<_>>().join(".");
            let origin = format!("environment {}", name.escape_debug());
            let Some(rest) = name.strip_prefix("PUNCTUAL__") else {
                // Nobody else's has two underscores further on.
                if let Some(rest) = name.strip_prefix("PUNCTUAL_").filter(|rest| rest.contains("__")) {
                    let message = format!("did you mean PUNCTUAL__{}? Variables begin with two underscores", rest.escape_debug());
                    problems.push(Problem { key: dotted(rest), message, origin: Some(origin) });
                }
                continue;
            };
            let key = dotted(rest);
            match value.to_str() {
                Some(value) => entries.push((key, value.to_owned(), origin)),
                None => problems.push(Problem { key, message: "is not UTF-8 text".to_owned(), origin: Some(origin) }),
            }
        }
        // The order of the environment is accidental; that of messages should not be.
        entries.sort();
        Self::text(entries, problems)
    }

    /// The layer of overrides.
    pub(super) fn overrides(overrides: &[Override], problems: &mut Vec<Problem>) -> Self {
        Self::text(overrides.iter().map(|one| (one.key.clone(), one.value.clone(), one.origin.clone())), problems)
    }

    /// Parses a file. The parser's own error shows the line, which may hold a password; this one shows where it is.
    pub(super) fn file(name: &str, text: &str) -> Result<Self, Problem> {
        match Toml::from_str::<Dict>(text) {
            Ok(dict) => Ok(Self { origin: Origin::File { name: name.to_owned(), text: text.into() }, dict }),
            Err(error) => {
                let before = text.get(..error.span().map_or(0, |span| span.start)).unwrap_or(text);
                let line = before.matches('\n').count() + 1;
                let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
                let message = error.message().lines().collect::<Vec<_>>().join(", ");
                Err(Problem { key: format!("{name}:{line}:{column}"), message, origin: None })
            }
        }
    }
}

fn preset_field(key: &str) -> Result<(), String> {
    let rest = key.strip_prefix(PRESETS).and_then(|rest| rest.strip_prefix('.')).unwrap_or_default();
    let (name, field) = rest.split_once('.').ok_or_else(|| format!("set single values of it, such as {key}.base"))?;
    keys::slug(name)?;
    if keys::POLICY.contains(&field) {
        Ok(())
    } else {
        Err(format!("unknown key, the nearest is {PRESETS}.{name}.{}", keys::nearest(field, &keys::POLICY)))
    }
}

fn insert(dict: &mut Dict, key: &str, value: String) {
    match key.split_once('.') {
        None => {
            dict.insert(key.to_owned(), Value::from(value));
        }
        Some((table, rest)) => {
            let inner = dict.entry(table.to_owned()).or_insert_with(|| Value::from(Dict::new()));
            if let Value::Dict(_, inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        let origin = self.origin.clone();
        let metadata = match &self.origin {
            Origin::BuiltIn => Metadata::from("built-in default", "config/default.toml"),
            Origin::File { name, .. } => Metadata::from(name.clone(), Path::new(name)),
            // Without a source: the mark of a layer whose values are all text.
            Origin::Text(_) => Metadata::named("text"),
        };
        metadata.interpolater(move |_, path| origin.describe(path))
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Profile::Default.collect(self.dict.clone()))
    }
}

/// Takes from lower layers what a higher one replaces as a whole, where figment would mix the two tables.
///
/// A list of queues that were mixed with `default = 1` could never be without `default`; and the waits of one kind of backoff
/// mean nothing to another.
pub(super) fn replace_whole(layers: &mut [Layer]) {
    for high in 1..layers.len() {
        let (lower, rest) = layers.split_at_mut(high);
        let dict = Value::from(rest[0].dict.clone());
        let mut replaced = Vec::new();
        if dict.find_ref(QUEUES).is_some() {
            replaced.push(QUEUES.to_owned());
        }
        if let Some(Value::Dict(_, presets)) = dict.find_ref(PRESETS) {
            let whole = presets.iter().filter(|(_, preset)| preset.find_ref("backoff").is_some());
            replaced.extend(whole.map(|(name, _)| format!("{PRESETS}.{name}")));
        }
        for key in replaced {
            for layer in &mut *lower {
                remove(&mut layer.dict, &key);
            }
        }
    }
}

fn remove(dict: &mut Dict, key: &str) {
    match key.split_once('.') {
        None => {
            dict.remove(key);
        }
        Some((table, rest)) => {
            if let Some(Value::Dict(_, inner)) = dict.get_mut(table) {
                remove(inner, rest);
            }
        }
    }
}

/// Finds the file and reads it; none when no file was named and none is in the usual places.
pub(super) fn find_file(named: Option<&PathBuf>, search: &[PathBuf]) -> Result<Option<(PathBuf, String)>, Problem> {
    let places = named.map_or(search, std::slice::from_ref);
    for path in places {
        match read_text(path) {
            Ok(text) => return Ok(Some((path.clone(), text))),
            Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let key = named.map_or_else(|| path.display().to_string(), |_| "--config".to_owned());
                return Err(Problem { key, message: error.to_string(), origin: None });
            }
        }
    }
    Ok(None)
}
