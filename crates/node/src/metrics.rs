//! The metrics of a node: their names, units and buckets, and the gauges that are read from Redis when somebody asks.
//!
//! Counters and histograms are written where things happen; this file describes them, so that a scrape shows what each means,
//! and registers those that can be known, so that a rate over them begins at 0. Labels are bounded: queues that the node
//! serves, handlers that are registered (anything else is `unknown`), outcomes. Only of unroutable jobs are foreign handlers
//! named, and only so many: the name is what a person needs there. Deliberately absent: job ids, node ids, and a scrape that
//! waits for Redis: it answers with what is known.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use punctual_core::handler::Registry;
use punctual_core::store::overview::{NodeView, QueueView};
use punctual_core::store::{Kind, Store, StoreError};

/// The label of a handler that this binary does not have, and of a queue that this node does not serve.
pub const UNKNOWN: &str = "unknown";
/// Durations and lateness, in seconds: 1 ms to 1 h.
const SPANS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0];
/// Commands of Redis, in seconds: 100 µs to 3 s, where a command counts as lost.
const COMMANDS: &[f64] = &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0];
/// Samples of Redis are at least this far apart, however many scrape.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// A scrape waits no longer than this for Redis.
const SAMPLE_WITHIN: Duration = Duration::from_secs(1);
/// So many handlers of unroutable jobs get a series of their own in the life of a process.
const UNROUTABLE_NAMES: usize = 20;
/// Histograms keep every sample until they are read; without a scraper somebody else has to read them.
const UPKEEP_EVERY: Duration = Duration::from_secs(15);

const COUNTERS: &[(&str, &str)] = &[
    ("punctual_jobs_enqueued_total", "Jobs stored through this node's API, by queue."),
    ("punctual_jobs_finished_total", "Attempts that ended on this node, by queue, handler and outcome."),
    ("punctual_stale_claims_rejected_total", "Settles refused because the job had been given to another node."),
    ("punctual_jobs_requeued_total", "Jobs taken back from dead nodes, by queue."),
    ("punctual_schedule_slots_total", "Slots of schedules, by outcome."),
    ("punctual_redis_errors_total", "Errors of Redis and of the way to it, by kind."),
];
const HISTOGRAMS: &[(&str, &[f64], &str)] = &[
    ("punctual_job_duration_seconds", SPANS, "Run time of attempts, by queue and handler."),
    ("punctual_job_lateness_seconds", SPANS, "From due to start of attempts by Redis' clock, by queue."),
    ("punctual_promotion_lateness_seconds", SPANS, "From due to ready of promoted jobs by Redis' clock, by queue."),
    ("punctual_redis_command_seconds", COMMANDS, "Round trips to Redis."),
];
const GAUGES: &[(&str, Unit, &str)] = &[
    ("punctual_queue_jobs", Unit::Count, "Jobs in Redis, by queue and state."),
    ("punctual_queue_oldest_ready_seconds", Unit::Seconds, "Age of the oldest ready job, 0 when there is none, by queue."),
    ("punctual_queue_due_soon", Unit::Count, "Waiting jobs due within the next 60 s, by queue."),
    ("punctual_jobs_unroutable", Unit::Count, "Waiting jobs whose handler no live node has, by queue and handler."),
    ("punctual_nodes", Unit::Count, "Nodes that beat."),
    ("punctual_lease_held", Unit::Count, "1 while this node holds the lease."),
    ("punctual_lease_term", Unit::Count, "Highest term of the lease that this node has seen."),
];

/// Installs the recorder of the process, once, and returns what renders it. Later calls return the same.
pub fn install() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(recorder).clone()
}

fn recorder() -> PrometheusHandle {
    let builder = HISTOGRAMS.iter().fold(PrometheusBuilder::new(), |builder, (name, buckets, _)| {
        builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), buckets).expect("each list of buckets has values")
    });
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    if metrics::set_global_recorder(recorder).is_err() {
        // A program that embeds a node may have a recorder of its own; then that one gets everything.
        tracing::warn!(target: "metrics", "metrics recorder taken");
        return handle;
    }
    describe();
    let upkeep = handle.clone();
    let spawned = std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        loop {
            std::thread::sleep(UPKEEP_EVERY);
            upkeep.run_upkeep();
        }
    });
    if let Err(error) = spawned {
        tracing::warn!(target: "metrics", %error, "metrics upkeep missing");
    }
    handle
}

