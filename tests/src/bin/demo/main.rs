//! `make demo`: a cluster of three nodes on this machine, three stories on the files of demo/input, and the faults that a cluster
//! has to live with; then a verdict.
//!
//! Exits 0 when every job that was accepted came to its right end and every effect outside is right, 1 when not, 130 when it was
//! interrupted. Nothing that it starts outlives it.

mod chaos;
mod cluster;
mod input;
mod screen;
mod service;
mod stories;
mod table;
mod verdict;
mod watch;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use punctual_core::client::Client;
use punctual_core::clock;
use punctual_core::config::Config;
use punctual_tests::{Aof, RedisServer};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use chaos::Chaos;
use cluster::{Cluster, NAMES, NAMESPACE, QUEUES};
use input::Input;
use screen::{Ink, Screen};
use service::Service;
use stories::{Ledger, Teller};
use table::Facts;
use verdict::{Evidence, Verdict};
use watch::Watch;

const INPUT: &str = "demo/input";
const OUTPUT: &str = ".demo";
/// All of it, on a slow machine too.
const PATIENCE: Duration = Duration::from_secs(100);
/// So many problems are printed.
const PROBLEMS_SHOWN: usize = 20;

#[tokio::main]
async fn main() -> ExitCode {
    let screen = Arc::new(Screen::new());
    // The loser is dropped, and with it every process that it started.
    let ended = tokio::select! {
        ended = demo(&screen) => Some(ended),
        () = interrupted() => None,
    };
    screen.clear();
    match ended {
        Some(Ok(problems)) if problems.is_empty() => ExitCode::SUCCESS,
        Some(Ok(problems)) => {
            screen.say(screen.ink(Ink::Red, "\n✘ Not everything is as it should be:"));
            for problem in problems.iter().take(PROBLEMS_SHOWN) {
                screen.say(format!("  · {problem}"));
            }
            if problems.len() > PROBLEMS_SHOWN {
                screen.say(format!("  · and {} more", problems.len() - PROBLEMS_SHOWN));
            }
            screen.say(format!("  The nodes' logs are in {OUTPUT}/."));
            ExitCode::FAILURE
        }
        Some(Err(error)) => {
            screen.say(screen.ink(Ink::Red, format!("\n✘ the demo failed: {error:#}")));
            screen.say(format!("  The nodes' logs are in {OUTPUT}/."));
            ExitCode::FAILURE
        }
        None => {
            screen.say("\nInterrupted; everything that was started has been ended.");
            ExitCode::from(130)
        }
    }
}

async fn interrupted() {
    let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let [Ok(mut int), Ok(mut term), Ok(mut hup)] = signals else { return std::future::pending().await };
    tokio::select! {
        _ = int.recv() => {}
        _ = term.recv() => {}
        _ = hup.recv() => {}
    }
}

async fn demo(screen: &Arc<Screen>) -> Result<Vec<String>> {
    let input = Input::read(Path::new(INPUT))?;
    let script = std::path::absolute(Path::new(INPUT).join("report.sh"))?;
    let orders_csv = std::path::absolute(Path::new(INPUT).join("orders.csv"))?;
    let (dir, _lock) = output()?;
    introduce(screen, &input);

    let started_ms = clock::local_ms();
    let redis = RedisServer::options().aof(Aof::Everysec).start().await?;
    let service = Service::open(stories::articles(&input)).await?;
    let files = NAMES.map(|name| (name, cluster::log_file(&dir, name))).to_vec();
    let watch = Watch::start(Arc::clone(screen), started_ms, files);
    let mut cluster = Cluster::new(&dir, &redis.url(), &service.url(), &script.display().to_string());
    for name in NAMES {
        cluster.start(name)?;
    }
    for name in NAMES {
        let up = |line: &watch::Line| line.message() == "node started" && line.text("node_id").starts_with(name);
        watch.wait(0, &format!("{name} to start"), Duration::from_secs(20), up).await?;
    }

    let mut config = Config::for_redis(&redis.url()).map_err(|errors| anyhow::anyhow!("{errors}"))?;
    NAMESPACE.clone_into(&mut config.redis.namespace);
    let client = Client::connect(&config).await.context("failed to connect as a client")?;
    let store = client.store().another();
    let ledger = RefCell::new(Ledger::default());
    let raged = Cell::new(false);
    let teller =
        Teller { client: &client, service: &service, input: &input, script: &script, orders_csv: &orders_csv, ledger: &ledger };
    let chaos = Chaos { cluster: &mut cluster, store: &store, watch: &watch };
    let progress = Progress { screen, redis: &redis, watch: &watch, ledger: &ledger, raged: &raged };
    let rage = async {
        let hits = chaos.rage().await;
        raged.set(true);
        hits
    };
    let ((), hits, ()) = tokio::try_join!(teller.tell(), rage, progress.follow())?;

    watch.announce("all jobs are through; the nodes are asked to stop, the holder first");
    let mut verdict = Verdict::default();
    let handover_ms = stop(&cluster, &watch, &mut verdict).await?;
    watch.look();
    screen.clear();

    let ledger = ledger.into_inner();
    let mut views = BTreeMap::new();
    for job in &ledger.accepted {
        if let Some(view) = store.show(&job.id, Some(&job.queue)).await? {
            views.insert(job.id.clone(), view);
        }
    }
    let books = service.books();
    let evidence =
        Evidence { accepted: &ledger.accepted, input: &input, books: &books, views: &views, hits: &hits, watch: &watch };
    let stop_problems = std::mem::take(&mut verdict.problems);
    verdict = evidence.judge();
    verdict.problems.extend(stop_problems);
    table::print(screen, &verdict, &Facts { hits: &hits, watch: &watch, recognised: ledger.recognised, handover_ms });
    if verdict.problems.is_empty() {
        let jobs = ledger.accepted.len();
        let took = clock::local_ms().saturating_sub(started_ms) / 1000;
        screen.say(screen.ink(
            Ink::Green,
            format!("\n✔ All {jobs} accepted jobs came to their right end, and the shop, the site and the reports are as they should be ({took} s)."),
        ));
        screen.say(format!("  The nodes' logs are in {OUTPUT}/: one JSON object a line, from each node's every life."));
    }
    Ok(verdict.problems)
}

