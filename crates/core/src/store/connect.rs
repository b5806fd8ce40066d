//! One connection to Redis that heals itself, and what Redis' errors mean.
//!
//! A [`Link`] holds one multiplexed connection and makes a new one after an error of the wire. A command is never sent twice here:
//! a time-out does not mean that it did not run, so the caller decides whether repeating is harmless. After a time-out the
//! connection is dropped with everything behind it, because later replies on it would answer questions nobody asked any more.
//! Deliberately absent: retries, Sentinel and Cluster.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, IntoConnectionInfo, Pipeline, RedisError, ServerErrorKind,
};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::config::Redis;

/// How an error of Redis is to be met. Total: an unknown one backs off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No connection, or it broke, or no answer in time. The command may have run.
    Unreachable,
    /// Redis cannot serve now: loading, failing over, a slow script, a full disk. The command did not run.
    Busy,
    /// This server is a replica. The command did not run.
    ReadOnly,
    /// Redis is at maxmemory. The command did not run.
    Full,
    /// Wrong password or user. A person must act.
    Auth,
    /// The user lacks a right. A person must act.
    Permission,
    /// The server cannot do this, or a key holds something else: a defect, or another program in our namespace.
    Wrong,
}

impl Kind {
    /// The word in metrics and logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Busy => "busy",
            Self::ReadOnly => "read_only",
            Self::Full => "out_of_memory",
            Self::Auth => "auth",
            Self::Permission => "permission",
            Self::Wrong => "wrong",
        }
    }
}

/// An error of the store. Its text never contains a password or a job's arguments.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct StoreError {
    /// How to meet it.
    pub kind: Kind,
    /// What Redis or the wire said.
    pub text: String,
}

impl StoreError {
    /// An answer that the scripts never give.
    pub(crate) fn unexpected(what: &str) -> Self {
        Self { kind: Kind::Wrong, text: format!("unexpected answer of Redis: {what}") }
    }

    /// Whether the same call may succeed later without a person doing anything.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self.kind, Kind::Unreachable | Kind::Busy | Kind::ReadOnly | Kind::Full)
    }

    /// Whether the command may have run although it answered with this error.
    #[must_use]
    pub const fn may_have_run(&self) -> bool {
        matches!(self.kind, Kind::Unreachable)
    }
}

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> Self {
        let code = error.code().unwrap_or("").to_owned();
        let text = error.to_string();
        let kind = match error.kind() {
            ErrorKind::Io | ErrorKind::Parse => Kind::Unreachable,
            ErrorKind::AuthenticationFailed => Kind::Auth,
            ErrorKind::Server(server) => match server {
                ServerErrorKind::BusyLoading
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::ExecAbort
                | ServerErrorKind::NoScript => Kind::Busy,
                ServerErrorKind::ReadOnly => Kind::ReadOnly,
                ServerErrorKind::NoPerm => Kind::Permission,
                // A script wraps the error of the command inside it.
                _ => from_text(&text),
            },
            ErrorKind::Extension => from_code(&code, &text),
            _ if error.is_timeout() || error.is_connection_dropped() || error.is_connection_refusal() => Kind::Unreachable,
            _ => Kind::Wrong,
        };
        Self { kind, text }
    }
}

fn from_code(code: &str, text: &str) -> Kind {
    match code {
        "OOM" => Kind::Full,
        "BUSY" | "MISCONF" | "UNBLOCKED" | "NOREPLICAS" | "UNKILLABLE" => Kind::Busy,
        "NOAUTH" | "WRONGPASS" => Kind::Auth,
        "NOPERM" => Kind::Permission,
        "WRONGTYPE" => Kind::Wrong,
        _ => from_text(text),
    }
}

