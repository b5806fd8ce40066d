//! The world outside: a shop with orders and a site with articles, on one port of this machine.
//!
//! It stands for what punctual cannot see into. It keeps its own books of who asked for what and when, and the verdict is read from
//! them. It is slow at times, busy at times, and it refuses workers whose claim is older than one that it has seen for the same
//! job. What is absent: everything of HTTP/1.1 that reqwest does not send.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use punctual_core::clock;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

const MAX_HEAD: usize = 16 * 1024;
const MAX_BODY: usize = 64 * 1024;

/// What the service does with the article when somebody wants to publish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Publishes it.
    Willing,
    /// Answers 503 to so many first tries, then publishes it.
    Busy(usize),
    /// Answers 503 for ever.
    Overwhelmed,
    /// Answers 410 for ever: the author has withdrawn it.
    Withdrawn,
}

/// Where an order stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderState {
    Unpaid,
    Paid,
    Closed,
}

impl OrderState {
    const fn word(self) -> &'static str {
        match self {
            Self::Unpaid => "unpaid",
            Self::Paid => "paid",
            Self::Closed => "closed",
        }
    }
}

/// What one request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It asked, and nothing changed.
    Looked,
    /// It did what it came for.
    Done,
    /// It came to do what had been done before.
    Again,
    /// It was sent away for the moment.
    Busy,
    /// It was sent away for good.
    Refused,
    /// It carried an older claim than one seen before.
    Stale,
}

/// One line of the books.
#[derive(Clone, Debug)]
pub struct Visit {
    /// When it arrived, milliseconds since 1970.
    pub at_ms: u64,
    /// `Punctual-Job-Id`.
    pub job: String,
    /// `Punctual-Claim`.
    pub claim: u64,
    /// What became of it.
    pub effect: Effect,
}

/// An article on the site.
#[derive(Clone, Debug)]
pub struct Article {
    pub mood: Mood,
    pub title: String,
    pub tries: usize,
    pub published: bool,
}

/// All that the service knows.
#[derive(Debug, Default)]
pub struct Books {
    pub orders: BTreeMap<u64, OrderState>,
    pub articles: BTreeMap<String, Article>,
    pub visits: Vec<Visit>,
    /// Requests that made no sense; none is expected.
    pub odd: Vec<String>,
    claims: BTreeMap<String, u64>,
}

/// The running service.
#[derive(Clone)]
pub struct Service {
    addr: SocketAddr,
    books: Arc<Mutex<Books>>,
}

struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Service {
    /// Opens it with these articles and no orders.
    pub async fn open(articles: BTreeMap<String, Article>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("failed to open the demo's own service")?;
        let books = Arc::new(Mutex::new(Books { articles, ..Books::default() }));
        let service = Self { addr: listener.local_addr()?, books };
        let host = service.clone();
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(host.clone().serve(stream))),
                    // Too many open files pass; a loop without a pause would not let them.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        });
        Ok(service)
    }

    /// Its address, as jobs name it.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The books, to read or to write.
    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        // A killed node leaves half a request or takes no answer; both end its connection and nothing else.
        while let Ok(Some(request)) = read(&mut stream).await {
            let (status, body) = self.books().answer(&request);
            tokio::time::sleep(pause(&request)).await;
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 {status} {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                reason(status),
                body.len()
            );
            if stream.get_mut().write_all((head + &body).as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

impl Books {
    fn answer(&mut self, request: &Request) -> (u16, Value) {
        let header = |name: &str| request.headers.get(name).map(String::as_str).unwrap_or_default();
        let job = header("punctual-job-id").to_owned();
        let claim = header("punctual-claim").parse().unwrap_or(0);
        let newest = self.claims.entry(job.clone()).or_insert(0);
        let stale = claim < *newest;
        *newest = claim.max(*newest);
        let parts: Vec<&str> = request.path.trim_start_matches('/').split('/').collect();
        let known = !job.is_empty() && claim > 0 && header("idempotency-key") == job;
        let answer = match (request.method.as_str(), parts.as_slice()) {
            ("GET", ["orders", id]) if known => self.order(id),
            ("POST", ["orders", _, "close"] | ["articles", _, "publish"]) if known && stale => {
                Some((Effect::Stale, 409, json!({ "error": "a newer claim was here" })))
            }
            ("POST", ["orders", id, "close"]) if known => self.close(id),
            ("POST", ["articles", slug, "publish"]) if known => self.publish(slug, &request.body),
            _ => None,
        };
        let Some((effect, status, body)) = answer else {
            self.odd.push(format!("{} {} by job {job:?} with claim {claim}", request.method, request.path));
            return (404, json!({ "error": "not here" }));
        };
        self.visits.push(Visit { at_ms: clock::local_ms(), job, claim, effect });
        (status, body)
    }

    fn order(&self, id: &str) -> Option<(Effect, u16, Value)> {
        let id = id.parse().ok()?;
        let state = self.orders.get(&id)?;
        Some((Effect::Looked, 200, json!({ "order_id": id, "state": state.word() })))
    }

    fn close(&mut self, id: &str) -> Option<(Effect, u16, Value)> {
        let state = self.orders.get_mut(&id.parse().ok()?)?;
        Some(match *state {
            OrderState::Unpaid => {
                *state = OrderState::Closed;
                (Effect::Done, 200, json!({ "state": "closed" }))
            }
            OrderState::Closed => (Effect::Again, 409, json!({ "error": "closed already" })),
            OrderState::Paid => (Effect::Refused, 409, json!({ "error": "paid" })),
        })
    }

    fn publish(&mut self, slug: &str, body: &[u8]) -> Option<(Effect, u16, Value)> {
        let article = self.articles.get_mut(slug)?;
        let sent: Value = serde_json::from_slice(body).ok()?;
        if sent["slug"] != *slug || sent["title"] != *article.title {
            return None;
        }
        article.tries += 1;
        Some(match article.mood {
            Mood::Withdrawn => (Effect::Refused, 410, json!({ "error": "withdrawn by its author" })),
            Mood::Overwhelmed => (Effect::Busy, 503, json!({ "error": "busy" })),
            Mood::Busy(first) if article.tries <= first => (Effect::Busy, 503, json!({ "error": "busy, come again" })),
            _ if article.published => (Effect::Again, 409, json!({ "error": "published already" })),
            _ => {
                article.published = true;
                (Effect::Done, 201, json!({ "published": slug }))
            }
        })
    }
}

/// Looks are quick; what changes something takes 20 to 80 ms, and half of the time 400 to 1,000 ms, so that something is in flight
/// whenever a node dies. What happens is decided before the wait: an answer that nobody takes any more was a deed.
fn pause(request: &Request) -> Duration {
    let hash =
        request.path.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let hash = hash ^ (hash >> 29);
    Duration::from_millis(match request.method.as_str() {
        "GET" => 2,
        _ if hash.is_multiple_of(2) => 400 + hash / 2 % 600,
        _ => 20 + hash / 2 % 60,
    })
}

async fn read(stream: &mut BufReader<TcpStream>) -> Result<Option<Request>> {
    let mut lines = Vec::new();
    let mut bytes = 0;
    loop {
        let mut line = String::new();
        // Bounded, although everybody on this port is a friend.
        bytes += (&mut *stream).take((MAX_HEAD - bytes) as u64).read_line(&mut line).await?;
        match line.trim_end() {
            "" if lines.is_empty() => return Ok(None),
            "" => break,
            text => lines.push(text.to_owned()),
        }
    }
    let mut first = lines[0].split(' ');
    let (method, path) = (first.next().unwrap_or_default().to_owned(), first.next().unwrap_or_default().to_owned());
    let pair = |line: &String| line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
    let headers: BTreeMap<String, String> = lines[1..].iter().filter_map(pair).collect();
    let length: usize = headers.get("content-length").map_or(Ok(0), |text| text.parse())?;
    anyhow::ensure!(length <= MAX_BODY, "a body of {length} bytes");
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some(Request { method, path, headers, body }))
}

const fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        404 => "Not Found",
        409 => "Conflict",
        410 => "Gone",
        503 => "Service Unavailable",
        _ => "Unknown",
    }
}
