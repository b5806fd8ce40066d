//! `process.exec`: runs a program of `handlers.exec.allow` and judges by its exit code.
//!
//! The arguments are words that reach the program as they are; there is no shell between, so nothing in them is
//! code. Ends as [`crate::process`] says: 0 done, 65 dead, everything else retried. Besides `env` the program finds
//! `PATH`, `LANG`, `PUNCTUAL_JOB_ID`, `PUNCTUAL_ATTEMPT`, `PUNCTUAL_CLAIM` and `PUNCTUAL_DUE_AT`, and nothing of the
//! node's own environment, where its passwords are.

use std::collections::BTreeMap;
use std::path::PathBuf;

use punctual_core::handler::{JobArgs, JobContext, Outcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::process::{self, Program};

/// The program to run.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessExec {
    /// The program's absolute path, which `handlers.exec.allow` must list, and its arguments.
    #[schemars(length(min = 1))]
    pub argv: Vec<String>,
    /// More variables; none that begins with `PUNCTUAL_`, `LD_` or `DYLD_`, or that makes a shell run other code.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The absolute directory in which it runs; the node's own by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathBuf>,
    /// What it reads from its standard input; nothing by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
}

impl JobArgs for ProcessExec {
    const HANDLER: &'static str = "process.exec";
}

