//! `punctual bench`: built-in load against the configured Redis.
//!
//! Nodes are processes of their own, so that what Redis and the nodes spend is told apart from what the load spends. Every
//! measurement has a namespace of its own below one random name, and all of them are removed at the end, also after Ctrl-C.
//! What Redis counts, it counts for the whole server: other clients on it are part of those numbers, and a note says so.
//! Absent: any change outside the namespace, and any comparison with a number that ought to be reached.

mod drain;
mod enqueue;
mod failover;
mod idle;
mod measurement;
mod node;
mod place;
mod server;
mod timing;

use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use self::measurement::{Measurement, Skip, table};
use self::place::Bench;
use super::failure::Failure;
use super::output::note;
use super::session::Session;

const EXAMPLE: &str = "\
Examples:
  punctual bench
  punctual bench --jobs 200000 --only drain_kept drain_discarded
  punctual bench --seconds 20 --only start_latency_ms lateness_ms -o json

Takes under two minutes. Uses a namespace of its own and removes it, also after Ctrl-C. Other clients of the same Redis are
part of what Redis counts: for honest numbers nothing else should run.";

/// Measures this cluster's Redis and this machine with built-in load.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Jobs of a drain; the other measurements take a part of them.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    jobs: u32,

    /// Bytes of each job's arguments.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    payload: usize,

    /// Jobs that a node runs at the same time; node.concurrency by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    concurrency: Option<u32>,

    /// Only these measurements.
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = names())]
    only: Vec<String>,

    /// How long jobs come in at 200 a second for start_latency_ms; the due times of lateness_ms spread over twice as long.
    #[arg(long, value_name = "S", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
}

/// Measurements that are taken together, by their names.
const GROUPS: &[&[&str]] = &[
    &["enqueue_one"],
    &["enqueue_many"],
    &["enqueue_bulk"],
    &["drain_kept", "rss_mib_backlog"],
    &["drain_discarded", "bytes_finished"],
    &["bytes_pending"],
    &["bytes_scheduled"],
    &["start_latency_ms"],
    &["lateness_ms"],
    &["burst_promoted"],
    &["idle_commands_per_s", "idle_commands_per_s_holder", "rss_mib"],
    &["recovery_s", "takeover_s"],
    &["takeover_graceful_s"],
];

fn names() -> clap::builder::PossibleValuesParser {
    GROUPS.concat().into()
}

/// The document of the command.
#[derive(Serialize)]
struct Document {
    measurements: Vec<Measurement>,
    settings: Settings,
    redis: String,
}

#[derive(Serialize)]
struct Settings {
    jobs: u32,
    payload: usize,
    concurrency: u32,
    seconds: u32,
}

pub(super) async fn run(session: &Session, args: &Args) -> Result<(), Failure> {
    let cluster = session.connect().await?;
    let server = cluster.store().server().await.map_err(cluster.failed("ask the server"))?;
    let wrong = |error: std::io::Error| Failure::failed(format!("listen for signals: {error}"));
    let mut int = signal(SignalKind::interrupt()).map_err(wrong)?;
    let mut term = signal(SignalKind::terminate()).map_err(wrong)?;
    let bench = Bench::new(session, &cluster, args)?;
    if let Some(others) = bench.other_clients().await {
        note(format!("{others} other clients use this Redis: what Redis counts holds their work as well"));
    }
    let taken = RefCell::new(Vec::new());
    let interrupted = tokio::select! {
        () = measure(&bench, args, &taken) => false,
        _ = int.recv() => true,
        _ = term.recv() => true,
    };
    bench.bar.finish_and_clear();
    // The nodes were killed with the future that held them; what they had sent last may still arrive.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let removed = bench.remove_all().await;
    let document = Document {
        measurements: taken.into_inner(),
        settings: Settings { jobs: args.jobs, payload: args.payload, concurrency: bench.concurrency, seconds: args.seconds },
        redis: format!("{} {}", server.product, server.version),
    };
    session.out.show(&document, |out| table(out, &document.measurements))?;
    if let Err(Skip(reason)) = removed {
        return Err(Failure::failed(format!("the keys that begin with {{{}- are not removed: {reason}", bench.root)));
    }
    if interrupted {
        return Err(Failure::failed("interrupted; the namespace of the bench is removed"));
    }
    let nothing = document.measurements.iter().all(|one| one.value.is_none());
    if nothing { Err(Failure::failed("nothing could be measured")) } else { Ok(()) }
}

/// A bar over the groups on a terminal, nothing elsewhere.
fn bar(groups: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(groups as u64);
    bar.enable_steady_tick(Duration::from_millis(200));
    match ProgressStyle::with_template("{bar:20} {pos}/{len} {msg} ({elapsed})") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn wanted<'a>(args: &'a Args) -> impl Iterator<Item = &'static [&'static str]> + 'a {
    let asked = |name: &&str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    GROUPS.iter().copied().filter(move |group| group.iter().any(asked))
}

async fn measure(bench: &Bench, args: &Args, taken: &RefCell<Vec<Measurement>>) {
    for group in wanted(args) {
        bench.bar.set_message(group[0]);
        let measured = match Box::pin(one_group(bench, group[0])).await {
            Ok(measured) => measured,
            Err(Skip(reason)) => group.iter().map(|name| Measurement::skipped(name, &reason)).collect(),
        };
        let asked = |one: &Measurement| args.only.is_empty() || args.only.iter().any(|only| only == one.name);
        taken.borrow_mut().extend(measured.into_iter().filter(asked));
        bench.bar.inc(1);
    }
}

async fn one_group(bench: &Bench, first: &str) -> Result<Vec<Measurement>, Skip> {
    let place = bench.place()?;
    let measured = match first {
        "enqueue_one" => enqueue::one(bench, &place).await,
        "enqueue_many" => enqueue::many(bench, &place).await,
        "enqueue_bulk" => enqueue::bulk(bench, &place).await,
        "drain_kept" => drain::kept(bench, &place).await,
        "drain_discarded" => drain::discarded(bench, &place).await,
        "bytes_pending" => enqueue::bytes_pending(bench, &place).await,
        "bytes_scheduled" => enqueue::bytes_scheduled(bench, &place).await,
        "start_latency_ms" => timing::start_latency(bench, &place).await,
        "lateness_ms" => timing::lateness(bench, &place).await,
        "burst_promoted" => timing::burst(bench, &place).await,
        "idle_commands_per_s" => idle::commands(bench, &place).await,
        "recovery_s" => failover::killed(bench, &place).await,
        _ => failover::graceful(bench, &place).await,
    };
    // Removed at once, so that the next measurement finds the memory of Redis as this one did.
    place.remove().await?;
    measured
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_names_of_the_contract_are_measured_once_each() {
        let names = GROUPS.concat();
        let contract = "enqueue_one enqueue_many enqueue_bulk drain_kept drain_discarded start_latency_ms lateness_ms \
                        bytes_pending bytes_scheduled bytes_finished idle_commands_per_s burst_promoted recovery_s";
        assert!(contract.split_whitespace().all(|name| names.contains(&name)));
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn only_takes_the_groups_that_hold_a_name() {
        let args =
            Args { jobs: 1000, payload: 100, concurrency: None, only: vec!["bytes_finished".to_owned()], seconds: 1 };
        assert_eq!(wanted(&args).map(|group| group[0]).collect::<Vec<_>>(), ["drain_discarded"]);
        let all = Args { only: Vec::new(), ..args };
        assert_eq!(wanted(&all).count(), GROUPS.len());
    }
}
