//! The gate between the nodes of one process and a real Redis: every request waits here until the explorer lets it through, loses
//! it, or loses its reply. Time stands still unless the explorer moves it, also for Redis: scripts are handed the explorer's time,
//! and keys with a TTL expire when that time has passed it.
//!
//! Nothing here runs by itself. A request arrives only while the explorer lets the nodes' tasks run, and a reply leaves only when
//! it says so, so the same decisions give the same run.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::planted::Planted;
use anyhow::{Context as _, Result, ensure};
use punctual_core::store::Wire;
use punctual_tests::resp::{Frames, arguments};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Time of the first request, microseconds since 1970.
pub const EPOCH_US: u64 = 1_800_000_000_000_000;
/// Lifetimes are whole multiples of this, so that a millisecond of real time does not show.
const GRAIN_MS: u64 = 50;

/// A request that waits.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which connection sent it.
    pub line: usize,
    /// In the order of arrival over all connections.
    pub number: u64,
    /// The command and its arguments.
    pub args: Vec<Vec<u8>>,
    /// When it arrived.
    pub since_us: u64,
}

impl Request {
    /// What it is, for people: the script's name, or the command.
    pub fn name(&self, scripts: &Scripts) -> String {
        match self.text(0).as_str() {
            "EVALSHA" => scripts.name(&self.text(1)).unwrap_or("?").to_lowercase(),
            "EVAL" => "eval".to_owned(),
            other => format!("{other} {}", self.text(1)),
        }
    }

    /// An argument as text.
    pub fn text(&self, at: usize) -> String {
        self.args.get(at).map(|arg| String::from_utf8_lossy(arg).into_owned()).unwrap_or_default()
    }

    /// Whether it changes nothing that a job depends on: reads, beats, and the lease.
    pub fn only_looks(&self, name: &str) -> bool {
        const LOOKS: [&[u8]; 11] = [
            b"PEXPIRE",
            b"TIME",
            b"MGET",
            b"EXISTS",
            b"HKEYS",
            b"HGETALL",
            b"SMEMBERS",
            b"ZRANGE",
            b"CLIENT",
            b"HEXISTS",
            b"GET",
        ];
        LOOKS.contains(&self.args[0].as_slice()) || matches!(name, "renew" | "probe" | "sweep")
    }

    /// Whether it is the blocking fetch.
    pub fn is_fetch(&self) -> bool {
        self.args[0] == b"BRPOPLPUSH"
    }
}

/// One connection.
struct Line {
    node: usize,
    /// Ends the client's side when dropped.
    replies: Option<UnboundedSender<Vec<u8>>>,
    waiting: VecDeque<Request>,
}

/// What a request that was let through did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// It ran.
    Ran,
    /// Redis answered with an error.
    Refused,
    /// It blocks on: there is nothing to fetch.
    Blocks,
}

/// The scripts by digest, and what stands in for them.
#[derive(Clone, Default)]
pub struct Scripts {
    names: BTreeMap<String, &'static str>,
    /// Digest as the product knows it, and the digest and text that stand in for it.
    planted: Option<(String, String, String)>,
}

impl Scripts {
    fn name(&self, digest: &str) -> Option<&'static str> {
        self.names.get(digest).copied()
    }
}

/// A blocking connection to the server.
pub struct Server {
    stream: TcpStream,
    frames: Frames,
    chunk: Vec<u8>,
}

