//! A queue on a real Redis with a time of its own, and all its keys as lines of text, to be compared before and after an arrow.
//!
//! A line is a key without its tag, then the field or member, then the value: `s A rk0 1 0 0 0 0 t0 n1`, `scheduled A t500`,
//! `r2 [B A]` (the right end is taken next). Instants are written as `t` and milliseconds after [`T0`], tokens, terms and stamps
//! as `k` and microseconds after it (`k-` = never claimed), and a job's body as its header and what it runs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use punctual_core::codec;
use punctual_core::config::{Config, Retention};
use punctual_core::job::{JobRequest, NewJob, Priority, Unique, UniqueUntil};
use punctual_core::state::{AttemptOutcome, Move, State};
use punctual_core::store::Store;
use punctual_core::store::claim::{ClaimRequest, Claimed, ClaimedJob};
use punctual_core::store::enqueue::{CallId, Enqueued};
use punctual_core::store::nodes::NodeInfo;
use punctual_core::store::nudge::{Nudge, Nudges};
use punctual_core::store::promote::{BATCH, Promoted};
use punctual_core::store::settle::{Settled, Settlement};
use punctual_tests::{RedisServer, Snapshot, fresh_namespace};
use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;
use serde_json::Value;

/// The instant at which every test begins, milliseconds since 1970.
pub const T0: u64 = 1_800_000_000_000;
/// The queue of every test.
pub const Q: &str = "q";
/// A term that any fence lets pass, unless a test raised it.
pub const TERM: u64 = T0 * 1000;

/// The default retention.
pub fn keep() -> Retention {
    let (hour, month) = (Duration::from_secs(3600), Duration::from_secs(30 * 86_400));
    Retention { succeeded: hour, succeeded_max: 10_000, dead: month, dead_max: 100_000 }
}

/// A retention that keeps nothing.
pub fn drop_all() -> Retention {
    Retention { succeeded: Duration::ZERO, succeeded_max: 0, dead: Duration::ZERO, dead_max: 0 }
}

/// The generated id that lines write as this short name of digits and capitals (without I, L, O and U).
pub fn id(name: &str) -> String {
    format!("{name:0>26}")
}

/// Several of them.
pub fn ids(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| id(name)).collect()
}

/// A job with a generated id.
pub fn job(name: &str) -> NewJob {
    NewJob { id: id(name), ..own("own") }
}

