//! `Idempotency-Key`: a repeated request gives the same answer for a day, and the same key with another request is refused.
//!
//! A key belongs to the token that sent it and to its route. What it stands for is tied to the bytes of the body; the ids of
//! the jobs and the name of the enqueue call follow from it, so that the receipt of the first call answers all later ones,
//! also when the job has long ended. A request that was refused leaves nothing behind. Deliberately absent: a stored answer.

use axum::http::HeaderMap;
use punctual_core::config::Digest;
use punctual_core::store::Store;
use punctual_core::store::enqueue::NamedCall;

use super::auth::Caller;
use super::problem::{Problem, Refusal};

const HEADER: &str = "idempotency-key";
/// Longest key.
const LONGEST: usize = 255;

/// A key with the request that it came with; nothing is stored yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Key {
    digest: String,
    request: String,
}

impl Key {
    /// Reads the key of a request, if it has one.
    pub(super) fn read(headers: &HeaderMap, caller: &Caller, route: &str, body: &str) -> Result<Option<Self>, Problem> {
        let mut values = headers.get_all(HEADER).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let wrong = || Problem::field("Idempotency-Key", format!("must be one text of 1 to {LONGEST} visible ASCII characters"));
        let key = value.to_str().map_err(|_| wrong())?.trim();
        let fits = (1..=LONGEST).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if !fits || values.next().is_some() {
            return Err(wrong());
        }
        // No part can hold a line feed, so no two different triples give one text.
        let digest = hex(&format!("{}\n{route}\n{key}", caller.name));
        Ok(Some(Self { digest, request: hex(body) }))
    }

    /// Ties the key to its request, or finds that it is tied already.
    pub(super) async fn name(&self, store: &Store) -> Result<NamedCall, Problem> {
        let named = store.name_call(&self.digest, &self.request).await?;
        named.ok_or_else(|| {
            Problem::new(Refusal::IdempotencyConflict, "this Idempotency-Key came with another body within the last day")
        })
    }
}

/// The SHA-256 of a text.
pub(super) fn hex(text: &str) -> String {
    Digest::of(text).0.iter().fold(String::with_capacity(64), |mut hex, byte| {
        use std::fmt::Write;
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use punctual_core::config::Role;

    use super::*;

    fn key(values: &[&[u8]], name: &str, route: &str) -> Result<Option<Key>, ()> {
        let caller = Caller { name: name.to_owned(), role: Role::Operate, queues: None };
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(HEADER, axum::http::HeaderValue::from_bytes(value).unwrap());
        }
        Key::read(&headers, &caller, route, "{}").map_err(drop)
    }

    #[test]
    fn a_key_belongs_to_its_token_and_route() {
        let digest = |name, route| key(&[b"k-1"], name, route).unwrap().unwrap().digest;
        assert_eq!(digest("ci", "/a"), digest("ci", "/a"));
        assert_ne!(digest("ci", "/a"), digest("web", "/a"));
        assert_ne!(digest("ci", "/a"), digest("ci", "/b"));
    }

    #[test]
    fn keys_that_are_no_text_are_refused() {
        assert_eq!(key(&[], "a", "/"), Ok(None));
        for values in [&[b"".as_slice()][..], &[b"\xff"], &[&[b'x'; 256]], &[b"a", b"b"]] {
            assert_eq!(key(values, "a", "/"), Err(()), "{values:?}");
        }
    }
}
