//! A real Redis server of a test's own: private directory, private port, and the ways in which a server can fail.
//!
//! Nothing is kept on disk unless the options say so. The server on 6379, if there is one, is never touched.

use std::fs::File;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use nix::sys::signal::Signal;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::process::Process;
use crate::redis_options::RedisOptions;
use crate::wait::eventually;

const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A running Redis server; dropping it kills the server and removes its directory.
#[derive(Debug)]
pub struct RedisServer {
    // Before `dir`: the process ends before its directory goes.
    process: Option<Process>,
    port: u16,
    dir: Option<TempDir>,
    options: RedisOptions,
}

impl RedisServer {
    /// Options of a server that keeps nothing on disk and asks for no password.
    #[must_use]
    pub fn options() -> RedisOptions {
        RedisOptions::default()
    }

    /// Starts a server with the default options, in about 50 ms.
    ///
    /// # Errors
    /// See [`RedisOptions::start`].
    pub async fn start() -> Result<Self> {
        Self::options().start().await
    }

    /// The server that all tests of this process share, started at the first call; keys are kept apart by
    /// [`fresh_namespace`]. A test that harms its server starts one of its own.
    ///
    /// # Errors
    /// See [`RedisOptions::start`].
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<RedisServer> = OnceCell::const_new();
        let start = async || {
            let mut server = Self::start().await?;
            // Statics are never dropped, so the directory goes now: this server writes nothing into it.
            server.dir = None;
            Ok(server)
        };
        SHARED.get_or_try_init(start).await
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process id.
    ///
    /// # Errors
    /// When it has been killed.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.running()?.pid())
    }

    /// Its URL, with the password if it wants one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_via(self.port)
    }

    /// The URL of this server behind another port, such as a proxy's.
    #[must_use]
    pub fn url_via(&self, port: u16) -> String {
        format!("redis://{}127.0.0.1:{port}/0", self.options.login())
    }

    /// A connection whose calls fail after 5 s.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn conn(&self) -> Result<MultiplexedConnection> {
        self.connect(Duration::from_secs(5)).await
    }

    /// A connection for blocking commands: calls fail only after 60 s.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn blocking_conn(&self) -> Result<MultiplexedConnection> {
        self.connect(Duration::from_secs(60)).await
    }

    /// Kills the server as a crash would (SIGKILL). [`Self::restart`] brings it back.
    pub fn kill9(&mut self) {
        self.process = None;
    }

    /// Asks the server to end (SIGTERM) and waits for it; with an append-only file nothing is forgotten.
    ///
    /// # Errors
    /// When it does not end within 10 s or had been killed before.
    pub async fn shutdown(&mut self) -> Result<()> {
        let process = self.process.take().context("the Redis server is not running")?;
        process.signal(Signal::SIGTERM)?;
        process.wait_exit(Duration::from_secs(10)).await?;
        Ok(())
    }

    /// Starts the server again with the same port and directory, after ending it if it runs.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn restart(&mut self) -> Result<()> {
        if self.process.is_some() {
            self.shutdown().await?;
        }
        self.launch().await
    }

    /// Freezes the server (SIGSTOP): connections open and requests go in, but nothing comes out.
    ///
    /// # Errors
    /// When it has been killed.
    pub fn pause(&mut self) -> Result<()> {
        self.running()?.signal(Signal::SIGSTOP)
    }

    /// Lets a frozen server go on (SIGCONT).
    ///
    /// # Errors
    /// When it has been killed.
    pub fn resume(&mut self) -> Result<()> {
        self.running()?.signal(Signal::SIGCONT)
    }

    /// What the server wrote to its log since its first start; empty for the shared one.
    #[must_use]
    pub fn log(&self) -> String {
        let path = self.dir.as_ref().map(|dir| dir.path().join("redis.log"));
        path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default()
    }

    // One try, on a port that may have been taken meanwhile.
    pub(crate) async fn launch_new(options: &RedisOptions, port: u16) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("punctual-redis-").tempdir()?;
        let mut server = Self { process: None, port, dir: Some(dir), options: options.clone() };
        server.launch().await?;
        Ok(server)
    }

    fn running(&self) -> Result<&Process> {
        self.process.as_ref().context("the Redis server is not running")
    }

    async fn launch(&mut self) -> Result<()> {
        let dir = self.dir.as_ref().context("the shared server cannot be restarted")?.path();
        let mut command = self.options.command(self.port)?;
        let log = File::options().create(true).append(true).open(dir.join("redis.log"))?;
        command.current_dir(dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let process = self.process.insert(Process::spawn(command)?);
        let pid = process.pid();
        let ready = eventually(START_TIMEOUT, "Redis to answer", async || {
            if self.running().and_then(Process::exited).is_ok_and(|status| status.is_some()) {
                return Some(Err(anyhow!("the Redis server ended at once")));
            }
            self.is_ready(pid).await.ok().filter(|ready| *ready).map(|_| Ok(()))
        });
        if let Err(error) = ready.await.and_then(|answer| answer) {
            self.process = None;
            return Err(error.context(format!("failed to start Redis on port {}; its log:\n{}", self.port, self.log())));
        }
        Ok(())
    }

    // The process id is compared because another server may have taken the port first.
    async fn is_ready(&self, pid: u32) -> Result<bool> {
        let info: String = redis::cmd("INFO").query_async(&mut self.conn().await?).await?;
        let has = |line: &str| info.lines().any(|have| have == line);
        Ok(has(&format!("process_id:{pid}")) && has("loading:0"))
    }

    async fn connect(&self, response_timeout: Duration) -> Result<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(5)))
            .set_response_timeout(Some(response_timeout));
        let client = redis::Client::open(self.url())?;
        client.get_multiplexed_async_connection_with_config(&config).await.context("failed to connect to Redis")
    }
}

