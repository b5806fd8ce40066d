//! Which URLs may be called: the prefixes of `handlers.http.allow`, compared as parsed URLs and never as text.
//!
//! A URL fits an entry when scheme, host and port are equal and the entry's path is a prefix of its path that ends
//! where a segment ends. Text would let `https://api.example.com.evil.org` pass for `https://api.example.com`.
//! Absent on purpose: wildcards in hosts, and any way to allow everything.

use reqwest::Url;

/// The parsed allow-list. Entries that are not plain http(s) URLs match nothing.
pub(crate) struct Allowed(Vec<Url>);

impl Allowed {
    pub(crate) fn new(entries: &[String]) -> Self {
        let plain = |url: &Url| !has_user(url) && url.query().is_none() && url.fragment().is_none();
        Self(entries.iter().filter_map(|entry| parse(entry).ok()).filter(plain).collect())
    }

    /// Parses what an argument or a `Location` says and checks it.
    pub(crate) fn url(&self, text: &str) -> Result<Url, String> {
        self.check(parse(text)?)
    }

    /// As [`Allowed::url`], for a `Location` header: relative to the URL that answered with it.
    pub(crate) fn location(&self, text: &str, base: &Url) -> Result<Url, String> {
        self.check(base.join(text).map_err(|error| format!("location {text:?} is not a URL: {error}"))?)
    }

    fn check(&self, url: Url) -> Result<Url, String> {
        if !self.0.iter().any(|entry| fits(&url, entry)) {
            return Err(format!("{} is not on handlers.http.allow", shown(&url)));
        }
        if has_user(&url) {
            return Err(format!("{} carries a user or password; send an Authorization header instead", shown(&url)));
        }
        Ok(url)
    }
}

/// A URL as it may stand in an error: without user, password, query and fragment, which can hold secrets.
pub(crate) fn shown(url: &Url) -> String {
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
}

fn parse(text: &str) -> Result<Url, String> {
    // The text is not repeated: what does not parse may hold a password anywhere.
    Url::parse(text).map_err(|error| format!("url is not a URL: {error}"))
}

