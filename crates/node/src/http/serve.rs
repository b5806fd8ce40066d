//! The listening side of both servers: bind, accept, bound what a client can hold, and stop within a deadline.
//!
//! A client that sends its head slowly, or none, loses its connection; so does one that keeps an idle connection. There are
//! at most so many connections at a time; later ones wait in the kernel. Deliberately absent: TLS and HTTP/2, which a proxy
//! brings where they are needed.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::telemetry::Repeats;

/// Connections of one server at a time.
const MAX_CONNECTIONS: usize = 1024;
/// The head of a request must be complete within this, counted from the connection's start or the previous answer.
const HEAD_WITHIN: Duration = Duration::from_secs(15);
/// Largest head.
const HEAD_BYTES: usize = 64 * 1024;
/// Requests under way have this long after the server was told to stop.
const STOP_WITHIN: Duration = Duration::from_secs(3);

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("listen on {addr} ({key}): {}", reason(source))]
pub struct BindError {
    key: &'static str,
    addr: SocketAddr,
    source: std::io::Error,
}

fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "the port is taken; choose another, or port 0 for a free one".to_owned(),
        std::io::ErrorKind::PermissionDenied => "ports below 1024 need a right that this user does not have".to_owned(),
        _ => error.to_string(),
    }
}

/// Binds an address and says so. `key` is the configuration's, such as `http.listen`.
///
/// # Errors
/// When the address is taken or not this machine's; the text says which.
pub async fn bind(key: &'static str, addr: SocketAddr, node_id: &str) -> Result<TcpListener, BindError> {
    let wrong = |source| BindError { key, addr, source };
    let listener = TcpListener::bind(addr).await.map_err(wrong)?;
    let addr = listener.local_addr().map_err(wrong)?;
    tracing::info!(target: "http", node_id, %addr, key, "http listening");
    Ok(listener)
}

/// Serves until `shutdown`, then lets requests under way end, for a few seconds at most. Dropping it ends it at once.
pub async fn serve(listener: TcpListener, router: Router, shutdown: CancellationToken) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let connections = TaskTracker::new();
    let mut failures = Repeats::new();
    loop {
        let accept = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept => accepted,
        };
        match (slot, accepted) {
            (Ok(slot), Ok((stream, _))) => {
                let _none = failures.recovered();
                let (router, shutdown) = (router.clone(), shutdown.clone());
                connections.spawn(async move {
                    connection(stream, router, shutdown, HEAD_WITHIN).await;
                    drop(slot);
                });
            }
            (_, Err(error)) => {
                if let Some(report) = failures.failed(&error.to_string()) {
                    tracing::warn!(target: "http", %error, count = report.count, "http accept failed");
                }
                // Out of file descriptors, the next accept would fail as fast.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            (Err(_), _) => break,
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn connection(stream: TcpStream, router: Router, shutdown: CancellationToken, head_within: Duration) {
    // A short answer should not wait for the acknowledgement of the one before.
    let _without = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_within).max_buf_size(HEAD_BYTES);
    let serving = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut serving = pin!(serving);
    // Errors here are the client's: it went away, or spoke no HTTP.
    tokio::select! {
        _ended = serving.as_mut() => return,
        () = shutdown.cancelled() => {}
    }
    serving.as_mut().graceful_shutdown();
    let _late = tokio::time::timeout(STOP_WITHIN, serving).await;
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_named() {
        let first = bind("http.listen", "127.0.0.1:0".parse().unwrap(), "n-1").await.unwrap();
        let addr = first.local_addr().unwrap();
        let error = bind("http.ops_listen", addr, "n-1").await.unwrap_err().to_string();
        assert!(error.contains(&addr.to_string()) && error.contains("http.ops_listen") && error.contains("taken"), "{error}");
    }

    #[tokio::test]
    async fn heads_that_drip_and_idle_connections_are_closed() {
        for sent in ["", "GET / HTTP/1.1\r\nHost: a\r\nX", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            client.write_all(sent.as_bytes()).await.unwrap();
            let router = Router::new().route("/", get(|| async { "done" }));
            let serving = connection(stream, router, CancellationToken::new(), Duration::from_millis(100));
            tokio::time::timeout(Duration::from_secs(5), serving).await.expect(sent);
        }
    }

    #[tokio::test]
    async fn stopping_lets_requests_end_and_idle_connections_go() {
        let listener = bind("http.listen", "127.0.0.1:0".parse().unwrap(), "n-1").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let slow = || async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            "done"
        };
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(serve(listener, Router::new().route("/", get(slow)), shutdown.clone()));
        let _idle = TcpStream::connect(addr).await.unwrap();
        let mut busy = TcpStream::connect(addr).await.unwrap();
        busy.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        shutdown.cancel();
        let mut answer = String::new();
        busy.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("done"), "{answer}");
        tokio::time::timeout(STOP_WITHIN, server).await.unwrap().unwrap();
        assert!(TcpStream::connect(addr).await.is_err());
    }
}
