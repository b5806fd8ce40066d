//! What `doctor` finds and mends: damage from outside.

use std::time::Duration;

use punctual_core::job::{Due, NewJob, Priority, UniqueUntil};
use punctual_core::state::State;
use punctual_core::store::reap::CrashPolicy;
use punctual_core::store::repair::Damage;

use crate::states::{self, bench_with};
use crate::table::{Bench, Q, TERM, band, claimed, done, id, ids, job, moved, names, own, tidy};

/// What a look finds, as `kind name: ids`.
async fn found(bench: &Bench) -> Vec<String> {
    let damage = bench.store.examine(Q).await.expect("an answer");
    let text = |one: &Damage| {
        let mut ids: Vec<String> = one.ids.iter().map(|id| tidy(id)).collect();
        ids.sort();
        format!("{} {}: {}", one.kind, one.name, ids.join(" "))
    };
    damage.iter().map(text).collect()
}

async fn mend(bench: &Bench) -> u64 {
    let mut mended = 0;
    for damage in bench.store.examine(Q).await.expect("an answer") {
        mended += bench.store.repair(&damage).await.expect("an answer");
    }
    mended
}

async fn lose_body(bench: &Bench, id: &str) {
    let bucket = bench.store.keys().bucket(Q, id);
    bench.command::<()>(redis::cmd("HDEL").arg(bucket).arg(id)).await;
}

#[tokio::test]
async fn examine_finds_nothing_in_a_healthy_queue_and_changes_nothing() {
    for state in states::ALL {
        let (bench, token) = bench_with(state).await;
        bench.store.note(Q, &crate::note::both("A", token)).await.unwrap();
        bench.enqueue(&[own("order-7"), band("B", Priority::Low), job("C")]).await;
        bench.join("n").await;
        bench.fetch("n").await;
        bench.fetch("n").await;
        let before = bench.table().await;
        assert_eq!(found(&bench).await, [""; 0], "{state:?}");
        bench.unchanged(&before).await;
    }
}

#[tokio::test]
async fn repair_puts_a_job_back_where_its_state_says_it_stands() {
    use State::{Cancelled, Dead, Held, Retrying, Scheduled, Succeeded};
    for state in [Scheduled, Retrying, Succeeded, Dead, Cancelled, Held] {
        let (bench, _) = bench_with(state).await;
        bench.enqueue(&[job("B")]).await;
        if state == Cancelled {
            // Not the entry in the ready list: it would count as a place.
            bench.raw::<()>("DEL", "r2", &[]).await;
            bench.enqueue(&[job("C")]).await;
        }
        let before = bench.table().await;
        bench.raw::<()>("DEL", state.word(), &[]).await;
        if state == Cancelled {
            bench.raw::<()>("DEL", "b:0B", &[]).await;
        }
        let lost = found(&bench).await;
        assert_eq!(lost, ["lost : A"], "{state:?}");
        assert_eq!(mend(&bench).await, 1, "{state:?}");
        if state != Cancelled {
            bench.unchanged(&before).await;
        }
        assert_eq!(found(&bench).await, [""; 0], "{state:?}");
    }
}

#[tokio::test]
async fn repair_places_a_lost_ready_job_at_the_front_of_its_band() {
    let bench = Bench::new().await;
    bench.enqueue(&[band("A", Priority::High), job("B"), NewJob { priority: Priority::High, ..own("order-7") }]).await;
    bench.raw::<()>("DEL", "r1", &[]).await;
    bench.raw::<()>("DEL", "r2", &[]).await;
    bench.enqueue(&[band("C", Priority::High)]).await;
    let before = bench.table().await;
    assert_eq!(found(&bench).await, ["lost : A B order-7"]);
    assert_eq!(mend(&bench).await, 3);
    let after = bench.table().await;
    let mut entries: Vec<String> = bench.raw("LRANGE", "r1", &["0", "-1"]).await;
    assert_eq!(entries.remove(0), id("C"));
    entries.sort();
    assert_eq!(entries, [id("A"), "order-7#1800000000000000".to_owned()]);
    assert!(after.lines("r2")[0].contains('B'), "{:?}", after.lines("r2"));
    assert_eq!(before.lines("b "), after.lines("b "));
    assert_eq!(mend(&bench).await, 0);
    bench.join("n").await;
    assert_eq!(names(bench.claim("n", 1, 9).await).len(), 4);
}

