//! `punctual queues …`: what lies in the queues, and whether their jobs are let out.

use clap::Subcommand;
use punctual_core::store::overview::{NodeView, QueueView};
use serde::Serialize;

use super::failure::Failure;
use super::input;
use super::output::Output;
use super::session::{Cluster, Session};

const EXAMPLE: &str = "\
Examples:
  punctual queues list
  punctual queues pause mail";

/// Looks at queues, or stops and starts them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists every queue that anybody used.
    #[command(after_help = "Example: punctual queues list -o json")]
    List,
    /// Shows one queue: jobs by state, age of the oldest ready one, jobs that no node can run.
    #[command(after_help = "Example: punctual queues show mail")]
    Show {
        /// Name of the queue.
        #[arg(value_name = "Q", value_parser = input::queue)]
        queue: String,
    },
    /// Lets no more jobs of a queue start, on all nodes; what runs goes on.
    #[command(after_help = "Example: punctual queues pause mail")]
    Pause {
        /// Name of the queue.
        #[arg(value_name = "Q", value_parser = input::queue)]
        queue: String,
    },
    /// Lets the jobs of a paused queue start again.
    #[command(after_help = "Example: punctual queues resume mail")]
    Resume {
        /// Name of the queue.
        #[arg(value_name = "Q", value_parser = input::queue)]
        queue: String,
    },
}

#[derive(Serialize)]
struct List {
    queues: Vec<QueueView>,
}

pub(super) async fn run(session: &Session, args: &Args) -> Result<(), Failure> {
    let cluster = session.connect().await?;
    match &args.command {
        Command::List => {
            let names = cluster.store().queues().await.map_err(cluster.failed("list the queues"))?;
            let nodes = nodes(&cluster).await?;
            let mut queues = Vec::with_capacity(names.len());
            for name in &names {
                queues.push(view(&cluster, name, &nodes).await?);
            }
            let document = List { queues };
            session.out.show(&document, |out| table(out, &document.queues))
        }
        Command::Show { queue } => {
            cluster.known_queue(queue).await?;
            let view = view(&cluster, queue, &nodes(&cluster).await?).await?;
            session.out.show(&view, |out| text(out, &view))
        }
        Command::Pause { queue } => set_paused(session, &cluster, queue, true).await,
        Command::Resume { queue } => set_paused(session, &cluster, queue, false).await,
    }
}

async fn set_paused(session: &Session, cluster: &Cluster, queue: &str, paused: bool) -> Result<(), Failure> {
    cluster.known_queue(queue).await?;
    let changed = if paused { cluster.store().pause(queue).await } else { cluster.store().resume(queue).await };
    let changed = changed.map_err(cluster.failed("pause or resume the queue"))?;
    let document = serde_json::json!({ "queue": queue, "paused": paused, "changed": changed });
    let already = if changed { "" } else { ", as it was before" };
    session.out.show(&document, |_| format!("{queue} is {}{already}", if paused { "paused" } else { "running" }))
}

async fn nodes(cluster: &Cluster) -> Result<Vec<NodeView>, Failure> {
    cluster.store().node_views().await.map_err(cluster.failed("list the nodes"))
}

async fn view(cluster: &Cluster, queue: &str, nodes: &[NodeView]) -> Result<QueueView, Failure> {
    let handlers = NodeView::handlers_of(nodes, queue);
    cluster.store().queue(queue, handlers.as_deref()).await.map_err(cluster.failed("look at the queue"))
}

fn seconds(ms: Option<u64>) -> String {
    ms.map_or_else(String::new, |ms| format!("{}.{:03} s", ms / 1000, ms % 1000))
}

fn table(out: Output, queues: &[QueueView]) -> String {
    let row = |view: &QueueView| {
        let states = &view.states;
        let counts = [states.scheduled, states.ready, states.running, states.retrying, states.held, states.dead];
        let mut row = vec![view.queue.clone(), if view.paused { "paused" } else { "" }.to_owned()];
        row.extend(counts.map(|count| count.to_string()));
        row.push(seconds(view.oldest_ready_ms));
        row
    };
    let header = ["queue", "paused", "scheduled", "ready", "running", "retrying", "held", "dead", "oldest ready"];
    out.table(&header, &queues.iter().map(row).collect::<Vec<_>>())
}

fn text(out: Output, view: &QueueView) -> String {
    let states = &view.states;
    let rows = [
        ("scheduled", states.scheduled),
        ("ready", states.ready),
        ("running", states.running),
        ("retrying", states.retrying),
        ("held", states.held),
        ("succeeded", states.succeeded),
        ("dead", states.dead),
        ("cancelled", states.cancelled),
    ];
    let rows = rows.map(|(state, count)| {
        let total = view.totals.get(state).map_or_else(String::new, u64::to_string);
        vec![state.to_owned(), count.to_string(), total]
    });
    let paused = if view.paused { " (paused)" } else { "" };
    let mut text = format!("queue {}{paused}\n\n{}\n", view.queue, out.table(&["state", "now", "in all"], &rows).trim_end());
    if let Some(enqueued) = view.totals.get("enqueued") {
        text.push_str(&format!("\nenqueued in all: {enqueued}"));
    }
    if let Some(age) = view.oldest_ready_ms {
        text.push_str(&format!("\noldest ready job: {}", seconds(Some(age))));
    }
    text.push_str(&format!("\ndue within a minute: {}\n", view.due_soon));
    for (handler, count) in &view.unroutable {
        text.push_str(&format!("no node has {}: {count} jobs wait for one\n", super::output::clean(handler)));
    }
    text
}