fn introduce(screen: &Screen, input: &Input) {
    let orders = input.orders.values().map(Vec::len).sum::<usize>();
    screen.say(screen.ink(Ink::Bold, "\npunctual: three nodes, one Redis, one month in half a minute"));
    screen.say(format!(
        "
Every second is a day. {orders} orders come in; those not paid by the time their delay is over are to be closed, the paid ones
left alone. {} articles are to appear at their instants, on a site that is busy at times, so some are tried again with growing
waits; one article meets a busy site every time and one was withdrawn, and these two must end as dead, with the reason. {}
reports are made by an external program. Meanwhile kill -9 hits the node that holds the lease, then another node, and the third
is frozen for longer than it may be silent. What follows are the lines about this from the nodes' own logs, then a verdict, taken
from the books of the shop and the site as well as from punctual itself. It takes about a minute.
",
        input.articles.len(),
        input.reports.len()
    ));
    debug_assert!(input.jobs() >= 1000, "the demo promises a thousand jobs");
}

/// The directory for what may be looked at afterwards, without the logs of the last time. It is this demo's alone while the file is
/// open: two of them would write into the same logs.
fn output() -> Result<(PathBuf, File)> {
    let dir = PathBuf::from(OUTPUT);
    std::fs::create_dir_all(&dir).with_context(|| format!("failed to make {OUTPUT}"))?;
    std::fs::write(dir.join(".gitignore"), "*\n")?;
    let lock = File::options().create(true).truncate(false).write(true).open(dir.join("lock"))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => bail!("another demo runs in this directory; wait for its end"),
        Err(TryLockError::Error(error)) => return Err(error).context("failed to lock .demo/lock"),
    }
    for name in NAMES {
        let file = cluster::log_file(&dir, name);
        if file.exists() {
            std::fs::remove_file(file)?;
        }
    }
    Ok((dir, lock))
}

/// Stops the holder, then the others; what is not as it should be goes into the verdict.
async fn stop(cluster: &Cluster, watch: &Watch, verdict: &mut Verdict) -> Result<u64> {
    for name in cluster.lost() {
        verdict.problem(format!("{name} has ended by itself"));
    }
    let (holder_id, _) = watch.holder().context("nobody holds the lease at the end")?;
    let holder =
        NAMES.into_iter().find(|name| watch.id(name).as_ref() == Some(&holder_id)).context("the holder is one of the nodes")?;
    let mark = watch.mark();
    let asked_ms = clock::local_ms();
    let mut codes = vec![(holder, cluster.stop(holder).await?)];
    let next = |line: &watch::Line| line.message() == "lease acquired" && line.text("node_id") != holder_id;
    let next = watch.wait(mark, "the next holder after a release", Duration::from_secs(5), next).await?;
    for name in NAMES.into_iter().filter(|name| *name != holder) {
        codes.push((name, cluster.stop(name).await?));
    }
    for (name, code) in codes {
        if code != Some(0) {
            verdict.problem(format!("{name} ended with {code:?} instead of 0 when it was asked to stop"));
        }
    }
    Ok(next.at_ms.saturating_sub(asked_ms))
}

/// Follows the jobs to their end.
struct Progress<'a> {
    screen: &'a Screen,
    redis: &'a RedisServer,
    watch: &'a Watch,
    ledger: &'a RefCell<Ledger>,
    raged: &'a Cell<bool>,
}

impl Progress<'_> {
    async fn follow(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut conn = self.redis.conn().await?;
        let sets = ["succeeded", "dead", "retrying", "scheduled"];
        loop {
            let mut pipeline = redis::pipe();
            for (set, queue) in sets.iter().flat_map(|set| QUEUES.iter().map(move |queue| (set, queue))) {
                pipeline.cmd("ZCARD").arg(format!("{{{NAMESPACE}:{queue}}}:{set}"));
            }
            let counts: Vec<usize> = pipeline.query_async(&mut conn).await?;
            let [succeeded, dead, retrying, scheduled] =
                [0, 1, 2, 3].map(|set| counts[set * 3..set * 3 + 3].iter().sum::<usize>());
            let (accepted, complete) = {
                let ledger = self.ledger.borrow();
                (ledger.accepted.len(), ledger.complete)
            };
            let holder = self.watch.holder().map_or("nobody".to_owned(), |(id, _)| id);
            let message = format!("{scheduled} scheduled, {retrying} retrying, {dead} dead · lease: {holder}");
            self.screen.progress(succeeded + dead, accepted, &message);
            if complete && self.raged.get() && succeeded + dead >= accepted {
                ensure!(succeeded + dead == accepted, "more jobs ended than were accepted");
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("after {PATIENCE:?} only {} of {accepted} jobs are through; {message}", succeeded + dead);
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}
