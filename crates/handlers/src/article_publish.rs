//! `article.publish`: puts an article on its site at the planned time.
//!
//! The site is told the job's id as `Idempotency-Key`; an article that is published already (409) is done. A site that
//! is busy, broken or away is asked again, no earlier than its `Retry-After`; any other refusal is dead, such as 410
//! for an article that was withdrawn. Absent on purpose: the article's text, which the site has.

use punctual_core::handler::{JobArgs, JobContext, Outcome};
use reqwest::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::outbound::{self, Call};

/// The article to publish.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishArticle {
    /// Its name in the address.
    pub slug: String,
    /// Its title, which the site is sent.
    pub title: String,
    /// The address of the site's service, such as `http://127.0.0.1:8080`; `handlers.http.allow` must list it.
    pub site: String,
}

impl JobArgs for PublishArticle {
    const HANDLER: &'static str = "article.publish";
}

/// Publishes the article; the result is `{"slug":"…","published":true}`, or `false` when it was before.
pub async fn publish_article(args: PublishArticle, job: JobContext) -> Outcome {
    run(&args, &job).await.unwrap_or_else(|failure| failure)
}

async fn run(args: &PublishArticle, job: &JobContext) -> Result<Outcome, Outcome> {
    let slug = args.slug.as_str();
    let word = slug.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if !(1..=200).contains(&slug.len()) || !word || slug.starts_with('.') {
        return Err(Outcome::dead(format!("slug {slug:?} must be 1 to 200 bytes of letters, digits, - _ and inner dots")));
    }
    let url = outbound::join(&args.site, &["articles", slug, "publish"])?;
    let call = Call::new(Method::POST, url).json(&json!({ "slug": slug, "title": args.title }));
    let reply = outbound::send(call, job).await?;
    match reply.status {
        200..=299 => Ok(Outcome::done(json!({ "slug": slug, "published": true }))),
        409 => Ok(Outcome::done(json!({ "slug": slug, "published": false, "because": "already published" }))),
        _ => Err(reply.failure()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::{Server, answer, calling, result_of};

    async fn publish(slug: &str, server: &Server) -> Outcome {
        let args = PublishArticle { slug: slug.to_owned(), title: "定时任务".to_owned(), site: server.url("/blog") };
        publish_article(args, calling(&[&server.url("/blog")])).await
    }

    #[tokio::test]
    async fn an_article_is_published_once() {
        let site = Server::start(|request| answer(if request.line.contains("/old/") { 409 } else { 201 }, "", "")).await;
        assert_eq!(result_of(&publish("new-one", &site).await), json!({ "slug": "new-one", "published": true }));
        assert_eq!(result_of(&publish("old", &site).await)["published"], false);
        let first = site.requests().remove(0);
        assert_eq!(first.line, "POST /blog/articles/new-one/publish HTTP/1.1");
        assert_eq!(first.header("idempotency-key"), ["job-1"]);
        assert_eq!(first.body, r#"{"slug":"new-one","title":"定时任务"}"#);
    }

    #[tokio::test]
    async fn a_busy_site_is_asked_again_and_a_refusal_is_dead() {
        let site = Server::start(|request| match request.line.split('/').nth(3) {
            Some("busy") => answer(503, "", ""),
            Some("limited") => answer(429, "retry-after: 3\r\n", ""),
            _ => answer(410, "", "withdrawn"),
        })
        .await;
        assert!(matches!(publish("busy", &site).await, Outcome::Retry(_)));
        assert!(matches!(publish("limited", &site).await, Outcome::RetryAfter(wait, _) if wait == Duration::from_secs(3)));
        assert!(matches!(publish("gone", &site).await, Outcome::Dead(reason) if reason.contains("410: withdrawn")));
    }

    #[tokio::test]
    async fn a_slug_cannot_become_a_path() {
        let site = Server::start(|_| answer(200, "", "")).await;
        for slug in ["", ".", "..", "a/b", "../admin", "a?b", "a#b", "a%2fb", "a b", "a\nb", ".git"] {
            assert!(matches!(publish(slug, &site).await, Outcome::Dead(_)), "{slug:?}");
        }
        assert!(site.requests().is_empty());
        assert!(matches!(publish("v1.2-定时", &site).await, Outcome::Done(_)));
    }
}