fn from_text(text: &str) -> Kind {
    const SIGNS: &[(&str, Kind)] = &[
        ("OOM", Kind::Full),
        ("READONLY", Kind::ReadOnly),
        ("NOPERM", Kind::Permission),
        ("NOAUTH", Kind::Auth),
        ("WRONGPASS", Kind::Auth),
        ("invalid username-password", Kind::Auth),
        ("without any password configured", Kind::Auth),
        ("WRONGTYPE", Kind::Wrong),
        ("LOADING", Kind::Busy),
        ("MISCONF", Kind::Busy),
        ("max number of clients", Kind::Busy),
        ("NOREPLICAS", Kind::Busy),
    ];
    SIGNS.iter().find(|(sign, _)| text.contains(sign)).map_or(Kind::Wrong, |(_, kind)| *kind)
}

/// What carries a connection's bytes.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}

/// Makes a connection's bytes flow; asked again for each new connection.
pub type Wire = Arc<dyn Fn() -> std::io::Result<Box<dyn ByteStream>> + Send + Sync>;

/// Where connections come from.
#[derive(Clone)]
enum Origin {
    Server(Box<Client>),
    /// Streams of a test, which can then lose and delay what it likes.
    Given(Wire),
}

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// One self-healing connection. Clones share it.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    origin: Origin,
    response_timeout: Duration,
    /// Whether its commands are timed: how long a blocking one waits says nothing about Redis.
    timed: bool,
    current: Mutex<Option<(u64, MultiplexedConnection)>>,
    connecting: tokio::sync::Mutex<()>,
    generation: AtomicU64,
}

impl Link {
    /// Prepares a link; the first command connects. Commands without an answer after `response_timeout` are errors.
    ///
    /// # Errors
    /// When the settings cannot describe a server: an unreadable CA or password file.
    pub fn new(settings: &Redis, response_timeout: Duration) -> Result<Self, StoreError> {
        Ok(Self::from_origin(Origin::Server(Box::new(client(settings)?)), response_timeout, true))
    }

    /// Prepares a link over given streams, without password and TLS; it cannot subscribe. For tests.
    #[must_use]
    pub fn over(wire: Wire, response_timeout: Duration) -> Self {
        Self::from_origin(Origin::Given(wire), response_timeout, true)
    }

    fn from_origin(origin: Origin, response_timeout: Duration, timed: bool) -> Self {
        let shared = Shared {
            origin,
            response_timeout,
            timed,
            current: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            generation: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A second connection to the same server.
    #[must_use]
    pub fn another(&self, response_timeout: Duration) -> Self {
        Self::from_origin(self.shared.origin.clone(), response_timeout, true)
    }

    /// A second connection to the same server, for a blocking command.
    #[must_use]
    pub fn blocking(&self, response_timeout: Duration) -> Self {
        Self::from_origin(self.shared.origin.clone(), response_timeout, false)
    }

    /// Sends one command. Not cancel-safe for commands that change something: the command may have been sent.
    ///
    /// # Errors
    /// By [`Kind`].
    pub async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        let (generation, mut connection) = self.connection().await?;
        let started = Instant::now();
        let answer = command.query_async(&mut connection).await;
        self.observe(generation, started, answer)
    }

    /// Sends several commands in one write.
    ///
    /// # Errors
    /// By [`Kind`]; the first error of any of them.
    pub async fn pipe<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T, StoreError> {
        let (generation, mut connection) = self.connection().await?;
        let started = Instant::now();
        let answer = pipeline.query_async(&mut connection).await;
        self.observe(generation, started, answer)
    }

    /// Drops the connection: what waits on it fails, and Redis lets go of a blocked fetch.
    pub fn disconnect(&self) {
        *self.current() = None;
    }

    /// Counts connections made; a change tells that something may have been missed in between.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Relaxed)
    }

