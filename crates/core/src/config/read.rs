//! Reads single values out of the merged layers. A wrong one becomes a problem and its default takes its place, so that one
//! pass finds everything that is wrong.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::providers::{Format, Toml};
use figment::value::{Dict, Tag, Value};
use figment::{Figment, Profile};

use super::errors::Problem;
use super::keys::{self, quoted};
use super::size::Bytes;
use crate::duration;

/// Files of settings and secrets are small; the bound stops a path such as /dev/zero.
const LONGEST_FILE: u64 = 1 << 20;

/// A value and whether it came as text, from the environment or a flag, and so may need to be read as something else.
pub(super) struct Given {
    pub(super) value: Value,
    pub(super) text: bool,
}

impl Given {
    pub(super) fn text(&self) -> Result<&str, String> {
        self.value.as_str().ok_or_else(|| format!("expected text in quotes, got {}", got(&self.value)))
    }

    pub(super) fn whole(&self) -> Result<i128, String> {
        let number = match &self.value {
            Value::Num(_, number) => number.to_i128().or_else(|| number.to_u128().and_then(|n| n.try_into().ok())),
            Value::String(_, text) if self.text => text.trim().parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| format!("expected a whole number, got {}", got(&self.value)))
    }

    pub(super) fn flag(&self) -> Result<bool, String> {
        match &self.value {
            Value::Bool(_, flag) => Some(*flag),
            Value::String(_, text) if self.text => text.trim().parse().ok(),
            _ => None,
        }
        .ok_or_else(|| format!("expected true or false, got {}", got(&self.value)))
    }

    pub(super) fn duration(&self) -> Result<Duration, String> {
        match &self.value {
            // humantime takes M for a month of 30.44 days; who writes it meant minutes.
            Value::String(_, text) if text.trim_end().ends_with('M') => {
                Err(format!("the unit M is refused, write m for minutes or d for days, got {}", quoted(text)))
            }
            Value::String(_, text) => duration::parse(text),
            Value::Num(..) => duration::parse(&got(&self.value)),
            other => Err(format!("expected a duration such as \"5s\" or \"1h 30m\", got {}", got(other))),
        }
    }

    pub(super) fn size(&self) -> Result<Bytes, String> {
        match &self.value {
            Value::String(_, text) => Bytes::parse(text),
            other => Bytes::parse(&got(other)),
        }
    }

    /// A list of texts; as text `a,b` or `["a", "b"]`.
    pub(super) fn list(&self) -> Result<Vec<String>, String> {
        let wrong = || format!("expected a list of texts such as [\"a\", \"b\"], got {}", got(&self.value));
        let parsed = match &self.value {
            Value::String(_, text) if self.text && text.trim_start().starts_with('[') => toml_value(text).ok_or_else(wrong)?,
            Value::String(_, text) if self.text => {
                return Ok(text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect());
            }
            other => other.clone(),
        };
        let items = parsed.into_array().ok_or_else(wrong)?;
        items.into_iter().map(|item| item.into_string().ok_or_else(wrong)).collect()
    }

    /// A table of whole numbers; as text `a=1,b=3` or `{ a = 1, b = 3 }`.
    pub(super) fn table(&self) -> Result<Vec<(String, Self)>, String> {
        let wrong = || format!("expected queues with weights such as {{ default = 1, mail = 3 }}, got {}", got(&self.value));
        match &self.value {
            Value::String(_, text) if self.text && !text.trim_start().starts_with('{') => {
                let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
                pairs
                    .map(|pair| {
                        let (name, value) = pair.split_once('=').ok_or_else(|| {
                            format!("expected queues with weights such as default=1,mail=3, got {}", quoted(text))
                        })?;
                        Ok((name.trim().to_owned(), Self { value: Value::from(value.trim()), text: true }))
                    })
                    .collect()
            }
            value => {
                let parsed = match value {
                    Value::String(_, text) if self.text => toml_value(text).ok_or_else(wrong)?,
                    other => other.clone(),
                };
                let table = parsed.into_dict().ok_or_else(wrong)?;
                Ok(table.into_iter().map(|(name, value)| (name, Self { value, text: false })).collect())
            }
        }
    }
}

/// Reads one TOML value.
pub(super) fn toml_value(text: &str) -> Option<Value> {
    let mut dict = Toml::from_str::<Dict>(&format!("value = {}", text.trim())).ok()?;
    let value = dict.remove("value");
    // More than one assignment: the text was not one value.
    value.filter(|_| dict.is_empty())
}

/// A value for a message. Never for a key that may hold a secret.
pub(super) fn got(value: &Value) -> String {
    match value {
        Value::String(_, text) => quoted(text),
        Value::Bool(_, flag) => flag.to_string(),
        Value::Num(_, number) => match number.to_i128().or_else(|| number.to_u128().and_then(|n| n.try_into().ok())) {
            Some(whole) => whole.to_string(),
            None => number.to_f64().map_or_else(|| "a number".to_owned(), |real| real.to_string()),
        },
        Value::Array(..) => "a list".to_owned(),
        Value::Dict(_, dict) if dict.keys().any(|key| key.starts_with("$__toml")) => "a date".to_owned(),
        Value::Dict(..) => "a table".to_owned(),
        Value::Char(..) | Value::Empty(..) => "nothing".to_owned(),
    }
}

/// Checks a range, both ends included.
pub(super) fn within<T: PartialOrd + Copy>(value: T, min: T, max: T, show: impl Fn(T) -> String) -> Result<T, String> {
    if value < min {
        Err(format!("must be at least {}, got {}", show(min), show(value)))
    } else if value > max {
        Err(format!("must be at most {}, got {}", show(max), show(value)))
    } else {
        Ok(value)
    }
}

