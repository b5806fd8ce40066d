//! `punctual enqueue`: stores one job, or with `--bulk` one per line of a file.
//!
//! The flags become the same document as a line of `--bulk` and the body of `POST /api/v1/jobs`, so all three are checked by
//! the same code. What is refused is refused before Redis is changed.

use std::path::PathBuf;

use punctual_core::client::Receipt;
use punctual_core::job::{FieldError, JobRequest, LateRequest, Unique, UniqueUntil};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::admit::{Admit, Refusal};
use super::failure::Failure;
use super::output::note;
use super::session::{Cluster, Session, block_on};
use super::{bulk, follow, input};

const EXAMPLE: &str = "\
Examples:
  punctual enqueue order.close --args '{\"order_id\":7,\"shop\":\"https://shop.example\"}' --delay 30m --id order-7-close
  punctual enqueue report.run --args @report.json --at 2027-03-28T02:30 --tz Europe/Berlin --wait
  punctual enqueue --bulk jobs.ndjson -o json > results.ndjson

Prints the job's id. An id or a key that is there already changes nothing: exit code 0, and duplicate_of in the document.";

/// Stores a job, or many.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(flatten)]
    job: JobFlags,

    /// Stores one job per line of this file (- = standard input); a line is the body of POST /api/v1/jobs.
    #[arg(long, value_name = "FILE", conflicts_with = "JobFlags")]
    bulk: Option<PathBuf>,

    /// Stores the job although nobody has its handler yet: it waits until a node comes that does.
    #[arg(long)]
    allow_unknown_handler: bool,
}

/// What describes one job.
#[derive(Debug, clap::Args)]
struct JobFlags {
    /// Name of the handler, as in `punctual handlers`; not together with --bulk.
    #[arg(required_unless_present = "bulk")]
    handler: Option<String>,

    /// Arguments as JSON, from a file with @FILE, or from standard input with -; {} by default.
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    args: Option<String>,

    /// Queue; `default` by default.
    #[arg(long, value_name = "Q")]
    queue: Option<String>,

    /// Due so long after it is stored, such as 30m or "1h 30m".
    #[arg(long, value_name = "D", conflicts_with = "at", allow_hyphen_values = true)]
    delay: Option<String>,

    /// Due at this instant, RFC 3339; a local time needs --tz.
    #[arg(long, value_name = "T")]
    at: Option<String>,

    /// IANA time zone of --at and --deadline where they name none.
    #[arg(long, value_name = "ZONE")]
    tz: Option<String>,

    /// Band within the queue; normal by default.
    #[arg(long, value_parser = ["low", "normal", "high", "critical"])]
    priority: Option<String>,

    /// Attempts in all.
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,

    /// How it is retried: a preset's name, or a policy such as '{"backoff":"fixed","base":"10s"}'.
    #[arg(long, value_name = "PRESET|JSON")]
    retry: Option<String>,

    /// Longest run of one attempt.
    #[arg(long, value_name = "D")]
    timeout: Option<String>,

    /// Not started after this instant.
    #[arg(long, value_name = "T")]
    deadline: Option<String>,

    /// At most one living job of the queue holds this key.
    #[arg(long, value_name = "K")]
    unique_key: Option<String>,

    /// How long the unique key is held; finished by default.
    #[arg(long, value_parser = ["started", "finished"], requires = "unique_key")]
    unique_until: Option<String>,

    /// The same key, or the same handler and arguments, is a duplicate for so long.
    #[arg(long, value_name = "D")]
    dedupe_for: Option<String>,

    /// What becomes of it when it is later than --grace.
    #[arg(long, value_parser = ["run", "skip", "hold"])]
    late: Option<String>,

    /// How late is still in time; 30s by default.
    #[arg(long, value_name = "D", requires = "late")]
    grace: Option<String>,

    /// An id of your own: storing it again changes nothing.
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// A pair for people and filters; may be repeated.
    #[arg(long = "tag", value_name = "K=V", value_parser = input::pair)]
    tags: Vec<(String, String)>,