impl Server {
    /// Connects.
    pub fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self { stream, frames: Frames::replies(), chunk: vec![0; 64 * 1024] })
    }

    /// One request, one reply, both as bytes.
    pub fn call(&mut self, args: &[impl AsRef<[u8]>]) -> Result<Vec<u8>> {
        self.stream.write_all(&encode(args))?;
        self.reply()
    }

    fn reply(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some(frame) = self.frames.next_frame()? {
                return Ok(frame);
            }
            let got = self.stream.read(&mut self.chunk)?;
            ensure!(got > 0, "Redis closed the connection");
            self.frames.push(&self.chunk[..got]);
        }
    }

    /// One request; its reply as a value. An error of Redis is an error.
    pub fn ask<T: redis::FromRedisValue>(&mut self, args: &[impl AsRef<[u8]>]) -> Result<T> {
        let value = redis::parse_redis_value(&self.call(args)?)?;
        Ok(redis::from_redis_value(value.extract_error()?)?)
    }

    /// Several requests in one write; their replies as values.
    pub fn ask_all(&mut self, pipeline: &redis::Pipeline) -> Result<Vec<redis::Value>> {
        self.stream.write_all(&pipeline.get_packed_pipeline())?;
        (0..pipeline.len()).map(|_| Ok(redis::parse_redis_value(&self.reply()?)?.extract_error()?)).collect()
    }

    /// Loads the product's scripts, one of them changed if asked for, and tells their digests.
    fn load_scripts(&mut self, planted: Option<&Planted>) -> Result<Scripts> {
        let mut scripts = Scripts::default();
        let sources = punctual_core::store::sources();
        let prelude = sources[0].1;
        for (name, text) in &sources[1..] {
            let whole = format!("{prelude}\n{text}");
            let digest: String = self.ask(&["SCRIPT", "LOAD", &whole])?;
            if let Some(changed) = planted.and_then(|planted| planted.apply(name, &whole)) {
                let changed = changed?;
                scripts.planted = Some((digest.clone(), self.ask(&["SCRIPT", "LOAD", &changed])?, changed));
            }
            scripts.names.insert(digest, name);
        }
        Ok(scripts)
    }
}

/// A request's bytes.
fn encode(args: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}

struct Inner {
    lines: Vec<Line>,
    /// Nodes whose connections are refused.
    refused: Vec<usize>,
    arrivals: u64,
    now_us: u64,
}

/// The gate. Clones share it.
#[derive(Clone)]
pub struct Gate {
    inner: Arc<Mutex<Inner>>,
}