/// A namespace that no other test uses, such as `t-4711-3-k2f9qz`.
#[must_use]
pub fn fresh_namespace() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let random: String = std::iter::repeat_with(|| fastrand::alphanumeric().to_ascii_lowercase()).take(6).collect();
    format!("t-{}-{}-{random}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use redis::AsyncCommands as _;

    use super::*;
    use crate::redis_options::Aof;

    #[tokio::test]
    async fn killed_server_with_aof_always_remembers_and_without_forgets() {
        for (aof, remembered) in [(Aof::Always, Some("1".to_owned())), (Aof::Off, None)] {
            let mut server = RedisServer::options().aof(aof).start().await.unwrap();
            let port = server.port();
            let () = server.conn().await.unwrap().set("k", 1).await.unwrap();
            server.kill9();
            assert!(server.conn().await.is_err());
            server.restart().await.unwrap();
            assert_eq!(server.port(), port);
            let value: Option<String> = server.conn().await.unwrap().get("k").await.unwrap();
            assert_eq!(value, remembered, "{aof:?}");
        }
    }

    #[tokio::test]
    async fn password_with_special_characters_is_wanted_and_works() {
        let server = RedisServer::options().requirepass("p@ss:/#%+ word").maxmemory_policy("allkeys-lru").start().await.unwrap();
        let mut conn = server.conn().await.unwrap();
        let policy: Vec<String> = redis::cmd("CONFIG").arg("GET").arg("maxmemory-policy").query_async(&mut conn).await.unwrap();
        assert_eq!(policy[1], "allkeys-lru");
        let bare = redis::Client::open(format!("redis://127.0.0.1:{}/0", server.port())).unwrap();
        let mut stranger = bare.get_multiplexed_async_connection().await.unwrap();
        assert!(redis::cmd("PING").exec_async(&mut stranger).await.is_err());
    }

    #[tokio::test]
    async fn paused_server_answers_after_resume() {
        let mut server = RedisServer::start().await.unwrap();
        let mut conn = server.conn().await.unwrap();
        server.pause().unwrap();
        let mut ping = tokio::spawn(async move { redis::cmd("PING").query_async::<String>(&mut conn).await });
        assert!(tokio::time::timeout(Duration::from_millis(200), &mut ping).await.is_err());
        server.resume().unwrap();
        assert_eq!(ping.await.unwrap().unwrap(), "PONG");
    }

    #[tokio::test]
    async fn shared_server_is_one_and_namespaces_differ() {
        let (first, second) = tokio::join!(RedisServer::shared(), RedisServer::shared());
        assert_eq!(first.unwrap().pid().unwrap(), second.unwrap().pid().unwrap());
        assert_ne!(fresh_namespace(), fresh_namespace());
    }

    #[tokio::test]
    async fn taken_port_is_reported_with_the_log() {
        let server = RedisServer::start().await.unwrap();
        let error = RedisServer::options().port(server.port()).start().await.unwrap_err();
        assert!(format!("{error:#}").contains("in use"), "{error:#}");
    }
}