    /// Follows the job to its end and prints its life; exit code 0 only when it succeeded.
    #[arg(long)]
    wait: bool,
}

pub(super) fn run(session: &Session, args: Args) -> Result<(), Failure> {
    match args.bulk {
        Some(file) => bulk::run(session, &file, args.allow_unknown_handler),
        None => {
            let wait = args.job.wait;
            let request = args.job.request()?;
            block_on(async {
                let cluster = session.connect().await?;
                let admit = Admit::new(session, &cluster, args.allow_unknown_handler);
                let receipt = one(&cluster, &admit, request).await?;
                hint(&cluster, &receipt.queue).await;
                if wait {
                    note(described(&receipt));
                    return follow::to_the_end(session, &cluster, &receipt).await;
                }
                if !session.out.is_json() {
                    note(described(&receipt));
                }
                session.out.show(&receipt, |_| receipt.id.clone())
            })
        }
    }
}

/// Tells why a job may have to wait for longer than its time. Only a hint: whoever cannot ask says nothing.
async fn hint(cluster: &Cluster, queue: &str) {
    let (Ok(nodes), Ok(paused)) = (cluster.store().live_nodes().await, cluster.store().is_paused(queue).await) else { return };
    if paused {
        note(format!("queue {queue} is paused: the job waits until punctual queues resume {queue}"));
    }
    if !nodes.iter().any(|node| !node.draining && node.queues.contains_key(queue)) {
        note(format!("no running node serves queue {queue}: the job waits until one does (node.queues, punctual nodes list)"));
    }
}

async fn one(cluster: &Cluster, admit: &Admit, request: JobRequest) -> Result<Receipt, Failure> {
    let job = request.check(cluster.client.max_payload()).map_err(|wrong| Failure::fields(&wrong))?;
    admit.check(&job).await.map_err(|refusal| refused(cluster, refusal))?;
    cluster.client.submit(job).await.map_err(cluster.failed("store the job"))
}

/// The failure of a job that was not let in.
pub(super) fn refused(cluster: &Cluster, refusal: Refusal) -> Failure {
    match refusal {
        Refusal::Fields(wrong) => Failure::fields(&wrong),
        Refusal::Store(error) => cluster.failed("ask which handlers there are")(error),
    }
}

fn described(receipt: &Receipt) -> String {
    let Receipt { id, state, queue, due_at, duplicate_of } = receipt;
    match duplicate_of {
        Some(_) => format!("nothing was stored: {id} is there already, {} in queue {queue}", state.word()),
        None => format!("{id} is {} in queue {queue}, due at {due_at}", state.word()),
    }
}

impl JobFlags {
    /// The document that the flags stand for.
    fn request(self) -> Result<JobRequest, Failure> {
        let zone = self.tz.as_deref();
        if zone.is_some() && self.at.is_none() && self.deadline.is_none() {
            return Err(Failure::usage("--tz belongs to --at or --deadline"));
        }
        let instant = |field, flag, text: Option<String>| {
            let read = |text: String| input::instant(field, &text, zone);
            let named = |wrong: FieldError| Failure::fields(&[FieldError::new(field, format!("{flag} {}", wrong.message))]);
            text.map(read).transpose().map_err(named)
        };
        let mut request = JobRequest {
            handler: self.handler.unwrap_or_default(),
            args: self.args.map(|text| input::json(&text)).transpose()?,
            queue: self.queue,
            delay: self.delay,
            run_at: instant("run_at", "--at", self.at)?,
            priority: self.priority,
            max_attempts: self.max_attempts,
            retry: self.retry.map(|text| policy(&text)).transpose()?,
            timeout: self.timeout,
            deadline: instant("deadline", "--deadline", self.deadline)?,
            dedupe_for: self.dedupe_for,
            id: self.id,
            ..JobRequest::default()
        };
        let until = self.unique_until.map_or(Ok(UniqueUntil::Finished), |text| word("unique.until", text))?;
        request.unique = self.unique_key.map(|key| Unique { key, until });
        if let Some(text) = self.late {
            request.late = Some(LateRequest { policy: word("late.policy", text)?, grace: self.grace });
        }
        for (key, value) in self.tags {
            if let Some(other) = request.tags.insert(key.clone(), value) {
                return Err(Failure::usage(format!("tags: {key:?} is given twice, also as {other:?}")));
            }
        }
        Ok(request)
    }
}

