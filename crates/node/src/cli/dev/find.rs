//! Finds a Redis or Valkey server that is new enough: the one that `$REDIS_SERVER` names, else the first one on PATH.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::super::failure::Failure;
use super::super::output::note;

/// A server that may be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// Product and version, such as `Redis 7.0.15`.
    pub(super) name: String,
}

/// The first server that is new enough. Older ones are passed over with a line.
pub(super) fn server() -> Result<Program, Failure> {
    let named = std::env::var_os("REDIS_SERVER").filter(|name| !name.is_empty());
    let path = std::env::var_os("PATH").unwrap_or_default();
    for candidate in candidates(named, &path) {
        match inspect(&candidate) {
            Ok(name) => return Ok(Program { path: candidate, name }),
            Err(why) => note(format!("passed over {}: {why}", candidate.display())),
        }
    }
    Err(Failure::failed(
        "no Redis to start: install redis-server 7.0 or newer, or valkey-server 7.2 or newer (apt install redis-server, \
         brew install redis), or set REDIS_SERVER to its path",
    ))
}

fn candidates(named: Option<OsString>, path: &OsString) -> Vec<PathBuf> {
    let on_path =
        |name: &Path| std::env::split_paths(path).map(|dir| dir.join(name)).filter(|file| file.is_file()).collect::<Vec<_>>();
    let mut candidates = Vec::new();
    if let Some(named) = named {
        let named = PathBuf::from(named);
        if named.components().count() > 1 { candidates.push(named) } else { candidates.extend(on_path(&named)) }
    }
    candidates.extend(on_path(Path::new("redis-server")));
    candidates.extend(on_path(Path::new("valkey-server")));
    candidates
}

fn inspect(program: &Path) -> Result<String, String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    judge(&String::from_utf8_lossy(&output.stdout))
}

/// The file's name does not count: distributions install Valkey as redis-server too.
fn judge(line: &str) -> Result<String, String> {
    let version = line.split_whitespace().find_map(|word| word.strip_prefix("v="));
    let version = version.ok_or("it does not answer --version as a Redis server does")?;
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let number = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let (product, oldest) = if line.starts_with("Redis") { ("Redis", (7, 0)) } else { ("Valkey", (7, 2)) };
    if number < oldest {
        return Err(format!("{product} {version} is older than {}.{}", oldest.0, oldest.1));
    }
    Ok(format!("{product} {version}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_judged_by_what_the_server_says() {
        assert_eq!(judge("Redis server v=7.0.15 sha=0:0 malloc=x bits=64"), Ok("Redis 7.0.15".to_owned()));
        assert_eq!(judge("Valkey server v=9.1.2 sha=0:0"), Ok("Valkey 9.1.2".to_owned()));
        assert_eq!(judge("Valkey server v=7.2.0 sha=0:0"), Ok("Valkey 7.2.0".to_owned()));
        assert!(judge("Redis server v=6.2.14 sha=0:0").unwrap_err().contains("older than 7.0"));
        assert!(judge("Valkey server v=7.0.1").is_err() && judge("bash 5.2").is_err() && judge("").is_err());
    }

    #[test]
    fn the_named_server_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["redis-server", "valkey-server"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let found = candidates(Some("/opt/redis".into()), &dir.path().as_os_str().to_owned());
        assert_eq!(found, [PathBuf::from("/opt/redis"), dir.path().join("redis-server"), dir.path().join("valkey-server")]);
        let found = candidates(Some("valkey-server".into()), &dir.path().as_os_str().to_owned());
        assert_eq!(found[0], dir.path().join("valkey-server"));
    }
}
