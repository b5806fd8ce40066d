//! The settler of one queue: collects attempts that ended and moves their jobs on, many in one call; writes notes on the way.
//!
//! While a call is in flight the next results collect, so batches grow with the load and a lone result goes at once. After an
//! error the same batch is sent again: the script tells what was done before. It decides nothing about a job.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::clock::format_ms;
use punctual_core::state::{AttemptOutcome, State};
use punctual_core::store::note::JobNote;
use punctual_core::store::settle::{MOST, Settled, Settlement};
use punctual_core::store::{Kind, StoreError};
use tokio::time::Instant;

use super::flights::Flight;
use super::{Pool, Queue, lock};
use crate::telemetry::Repeats;

/// How long progress and log lines may wait for company.
const NOTES_WAIT: Duration = Duration::from_millis(250);
/// Longest wait after an error of Redis.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// So often a whole batch is sent again after an answer that nobody has heard of, before its parts are tried one by one.
const PATIENCE: u32 = 6;

/// Runs until it is aborted; whoever stops the node waits first until nothing is left to settle.
pub async fn run(pool: Arc<Pool>, number: usize) {
    let queue = &pool.queues[number];
    let mut repeats = Repeats::default();
    let mut last_notes = Instant::now();
    loop {
        queue.ended.notified().await;
        loop {
            let batch: Vec<(Arc<Flight>, Settlement)> = {
                let mut outbox = lock(&queue.outbox);
                let count = outbox.len().min(MOST);
                outbox.drain(..count).collect()
            };
            let noted = !lock(&queue.noted).is_empty();
            // Notes go before the settles: afterwards their claim is no longer current.
            if noted && (!batch.is_empty() || last_notes.elapsed() >= NOTES_WAIT) {
                write_notes(&pool, queue).await;
                last_notes = Instant::now();
            }
            if !batch.is_empty() {
                settle(&pool, queue, &batch, &mut repeats).await;
            } else if noted {
                let _ = tokio::time::timeout(NOTES_WAIT.saturating_sub(last_notes.elapsed()), queue.ended.notified()).await;
            } else {
                break;
            }
        }
    }
}

async fn write_notes(pool: &Pool, queue: &Queue) {
    let flights = std::mem::take(&mut *lock(&queue.noted));
    let mut notes = Vec::new();
    for flight in flights {
        for note in std::mem::take(&mut *lock(&flight.notes)) {
            notes.push(JobNote { id: flight.id.clone(), token: flight.token, note });
        }
    }
    for page in notes.chunks(MOST) {
        // Notes are for people: one that is lost in an outage is not worth a second try.
        if let Err(error) = pool.claims.note(&queue.name, page).await {
            tracing::debug!(target: "worker_pool", queue = %queue.name, error = %error, "notes lost");
        }
    }
}

