//! The one way out over HTTP: every handler that calls a service sends its [`Call`] here.
//!
//! Only URLs on `handlers.http.allow` are called, only checked addresses are connected to, and each hop of a redirect
//! passes the same checks. Every request carries `Punctual-Job-Id`, `Punctual-Attempt`, `Punctual-Claim` and
//! `Idempotency-Key` (the job's id), so that the service can refuse a stale claim and recognise a repetition.
//!
//! Failures come back as the outcome they mean: what the list forbids is dead, what the network breaks is retried;
//! what a status means is [`Reply::failure`]. Absent on purpose: proxies, cookies, compression (so no body that
//! unpacks to gigabytes), retries inside an attempt, and a timeout for the whole call, which is the job's own.

mod allow;
mod expect;
mod resolve;

use std::error::Error;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use punctual_core::clock;
use punctual_core::config::Handlers;
use punctual_core::handler::{JobContext, Outcome};
use punctual_core::state::truncate;
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::{Client, Method, Response, Url, redirect};

use allow::{Allowed, shown};
pub use expect::Expect;
use resolve::{CheckedResolver, Refused};

/// So many redirects are followed.
const MAX_REDIRECTS: usize = 5;
/// So much of a body is kept in memory.
const KEPT_BYTES: usize = 64 * 1024;
/// After so much of a body the connection is closed.
const READ_BYTES: usize = 10 * 1024 * 1024;
/// So much of a body is quoted in an error.
const QUOTED_BYTES: usize = 1024;
/// A service may ask for a wait up to this.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// One request. Its headers may not be those that every request carries, see [`headers`].
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Vec<u8>>,
    /// A redirect that is expected is an answer and is not followed.
    pub(crate) expect: Expect,
}

impl Call {
    /// A request without headers and body that expects 200 to 299.
    pub(crate) fn new(method: Method, url: impl Into<String>) -> Self {
        Self { method, url: url.into(), headers: HeaderMap::new(), body: None, expect: Expect::default() }
    }

    /// With a body of JSON.
    pub(crate) fn json(mut self, body: &serde_json::Value) -> Self {
        self.headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        self.body = Some(body.to_string().into_bytes());
        self
    }
}

/// What came back: any status, and the beginning of the body.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    wait: Option<Duration>,
    what: String,
}

impl Reply {
    /// Whether the status is 200 to 299.
    pub(crate) fn is_success(&self) -> bool {
        (200..=299).contains(&self.status)
    }

    /// The beginning of the body as text.
    pub(crate) fn text(&self, max: usize) -> String {
        // Invalid bytes grow when they are replaced, so the text is cut once more.
        truncate(String::from_utf8_lossy(self.body.get(..=max).unwrap_or(&self.body)).into_owned(), max)
    }

    /// What a status that was not expected means: the service is busy or broken and may mend, or it will never agree.
    pub(crate) fn failure(&self) -> Outcome {
        let body = self.text(QUOTED_BYTES);
        let text = format!("{}: status {}{}{body}", self.what, self.status, if body.is_empty() { "" } else { ": " });
        match (self.status, self.wait) {
            (408 | 425 | 429 | 500..=599, Some(wait)) => Outcome::retry_after(wait, text),
            (408 | 425 | 429 | 500..=599, None) => Outcome::retry(text),
            _ => Outcome::dead(text),
        }
    }
}

/// `{base}/{segment}/…`, each segment encoded, so that an id cannot become a path.
pub(crate) fn join(base: &str, segments: &[&str]) -> Result<String, Outcome> {
    let mut url = Url::parse(base).map_err(|error| Outcome::dead(format!("base is not a URL: {error}")))?;
    let plain = url.query().is_none() && url.fragment().is_none();
    match url.path_segments_mut() {
        Ok(mut path) if plain => path.pop_if_empty().extend(segments),
        _ => return Err(Outcome::dead("the base URL must be http or https, without a query or fragment")),
    };
    Ok(url.into())
}

/// Headers that a job brings, checked: not those that punctual sets, and not those that frame the message.
pub(crate) fn headers<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<HeaderMap, Outcome> {
    const OURS: [&str; 10] = [
        "host",
        "idempotency-key",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
    ];
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let refuse = |why: &str| Outcome::dead(format!("header {name:?} {why}"));
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refuse("is not a header name"))?;
        if OURS.contains(&parsed.as_str()) || parsed.as_str().starts_with("punctual-") || parsed.as_str().starts_with("proxy-") {
            return Err(refuse("is set by punctual and cannot be overridden"));
        }
        let value = HeaderValue::from_str(value).map_err(|_| refuse("has a value that no header can carry"))?;
        headers.append(parsed, value);
    }
    Ok(headers)
}

