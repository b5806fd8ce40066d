//! Where a measurement takes place: a namespace of its own, with connections of its own and the means to fill it with jobs.

use std::cell::Cell;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use punctual_core::client::Client;
use punctual_core::config::Config;
use punctual_core::job::{Due, JobRequest, NewJob, new_id};
use punctual_core::store::Store;
use punctual_core::store::enqueue::{BATCH, CallId};
use punctual_core::store::inspect::Found;
use serde_json::value::RawValue;

use super::super::failure::Failure;
use super::super::session::{Cluster, Globals, Session};
use super::groups::wanted;
use super::measurement::Skip;
use super::server::Probe;
use super::{Args, bar};

/// The queue of most measurements.
pub(super) const QUEUE: &str = "bench";
/// Bulk calls under way at a time.
const IN_FLIGHT: usize = 4;
/// Longest first part of the names; what is added to it must fit into 64 characters.
const NAMESPACE_PART: usize = 40;
/// A queue on which nothing happens for so long will not be drained any more.
const STALLED: Duration = Duration::from_secs(15);

/// What all measurements share.
pub(super) struct Bench {
    pub(super) globals: Globals,
    pub(super) config: Config,
    /// What the names of all places begin with.
    pub(super) root: String,
    pub(super) jobs: usize,
    pub(super) concurrency: u32,
    pub(super) seconds: u64,
    pub(super) bar: ProgressBar,
    payload: usize,
    places: Cell<u32>,
    probe: Probe,
}

impl Bench {
    pub(super) fn new(session: &Session, cluster: &Cluster, args: &Args) -> Result<Self, Failure> {
        let config = cluster.config.clone();
        let most = config.jobs.max_payload.as_usize();
        if args.payload > most {
            return Err(Failure::usage(format!(
                "--payload: {} bytes are more than the {most} of jobs.max_payload",
                args.payload
            )));
        }
        let tail: String = (0..8).map(|_| char::from(b'a' + fastrand::u8(..26))).collect();
        let head: String = config.redis.namespace.chars().take(NAMESPACE_PART).collect();
        Ok(Self {
            globals: session.globals.clone(),
            root: format!("{head}-bench-{tail}"),
            jobs: args.jobs as usize,
            concurrency: args.concurrency.unwrap_or(config.node.concurrency),
            seconds: u64::from(args.seconds),
            bar: bar(wanted(args).count()),
            payload: args.payload,
            places: Cell::new(0),
            probe: Probe::new(cluster.store().another()),
            config,
        })
    }

    /// How many clients besides this process are connected; `None` when there is none, or Redis does not tell.
    pub(super) async fn other_clients(&self) -> Option<u64> {
        // Two connections are this process's own: the command's and the probe's.
        let clients = self.probe.snapshot().await.ok()?.clients;
        clients.checked_sub(2).filter(|others| *others > 0)
    }

    /// A new place.
    pub(super) fn place(&self) -> Result<Place, Skip> {
        self.places.set(self.places.get() + 1);
        let mut redis = self.config.redis.clone();
        redis.namespace = format!("{}-{}", self.root, self.places.get());
        let store = Store::new(&redis)?;
        let client = Client::over(store.clone(), usize::MAX);
        Ok(Place { probe: Probe::new(store.another()), namespace: redis.namespace, client, store })
    }

    /// Removes what any place may have left.
    pub(super) async fn remove_all(&self) -> Result<(), Skip> {
        self.probe.remove(&format!("{{{}-", self.root)).await
    }

    /// A job that does nothing, with arguments of the size asked for.
    pub(super) fn job(&self, queue: &str) -> Result<NewJob, Skip> {
        let frame = r#"{"pad":""}"#.len();
        let args = match self.payload.checked_sub(frame) {
            Some(pad) => format!(r#"{{"pad":"{}"}}"#, "x".repeat(pad)),
            None => "{}".to_owned(),
        };
        request("demo.noop", args, queue)
    }
}

/// A checked job of a demo handler, due at once.
pub(super) fn request(handler: &str, args: String, queue: &str) -> Result<NewJob, Skip> {
    let args = RawValue::from_string(args).map_err(|error| Skip(error.to_string()))?;
    let request =
        JobRequest { handler: handler.to_owned(), args: Some(args), queue: Some(queue.to_owned()), ..JobRequest::default() };
    request.check(usize::MAX).map_err(|wrong| Skip(wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))
}

/// The same job again, under an id of its own.
pub(super) fn another(job: &NewJob) -> NewJob {
    NewJob { id: new_id(), ..job.clone() }
}

/// One namespace.
pub(super) struct Place {
    pub(super) namespace: String,
    pub(super) store: Store,
    pub(super) client: Client,
    pub(super) probe: Probe,
}

impl Place {
    /// Stores so many copies of a job, each due when `due` says, in pipelined calls of 500; returns their ids.
    pub(super) async fn load(&self, job: &NewJob, count: usize, due: impl Fn(usize) -> Due) -> Result<Vec<String>, Skip> {
        // Over a connection that ends with the load: its buffers must not be counted as the jobs' memory.
        let client = Client::over(self.store.another(), usize::MAX);
        let calls = stream::iter((0..count).step_by(BATCH)).map(|from| {
            let jobs: Vec<NewJob> =
                (from..count.min(from + BATCH)).map(|number| NewJob { due: due(number), ..another(job) }).collect();
            submit(&client, jobs)
        });
        let ids: Vec<Vec<String>> = calls.buffered(IN_FLIGHT).try_collect().await?;
        Ok(ids.concat())
    }

    /// Waits until so many jobs of a queue have succeeded.
    pub(super) async fn succeeded(&self, queue: &str, count: u64) -> Result<(), Skip> {
        let (mut seen, mut changed) = (0, Instant::now());
        loop {
            let now = self.probe.total(queue, "succeeded").await?;
            if now >= count {
                return Ok(());
            }
            if now > seen {
                (seen, changed) = (now, Instant::now());
            } else if changed.elapsed() > STALLED {
                return Err(Skip(format!("only {seen} of {count} jobs were done, and nothing more for {STALLED:?}")));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Reads jobs by their ids; those that are gone are left out.
    pub(super) async fn read(&self, queue: &str, ids: &[String]) -> Result<Vec<Found>, Skip> {
        let mut found = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(BATCH) {
            let pairs: Vec<_> = chunk.iter().map(|id| (queue.to_owned(), id.clone())).collect();
            found.extend(self.store.read(&pairs).await?.into_iter().flatten());
        }
        Ok(found)
    }

    /// Removes the receipts of enqueue calls, which end by themselves within seconds: they are no part of what a job takes.
    pub(super) async fn forget_receipts(&self, queue: &str) -> Result<(), Skip> {
        self.probe.remove(&self.store.keys().queue(queue, "rc:")).await
    }

    /// Removes the namespace.
    pub(super) async fn remove(&self) -> Result<(), Skip> {
        self.probe.remove(&format!("{{{}}}:", self.namespace)).await?;
        self.probe.remove(&format!("{{{}:", self.namespace)).await
    }
}

/// One bulk call; the ids that were stored.
pub(super) async fn submit(client: &Client, jobs: Vec<NewJob>) -> Result<Vec<String>, Skip> {
    let receipts = client.submit_many(&CallId::fresh(), jobs).await?;
    Ok(receipts.into_iter().map(|receipt| receipt.id).collect())
}