async fn settle(pool: &Pool, queue: &Queue, batch: &[(Arc<Flight>, Settlement)], repeats: &mut Repeats) {
    let settlements: Vec<Settlement> = batch.iter().map(|(_, settlement)| settlement.clone()).collect();
    let mut pause = Duration::from_millis(50);
    let mut resent = false;
    // A batch that holds what Redis will not take must not block the queue for ever: it is sent one by one then.
    let mut refused: Option<StoreError> = None;
    let mut refusals = 0;
    let (now_ms, settled) = loop {
        if batch.iter().all(|(flight, _)| flight.epoch != pool.epoch()) {
            // Declared dead meanwhile: the jobs are others' now.
            for (flight, _) in batch {
                queue.flights.remove(flight);
            }
            return;
        }
        match pool.claims.settle(&queue.name, &pool.status.incarnation(), &pool.config.retention, &settlements).await {
            Ok(answer) => break answer,
            Err(error) if keeps(&error) || refusals < PATIENCE => {
                refusals += u32::from(!keeps(&error));
                resent = true;
                report(queue, repeats, &error);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
            Err(error) => {
                report(queue, repeats, &error);
                refused = Some(error);
                break (0, Vec::new());
            }
        }
    };
    if let Some(error) = refused {
        one_by_one(pool, queue, batch, &error).await;
        return;
    }
    if let Some(times) = repeats.recovered() {
        tracing::info!(target: "worker_pool", queue = %queue.name, times, "settle recovered");
    }
    for ((flight, settlement), answer) in batch.iter().zip(settled) {
        queue.flights.remove(flight);
        told(queue, flight, settlement, answer, resent, now_ms);
    }
}

/// The fallback when a whole batch is refused: the rest must not suffer for one, and that one is stored with a code only.
async fn one_by_one(pool: &Pool, queue: &Queue, batch: &[(Arc<Flight>, Settlement)], error: &StoreError) {
    for (flight, settlement) in batch {
        let mut small = settlement.clone();
        small.to.text = format!("error not stored: {}", error.kind.word());
        small.to.result = None;
        let incarnation = pool.status.incarnation();
        let mut kept = false;
        for attempt in [settlement.clone(), small] {
            let alone = std::slice::from_ref(&attempt);
            match pool.claims.settle(&queue.name, &incarnation, &pool.config.retention, alone).await {
                Ok((now_ms, answers)) => {
                    if let Some(answer) = answers.first() {
                        told(queue, flight, &attempt, *answer, false, now_ms);
                    }
                    break;
                }
                Err(error) if keeps(&error) => {
                    kept = true;
                    break;
                }
                Err(_) => {}
            }
        }
        if kept {
            lock(&queue.outbox).push((Arc::clone(flight), settlement.clone()));
            queue.ended.notify_one();
        } else {
            queue.flights.remove(flight);
        }
    }
}

/// Whether an error says nothing about what was to be settled: the results wait until Redis, or a person, has mended it. Dropped,
/// they would be runs without an outcome, and the jobs would run again.
fn keeps(error: &StoreError) -> bool {
    error.is_transient() || matches!(error.kind, Kind::Auth | Kind::Permission)
}

fn report(queue: &Queue, repeats: &mut Repeats, error: &StoreError) {
    if let Some(report) = repeats.failed(&error.text) {
        tracing::warn!(target: "worker_pool", queue = %queue.name, error = %error, times = report.count, "settle failed");
    }
}

/// One line and one count for each attempt.
fn told(queue: &Queue, flight: &Flight, settlement: &Settlement, answer: Settled, resent: bool, now_ms: u64) {
    match answer {
        Settled::Done | Settled::DoneBefore => {}
        // After a lost reply it cannot be told whether this was us.
        Settled::Gone | Settled::Stale if resent => {
            tracing::info!(target: "worker_pool", job_id = %flight.id, queue = %queue.name, "outcome unknown after a lost reply");
            return;
        }
        Settled::Stale => {
            metrics::counter!("punctual_stale_claims_rejected_total").increment(1);
            tracing::warn!(target: "worker_pool", job_id = %flight.id, queue = %queue.name, claim = flight.token, "stale claim rejected");
            return;
        }
        Settled::Gone => {
            tracing::warn!(target: "worker_pool", job_id = %flight.id, queue = %queue.name, "job gone before it was settled");
            return;
        }
    }
    let to = &settlement.to;
    let Some(outcome) = to.outcome else {
        if to.to == State::Scheduled {
            tracing::debug!(target: "worker_pool", job_id = %flight.id, handler = %flight.handler, queue = %queue.name, "no such handler here");
        } else {
            tracing::warn!(target: "worker_pool", job_id = %flight.id, handler = %flight.handler, queue = %queue.name,
                reason = %to.text, state = to.to.word(), "job not run");
        }
        return;
    };
    let elapsed = flight.since.elapsed();
    let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    let lateness_ms = u64::try_from(flight.lateness.as_millis()).unwrap_or(u64::MAX);
    metrics::counter!("punctual_jobs_finished_total", "queue" => queue.name.to_string(), "handler" => flight.handler.clone(),
        "outcome" => outcome.word())
    .increment(1);
    metrics::histogram!("punctual_job_duration_seconds", "queue" => queue.name.to_string(), "handler" => flight.handler.clone())
        .record(elapsed.as_secs_f64());
    let failed = matches!(outcome, AttemptOutcome::Failed | AttemptOutcome::TimedOut | AttemptOutcome::Panicked);
    if !failed {
        tracing::info!(target: "worker_pool", job_id = %flight.id, handler = %flight.handler, queue = %queue.name,
            attempt = flight.attempt, outcome = outcome.word(), elapsed_ms, lateness_ms, "job finished");
    } else if to.to == State::Dead {
        tracing::warn!(target: "worker_pool", job_id = %flight.id, handler = %flight.handler, queue = %queue.name,
            attempt = flight.attempt, outcome = outcome.word(), elapsed_ms, lateness_ms, error = %short(&to.text), state = "dead",
            "job failed");
    } else {
        let next = now_ms.saturating_add(u64::try_from(to.delay.as_millis()).unwrap_or(u64::MAX));
        tracing::warn!(target: "worker_pool", job_id = %flight.id, handler = %flight.handler, queue = %queue.name,
            attempt = flight.attempt, outcome = outcome.word(), elapsed_ms, lateness_ms, error = %short(&to.text),
            next_attempt_at = %format_ms(next), "job failed");
    }
}

fn short(text: &str) -> &str {
    let end = text.char_indices().nth(300).map_or(text.len(), |(index, _)| index);
    &text[..end]
}