#[tokio::test]
async fn repair_never_makes_a_job_early() {
    let bench = Bench::new().await;
    bench.enqueue(&[NewJob { due: Due::In(1000), ..job("A") }, NewJob { due: Due::In(5), ..job("B") }]).await;
    let before = bench.table().await;
    bench.raw::<()>("DEL", "scheduled", &[]).await;
    bench.at(4);
    assert_eq!(mend(&bench).await, 2);
    bench.unchanged(&before).await;
    bench.raw::<()>("DEL", "scheduled", &[]).await;
    bench.at(5);
    assert_eq!(mend(&bench).await, 2);
    bench
        .changed(
            &before,
            "- scheduled B t5
                            + r2 [B]",
        )
        .await;
}

#[tokio::test]
async fn repair_gives_a_lost_claim_to_its_node_or_to_the_reaper() {
    // The set of a living owner is lost: its sweep finds the job again, and its settle works.
    let (bench, token) = bench_with(State::Running).await;
    let before = bench.table().await;
    bench.raw::<()>("DEL", "run:n", &[]).await;
    assert_eq!(found(&bench).await, ["lost : A"]);
    assert_eq!(mend(&bench).await, 1);
    bench.unchanged(&before).await;
    assert_eq!(bench.store.sweep(Q, "n").await.unwrap().jobs[0].token, token);
    // The owner is lost too: the reaper takes the job.
    bench.raw::<()>("DEL", "run:n", &[]).await;
    bench.raw::<()>("DEL", "owners", &[]).await;
    assert_eq!(mend(&bench).await, 1);
    assert_eq!(found(&bench).await, [""; 0]);
    assert_eq!(bench.store.reap(Q, "n", TERM, &CrashPolicy::new(3)).await.unwrap().requeued, 1);
    assert_eq!(bench.table().await.lines("r2"), ["r2 [A]"]);
}

#[tokio::test]
async fn repair_takes_ids_without_a_record_out_of_every_set() {
    let bench = Bench::new().await;
    for state in states::ALL {
        if let Some(set) = bench.store.keys().set_of(Q, state) {
            bench.command::<()>(redis::cmd("ZADD").arg(set).arg(1).arg(id("A"))).await;
        }
    }
    bench.join("n").await;
    bench.raw::<()>("SADD", "run:n", &[&id("A")]).await;
    let mut kinds = found(&bench).await;
    kinds.sort();
    let expected = ["cancelled", "dead", "held", "retrying", "run:n", "scheduled", "succeeded"];
    assert_eq!(kinds, expected.map(|set| format!("index {set}: A")));
    assert_eq!(mend(&bench).await, 7);
    assert_eq!(found(&bench).await, [""; 0]);
    let left: Vec<String> = bench.table().await.0.into_iter().filter(|line| !line.starts_with("nodes ")).collect();
    assert_eq!(left, ["owners n 0 0"]);
}

#[tokio::test]
async fn repair_clears_what_is_left_of_a_lost_record() {
    for state in states::ALL {
        let (bench, token) = bench_with(state).await;
        bench.store.note(Q, &crate::note::both("A", token)).await.unwrap();
        lose_body(&bench, &id("A")).await;
        while mend(&bench).await > 0 {}
        assert_eq!(found(&bench).await, [""; 0], "{state:?}");
        let left = bench.table().await;
        let about: Vec<&String> = left.0.iter().filter(|line| line.contains('A') && !line.starts_with("r2 ")).collect();
        assert_eq!(about, [""; 0], "{state:?}");
    }
}

#[tokio::test]
async fn repair_frees_keys_whose_holder_is_gone_and_no_others() {
    let bench = Bench::new().await;
    bench.enqueue(&[crate::table::unique("A", "mine", UniqueUntil::Finished)]).await;
    bench.raw::<()>("SET", "u:k e y", &[&id("Z")]).await;
    let before = bench.table().await;
    assert_eq!(found(&bench).await, ["unique : k e y"]);
    assert_eq!(mend(&bench).await, 1);
    bench.changed(&before, "- u:k e y Z").await;
}

