//! `punctual run`: runs a handler here and now, without Redis: the way to debug one.
//!
//! It runs under the timeout that a node would give it; what it says would become of the job is computed by the same state
//! machine. Ctrl-C cancels it as a node would; the second one ends it. Absent: retries, and a cluster to enqueue into.

use std::time::{Duration, Instant};

use punctual_core::clock;
use punctual_core::handler::{JobContext, JobIdentity, Note, Outcome, Registered};
use punctual_core::job::{self, JobRequest};
use punctual_core::policy::{self, Effective};
use punctual_core::state::{self, Ended, Limits, Move, State};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use super::admit::{if_demo, near};
use super::failure::Failure;
use super::input;
use super::output::{clean, note};
use super::session::Session;

const EXAMPLE: &str = "\
Examples:
  punctual run order.close --args '{\"order_id\":7,\"shop\":\"https://shop.example\"}'
  punctual run process.exec --args @job.json -o json

Exit code 0 only when the handler is done. Its log lines and progress go to standard error.";

/// Runs a handler here and now, without Redis.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Name of the handler, as in `punctual handlers`.
    handler: String,

    /// Arguments as JSON, from a file with @FILE, or from standard input with -.
    #[arg(long, value_name = "JSON", allow_hyphen_values = true, default_value = "{}")]
    args: String,

    /// Which attempt the handler is told that this is.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    attempt: u32,
}

/// What it said, in the words of an attempt, and where a node would put the job.
#[derive(Serialize)]
struct Document {
    handler: String,
    outcome: &'static str,
    state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Until the next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    elapsed_ms: u64,
}

pub(super) fn run(session: &Session, args: &Args) -> Result<(), Failure> {
    let config = session.load()?.config;
    let registry = session.handlers(&config);
    let Some(handler) = registry.get(&args.handler) else {
        let near = near(&args.handler, registry.names().into_iter());
        let demo = if_demo(&args.handler, &session.all_handlers());
        return Err(Failure::usage(format!("handler: {:?} is not in this program{near}{demo}", args.handler)));
    };
    let request = JobRequest { handler: args.handler.clone(), args: Some(input::json(&args.args)?), ..JobRequest::default() };
    let job = request.check(config.jobs.max_payload.as_usize()).map_err(|wrong| Failure::fields(&wrong))?;
    handler.check(&job.spec.args).map_err(|wrong| Failure::fields(&[wrong]))?;
    let effective = policy::effective(&job.spec, Some(handler), &config);
    let identity = JobIdentity {
        id: job::new_id(),
        queue: job.queue,
        handler: args.handler.clone(),
        attempt: args.attempt,
        due_ms: clock::local_ms(),
        // As large as a real one, so that a database compares them as it will later.
        claim: clock::local_ms() * 1000,
        headers: job.spec.headers,
    };
    let cancel = CancellationToken::new();
    let context = JobContext::new(identity, cancel.clone(), &registry, None, tell);
    // Several threads: a handler may block one of them, and Ctrl-C has to be heard all the same.
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::failed(format!("start the runtime: {error}")))?;
    let started = Instant::now();
    let ended = runtime.block_on(one_attempt(handler, &job.spec.args, context, &cancel, effective.timeout));
    let elapsed_ms = clock::as_ms(started.elapsed());
    // A handler that does not listen must not keep the process.
    runtime.shutdown_background();
    let document = document(&args.handler, ended, args.attempt, effective, elapsed_ms);
    session.out.show(&document, |_| text(&document))?;
    if document.state == State::Succeeded { Ok(()) } else { Err(Failure::told()) }
}

async fn one_attempt(handler: &Registered, args: &str, job: JobContext, cancel: &CancellationToken, limit: Duration) -> Ended {
    let mut task = tokio::spawn(handler.run(args, job));
    let mut over = std::pin::pin!(tokio::time::sleep(limit));
    let mut asked = false;
    loop {
        tokio::select! {
            joined = &mut task => return ended(joined, asked),
            () = &mut over => {
                cancel.cancel();
                task.abort();
                return Ended::TimedOut(limit);
            }
            Ok(()) = tokio::signal::ctrl_c() => {
                if asked {
                    task.abort();
                    return Ended::Cancelled;
                }
                asked = true;
                cancel.cancel();
                note("asked the handler to stop; Ctrl-C again ends it now");
            }
        }
    }
}