impl Gate {
    /// A gate that nobody has come to.
    pub fn new() -> Self {
        let inner = Inner { lines: Vec::new(), refused: Vec::new(), arrivals: 0, now_us: EPOCH_US };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections of a node through this gate.
    pub fn wire(&self, node: usize) -> Wire {
        let gate = self.clone();
        Arc::new(move || {
            let (theirs, ours) = tokio::io::duplex(1024 * 1024);
            let (replies, to_send) = unbounded_channel();
            let line = {
                let mut inner = gate.lock();
                if inner.refused.contains(&node) {
                    return Err(std::io::ErrorKind::ConnectionRefused.into());
                }
                inner.lines.push(Line { node, replies: Some(replies), waiting: VecDeque::new() });
                inner.lines.len() - 1
            };
            tokio::spawn(gate.clone().carry(line, ours, to_send));
            Ok(Box::new(theirs))
        })
    }

    /// Takes requests off one connection, and puts replies on it, until either side lets go.
    async fn carry(self, line: usize, mut stream: DuplexStream, mut to_send: UnboundedReceiver<Vec<u8>>) {
        let mut frames = Frames::requests();
        let mut chunk = vec![0; 8 * 1024];
        loop {
            tokio::select! {
                biased;
                reply = to_send.recv() => match reply {
                    Some(reply) if stream.write_all(&reply).await.is_ok() => {}
                    _ => return,
                },
                got = stream.read(&mut chunk) => match got {
                    Ok(got) if got > 0 => {
                        frames.push(&chunk[..got]);
                        while let Ok(Some(frame)) = frames.next_frame() {
                            self.arrived(line, arguments(&frame).unwrap_or_default());
                        }
                    }
                    // The client let go: what it had sent is under way all the same.
                    _ => {
                        self.lock().lines[line].replies = None;
                        return;
                    }
                },
            }
        }
    }

    fn arrived(&self, line: usize, args: Vec<Vec<u8>>) {
        let mut inner = self.lock();
        inner.arrivals += 1;
        let request = Request { line, number: inner.arrivals, args, since_us: inner.now_us };
        inner.lines[line].waiting.push_back(request);
    }

    /// The request at the head of each connection, in the order of arrival.
    pub fn heads(&self) -> Vec<Request> {
        let inner = self.lock();
        let mut heads: Vec<Request> = inner.lines.iter().filter_map(|line| line.waiting.front().cloned()).collect();
        heads.sort_by_key(|request| request.number);
        heads
    }

    /// Whose connection it is.
    pub fn node_of(&self, line: usize) -> usize {
        self.lock().lines[line].node
    }

    /// The explorer's time, microseconds since 1970.
    pub fn now_us(&self) -> u64 {
        self.lock().now_us
    }

    /// Moves Redis' time.
    pub fn set_now_us(&self, now_us: u64) {
        self.lock().now_us = now_us;
    }

    /// Loses a connection with all that waits on it: nothing of that was carried out.
    pub fn cut(&self, line: usize) {
        let mut inner = self.lock();
        inner.lines[line].replies = None;
        inner.lines[line].waiting.clear();
    }

    /// A node's process ends: what it had sent is under way all the same, and nobody reads the replies.
    pub fn abandon(&self, node: usize) {
        let mut inner = self.lock();
        inner.refused.push(node);
        for line in inner.lines.iter_mut().filter(|line| line.node == node) {
            line.replies = None;
        }
    }

    /// Nobody is left to read the reply.
    pub fn is_abandoned(&self, line: usize) -> bool {
        self.lock().lines[line].replies.is_none()
    }

    fn pop(&self, line: usize) -> Option<Request> {
        self.lock().lines[line].waiting.pop_front()
    }

    fn answer(&self, line: usize, reply: Vec<u8>) {
        if let Some(replies) = &self.lock().lines[line].replies {
            let _ = replies.send(reply);
        }
    }
}

/// Redis behind the gate.
pub struct Redis<'a> {
    /// The connection to the real server.
    pub server: &'a mut Server,
    /// Its scripts.
    pub scripts: Scripts,
    /// When keys with a TTL expire.
    expires: BTreeMap<Vec<u8>, u64>,
    tag: String,
}

impl<'a> Redis<'a> {
    /// An empty Redis for one namespace.
    pub fn new(server: &'a mut Server, planted: Option<&Planted>, namespace: &str) -> Result<Self> {
        server.call(&["FLUSHALL"])?;
        let scripts = server.load_scripts(planted)?;
        Ok(Self { server, scripts, expires: BTreeMap::new(), tag: format!("{{{namespace}}}") })
    }

    /// Lets the head of a connection through. Without `reply` it is carried out and its connection lost.
    pub fn pass(&mut self, gate: &Gate, line: usize, reply: bool) -> Result<Passed> {
        let request = gate.pop(line).context("a request")?;
        let answer = match request.args[0].as_slice() {
            b"BRPOPLPUSH" => {
                let moved = self.server.call(&[&b"LMOVE"[..], &request.args[1], &request.args[2], b"RIGHT", b"LEFT"])?;
                if moved.starts_with(b"$-1") {
                    gate.lock().lines[line].waiting.push_front(request);
                    return Ok(Passed::Blocks);
                }
                moved
            }
            b"TIME" => {
                let now_us = gate.now_us();
                let (seconds, micros) = ((now_us / 1_000_000).to_string(), (now_us % 1_000_000).to_string());
                encode(&[seconds, micros])
            }
            b"CLIENT" if request.args[1] == b"ID" => format!(":{}\r\n", line + 1).into_bytes(),
            b"CLIENT" if request.args[1] == b"UNBLOCK" => {
                let woken = std::str::from_utf8(&request.args[2])?.parse::<usize>()? - 1;
                let blocked = gate.lock().lines.get(woken).and_then(|line| line.waiting.front().map(Request::is_fetch));
                if blocked == Some(true) {
                    gate.pop(woken);
                    gate.answer(woken, b"$-1\r\n".to_vec());
                }
                format!(":{}\r\n", u8::from(blocked == Some(true))).into_bytes()
            }
            b"EVALSHA" | b"EVAL" => self.script(gate, request)?,
            _ => {
                let answer = self.server.call(&request.args)?;
                if matches!(request.args[0].as_slice(), b"SET" | b"PEXPIRE") {
                    self.note_expiry(gate.now_us(), &request.args[1])?;
                }
                answer
            }
        };
        let passed = if answer.first() == Some(&b'-') { Passed::Refused } else { Passed::Ran };
        if reply {
            gate.answer(line, answer);
        } else {
            gate.cut(line);
        }
        Ok(passed)
    }

