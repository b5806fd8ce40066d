//! A child process that cannot outlive this one, and the signals that tests send it.
//!
//! The kernel's "die with the parent" (`PR_SET_PDEATHSIG`) means the parent *thread*: a server that several tests
//! share would die with the thread of the test that happened to start it. So all children are started by one
//! thread that lives as long as this process. Elsewhere than on Linux only `Drop` ends a child.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait::eventually;

type Order = (Command, mpsc::Sender<std::io::Result<Child>>);

static STARTER: LazyLock<Mutex<mpsc::Sender<Order>>> = LazyLock::new(|| {
    let (orders, inbox) = mpsc::channel::<Order>();
    std::thread::Builder::new()
        .name("child-starter".to_owned())
        .spawn(move || {
            for (mut command, answer) in inbox {
                // A caller that has gone away wants no child; its handle is dropped here and the child is not waited for.
                let _ = answer.send(command.spawn());
            }
        })
        .expect("a test process may start a thread");
    Mutex::new(orders)
});

/// Tells the kernel to kill the child when the thread that starts it ends.
#[cfg(target_os = "linux")]
#[expect(
    unsafe_code,
    reason = "pre_exec is the only way to act between fork and exec; the closure makes two system calls and allocates nothing"
)]
fn die_with_parent(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let arm = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        // A parent that died before the call above would never be noticed.
        if nix::unistd::getppid() == parent { Ok(()) } else { Err(std::io::Error::from_raw_os_error(libc::ESRCH)) }
    };
    // SAFETY: between fork and exec the closure only calls prctl and getppid, both async-signal-safe.
    unsafe { command.pre_exec(arm) };
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_command: &mut Command) {}

/// A running or ended child. Dropping it kills it (SIGKILL) and reaps it.
#[derive(Debug)]
pub struct Process {
    child: Mutex<Child>,
    pid: u32,
}

impl Process {
    /// Starts the command; it dies when this test process ends, however that happens.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(mut command: Command) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        die_with_parent(&mut command);
        let (answer, reply) = mpsc::channel();
        STARTER.lock().unwrap_or_else(PoisonError::into_inner).send((command, answer)).context("the starter thread is gone")?;
        let child = reply.recv().context("the starter thread is gone")?.with_context(|| format!("failed to start {program}"))?;
        Ok(Self { pid: child.id(), child: Mutex::new(child) })
    }

    /// The process id, also after its end.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The child's standard input, once, if the command asked for a pipe.
    #[must_use]
    pub fn take_stdin(&self) -> Option<ChildStdin> {
        self.lock().stdin.take()
    }

    /// The child's standard output, once, if the command asked for a pipe.
    #[must_use]
    pub fn take_stdout(&self) -> Option<ChildStdout> {
        self.lock().stdout.take()
    }

    /// The child's standard error, once, if the command asked for a pipe.
    #[must_use]
    pub fn take_stderr(&self) -> Option<ChildStderr> {
        self.lock().stderr.take()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the process has ended: its number may by now belong to another one.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let mut child = self.lock();
        if let Some(status) = child.try_wait()? {
            bail!("process {} has ended before {signal}: {status}", self.pid);
        }
        let pid = Pid::from_raw(i32::try_from(self.pid).context("a process id fits into an i32")?);
        kill(pid, signal).with_context(|| format!("failed to send {signal} to process {}", self.pid))
    }

    /// How it ended, or `None` while it runs.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn exited(&self) -> Result<Option<ExitStatus>> {
        Ok(self.lock().try_wait()?)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it still runs after `timeout`.
    pub async fn wait_exit(&self, timeout: Duration) -> Result<ExitStatus> {
        let what = format!("the end of process {}", self.pid);
        eventually(timeout, &what, async || self.exited().ok().flatten()).await
    }

    /// Kills it at once (SIGKILL) and reaps it; nothing happens if it has ended.
    pub fn kill9(&self) {
        let mut child = self.lock();
        // Both fail only for a child that is already reaped, which is what is wanted.
        let _ = child.kill();
        let _ = child.wait();
    }

    fn lock(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Process {
        let mut command = Command::new("sleep");
        command.arg("60");
        Process::spawn(command).unwrap()
    }

    #[tokio::test]
    async fn child_outlives_the_thread_that_asked_for_it() {
        let child = std::thread::spawn(sleeper).join().unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(child.exited().unwrap().is_none());
        child.signal(Signal::SIGTERM).unwrap();
        assert_eq!(child.wait_exit(Duration::from_secs(5)).await.unwrap().code(), None);
        assert!(child.signal(Signal::SIGTERM).is_err(), "a signal to an ended child could hit a stranger");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn child_dies_with_this_process() {
        // This very test binary plays the test process that is killed; its child's number is on its standard output.
        if std::env::var_os("PUNCTUAL_TEST_PARENT").is_some() {
            println!("child={}", sleeper().pid());
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process::tests::child_dies_with_this_process", "--nocapture"]);
        command.env("PUNCTUAL_TEST_PARENT", "1").stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
        let parent = Process::spawn(command).unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(parent.take_stdout().unwrap()));
        let line = lines.find_map(|line| line.unwrap().split_once("child=").map(|(_, pid)| pid.to_owned())).unwrap();
        parent.kill9();
        let status = format!("/proc/{line}/stat");
        // A zombie that its new parent has not reaped yet is dead enough.
        let dead = async || std::fs::read_to_string(&status).map_or(true, |stat| stat.contains(") Z ")).then_some(());
        eventually(Duration::from_secs(5), "the death of the orphan", dead).await.unwrap();
    }
}
