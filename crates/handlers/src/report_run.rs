//! `report.run`: makes a report with an external command, as `process.exec` runs one.
//!
//! The command finds the report's name and day as `REPORT_NAME` and `REPORT_DAY`; the end of what it prints is kept
//! as the result. A day that does not exist is dead, as is exit code 65. Absent on purpose: knowledge of any report.

use std::collections::BTreeMap;

use punctual_core::handler::{JobArgs, JobContext, Outcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::process::{self, Program};

/// The report to make.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunReport {
    /// Its name.
    pub report: String,
    /// The day that it is about, `YYYY-MM-DD`.
    pub day: String,
    /// The program's absolute path, which `handlers.exec.allow` must list, and its arguments.
    #[schemars(length(min = 1))]
    pub command: Vec<String>,
}

impl JobArgs for RunReport {
    const HANDLER: &'static str = "report.run";
}

/// Runs the command; the result is that of `process.exec`.
pub async fn run_report(args: RunReport, job: JobContext) -> Outcome {
    let RunReport { report, day, command } = args;
    if day.len() != "2026-11-01".len() || day.parse::<jiff::civil::Date>().is_err() {
        return Outcome::dead(format!("day {day:?} is not a day such as 2026-11-01"));
    }
    let env = BTreeMap::from([("REPORT_NAME".to_owned(), report), ("REPORT_DAY".to_owned(), day)]);
    process::run(Program { argv: command, env, cwd: None, stdin: None }, &job).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error_of, result_of, running};

    const INPUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/input");

    async fn report(report: &str, day: &str, command: &[&str]) -> Outcome {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        run_report(RunReport { report: report.to_owned(), day: day.to_owned(), command }, running(&["/bin/sh"])).await
    }

    async fn demo(name: &str, day: &str, lines: &str) -> Outcome {
        report(name, day, &["/bin/sh", &format!("{INPUT}/report.sh"), &format!("{INPUT}/orders.csv"), lines]).await
    }

    #[tokio::test]
    async fn the_demos_report_adds_up() {
        let result = result_of(&demo("daily-total", "2026-11-03", "2").await);
        let lines: Vec<&str> = result["stdout"].as_str().unwrap().lines().collect();
        assert_eq!(lines[0], "daily-total 2026-11-03: 24 orders, 5867.70");
        let sums = lines[1..].iter().map(|line| line.split_whitespace().nth(1).unwrap().replace('.', "").parse::<u64>().unwrap());
        assert_eq!((lines.len(), sums.sum::<u64>()), (3, 586_770));
    }

    #[tokio::test]
    async fn the_command_finds_name_and_day() {
        let echo = report("a; b", "2026-11-03", &["/bin/sh", "-c", r#"echo "$REPORT_NAME $REPORT_DAY $PUNCTUAL_JOB_ID""#]).await;
        assert_eq!(result_of(&echo)["stdout"], "a; b 2026-11-03 job-1");
    }

    #[tokio::test]
    async fn what_no_retry_mends_is_dead() {
        let unknown = demo("tea-leaves", "2026-11-03", "2").await;
        assert_eq!(unknown, Outcome::dead("exit 65: unknown report: tea-leaves"));
        for day in ["2026-02-30", "yesterday", "2026-11-3", "2026-11-03; x", "", "20261103", "2026-11-03T00:00:00Z"] {
            assert!(matches!(demo("daily-total", day, "2").await, Outcome::Dead(_)), "{day}");
        }
        let unlisted = report("daily-total", "2026-11-03", &["/usr/bin/env"]).await;
        assert!(matches!(&unlisted, Outcome::Dead(reason) if reason.contains("handlers.exec.allow")), "{unlisted:?}");
    }

    #[tokio::test]
    async fn a_report_whose_input_is_not_there_yet_is_retried() {
        let missing = report("daily-total", "2026-11-03", &["/bin/sh", &format!("{INPUT}/report.sh"), "/none/orders.csv"]).await;
        assert!(
            matches!(missing, Outcome::Retry(_)) && error_of(&missing).starts_with("exit 75: cannot read /none"),
            "{missing:?}"
        );
    }
}
