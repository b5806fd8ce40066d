//! What the server behind the link is: version, eviction policy, persistence, role. Read by `doctor` and at start.

use std::collections::HashMap;

use super::{Store, StoreError};

/// What a server says of itself. `None` where the user may not ask.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// `redis` or `valkey`.
    pub product: String,
    /// Its version.
    pub version: String,
    /// `maxmemory-policy`.
    pub eviction: Option<String>,
    /// `maxmemory` in bytes, 0 = unlimited.
    pub max_memory: u64,
    /// Whether the append-only file is on.
    pub aof: bool,
    /// Whether the last write of the append-only file went well.
    pub aof_ok: bool,
    /// `master` or `slave`.
    pub role: String,
    /// Replicas that are attached.
    pub replicas: u64,
    /// Bytes in use.
    pub used_memory: u64,
}

impl Server {
    /// Whether keys may vanish to make room: a queue cannot live with that.
    #[must_use]
    pub fn evicts(&self) -> bool {
        self.eviction.as_deref().is_some_and(|policy| policy != "noeviction")
    }

    /// Whether the version has everything the scripts use (Redis 7.0, Valkey 7.2).
    #[must_use]
    pub fn is_supported(&self) -> bool {
        self.version.split('.').next().and_then(|major| major.parse::<u32>().ok()).is_some_and(|major| major >= 7)
    }
}

impl Store {
    /// Asks the server. Where INFO is forbidden the answer is empty rather than an error.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn server(&self) -> Result<Server, StoreError> {
        let text: String = match self.link.query(&redis::cmd("INFO")).await {
            Ok(text) => text,
            Err(error) if error.kind == super::Kind::Permission => return Ok(Server::default()),
            Err(error) => return Err(error),
        };
        let info: HashMap<&str, &str> = text.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
        let word = |key: &str| info.get(key).map_or_else(String::new, |value| (*value).to_owned());
        let number = |key: &str| info.get(key).and_then(|value| value.parse().ok()).unwrap_or(0);
        let valkey = word("valkey_version");
        Ok(Server {
            product: if valkey.is_empty() { "redis" } else { "valkey" }.to_owned(),
            version: if valkey.is_empty() { word("redis_version") } else { valkey },
            eviction: info.get("maxmemory_policy").map(|policy| (*policy).to_owned()),
            max_memory: number("maxmemory"),
            aof: word("aof_enabled") == "1",
            aof_ok: word("aof_last_write_status") != "err",
            role: word("role"),
            replicas: number("connected_slaves"),
            used_memory: number("used_memory"),
        })
    }
}