/// A policy object, or a preset's name as it stands.
fn policy(text: &str) -> Result<Value, Failure> {
    if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map_err(|error| Failure::usage(format!("retry: not JSON: {error}")))
    } else {
        Ok(Value::String(text.to_owned()))
    }
}

/// One of a few words, which the command line has checked already.
fn word<T: DeserializeOwned>(field: &str, text: String) -> Result<T, Failure> {
    serde_json::from_value(Value::String(text)).map_err(|error| Failure::usage(format!("{field}: {error}")))
}

#[cfg(test)]
mod tests {
    use punctual_core::job::{Due, Late, Priority};

    use super::super::Command;
    use super::super::tests::parse;
    use super::*;

    fn flags(line: &[&str]) -> Result<JobRequest, Failure> {
        let cli = parse(&[&["enqueue"], line].concat()).map_err(Failure::usage)?;
        let Command::Enqueue(args) = cli.command else { panic!("not enqueue") };
        args.job.request()
    }

    #[test]
    fn every_flag_finds_its_field() {
        let line = "order.close --args {\"order_id\":7} --queue mail --delay 30m --priority high --max-attempts 3 --retry fast \
                    --timeout 10s --deadline 2099-01-01T00:00:00Z --unique-key k --unique-until started --dedupe-for 1h \
                    --late hold --grace 5m --id order-7 --tag a=b --tag c=d=e";
        let job = flags(&line.split_whitespace().collect::<Vec<_>>()).unwrap().check(1000).unwrap();
        assert_eq!((job.id.as_str(), job.queue.as_str(), job.priority), ("order-7", "mail", Priority::High));
        assert_eq!((job.due, job.late, job.grace_ms), (Due::In(1_800_000), Late::Hold, 300_000));
        let unique = job.unique.unwrap();
        assert_eq!((unique.key.as_str(), unique.until), ("k", UniqueUntil::Started));
        assert_eq!(job.dedupe, Some(("k".to_owned(), 3_600_000)));
        let spec = job.spec;
        assert_eq!((spec.args.as_str(), spec.max_attempts, spec.timeout_ms), (r#"{"order_id":7}"#, Some(3), Some(10_000)));
        assert!(spec.deadline_ms.is_some() && spec.retry.is_some() && spec.tags["c"] == "d=e");
    }

    #[test]
    fn local_times_take_their_zone() {
        let request = flags(&["h", "--at", "2099-07-01T02:00:00", "--tz", "Europe/Berlin"]).unwrap();
        assert_eq!(request.run_at.as_deref(), Some("2099-07-01T00:00:00.000Z"));
    }

    #[test]
    fn nonsense_is_refused() {
        let lines: &[&[&str]] = &[
            &[],
            &["h", "--delay", "1s", "--at", "2099-01-01T00:00:00Z"],
            &["h", "--at", "2099-01-01T00:00:00"],
            &["h", "--tz", "UTC"],
            &["h", "--unique-until", "started"],
            &["h", "--grace", "1s"],
            &["h", "--late", "never"],
            &["h", "--priority", "9"],
            &["h", "--max-attempts", "-1"],
            &["h", "--tag", "x"],
            &["h", "--tag", "a=1", "--tag", "a=2"],
            &["h", "--args", "{"],
            &["h", "--retry", "{"],
            &["h", "--bulk", "f"],
            &["--bulk", "f", "--wait"],
        ];
        for line in lines {
            assert!(flags(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn hyphens_are_arguments() {
        assert_eq!(flags(&["h", "--args", "-5"]).unwrap().args.unwrap().get(), "-5");
    }
}
