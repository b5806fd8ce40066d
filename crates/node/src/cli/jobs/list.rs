//! `punctual jobs list`: a page of jobs, and the cursor of the next one.

use punctual_core::state::State;
use punctual_core::store::inspect::{Cursor, JobView, Page};
use serde::Serialize;

use super::super::failure::Failure;
use super::super::input;
use super::super::output::Output;
use super::super::session::Session;
use super::show::fill_max_attempts;

const EXAMPLE: &str = "\
Examples:
  punctual jobs list --state dead --handler order.close
  punctual jobs list --queue mail --tag tenant=acme --limit 200 -o json

Jobs that wait come by their time, ended ones newest first. A page may be short although more follows: next_cursor tells.";

/// Lists jobs.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Only this queue.
    #[arg(long, value_name = "Q", value_parser = input::queue)]
    queue: Option<String>,

    /// Only these states, such as dead or retrying,held.
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = state)]
    state: Vec<State>,

    /// Only this handler.
    #[arg(long, value_name = "NAME")]
    handler: Option<String>,

    /// Only jobs with this tag.
    #[arg(long, value_name = "K=V", value_parser = input::pair)]
    tag: Option<(String, String)>,

    /// Jobs per page.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: u16,

    /// Where the last page ended: its next_cursor, with the same filters.
    #[arg(long, value_name = "CURSOR", value_parser = cursor)]
    cursor: Option<Cursor>,
}

fn state(word: &str) -> Result<State, String> {
    State::from_word(word).ok_or_else(|| format!("one of {}", State::ALL.map(State::word).join(", ")))
}

fn cursor(text: &str) -> Result<Cursor, String> {
    Cursor::parse(text).ok_or_else(|| "not a next_cursor of an earlier page".to_owned())
}

#[derive(Serialize)]
struct Document {
    jobs: Vec<JobView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

pub(super) async fn run(session: &Session, args: Args) -> Result<(), Failure> {
    let cluster = session.connect().await?;
    let queues = match args.queue {
        Some(queue) => {
            cluster.known_queue(&queue).await?;
            vec![queue]
        }
        None => cluster.store().queues().await.map_err(cluster.failed("list the queues"))?,
    };
    let page = Page {
        states: if args.state.is_empty() { State::ALL.to_vec() } else { args.state },
        limit: usize::from(args.limit),
        cursor: args.cursor,
        handler: args.handler,
        tag: args.tag,
    };
    let (mut jobs, next) = cluster.store().list(&queues, &page).await.map_err(cluster.failed("list the jobs"))?;
    fill_max_attempts(&cluster, &mut jobs).await?;
    let document = Document { jobs, next_cursor: next.as_ref().map(Cursor::to_text) };
    session.out.show(&document, |out| text(out, &document))
}

fn text(out: Output, document: &Document) -> String {
    let row = |job: &JobView| {
        let tags: Vec<String> = job.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            job.id.clone(),
            job.handler.clone(),
            job.queue.clone(),
            job.state.word().to_owned(),
            job.due_at.clone(),
            format!("{}/{}", job.attempt, job.max_attempts),
            tags.join(" "),
        ]
    };
    let rows: Vec<Vec<String>> = document.jobs.iter().map(row).collect();
    let mut text = out.table(&["id", "handler", "queue", "state", "due", "attempt", "tags"], &rows);
    if let Some(next) = &document.next_cursor {
        text.push_str(&format!("\nmore: --cursor {next}"));
    }
    text
}