/// A job with its caller's id.
pub fn own(id: &str) -> NewJob {
    let request = JobRequest::from_json(&format!(r#"{{"handler":"noop","queue":"{Q}","id":"{id}"}}"#)).expect("a document");
    request.check(1 << 20).expect("a job")
}

/// A job of a band.
pub fn band(name: &str, priority: Priority) -> NewJob {
    NewJob { priority, ..job(name) }
}

/// A job that holds a key.
pub fn unique(name: &str, key: &str, until: UniqueUntil) -> NewJob {
    NewJob { unique: Some(Unique { key: key.to_owned(), until }), ..job(name) }
}

/// A move as Rust's state machine makes them.
pub fn to(to: State, outcome: AttemptOutcome) -> Move {
    Move { to, delay: Duration::ZERO, outcome: Some(outcome), text: String::new(), result: None }
}

/// A failure after which the job is retried in this many milliseconds.
pub fn retry(delay_ms: u64) -> Move {
    let delay = Duration::from_millis(delay_ms);
    Move { delay, text: "it broke".to_owned(), ..to(State::Retrying, AttemptOutcome::Failed) }
}

/// A failure after which the job is dead.
pub fn bury(text: &str) -> Move {
    Move { text: text.to_owned(), ..to(State::Dead, AttemptOutcome::Failed) }
}

/// Success.
pub fn done() -> Move {
    to(State::Succeeded, AttemptOutcome::Succeeded)
}

/// One queue in a namespace of its own.
pub struct Bench {
    pub store: Store,
    pub ns: String,
    time: Arc<AtomicU64>,
    conn: MultiplexedConnection,
}

/// All keys of a namespace as lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table(pub BTreeSet<String>);

impl Bench {
    pub async fn new() -> Self {
        Self::on(RedisServer::shared().await.expect("a server")).await
    }

    pub async fn on(server: &RedisServer) -> Self {
        let mut config = Config::for_redis(&server.url()).expect("a URL");
        let ns = fresh_namespace();
        config.redis.namespace.clone_from(&ns);
        let time = Arc::new(AtomicU64::new(T0 * 1000));
        let store = Store::new(&config.redis).expect("a store").with_test_time(Arc::clone(&time));
        let conn = server.conn().await.expect("a connection");
        Self { store, ns, time, conn }
    }

    /// Sets the time to so many milliseconds after the beginning.
    pub fn at(&self, ms: u64) {
        self.at_us(ms * 1000);
    }

    /// Sets the time to so many microseconds after the beginning.
    pub fn at_us(&self, us: u64) {
        self.time.store(T0 * 1000 + us, Ordering::Relaxed);
    }

    /// Sets the time, milliseconds since 1970.
    pub fn at_instant(&self, ms: u64) {
        self.time.store(ms * 1000, Ordering::Relaxed);
    }

    /// Sets the time, microseconds since 1970.
    pub fn at_instant_us(&self, us: u64) {
        self.time.store(us, Ordering::Relaxed);
    }

    /// The time, microseconds since 1970.
    pub fn now_us(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }

    /// The name of a key of the queue.
    pub fn key(&self, part: &str) -> String {
        self.store.keys().queue(Q, part)
    }

    /// A plain command on a key of the queue.
    pub async fn raw<T: FromRedisValue>(&self, command: &str, part: &str, args: &[&str]) -> T {
        let mut command = redis::cmd(command);
        command.arg(self.key(part)).arg(args);
        command.query_async(&mut self.conn.clone()).await.expect("a plain command")
    }

    /// Any command.
    pub async fn command<T: FromRedisValue>(&self, command: &redis::Cmd) -> T {
        command.query_async(&mut self.conn.clone()).await.expect("a plain command")
    }

    /// Several commands in one write.
    pub async fn pipe<T: FromRedisValue>(&self, pipeline: &redis::Pipeline) -> T {
        pipeline.query_async(&mut self.conn.clone()).await.expect("plain commands")
    }

    /// What BRPOPLPUSH does for a node: moves an entry of the main list to an incarnation's processing list.
    pub async fn fetch(&self, node: &str) -> Option<String> {
        let mut command = redis::cmd("RPOPLPUSH");
        command.arg(self.key("r2")).arg(self.key(&format!("p:{node}")));
        self.command(&command).await
    }

    pub async fn enqueue(&self, jobs: &[NewJob]) -> Vec<Enqueued> {
        self.store.enqueue(&CallId::fresh(), Q, jobs).await.expect("enqueued")
    }

    /// Makes an incarnation an owner of the queue, and a node.
    pub async fn join(&self, node: &str) {
        let queues = [(Q.to_owned(), 1)].into();
        let info = NodeInfo { name: node.to_owned(), queues, dead_after_ms: 5000, concurrency: 4, ..NodeInfo::default() };
        self.store.register_node(node, &info).await.expect("joined");
    }

    pub async fn claim(&self, node: &str, number: u64, slots: usize) -> Claimed {
        self.claim_with(node, number, slots, [0; 4], false).await
    }

    pub async fn claim_with(&self, node: &str, number: u64, slots: usize, shares: [usize; 4], suspects: bool) -> Claimed {
        let request = ClaimRequest { queue: Q, incarnation: node, number, slots, shares, suspects };
        self.store.claim(&request).await.expect("a claim")
    }

    /// Enqueues a job that is due, and has it claimed by a node; returns its token.
    pub async fn run(&self, job: NewJob, node: &str, number: u64) -> u64 {
        let name = job.id.clone();
        self.enqueue(&[job]).await;
        self.join(node).await;
        let (token, jobs) = claimed(self.claim(node, number, 1).await);
        assert_eq!(jobs.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), [name]);
        token
    }

    pub async fn settle(&self, node: &str, job: &str, token: u64, to: Move) -> Settled {
        self.settle_keeping(&keep(), node, &[(job, token, to)]).await[0]
    }

    pub async fn settle_keeping(&self, keep: &Retention, node: &str, ends: &[(&str, u64, Move)]) -> Vec<Settled> {
        let ends: Vec<Settlement> =
            ends.iter().map(|(name, token, to)| Settlement { id: name_to_id(name), token: *token, to: to.clone() }).collect();
        self.store.settle(Q, node, keep, &ends).await.expect("settled").1
    }

    pub async fn promote(&self) -> Promoted {
        self.store.promote(Q, TERM, BATCH).await.expect("promoted")
    }

    /// Brings a job all the way to dead; it ends at the present time.
    pub async fn die(&self, job: NewJob, node: &str, number: u64) {
        let name = job.id.clone();
        let token = self.run(job, node, number).await;
        assert_eq!(self.settle_keeping(&keep(), node, &[(&name, token, bury("it broke"))]).await, [Settled::Done]);
    }

    /// All keys as lines, except the receipts of calls that have no name. Every key must be registered.
    pub async fn table(&self) -> Table {
        let snapshot = Snapshot::take(&mut self.conn.clone(), &self.ns).await.expect("a snapshot");
        let mut lines = BTreeSet::new();
        for (key, value) in &snapshot.keys {
            assert!(self.store.keys().is_registered(key), "{key} is not in the registry");
            let cluster = format!("{{{}}}:", self.ns);
            let part = key.strip_prefix(&self.key("")).or_else(|| key.strip_prefix(&cluster)).expect("another queue");
            if part.starts_with("rc:") && !part.starts_with("rc:k") {
                continue;
            }
            self.add_lines(key, part, value, &mut lines);
        }
        Table(lines)
    }

    fn add_lines(&self, key: &str, part: &str, value: &Value, lines: &mut BTreeSet<String>) {
        let expires = if value["expires"] == true { " (expires)" } else { "" };
        let part = part_name(part);
        if let Some(text) = value["string"].as_str() {
            lines.insert(format!("{part} {}{expires}", tidy(text)));
        } else if let Some(items) = value["list"].as_array() {
            let items: Vec<String> = items.iter().map(|item| tidy(item.as_str().unwrap_or_default())).collect();
            lines.insert(format!("{part} [{}]{expires}", items.join(" ")));
        } else if let Some(items) = value["set"].as_array() {
            let items: Vec<String> = items.iter().map(|item| tidy(item.as_str().unwrap_or_default())).collect();
            lines.insert(format!("{part} {{{}}}{expires}", items.join(" ")));
        } else {
            let fields = value["hash"].as_object().or_else(|| value["zset"].as_object()).expect("a hash or a sorted set");
            for (field, value) in fields {
                let value = if part == "b" {
                    assert_eq!(key, self.store.keys().bucket(Q, field), "the bucket of {field}");
                    body_text(&unescape(value.as_str().unwrap_or_default()))
                } else {
                    tidy(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
                };
                let line = format!("{part} {} {value}{expires}", tidy(field));
                lines.insert(line.trim_end().to_owned());
            }
        }
    }

    /// Compares all keys with those before: `expected` has a line with `-` or `+` for each that went or came, in any order.
    #[track_caller]
    pub fn compare(before: &Table, after: &Table, expected: &str) {
        let mut expected: Vec<String> =
            expected.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect();
        let mut got: Vec<String> = before.0.difference(&after.0).map(|line| format!("- {line}")).collect();
        got.extend(after.0.difference(&before.0).map(|line| format!("+ {line}")));
        let order = |line: &String| (line[2..].split(' ').take(2).collect::<String>(), line.starts_with('+'));
        expected.sort_by_key(order);
        got.sort_by_key(order);
        assert!(got == expected, "expected changes:\n  {}\ngot:\n  {}", expected.join("\n  "), got.join("\n  "));
    }

    /// Compares the present keys with those before.
    pub async fn changed(&self, before: &Table, expected: &str) {
        Self::compare(before, &self.table().await, expected);
    }

    /// Nothing at all is different.
    pub async fn unchanged(&self, before: &Table) {
        self.changed(before, "").await;
    }

    /// Compares all keys with a whole table.
    pub async fn is(&self, expected: &str) {
        let nothing = Table(BTreeSet::new());
        let lines: Vec<String> =
            expected.lines().map(str::trim).filter(|line| !line.is_empty()).map(|line| format!("+ {line}")).collect();
        self.changed(&nothing, &lines.join("\n")).await;
    }
}

impl Table {
    /// Whether any line begins so.
    pub fn has(&self, start: &str) -> bool {
        self.0.iter().any(|line| line.starts_with(start))
    }

    /// The lines that begin so.
    pub fn lines(&self, start: &str) -> Vec<&str> {
        self.0.iter().filter(|line| line.starts_with(start)).map(String::as_str).collect()
    }
}

/// The next nudge, which must come soon.
pub async fn next(nudges: &mut Nudges) -> Nudge {
    let next = tokio::time::timeout(Duration::from_secs(10), nudges.next()).await;
    next.expect("a nudge in time").expect("a connection")
}

/// Token and jobs of a claim that got an answer with jobs.
#[track_caller]
pub fn claimed(claimed: Claimed) -> (u64, Vec<ClaimedJob>) {
    match claimed {
        Claimed::Jobs { token, jobs, .. } => (token, jobs),
        other => panic!("no jobs but {other:?}"),
    }
}

/// The short names of claimed jobs, in order.
#[track_caller]
pub fn names(answer: Claimed) -> Vec<String> {
    claimed(answer).1.iter().map(|job| tidy(&job.id)).collect()
}

/// What a promotion moved.
#[track_caller]
pub fn moved(promoted: &Promoted) -> (usize, Option<u64>, u64, u64) {
    match promoted {
        Promoted::Moved { lateness_ms, next_due_ms, late, phantoms, .. } => {
            (lateness_ms.len(), next_due_ms.map(|due| due - T0), *late, *phantoms)
        }
        Promoted::Fenced(fence) => panic!("fenced by {fence}"),
    }
}

/// A short name stands for a generated id, anything else for itself.
pub fn name_to_id(name: &str) -> String {
    let short = name.len() < 10 && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
    if short { id(name) } else { name.to_owned() }
}

// Buckets and the lists of single jobs are told by what follows.
fn part_name(part: &str) -> String {
    if part.starts_with("b:") { "b".to_owned() } else { tidy(part) }
}

/// Ids, instants and tokens as a person reads them.
pub fn tidy(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let run = rest.find(|c: char| !c.is_ascii_digit() && !c.is_ascii_uppercase()).unwrap_or(rest.len());
        if run == 26 && rest.starts_with("0000000000") {
            out.push_str(rest[..26].trim_start_matches('0'));
            rest = &rest[26..];
            continue;
        }
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if digits == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let number: i64 = rest[..digits].parse().unwrap_or(i64::MAX);
        let (ms, us) = (i64::try_from(T0).unwrap_or(0), i64::try_from(T0 * 1000).unwrap_or(0));
        let near = 100_000_000_000;
        if digits == 13 && (number - ms).abs() < near {
            let _ = write!(out, "t{}", number - ms);
        } else if digits == 16 && number == 0 {
            out.push_str("k-");
        } else if digits == 16 && (number - us).abs() < near * 1000 {
            let _ = write!(out, "k{}", number - us);
        } else {
            out.push_str(&rest[..digits]);
        }
        rest = &rest[digits..];
    }
    out
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chars = text.bytes();
    while let Some(byte) = chars.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match chars.next() {
            Some(b'n') => bytes.push(b'\n'),
            Some(b'r') => bytes.push(b'\r'),
            Some(b't') => bytes.push(b'\t'),
            Some(b'x') => {
                let hex: String = [chars.next(), chars.next()].into_iter().flatten().map(char::from).collect();
                bytes.push(u8::from_str_radix(&hex, 16).expect("an escaped byte"));
            }
            other => bytes.extend(other),
        }
    }
    bytes
}

/// `<band><late><mark> created due [extension] | handler args`, or why it cannot be read.
fn body_text(body: &[u8]) -> String {
    let record = match codec::decode(body) {
        Ok(record) => record,
        Err(error) => return format!("({error})"),
    };
    let extension = if body[3] == b'+' {
        let end = body.iter().skip(16).position(|byte| *byte == b'\n').unwrap_or(0);
        format!("[{}] ", tidy(&String::from_utf8_lossy(&body[16..16 + end])))
    } else {
        String::new()
    };
    let times = tidy(&format!("{} {}", record.created_ms, record.due_ms));
    let head = String::from_utf8_lossy(&body[1..4]).into_owned();
    format!("{head} {times} {extension}| {} {}", record.spec.handler, record.spec.args)
}