    /// A connection of its own for subscriptions.
    ///
    /// # Errors
    /// When it cannot be made in time.
    pub async fn subscriber(&self) -> Result<redis::aio::PubSub, StoreError> {
        let Origin::Server(client) = &self.shared.origin else {
            return Err(StoreError { kind: Kind::Unreachable, text: "given streams carry no subscriptions".to_owned() });
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, client.get_async_pubsub()).await {
            Ok(made) => made.map_err(StoreError::from),
            Err(_) => Err(StoreError { kind: Kind::Unreachable, text: "no connection in time".to_owned() }),
        }
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<(u64, MultiplexedConnection)>> {
        self.shared.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connection(&self) -> Result<(u64, MultiplexedConnection), StoreError> {
        if let Some(current) = self.current().clone() {
            return Ok(current);
        }
        let _one_at_a_time = self.shared.connecting.lock().await;
        if let Some(current) = self.current().clone() {
            return Ok(current);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(self.shared.response_timeout));
        let made = match &self.shared.origin {
            Origin::Server(client) => client.get_multiplexed_async_connection_with_config(&config).await,
            Origin::Given(wire) => over(wire, config).await,
        };
        let connection = made.inspect_err(|error| count_error(StoreError::from(error.clone()).kind))?;
        let generation = self.shared.generation.fetch_add(1, Ordering::Relaxed) + 1;
        *self.current() = Some((generation, connection.clone()));
        Ok((generation, connection))
    }

    fn observe<T>(&self, generation: u64, started: Instant, answer: Result<T, RedisError>) -> Result<T, StoreError> {
        if self.shared.timed {
            metrics::histogram!("punctual_redis_command_seconds").record(started.elapsed().as_secs_f64());
        }
        answer.map_err(|error| {
            let error = StoreError::from(error);
            count_error(error.kind);
            // A replica that was the primary keeps its connections, and so does a server that ran out of memory for none:
            // only a new connection finds the server that can serve.
            if matches!(error.kind, Kind::Unreachable | Kind::ReadOnly | Kind::Auth) {
                let mut current = self.current();
                if current.as_ref().is_some_and(|(held, _)| *held == generation) {
                    *current = None;
                }
            }
            error
        })
    }
}

async fn over(wire: &Wire, config: AsyncConnectionConfig) -> Result<MultiplexedConnection, RedisError> {
    let settings = redis::RedisConnectionInfo::default().set_skip_set_lib_name();
    let (connection, driver) = MultiplexedConnection::new_with_config(&settings, wire()?, config).await?;
    tokio::spawn(driver);
    Ok(connection)
}

fn count_error(kind: Kind) {
    metrics::counter!("punctual_redis_errors_total", "kind" => kind.word()).increment(1);
}

fn client(settings: &Redis) -> Result<Client, StoreError> {
    let wrong = |text: String| StoreError { kind: Kind::Wrong, text };
    let url = &settings.url;
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2)));
    // Half-open connections: unacknowledged data ends the connection instead of being executed minutes later.
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(Duration::from_secs(5));
    let address = if let Some(path) = url.unix_path() {
        redis::ConnectionAddr::Unix(path.into())
    } else {
        let (host, port) = (url.host().unwrap_or("127.0.0.1").to_owned(), url.port().unwrap_or(6379));
        if url.tls() {
            redis::ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            redis::ConnectionAddr::Tcp(host, port)
        }
    };
    let mut redis = redis::RedisConnectionInfo::default().set_db(i64::from(url.db()));
    if let Some(username) = settings.username() {
        redis = redis.set_username(username);
    }
    // Read at each start and never kept in the configuration.
    if let Some(password) = settings.password().map_err(|error| wrong(format!("read the Redis password: {error}")))? {
        redis = redis.set_password(password);
    }
    let info = address.into_connection_info().map_err(StoreError::from)?.set_redis_settings(redis).set_tcp_settings(tcp);
    if !url.tls() {
        return Client::open(info).map_err(StoreError::from);
    }
    // The provider is process-wide; a second installation is refused and harmless.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let root_cert = match &settings.ca_file {
        None => None,
        Some(path) => Some(std::fs::read(path).map_err(|error| wrong(format!("read {}: {error}", path.display())))?),
    };
    Client::build_with_tls(info, redis::TlsCertificates { client_tls: None, root_cert }).map_err(StoreError::from)
}