fn describe() {
    for (name, text) in COUNTERS {
        describe_counter!(*name, Unit::Count, *text);
    }
    for (name, _, text) in HISTOGRAMS {
        describe_histogram!(*name, Unit::Seconds, *text);
    }
    for (name, unit, text) in GAUGES {
        describe_gauge!(*name, *unit, *text);
    }
    counter!("punctual_stale_claims_rejected_total").increment(0);
    for kind in [Kind::Unreachable, Kind::Busy, Kind::ReadOnly, Kind::Full, Kind::Auth, Kind::Permission, Kind::Wrong] {
        counter!("punctual_redis_errors_total", "kind" => kind.word()).increment(0);
    }
    let _registered = histogram!("punctual_redis_command_seconds");
    for name in ["punctual_nodes", "punctual_lease_held", "punctual_lease_term"] {
        gauge!(name).increment(0.0);
    }
}

/// The label of a handler: its name when this binary has it, else [`UNKNOWN`]; names that producers invent are not labels.
#[must_use]
pub fn handler_label(registry: &Registry, handler: &str) -> String {
    registry.get(handler).map_or(UNKNOWN, |registered| &registered.name).to_owned()
}

/// Reads the gauges of the cluster when a scrape asks.
pub struct Sampler {
    store: Store,
    queues: Vec<String>,
    last: tokio::sync::Mutex<Sampled>,
}

#[derive(Default)]
struct Sampled {
    at: Option<Instant>,
    /// Queue and handler of the series that exist, to be set to 0 when their jobs are gone.
    unroutable: BTreeSet<(String, String)>,
}

impl Sampled {
    fn unroutable_counts(&mut self, view: &QueueView) -> BTreeMap<String, u64> {
        let known = self.unroutable.iter().filter(|(queue, _)| *queue == view.queue);
        let mut counts: BTreeMap<String, u64> = known.map(|(_, handler)| (handler.clone(), 0)).collect();
        // Always there, so that an alert can be written before the first such job.
        counts.entry(UNKNOWN.to_owned()).or_default();
        for (handler, count) in &view.unroutable {
            let fits = counts.contains_key(handler) || self.unroutable.len() < UNROUTABLE_NAMES;
            let label = if fits { handler.as_str() } else { UNKNOWN };
            if label != UNKNOWN {
                self.unroutable.insert((view.queue.clone(), label.to_owned()));
            }
            *counts.entry(label.to_owned()).or_default() += count;
        }
        counts
    }
}

impl Sampler {
    /// A sampler of the queues that this node serves. Registers what is counted by queue.
    #[must_use]
    pub fn new(store: Store, queues: Vec<String>) -> Self {
        for queue in &queues {
            for name in ["punctual_jobs_enqueued_total", "punctual_jobs_requeued_total"] {
                counter!(name, "queue" => queue.clone()).increment(0);
            }
            for name in ["punctual_job_lateness_seconds", "punctual_promotion_lateness_seconds"] {
                let _registered = histogram!(name, "queue" => queue.clone());
            }
        }
        Self { store, queues, last: tokio::sync::Mutex::default() }
    }

    /// The label of a queue: its name when this node serves it, else [`UNKNOWN`].
    #[must_use]
    pub fn queue_label(&self, queue: &str) -> String {
        self.queues.iter().find(|own| *own == queue).map_or(UNKNOWN, String::as_str).to_owned()
    }

