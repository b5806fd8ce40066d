//! The command line as a user's script sees it: exit code, one JSON document, text on standard error.

use std::collections::BTreeMap;
use std::io::{Read, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::binary::punctual_command;
use crate::process::Process;

/// What a command left behind.
#[derive(Clone, Debug, PartialEq)]
pub struct CliOutput {
    /// Exit code; -1 for an end by a signal.
    pub code: i32,
    /// Standard output: the document; an array when it is one document a line; null when it is no JSON.
    pub json: Value,
    /// Standard output as it came.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl CliOutput {
    /// The document of a command that is expected to succeed.
    ///
    /// # Errors
    /// When the exit code is not 0; the text holds both outputs.
    pub fn ok(self) -> Result<Value> {
        if self.code == 0 {
            return Ok(self.json);
        }
        Err(anyhow!("exit code {}\nstdout: {}\nstderr: {}", self.code, self.stdout, self.stderr))
    }
}

/// Runs `punctual …` commands against one cluster, each with `-o json`.
#[derive(Clone, Debug)]
pub struct Cli {
    env: BTreeMap<String, String>,
    timeout: Duration,
}

impl Cli {
    /// Commands for the cluster `namespace` on the Redis at `redis_url`, each with 30 s to finish.
    ///
    /// Both go into the environment, because a password is refused as a flag.
    #[must_use]
    pub fn new(redis_url: &str, namespace: &str) -> Self {
        let cli = Self { env: BTreeMap::new(), timeout: Duration::from_secs(30) };
        cli.env("PUNCTUAL__REDIS__URL", redis_url).env("PUNCTUAL__REDIS__NAMESPACE", namespace)
    }

    /// Sets a variable of the environment, such as `PUNCTUAL__HANDLERS__DEMO`.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Time after which a command is killed.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs `punctual ARGS… -o json` with nothing on standard input.
    ///
    /// # Errors
    /// When it cannot be started or does not end in time. Any exit code is a result, not an error.
    pub async fn run(&self, args: &[&str]) -> Result<CliOutput> {
        self.run_with_input(args, "").await
    }

    /// Runs `punctual ARGS… -o json` with `input` on standard input.
    ///
    /// # Errors
    /// When it cannot be started or does not end in time.
    pub async fn run_with_input(&self, args: &[&str], input: &str) -> Result<CliOutput> {
        let mut command = punctual_command();
        command.args(args).args(["-o", "json"]);
        self.finish(command, input.as_bytes().to_vec()).await
    }

    /// Runs `punctual ARGS…` as it is: for tables and for bad usage.
    ///
    /// # Errors
    /// When it cannot be started or does not end in time.
    pub async fn run_plain(&self, args: &[&str]) -> Result<CliOutput> {
        let mut command = punctual_command();
        command.args(args);
        self.finish(command, Vec::new()).await
    }

    async fn finish(&self, mut command: Command, input: Vec<u8>) -> Result<CliOutput> {
        let line = format!("{command:?}");
        // An empty directory, so that no configuration file of the repository is read.
        let dir = tempfile::Builder::new().prefix("punctual-cli-").tempdir()?;
        command.envs(&self.env).current_dir(dir.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = Process::spawn(command)?;
        let mut stdin = process.take_stdin().context("standard input is a pipe")?;
        // A command that does not read its input closes the pipe; that is its right. A large input must not block
        // the reading of the outputs, hence a thread.
        std::thread::spawn(move || drop(stdin.write_all(&input)));
        let stdout = read_all(process.take_stdout().context("standard output is a pipe")?);
        let stderr = read_all(process.take_stderr().context("standard error is a pipe")?);
        let status = process.wait_exit(self.timeout).await;
        process.kill9();
        let (stdout, stderr) = (stdout.await?, stderr.await?);
        let status = status.with_context(|| format!("{line} did not end\nstdout: {stdout}\nstderr: {stderr}"))?;
        Ok(CliOutput { code: status.code().unwrap_or(-1), json: documents(&stdout), stdout, stderr })
    }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> oneshot::Receiver<String> {
    let (answer, reply) = oneshot::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
        let _ = answer.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    reply
}

fn documents(stdout: &str) -> Value {
    let lines = || stdout.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
    match serde_json::from_str(stdout) {
        Ok(document) => document,
        Err(_) if stdout.trim().is_empty() => Value::Null,
        Err(_) => lines().map_or(Value::Null, Value::Array),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn shell(script: &str, timeout: Duration) -> Result<CliOutput> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Cli::new("redis://h", "ns").timeout(timeout).finish(command, vec![b'x'; 1_000_000]).await
    }

    #[tokio::test]
    async fn command_returns_code_document_and_text() {
        let script = r#"echo "{\"ns\":\"$PUNCTUAL__REDIS__NAMESPACE\"}"; echo oops >&2; exit 2"#;
        let output = shell(script, Duration::from_secs(10)).await.unwrap();
        assert_eq!((output.code, &output.json, output.stderr.as_str()), (2, &json!({"ns": "ns"}), "oops\n"));
        assert!(output.ok().unwrap_err().to_string().contains("oops"));
    }

    #[tokio::test]
    async fn command_that_hangs_is_killed_and_shown() {
        let error = shell("echo begun >&2; exec sleep 60", Duration::from_secs(1)).await.unwrap_err();
        assert!(format!("{error:#}").contains("begun"), "{error:#}");
    }

    #[test]
    fn documents_are_one_many_or_none() {
        assert_eq!(documents("{\n\"a\": 1\n}\n"), json!({"a": 1}));
        assert_eq!(documents("{\"a\":1}\n{\"a\":2}\n"), json!([{"a": 1}, {"a": 2}]));
        assert_eq!(documents("a table\n"), Value::Null);
        assert_eq!(documents(""), Value::Null);
    }
}
