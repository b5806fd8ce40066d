//! The one way to run a program: `process.exec` and `report.run` hand their [`Program`] to [`run`].
//!
//! A program is a list of words and never a line for a shell. It runs in a process group of its own, with a clean
//! environment, and nothing of that group outlives the attempt: when the first process ends, when the job is
//! cancelled (SIGTERM, two seconds later SIGKILL), and when the attempt is dropped at its timeout (SIGKILL).
//!
//! Exit 0 is done, 65 (EX_DATAERR) is dead; every other code, a signal, and a program that cannot be started are
//! retried, since another node may have it. Absent on purpose: limits of memory and time, users and roots, which
//! belong to the container around the node; a program that starts a session of its own leaves the group, and a node
//! that is itself killed cannot kill: such a program must hand its claim to whatever it writes to.

mod allow;
mod tail;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use punctual_core::clock;
use punctual_core::config::Handlers;
use punctual_core::handler::{JobContext, Outcome};
use punctual_core::state::MAX_ERROR_BYTES;
use serde::Serialize;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use tail::{Tail, last};

/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// How long the output is still read when everything is dead: only a process that left the group holds it open.
const DRAIN: Duration = Duration::from_millis(500);
/// How often a group that is ending is looked at.
const POLL: Duration = Duration::from_millis(20);
/// EX_DATAERR of sysexits.h: the input is wrong and stays wrong.
const DATA_ERROR: i32 = 65;

/// A program to run.
pub(crate) struct Program {
    /// The program's absolute path and its arguments.
    pub(crate) argv: Vec<String>,
    /// More variables, as the job says.
    pub(crate) env: BTreeMap<String, String>,
    /// Where it runs; the node's own directory by default.
    pub(crate) cwd: Option<PathBuf>,
    /// What it reads; nothing by default.
    pub(crate) stdin: Option<String>,
}

#[derive(Serialize)]
struct Finished {
    exit: i32,
    stdout: String,
    stderr: String,
}

/// Runs the program to its end, or to the job's.
pub(crate) async fn run(program: Program, job: &JobContext) -> Outcome {
    match command(&program, job) {
        Ok(command) => Box::pin(watch(command, program.stdin, job)).await,
        Err(forbidden) => Outcome::dead(forbidden),
    }
}

fn command(program: &Program, job: &JobContext) -> Result<Command, String> {
    let (path, args) = program.argv.split_first().ok_or("argv is empty, it begins with the program's absolute path")?;
    allow::check(path, &job.state::<Handlers>().exec.allow)?;
    if let Some(name) = program.env.keys().find(|name| !may_set(name)) {
        return Err(format!("env {name:?} may not be set"));
    }
    let mut command = Command::new(path);
    command.args(args).env_clear().envs([("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8")]).envs(&program.env);
    command.env("PUNCTUAL_JOB_ID", job.id());
    command.env("PUNCTUAL_ATTEMPT", job.attempt().to_string());
    command.env("PUNCTUAL_CLAIM", job.claim().to_string());
    command.env("PUNCTUAL_DUE_AT", clock::format_ms(job.due_ms()));
    if let Some(cwd) = &program.cwd {
        if !cwd.is_absolute() {
            return Err(format!("cwd {} is not an absolute path", cwd.display()));
        }
        command.current_dir(cwd);
    }
    let stdin = if program.stdin.is_some() { Stdio::piped() } else { Stdio::null() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
    Ok(command)
}

/// Whether a job may set the variable: not ours, and none that makes the loader or a shell run other code first.
fn may_set(name: &str) -> bool {
    const CODE: [&str; 7] = ["BASH_ENV", "BASHOPTS", "ENV", "GCONV_PATH", "IFS", "PS4", "SHELLOPTS"];
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let word = name.len() <= 128 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let reserved = ["PUNCTUAL_", "LD_", "DYLD_"].iter().any(|prefix| name.starts_with(prefix));
    begins && word && !reserved && !CODE.contains(&name)
}

async fn watch(mut command: Command, stdin: Option<String>, job: &JobContext) -> Outcome {
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let text = format!("cannot start {:?}: {error}", command.as_std().get_program());
            // A zero byte, or more than the system takes: no other node will manage either.
            let hopeless = matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::ArgumentListTooLong);
            return if hopeless { Outcome::dead(text) } else { Outcome::retry(text) };
        }
    };
    // Declared after the child, hence dropped before it: the group is killed while the child still holds its number.
    let mut group = Group(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw));
    let (out, err, input) = (child.stdout.take(), child.stderr.take(), child.stdin.take());
    let (mut stdout, mut stderr) = (Tail::default(), Tail::default());
    let ended = {
        let mut streams = Box::pin(async { tokio::join!(stdout.fill(out), stderr.fill(err), feed(input, stdin)) });
        let mut open = true;
        let ended = tokio::select! {
            ended = end(&mut child, &mut group, job) => ended,
            // Reading goes on beside the wait: a full pipe would stop the program for ever.
            ended = async { streams.as_mut().await; open = false; std::future::pending().await } => ended,
        };
        drop(group);
        if open {
            let _ = timeout(DRAIN, streams).await;
        }
        ended
    };
    outcome(ended, stdout.text(), stderr.text(), job.is_cancelled())
}

