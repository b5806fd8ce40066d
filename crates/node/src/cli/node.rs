//! `punctual node`: runs one node of the cluster in the foreground until it is told to stop.

use std::process::ExitCode;

use super::failure::Failure;
use super::session::Session;

const EXAMPLE: &str = "\
Examples:
  punctual node
  PUNCTUAL__NODE__CONCURRENCY=16 punctual node --config /etc/punctual/punctual.toml

The first SIGTERM or Ctrl-C drains: running jobs get node.drain_timeout. The second one stops them at once.";

/// Runs one node of the cluster in the foreground.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {}

pub(super) fn run(session: &Session, _args: &Args) -> Result<ExitCode, Failure> {
    Ok(crate::run::node(session.load()?, session.all_handlers()))
}