/// Runs the program; the result is `{"exit":0,"stdout":"…","stderr":"…"}` with the last 4 KiB of each.
pub async fn process_exec(args: ProcessExec, job: JobContext) -> Outcome {
    let ProcessExec { argv, env, cwd, stdin } = args;
    process::run(Program { argv, env, cwd, stdin }, &job).await
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{error_of, job_with, result_of, running};

    async fn exec(args: Value, allow: &[&str]) -> Outcome {
        process_exec(serde_json::from_value(args).unwrap(), running(allow)).await
    }

    async fn sh(script: &str) -> Outcome {
        exec(json!({ "argv": ["/bin/sh", "-c", script] }), &["/bin/sh"]).await
    }

    /// Whether a process runs with this in its words, each of which ends with a zero byte. Zombies have none.
    fn alive(marker: &str) -> bool {
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
        processes
            .filter_map(|path| std::fs::read(path.join("cmdline")).ok())
            .any(|line| String::from_utf8_lossy(&line).contains(marker))
    }

    /// How long the children sleep: ten minutes and a fraction that tells them from those of other tests and runs.
    fn seconds(test: u32) -> String {
        format!("600.{test}{:07}", std::process::id())
    }

    async fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let started = Instant::now();
        while !holds() {
            assert!(started.elapsed() < Duration::from_secs(10), "{what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn words_reach_the_program_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let words = [
            "; touch x",
            "$(touch x)",
            "`touch x`",
            "a\nb",
            "-n",
            "--help",
            "| cat",
            "*",
            "",
            "\"'\\",
            "&& touch x",
            "> x",
            "$HOME",
            "界",
        ];
        let mut argv = vec!["/bin/sh", "-c", r#"for word in "$@"; do printf '<%s>' "$word"; done"#, "sh"];
        argv.extend(words);
        let outcome = exec(json!({ "argv": argv, "cwd": dir.path() }), &["/bin/sh"]).await;
        let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
        assert_eq!(result_of(&outcome)["stdout"], expected);
        let echoed = exec(json!({ "argv": ["/bin/echo", "$(touch x)", "; touch x"], "cwd": dir.path() }), &["/bin/echo"]).await;
        assert_eq!(result_of(&echoed)["stdout"], "$(touch x) ; touch x");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn only_listed_programs_run() {
        for (program, allow) in [
            ("/bin/sh", &[][..]),
            ("/bin/sh", &["/bin/echo"]),
            ("sh", &["/bin/sh"]),
            ("/bin/../bin/sh", &["/bin/sh", "/bin/*"]),
            ("/bin/./sh", &["/bin/sh"]),
            ("//bin/sh", &["/bin/sh"]),
            ("/bin/sh;/bin/echo", &["/bin/sh"]),
            ("/bin/sh -c true", &["/bin/sh"]),
        ] {
            let outcome = exec(json!({ "argv": [program, "-c", "true"] }), allow).await;
            assert!(
                matches!(&outcome, Outcome::Dead(reason) if reason.contains("handlers.exec.allow")),
                "{program}: {outcome:?}"
            );
        }
        assert!(matches!(exec(json!({ "argv": [] }), &["/bin/*"]).await, Outcome::Dead(_)));
        assert!(matches!(exec(json!({ "argv": ["/bin/sh", "-c", "true"] }), &["/bin/s*"]).await, Outcome::Done(_)));
    }

    #[tokio::test]
    async fn the_environment_is_clean() {
        let env = json!({ "argv": ["/usr/bin/env"], "env": {"REPORT": "daily; x", "PATH": "/bin"} });
        let outcome = exec(env, &["/usr/bin/env"]).await;
        let result = result_of(&outcome);
        let mut lines: Vec<&str> = result["stdout"].as_str().unwrap().lines().collect();
        lines.sort_unstable();
        let expected = [
            "LANG=C.UTF-8",
            "PATH=/bin",
            "PUNCTUAL_ATTEMPT=1",
            "PUNCTUAL_CLAIM=42",
            "PUNCTUAL_DUE_AT=2026-03-29T01:00:00.000Z",
            "PUNCTUAL_JOB_ID=job-1",
            "REPORT=daily; x",
        ];
        assert_eq!(lines, expected);
        for name in [
            "PUNCTUAL_CLAIM",
            "PUNCTUAL_X",
            "LD_PRELOAD",
            "DYLD_INSERT_LIBRARIES",
            "BASH_ENV",
            "ENV",
            "IFS",
            "",
            "1A",
            "A=B",
            "A B",
            "A\0B",
            "É",
        ] {
            let outcome = exec(json!({ "argv": ["/usr/bin/env"], "env": {name: "x"} }), &["/usr/bin/env"]).await;
            assert!(matches!(outcome, Outcome::Dead(_)), "{name:?}");
        }
    }

    #[tokio::test]
    async fn exit_codes_decide() {
        assert_eq!(result_of(&sh("echo out; echo err >&2").await), json!({ "exit": 0, "stdout": "out", "stderr": "err" }));
        assert_eq!(sh("echo bad row >&2; exit 65").await, Outcome::dead("exit 65: bad row"));
        assert_eq!(sh("echo later >&2; exit 75").await, Outcome::retry("exit 75: later"));
        assert_eq!(sh("echo half; exit 1").await, Outcome::retry("exit 1: half"));
        assert_eq!(sh("echo half; echo why >&2; exit 1").await, Outcome::retry("exit 1: why\nstdout: half"));
        assert_eq!(sh("exit 255").await, Outcome::retry("exit 255"));
        assert_eq!(sh("kill -9 $$").await, Outcome::retry("SIGKILL"));
        assert_eq!(sh("echo x; kill -TERM $$").await, Outcome::retry("SIGTERM: x"));
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_retried_and_one_that_cannot_be_is_dead() {
        let missing = exec(json!({ "argv": ["/opt/none/job"] }), &["/opt/*/job"]).await;
        assert!(matches!(&missing, Outcome::Retry(text) if text.contains("/opt/none/job")), "{missing:?}");
        let zero = exec(json!({ "argv": ["/bin/echo", "a\0b"] }), &["/bin/echo"]).await;
        assert!(matches!(zero, Outcome::Dead(_)), "{zero:?}");
        let relative = exec(json!({ "argv": ["/bin/echo"], "cwd": "tmp" }), &["/bin/echo"]).await;
        assert!(matches!(relative, Outcome::Dead(_)), "{relative:?}");
    }

    #[tokio::test]
    async fn output_of_any_size_and_kind_is_kept_as_text() {
        let binary = sh(r"printf 'caf\351 \377\376' >&2; exit 75").await;
        assert_eq!(binary, Outcome::retry("exit 75: caf\u{fffd} \u{fffd}\u{fffd}"));
        let large = sh("head -c 50000000 /dev/zero | tr '\\0' x; head -c 50000000 /dev/zero | tr '\\0' y >&2; echo end; echo END >&2; exit 1").await;
        let text = error_of(&large);
        assert!(
            text.len() <= 8192 && text.starts_with("exit 1: …y") && text.contains("yEND\nstdout: …x") && text.ends_with("xend"),
            "{}",
            text.len()
        );
    }

    #[tokio::test]
    async fn standard_input_is_what_the_job_says() {
        let cat = |input: Value| exec(json!({ "argv": ["/bin/cat"], "stdin": input }), &["/bin/cat"]);
        assert_eq!(result_of(&cat(json!("a\nb")).await)["stdout"], "a\nb");
        assert_eq!(result_of(&cat(Value::Null).await)["stdout"], "");
        let unread = exec(json!({ "argv": ["/bin/true"], "stdin": "x".repeat(1 << 20) }), &["/bin/true"]).await;
        assert_eq!(result_of(&unread)["exit"], 0);
    }

    #[tokio::test]
    async fn nothing_that_was_left_in_the_background_outlives_the_job() {
        let long = seconds(1);
        let started = Instant::now();
        assert_eq!(result_of(&sh(&format!("sleep {long} & echo done")).await)["stdout"], "done");
        assert!(started.elapsed() < Duration::from_secs(5));
        until("the background child is killed", || !alive(&long)).await;
    }

    #[tokio::test]
    async fn an_output_that_a_stranger_keeps_open_does_not_hold_the_job() {
        let started = Instant::now();
        // A session of its own is out of reach; it must not keep the slot.
        assert_eq!(result_of(&sh("setsid sleep 12.102 & sleep 0.2; echo done").await)["stdout"], "done");
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn cancelling_ends_the_whole_group() {
        let long = seconds(3);
        let (job, cancel) = job_with(&[], &["/bin/sh"], 1);
        let args = json!({ "argv": ["/bin/sh", "-c", format!("sleep {long} & sleep {long}")] });
        let run = tokio::spawn(process_exec(serde_json::from_value(args).unwrap(), job));
        until("the children run", || alive(&format!("\0{long}\0"))).await;
        let started = Instant::now();
        cancel.cancel();
        assert_eq!(run.await.unwrap(), Outcome::retry("cancelled: SIGTERM"));
        assert!(started.elapsed() < Duration::from_secs(3));
        until("nobody is left", || !alive(&long)).await;
    }

    #[tokio::test]
    async fn a_group_that_ignores_the_first_signal_gets_the_second() {
        let long = seconds(4);
        let (job, cancel) = job_with(&[], &["/bin/sh"], 1);
        let args = json!({ "argv": ["/bin/sh", "-c", format!("trap '' TERM; echo ready; sleep {long} & sleep {long}; true")] });
        let run = tokio::spawn(process_exec(serde_json::from_value(args).unwrap(), job));
        until("the children run", || alive(&format!("\0{long}\0"))).await;
        let started = Instant::now();
        cancel.cancel();
        assert_eq!(run.await.unwrap(), Outcome::retry("cancelled: SIGKILL: ready"));
        assert!(started.elapsed() >= Duration::from_secs(2) && started.elapsed() < Duration::from_secs(5));
        until("nobody is left", || !alive(&long)).await;
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn children_get_the_grace_that_their_shell_does_not_need() {
        let dir = tempfile::tempdir().unwrap();
        let (job, cancel) = job_with(&[], &["/bin/sh"], 1);
        // Elsewhere the system's first process decides how soon a dead orphan is gone.
        nix::sys::prctl::set_child_subreaper(true).unwrap();
        let child = "trap 'sleep 0.5; echo clean > clean; exit' TERM; touch ready; while :; do sleep 0.05; done";
        let args = json!({ "argv": ["/bin/sh", "-c", "/bin/sh -c \"$1\" & wait", "sh", child], "cwd": dir.path() });
        let run = tokio::spawn(process_exec(serde_json::from_value(args).unwrap(), job));
        until("the child is ready", || dir.path().join("ready").exists()).await;
        let started = Instant::now();
        cancel.cancel();
        assert!(matches!(run.await.unwrap(), Outcome::Retry(_)));
        assert!(dir.path().join("clean").exists());
        assert!(started.elapsed() < Duration::from_millis(1900), "it goes on as soon as nobody is left");
    }

    /// In a container the node is often the first process, which inherits orphans; a test can only adopt them.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn orphans_that_the_node_inherits_leave_no_zombie() {
        let long = seconds(6);
        nix::sys::prctl::set_child_subreaper(true).unwrap();
        // A name of their own tells these zombies from those of other tests.
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/bin/sleep", dir.path().join("orphan")).unwrap();
        let ours = format!("(orphan) Z {} ", std::process::id());
        let zombie = || {
            let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
            processes.filter_map(|path| std::fs::read_to_string(path.join("stat")).ok()).any(|stat| stat.contains(&ours))
        };
        let script = |end: &str| json!({ "argv": ["/bin/sh", "-c", format!("./orphan {long} & ./orphan {long} {end}")], "cwd": dir.path() });
        assert_eq!(result_of(&exec(script("& echo done"), &["/bin/sh"]).await)["stdout"], "done");
        assert!(tokio::time::timeout(Duration::from_millis(300), exec(script("; true"), &["/bin/sh"])).await.is_err());
        until("nobody is left", || !alive(&long) && !zombie()).await;
    }

    #[tokio::test]
    async fn dropping_the_attempt_kills_the_whole_group() {
        let long = seconds(5);
        let script = format!("trap '' TERM; sleep {long} & sleep {long}; true");
        assert!(tokio::time::timeout(Duration::from_millis(300), sh(&script)).await.is_err());
        until("nobody is left", || !alive(&long)).await;
    }
}
