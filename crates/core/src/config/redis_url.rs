//! The address of a Redis server, and the reason why its password appears nowhere.
//!
//! `Debug` and `Display` write scheme, host, port and database only, and no error of [`RedisUrl::parse`] repeats a part of
//! the text: a password with a stray `/` or `@` in it may have ended up in any part. Absent: sentinels and clusters.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const FORMS: &str = "redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH?db=DB";
const ESCAPE: &str = "if the password holds / ? # @ : or %, write %2F %3F %23 %40 %3A %25, or use redis.password_file";

/// The URL of one Redis server. The password is kept but never shown.
///
/// ```
/// use punctual_core::config::RedisUrl;
/// let url = RedisUrl::parse("rediss://app:p%40ss+word@db.example:6380/2").unwrap();
/// assert_eq!((url.host(), url.port(), url.db(), url.tls()), (Some("db.example"), Some(6380), 2, true));
/// assert_eq!((url.username(), url.password()), (Some("app"), Some("p@ss+word")));
/// assert_eq!(url.to_string(), "rediss://db.example:6380/2");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    target: Target,
    username: Option<String>,
    password: Option<String>,
    db: u32,
}

#[derive(Clone, PartialEq, Eq)]
enum Target {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

impl RedisUrl {
    /// Reads `redis://`, `rediss://`, `unix://` or `redis+unix://`, with `USER:PASSWORD@` before the host if need be.
    ///
    /// The port is 6379 and the database 0 when they are left out. User, password and socket path are percent-decoded; a `+`
    /// stays a `+`. A socket takes `?db=`, `?user=` and `?pass=` as well. Space around the text is dropped.
    ///
    /// # Errors
    /// A line that says which part is wrong, without repeating any of it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(format!("must not hold spaces or control characters; expected {FORMS}"));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| format!("has no scheme; expected {FORMS}"))?;
        let scheme = scheme.to_ascii_lowercase();
        for topology in ["sentinel", "cluster"] {
            if scheme.starts_with("redis") && scheme.ends_with(topology) {
                return Err(format!("comes with a later release: redis+{topology}://; for now name one server, {FORMS}"));
            }
        }
        if !["redis", "rediss", "unix", "redis+unix"].contains(&scheme.as_str()) {
            return Err(format!("has an unknown scheme; expected {FORMS}"));
        }
        if rest.contains('#') {
            return Err(format!("must not hold a #; {ESCAPE}"));
        }
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let slash = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(slash);
        // A host cannot hold an @, so the last one ends the password even if the password holds unescaped ones.
        let (login, host) = authority.rsplit_once('@').map_or((None, authority), |(login, host)| (Some(login), host));
        let mut url = Self { target: Target::Unix(PathBuf::new()), username: None, password: None, db: 0 };
        if let Some(login) = login {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            url.username = decoded(user, "user")?;
            url.password = decoded(password, "password")?;
        }
        if scheme.ends_with("unix") {
            url.socket(host, path, query)?;
        } else {
            let (host, port) = host_and_port(host).map_err(|what| format!("{what}; expected {FORMS}; {ESCAPE}"))?;
            url.target = Target::Tcp { host, port, tls: scheme == "rediss" };
            url.db = database(path.strip_prefix('/').unwrap_or(path))?;
            if query.is_some() {
                return Err(format!("takes no parameters after a ?; expected {FORMS}; {ESCAPE}"));
            }
        }
        Ok(url)
    }

    fn socket(&mut self, host: &str, path: &str, query: Option<&str>) -> Result<(), String> {
        let path = decoded(path, "path")?.unwrap_or_default();
        if !host.is_empty() || path.len() < 2 || path.contains('\0') {
            return Err("must hold an absolute path after unix://, such as unix:///run/redis.sock".to_owned());
        }
        self.target = Target::Unix(PathBuf::from(path));
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("db", value)) => self.db = database(value)?,
                Some(("user" | "username", value)) => self.username = decoded(value, "user")?,
                Some(("pass" | "password", value)) => self.password = decoded(value, "password")?,
                _ => return Err(format!("takes only db, user and pass after a ?; {ESCAPE}")),
            }
        }
        Ok(())
    }

    /// Whether the connection is encrypted (`rediss://`).
    #[must_use]
    pub fn tls(&self) -> bool {
        matches!(self.target, Target::Tcp { tls: true, .. })
    }

    /// The host's name or address, IPv6 without brackets; none for a socket.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        match &self.target {
            Target::Tcp { host, .. } => Some(host),
            Target::Unix(_) => None,
        }
    }

    /// The port, 1 to 65535; none for a socket.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match &self.target {
            Target::Tcp { port, .. } => Some(*port),
            Target::Unix(_) => None,
        }
    }

    /// The path of the socket; none for a host.
    #[must_use]
    pub fn unix_path(&self) -> Option<&Path> {
        match &self.target {
            Target::Tcp { .. } => None,
            Target::Unix(path) => Some(path),
        }
    }

    /// The number of the database, 0 by default.
    #[must_use]
    pub fn db(&self) -> u32 {
        self.db
    }

    /// The user named in the URL, decoded.
    #[must_use]
    pub fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    /// The password in the URL, decoded: a secret, only for the connection itself.
    #[must_use]
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::Unix(path) => write!(f, "unix://{}?db={}", path.display(), self.db),
            Target::Tcp { host, port, tls } => {
                let scheme = if *tls { "rediss" } else { "redis" };
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "{scheme}://{open}{host}{close}:{port}/{}", self.db)
            }
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

