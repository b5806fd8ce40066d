//! A server at its memory limit: nothing new is taken in, and what is there can still be worked off.

use std::time::Duration;

use punctual_core::job::{Due, Late, NewJob, UniqueUntil};
use punctual_core::state::{AttemptOutcome, Move, State};
use punctual_core::store::Kind;
use punctual_core::store::cancel::Acted;
use punctual_core::store::enqueue::CallId;
use punctual_core::store::lease::Acquired;
use punctual_core::store::reap::CrashPolicy;
use punctual_core::store::settle::Settled;
use punctual_tests::RedisServer;

use crate::table::{Bench, Q, TERM, bury, claimed, done, drop_all, ids, job, keep, moved, retry, to, unique};

/// Lowers the limit below what is in use.
async fn fill(bench: &Bench) {
    let mut limit = redis::cmd("CONFIG");
    limit.arg("SET").arg("maxmemory").arg("1mb");
    bench.command::<()>(&limit).await;
    let refused = bench.store.enqueue(&CallId::fresh(), Q, &[job("ZZZ")]).await.expect_err("the server is full");
    assert_eq!(refused.kind, Kind::Full, "{refused}");
    assert!(refused.is_transient() && !refused.may_have_run());
}

async fn server() -> RedisServer {
    RedisServer::start().await.expect("a server")
}

#[tokio::test]
async fn enqueue_on_a_full_server_is_refused_and_stores_nothing() {
    let server = server().await;
    let bench = Bench::on(&server).await;
    bench.enqueue(&[job("A")]).await;
    let before = bench.table().await;
    fill(&bench).await;
    let jobs = [job("B"), unique("C", "k", UniqueUntil::Finished), NewJob { due: Due::In(5), ..job("D") }];
    let call = CallId::named("1");
    assert_eq!(bench.store.enqueue(&call, Q, &jobs).await.unwrap_err().kind, Kind::Full);
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn running_jobs_end_on_a_full_server_in_every_way() {
    let server = server().await;
    let bench = Bench::on(&server).await;
    bench.join("n").await;
    let names = ["A", "B", "C", "D", "E", "F", "G", "H"];
    bench.enqueue(&names.map(|name| unique(name, name, UniqueUntil::Finished))).await;
    let (token, jobs) = claimed(bench.claim("n", 1, 9).await);
    assert_eq!(jobs.len(), names.len());
    fill(&bench).await;
    let result = Move { result: Some("1".to_owned()), ..done() };
    let ends = [
        ("A", keep(), result.clone()),
        ("B", keep(), retry(1000)),
        ("C", keep(), bury("x")),
        ("D", keep(), to(State::Scheduled, AttemptOutcome::Snoozed)),
        ("E", keep(), to(State::Ready, AttemptOutcome::HandedBack)),
        ("F", keep(), done()),
        ("G", drop_all(), result),
        ("H", drop_all(), bury("x")),
    ];
    for (name, keep, end) in ends {
        // One by one: in a batch the first write would speak for all.
        let answers = bench.settle_keeping(&keep, "n", &[(name, token, end)]).await;
        assert_eq!(answers, [Settled::Done], "{name}");
    }
    let table = bench.table().await;
    for there in ["results A 1", "retrying B", "dead C", "scheduled D", "r2 [E]", "succeeded F"] {
        assert!(table.has(there), "{there}");
    }
    assert!(!table.has("b G") && !table.has("b H") && !table.has("run:"));
}

#[tokio::test]
async fn ready_jobs_are_claimed_on_a_full_server_and_make_room() {
    let server = server().await;
    let bench = Bench::on(&server).await;
    bench.join("n").await;
    let jobs: Vec<NewJob> = (0..100).map(|n| job(&format!("{n:02}Z"))).collect();
    bench.enqueue(&jobs).await;
    fill(&bench).await;
    let mut ended = 0;
    for number in 1.. {
        let (token, jobs) = claimed(bench.claim("n", number, 10).await);
        if jobs.is_empty() {
            break;
        }
        let ends: Vec<(&str, u64, Move)> = jobs.iter().map(|job| (job.id.as_str(), token, done())).collect();
        bench.settle_keeping(&drop_all(), "n", &ends).await;
        ended += jobs.len();
    }
    assert_eq!(ended, 100);
    assert!(!bench.table().await.has("b "));
}

#[tokio::test]
async fn a_full_server_is_cleared_by_retention_and_by_hand() {
    let server = server().await;
    let bench = Bench::on(&server).await;
    bench.die(job("A"), "n", 1).await;
    bench.run(job("D"), "n", 2).await;
    bench.run(job("E"), "n", 3).await;
    bench.enqueue(&["B", "C"].map(job)).await;
    fill(&bench).await;
    assert_eq!(bench.store.trim(Q, &drop_all()).await.unwrap(), 1);
    assert_eq!(bench.store.delete(Q, &ids(&["B", "D"])).await.unwrap(), [true, true]);
    let asked = bench.store.cancel(Q, &ids(&["E"])).await.unwrap();
    assert_eq!(asked, [Acted::Done(State::Running)]);
    assert_eq!(bench.store.cancel(Q, &ids(&["C"])).await.unwrap(), [Acted::Done(State::Cancelled)]);
    assert!(bench.table().await.has("cancelled C"));
}

#[tokio::test]
async fn a_full_server_keeps_leader_and_nodes_and_lets_jobs_of_the_dead_go() {
    let server = server().await;
    let bench = Bench::on(&server).await;
    let ttl = Duration::from_secs(60);
    let Acquired::Mine { term, .. } = bench.store.acquire_lease("n", ttl, 0).await.unwrap() else { panic!("held") };
    bench.store.beat("n", ttl).await.unwrap();
    bench.run(job("A"), "dead", 1).await;
    let late = NewJob { due: Due::In(6), late: Late::Skip, ..job("E") };
    bench.enqueue(&[job("B"), NewJob { due: Due::In(1), ..job("C") }, NewJob { due: Due::In(5), ..job("D") }, late]).await;
    bench.fetch("dead").await;
    bench.at(1);
    bench.promote().await;
    fill(&bench).await;
    // Without a beat a node claims nothing, and nobody would ever make room.
    bench.store.beat("n", ttl * 2).await.unwrap();
    assert!(bench.store.renew_lease("n", term, ttl).await.unwrap());
    bench.at(5);
    assert_eq!(moved(&bench.store.promote(Q, TERM, 10).await.unwrap()).0, 1);
    let reaped = bench.store.reap(Q, "dead", TERM, &CrashPolicy::new(3)).await.unwrap();
    assert_eq!((reaped.requeued, reaped.unclaimed), (1, 1));
    let mut ready: Vec<String> = bench.raw("LRANGE", "r2", &["0", "-1"]).await;
    ready.sort();
    assert_eq!(ready, ids(&["A", "B", "C", "D"]));
    assert!(bench.store.release_lease("n", term).await.unwrap());
    let Acquired::Mine { term, .. } = bench.store.acquire_lease("m", ttl, 0).await.unwrap() else { panic!("held") };
    bench.at(60);
    // The new leader's first promotion raises the fence and lets a late job go.
    assert_eq!(moved(&bench.store.promote(Q, term, 10).await.unwrap()), (0, None, 1, 0));
}
