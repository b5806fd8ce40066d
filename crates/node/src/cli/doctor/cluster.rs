//! What `doctor` looks at in the cluster: who promotes, who beats, and whether jobs get on.

use punctual_core::clock;
use punctual_core::state::State;
use punctual_core::store::inspect::Page;
use punctual_core::store::overview::{NodeView, QueueView};

use super::super::failure::Failure;
use super::super::session::Cluster;
use super::Check;

/// Beyond a change of holder, a due job is promoted within this time.
const PROMOTION_MS: u64 = 5000;

pub(super) async fn look(cluster: &Cluster) -> Result<Vec<Check>, Failure> {
    let store = cluster.store();
    let lease = store.lease().await.map_err(cluster.failed("read the lease"))?;
    let nodes = store.node_views().await.map_err(cluster.failed("list the nodes"))?;
    let names = store.queues().await.map_err(cluster.failed("list the queues"))?;
    let alive: Vec<&NodeView> = nodes.iter().filter(|node| node.beat_age_ms.is_some()).collect();
    let now_ms = store.probe().await.map_err(cluster.failed("read the time"))?;
    let (mut queues, mut overdue) = (Vec::new(), Vec::new());
    for name in &names {
        let handlers = NodeView::handlers_of(&nodes, name);
        queues.push(store.queue(name, handlers.as_deref()).await.map_err(cluster.failed("look at the queues"))?);
        for state in [State::Scheduled, State::Retrying] {
            let page = Page { states: vec![state], limit: 1, cursor: None, handler: None, tag: None };
            let (jobs, _) = store.list(std::slice::from_ref(name), &page).await.map_err(cluster.failed("look at the queues"))?;
            let due_ms = jobs.first().and_then(|job| clock::parse_instant(&job.due_at).ok());
            overdue.extend(due_ms.map(|due_ms| (now_ms.saturating_sub(due_ms), name.clone())));
        }
    }
    let holder = match &lease {
        Some(held) => Check::fine("lease", format!("{} holds it in term {}", held.holder, held.term)),
        None => Check::wrong(
            "lease",
            "nobody holds it: nothing is promoted",
            "start a node (punctual node), or look at the logs of those that run",
        ),
    };
    let allowed_ms = clock::as_ms(cluster.config.lease.ttl) + PROMOTION_MS;
    Ok(vec![holder, beats(&nodes), promoter(overdue, allowed_ms), served(&queues, &alive), unroutable(&queues)])
}

fn beats(nodes: &[NodeView]) -> Check {
    let silent: Vec<&str> = nodes.iter().filter(|node| node.beat_age_ms.is_none()).map(|node| node.id.as_str()).collect();
    let alive = nodes.len() - silent.len();
    if !silent.is_empty() {
        let detail = format!("alive: {alive}, silent: {} ({})", silent.len(), silent.join(", "));
        return Check::wrong("nodes", detail, "the reaper removes dead nodes within seconds; if it does not, look at the lease");
    }
    if alive == 0 {
        return Check::wrong("nodes", "none", "start one with punctual node");
    }
    Check::fine("nodes", format!("alive: {alive}"))
}

/// `overdue`: how late the earliest waiting job of each queue is.
fn promoter(overdue: Vec<(u64, String)>, allowed_ms: u64) -> Check {
    match overdue.into_iter().max() {
        Some((late_ms, queue)) if late_ms > allowed_ms => Check::wrong(
            "promoter",
            format!("a job of queue {queue} is due since {late_ms} ms and not promoted"),
            "look at the log of the node that holds the lease; punctual lease --step-down lets another one try",
        ),
        _ => Check::fine("promoter", "no job is overdue"),
    }
}

/// A queue that nobody serves holds its jobs for ever.
fn served(queues: &[QueueView], alive: &[&NodeView]) -> Check {
    let mut oldest_ms = 0;
    let mut lonely = Vec::new();
    for queue in queues {
        oldest_ms = oldest_ms.max(queue.oldest_ready_ms.unwrap_or(0));
        let waits = queue.states.ready + queue.states.scheduled + queue.states.retrying > 0;
        let takers = alive.iter().any(|node| !node.draining && node.queues.contains_key(&queue.queue));
        if waits && !takers {
            lonely.push(queue.queue.as_str());
        }
    }
    if lonely.is_empty() {
        let paused: Vec<&str> = queues.iter().filter(|queue| queue.paused).map(|queue| queue.queue.as_str()).collect();
        let paused = if paused.is_empty() { String::new() } else { format!("; paused: {}", paused.join(", ")) };
        return Check::fine("queues", format!("{}, oldest ready job {oldest_ms} ms{paused}", queues.len()));
    }
    Check::wrong(
        "queues",
        format!("jobs wait where no node takes them: {}", lonely.join(", ")),
        "add these to node.queues of some node",
    )
}

fn unroutable(queues: &[QueueView]) -> Check {
    let list: Vec<String> = queues
        .iter()
        .flat_map(|queue| queue.unroutable.iter().map(move |(handler, count)| format!("{handler} ({count} in {})", queue.queue)))
        .collect();
    if list.is_empty() {
        return Check::fine("handlers", "every waiting job has one");
    }
    Check::wrong("handlers", format!("no node has {}", list.join(", ")), "deploy a node that has them, or cancel the jobs")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use punctual_core::store::overview::StateCounts;

    use super::*;

    fn node(queue: &str, beat_age_ms: Option<u64>) -> NodeView {
        NodeView {
            id: "n-1".to_owned(),
            name: "n".to_owned(),
            started_at: String::new(),
            beat_age_ms,
            queues: BTreeMap::from([(queue.to_owned(), 1)]),
            concurrency: 1,
            running: 0,
            version: String::new(),
            draining: false,
            handlers: Vec::new(),
        }
    }

    fn queue(name: &str, ready: u64) -> QueueView {
        QueueView {
            queue: name.to_owned(),
            paused: false,
            states: StateCounts { ready, ..StateCounts::default() },
            oldest_ready_ms: None,
            unroutable: BTreeMap::new(),
            due_soon: 0,
            totals: BTreeMap::new(),
        }
    }

    #[test]
    fn nodes_have_to_beat() {
        assert!(beats(&[node("a", Some(1))]).ok);
        assert!(!beats(&[]).ok && !beats(&[node("a", Some(1)), node("a", None)]).ok);
    }

    #[test]
    fn waiting_jobs_need_a_node_that_takes_their_queue() {
        let (serving, idle) = (node("a", Some(1)), node("b", Some(1)));
        assert!(served(&[queue("a", 1), queue("c", 0)], &[&serving]).ok);
        assert!(!served(&[queue("a", 1)], &[&idle]).ok);
        assert!(!served(&[queue("a", 1)], &[&NodeView { draining: true, ..serving }]).ok);
    }

    #[test]
    fn overdue_jobs_and_missing_handlers_are_named() {
        assert!(promoter(vec![(9_000, "a".to_owned())], 10_000).ok);
        assert!(promoter(vec![(1, "a".to_owned()), (11_000, "b".to_owned())], 10_000).detail.contains("queue b"));
        let mut view = queue("a", 1);
        view.unroutable.insert("comes.later".to_owned(), 3);
        assert!(unroutable(&[view]).detail.contains("comes.later (3 in a)"));
    }
}