fn has_user(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

fn fits(url: &Url, entry: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
        && url.scheme() == entry.scheme()
        && url.host_str().is_some()
        && url.host_str() == entry.host_str()
        && url.port_or_known_default() == entry.port_or_known_default()
        && path_fits(url.path(), entry.path())
}

fn path_fits(path: &str, prefix: &str) -> bool {
    let Some(rest) = path.strip_prefix(prefix) else { return false };
    let at_boundary = prefix.ends_with('/') || rest.is_empty() || rest.starts_with('/');
    // The whole host is allowed: there is nothing to climb out of, and `%2F` is legal in the paths of many services.
    at_boundary && (prefix == "/" || !climbs(rest))
}

/// Whether a server might read the path as another one than the parser did: an encoded slash or dot segment,
/// encoded twice, or a dot segment with a parameter, which some servers drop.
fn climbs(path: &str) -> bool {
    let mut bytes = path.as_bytes().to_vec();
    for _ in 0..4 {
        let decoded = percent_decoded(&bytes);
        if decoded == bytes {
            break;
        }
        if decoded.iter().any(|byte| matches!(byte, b'\\' | 0))
            || decoded.iter().filter(|byte| **byte == b'/').count() != bytes.iter().filter(|byte| **byte == b'/').count()
        {
            return true;
        }
        bytes = decoded;
    }
    bytes.split(|byte| *byte == b'/').any(|segment| {
        let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        matches!(name, b"." | b"..")
    })
}

fn percent_decoded(bytes: &[u8]) -> Vec<u8> {
    let digit =
        |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16)).and_then(|digit| u8::try_from(digit).ok());
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(high * 16 + low);
                at += 3;
            }
            _ => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(entries: &[&str]) -> Allowed {
        Allowed::new(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn urls_below_an_entry_fit() {
        let list = allowed(&[
            "https://api.example.com/v1",
            "http://shop.test:8080",
            "https://hooks.example.com/a/",
            "http://[2001:470::1]/",
        ]);
        for url in [
            "https://api.example.com/v1",
            "https://api.example.com/v1/",
            "https://api.example.com/v1/users?next=/v2/..",
            "https://API.example.com:443/v1/users#top",
            "https://api.example.com/v2/../v1/users",
            "https://api.example.com/v1/a%20b/caf%C3%A9",
            "https://api.example.com/v1/..hidden/a..b",
            "http://shop.test:8080/orders/group%2Fproject",
            "https://hooks.example.com/a/b",
            "http://[2001:470:0:0::1]/x",
        ] {
            assert!(list.url(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn thirty_tricks_do_not_fit() {
        let list = allowed(&["https://api.example.com/v1", "http://shop.test:8080/", "https://hooks.example.com/a/"]);
        let tricks = [
            // Another host that only looks alike.
            "https://api.example.com.evil.org/v1",
            "https://api.example.com@evil.org/v1",
            "https://api.example.com:pass@evil.org/v1",
            "https://evil.org/https://api.example.com/v1",
            "https://evil.org#@api.example.com/v1",
            "https://evil.org\\@api.example.com/v1",
            "https://evil.org?@api.example.com/v1",
            "https://api.example.com./v1",
            "https://sub.api.example.com/v1",
            "https://xn--pi-8ka.example.com/v1",
            // Ourselves and the neighbours, in the spellings that parsers know.
            "http://127.0.0.1/v1",
            "http://127.1:8080/",
            "http://2130706433:8080/",
            "http://0x7f000001:8080/",
            "http://0177.0.0.1:8080/",
            "http://0:8080/",
            "http://localhost:8080/",
            "http://[::1]:8080/",
            "http://[::]:8080/",
            "http://[::ffff:127.0.0.1]:8080/",
            "http://[::ffff:7f00:1]:8080/",
            "http://169.254.169.254/latest/meta-data/",
            "http://[fd00:ec2::254]/latest/meta-data/",
            "http://①②⑦.⓪.⓪.①:8080/",
            // Another scheme or port.
            "http://api.example.com/v1",
            "https://api.example.com:8443/v1",
            "ftp://api.example.com/v1",
            "file:///etc/passwd",
            "gopher://shop.test:8080/_x",
            // Another path than the one that is allowed.
            "https://api.example.com/v1evil",
            "https://api.example.com/v1/../v2",
            "https://api.example.com/v1/%2e%2e/v2",
            "https://api.example.com/v1/..%2fv2",
            "https://api.example.com/v1/%2e%2e%2fv2",
            "https://api.example.com/v1/%252e%252e%252fv2",
            "https://api.example.com/v1/..%5cv2",
            "https://api.example.com/v1\\..\\v2",
            "https://api.example.com/v1/..;/v2",
            "https://api.example.com/v1/%2e%2e;x=1/v2",
            "https://api.example.com/v1/%252e%252e/v2",
            "https://api.example.com/v1/a%00",
            "https://api.example.com/V1",
            "https://hooks.example.com/a",
            // Credentials, and no URL at all.
            "https://user:secret@api.example.com/v1",
            "//api.example.com/v1",
            "/v1",
            "",
        ];
        for url in tricks {
            assert!(list.url(url).is_err(), "{url}");
        }
        assert!(
            list.url("https://evil.org/?token=secret").is_err_and(|e| e.contains("handlers.http.allow") && !e.contains("secret"))
        );
        assert!(list.url("https://user:secret@api.example.com/v1").is_err_and(|e| !e.contains("secret")));
    }

    #[test]
    fn entries_that_are_not_plain_urls_allow_nothing() {
        let list = allowed(&[
            "",
            "*",
            "api.example.com",
            "https://*",
            "https://u:p@a.test/",
            "https://a.test/?q",
            "file:///",
            "data:text/plain,",
        ]);
        for url in ["https://a.test/", "https://a.test/?q", "file:///etc/passwd", "data:text/plain,x", "https://api.example.com/"]
        {
            assert!(list.url(url).is_err(), "{url}");
        }
    }
}
