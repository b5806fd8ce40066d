//! Running → ready | retrying | dead for the jobs of a dead incarnation; fetched entries back to the front.

use std::time::Duration;

use punctual_core::job::{NewJob, Priority, UniqueUntil};
use punctual_core::store::claim::Claimed;
use punctual_core::store::reap::{BATCH, CrashPolicy, Reaped};
use punctual_core::store::requeue::Requeue;
use punctual_core::store::settle::Settled;

use crate::table::{Bench, Q, TERM, band, claimed, done, id, ids, job, moved, names, own, retry, tidy, unique};

fn reaped(requeued: u64, buried: u64, unclaimed: u64) -> Reaped {
    Reaped { requeued, buried, unclaimed, more: false, fenced: false }
}

async fn reap(bench: &Bench, node: &str) -> Reaped {
    bench.store.reap(Q, node, TERM, &CrashPolicy::new(3)).await.expect("an answer")
}

/// Lets two nodes die under a job: it waits in retrying and comes back as a suspect, 5 s after the second death.
pub async fn suspect(bench: &Bench, job: NewJob) {
    let name = tidy(&job.id);
    bench.enqueue(&[job]).await;
    for node in ["n1", "n2"] {
        let node = format!("{node}{}", if name == "A" { "" } else { &name });
        bench.join(&node).await;
        assert_eq!(names(bench.claim(&node, 1, 1).await), [name.as_str()]);
        assert_eq!(reap(bench, &node).await, reaped(1, 0, 0));
        bench.raw::<()>("HDEL", "owners", &[&node]).await;
    }
}

#[tokio::test]
async fn reap_returns_a_job_to_the_front_at_its_first_crash_and_counts_it_apart() {
    let bench = Bench::new().await;
    let low = NewJob { priority: Priority::Low, ..unique("A", "k", UniqueUntil::Finished) };
    bench.run(low, "n", 1).await;
    bench.enqueue(&[band("B", Priority::Low)]).await;
    let before = bench.table().await;
    bench.at(40);
    assert_eq!(reap(&bench, "n").await, reaped(1, 0, 0));
    bench
        .changed(
            &before,
            "- owners n 1 k0
                            + owners n gone t40
                            - run:n {A}
                            - r3 [B]
                            + r3 [B A]
                            - s A rk0 1 0 0 32 0 t0 n
                            + s A qk1 0 1 0 1 0 t0 n
                            + h:A [1 k k0 0 t0 t40 n its node died]
                            + fence k0",
        )
        .await;
}

#[tokio::test]
async fn reap_sends_a_job_through_retrying_as_a_suspect_at_its_second_crash() {
    let bench = Bench::new().await;
    bench.run(job("A"), "n1", 1).await;
    reap(&bench, "n1").await;
    bench.join("n2").await;
    bench.claim("n2", 1, 1).await;
    let before = bench.table().await;
    bench.at(40);
    assert_eq!(reap(&bench, "n2").await, reaped(1, 0, 0));
    bench
        .changed(
            &before,
            "- owners n2 1 k1
                            + owners n2 gone t40
                            - run:n2 {A}
                            + retrying A t5040
                            - s A rk1 1 1 0 1 0 t0 n2
                            + s A tk2 0 2 0 9 t5040 t0 n2
                            - h:A [1 k k0 0 t0 t0 n1 its node died]
                            + h:A [1 k k0 0 t0 t0 n1 its node died 1 k k1 0 t0 t40 n2 its node died]",
        )
        .await;
}

#[tokio::test]
async fn reap_buries_a_job_at_its_third_crash_with_that_reason() {
    let bench = Bench::new().await;
    suspect(&bench, unique("A", "k", UniqueUntil::Finished)).await;
    bench.at(5000);
    bench.promote().await;
    bench.join("n3").await;
    assert_eq!(names(bench.claim_with("n3", 1, 1, [0; 4], true).await), ["A"]);
    let before = bench.table().await;
    bench.at(5040);
    assert_eq!(reap(&bench, "n3").await, reaped(0, 1, 0));
    let history = "1 k k0 0 t0 t0 n1 its node died 1 k k1 0 t0 t0 n2 its node died";
    bench
        .changed(
            &before,
            &format!(
                "- owners n3 1 k5000000
                            + owners n3 gone t5040
                            - run:n3 {{A}}
                            + dead A t5040
                            - s A rk5000000 1 2 0 41 t5000 t5000 n3
                            + s A xk5000001 1 3 0 9 t5000 t5000 n3 t5040 killed its node 3 times
                            + totals dead 1
                            - u:k A
                            - h:A [{history}]
                            + h:A [{history} 1 k k5000000 t5000 t5000 t5040 n3 its node died]"
            ),
        )
        .await;
    let view = bench.store.show(&id("A"), Some(Q)).await.unwrap().unwrap();
    assert_eq!((view.crashes, view.reason.as_deref()), (3, Some("killed its node 3 times")));
}

