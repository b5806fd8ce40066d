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
