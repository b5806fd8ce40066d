//! The private Redis of `dev`: started in a process group of its own, so that Ctrl-C reaches the node alone, and stopped
//! after the node has drained. It keeps an append-only file and evicts nothing.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use punctual_core::config::RedisUrl;

use super::super::failure::Failure;
use super::super::output::note;
use super::find::Program;
use super::place::{Listen, Place, SHUTDOWN_WITHIN, shut_down};

/// A running server; dropping it stops it.
pub(super) struct Server {
    child: Arc<Mutex<Option<Child>>>,
    url: RedisUrl,
    log: PathBuf,
}

impl Server {
    /// Starts the server; it may need a while to read its data.
    pub(super) fn start(program: &Program, place: &Place) -> Result<Self, Failure> {
        let log = place.dir().join("redis.log");
        let wrong = |error: std::io::Error| Failure::failed(format!("start {}: {error}", program.path.display()));
        let out = File::create(&log).map_err(wrong)?;
        let mut command = Command::new(&program.path);
        command.arg("--dir").arg(place.dir());
        match place.listen() {
            Listen::Socket(path) => {
                // A socket of an earlier server is only a name.
                let _ = fs::remove_file(path);
                command.args(["--port", "0", "--unixsocketperm", "700", "--unixsocket"]).arg(path);
            }
            Listen::Port(port) => {
                command.args(["--bind", "127.0.0.1", "--port"]).arg(port.to_string());
            }
        }
        command.args(["--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction"]);
        command.args(["--daemonize", "no", "--loglevel", "notice"]);
        command.stdin(place.server_lock().map_err(wrong)?).stdout(out.try_clone().map_err(wrong)?).stderr(Stdio::from(out));
        let child = command.process_group(0).spawn().map_err(wrong)?;
        let _ = fs::write(place.dir().join("redis.pid"), format!("{}\n", child.id()));
        let url = RedisUrl::parse(place.url()).map_err(|message| Failure::failed(format!("redis.url {message}")))?;
        Ok(Self { child: Arc::new(Mutex::new(Some(child))), url, log })
    }

    /// Fails with the end of its log when the server has ended.
    pub(super) fn still_runs(&mut self) -> Result<(), Failure> {
        match ended(&self.child) {
            None => Ok(()),
            Some(status) => Err(Failure::failed(format!("Redis ended ({status}): {}", last_words(&self.log)))),
        }
    }

    /// Ends this process should the server end before it is told to: without it the node can do nothing.
    pub(super) fn watch(self) -> Watched {
        let (child, log) = (Arc::clone(&self.child), self.log.clone());
        let watch = move || {
            loop {
                std::thread::sleep(Duration::from_millis(200));
                if child.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
                    return;
                }
                if let Some(status) = ended(&child) {
                    note(format!("error: Redis ended ({status}): {}", last_words(&log)));
                    std::process::exit(1);
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("redis-watch".to_owned()).spawn(watch) {
            note(format!("nobody watches Redis: {error}"));
        }
        Watched(self)
    }
}

/// A server that is watched.
pub(super) struct Watched(Server);

impl Watched {
    /// Stops the server, which writes its files first.
    pub(super) fn stop(self) {
        drop(self.0);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Taken out first: from here on its end is what is wanted.
        let Some(mut child) = self.child.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        shut_down(&self.url);
        let told = Instant::now();
        while told.elapsed() < SHUTDOWN_WITHIN {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        note("Redis did not stop in time and is killed; its append-only file has all but the last second");
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn ended(child: &Mutex<Option<Child>>) -> Option<std::process::ExitStatus> {
    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
    child.as_mut().and_then(|child| child.try_wait().ok().flatten())
}

/// The last lines of the log: Redis says there why it ended.
fn last_words(log: &PathBuf) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    format!("{} (whole log: {})", lines[lines.len().saturating_sub(3)..].join(" | "), log.display())
}