#[tokio::test]
async fn reap_buries_at_the_crashes_that_the_policy_names() {
    for most in 1..=5_u32 {
        let bench = Bench::new().await;
        bench.enqueue(&[job("A")]).await;
        for crash in 1..=most {
            bench.at(u64::from(crash) * 1_000_000);
            bench.promote().await;
            let node = format!("n{crash}");
            bench.join(&node).await;
            assert_eq!(names(bench.claim_with(&node, 1, 1, [0; 4], true).await), ["A"], "crash {crash}");
            let answer = bench.store.reap(Q, &node, TERM, &CrashPolicy::new(most)).await.unwrap();
            let buried = u64::from(crash == most);
            assert_eq!(answer, reaped(1 - buried, buried, 0), "crash {crash} of {most}");
        }
    }
}

#[tokio::test]
async fn reap_waits_longer_after_each_crash_up_to_the_last_wait() {
    let bench = Bench::new().await;
    bench.enqueue(&[job("A")]).await;
    let waits = [1, 2, 3].map(Duration::from_secs).into();
    let policy = CrashPolicy { max_crashes: 9, waits };
    for (crash, wait_ms) in [(1, 0), (2, 1000), (3, 2000), (4, 3000), (5, 3000), (6, 3000)] {
        let now = crash * 1_000_000;
        bench.at(now);
        bench.promote().await;
        let node = format!("n{crash}");
        bench.join(&node).await;
        assert_eq!(names(bench.claim_with(&node, 1, 1, [0; 4], true).await), ["A"], "crash {crash}");
        bench.store.reap(Q, &node, TERM, &policy).await.unwrap();
        let expected: Vec<String> = if wait_ms == 0 { vec![] } else { vec![format!("retrying A t{}", now + wait_ms)] };
        assert_eq!(bench.table().await.lines("retrying"), expected, "crash {crash}");
    }
}

#[tokio::test]
async fn reap_spends_no_attempt_of_a_job_with_one() {
    let bench = Bench::new().await;
    bench.run(job("A"), "n1", 1).await;
    reap(&bench, "n1").await;
    bench.join("n2").await;
    let (_, jobs) = claimed(bench.claim("n2", 1, 1).await);
    assert_eq!((jobs[0].packed.attempt, jobs[0].packed.crashes), (1, 1));
}

#[tokio::test]
async fn reap_returns_unclaimed_entries_in_order_without_spending_attempt() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&[job("A"), NewJob { ..own("order-7") }, job("C"), job("D")]).await;
    let before = bench.table().await;
    for _ in 0..3 {
        bench.fetch("n").await;
    }
    bench.at(40);
    assert_eq!(reap(&bench, "n").await, reaped(0, 0, 3));
    bench
        .changed(
            &before,
            "- owners n 0 0
                            + owners n gone t40
                            + fence k0",
        )
        .await;
}

#[tokio::test]
async fn reap_ignores_a_fetched_bell() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&[band("A", Priority::High)]).await;
    assert_eq!(bench.fetch("n").await.as_deref(), Some("!"));
    assert_eq!(reap(&bench, "n").await, reaped(0, 0, 0));
    assert_eq!(bench.table().await.lines("r"), ["r1 [A]"]);
    // The work is found without the bell.
    assert!(bench.store.has_work(Q).await.unwrap());
}

#[tokio::test]
async fn reap_makes_a_late_settle_stale() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    reap(&bench, "n").await;
    let before = bench.table().await;
    assert_eq!(bench.settle("n", "A", token, done()).await, Settled::Stale);
    assert_eq!(bench.settle("n", "A", token, retry(5)).await, Settled::Stale);
    assert_eq!(bench.store.note(Q, &crate::note::both("A", token)).await.unwrap(), 0);
    bench.unchanged(&before).await;
    // And so after another node has taken it.
    bench.join("n2").await;
    bench.claim("n2", 1, 1).await;
    assert_eq!(bench.settle("n", "A", token, done()).await, Settled::Stale);
}

