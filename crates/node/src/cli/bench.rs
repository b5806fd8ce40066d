//! `punctual bench`: built-in load against the configured Redis.
//!
//! Nodes are processes of their own, so that what Redis and the nodes spend is told apart from what the load spends. Every
//! measurement has a namespace of its own below one random name, and all of them are removed at the end, also after Ctrl-C.
//! What Redis counts, it counts for the whole server: other clients on it are part of those numbers, and a note says so.
//! Absent: any change outside the namespace, and any comparison with a number that ought to be reached.

mod drain;
mod enqueue;
mod failover;
mod groups;
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

use self::groups::{names, one_group, wanted};
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

Uses a namespace of its own and removes it, also after Ctrl-C. Other clients of the same Redis are part of what Redis counts:
for honest numbers nothing else should run.";

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
