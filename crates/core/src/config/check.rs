//! Checks that need more than one key, or a look at a file. Keys that are wrong by themselves are left out: the default in
//! their place is not what the user compares with.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::read::{Reader, read_text};
use super::{Config, Redis};
use crate::duration;

pub(super) fn across(config: &Config, reader: &mut Reader) {
    let node = &config.node;
    three_times(reader, ("node.dead_after", node.dead_after), ("node.heartbeat_every", node.heartbeat_every));
    three_times(reader, ("lease.ttl", config.lease.ttl), ("lease.renew_every", config.lease.renew_every));
    redis(&config.redis, reader);
    if reader.sound(&["http.listen", "http.tokens"]) && config.http.listen.is_public() && config.http.tokens.is_empty() {
        let message =
            format!("{} can be reached from other machines, so at least one of http.tokens is needed", config.http.listen);
        reader.refuse("http.listen", message);
    }
    if let (Some(api), Some(ops)) = (config.http.listen.addr(), config.http.ops_listen.addr())
        && reader.sound(&["http.listen", "http.ops_listen"])
        && collide(api, ops)
    {
        reader.refuse("http.ops_listen", format!("must differ from http.listen, which takes {api} already"));
    }
}

/// Two lost signs in a row must not count as a death.
fn three_times(reader: &mut Reader, long: (&str, Duration), short: (&str, Duration)) {
    if reader.sound(&[long.0, short.0]) && long.1 < short.1 * 3 {
        let other = format!("{} = {} from {}", short.0, duration::format(short.1), reader.origin_of(short.0));
        let least = duration::format(short.1 * 3);
        let message = format!("must be at least 3 × {} = {least}, got {}; {other}", short.0, duration::format(long.1));
        reader.refuse(long.0, message);
    }
}

fn redis(redis: &Redis, reader: &mut Reader) {
    let url = "redis.url";
    if reader.sound(&[url]) && redis.url.password().is_some() && reader.origin_of(url).starts_with("flag ") {
        let message = "must not hold a password in a flag, where the list of processes shows it; use redis.password_file or the \
                       environment PUNCTUAL__REDIS__URL";
        reader.refuse(url, message.to_owned());
    }
    if let Some(path) = &redis.password_file {
        match redis.password() {
            Err(error) => reader.refuse("redis.password_file", error.to_string()),
            Ok(password) if password.as_deref() == Some("") => {
                reader.refuse("redis.password_file", format!("{} is empty", path.display()));
            }
            Ok(_) => {}
        }
    }
    // Accepting the number and waiting for nobody would promise what is not kept.
    if reader.sound(&["redis.wait_replicas"]) && redis.wait_replicas > 0 {
        let message = "waiting for replicas comes with a later release; only 0 is accepted now";
        reader.refuse("redis.wait_replicas", message.to_owned());
    }
    if let Some(path) = &redis.ca_file {
        if let Err(message) = certificates(path) {
            reader.refuse("redis.ca_file", message);
        } else if reader.sound(&[url]) && !redis.url.tls() {
            reader.refuse("redis.ca_file", format!("only serves rediss://, but redis.url is {}", redis.url));
        }
    }
}

fn certificates(path: &Path) -> Result<(), String> {
    let text = read_text(path).map_err(|error| error.to_string())?;
    if text.contains("-----BEGIN CERTIFICATE-----") {
        Ok(())
    } else {
        Err(format!("{} holds no certificate in PEM", path.display()))
    }
}

/// Whether two servers would want the same port of the same address.
fn collide(one: SocketAddr, two: SocketAddr) -> bool {
    let everywhere = one.ip().is_unspecified() || two.ip().is_unspecified();
    one.port() != 0 && one.port() == two.port() && (everywhere || one.ip() == two.ip())
}

impl Redis {
    /// The user to log in as: `redis.username`, else the URL's; absent = Redis' default user.
    #[must_use]
    pub fn username(&self) -> Option<&str> {
        self.username.as_deref().or_else(|| self.url.username())
    }

    /// The password to log in with: what `redis.password_file` holds now, without one newline at its end, else the URL's.
    ///
    /// Reads the file at every call; the store does so once, at its start. Never log what it gives.
    ///
    /// # Errors
    /// When the file cannot be read; the error names its path.
    pub fn password(&self) -> std::io::Result<Option<String>> {
        let Some(path) = &self.password_file else { return Ok(self.url.password().map(str::to_owned)) };
        let mut text = read_text(path)?;
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        Ok(Some(text))
    }
}