#[tokio::test]
async fn reap_ends_the_claims_of_an_owner_for_good() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&[job("A")]).await;
    reap(&bench, "n").await;
    let before = bench.table().await;
    assert_eq!(bench.claim("n", 1, 1).await, Claimed::Gone);
    // Registering again does not bring it back: it takes a new incarnation.
    bench.join("n").await;
    assert_eq!(bench.claim("n", 2, 1).await, Claimed::Gone);
    bench.unchanged(&before).await;
    assert_eq!(bench.store.owners(Q).await.unwrap(), [("n".to_owned(), true)]);
}

#[tokio::test]
async fn reap_of_nothing_and_of_nobody_changes_nothing() {
    let bench = Bench::new().await;
    bench.run(job("A"), "n", 1).await;
    let before = bench.table().await;
    assert_eq!(reap(&bench, "stranger").await, reaped(0, 0, 0));
    bench.unchanged(&before).await;
    reap(&bench, "n").await;
    let before = bench.table().await;
    bench.at(99);
    // Again and again: gone since the first time.
    assert_eq!(reap(&bench, "n").await, reaped(0, 0, 0));
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn reap_takes_what_a_waiting_fetch_moves_after_the_death() {
    let bench = Bench::new().await;
    bench.join("n").await;
    reap(&bench, "n").await;
    bench.enqueue(&[job("A"), job("B")]).await;
    bench.fetch("n").await;
    assert_eq!(reap(&bench, "n").await, reaped(0, 0, 1));
    assert_eq!(bench.table().await.lines("r2"), ["r2 [B A]"]);
}

#[tokio::test]
async fn reap_takes_bounded_batches_and_tells_that_there_is_more() {
    let bench = Bench::new().await;
    bench.join("n").await;
    let all: Vec<NewJob> = (0..450).map(|n| job(&format!("{n:03}Z"))).collect();
    bench.enqueue(&all).await;
    assert_eq!(names(bench.claim("n", 1, 250).await).len(), 250);
    for _ in 0..150 {
        bench.fetch("n").await;
    }
    let mut answers = Vec::new();
    loop {
        let answer = reap(&bench, "n").await;
        answers.push((answer.requeued, answer.unclaimed, answer.more));
        if !answer.more {
            break;
        }
    }
    let batch = BATCH as u64;
    assert_eq!(answers, [(batch, batch, true), (batch, 50, true), (50, 0, false)]);
    // All are ready once, and what was fetched stands before what was not, in order.
    let entries: Vec<String> = bench.raw("LRANGE", "r2", &["0", "-1"]).await;
    let mut distinct = entries.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!((entries.len(), distinct.len()), (450, 450));
    let waited: Vec<&String> = entries.iter().filter(|entry| **entry >= id("250Z")).collect();
    assert!(waited.windows(2).all(|pair| pair[0] > pair[1]));
}

#[tokio::test]
async fn reap_leaves_alone_what_its_owner_settled_before() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&["A", "B", "C"].map(job)).await;
    let (token, _) = claimed(bench.claim("n", 1, 3).await);
    bench.settle("n", "A", token, done()).await;
    bench.settle("n", "B", token, retry(1000)).await;
    let before = bench.table().await;
    assert_eq!(reap(&bench, "n").await, reaped(1, 0, 0));
    let after = bench.table().await;
    assert_eq!(after.lines("s A"), before.lines("s A"));
    assert_eq!(after.lines("s B"), before.lines("s B"));
    assert!(after.has("r2 [C]"));
}

#[tokio::test]
async fn reap_of_an_id_that_another_owner_runs_takes_nothing_from_it() {
    let bench = Bench::new().await;
    bench.run(job("A"), "n1", 1).await;
    bench.join("n2").await;
    // The set of a dead node still names the id: its state decides.
    bench.raw::<()>("SADD", "run:n2", &[&id("A"), &id("Z")]).await;
    assert_eq!(reap(&bench, "n2").await, reaped(0, 0, 0));
    assert!(bench.table().await.has("s A rk0 1 0 0 0 0 t0 n1"));
}

#[tokio::test]
async fn reap_of_an_id_that_has_left_running_takes_nothing_from_it() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    bench.settle("n", "A", token, retry(1000)).await;
    let before = bench.table().await;
    bench.raw::<()>("SADD", "run:n", &[&id("A")]).await;
    assert_eq!(reap(&bench, "n").await, reaped(0, 0, 0));
    let owner = before.lines("owners")[0];
    bench.changed(&before, &format!("- {owner}\n+ owners n gone t0\n+ fence k0")).await;
}