    /// Sets the gauges, unless they were set a moment ago. Returns within about a second also while Redis is away; then they
    /// keep what was known. Cancel-safe.
    pub async fn sample(&self) {
        let work = async {
            // Whoever comes while another samples waits for that sample.
            let mut last = self.last.lock().await;
            if last.at.is_none_or(|at| at.elapsed() >= SAMPLE_EVERY) {
                // Set before the work: a Redis that is away is not asked again by every scrape.
                last.at = Some(Instant::now());
                if let Err(error) = self.read(&mut last).await {
                    tracing::debug!(target: "metrics", error = %error, "metrics sample failed");
                }
            }
        };
        let _late = tokio::time::timeout(SAMPLE_WITHIN, work).await;
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of jobs and nodes lie far below 2^53")]
    async fn read(&self, sampled: &mut Sampled) -> Result<(), StoreError> {
        let nodes = self.store.node_views().await?;
        let live = || nodes.iter().filter(|node| node.beat_age_ms.is_some());
        gauge!("punctual_nodes").set(live().count() as f64);
        for queue in &self.queues {
            let handlers = NodeView::handlers_of(&nodes, queue);
            self.set(&self.store.queue(queue, handlers.as_deref()).await?, sampled);
        }
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of jobs and milliseconds lie far below 2^53")]
    fn set(&self, view: &QueueView, sampled: &mut Sampled) {
        let queue = &view.queue;
        let states = &view.states;
        for (state, count) in [
            ("scheduled", states.scheduled),
            ("ready", states.ready),
            ("running", states.running),
            ("retrying", states.retrying),
            ("succeeded", states.succeeded),
            ("dead", states.dead),
            ("cancelled", states.cancelled),
            ("held", states.held),
        ] {
            gauge!("punctual_queue_jobs", "queue" => queue.clone(), "state" => state).set(count as f64);
        }
        let oldest = view.oldest_ready_ms.unwrap_or(0) as f64 / 1000.0;
        gauge!("punctual_queue_oldest_ready_seconds", "queue" => queue.clone()).set(oldest);
        gauge!("punctual_queue_due_soon", "queue" => queue.clone()).set(view.due_soon as f64);
        for (handler, count) in sampled.unroutable_counts(view) {
            gauge!("punctual_jobs_unroutable", "queue" => queue.clone(), "handler" => handler).set(count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_before_anything_happened_is_there_at_zero() {
        let text = install().render();
        for line in [
            "punctual_stale_claims_rejected_total 0",
            "punctual_redis_errors_total{kind=\"unreachable\"} 0",
            "punctual_redis_command_seconds_bucket{le=\"3\"} 0",
            "punctual_redis_command_seconds_count 0",
            "punctual_nodes 0",
            "punctual_lease_held 0",
            "punctual_lease_term 0",
            "# TYPE punctual_redis_command_seconds histogram",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is missing in\n{text}");
        }
        assert!(text.contains("# HELP punctual_nodes Nodes that beat."));
    }

    #[test]
    fn names_that_producers_invent_are_no_labels() {
        let registry = Registry::new().register("known", |_: serde_json::Value, _| async { Ok::<(), String>(()) });
        assert_eq!(handler_label(&registry, "known"), "known");
        assert_eq!(handler_label(&registry, "invented-17"), UNKNOWN);
    }

    #[test]
    fn handlers_of_unroutable_jobs_are_named_up_to_a_bound_and_fall_back_to_zero() {
        let mut sampled = Sampled::default();
        let view = |names: &[String]| QueueView {
            queue: "q".to_owned(),
            paused: false,
            states: punctual_core::store::overview::StateCounts::default(),
            oldest_ready_ms: None,
            unroutable: names.iter().map(|name| (name.clone(), 1)).collect(),
            due_soon: 0,
            totals: BTreeMap::new(),
        };
        let names: Vec<String> = (10..40).map(|n| format!("h{n}")).collect();
        let counts = sampled.unroutable_counts(&view(&names));
        assert_eq!((counts.len(), counts["h10"], counts[UNKNOWN]), (21, 1, 10));
        let counts = sampled.unroutable_counts(&view(&[]));
        assert_eq!((counts.len(), counts["h10"], counts[UNKNOWN]), (21, 0, 0));
    }

    #[test]
    fn buckets_grow() {
        for (name, buckets, _) in HISTOGRAMS {
            assert!(buckets.windows(2).all(|pair| pair[0] < pair[1]), "{name}");
        }
    }
}