/// Sends the call and reads the answer. `Err` is the outcome of the attempt when there is no answer to judge.
pub(crate) async fn send(call: Call, job: &JobContext) -> Result<Reply, Outcome> {
    let allowed = Allowed::new(&job.state::<Handlers>().http.allow);
    tokio::select! {
        reply = Box::pin(follow(call, &allowed, job)) => reply,
        () = job.cancelled() => Err(Outcome::retry("cancelled before the service had answered")),
    }
}

async fn follow(call: Call, allowed: &Allowed, job: &JobContext) -> Result<Reply, Outcome> {
    let Call { mut method, url, mut headers, mut body, expect } = call;
    let client = CLIENT.as_ref().map_err(|error| Outcome::retry(format!("no HTTP client: {error}")))?;
    let ours = identity(job)?;
    let mut url = allowed.url(&url).map_err(Outcome::dead)?;
    for _ in 0..=MAX_REDIRECTS {
        let what = format!("{method} {}", shown(&url));
        let mut request = client.request(method.clone(), url.clone()).headers(headers.clone()).headers(ours.clone());
        if let Some(body) = &body {
            request = request.body(body.clone());
        }
        let response = request.send().await.map_err(|error| broken(&what, &error))?;
        let status = response.status();
        let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
        let (301..=303 | 307 | 308, false, Some(location)) = (status.as_u16(), expect.contains(status.as_u16()), location) else {
            return read(response, what).await;
        };
        let next = allowed.location(location, &url).map_err(|why| Outcome::dead(format!("{what}: redirected: {why}")))?;
        // As browsers do: only 307 and 308 repeat the request as it was.
        if status.as_u16() == 303 && method != Method::HEAD || status.as_u16() < 303 && method == Method::POST {
            method = Method::GET;
            body = None;
            headers.remove(CONTENT_TYPE);
        }
        // The job's headers may hold secrets, which were meant for the host that it named.
        if next.origin() != url.origin() {
            headers = headers.remove(CONTENT_TYPE).map(|kind| (CONTENT_TYPE, kind)).into_iter().collect();
        }
        url = next;
    }
    Err(Outcome::dead(format!("more than {MAX_REDIRECTS} redirects, the last to {}", shown(&url))))
}

/// The headers that every request carries.
fn identity(job: &JobContext) -> Result<HeaderMap, Outcome> {
    let id = HeaderValue::from_str(job.id()).map_err(|_| Outcome::dead("the job's id cannot stand in a header"))?;
    Ok(HeaderMap::from_iter([
        (HeaderName::from_static("punctual-job-id"), id.clone()),
        (HeaderName::from_static("punctual-attempt"), HeaderValue::from(job.attempt())),
        (HeaderName::from_static("punctual-claim"), HeaderValue::from(job.claim())),
        (HeaderName::from_static("idempotency-key"), id),
    ]))
}

async fn read(mut response: Response, what: String) -> Result<Reply, Outcome> {
    let (status, wait) = (response.status().as_u16(), wait(response.headers()));
    let mut body = Vec::new();
    let mut seen = 0;
    // The rest is read up to a limit only so that the connection can be used again.
    while let Some(chunk) = response.chunk().await.map_err(|error| broken(&what, &error))? {
        body.extend_from_slice(&chunk[..chunk.len().min(KEPT_BYTES - body.len())]);
        seen += chunk.len();
        if seen > READ_BYTES {
            break;
        }
    }
    Ok(Reply { status, body, wait, what })
}

/// What `Retry-After` asks for: seconds, or an instant judged by the server's own clock where it tells it.
fn wait(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).map(str::trim);
    let dates = jiff::fmt::rfc2822::DateTimeParser::new().relaxed_weekday(true);
    let instant = |text: &str| dates.parse_timestamp(text).ok().map(jiff::Timestamp::as_millisecond);
    let asked = text(RETRY_AFTER)?;
    let wait = if !asked.is_empty() && asked.bytes().all(|byte| byte.is_ascii_digit()) {
        // Digits that overflow ask for longer than the cap.
        Duration::from_secs(asked.parse().unwrap_or(u64::MAX))
    } else {
        let now = text(DATE).and_then(instant).or_else(|| i64::try_from(clock::local_ms()).ok())?;
        Duration::from_millis(u64::try_from(instant(asked)?.saturating_sub(now)).ok()?)
    };
    // At once would be a tight loop; the job's own policy knows better.
    (!wait.is_zero()).then_some(wait.min(LONGEST_WAIT))
}