/// `asked`: whether the handler was told to stop. What it was done with all the same is done.
fn ended(joined: Result<Outcome, JoinError>, asked: bool) -> Ended {
    match joined {
        Ok(Outcome::Done(result)) => Ended::Done(result),
        Ok(_) if asked => Ended::Cancelled,
        Ok(Outcome::Retry(error)) => Ended::Retry(error),
        Ok(Outcome::RetryAfter(wait, error)) => Ended::RetryAfter(wait, error),
        Ok(Outcome::Snooze(wait)) => Ended::Snooze(wait),
        Ok(Outcome::Dead(reason)) => Ended::Dead(reason),
        Ok(Outcome::Discard(reason)) => Ended::Discard(reason),
        Err(error) => Ended::Panicked(panic_text(error)),
    }
}

fn panic_text(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "aborted".to_owned() };
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().map_or_else(|| "no text".to_owned(), |text| (*text).to_owned()),
    }
}

fn document(handler: &str, ended: Ended, attempt: u32, effective: Effective, elapsed_ms: u64) -> Document {
    let Effective { max_attempts, retry, .. } = effective;
    let limits = Limits { attempt, max_attempts, policy: retry, age: Duration::ZERO, roll: 0.5 };
    let Move { to, delay, outcome, text, result } = state::after(ended, &limits);
    let waits = matches!(to, State::Retrying | State::Scheduled);
    Document {
        handler: handler.to_owned(),
        // Only ends that never ran a handler have no outcome.
        outcome: outcome.map_or("failed", state::AttemptOutcome::word),
        state: to,
        result: result.and_then(|text| RawValue::from_string(text).ok()),
        error: (!text.is_empty()).then_some(text),
        delay_ms: waits.then(|| clock::as_ms(delay)),
        elapsed_ms,
    }
}

fn text(document: &Document) -> String {
    let Document { outcome, state, elapsed_ms, .. } = document;
    let mut text = format!("{outcome} after {elapsed_ms} ms");
    match document.delay_ms {
        Some(ms) => text.push_str(&format!("; a node would run it again in {ms} ms")),
        None if *state != State::Succeeded => text.push_str(&format!("; on a node the job would be {}", state.word())),
        None => {}
    }
    for part in [document.error.as_deref(), document.result.as_ref().map(|result| result.get())].into_iter().flatten() {
        text.push_str(&format!("\n{}", clean(part)));
    }
    text
}

/// What the handler tells while it runs.
fn tell(said: Note) {
    match said {
        Note::Progress(percent, text) => note(format!("progress {percent} % {}", clean(&text))),
        Note::Log(line) => note(format!("log {}", clean(&line))),
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::backoff::RetryPolicy;

    use super::*;

    fn effective(max_attempts: u32) -> Effective {
        Effective { max_attempts, retry: RetryPolicy::default(), timeout: Duration::from_secs(1) }
    }

    #[test]
    fn document_tells_outcome_and_what_a_node_would_do() {
        let done = document("h", Ended::Done(Some("[1, 2]".to_owned())), 1, effective(5), 7);
        let json = serde_json::to_string(&done).unwrap();
        assert_eq!(json, r#"{"handler":"h","outcome":"succeeded","state":"succeeded","result":[1, 2],"elapsed_ms":7}"#);
        let retry = document("h", Ended::Retry("boom".to_owned()), 1, effective(5), 7);
        assert_eq!((retry.outcome, retry.state, retry.delay_ms), ("failed", State::Retrying, Some(60_000)));
        let last = document("h", Ended::Panicked("boom".to_owned()), 5, effective(5), 7);
        assert_eq!((last.outcome, last.state, last.delay_ms), ("panicked", State::Dead, None));
        assert!(text(&last).contains("dead") && text(&last).ends_with("panicked: boom"));
    }

    #[tokio::test]
    async fn panics_are_outcomes_with_their_text() {
        for task in [tokio::spawn(async { panic!("plain") }), tokio::spawn(async { panic!("with {}", "words") })] {
            let joined: Result<Outcome, JoinError> = task.await;
            let Ended::Panicked(text) = ended(joined, false) else { panic!("not a panic") };
            assert!(["plain", "with words"].contains(&text.as_str()), "{text}");
        }
        assert_eq!(ended(Ok(Outcome::retry("cancelled")), true), Ended::Cancelled);
    }
}
