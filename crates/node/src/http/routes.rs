//! Every route with its method and the role that it needs. The routers are built from this table and from nothing else, so a
//! route without a role cannot be added by mistake, and tests can ask each one as each caller.

use axum::http::Method;
use axum::routing::{MethodRouter, get, post};
use punctual_core::config::Role;

use super::{App, bulk, health, jobs};

/// One route.
pub struct Route {
    /// `GET` or another method; HEAD is answered wherever GET is.
    pub method: &'static str,
    /// The path, `{name}` standing for one part.
    pub path: &'static str,
    /// The least role; `None` = open to anyone, even where tokens are configured.
    pub role: Option<Role>,
    /// Whether the operators' server has it too, there always open.
    pub ops: bool,
    pub(super) handler: fn() -> MethodRouter<App>,
}

const fn open(path: &'static str, handler: fn() -> MethodRouter<App>) -> Route {
    Route { method: "GET", path, role: None, ops: true, handler }
}

const fn route(method: &'static str, path: &'static str, role: Role, handler: fn() -> MethodRouter<App>) -> Route {
    Route { method, path, role: Some(role), ops: false, handler }
}

/// The table.
pub const ROUTES: &[Route] = &[
    open("/healthz", || get(health::alive)),
    open("/readyz", || get(health::ready)),
    Route { ops: true, ..route("GET", "/metrics", Role::Read, || get(health::metrics)) },
    route("POST", "/api/v1/jobs", Role::Operate, || post(jobs::create)),
    route("POST", "/api/v1/jobs/bulk", Role::Operate, || post(bulk::create)),
    route("GET", "/api/v1/jobs/{id}", Role::Read, || get(jobs::show)),
];

/// Whether a request needs no caller. The path is compared as it came: another spelling of it is another path.
pub(super) fn is_open(method: &Method, path: &str) -> bool {
    [Method::GET, Method::HEAD].contains(method) && ROUTES.iter().any(|route| route.role.is_none() && route.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_health_checks_are_open() {
        let open: Vec<&str> = ROUTES.iter().filter(|route| route.role.is_none()).map(|route| route.path).collect();
        assert_eq!(open, ["/healthz", "/readyz"]);
        assert!(is_open(&Method::HEAD, "/healthz"));
        for (method, path) in [
            (Method::POST, "/healthz"),
            (Method::OPTIONS, "/healthz"),
            (Method::GET, "/healthz/"),
            (Method::GET, "//healthz"),
            (Method::GET, "/HEALTHZ"),
            (Method::GET, "/%68ealthz"),
            (Method::GET, "/healthz/../metrics"),
            (Method::GET, "/healthz;x"),
            (Method::GET, "/metrics"),
        ] {
            assert!(!is_open(&method, path), "{method} {path}");
        }
    }

    #[test]
    fn what_changes_something_needs_more_than_read() {
        assert!(ROUTES.iter().all(|route| route.method == "GET" || route.role >= Some(Role::Operate)));
    }
}