/// A call without an answer: dead when the addresses are refused, otherwise the network may mend.
fn broken(what: &str, error: &reqwest::Error) -> Outcome {
    let chain: Vec<&(dyn Error + 'static)> = std::iter::successors(error.source(), |&error| error.source()).collect();
    if let Some(refused) = chain.iter().find_map(|error| error.downcast_ref::<Refused>()) {
        return Outcome::dead(format!("{what}: {refused}"));
    }
    let causes: Vec<String> = chain.iter().map(ToString::to_string).collect();
    let text = format!("{what}: {}", if causes.is_empty() { "no answer".to_owned() } else { causes.join(": ") });
    if error.is_builder() { Outcome::dead(text) } else { Outcome::retry(text) }
}

/// Built once: it holds the connections that are kept open. What differs between nodes, the list, is checked before.
static CLIENT: LazyLock<Result<Client, String>> = LazyLock::new(|| {
    // An error says that one is installed already, which is what is wanted.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = || {
        Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .referer(false)
            .dns_resolver(Arc::new(CheckedResolver))
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(16)
            .user_agent(concat!("punctual/", env!("CARGO_PKG_VERSION")))
    };
    // A system without CA certificates can still call http URLs; https ones then fail with an unknown issuer.
    let client = builder().build().or_else(|_| builder().tls_certs_only([]).build());
    client.map_err(|error| error.to_string())
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::error_of;

    fn wait_of(retry_after: &str, date: Option<&str>) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, retry_after.parse().unwrap());
        if let Some(date) = date {
            headers.insert(DATE, date.parse().unwrap());
        }
        wait(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn retry_after_is_seconds_or_an_instant_and_capped() {
        assert_eq!(wait_of("7", None), Some(7));
        assert_eq!(wait_of(" 120 ", None), Some(120));
        assert_eq!(wait_of("86400", None), Some(3600));
        assert_eq!(wait_of("99999999999999999999999", None), Some(3600));
        assert_eq!(wait_of("Sun, 06 Nov 1994 08:49:37 GMT", Some("Sun, 06 Nov 1994 08:49:07 GMT")), Some(30));
        assert_eq!(wait_of("Fri, 31 Dec 2999 23:59:59 GMT", None), Some(3600));
        for nothing in ["0", "", "-5", "1.5", "soon", "Sun, 06 Nov 1994 08:49:37 GMT"] {
            assert_eq!(wait_of(nothing, None), None, "{nothing}");
        }
    }

    #[test]
    fn headers_that_are_not_the_jobs_are_refused() {
        let headers = |name: &str, value: &str| headers([(&name.to_owned(), &value.to_owned())]);
        assert_eq!(headers("X-Shop", "7").unwrap()["x-shop"], "7");
        for name in [
            "Host",
            "HOST",
            "Punctual-Claim",
            "punctual-job-id",
            "Punctual-Anything",
            "Idempotency-Key",
            "Content-Length",
            "Transfer-Encoding",
            "Connection",
            "Proxy-Authorization",
            "Upgrade",
            "a b",
            "",
            "X:Y",
            "X\r\nHost",
        ] {
            assert!(error_of(&headers(name, "x").unwrap_err()).contains("header"), "{name}");
        }
        for value in ["a\r\nHost: evil", "a\nb", "a\0b"] {
            assert!(headers("X-A", value).is_err(), "{value:?}");
        }
    }

    #[test]
    fn segments_are_joined_encoded() {
        assert_eq!(join("http://shop.test", &["orders", "7"]).unwrap(), "http://shop.test/orders/7");
        assert_eq!(join("http://shop.test/api/", &["orders", "a/b?c#d"]).unwrap(), "http://shop.test/api/orders/a%2Fb%3Fc%23d");
        for wrong in ["shop.test", "http://shop.test/?q=", "http://shop.test/#x", "mailto:a@b.test", ""] {
            assert!(join(wrong, &["x"]).is_err(), "{wrong}");
        }
    }
}
