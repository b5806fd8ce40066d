//! A TCP proxy in front of Redis that misbehaves on command: as a network, and at a chosen request.
//!
//! It runs on a thread of its own, so that it keeps its pace whatever the test's runtime is doing. It speaks RESP2
//! well enough to know which reply belongs to which request.

mod connection;
mod door;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as std_mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::{mpsc, watch};

use connection::Fate;
use door::{Order, Orders, listen, run};
use rules::{Action, Matcher};
pub use rules::{Rule, any_command, command, command_with, script_call};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Pass,
    BlackHole,
    Stall,
}

#[derive(Clone, Copy, Debug)]
struct Weather {
    flow: Flow,
    delay: Duration,
}

struct Shared {
    target: AtomicU16,
    weather: watch::Sender<Weather>,
    rules: Mutex<Vec<Rule>>,
    by_name: Mutex<BTreeMap<String, u64>>,
    accepted: AtomicU64,
    open: AtomicUsize,
}

impl Shared {
    fn weather(&self) -> Weather {
        *self.weather.borrow()
    }

    fn target(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.target.load(Ordering::SeqCst)).into()
    }

    // Of the rules that end a request's normal way the first wins; delays add up.
    fn judge(&self, args: &[Vec<u8>]) -> (Fate, Duration) {
        let name = String::from_utf8_lossy(&args[0]).to_uppercase();
        *lock(&self.by_name).entry(name).or_insert(0) += 1;
        let mut fate = Fate::Forward;
        let mut delay = Duration::ZERO;
        for rule in lock(&self.rules).iter().map(|rule| &rule.state) {
            let ends = matches!(rule.action, Action::CutReply | Action::Answer(_));
            if (ends && !matches!(fate, Fate::Forward)) || !rule.takes(args) {
                continue;
            }
            match &rule.action {
                // Fires when the connection is cut: the client may be gone before the server replies.
                Action::CutReply => fate = Fate::Cut(Arc::clone(rule)),
                Action::Answer(text) => {
                    rule.fire();
                    fate = Fate::Answer(format!("-{text}\r\n").into_bytes());
                }
                Action::Delay(by) => {
                    rule.fire();
                    delay += *by;
                }
                Action::Count => rule.fire(),
            }
        }
        (fate, delay)
    }
}

/// A proxy on 127.0.0.1; dropping it closes all its connections.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    orders: Option<Orders>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy that passes everything on to `target_port` of 127.0.0.1, where nobody needs to listen yet.
    ///
    /// # Errors
    /// When there is no port or thread left.
    pub fn start(target_port: u16) -> Result<Self> {
        let (listener, port) = listen()?;
        let calm = Weather { flow: Flow::Pass, delay: Duration::ZERO };
        let shared = Arc::new(Shared {
            target: AtomicU16::new(target_port),
            weather: watch::Sender::new(calm),
            rules: Mutex::default(),
            by_name: Mutex::default(),
            accepted: AtomicU64::new(0),
            open: AtomicUsize::new(0),
        });
        let (orders, inbox) = mpsc::unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let state = Arc::clone(&shared);
        let run = move || runtime.block_on(run(listener, port, &state, inbox));
        let thread = std::thread::Builder::new().name("proxy".to_owned()).spawn(run).context("failed to start a thread")?;
        Ok(Self { port, shared, orders: Some(orders), thread: Some(thread) })
    }

    /// Its own port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// URL of a Redis without password behind it; with one, use `RedisServer::url_via`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Sends connections that are opened from now on to another port, as a failover behind a fixed address does.
    pub fn retarget(&self, port: u16) {
        self.shared.target.store(port, Ordering::SeqCst);
    }

    /// Good weather again: accepts, passes, without delay. Rules about commands stay.
    pub fn pass(&self) {
        self.shared.weather.send_replace(Weather { flow: Flow::Pass, delay: Duration::ZERO });
        self.order(Order::Accept);
    }

    /// Swallows everything in both directions; connections open, but nobody answers and no end is seen.
    ///
    /// A connection that has lost bytes stays dead after [`Self::pass`], as after a router forgot it. The server
    /// keeps its side until then and may serve a blocked command meanwhile.
    pub fn black_hole(&self) {
        self.shared.weather.send_modify(|weather| weather.flow = Flow::BlackHole);
    }

    /// Holds everything back in both directions; after [`Self::pass`] it arrives, late.
    pub fn stall(&self) {
        self.shared.weather.send_modify(|weather| weather.flow = Flow::Stall);
    }

    /// Delivers all bytes so much later, in each direction; throughput is not limited.
    pub fn delay(&self, by: Duration) {
        self.shared.weather.send_modify(|weather| weather.delay = by);
    }

    /// Closes all connections; when this returns they are closed. New ones are accepted as before.
    pub fn cut(&self) {
        self.order(Order::Cut);
    }

    /// Refuses new connections, as a port on which nobody listens; open ones stay.
    pub fn refuse(&self) {
        self.order(Order::Refuse);
    }

    /// Lets the server execute the next `times` commands that match, swallows the reply and everything behind it,
    /// and cuts the connection at that moment.
    pub fn cut_reply(&self, matcher: impl Fn(&[Vec<u8>]) -> bool + Send + Sync + 'static, times: u64) -> Rule {
        self.rule(Box::new(matcher), Action::CutReply, times)
    }

    /// Holds every command that matches, and what follows on its connection, before it is forwarded.
    ///
    /// It is forwarded even if the client has gone by then: the late write of a client that gave up.
    pub fn delay_command(&self, matcher: impl Fn(&[Vec<u8>]) -> bool + Send + Sync + 'static, by: Duration) -> Rule {
        self.rule(Box::new(matcher), Action::Delay(by), Rule::ALWAYS)
    }

    /// Answers the next `times` commands that match with the error `text` (such as `LOADING …`) and does not
    /// forward them.
    pub fn answer_error(&self, matcher: impl Fn(&[Vec<u8>]) -> bool + Send + Sync + 'static, text: &str, times: u64) -> Rule {
        self.rule(Box::new(matcher), Action::Answer(text.to_owned()), times)
    }

    /// Counts the commands that match ([`Rule::fired`]) and leaves them alone.
    pub fn count(&self, matcher: impl Fn(&[Vec<u8>]) -> bool + Send + Sync + 'static) -> Rule {
        self.rule(Box::new(matcher), Action::Count, Rule::ALWAYS)
    }

    /// Forgets all rules about commands.
    pub fn clear_rules(&self) {
        lock(&self.shared.rules).clear();
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Connections open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Commands that have come through so far, also those answered here; not what a black hole swallowed.
    #[must_use]
    pub fn commands(&self) -> u64 {
        lock(&self.shared.by_name).values().sum()
    }

    /// The same by name, in upper case.
    #[must_use]
    pub fn commands_by_name(&self) -> BTreeMap<String, u64> {
        lock(&self.shared.by_name).clone()
    }

    fn rule(&self, matcher: Matcher, action: Action, times: u64) -> Rule {
        let rule = Rule::new(matcher, action, times);
        lock(&self.shared.rules).push(rule.clone());
        rule
    }

    // Returns when the order is carried out, so that the next line of a test can rely on it.
    fn order(&self, order: Order) {
        let (done, wait) = std_mpsc::channel();
        let orders = self.orders.as_ref().expect("taken only by drop");
        assert!(
            orders.send((order, done)).is_ok() && wait.recv().is_ok(),
            "the proxy's thread has ended; its panic is printed above"
        );
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; a second one here would hide the test's own.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
