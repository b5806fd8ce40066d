//! `punctual nodes …`: who is in the cluster, and taking one of them out of service.

use std::time::{Duration, Instant};

use clap::Subcommand;
use punctual_core::store::nudge::Nudge;
use punctual_core::store::overview::NodeView;
use serde::Serialize;

use super::failure::Failure;
use super::output::{Output, note};
use super::session::{Cluster, Session};

/// A node says that it drains within this time, or the command has failed.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// A nudge is only a hint, so it is given again.
const NUDGE_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);

const EXAMPLE: &str = "\
Examples:
  punctual nodes list
  punctual nodes drain worker-1-1f3a9c";

/// Looks at the nodes of the cluster, or takes one out of service.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the nodes: who beats, what each runs.
    #[command(after_help = "Example: punctual nodes list -o json")]
    List,
    /// Lets a node take no more jobs; it stays up, unready, until it is stopped.
    #[command(after_help = "Example: punctual nodes drain worker-1-1f3a9c")]
    Drain {
        /// Id of the node, or its name while only one node has it.
        #[arg(value_name = "ID")]
        id: String,
    },
}

#[derive(Serialize)]
struct List {
    nodes: Vec<NodeView>,
}

#[derive(Serialize)]
struct Drained {
    results: [DrainResult; 1],
}

#[derive(Serialize)]
struct DrainResult {
    id: String,
    ok: bool,
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(super) async fn run(session: &Session, args: &Args) -> Result<(), Failure> {
    let cluster = session.connect().await?;
    let nodes = all(&cluster).await?;
    match &args.command {
        Command::List => {
            let document = List { nodes };
            session.out.show(&document, |out| table(out, &document.nodes))
        }
        Command::Drain { id } => {
            let id = named(&nodes, id)?;
            // A draining node neither takes jobs nor leads, and only a new start ends that.
            if !nodes.iter().any(|node| node.id != id && node.beat_age_ms.is_some() && !node.draining) {
                note(format!(
                    "{id} is the last node that works: nothing is promoted, and dead nodes' jobs wait, until another starts"
                ));
            }
            let draining = drain(&cluster, &id).await?;
            let error = (!draining)
                .then(|| format!("no sign of it within {} s: is the node alive (punctual nodes list)?", DRAIN_WITHIN.as_secs()));
            let state = draining.then_some("draining");
            let document = Drained { results: [DrainResult { id, ok: draining, state, error }] };
            session.out.show(&document, |_| {
                let [result] = &document.results;
                match &result.error {
                    None => format!("{} is draining", result.id),
                    Some(error) => format!("{}: {error}", result.id),
                }
            })?;
            if draining { Ok(()) } else { Err(Failure::told()) }
        }
    }
}

async fn all(cluster: &Cluster) -> Result<Vec<NodeView>, Failure> {
    cluster.store().node_views().await.map_err(cluster.failed("list the nodes"))
}

/// The id that a user means: ids change at every start, names do not.
fn named(nodes: &[NodeView], wanted: &str) -> Result<String, Failure> {
    if nodes.iter().any(|node| node.id == wanted) {
        return Ok(wanted.to_owned());
    }
    let ids: Vec<&str> = nodes.iter().filter(|node| node.name == wanted).map(|node| node.id.as_str()).collect();
    match ids.as_slice() {
        [id] => Ok((*id).to_owned()),
        [] => Err(Failure::failed(format!("no node {wanted:?} in this cluster (punctual nodes list)"))),
        several => Err(Failure::usage(format!("{wanted:?} may be {}; name one of them", several.join(" or ")))),
    }
}

async fn drain(cluster: &Cluster, id: &str) -> Result<bool, Failure> {
    let started = Instant::now();
    let mut nudged: Option<Instant> = None;
    while started.elapsed() < DRAIN_WITHIN {
        if nudged.is_none_or(|at| at.elapsed() >= NUDGE_EVERY) {
            cluster.store().publish(&Nudge::Drain(id.to_owned())).await.map_err(cluster.failed("ask the node"))?;
            nudged = Some(Instant::now());
        }
        if all(cluster).await?.iter().any(|node| node.id == id && node.draining) {
            return Ok(true);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(false)
}

fn table(out: Output, nodes: &[NodeView]) -> String {
    let row = |node: &NodeView| {
        let beat = node.beat_age_ms.map_or_else(|| "silent".to_owned(), |age| format!("{age} ms ago"));
        let queues: Vec<String> = node.queues.iter().map(|(queue, weight)| format!("{queue}={weight}")).collect();
        vec![
            node.id.clone(),
            beat,
            format!("{}/{}", node.running, node.concurrency),
            queues.join(" "),
            if node.draining { "draining" } else { "" }.to_owned(),
            node.version.clone(),
            node.started_at.clone(),
        ]
    };
    let header = ["id", "beat", "runs", "queues", "draining", "version", "started"];
    out.table(&header, &nodes.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, name: &str) -> NodeView {
        NodeView {
            id: id.to_owned(),
            name: name.to_owned(),
            started_at: String::new(),
            beat_age_ms: None,
            queues: std::collections::BTreeMap::new(),
            concurrency: 1,
            running: 0,
            version: String::new(),
            draining: false,
            handlers: Vec::new(),
        }
    }

    #[test]
    fn a_name_stands_for_its_only_node() {
        let nodes = [node("a-1", "a"), node("b-1", "b"), node("b-2", "b")];
        assert_eq!(named(&nodes, "a").unwrap(), "a-1");
        assert_eq!(named(&nodes, "b-2").unwrap(), "b-2");
        assert!(named(&nodes, "b").is_err() && named(&nodes, "c").is_err());
        assert!(table(Output::new(super::super::output::Format::Table), &nodes).contains("silent"));
    }
}
