//! Where the binaries are: the one under test, and the Redis server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow, bail, ensure};

/// Path of the `punctual` binary: `PUNCTUAL_BIN`, else the one that was built into the same target directory as
/// this test.
///
/// # Panics
/// When there is none. Cargo does not build another package's binary for a test, so somebody has to ask for it.
#[must_use]
pub fn punctual_bin() -> PathBuf {
    let path = if let Some(named) = std::env::var_os("PUNCTUAL_BIN") {
        PathBuf::from(named)
    } else {
        let exe = std::env::current_exe().expect("a running test knows its own path");
        let dir = exe.parent().expect("a file has a directory");
        // Tests and benches lie in target/PROFILE/deps, binaries one level above.
        let profile = if dir.ends_with("deps") { dir.parent().expect("deps has a parent") } else { dir };
        profile.join(format!("punctual{}", std::env::consts::EXE_SUFFIX))
    };
    assert!(
        path.is_file(),
        "there is no binary to test at {}: run `cargo build -p punctual-node` (with --release for benches) or set PUNCTUAL_BIN",
        path.display()
    );
    std::path::absolute(&path).expect("the working directory exists")
}

/// A command of the binary under test that sees no setting of the developer's own environment.
#[must_use]
pub(crate) fn punctual_command() -> Command {
    let mut command = Command::new(punctual_bin());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("PUNCTUAL_") || text == "RUST_LOG" || text == "POD_NAME" {
            command.env_remove(&name);
        }
    }
    command
}

/// Path of the server binary, as `scripts/find-redis.sh` finds it; looked for once per process.
///
/// # Errors
/// What the script says when there is none.
pub fn redis_server_bin() -> Result<&'static Path> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let find = || -> Result<PathBuf> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/find-redis.sh");
        let output = Command::new("bash").arg(script).stdin(Stdio::null()).output().context("failed to run bash")?;
        if !output.status.success() {
            bail!("scripts/find-redis.sh found no server: {}", String::from_utf8_lossy(&output.stderr));
        }
        let path = PathBuf::from(String::from_utf8(output.stdout)?.trim());
        ensure!(path.is_file(), "scripts/find-redis.sh printed {}, which is no file", path.display());
        Ok(path)
    };
    let found = FOUND.get_or_init(|| find().map_err(|error| format!("{error:#}")));
    found.as_deref().map_err(|text| anyhow!("{text}"))
}
