//! How a node becomes, stays and ceases to be a member of the cluster.

use std::collections::BTreeMap;

use punctual_core::store::StoreError;
use punctual_core::store::nodes::{Advertised, NodeInfo};

use crate::pool::Pool;

/// A new identity: the node's name and a boot id that no earlier or later life of it shares.
#[must_use]
pub fn new_incarnation(name: &str) -> String {
    const ALPHABET: &[u8] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let boot: String = (0..10).map(|_| char::from(ALPHABET[fastrand::usize(..ALPHABET.len())])).collect();
    format!("{name}-{boot}")
}

/// What the node says of itself now.
#[must_use]
pub fn info(pool: &Pool) -> NodeInfo {
    let node = &pool.config.node;
    NodeInfo {
        name: node.name.clone(),
        started_ms: pool.status.joined_ms(),
        queues: node.queues.clone(),
        concurrency: node.concurrency,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        draining: pool.is_draining(),
        handlers: pool.registry.names(),
        dead_after_ms: punctual_core::clock::as_ms(node.dead_after),
    }
}

/// Beats, registers, and joins the owners of every queue.
///
/// # Errors
/// As any call; it may be repeated.
pub async fn register(pool: &Pool, incarnation: &str) -> Result<(), StoreError> {
    pool.status.joined(advertise(pool).await?);
    pool.data.beat(incarnation, pool.config.node.dead_after).await?;
    pool.data.register_node(incarnation, &info(pool)).await
}

/// Tells the cluster which queues and handlers this node has; returns Redis' time in milliseconds.
///
/// # Errors
/// As any call.
pub async fn advertise(pool: &Pool) -> Result<u64, StoreError> {
    let now_ms = pool.data.probe().await?;
    let handlers: BTreeMap<String, Advertised> = pool
        .registry
        .iter()
        .map(|handler| (handler.name.clone(), Advertised { schema: handler.schema.clone(), seen_ms: now_ms }))
        .collect();
    let queues: Vec<&str> = pool.config.node.queues.keys().map(String::as_str).collect();
    pool.data.advertise(&queues, &handlers).await?;
    Ok(now_ms)
}

/// Other living nodes of the same name: legal, but usually a mistake in a deployment.
///
/// # Errors
/// As any call.
pub async fn namesakes(pool: &Pool, incarnation: &str) -> Result<Vec<String>, StoreError> {
    let prefix = format!("{}-", pool.config.node.name);
    let ids: Vec<String> = pool
        .data
        .incarnations()
        .await?
        .into_iter()
        .filter(|id| id != incarnation && id.strip_prefix(&prefix).is_some_and(|boot| boot.len() == 10 && !boot.contains('-')))
        .collect();
    let (_, beats) = pool.data.beats(&ids).await?;
    Ok(ids.into_iter().zip(beats).filter(|(_, beats)| *beats).map(|(id, _)| id).collect())
}
