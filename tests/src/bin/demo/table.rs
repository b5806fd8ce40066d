//! The table at the end, and what stands below it.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};

use crate::chaos::{Blow, Hit};
use crate::screen::{Ink, Screen};
use crate::verdict::{Tally, Verdict};
use crate::watch::Watch;

/// Numbers that stand in no job and no book.
pub struct Facts<'a> {
    pub hits: &'a [Hit],
    pub watch: &'a Watch,
    pub recognised: usize,
    /// From the signal to the next holder, when the holder was stopped in an orderly way.
    pub handover_ms: u64,
}

/// Prints it all.
pub fn print(screen: &Screen, verdict: &Verdict, facts: &Facts<'_>) {
    screen.say(format!("\n{}\n", stories(verdict)));
    let watch = facts.watch;
    let sum = |message: &str| watch.lines(message).iter().map(|line| line.number("count")).sum::<u64>();
    let mut rows: Vec<(&str, String)> = Vec::new();
    for (id, attempts, reason) in &verdict.dead {
        let plural = if *attempts == 1 { "" } else { "s" };
        rows.push(("dead", format!("{id}, after {attempts} attempt{plural}: {}", tail_of(reason))));
    }
    let untouched = [50, 99, 100].map(|part| seconds(percentile(&verdict.late_untouched, part)));
    let waits: Vec<String> = verdict.waits_ms.iter().map(|ms| seconds(*ms)).collect();
    rows.push(("backoff", format!("the article that found its site busy every time waited {}", waits.join(", "))));
    rows.push((
        "late by",
        format!(
            "p50 {}, p99 {}, max {} for the {} jobs that no fault touched",
            untouched[0],
            untouched[1],
            untouched[2],
            verdict.late_untouched.len()
        ),
    ));
    let struck = |hit: &Hit| format!("{} on {}", hit.in_flight.len(), hit.name);
    let struck: Vec<String> = facts.hits.iter().map(struck).collect();
    let fetched: usize = facts.hits.iter().map(|hit| hit.fetched.len()).sum();
    rows.push((
        "requeued",
        format!("{} jobs; claimed when struck: {}; fetched only: {fetched}", sum("jobs requeued"), struck.join(", ")),
    ));
    let stale = watch.lines("stale claim rejected").len();
    let (fenced, revoked) = (verdict.fenced_outside, verdict.revoked);
    rows.push((
        "stale writes",
        format!("{stale} refused by punctual, {fenced} by the service's own fence; {revoked} runs let go before they wrote"),
    ));
    let took = |hit: &Hit| {
        let how = if hit.blow == Blow::Killed { "kill -9" } else { "kill -STOP" };
        hit.takeover_ms.map(|ms| format!("{} after {how} of the holder ({})", seconds(ms), hit.name))
    };
    let mut took: Vec<String> = facts.hits.iter().filter_map(took).collect();
    took.push(format!("{} ms after SIGTERM", facts.handover_ms));
    rows.push(("takeover", took.join(", ")));
    let again: usize = verdict.queues.values().map(|tally| tally.again).sum();
    rows.push((
        "duplicates",
        format!(
            "{again} second runs, only of jobs claimed by struck nodes; {} repeated effects, none of them done twice",
            verdict.repeated_effects
        ),
    ));
    rows.push(("handed in again", format!("{} jobs, all recognised by their ids", facts.recognised)));
    for (name, text) in rows {
        screen.say(format!("  {} {text}", screen.ink(Ink::Bold, format!("{name:<16}"))));
    }
}

fn stories(verdict: &Verdict) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["", "accepted", "succeeded", "dead", "retries", "struck", "ran again", "late p50", "p99", "max"]);
    let mut all = Tally::default();
    for (queue, tally) in &verdict.queues {
        table.add_row(row(queue, tally));
        all.accepted += tally.accepted;
        all.succeeded += tally.succeeded;
        all.dead += tally.dead;
        all.retries += tally.retries;
        all.struck += tally.struck;
        all.again += tally.again;
        all.late.extend(&tally.late);
    }
    table.add_row(row("all", &all));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn row(name: &str, tally: &Tally) -> Vec<Cell> {
    let numbers = [tally.accepted, tally.succeeded, tally.dead, tally.retries, tally.struck, tally.again];
    let late = [50, 99, 100].map(|part| seconds(percentile(&tally.late, part)));
    std::iter::once(Cell::new(name)).chain(numbers.map(Cell::new)).chain(late.map(Cell::new)).collect()
}

fn percentile(values: &[u64], part: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let index = (sorted.len() * part).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or(0)
}

fn seconds(ms: u64) -> String {
    if ms < 1000 { format!("{ms} ms") } else { format!("{}.{} s", ms / 1000, ms % 1000 / 100) }
}

fn tail_of(reason: &str) -> String {
    reason.split_once(": ").map_or(reason, |(_, tail)| tail).to_owned()
}
