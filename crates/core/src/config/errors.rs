//! What is wrong with a configuration: all problems at once, one line each, never with a secret in it.

use std::fmt;

/// One thing that is wrong, and where it was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The dotted key, such as `node.concurrency`, or what stands in for one: `--config`, or a file with line and column.
    pub key: String,
    /// What is wrong with it, as a lower-case fragment; holds no value that could be a secret.
    pub message: String,
    /// The layer that said so, such as `environment PUNCTUAL__NODE__CONCURRENCY`; absent when the key names it already.
    pub origin: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)?;
        match &self.origin {
            Some(origin) => write!(f, " (from {origin})"),
            None => Ok(()),
        }
    }
}

/// Everything that is wrong with a configuration. `Display` writes one line per problem, each beginning with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// At least one, in the order of the layers and of the keys in `config/default.toml`.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
