//! The body of a request: its type, its size and its time are bounded before anything looks inside.
//!
//! Deliberately absent: compressed bodies (a small one could unfold into gigabytes) and axum's own extractors, whose refusals
//! are plain text.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use tokio::time::timeout;

use super::problem::{Problem, Refusal};

/// What is sent beyond the limit is read for so long, because many clients read no answer before they have sent all.
const LINGER: Duration = Duration::from_secs(2);

/// How much is read, of which types, for how long in all and between two pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) types: &'static [&'static str],
    pub(super) bytes: usize,
    pub(super) within: Duration,
    pub(super) pause: Duration,
}

/// Reads a body as text.
///
/// Not cancel-safe: what was read is gone.
pub(super) async fn read(headers: &HeaderMap, body: Body, limits: Limits) -> Result<String, Problem> {
    check_type(headers, limits.types)?;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let bytes = match timeout(limits.within, collect(body, announced.unwrap_or(0), limits)).await {
        Ok(read) => read?,
        Err(_) => return Err(Problem::new(Refusal::Timeout, format!("the body took longer than {:?}", limits.within))),
    };
    String::from_utf8(bytes).map_err(|_| Problem::field("body", "is not UTF-8"))
}

fn check_type(headers: &HeaderMap, types: &[&str]) -> Result<(), Problem> {
    let value = headers.get(header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or(""));
    let essence = value.split(';').next().unwrap_or("").trim();
    if !types.iter().any(|known| essence.eq_ignore_ascii_case(known)) {
        return Err(Problem::new(Refusal::UnsupportedMediaType, format!("Content-Type must be {}", types.join(" or "))));
    }
    if headers.get(header::CONTENT_ENCODING).is_some_and(|value| value != "identity") {
        return Err(Problem::new(Refusal::UnsupportedMediaType, "a compressed body is not taken"));
    }
    Ok(())
}

async fn collect(body: Body, announced: usize, limits: Limits) -> Result<Vec<u8>, Problem> {
    let Limits { bytes: limit, pause, .. } = limits;
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::with_capacity(if announced <= limit { announced } else { 0 });
    let mut total = 0_usize;
    let mut frames = async || match timeout(pause, stream.next()).await {
        Ok(frame) => Ok(frame),
        Err(_) => Err(Problem::new(Refusal::Timeout, format!("the body paused for longer than {pause:?}"))),
    };
    let too_large = announced > limit
        || loop {
            let Some(frame) = frames().await? else { break false };
            let frame = frame.map_err(|_| Problem::new(Refusal::BadRequest, "the body ended early"))?;
            total = total.saturating_add(frame.len());
            if total > limit {
                break true;
            }
            bytes.extend_from_slice(&frame);
        };
    if !too_large {
        return Ok(bytes);
    }
    drop(bytes);
    let rest = async { while let Ok(Some(Ok(_))) = frames().await {} };
    let _given_up = timeout(LINGER, rest).await;
    Err(Problem::new(Refusal::TooLarge, format!("the body is larger than {limit} bytes")))
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use axum::http::StatusCode;
    use axum::response::IntoResponse;

    use super::*;

    const JSON: Limits =
        Limits { types: &["application/json"], bytes: 10, within: Duration::from_secs(30), pause: Duration::from_millis(20) };

    async fn status(headers: &[(&'static str, &'static str)], body: Body) -> Result<String, StatusCode> {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        read(&headers, body, JSON).await.map_err(|problem| problem.into_response().status())
    }

    fn frames(count: usize) -> Body {
        Body::from_stream(futures_util::stream::iter((0..count).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"12345")))))
    }

    #[tokio::test]
    async fn types_and_sizes_are_bounded() {
        let json = ("content-type", "application/json; charset=utf-8");
        assert_eq!(status(&[json], Body::from("1234567890")).await.as_deref(), Ok("1234567890"));
        assert_eq!(status(&[json], frames(2)).await.as_deref(), Ok("1234512345"));
        assert_eq!(status(&[json], frames(3)).await, Err(StatusCode::PAYLOAD_TOO_LARGE));
        assert_eq!(status(&[json, ("content-length", "11")], Body::empty()).await, Err(StatusCode::PAYLOAD_TOO_LARGE));
        for other in ["text/plain", "application/jsonx", "application/x-www-form-urlencoded", ""] {
            assert_eq!(status(&[("content-type", other)], Body::empty()).await, Err(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        let packed = [json, ("content-encoding", "gzip")];
        assert_eq!(status(&packed, Body::empty()).await, Err(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        assert_eq!(status(&[json], Body::from(vec![0xff])).await, Err(StatusCode::UNPROCESSABLE_ENTITY));
    }

    #[tokio::test]
    async fn a_body_that_drips_is_given_up() {
        let body = || Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(status(&[("content-type", "application/json")], body()).await, Err(StatusCode::REQUEST_TIMEOUT));
    }
}
