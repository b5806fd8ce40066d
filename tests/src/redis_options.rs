//! How a test's Redis server is started.

use std::process::Command;

use anyhow::{Result, anyhow};

use crate::binary::redis_server_bin;
use crate::port::free_port;
use crate::redis_server::RedisServer;

/// When an append-only file is written to the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aof {
    /// No append-only file: a restart begins empty.
    #[default]
    Off,
    /// Once a second: a killed server may forget the last second or two.
    Everysec,
    /// Before each answer: a killed server forgets nothing that it acknowledged.
    Always,
}

/// How a server is started; made by [`RedisServer::options`].
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    aof: Aof,
    password: Option<String>,
    port: Option<u16>,
    settings: Vec<(String, String)>,
}

impl RedisOptions {
    /// Keeps an append-only file; off by default.
    #[must_use]
    pub fn aof(mut self, aof: Aof) -> Self {
        self.aof = aof;
        self
    }

    /// Which keys a full server evicts, such as `allkeys-lru`; by default none (`noeviction`).
    #[must_use]
    pub fn maxmemory_policy(self, policy: &str) -> Self {
        self.set("maxmemory-policy", policy)
    }

    /// Wants this password from every client; [`RedisServer::url`] holds it.
    #[must_use]
    pub fn requirepass(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.set("requirepass", password)
    }

    /// Listens on this port instead of a free one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Any other setting of redis.conf, such as `("maxmemory", "10mb")`.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// When there is no server to start or it does not answer; the text holds its log.
    pub async fn start(self) -> Result<RedisServer> {
        // Between the look for a free port and the server's bind another process may take it.
        let tries = if self.port.is_some() { 1 } else { 5 };
        let mut last = anyhow!("no try was made");
        for _ in 0..tries {
            let port = self.port.map_or_else(free_port, Ok)?;
            match RedisServer::launch_new(&self, port).await {
                Ok(server) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    // The command that runs such a server in the foreground.
    pub(crate) fn command(&self, port: u16) -> Result<Command> {
        let (appendonly, appendfsync) = match self.aof {
            Aof::Off => ("no", "no"),
            Aof::Everysec => ("yes", "everysec"),
            Aof::Always => ("yes", "always"),
        };
        let mut command = Command::new(redis_server_bin()?);
        command.args(["--bind", "127.0.0.1", "--port"]).arg(port.to_string());
        command.args(["--save", "", "--appendonly", appendonly, "--appendfsync", appendfsync]);
        for (name, value) in &self.settings {
            command.arg(format!("--{name}")).arg(value);
        }
        Ok(command)
    }

    // What stands before the host in a URL.
    pub(crate) fn login(&self) -> String {
        self.password.as_deref().map(|password| format!(":{}@", percent_encode(password))).unwrap_or_default()
    }
}

fn percent_encode(text: &str) -> String {
    let encode = |byte: u8| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}
