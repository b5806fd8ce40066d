//! The reaper's judgement about nodes that come and wake up while it looks. In process, so that what lies between two of its reads
//! can be stretched.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use punctual_core::config::Config;
use punctual_core::store::Store;
use punctual_core::store::lease::Acquired;
use punctual_core::store::nodes::NodeInfo;
use punctual_node::actors::reaper::{self, State};
use punctual_node::status::{Lease, Status};
use punctual_tests::{Proxy, RedisServer, fresh_namespace};
use tokio::time::Instant;

use crate::scene::SOON;

const QUEUE: &str = "default";
const DEAD_AFTER: Duration = Duration::from_secs(60);

fn info() -> NodeInfo {
    NodeInfo { name: "joining".to_owned(), queues: BTreeMap::from([(QUEUE.to_owned(), 1)]), ..NodeInfo::default() }
}

fn store(url: &str, namespace: &str) -> Result<(Config, Store)> {
    let mut config = Config::for_redis(url)?;
    config.redis.namespace = namespace.to_owned();
    let store = Store::new(&config.redis)?;
    Ok((config, store))
}

/// A node that holds the lease and whose beats are answered.
async fn holder(store: &Store) -> Result<(Arc<Status>, u64)> {
    let Acquired::Mine { term, .. } = store.acquire_lease("holder", DEAD_AFTER, 0).await? else {
        anyhow::bail!("somebody else holds the lease");
    };
    store.beat("holder", DEAD_AFTER).await?;
    let status = Arc::new(Status::new(DEAD_AFTER));
    status.set_incarnation("holder");
    status.beat_confirmed(Instant::now());
    status.set_lease(Lease { holder: Some("holder".to_owned()), term, mine: true });
    Ok((status, term))
}

#[tokio::test]
async fn nodes_that_join_while_the_reaper_looks_are_not_taken_for_dead() -> Result<()> {
    let redis = RedisServer::start().await?;
    let namespace = fresh_namespace();
    let proxy = Proxy::start(redis.port())?;
    let (config, slow) = store(&proxy.url(), &namespace)?;
    let (_, direct) = store(&redis.url(), &namespace)?;
    direct.register_queue(QUEUE).await?;
    let (status, _) = holder(&direct).await?;
    // Whatever it reads first, there is time for others to join before it reads the next.
    let looks = proxy.delay_command(
        |arguments: &[Vec<u8>]| matches!(arguments.first().map(Vec::as_slice), Some(b"HKEYS" | b"HGETALL")),
        Duration::from_millis(300),
    );
    let joining = direct.another();
    let joins = tokio::spawn(async move {
        let mut names = Vec::new();
        loop {
            let name = format!("joining-{}", names.len());
            if joining.beat(&name, DEAD_AFTER).await.is_err() || joining.register_node(&name, &info()).await.is_err() {
                return;
            }
            names.push(name);
            tokio::task::yield_now().await;
        }
    });
    let mut state = State::new(slow, status, DEAD_AFTER, 3, config.retention);
    let pass = tokio::time::timeout(SOON, reaper::run_once(&mut state)).await??;
    joins.abort();
    assert!(looks.fired() >= 2, "it looked {} times", looks.fired());
    assert!(pass.dead.is_empty(), "{:?}", pass.dead);
    let owners = direct.owners(QUEUE).await?;
    let gone: Vec<&String> = owners.iter().filter(|(_, gone)| *gone).map(|(name, _)| name).collect();
    assert!(!owners.is_empty() && gone.is_empty(), "{} of {} are gone, {:?} the first", gone.len(), owners.len(), gone.first());
    Ok(())
}

#[tokio::test]
async fn reaper_that_slept_through_its_lease_takes_nobodys_jobs() -> Result<()> {
    let redis = RedisServer::start().await?;
    let namespace = fresh_namespace();
    let (config, store) = store(&redis.url(), &namespace)?;
    store.register_queue(QUEUE).await?;
    let (status, term) = holder(&store).await?;
    // The next holder has been here since; the sleeper does not know yet.
    store.promote(QUEUE, term + 1, 1).await?;
    // An owner that is no member, as a reaper with an old picture of the cluster sees one.
    store.register_node("other", &info()).await?;
    store.deregister_node("other").await?;
    let mut state = State::new(store.another(), status, DEAD_AFTER, 3, config.retention);
    reaper::run_once(&mut state).await?;
    assert_eq!(store.owners(QUEUE).await?, [("other".to_owned(), false)]);
    Ok(())
}

#[tokio::test]
async fn node_that_left_since_the_reaper_read_its_list_is_not_called_dead() -> Result<()> {
    let redis = RedisServer::start().await?;
    let (config, store) = store(&redis.url(), &fresh_namespace())?;
    store.register_queue(QUEUE).await?;
    let (status, _) = holder(&store).await?;
    store.beat("other", DEAD_AFTER).await?;
    store.register_node("other", &info()).await?;
    // Little enough that a missing beat is a death at once.
    let mut state = State::new(store.another(), status, Duration::ZERO, 3, config.retention);
    assert_eq!(reaper::run_once(&mut state).await?.dead, Vec::<String>::new());
    assert!(store.leave(QUEUE, "other", Duration::ZERO).await?);
    store.deregister_node("other").await?;
    assert_eq!(reaper::run_once(&mut state).await?.dead, Vec::<String>::new());
    Ok(())
}