    fn script(&mut self, gate: &Gate, mut request: Request) -> Result<Vec<u8>> {
        // No two scripts see the same instant: each takes longer than a microsecond.
        let now_us = gate.now_us() + 1;
        gate.set_now_us(now_us);
        if request.args[4].is_empty() {
            request.args[4] = now_us.to_string().into_bytes();
        }
        if let Some((digest, planted, _)) = &self.scripts.planted
            && request.args[1] == digest.as_bytes()
        {
            request.args[1] = planted.clone().into_bytes();
        }
        let mut answer = self.server.call(&request.args)?;
        if request.args[3] == self.tag.as_bytes() {
            let lease = format!("{}:lease", self.tag).into_bytes();
            // Who asks for the lease is told how long it still lasts, and that is the explorer's to say.
            if let (Some(expiry), Some(told)) = (self.expires.get(&lease), answer.strip_suffix(b":-1\r\n")) {
                answer = [told, format!(":{}\r\n", expiry.saturating_sub(now_us) / 1000).as_bytes()].concat();
            }
            self.note_expiry(now_us, &lease)?;
        }
        Ok(answer)
    }

    /// A TTL that was just set becomes the explorer's.
    fn note_expiry(&mut self, now_us: u64, key: &[u8]) -> Result<()> {
        let left_ms: i64 = self.server.ask(&[b"PTTL", key])?;
        if left_ms == -2 {
            self.expires.remove(key);
        } else if left_ms > 0 {
            let left_ms = u64::try_from(left_ms)?.div_ceil(GRAIN_MS) * GRAIN_MS;
            self.server.call(&[b"PERSIST", key])?;
            self.expires.insert(key.to_vec(), now_us + left_ms * 1000);
        }
        Ok(())
    }

    /// Whether a key with a TTL is still there.
    pub fn expires_later(&self, key: &str) -> bool {
        self.expires.contains_key(key.as_bytes())
    }

    /// The next instant at which a key expires.
    pub fn next_expiry(&self) -> Option<u64> {
        self.expires.values().min().copied()
    }

    /// Removes what has expired by now, and ends fetches whose block is over.
    pub fn expire(&mut self, gate: &Gate) -> Result<()> {
        let now_us = gate.now_us();
        let over: Vec<Vec<u8>> = self.expires.iter().filter(|(_, at)| **at <= now_us).map(|(key, _)| key.clone()).collect();
        for key in over {
            self.server.call(&[&b"DEL"[..], &key])?;
            self.expires.remove(&key);
        }
        for head in gate.heads().into_iter().filter(Request::is_fetch) {
            let block_us = std::str::from_utf8(&head.args[3])?.parse::<f64>()? * 1e6;
            #[expect(clippy::cast_precision_loss, reason = "a run lasts minutes")]
            if (now_us - head.since_us) as f64 >= block_us {
                gate.pop(head.line);
                gate.answer(head.line, b"$-1\r\n".to_vec());
            }
        }
        Ok(())
    }

    /// Forgets the scripts, as a restart does.
    pub fn forget_scripts(&mut self) -> Result<()> {
        self.server.call(&["SCRIPT", "FLUSH"])?;
        if let Some((_, _, planted)) = &self.scripts.planted {
            self.server.call(&["SCRIPT", "LOAD", planted])?;
        }
        Ok(())
    }
}
