//! Finds out in which queue a job lies. Ids are per queue, so an id of a caller's own may lie in several.

use punctual_core::state::State;
use punctual_core::store::inspect::Found;

use super::super::failure::Failure;
use super::super::session::Cluster;

/// Jobs asked for in one round trip.
const AT_ONCE: usize = 500;

/// Where an id was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In this queue alone, in this state when it was looked for.
    In(String, State),
    /// In none.
    Nowhere,
    /// In all of these: only the caller knows which one is meant.
    Several(Vec<String>),
}

impl Place {
    /// Why nothing can be done with an id; empty for a job that was found.
    pub(super) fn error(&self, id: &str, queue: Option<&str>) -> String {
        match (self, queue) {
            (Self::In(..), _) => String::new(),
            (Self::Nowhere, Some(queue)) => format!("no job {id} in queue {queue}"),
            (Self::Nowhere, None) => format!("no job {id} in any queue"),
            (Self::Several(queues), _) => format!("{id} is in the queues {}; say which with --queue", queues.join(", ")),
        }
    }
}

/// The places of the ids, in their order.
pub(super) async fn locate(cluster: &Cluster, ids: &[String], queue: Option<&str>) -> Result<Vec<Place>, Failure> {
    let queues = match queue {
        Some(queue) => vec![queue.to_owned()],
        None => cluster.store().queues().await.map_err(cluster.failed("list the queues"))?,
    };
    let pairs: Vec<(String, String)> = ids.iter().flat_map(|id| queues.iter().map(|queue| (queue.clone(), id.clone()))).collect();
    let mut found: Vec<Option<Found>> = Vec::with_capacity(pairs.len());
    for page in pairs.chunks(AT_ONCE) {
        found.extend(cluster.store().read(page).await.map_err(cluster.failed("look for the jobs"))?);
    }
    let mut found = found.into_iter();
    Ok(ids
        .iter()
        .map(|_| {
            let mut holders = found.by_ref().take(queues.len()).flatten();
            match (holders.next(), holders.next()) {
                (None, _) => Place::Nowhere,
                (Some(one), None) => Place::In(one.queue, one.state),
                (Some(one), Some(two)) => {
                    Place::Several([one, two].into_iter().chain(holders).map(|holder| holder.queue).collect())
                }
            }
        })
        .collect())
}
