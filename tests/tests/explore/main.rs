//! Explores interleavings of whole nodes on a real Redis: see [`explorer`].
//!
//! `PUNCTUAL_RUNS` sets how many runs each of the four shares makes, `PUNCTUAL_SEED` where the seeds begin. A violation is shortened
//! and printed with the command that shows it again.

mod choices;
mod cluster;
mod explorer;
mod gate;
#[path = "../arrows/picture.rs"]
#[expect(dead_code, reason = "the arrows ask more of it")]
mod picture;
mod planted;
mod witness;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use choices::{Choices, Word};
use explorer::{Report, run};
use gate::Server;
use planted::Planted;
use punctual_tests::{RedisServer, Seed};

/// Runs of one share in an ordinary test.
const RUNS: u64 = 125;
/// Runs after which a planted bug must have been found.
const RUNS_TO_FIND: u64 = 400;
/// How long a violation is shortened.
const SHORTER: Duration = Duration::from_secs(20);

fn runs() -> u64 {
    std::env::var("PUNCTUAL_RUNS").map_or(RUNS, |text| text.parse().expect("PUNCTUAL_RUNS is a whole number"))
}

/// A server of its own, because each step lists all keys.
fn with_server<T>(work: impl FnOnce(&mut Server) -> T) -> T {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let redis = runtime.block_on(RedisServer::start()).expect("a Redis");
    let mut server = Server::connect(redis.port()).expect("a connection");
    work(&mut server)
}

/// Writes zeros into the decisions, ever shorter runs of them, as long as something is still violated.
fn shorten(server: &mut Server, planted: Option<&Planted>, seed: u64, found: Report) -> Report {
    let mut best = found;
    let until = Instant::now() + SHORTER;
    let mut size = best.choices.len() / 2;
    while size >= 1 && Instant::now() < until {
        let mut at = 0;
        while at < best.choices.len() && Instant::now() < until {
            let end = (at + size).min(best.choices.len());
            if best.choices[at..end].iter().any(|one| *one != 0) {
                let mut shorter = best.choices.clone();
                shorter[at..end].fill(0);
                let report = run(server, planted, seed, Choices::replay(shorter));
                if report.violation.is_some() {
                    best = report;
                }
            }
            at += size;
        }
        size /= 2;
    }
    best
}

fn show(seed: u64, report: &Report) -> String {
    let whole = format!("{}/explore-{seed}.log", env!("CARGO_TARGET_TMPDIR"));
    let _ = std::fs::write(&whole, report.log.join("\n"));
    let tail = &report.log[report.log.len().saturating_sub(60)..];
    format!(
        "{}\n\nThe last steps, all of them in {whole}:\n{}\n\nAgain: PUNCTUAL_REPLAY={seed}:{} cargo test -p punctual-tests --test explore replay -- --nocapture",
        report.violation.as_deref().unwrap_or("nothing violated"),
        tail.join("\n"),
        Word(&report.choices),
    )
}

fn explore(share: u64) {
    let first = Seed::from_env_or_random().0.wrapping_add(share * 1_000_000);
    with_server(|server| {
        let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
        for seed in (0..runs()).map(|n| first.wrapping_add(n)) {
            let report = run(server, None, seed, Choices::of_seed(seed));
            for (what, count) in &report.seen {
                *seen.entry(what).or_default() += count;
            }
            if report.violation.is_some() {
                let shown = show(seed, &report);
                let shorter = shorten(server, None, seed, report);
                panic!("seed {seed}: {shown}\n\nShortened: {}", show(seed, &shorter));
            }
        }
        println!("{seen:#?}");
        for what in [
            "pass",
            "reply lost",
            "request lost",
            "crash",
            "stop",
            "freeze",
            "stall",
            "jump",
            "enqueue",
            "cancel",
            "requeue",
            "pause",
        ] {
            assert!(seen.get(what).is_some_and(|count| *count as u64 > runs() / 5), "{what} was rare: {seen:?}");
        }
    });
}

#[test]
fn random_interleavings_lose_nothing_and_let_nothing_stale_in_1() {
    explore(0);
}

#[test]
fn random_interleavings_lose_nothing_and_let_nothing_stale_in_2() {
    explore(1);
}

#[test]
fn random_interleavings_lose_nothing_and_let_nothing_stale_in_3() {
    explore(2);
}

#[test]
fn random_interleavings_lose_nothing_and_let_nothing_stale_in_4() {
    explore(3);
}

#[test]
fn one_seed_gives_one_run_also_from_its_record_and_on_another_server() {
    let first_seed = Seed::from_env_or_random().0;
    with_server(|server| {
        with_server(|other| {
            for seed in (0..8).map(|n| first_seed.wrapping_add(n)) {
                let first = run(server, None, seed, Choices::of_seed(seed));
                let second = run(other, None, seed, Choices::of_seed(seed));
                let parts = first.log.iter().zip(&second.log).find(|(a, b)| a != b);
                assert_eq!(first.hash, second.hash, "seed {seed}: the runs part at {parts:?}");
                let record = choices::parse(&Word(&first.choices).to_string()).expect("a record");
                let third = run(other, None, seed, Choices::replay(record));
                assert_eq!(first.hash, third.hash, "seed {seed}: the record gives another run");
            }
        });
    });
}

/// Tells a run again: `PUNCTUAL_REPLAY=seed:record`, or a seed alone; with `PUNCTUAL_PLANTED`, under that bug.
#[test]
fn replay() {
    let Ok(text) = std::env::var("PUNCTUAL_REPLAY") else { return };
    let (seed, record) = text.split_once(':').map_or((text.as_str(), None), |(seed, record)| (seed, Some(record)));
    let seed: u64 = seed.parse().expect("PUNCTUAL_REPLAY=seed:record");
    let choices = match record {
        Some(record) => Choices::replay(choices::parse(record).expect("a record of an earlier run")),
        None => Choices::of_seed(seed),
    };
    let planted = std::env::var("PUNCTUAL_PLANTED").ok();
    let planted = planted.map(|name| planted::ALL.iter().find(|bug| bug.name.contains(&name)).expect("a planted bug's name"));
    with_server(|server| {
        let report = run(server, planted, seed, choices);
        println!("{}", report.log.join("\n"));
        assert!(report.violation.is_none(), "{}", report.violation.unwrap_or_default());
    });
}

/// Every planted bug is found; prints how soon. `PUNCTUAL_PLANTED` names one.
#[test]
#[ignore = "long: make mutants"]
fn planted_bugs_are_found() {
    let first = Seed::from_env_or_random().0;
    let only = std::env::var("PUNCTUAL_PLANTED").ok();
    let mut missed = Vec::new();
    with_server(|server| {
        for bug in planted::ALL.iter().filter(|bug| only.as_deref().is_none_or(|only| bug.name.contains(only))) {
            let found = (0..RUNS_TO_FIND).find_map(|n| {
                let seed = first.wrapping_add(n);
                let report = run(server, Some(bug), seed, Choices::of_seed(seed));
                // What is violated without the bug is another one.
                let mut clean = || run(server, None, seed, Choices::of_seed(seed)).violation.is_none();
                report.violation.filter(|_| clean()).map(|violation| (n + 1, violation))
            });
            match found {
                Some((runs, violation)) => {
                    println!("{:<50} run {runs:>3}: {}", bug.name, violation.lines().next().unwrap_or_default());
                }
                None => {
                    println!("{:<50} NOT FOUND in {RUNS_TO_FIND} runs", bug.name);
                    missed.push(bug.name);
                }
            }
        }
    });
    assert!(missed.is_empty(), "not found: {missed:?}");
}
