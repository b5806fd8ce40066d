//! Who asks, and what they may do. One middleware stands before every route but the health checks, known or not.
//!
//! Tokens are compared by their SHA-256 in constant time, all of them at each request. Every refusal of a token is the same
//! answer. Without tokens the server listens on this machine alone and everybody may do everything; what stands between it
//! and a web page in a browser of this machine is then checked here: the `Host` must be this machine, and a page of another
//! origin may change nothing. Deliberately absent: a built-in token, tokens in the query, and sessions.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use punctual_core::config::{Digest, Role, Token};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::problem::{Problem, Refusal};
use super::{App, routes};

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    /// The token's name; empty without tokens.
    pub(super) name: String,
    pub(super) role: Role,
    /// The only queues it reaches; `None` = all.
    pub(super) queues: Option<Vec<String>>,
}

impl Caller {
    /// Whether a queue is within reach.
    pub(super) fn reaches(&self, queue: &str) -> bool {
        self.queues.as_ref().is_none_or(|queues| queues.iter().any(|own| own == queue))
    }

    /// Refuses a queue that is out of reach.
    pub(super) fn must_reach(&self, queue: &str) -> Result<(), Problem> {
        if self.reaches(queue) { Ok(()) } else { Err(Problem::new(Refusal::Forbidden, out_of_reach(queue))) }
    }
}

/// The text of a refused queue.
pub(super) fn out_of_reach(queue: &str) -> String {
    format!("this token does not reach the queue {queue:?}")
}

/// Lets a request pass with its [`Caller`], or refuses it. Routes whose table entry names no role pass without.
pub(super) async fn authenticate(State(app): State<App>, mut request: Request, next: Next) -> Response {
    if routes::is_open(request.method(), request.uri().path()) {
        return next.run(request).await;
    }
    let tokens = &app.config().http.tokens;
    let caller = if tokens.is_empty() { from_this_machine(&request) } else { by_token(request.headers(), tokens) };
    match caller {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

/// Lets a caller pass whose role is high enough. Stands at each route, behind [`authenticate`].
pub(super) async fn authorize(State(role): State<Role>, request: Request, next: Next) -> Response {
    match request.extensions().get::<Caller>() {
        Some(caller) if caller.role >= role => next.run(request).await,
        Some(caller) => {
            let detail = format!("this needs the role {role}, the token has {}", caller.role);
            Problem::new(Refusal::Forbidden, detail).into_response()
        }
        // Not reached while `authenticate` stands in front; a mistake there must not open the door.
        None => unauthorized().into_response(),
    }
}

fn unauthorized() -> Problem {
    Problem::new(Refusal::Unauthorized, "send a valid token as: Authorization: Bearer TOKEN")
}

fn by_token(headers: &HeaderMap, tokens: &[Token]) -> Result<Caller, Problem> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (given.next(), given.next()) else { return Err(unauthorized()) };
    let value = value.to_str().map_err(|_| unauthorized())?;
    let (scheme, token) = value.split_once(' ').ok_or_else(unauthorized)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(unauthorized());
    }
    let digest = Digest::of(token.trim());
    // Every token is looked at, so that the time does not tell how far down the list the right one stands.
    let (mut found, mut index) = (Choice::from(0), 0_u32);
    for (at, known) in (0_u32..).zip(tokens) {
        let same = digest.0.ct_eq(&known.digest.0);
        index.conditional_assign(&at, same);
        found |= same;
    }
    let token =
        tokens.get(usize::try_from(index).unwrap_or(usize::MAX)).filter(|_| bool::from(found)).ok_or_else(unauthorized)?;
    Ok(Caller { name: token.name.clone(), role: token.role, queues: token.queues.clone() })
}

/// Without tokens only the address protects the server, and a browser on this machine shares it.
fn from_this_machine(request: &Request) -> Result<Caller, Problem> {
    let headers = request.headers();
    let text = |name: header::HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST);
    // A foreign name that resolves to this machine would make a foreign page "the same origin" (DNS rebinding).
    if host.is_some_and(|host| !is_this_machine(host)) {
        return Err(Problem::new(Refusal::Forbidden, "without tokens the server is called by localhost or a loopback address"));
    }
    let harmless = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    let foreign = text(header::ORIGIN).is_some_and(|origin| origin.split_once("://").map(|(_, rest)| rest) != host);
    if foreign && !harmless {
        return Err(Problem::new(Refusal::Forbidden, "a page of another origin may change nothing here"));
    }
    Ok(Caller { name: String::new(), role: Role::Admin, queues: None })
}

fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn token(name: &str, text: &str, role: Role) -> Token {
        Token { name: name.to_owned(), role, digest: Digest::of(text), queues: None }
    }

    fn name(values: &[&str]) -> Option<String> {
        let tokens = [token("a", "first", Role::Read), token("b", "second", Role::Admin), token("c", "third", Role::Operate)];
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        by_token(&headers, &tokens).ok().map(|caller| caller.name)
    }

    #[test]
    fn one_exact_bearer_token_is_taken() {
        for (value, expected) in [("Bearer first", "a"), ("bearer second", "b"), ("BEARER third", "c")] {
            assert_eq!(name(&[value]).as_deref(), Some(expected), "{value}");
        }
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer firs",
            "Bearer firstt",
            "Bearer FIRST",
            "first",
            "Basic first",
            "Bearer first second",
        ] {
            assert_eq!(name(&[value]), None, "{value}");
        }
        assert_eq!(name(&["Bearer first", "Bearer second"]), None);
        assert_eq!(name(&[]), None);
    }

    #[test]
    fn without_tokens_foreign_names_and_pages_are_refused() {
        let ask = |method: &str, host: Option<&str>, origin: Option<&str>| {
            let mut request = axum::http::Request::builder().method(method);
            for (name, value) in [("host", host), ("origin", origin)] {
                request = if let Some(value) = value { request.header(name, value) } else { request };
            }
            from_this_machine(&request.body(Body::empty()).unwrap()).is_ok()
        };
        for host in ["localhost", "localhost:7070", "127.0.0.1:7070", "[::1]:7070", "[::1]", "LOCALHOST:1"] {
            assert!(ask("POST", Some(host), None), "{host}");
        }
        for host in
            ["evil.example", "evil.example:7070", "localhost.evil.example", "10.0.0.1:7070", "", "127.0.0.1.evil.example:1"]
        {
            assert!(!ask("GET", Some(host), None), "{host}");
        }
        assert!(ask("POST", Some("localhost:7070"), Some("http://localhost:7070")));
        for origin in ["http://evil.example", "null", "http://localhost:8080", "http://127.0.0.1:7070"] {
            assert!(!ask("POST", Some("localhost:7070"), Some(origin)), "{origin}");
        }
        assert!(ask("GET", Some("localhost:7070"), Some("http://evil.example")));
    }
}
