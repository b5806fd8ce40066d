//! The handlers that this cluster runs: the registry, one line each, and one file per handler.
//!
//! To add one: a file with its arguments and an async function, a `mod` line and a line in the registry. What a handler may reach is not
//! decided here: `handlers.http.allow` and `handlers.exec.allow` of the node that runs it say so, and an empty list
//! allows nothing. The node injects them as [`punctual_core::config::Handlers`].

pub mod article_publish;
pub mod demo;
pub mod http_request;
pub mod order_close;
mod outbound;
mod process;
pub mod process_exec;
pub mod report_run;
#[cfg(test)]
mod testing;

use std::time::Duration;

use punctual_core::backoff::Retry;
use punctual_core::handler::Registry;

/// Every handler, with its default policies; a job's own beat them.
#[must_use]
#[rustfmt::skip] // One line per handler is what this page is for.
pub fn registry() -> Registry {
    Registry::new()
        .register("http.request", http_request::http_request).timeout(secs(60))
        .register("process.exec", process_exec::process_exec)
        .register("order.close", order_close::close_order).retry(Retry::preset("fast")).timeout(secs(30))
        .register("article.publish", article_publish::publish_article).retry(Retry::preset("fast")).timeout(secs(30))
        .register("report.run", report_run::run_report).timeout(secs(600))
        .register("demo.noop", demo::noop).demo()
        .register("demo.sleep", demo::sleep).demo()
        .register("demo.fail", demo::fail).demo()
        .register("demo.panic", demo::panic).demo()
        .register("demo.spin", demo::spin).demo()
        .register("demo.ignore", demo::ignore).demo()
        .register("demo.abort", demo::abort).demo()
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_handlers_are_left_out_unless_asked_for() {
        let names = |registry: Registry| registry.names().into_iter().filter(|name| name.starts_with("demo.")).count();
        assert_eq!((names(registry()), names(registry().without_demo())), (7, 0));
        assert!(registry().without_demo().names().contains(&"order.close".to_owned()));
    }

    #[test]
    fn arguments_that_do_not_fit_are_named_before_anything_runs() {
        let registry = registry();
        let cases = [
            ("http.request", r#"{"method":"GET"}"#, "url"),
            ("http.request", r#"{"url":"http://a/","method":"CONNECT"}"#, "method"),
            ("http.request", r#"{"url":"http://a/","expect":"2xx"}"#, "expect"),
            ("http.request", r#"{"url":"http://a/","follow":true}"#, "follow"),
            ("process.exec", r#"{"argv":"ls -l"}"#, "argv"),
            ("process.exec", r#"{"argv":["/bin/ls"],"shell":true}"#, "shell"),
            ("order.close", r#"{"shop":"http://a/"}"#, "order_id"),
            ("article.publish", r#"{"slug":"a","title":"A"}"#, "site"),
            ("report.run", r#"{"report":"a","day":"2026-11-01"}"#, "command"),
            ("demo.sleep", r#"{"ms":-1}"#, "ms"),
        ];
        for (handler, args, field) in cases {
            let error = registry.get(handler).unwrap().check(args).unwrap_err();
            assert!(error.to_string().contains(field), "{handler} {args}: {error}");
        }
    }

    #[test]
    fn every_handler_describes_its_arguments() {
        for handler in registry().iter() {
            assert_eq!(handler.schema["type"], "object", "{}", handler.name);
        }
    }
}
