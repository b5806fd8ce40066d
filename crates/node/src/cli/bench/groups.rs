//! Which measurements there are, which of them are taken together, and what takes them.

use super::measurement::{Measurement, Skip};
use super::place::Bench;
use super::{Args, drain, enqueue, failover, idle, timing};

/// Measurements that are taken together, by their names.
pub(super) const GROUPS: &[&[&str]] = &[
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

/// What `--only` takes.
pub(super) fn names() -> clap::builder::PossibleValuesParser {
    GROUPS.concat().into()
}

/// The groups that hold a measurement that was asked for.
pub(super) fn wanted<'a>(args: &'a Args) -> impl Iterator<Item = &'static [&'static str]> + 'a {
    let asked = |name: &&str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    GROUPS.iter().copied().filter(move |group| group.iter().any(asked))
}

/// Takes the measurements of the group with this first name, in a place of their own.
pub(super) async fn one_group(bench: &Bench, first: &str) -> Result<Vec<Measurement>, Skip> {
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
        let args = Args { jobs: 1000, payload: 100, concurrency: None, only: vec!["bytes_finished".to_owned()], seconds: 1 };
        assert_eq!(wanted(&args).map(|group| group[0]).collect::<Vec<_>>(), ["drain_discarded"]);
        let all = Args { only: Vec::new(), ..args };
        assert_eq!(wanted(&all).count(), GROUPS.len());
    }
}
