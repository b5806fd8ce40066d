//! How fast jobs are stored through one client, and how many bytes of Redis a waiting one takes.

use std::time::{Duration, Instant};

use punctual_core::job::Due;
use tokio::task::JoinSet;

use super::measurement::{Measurement, Skip};
use super::place::{Bench, Place, QUEUE, another};
use super::server::Spent;

/// One by one takes as long as it takes; this is enough for a rate.
const LONGEST: Duration = Duration::from_secs(3);
/// Tasks that share one client.
const TASKS: usize = 64;
/// Redis resizes what connections leave behind within this time.
const SETTLE: Duration = Duration::from_millis(500);
/// Far enough that nothing becomes due while it is measured.
const FAR_MS: u64 = 3_600_000;

/// Awaited one by one.
pub(super) async fn one(bench: &Bench, place: &Place) -> Result<Vec<Measurement>, Skip> {
    let job = bench.job(QUEUE)?;
    place.client.submit(another(&job)).await?;
    let before = place.probe.snapshot().await?;
    let mut took = Vec::new();
    let started = Instant::now();
    while took.len() < bench.jobs / 2 && started.elapsed() < LONGEST {
        let sent = Instant::now();
        place.client.submit(another(&job)).await?;
        took.push(sent.elapsed().as_secs_f64() * 1e3);
    }
    let elapsed = started.elapsed();
    let spent = place.probe.snapshot().await?.since(&before);
    let count = took.len();
    let latencies = Measurement::default().beside(took);
    let mut measured = rate("enqueue_one", count, elapsed, &spent);
    (measured.min, measured.p50, measured.p99, measured.max) = (latencies.min, latencies.p50, latencies.p99, latencies.max);
    Ok(vec![measured])
}

/// From many tasks at once, over one client.
pub(super) async fn many(bench: &Bench, place: &Place) -> Result<Vec<Measurement>, Skip> {
    let job = bench.job(QUEUE)?;
    place.client.submit(another(&job)).await?;
    let each = (bench.jobs / 2).div_ceil(TASKS);
    let before = place.probe.snapshot().await?;
    let started = Instant::now();
    // Tasks of the runtime, as in a service; an interrupted bench drops the set, and with it the tasks.
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (client, job) = (place.client.clone(), job.clone());
        tasks.spawn(async move {
            for _ in 0..each {
                client.submit(another(&job)).await?;
            }
            Ok::<(), Skip>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| Skip(error.to_string()))??;
    }
    let elapsed = started.elapsed();
    let spent = place.probe.snapshot().await?.since(&before);
    Ok(vec![rate("enqueue_many", each * TASKS, elapsed, &spent)])
}

/// 500 a call, some calls under way at a time.
pub(super) async fn bulk(bench: &Bench, place: &Place) -> Result<Vec<Measurement>, Skip> {
    let job = bench.job(QUEUE)?;
    place.client.submit(another(&job)).await?;
    let before = place.probe.snapshot().await?;
    let started = Instant::now();
    place.load(&job, bench.jobs, |_| Due::Now).await?;
    let elapsed = started.elapsed();
    let spent = place.probe.snapshot().await?.since(&before);
    Ok(vec![rate("enqueue_bulk", bench.jobs, elapsed, &spent)])
}

/// Bytes of a job that is due.
pub(super) async fn bytes_pending(bench: &Bench, place: &Place) -> Result<Vec<Measurement>, Skip> {
    bytes("bytes_pending", bench, place, Due::Now).await
}

/// Bytes of a job that waits for its time.
pub(super) async fn bytes_scheduled(bench: &Bench, place: &Place) -> Result<Vec<Measurement>, Skip> {
    bytes("bytes_scheduled", bench, place, Due::In(FAR_MS)).await
}

async fn bytes(name: &'static str, bench: &Bench, place: &Place, due: Due) -> Result<Vec<Measurement>, Skip> {
    let before = memory(place).await?;
    place.load(&bench.job(QUEUE)?, bench.jobs, |_| due).await?;
    place.forget_receipts(QUEUE).await?;
    let after = memory(place).await?;
    Ok(vec![Measurement::new(name, (after - before) / bench.jobs as f64, "bytes/job")])
}

/// Bytes in use, once what connections needed for a moment is given back.
pub(super) async fn memory(place: &Place) -> Result<f64, Skip> {
    tokio::time::sleep(SETTLE).await;
    Ok(place.probe.snapshot().await?.memory)
}

/// Jobs per second, with what each cost.
pub(super) fn rate(name: &'static str, count: usize, elapsed: Duration, spent: &Spent) -> Measurement {
    let each = |sum: f64| Some(super::measurement::rounded(sum / count.max(1) as f64));
    let mut measured = Measurement::new(name, count as f64 / elapsed.as_secs_f64(), "jobs/s");
    measured.redis_commands_per_job = each(spent.commands);
    measured.redis_requests_per_job = each(spent.requests);
    measured.redis_reads_per_job = each(spent.reads);
    measured.redis_cpu_us_per_job = each(spent.cpu_us);
    measured
}
