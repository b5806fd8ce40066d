//! What `doctor` asks the server itself: whether it answers, what it is, and whether it may lose jobs.

use std::time::{Duration, Instant};

use punctual_core::config::Redis;
use punctual_core::store::server::Server;

use super::super::failure::Failure;
use super::super::session::Cluster;
use super::Check;

/// Round trips of which the middle one counts.
const ROUNDS: usize = 5;
/// A round trip that is slower makes every claim and settle slow.
const SLOW: Duration = Duration::from_millis(50);

/// The checks, and whether the server answers at all.
pub(super) async fn look(cluster: &Cluster) -> (Vec<Check>, bool) {
    let unreachable = |error| {
        let failure = Failure::redis("reach the cluster", &cluster.config.redis.url, &error);
        let line = failure.lines().join("; ");
        let (what, todo) = line.split_once("; ").unwrap_or((&line, "look at the server"));
        (vec![Check::wrong("reachable", what, todo)], false)
    };
    let mut rounds = Vec::with_capacity(ROUNDS);
    // The first one pays for the connection.
    for round in 0..=ROUNDS {
        let started = Instant::now();
        if let Err(error) = cluster.store().probe().await {
            return unreachable(error);
        }
        if round > 0 {
            rounds.push(started.elapsed());
        }
    }
    rounds.sort();
    match cluster.store().server().await {
        Ok(server) => {
            let mut checks = vec![reachable(rounds[ROUNDS / 2], &cluster.config.redis)];
            checks.extend(judge(&server, &cluster.config.redis));
            (checks, true)
        }
        Err(error) => unreachable(error),
    }
}

fn reachable(latency: Duration, settings: &Redis) -> Check {
    let detail = format!("{} answers in {:.2} ms", settings.url, latency.as_secs_f64() * 1000.0);
    if latency < SLOW {
        Check::fine("reachable", detail)
    } else {
        Check::wrong("reachable", detail, "move Redis nearer to the nodes, or find out what keeps it busy (SLOWLOG GET)")
    }
}

fn judge(server: &Server, settings: &Redis) -> Vec<Check> {
    if server.version.is_empty() {
        let unknown = "unknown: the user may not call INFO";
        return ["version", "eviction", "persistence", "role", "memory"].map(|name| Check::fine(name, unknown)).to_vec();
    }
    vec![version(server), eviction(server, settings), persistence(server), role(server, settings), memory(server)]
}

fn version(server: &Server) -> Check {
    let detail = format!("{} {}", server.product, server.version);
    if server.is_supported() {
        Check::fine("version", detail)
    } else {
        Check::wrong("version", detail, "use Redis 7.0 or newer, or Valkey 7.2 or newer")
    }
}

fn eviction(server: &Server, settings: &Redis) -> Check {
    let policy = server.eviction.as_deref().unwrap_or("unknown");
    match (server.evicts(), settings.allow_eviction) {
        (false, _) => Check::fine("eviction", format!("maxmemory-policy {policy}")),
        (true, true) => Check::fine("eviction", format!("maxmemory-policy {policy}, allowed by redis.allow_eviction")),
        (true, false) => Check::wrong(
            "eviction",
            format!("maxmemory-policy {policy} throws jobs away when memory is full"),
            "CONFIG SET maxmemory-policy noeviction, and put it into redis.conf",
        ),
    }
}

fn persistence(server: &Server) -> Check {
    match (server.aof, server.aof_ok) {
        (true, true) => Check::fine("persistence", "append-only file is on"),
        (true, false) => Check::wrong(
            "persistence",
            "the last write of the append-only file failed",
            "look at the server's disk and log; until it is mended, a restart forgets jobs",
        ),
        (false, _) => Check::wrong(
            "persistence",
            "append-only file is off: a restart of the server forgets jobs",
            "CONFIG SET appendonly yes, and put it into redis.conf",
        ),
    }
}

fn role(server: &Server, settings: &Redis) -> Check {
    let (replicas, wanted) = (server.replicas, settings.wait_replicas);
    if server.role != "master" {
        return Check::wrong("role", "the server is a read-only replica", "name its primary in redis.url");
    }
    if replicas < u64::from(wanted) {
        return Check::wrong(
            "role",
            format!("primary with {replicas} replicas, while redis.wait_replicas = {wanted}"),
            "attach the missing replicas, or lower redis.wait_replicas: no enqueue can be confirmed",
        );
    }
    Check::fine("role", format!("primary with {replicas} replicas"))
}

fn memory(server: &Server) -> Check {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    if server.max_memory == 0 {
        return Check::fine("memory", format!("{} used, no maxmemory", mib(server.used_memory)));
    }
    let percent = u128::from(server.used_memory) * 100 / u128::from(server.max_memory);
    let detail = format!("{} of {} used, {percent} %", mib(server.used_memory), mib(server.max_memory));
    if percent < 90 {
        Check::fine("memory", detail)
    } else {
        Check::wrong("memory", detail, "raise maxmemory, shorten retention.succeeded and retention.dead, or delete jobs")
    }
}

#[cfg(test)]
mod tests {
    use punctual_core::config::Config;

    use super::*;

    fn healthy() -> Server {
        Server {
            product: "redis".to_owned(),
            version: "7.0.15".to_owned(),
            eviction: Some("noeviction".to_owned()),
            max_memory: 100 << 20,
            aof: true,
            aof_ok: true,
            role: "master".to_owned(),
            replicas: 0,
            used_memory: 10 << 20,
        }
    }

    fn wrong(server: &Server) -> Vec<&'static str> {
        let checks = judge(server, &Config::default().redis);
        assert!(checks.iter().all(|check| check.ok == check.todo.is_none()));
        checks.iter().filter(|check| !check.ok).map(|check| check.name).collect()
    }

    #[test]
    fn each_fault_of_a_server_is_found_alone() {
        assert_eq!(wrong(&healthy()), [""; 0]);
        assert_eq!(wrong(&Server { version: "6.2.14".to_owned(), ..healthy() }), ["version"]);
        assert_eq!(wrong(&Server { eviction: Some("allkeys-lru".to_owned()), ..healthy() }), ["eviction"]);
        assert_eq!(wrong(&Server { aof: false, ..healthy() }), ["persistence"]);
        assert_eq!(wrong(&Server { aof_ok: false, ..healthy() }), ["persistence"]);
        assert_eq!(wrong(&Server { role: "slave".to_owned(), ..healthy() }), ["role"]);
        assert_eq!(wrong(&Server { used_memory: 95 << 20, ..healthy() }), ["memory"]);
    }

    #[test]
    fn what_may_not_be_asked_is_no_finding() {
        assert_eq!(wrong(&Server::default()), [""; 0]);
    }
}
