//! A small HTTP/1.1 client: one connection per request, so that a test sees exactly what the server answers to it.
//!
//! No redirects, no retries, no TLS, no compression. Header names in answers are lower case.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Headers by lower-case name; of a repeated one the values, with `, ` between.
    pub headers: BTreeMap<String, String>,
    /// Body, with chunks put together.
    pub body: Vec<u8>,
}

impl Response {
    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// When it is none; the text holds status and body.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("status {} with a body that is no JSON: {}", self.status, self.text()))
    }

    /// A header by its lower-case name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Http {
    addr: SocketAddr,
    headers: Vec<(String, String)>,
    timeout: Duration,
}

impl Http {
    /// A client that sends no token and waits 10 s for an answer.
    #[must_use]
    pub fn new(addr: SocketAddr) -> Self {
        Self { addr, headers: Vec::new(), timeout: Duration::from_secs(10) }
    }

    /// Sends `Authorization: Bearer TOKEN` with every request.
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    /// Sends this header with every request.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Time for one request.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// `GET path`.
    ///
    /// # Errors
    /// When there is no complete answer in time. Any status is a result, not an error.
    pub async fn get(&self, path: &str) -> Result<Response> {
        self.send("GET", path, "", b"").await
    }

    /// `DELETE path`.
    ///
    /// # Errors
    /// When there is no complete answer in time.
    pub async fn delete(&self, path: &str) -> Result<Response> {
        self.send("DELETE", path, "", b"").await
    }

    /// `POST path` with a JSON body.
    ///
    /// # Errors
    /// When there is no complete answer in time.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Response> {
        self.send("POST", path, "application/json", body.to_string().as_bytes()).await
    }

    /// `PUT path` with a JSON body.
    ///
    /// # Errors
    /// When there is no complete answer in time.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Response> {
        self.send("PUT", path, "application/json", body.to_string().as_bytes()).await
    }

    /// Any request; without a `content_type` the header is left out.
    ///
    /// # Errors
    /// When there is no complete answer in time.
    pub async fn send(&self, method: &str, path: &str, content_type: &str, body: &[u8]) -> Result<Response> {
        let exchange = tokio::time::timeout(self.timeout, self.exchange(method, path, content_type, body));
        let answer = exchange.await.map_err(|_| anyhow!("no complete answer within {:?}", self.timeout)).flatten();
        answer.with_context(|| format!("failed to {method} http://{}{path}", self.addr))
    }

    async fn exchange(&self, method: &str, path: &str, content_type: &str, body: &[u8]) -> Result<Response> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.addr);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !content_type.is_empty() {
            head += &format!("Content-Type: {content_type}\r\n");
        }
        if !body.is_empty() || matches!(method, "POST" | "PUT") {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        let mut stream = TcpStream::connect(self.addr).await?;
        stream.write_all(&[head.as_bytes(), b"\r\n", body].concat()).await?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await?;
        parse(&bytes)
    }
}

fn parse(bytes: &[u8]) -> Result<Response> {
    let end = find(bytes, b"\r\n\r\n").context("the answer has no complete head")?;
    let head = std::str::from_utf8(&bytes[..end])?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("the answer has no status")?.parse()?;
    let mut headers = BTreeMap::<String, String>::new();
    for line in lines {
        let (name, value) = line.split_once(':').with_context(|| format!("header without a colon: {line}"))?;
        let have = headers.entry(name.to_ascii_lowercase());
        have.and_modify(|have| *have += &format!(", {}", value.trim())).or_insert_with(|| value.trim().to_owned());
    }
    let mut body = bytes[end + 4..].to_vec();
    if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
        body = unchunk(&body)?;
    } else if let Some(length) = headers.get("content-length") {
        let length: usize = length.parse()?;
        // An answer to HEAD names the length of a body that it does not send.
        ensure!(body.is_empty() || body.len() == length, "the body has {} bytes instead of {length}", body.len());
    }
    Ok(Response { status, headers, body })
}

fn unchunk(mut rest: &[u8]) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = find(rest, b"\r\n").context("the answer ends inside a chunk's head")?;
        let size = std::str::from_utf8(&rest[..end])?.split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size.trim(), 16)?;
        if size == 0 {
            return Ok(body);
        }
        let chunk = rest.get(end + 2..end + 2 + size).context("the answer ends inside a chunk")?;
        body.extend_from_slice(chunk);
        rest = rest.get(end + 2 + size + 2..).context("the answer ends behind a chunk")?;
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn request_carries_token_and_body_and_the_answer_is_parsed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = Http::new(listener.local_addr().unwrap()).token("secret");
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let mut length = 0;
            while !request[..length].ends_with(b"{\"a\":1}") {
                length += stream.read(&mut request[length..]).await.unwrap();
            }
            let answer = "HTTP/1.1 201 Created\r\nX-A: 1\r\nx-a: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"b\":\r\n2\r\n2}\r\n0\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(request[..length].to_vec()).unwrap()
        });
        let response = http.post("/api?x=1", &json!({"a": 1})).await.unwrap();
        assert_eq!((response.status, response.header("x-a"), response.json().unwrap()), (201, Some("1, 2"), json!({"b": 2})));
        let request = server.await.unwrap();
        assert!(
            request.starts_with("POST /api?x=1 HTTP/1.1\r\n") && request.contains("\r\nAuthorization: Bearer secret\r\n"),
            "{request}"
        );
        assert!(request.contains("\r\nContent-Length: 7\r\n"), "{request}");
    }

    #[test]
    fn truncated_answers_are_errors() {
        assert!(parse(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc").is_err());
        assert!(parse(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab").is_err());
        assert_eq!(parse(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().status, 204);
    }
}