/// Waits until the first process ends; when the job is cancelled, asks the group to end and gives it its grace.
async fn end(child: &mut Child, group: &mut Group, job: &JobContext) -> std::io::Result<ExitStatus> {
    tokio::select! {
        ended = child.wait() => return ended,
        () = job.cancelled() => group.signal(Signal::SIGTERM),
    }
    let deadline = Instant::now() + GRACE;
    tokio::select! {
        // A shell ends at once and its children need the grace, so the group counts and not only its first process.
        ended = async { let ended = child.wait().await; group.gone().await; ended } => return ended,
        () = sleep_until(deadline) => {}
    }
    group.signal(Signal::SIGKILL);
    child.wait().await
}

async fn feed(input: Option<ChildStdin>, text: Option<String>) {
    if let (Some(mut input), Some(text)) = (input, text) {
        // A program need not read what it is given.
        let _ = input.write_all(text.as_bytes()).await;
    }
}

fn outcome(ended: std::io::Result<ExitStatus>, stdout: String, stderr: String, cancelled: bool) -> Outcome {
    let status = match ended {
        Ok(status) => status,
        Err(error) => return Outcome::retry(format!("cannot tell how the program ended: {error}")),
    };
    if status.success() {
        return Outcome::done(Finished { exit: 0, stdout, stderr });
    }
    let how = match (status.code(), status.signal().map(Signal::try_from)) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(Ok(signal))) => signal.to_string(),
        (None, _) => status.to_string(),
    };
    let mut text = format!("{}{how}", if cancelled { "cancelled: " } else { "" });
    let both = !stdout.is_empty() && !stderr.is_empty();
    for (label, tail) in [(": ", stderr), (if both { "\nstdout: " } else { ": " }, stdout)] {
        if !tail.is_empty() {
            text.push_str(label);
            // The end of a tail is what tells, so what does not fit is cut from its beginning here, not from its end later.
            text.push_str(&last(&tail, MAX_ERROR_BYTES - text.len()));
        }
    }
    if status.code() == Some(DATA_ERROR) { Outcome::dead(text) } else { Outcome::retry(text) }
}

/// The process group of the program, killed when this is dropped. Empty once all of it is known to be dead.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // An error says that nobody is left.
            let _ = killpg(group, signal);
        }
    }

    /// Waits until no process of the group is left; its first one must have been waited for. Cancel-safe.
    async fn gone(&mut self) {
        while let Some(group) = self.0 {
            collect(group);
            if killpg(group, None).is_err() {
                // From now on the number may belong to others.
                self.0 = None;
            } else {
                sleep(POLL).await;
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        let (Some(group), Ok(runtime)) = (self.0, Handle::try_current()) else { return };
        runtime.spawn(async move {
            for _ in 0..50 {
                sleep(POLL).await;
                if !collect(group) {
                    break;
                }
            }
        });
    }
}

/// Takes the dead of a group off the system's list, and tells whether some of it still live. A node that is the first
/// process of its container inherits the orphans, and nobody else would; elsewhere there is nothing to do.
fn collect(group: Pid) -> bool {
    loop {
        match waitpid(Pid::from_raw(-group.as_raw()), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}