/// The merged layers, and what was wrong with them so far.
pub(super) struct Reader {
    pub(super) figment: Figment,
    pub(super) problems: Vec<Problem>,
    failed: BTreeSet<String>,
    read: BTreeSet<&'static str>,
}

impl Reader {
    pub(super) fn new(figment: Figment, problems: Vec<Problem>) -> Self {
        // A key that some layer got wrong holds a lower layer's value now; judging that against others would mislead.
        let failed = problems.iter().map(|problem| problem.key.clone()).collect();
        Self { figment, problems, failed, read: BTreeSet::new() }
    }

    /// Whether nothing was wrong with these keys, so that they can be compared.
    pub(super) fn sound(&self, keys: &[&str]) -> bool {
        keys.iter().all(|key| !self.failed.contains(*key))
    }

    /// The keys that were read, for the test that none is forgotten.
    #[cfg(test)]
    pub(super) fn read(&self) -> &BTreeSet<&'static str> {
        &self.read
    }

    pub(super) fn given(&mut self, key: &'static str) -> Given {
        self.read.insert(key);
        let value = self.figment.find_value(key).ok().or_else(|| built_in(key)).expect("every key read has a default");
        self.part(value)
    }

    pub(super) fn part(&self, value: Value) -> Given {
        let text = self.figment.get_metadata(value.tag()).is_some_and(|metadata| metadata.source.is_none());
        Given { value, text }
    }

    /// Who said the value with this tag at this path.
    pub(super) fn origin(&self, tag: Tag, path: &[&str]) -> String {
        self.figment.get_metadata(tag).map_or_else(String::new, |metadata| metadata.interpolate(&Profile::Default, path))
    }

    pub(super) fn origin_of(&self, key: &str) -> String {
        let tag = self.figment.find_value(key).map_or(Tag::Default, |value| value.tag());
        self.origin(tag, &key.split('.').collect::<Vec<_>>())
    }

    /// Notes a problem with a whole key.
    pub(super) fn refuse(&mut self, key: &str, message: String) {
        let origin = self.origin_of(key);
        self.refuse_from(key, key.to_owned(), message, origin);
    }

    /// Notes a problem with a part of a key, `shown` in the message.
    pub(super) fn refuse_from(&mut self, key: &str, shown: String, message: String, origin: String) {
        self.failed.insert(key.to_owned());
        let origin = (!origin.is_empty()).then_some(origin);
        self.problems.push(Problem { key: shown, message, origin });
    }

    /// Reads a key; if its value is wrong, notes that and reads the default.
    pub(super) fn take<T>(&mut self, key: &'static str, convert: impl Fn(&Given) -> Result<T, String>) -> T {
        match convert(&self.given(key)) {
            Ok(value) => value,
            Err(message) => {
                self.refuse(key, message);
                let default = Given { value: built_in(key).expect("every key read has a default"), text: false };
                convert(&default).expect("the embedded defaults pass their own checks, which a test guards")
            }
        }
    }

    pub(super) fn text(&mut self, key: &'static str, check: impl Fn(&str) -> Result<(), String>) -> String {
        self.take(key, |given| {
            let text = given.text()?;
            check(text).map(|()| text.to_owned())
        })
    }

    /// A text that may be absent; empty text is absent.
    pub(super) fn optional(&mut self, key: &'static str) -> Option<String> {
        let text = self.text(key, |text| {
            let control = text.chars().any(char::is_control);
            if control { Err("must not hold control characters".to_owned()) } else { Ok(()) }
        });
        (!text.is_empty()).then_some(text)
    }

    pub(super) fn path(&mut self, key: &'static str) -> Option<PathBuf> {
        self.optional(key).map(PathBuf::from)
    }

    pub(super) fn whole<T>(&mut self, key: &'static str, min: T, max: T) -> T
    where
        T: Into<i128> + TryFrom<i128> + Copy,
    {
        self.take(key, |given| {
            let number = within(given.whole()?, min.into(), max.into(), |number| number.to_string())?;
            T::try_from(number).map_err(|_| format!("must be at most {}", max.into()))
        })
    }

    pub(super) fn flag(&mut self, key: &'static str) -> bool {
        self.take(key, Given::flag)
    }

    pub(super) fn duration(&mut self, key: &'static str, min: Duration, max: Duration) -> Duration {
        self.take(key, |given| within(given.duration()?, min, max, duration::format))
    }

    /// One of a few words.
    pub(super) fn word<T: Copy + Display>(&mut self, key: &'static str, words: &[T]) -> T {
        self.take(key, |given| one_of(given.text()?, words))
    }
}

/// Finds the word that `text` spells.
pub(super) fn one_of<T: Copy + Display>(text: &str, words: &[T]) -> Result<T, String> {
    words.iter().copied().find(|word| word.to_string() == text).ok_or_else(|| {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        format!("must be one of {}, got {}", words.join(", "), quoted(text))
    })
}

fn built_in(key: &str) -> Option<Value> {
    Value::from(keys::default_tree().clone()).find(key)
}

/// Reads a small text file; errors name the path.
pub(super) fn read_text(path: &Path) -> io::Result<String> {
    let read = || {
        let mut text = String::new();
        let length = File::open(path)?.take(LONGEST_FILE + 1).read_to_string(&mut text)?;
        if length as u64 > LONGEST_FILE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "larger than 1 MiB"));
        }
        Ok(text)
    };
    read().map_err(|error: io::Error| io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display())))
}