/// Decodes `%41` to `A` and nothing else: a `+` is a plus, as in every part of a URL but a form's.
fn decoded(text: &str, what: &str) -> Result<Option<String>, String> {
    let wrong = || format!("has a % in the {what} without two hexadecimal digits after it; {ESCAPE}");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = tail.get(..2).and_then(|pair| str::from_utf8(pair).ok()).ok_or_else(wrong)?;
            // `from_str_radix` alone would take "+5" as well.
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong())?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("has a {what} that is not UTF-8 once decoded"))?;
    Ok((!text.is_empty()).then_some(text))
}

fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let (host, port) = if let Some(inner) = text.strip_prefix('[') {
        let (host, port) = inner.split_once(']').ok_or("has a [ without a ]")?;
        host.parse::<Ipv6Addr>().map_err(|_| "has no IPv6 address in its brackets")?;
        (host, port)
    } else {
        let colon = text.find(':').unwrap_or(text.len());
        let (host, port) = text.split_at(colon);
        if host.is_empty() {
            return Err("names no host".to_owned());
        }
        if !host.chars().all(|c| c.is_alphanumeric() || ".-_".contains(c)) {
            return Err("has a host with characters that no host name has".to_owned());
        }
        (host, port)
    };
    let port = match port.strip_prefix(':') {
        Some(digits) => number(digits).filter(|port: &u16| *port > 0).ok_or("has a port that is not from 1 to 65535")?,
        None if port.is_empty() => 6379,
        None => return Err("has something between the address and the port".to_owned()),
    };
    Ok((host.to_owned(), port))
}

fn database(text: &str) -> Result<u32, String> {
    match text {
        "" => Ok(0),
        digits => number(digits).ok_or_else(|| format!("has a database that is not a whole number; expected {FORMS}; {ESCAPE}")),
    }
}

/// Reads digits only: `parse` alone would take "+5" as well.
fn number<T: FromStr>(digits: &str) -> Option<T> {
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(text: &str) -> String {
        text.bytes().map(|byte| format!("%{byte:02X}")).collect()
    }

    #[test]
    fn twenty_passwords_arrive_as_they_were() {
        let plain = "vyP0+q= a/b@c#d%e?f 57#Wc903z plain + % %41 @ @@ : a:b / ?x=1&pass=y # ü 密码 \"'`$(x) 100% -_.~!*'();&= \\";
        for password in plain.split(' ').chain(["a b"]) {
            let escaped = percent(password);
            for text in [
                format!("redis://:{escaped}@h:1/2"),
                format!("rediss://u:{escaped}@[::1]"),
                format!("unix://u:{escaped}@/run/r.sock"),
                format!("redis+unix:///run/r.sock?pass={escaped}&db=2"),
            ] {
                let url = RedisUrl::parse(&text).unwrap();
                assert_eq!(url.password(), Some(password), "{text}");
                assert!(!format!("{url:?} {url}").contains(&escaped));
            }
        }
        assert_eq!(RedisUrl::parse("redis://:vyP0+q=@h").unwrap().password(), Some("vyP0+q="));
        assert_eq!(RedisUrl::parse("redis://:a@b:c@h").unwrap().password(), Some("a@b:c"));
        assert_eq!(RedisUrl::parse("unix:///s?pass=a+b=").unwrap().password(), Some("a+b="));
    }

    #[test]
    fn parts_and_defaults() {
        let shown = |text: &str| RedisUrl::parse(text).unwrap().to_string();
        assert_eq!(shown("redis://h"), "redis://h:6379/0");
        assert_eq!(shown(" REDISS://u@h:1/15\n"), "rediss://h:1/15");
        assert_eq!(shown("redis://[2001:db8::1]:7/"), "redis://[2001:db8::1]:7/0");
        assert_eq!(shown("unix:///run/a%20b.sock?db=3&user=u"), "unix:///run/a b.sock?db=3");
        let user_only = RedisUrl::parse("redis://app%40x@h").unwrap();
        assert_eq!((user_only.username(), user_only.password()), (Some("app@x"), None));
        assert_eq!(RedisUrl::parse("redis://:@h").unwrap().password(), None);
        let socket = RedisUrl::parse("unix:///r.sock").unwrap();
        assert_eq!((socket.host(), socket.port(), socket.unix_path()), (None, None, Some(Path::new("/r.sock"))));
    }

    #[test]
    fn refusals_repeat_nothing() {
        let texts = "s3cret ://s3cret@h http://s3cret@h s3cret://h redis:// redis://:s3cret@ redis://:s3/cret@h \
                     redis://u:12/s3cret@h redis://:s3?cret@h redis://:s3#cret@h redis://:s3%cret@h redis://:s3%2@h \
                     redis://:s3%+1cret@h redis://:s3%ffcret@h redis://h:s3cret redis://h:0 redis://h:+5 redis://h/+1 \
                     redis://h:65536 redis://h: redis://h/s3cret redis://h/-1 redis://h/1/2 redis://::1 redis://[s3cret] \
                     redis://[::1 redis://[::1]x redis://h! redis://h?s3cret=1 unix://run/r.sock unix:/// unix:///r?s3cret=1 \
                     unix:///r?db=s3cret unix:///r%00 redis+sentinel://:s3cret@a,b/m redis+cluster://s3cret";
        for text in texts.split_whitespace().chain(["", "redis://a b"]) {
            let error = RedisUrl::parse(text).expect_err(text);
            assert!(!error.contains("s3") && !error.contains("cret"), "{text}: {error}");
        }
        let later = RedisUrl::parse("redis+sentinel://a,b/m").unwrap_err();
        assert!(later.starts_with("comes with a later release: "), "{later}");
    }
}
