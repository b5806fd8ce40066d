//! What the handlers' tests share: a job to run, and an HTTP server that says what it is told to.

use std::future::Future;
use std::sync::{Arc, Mutex};

use punctual_core::config::{Allow, Handlers};
use punctual_core::handler::{JobContext, JobIdentity, Outcome, Registry};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// A job with these allow-lists, and what cancels it.
pub(crate) fn job_with(http: &[&str], exec: &[&str], attempt: u32) -> (JobContext, CancellationToken) {
    let listed = |list: &[&str]| Allow { allow: list.iter().map(|entry| (*entry).to_owned()).collect() };
    let handlers = Handlers { demo: true, http: listed(http), exec: listed(exec) };
    let identity = JobIdentity {
        id: "job-1".to_owned(),
        queue: "default".to_owned(),
        handler: "test".to_owned(),
        attempt,
        due_ms: 1_774_746_000_000,
        claim: 42,
        headers: std::collections::BTreeMap::new(),
    };
    let cancel = CancellationToken::new();
    (JobContext::new(identity, cancel.clone(), &Registry::new().state(handlers), None, |_| {}), cancel)
}

/// A job that may reach nothing, and what cancels it.
pub(crate) fn job() -> (JobContext, CancellationToken) {
    job_with(&[], &[], 1)
}

/// A job at this attempt.
pub(crate) fn attempt(number: u32) -> JobContext {
    job_with(&[], &[], number).0
}

/// A job that may call these URLs.
pub(crate) fn calling(http: &[&str]) -> JobContext {
    job_with(http, &[], 1).0
}

/// A job that may run these programs.
pub(crate) fn running(exec: &[&str]) -> JobContext {
    job_with(&[], exec, 1).0
}

/// The text of a retry or of the dead.
#[track_caller]
pub(crate) fn error_of(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Retry(text) | Outcome::RetryAfter(_, text) | Outcome::Dead(text) => text,
        other => panic!("not a failure: {other:?}"),
    }
}

/// The JSON of a result.
#[track_caller]
pub(crate) fn result_of(outcome: &Outcome) -> serde_json::Value {
    match outcome {
        Outcome::Done(Some(text)) => serde_json::from_str(text).unwrap(),
        other => panic!("not done with a result: {other:?}"),
    }
}

/// A request as it came over the wire.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Request {
    /// The values of a header, in the order in which they came.
    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        let pairs = self.head.lines().filter_map(|line| line.split_once(':'));
        pairs.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
    }
}

/// A server on 127.0.0.1 for as long as it is kept.
pub(crate) struct Server {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<Request>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Answers each request with the bytes that `answer` makes of it, then closes the connection.
    pub(crate) async fn start<A: AsRef<[u8]> + Send>(answer: impl Fn(&Request) -> A + Send + Sync + 'static) -> Self {
        Self::start_with(move |request, mut stream| {
            let bytes = answer(&request);
            async move {
                let _ = stream.write_all(bytes.as_ref()).await;
                let _ = stream.shutdown().await;
            }
        })
        .await
    }

    /// As [`Server::start`], for those that write as they like.
    pub(crate) async fn start_with<F: Future<Output = ()> + Send>(
        answer: impl Fn(Request, TcpStream) -> F + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let requests = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let request = receive(&mut stream).await;
                requests.lock().unwrap().push(request.clone());
                answer(request, stream).await;
            }
        });
        Self { port, seen, task }
    }

    /// Its address, with a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// What has come so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    /// The lines of what has come so far, without the version.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.requests().iter().map(|request| request.line.trim_end_matches(" HTTP/1.1").to_owned()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An answer with a body.
pub(crate) fn answer(status: u16, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
}

async fn receive(stream: &mut TcpStream) -> Request {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let (line, head) = head.split_once("\r\n").unwrap_or((head, ""));
            let request = Request { line: line.to_owned(), head: head.to_owned(), body: body.to_owned() };
            let length = request.header("content-length").first().map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                return request;
            }
        }
        // A TLS greeting has no empty line to wait for.
        if bytes.first() == Some(&0x16) || stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return Request { line: String::new(), head: String::new(), body: text };
        }
    }
}