#[tokio::test]
async fn reap_obeys_a_cancel_that_the_dead_node_had_not_carried_out() {
    for crashes in 0..3 {
        let bench = Bench::new().await;
        let job = unique("A", "k", UniqueUntil::Finished);
        if crashes == 2 {
            suspect(&bench, job).await;
        } else {
            bench.enqueue(&[job]).await;
        }
        if crashes == 1 {
            bench.join("n1").await;
            bench.claim("n1", 1, 1).await;
            reap(&bench, "n1").await;
        }
        bench.at(60_000);
        bench.promote().await;
        bench.join("n").await;
        let (token, jobs) = claimed(bench.claim_with("n", 1, 1, [0; 4], true).await);
        assert_eq!(jobs[0].packed.crashes, crashes);
        bench.store.cancel(Q, &ids(&["A"])).await.unwrap();
        assert_eq!(reap(&bench, "n").await, reaped(0, 0, 0), "{crashes}");
        let view = bench.store.show(&id("A"), Some(Q)).await.unwrap().unwrap();
        assert_eq!((view.state.word(), view.reason.as_deref()), ("cancelled", Some("cancelled")));
        let table = bench.table().await;
        assert_eq!((table.lines("u:"), table.lines("retrying"), table.lines("suspects")), (vec![], vec![], vec![]));
        assert!(!bench.raw::<Vec<String>>("LRANGE", "r2", &["0", "-1"]).await.contains(&id("A")));
        assert!(table.has("cancelled A t60000") && table.has("totals cancelled 1"));
        assert_eq!(bench.settle("n", "A", token, done()).await, Settled::Stale);
    }
}

#[tokio::test]
async fn a_suspect_that_fails_by_itself_is_no_suspect_any_more() {
    let bench = Bench::new().await;
    suspect(&bench, job("A")).await;
    bench.at(5000);
    bench.promote().await;
    bench.join("n3").await;
    let (token, _) = claimed(bench.claim_with("n3", 1, 1, [0; 4], true).await);
    bench.settle("n3", "A", token, retry(100)).await;
    bench.at(5100);
    assert_eq!(moved(&bench.promote().await).0, 1);
    let table = bench.table().await;
    // Behind the bell that the suspect's promotion rang.
    assert_eq!((table.lines("suspects"), table.lines("r2")), (vec![], vec!["r2 [A !]"]));
}

#[tokio::test]
async fn a_suspect_that_is_handed_back_stays_in_its_lane() {
    let bench = Bench::new().await;
    suspect(&bench, job("A")).await;
    bench.at(5000);
    bench.promote().await;
    bench.join("n3").await;
    let (token, _) = claimed(bench.claim_with("n3", 1, 1, [0; 4], true).await);
    let end = crate::table::to(punctual_core::state::State::Ready, punctual_core::state::AttemptOutcome::HandedBack);
    bench.settle("n3", "A", token, end).await;
    let table = bench.table().await;
    assert_eq!((table.lines("suspects"), table.lines("r2")), (vec!["suspects [A]"], vec!["r2 [!]"]));
}

#[tokio::test]
async fn a_retry_by_hand_forgets_crashes() {
    let bench = Bench::new().await;
    suspect(&bench, job("A")).await;
    bench.store.cancel(Q, &ids(&["A"])).await.unwrap();
    bench.at(1);
    bench.store.requeue(Q, Requeue::Retry, &ids(&["A"])).await.unwrap();
    bench.join("n").await;
    let (_, jobs) = claimed(bench.claim("n", 1, 1).await);
    assert_eq!((jobs[0].packed.crashes, jobs[0].packed.flags & 8), (0, 0));
}

#[tokio::test]
async fn reap_under_an_older_term_is_refused_and_changes_nothing() {
    let bench = Bench::new().await;
    bench.run(job("A"), "n", 1).await;
    bench.store.promote(Q, TERM + 1, 1).await.unwrap();
    let before = bench.table().await;
    let answer = bench.store.reap(Q, "n", TERM, &CrashPolicy::new(3)).await.unwrap();
    assert_eq!(answer, Reaped { fenced: true, ..Reaped::default() });
    bench.changed(&before, "").await;
    let answer = bench.store.reap(Q, "n", TERM + 1, &CrashPolicy::new(3)).await.unwrap();
    assert_eq!(answer, reaped(1, 0, 0));
}

#[tokio::test]
async fn reap_raises_the_fence_so_that_an_older_leader_is_refused_after_it() {
    let bench = Bench::new().await;
    bench.run(job("A"), "n", 1).await;
    bench.store.reap(Q, "n", TERM + 5, &CrashPolicy::new(3)).await.unwrap();
    assert!(matches!(bench.store.promote(Q, TERM + 4, 1).await.unwrap(), punctual_core::store::promote::Promoted::Fenced(_)));
}
