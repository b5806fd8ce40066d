//! How soon a job starts: after it was stored, after it was due, and when thousands are due at the same moment.
//!
//! All times are Redis' own. A claim's token is the microsecond at which it was made, and the stamp of a job with an id of its
//! own is the one at which it was stored; where they cannot be told, the milliseconds of the record serve.

use std::time::{Duration, Instant};

use punctual_core::job::{Due, NewJob};
use punctual_core::store::inspect::Found;

use super::measurement::{Measurement, Skip};
use super::node::Node;
use super::place::{Bench, Place, QUEUE, another};

/// Jobs a second of the enqueue-to-start measurement.
const RATE: u64 = 200;
/// Jobs a second that become due in the lateness measurement.
const DUE_RATE: u64 = 200;
/// Most jobs of the burst.
const BURST: usize = 20_000;
/// Time to store what will be due.
const AHEAD_MS: u64 = 1500;
/// A burst is stored this long before it is due.
const BURST_AHEAD_MS: u64 = 3000;
/// A burst is ready within this time, or the measurement has failed.
const BURST_WITHIN: Duration = Duration::from_secs(30);

/// From stored to claimed, at a steady 200 jobs a second.
pub(super) async fn start_latency(bench: &Bench, place: &Place) -> Result<Vec<Measurement>, Skip> {
    let _node = Node::start(bench, place, "bench-worker", &format!("{QUEUE}=1"), true).await?;
    let job = bench.job(QUEUE)?;
    let count = RATE * bench.seconds;
    place.client.submit(another(&job)).await?;
    place.succeeded(QUEUE, 1).await?;
    let started = Instant::now();
    let mut ids = Vec::new();
    for number in 0..count {
        let at = started + Duration::from_secs(1) * u32::try_from(number).unwrap_or(u32::MAX) / RATE as u32;
        tokio::time::sleep_until(at.into()).await;
        let id = format!("start-{number}");
        place.client.submit(NewJob { id: id.clone(), ..job.clone() }).await?;
        ids.push(id);
    }
    place.succeeded(QUEUE, count + 1).await?;
    let found = place.read(QUEUE, &ids).await?;
    let waits = found.iter().filter_map(|job| Some((started_us(job)? - stored_us(job)?) / 1e3)).collect();
    Ok(vec![Measurement::spread("start_latency_ms", "ms", waits)?])
}

/// From due to claimed, for jobs whose due times spread evenly.
pub(super) async fn lateness(bench: &Bench, place: &Place) -> Result<Vec<Measurement>, Skip> {
    let node = Node::start(bench, place, "bench-worker", &format!("{QUEUE}=1"), true).await?;
    node.until_holder(place).await?;
    let count = usize::try_from(DUE_RATE * 2 * bench.seconds).unwrap_or(usize::MAX);
    let first = place.store.probe().await? + AHEAD_MS;
    let due = |number: usize| Due::At(first + number as u64 * 1000 / DUE_RATE);
    let ids = place.load(&bench.job(QUEUE)?, count, due).await?;
    tokio::time::sleep(Duration::from_millis(AHEAD_MS)).await;
    place.succeeded(QUEUE, count as u64).await?;
    let late = lateness_ms(&place.read(QUEUE, &ids).await?);
    Ok(vec![Measurement::spread("lateness_ms", "ms", late)?])
}

/// How fast one promoter makes jobs ready that are all due at the same moment; nobody takes them.
pub(super) async fn burst(bench: &Bench, place: &Place) -> Result<Vec<Measurement>, Skip> {
    let node = Node::start(bench, place, "bench-promoter", "elsewhere=1", true).await?;
    node.until_holder(place).await?;
    let count = bench.jobs.min(BURST);
    let due = place.store.probe().await? + BURST_AHEAD_MS;
    place.load(&bench.job(QUEUE)?, count, |_| Due::At(due)).await?;
    let left = due.saturating_sub(place.store.probe().await?);
    if left < 100 {
        return Err("this Redis did not store the jobs before they were due".into());
    }
    tokio::time::sleep(Duration::from_millis(left - 20)).await;
    let started = Instant::now();
    while place.probe.scheduled(QUEUE).await? > 0 {
        if started.elapsed() > BURST_WITHIN {
            return Err("the jobs were not made ready in time".into());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let latest = place.store.probe().await?.saturating_sub(due).max(1) as f64;
    let mut measured = Measurement::new("burst_promoted", count as f64 / (latest / 1e3), "jobs/s");
    measured.max = Some(latest);
    Ok(vec![measured])
}

/// From due to claimed of jobs that were claimed, in milliseconds; negative when one came too early.
pub(super) fn lateness_ms(found: &[Found]) -> Vec<f64> {
    found.iter().filter_map(|job| Some((started_us(job)? - due_us(job)?) / 1e3)).collect()
}

/// When a job was last claimed, in microseconds since 1970; `None` when it never was.
pub(super) fn started_us(job: &Found) -> Option<f64> {
    let packed = job.packed.as_ref().filter(|packed| packed.start_ms > 0)?;
    // A token is the time of its claim, unless another claim was made in the same microsecond or the clock went back.
    let told = packed.token / 1000 == packed.start_ms;
    Some(if told { packed.token as f64 } else { packed.start_ms as f64 * 1e3 })
}

/// When a job was due, in microseconds since 1970.
pub(super) fn due_us(job: &Found) -> Option<f64> {
    Some(job.record.as_ref().ok()?.due_ms as f64 * 1e3)
}

fn stored_us(job: &Found) -> Option<f64> {
    let created_ms = job.record.as_ref().ok()?.created_ms;
    let stamp = stamp_of(&job.body).filter(|us| us / 1000 == created_ms);
    Some(stamp.map_or(created_ms as f64 * 1e3, |us| us as f64))
}

/// The stamp that a body with an extension begins its text with.
fn stamp_of(body: &[u8]) -> Option<u64> {
    let text = body.get(16..).filter(|_| body.get(3) == Some(&b'+'))?;
    let digits = text.split(|byte| *byte == b' ').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stamp_of_a_body_is_read() {
        assert_eq!(stamp_of(b"\x012r+aaaaaabbbbbb1790000000000123 0 0 - \nrest"), Some(1_790_000_000_000_123));
        assert_eq!(stamp_of(b"\x012r-aaaaaabbbbbb1790000000000123 0"), None);
        assert_eq!(stamp_of(b"\x01"), None);
    }
}
