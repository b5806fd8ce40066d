//! The directory of one `dev`: who may use it, and where its Redis listens.
//!
//! Two locks. `dev.lock` is held by this process and ends with it. `server.lock` is handed down to Redis as its standard
//! input, so it lasts as long as Redis does: a Redis that outlived a killed `dev` is noticed, and never meets a second one on
//! the same files.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use punctual_core::config::RedisUrl;

use super::super::failure::Failure;
use super::super::output::note;

/// Longest path of a socket that every system takes.
const LONGEST_SOCKET: usize = 100;
/// A server that was told to shut down writes its files and ends within this time.
pub(super) const SHUTDOWN_WITHIN: Duration = Duration::from_secs(10);

/// A directory that is ours.
pub(super) struct Place {
    dir: PathBuf,
    url: String,
    listen: Listen,
    server_lock: File,
    _dev_lock: File,
}

/// Where Redis listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Listen {
    /// At this socket, which only this user can reach.
    Socket(PathBuf),
    /// At this port of 127.0.0.1: for directories whose path is too long for a socket.
    Port(u16),
}

impl Place {
    /// Makes the directory and takes both locks.
    pub(super) fn prepare(dir: &Path) -> Result<Self, Failure> {
        let wrong = |what: &str, error: std::io::Error| Failure::failed(format!("{what} {}: {error}", dir.display()));
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| wrong("make", error))?;
        let dir = dir.canonicalize().map_err(|error| wrong("find", error))?;
        // Nobody wants the data in version control.
        let _ = fs::write(dir.join(".gitignore"), "*\n");
        let dev_lock = open(&dir.join("dev.lock")).map_err(|error| wrong("lock", error))?;
        match dev_lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let pid = fs::read_to_string(dir.join("dev.lock")).unwrap_or_default();
                return Err(Failure::failed(format!(
                    "another punctual dev (process {}) runs with {}; stop it, or give this one its own data with --data DIR",
                    pid.trim(),
                    dir.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(wrong("lock", error)),
        }
        dev_lock
            .set_len(0)
            .and_then(|()| writeln!(&dev_lock, "{}", std::process::id()))
            .map_err(|error| wrong("write", error))?;
        let server_lock = open(&dir.join("server.lock")).map_err(|error| wrong("lock", error))?;
        take_from_the_left_behind(&dir, &server_lock)?;
        let listen = Listen::choose(&dir)?;
        let url = listen.url();
        fs::write(dir.join("redis.url"), format!("{url}\n")).map_err(|error| wrong("write", error))?;
        Ok(Self { dir, url, listen, server_lock, _dev_lock: dev_lock })
    }

    /// The directory, absolute.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The URL of its Redis.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Where its Redis is to listen.
    pub(super) fn listen(&self) -> &Listen {
        &self.listen
    }

    /// The lock that the server holds while it lives.
    pub(super) fn server_lock(&self) -> std::io::Result<File> {
        self.server_lock.try_clone()
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

/// Takes the server's lock; a server without its `dev` is told to shut down first.
fn take_from_the_left_behind(dir: &Path, lock: &File) -> Result<(), Failure> {
    let (started, mut told) = (Instant::now(), false);
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(Failure::failed(format!("lock {}: {error}", dir.display()))),
            Err(TryLockError::WouldBlock) if !told => {
                told = true;
                note("stopping the Redis that a killed punctual dev left behind");
                let url = fs::read_to_string(dir.join("redis.url")).unwrap_or_default();
                if let Ok(url) = RedisUrl::parse(&url) {
                    shut_down(&url);
                }
            }
            Err(TryLockError::WouldBlock) if started.elapsed() > SHUTDOWN_WITHIN => {
                let pid = fs::read_to_string(dir.join("redis.pid")).unwrap_or_default();
                return Err(Failure::failed(format!(
                    "a Redis left behind by a killed punctual dev still uses {} and does not stop; end process {}",
                    dir.display(),
                    pid.trim()
                )));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Asks a server to write its files and end; returns when it has closed the connection. A server that is gone already is fine.
pub(super) fn shut_down(url: &RedisUrl) {
    let ask = |stream: &mut dyn ReadWrite| {
        // An inline command, which every server takes without a client library.
        let _ = stream.write_all(b"SHUTDOWN\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    };
    if let Some(path) = url.unix_path() {
        if let Ok(mut stream) = UnixStream::connect(path) {
            let _ = stream.set_read_timeout(Some(SHUTDOWN_WITHIN));
            ask(&mut stream);
        }
    } else if let Ok(mut stream) = TcpStream::connect((url.host().unwrap_or("127.0.0.1"), url.port().unwrap_or(6379))) {
        let _ = stream.set_read_timeout(Some(SHUTDOWN_WITHIN));
        ask(&mut stream);
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

impl Listen {
    fn choose(dir: &Path) -> Result<Self, Failure> {
        let socket = dir.join("redis.sock");
        if socket.as_os_str().len() <= LONGEST_SOCKET && socket.to_str().is_some() {
            Ok(Self::Socket(socket))
        } else {
            super::free_port().map(Self::Port)
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Port(port) => format!("redis://127.0.0.1:{port}/0"),
            Self::Socket(path) => {
                let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(byte);
                let path = path.to_string_lossy();
                let encoded: String = path
                    .bytes()
                    .map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
                    .collect();
                format!("unix://{encoded}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_dev() {
        let dir = tempfile::tempdir().unwrap();
        let first = Place::prepare(&dir.path().join("data")).unwrap();
        let Err(failure) = Place::prepare(&dir.path().join("data")) else { panic!("two in one directory") };
        assert!(failure.lines()[0].contains(&std::process::id().to_string()), "{failure:?}");
        drop(first);
        Place::prepare(&dir.path().join("data")).unwrap();
    }

    #[test]
    fn urls_of_sockets_read_back_whatever_the_directory_is_called() {
        for name in ["/tmp/a", "/tmp/with space/ä?#%", "/tmp/quote'"] {
            let path = Path::new(name).join("redis.sock");
            let url = RedisUrl::parse(&Listen::Socket(path.clone()).url()).unwrap();
            assert_eq!(url.unix_path(), Some(path.as_path()));
        }
    }

    #[test]
    fn long_paths_get_a_port() {
        assert!(matches!(Listen::choose(Path::new(&format!("/{}", "x".repeat(120)))), Ok(Listen::Port(_))));
        assert!(matches!(Listen::choose(Path::new("/tmp/x")), Ok(Listen::Socket(_))));
    }
}
