//! What the other nodes can run. Asked only about jobs that this node cannot.

use std::time::Duration;

use punctual_core::state::unroutable_wait;
use punctual_core::store::Store;
use punctual_core::store::nodes::NodeInfo;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long an answer is believed.
const FRESH: Duration = Duration::from_secs(5);

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The live nodes, as of a few seconds ago.
#[derive(Debug, Default)]
pub struct Peers(Mutex<Option<(Instant, Vec<NodeInfo>)>>);

impl Peers {
    /// How long a job waits that was met by a node without its handler: always the first step while another node of its queue can run
    /// it, because then the next one to fetch it is likely the right one; else longer each time. `handler` is `None` for a record that
    /// only a newer release can read, which is then any other one.
    pub async fn wait_for(&self, store: &Store, queue: &str, handler: Option<&str>, times_before: u32) -> Duration {
        let routable = self.any(store, |node| can_run(node, queue, handler)).await;
        unroutable_wait(if routable { 0 } else { times_before })
    }

    async fn any(&self, store: &Store, wanted: impl Fn(&NodeInfo) -> bool) -> bool {
        // Held while Redis is asked, so that a batch of such jobs asks once.
        let mut seen = self.0.lock().await;
        if seen.as_ref().is_none_or(|(at, _)| at.elapsed() >= FRESH) {
            // Without an answer there is no reason to hurry, and none to ask again for each job.
            *seen = Some((Instant::now(), store.live_nodes().await.unwrap_or_default()));
        }
        seen.as_ref().is_some_and(|(_, nodes)| nodes.iter().any(wanted))
    }
}

fn can_run(node: &NodeInfo, queue: &str, handler: Option<&str>) -> bool {
    let knows = handler.map_or_else(|| node.version != VERSION, |handler| node.handlers.iter().any(|name| name == handler));
    knows && !node.draining && node.queues.contains_key(queue)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_of_the_queue_that_stays_and_knows_the_handler_can_run_a_job() {
        let node = NodeInfo {
            queues: [("a".to_owned(), 1)].into(),
            handlers: vec!["x".to_owned()],
            version: VERSION.to_owned(),
            ..NodeInfo::default()
        };
        assert!(can_run(&node, "a", Some("x")));
        assert!(!can_run(&node, "a", Some("y")));
        assert!(!can_run(&node, "b", Some("x")));
        assert!(!can_run(&NodeInfo { draining: true, ..node.clone() }, "a", Some("x")));
        // A record of a newer release.
        assert!(!can_run(&node, "a", None));
        assert!(can_run(&NodeInfo { version: "999.0.0".to_owned(), ..node }, "a", None));
    }
}
