//! `punctual doctor`: what is wrong with a cluster, in words, with what to do about each; `--repair` mends what can be mended.
//!
//! Looking changes nothing. Where the user may not ask the server something, the check says so and passes: managed servers
//! forbid much, and a check that cannot be made is no finding.

mod cluster;
mod damage;
mod server;

use serde::Serialize;

use super::failure::Failure;
use super::output::{Output, clean};
use super::session::{Cluster, Session};

const EXAMPLE: &str = "\
Examples:
  punctual doctor
  punctual doctor --repair -o json

Exit code 1 when anything is wrong.";

/// Looks for what is wrong with Redis, the nodes and the stored jobs.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Mends damaged records (from evictions, deletions by hand, older dumps), then looks again.
    #[arg(long)]
    repair: bool,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    name: &'static str,
    ok: bool,
    detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    todo: Option<String>,
}

impl Check {
    fn fine(name: &'static str, detail: impl Into<String>) -> Self {
        Self { name, ok: true, detail: detail.into(), todo: None }
    }

    fn wrong(name: &'static str, detail: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { name, ok: false, detail: detail.into(), todo: Some(todo.into()) }
    }
}

#[derive(Serialize)]
struct Document {
    ok: bool,
    checks: Vec<Check>,
    /// Entries that `--repair` mended.
    #[serde(skip_serializing_if = "Option::is_none")]
    repaired: Option<u64>,
}

pub(super) async fn run(session: &Session, args: &Args) -> Result<(), Failure> {
    let cluster = session.prepare()?;
    let (mut checks, reached) = server::look(&cluster).await;
    let mut repaired = None;
    if reached {
        let outcome = look_inside(&cluster, args.repair, &mut repaired).await;
        match outcome {
            Ok(more) => checks.extend(more),
            // What was seen before the connection broke is worth printing.
            Err(failure) => checks.push(Check::wrong("inside", failure.lines().join("; "), "look again when Redis answers")),
        }
    }
    let document = Document { ok: checks.iter().all(|check| check.ok), checks, repaired };
    session.out.show(&document, |out| text(out, &document))?;
    if document.ok { Ok(()) } else { Err(Failure::told()) }
}

async fn look_inside(cluster: &Cluster, repair: bool, repaired: &mut Option<u64>) -> Result<Vec<Check>, Failure> {
    let mut found = damage::look(cluster).await?;
    if repair {
        *repaired = Some(damage::mend(cluster, &found).await?);
        found = damage::look(cluster).await?;
    }
    let mut checks = cluster::look(cluster).await?;
    checks.extend(damage::checks(&found));
    Ok(checks)
}

fn text(out: Output, document: &Document) -> String {
    let row = |check: &Check| vec![check.name.to_owned(), if check.ok { "ok" } else { "wrong" }.to_owned(), check.detail.clone()];
    let mut text = out.table(&["check", "result", "detail"], &document.checks.iter().map(row).collect::<Vec<_>>());
    if let Some(repaired) = document.repaired {
        text.push_str(&format!("\n{repaired} entries repaired\n"));
    }
    for check in &document.checks {
        if let Some(todo) = &check.todo {
            text.push_str(&format!("\n{}: {}", check.name, clean(todo)));
        }
    }
    text
}