#[tokio::test]
async fn repair_hands_lists_of_unknown_incarnations_to_the_reaper() {
    let bench = Bench::new().await;
    bench.run(job("A"), "n", 1).await;
    bench.enqueue(&[job("B"), job("C")]).await;
    bench.fetch("n").await;
    bench.fetch("stranger").await;
    bench.raw::<()>("DEL", "owners", &[]).await;
    let before = bench.table().await;
    assert_eq!(found(&bench).await, ["owner : n stranger"]);
    assert_eq!(mend(&bench).await, 2);
    bench
        .changed(
            &before,
            "+ owners n gone t0
                            + owners stranger gone t0",
        )
        .await;
    for owner in ["n", "stranger"] {
        bench.store.reap(Q, owner, TERM, &CrashPolicy::new(3)).await.unwrap();
    }
    bench.join("n2").await;
    assert_eq!(names(bench.claim("n2", 1, 9).await).len(), 3);
}

#[tokio::test]
async fn repair_looks_again_before_it_changes_anything() {
    let (bench, token) = bench_with(State::Running).await;
    bench
        .enqueue(&[NewJob { due: Due::In(1000), ..job("B") }, job("C"), crate::table::unique("D", "j", UniqueUntil::Started)])
        .await;
    let before = bench.table().await;
    // As if all had been seen as damaged before it moved on.
    let all = ids(&["A", "B", "C", "D"]);
    let kinds: [(&'static str, &str, Vec<String>); 6] = [
        ("index", "scheduled", all.clone()),
        ("index", "run:n", all.clone()),
        ("state", "", all.clone()),
        ("lost", "", all),
        ("unique", "", vec!["k".to_owned(), "j".to_owned(), "none".to_owned()]),
        ("owner", "", vec!["n".to_owned()]),
    ];
    // Also when a job is due that the promoter has not yet met.
    for ms in [100, 2000] {
        bench.at(ms);
        for (kind, name, ids) in kinds.clone() {
            let damage = Damage { queue: Q.to_owned(), kind, name: name.to_owned(), ids };
            assert_eq!(bench.store.repair(&damage).await.unwrap(), 0, "{kind} at {ms}");
            bench.unchanged(&before).await;
        }
    }
    bench.settle("n", "A", token, done()).await;
}

#[tokio::test]
async fn repair_sees_a_suspect_in_its_lane() {
    let bench = Bench::new().await;
    crate::reap::suspect(&bench, job("A")).await;
    bench.at(60_000);
    bench.promote().await;
    let before = bench.table().await;
    let damage = Damage { queue: Q.to_owned(), kind: "lost", name: String::new(), ids: ids(&["A"]) };
    assert_eq!(bench.store.repair(&damage).await.unwrap(), 0);
    bench.unchanged(&before).await;
    // And puts a lost one back there.
    bench.raw::<()>("DEL", "suspects", &[]).await;
    assert_eq!(mend(&bench).await, 1);
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn repair_works_in_pages() {
    let bench = Bench::new().await;
    let many: Vec<NewJob> = (0..1200).map(|n| job(&format!("{n:04}"))).collect();
    for page in many.chunks(400) {
        bench.enqueue(page).await;
    }
    bench.raw::<()>("DEL", "r2", &[]).await;
    assert_eq!(mend(&bench).await, 1200);
    assert_eq!(bench.raw::<usize>("LLEN", "r2", &[]).await, 1200);
    assert_eq!(found(&bench).await, [""; 0]);
}

#[tokio::test]
async fn what_was_mended_runs() {
    let (bench, _) = bench_with(State::Retrying).await;
    bench.raw::<()>("DEL", "retrying", &[]).await;
    mend(&bench).await;
    bench.at(1050);
    assert_eq!(moved(&bench.promote().await).0, 1);
    let (token, jobs) = claimed(bench.claim("n", 2, 1).await);
    assert_eq!(jobs[0].packed.attempt, 2);
    bench.settle("n", "A", token, done()).await;
    assert!(bench.store.leave(Q, "n", Duration::ZERO).await.unwrap());
}
