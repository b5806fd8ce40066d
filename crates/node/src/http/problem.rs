//! What the API answers when it refuses: RFC 9457 documents with a stable `type`, and the fields that are wrong.
//!
//! Every refusal of this server passes through here, so no plain text of a library reaches a client. A document never holds
//! the text of Redis, a token, or the arguments of a job. Deliberately absent: documents that differ with the reason why a
//! token is refused.

use std::sync::{LazyLock, Mutex, PoisonError};

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use punctual_core::client::EnqueueError;
use punctual_core::job::FieldError;
use punctual_core::store::{Kind, StoreError};
use serde::Serialize;

use crate::telemetry::Repeats;

/// What kind of refusal it is. The word in its `type` is public and stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Timeout,
    IdempotencyConflict,
    TooLarge,
    UnsupportedMediaType,
    Validation,
    TooManyRequests,
    Internal,
    RedisUnavailable,
}

impl Refusal {
    const fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::BadRequest => (StatusCode::BAD_REQUEST, "bad-request", "The request cannot be read"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized", "A valid token is needed"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "The token does not allow this"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found", "There is nothing here"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", "The method is not known here"),
            Self::Timeout => (StatusCode::REQUEST_TIMEOUT, "request-timeout", "The request did not arrive in time"),
            Self::IdempotencyConflict => (StatusCode::CONFLICT, "idempotency-conflict", "The key stands for another request"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The request is too large"),
            Self::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", "The content type is not known here")
            }
            Self::Validation => (StatusCode::UNPROCESSABLE_ENTITY, "validation", "The request is not valid"),
            Self::TooManyRequests => (StatusCode::TOO_MANY_REQUESTS, "too-many-requests", "The server is busy"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "The server failed"),
            Self::RedisUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "redis-unavailable", "Redis is away"),
        }
    }
}

/// One refusal on its way out.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    refusal: Refusal,
    detail: String,
    errors: Vec<FieldError>,
    /// What had been done before, of a request for many things.
    results: Option<serde_json::Value>,
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [FieldError],
    #[serde(skip_serializing_if = "Option::is_none")]
    results: Option<&'a serde_json::Value>,
}

impl Problem {
    pub(super) fn new(refusal: Refusal, detail: impl Into<String>) -> Self {
        Self { refusal, detail: detail.into(), errors: Vec::new(), results: None }
    }

    /// Fields that are wrong.
    pub(super) fn fields(errors: Vec<FieldError>) -> Self {
        let detail = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        Self { errors, ..Self::new(Refusal::Validation, detail) }
    }

    /// One field that is wrong.
    pub(super) fn field(field: &str, message: impl Into<String>) -> Self {
        Self::fields(vec![FieldError::new(field, message)])
    }

    /// Redis did not answer in the time that a request may take.
    pub(super) fn late() -> Self {
        Self::new(Refusal::RedisUnavailable, "Redis gave no answer in time; the request may have been carried out")
    }

    pub(super) fn with_results(self, results: serde_json::Value) -> Self {
        Self { results: Some(results), ..self }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let detail = match error.kind {
            Kind::Unreachable => "Redis cannot be reached; the request may have been carried out",
            Kind::Busy => "Redis cannot serve now",
            Kind::ReadOnly => "Redis is failing over",
            Kind::Full => "Redis is out of memory",
            Kind::Auth => "Redis refuses this node's login",
            Kind::Permission => "Redis denies this node a command",
            Kind::Wrong => {
                static SEEN: LazyLock<Mutex<Repeats>> = LazyLock::new(Mutex::default);
                if let Some(report) = SEEN.lock().unwrap_or_else(PoisonError::into_inner).failed(&error.text) {
                    tracing::error!(target: "http", %error, count = report.count, "redis answer unexpected");
                }
                return Self::new(Refusal::Internal, "Redis gave an answer that this release does not know");
            }
        };
        Self::new(Refusal::RedisUnavailable, detail)
    }
}

impl From<EnqueueError> for Problem {
    fn from(error: EnqueueError) -> Self {
        match error {
            EnqueueError::Refused(errors) => Self::fields(errors),
            EnqueueError::Store(error) => error.into(),
            EnqueueError::NoCluster => Self::new(Refusal::Internal, "there is no cluster behind this server"),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, word, title) = self.refusal.parts();
        let document = Document {
            r#type: format!("urn:punctual:problem:{word}"),
            title,
            status: status.as_u16(),
            detail: &self.detail,
            errors: &self.errors,
            results: self.results.as_ref(),
        };
        let body = serde_json::to_string(&document).expect("a problem is plain data");
        let mut headers: Vec<(HeaderName, &str)> = vec![(header::CONTENT_TYPE, "application/problem+json")];
        match self.refusal {
            Refusal::Unauthorized => headers.push((header::WWW_AUTHENTICATE, r#"Bearer realm="punctual""#)),
            Refusal::RedisUnavailable | Refusal::TooManyRequests => headers.push((header::RETRY_AFTER, "1")),
            _ => {}
        }
        let mut response = (status, body).into_response();
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}
