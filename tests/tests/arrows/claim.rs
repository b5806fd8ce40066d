//! Ready → running.

use punctual_core::job::{Due, NewJob, Priority, UniqueUntil};
use punctual_core::state::{AttemptOutcome, State};
use punctual_core::store::claim::{Claimed, MOST};
use punctual_core::store::requeue::Requeue;

use crate::table::{Bench, Q, T0, band, claimed, done, drop_all, id, ids, job, names, own, retry, to, unique};

fn counts(answer: &Claimed) -> (usize, u64, u64) {
    match answer {
        Claimed::Jobs { left, dropped, jobs, .. } => (jobs.len(), *left, *dropped),
        other => panic!("no jobs but {other:?}"),
    }
}

#[tokio::test]
async fn claim_moves_jobs_to_running_under_one_token() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&[job("A"), unique("B", "k", UniqueUntil::Finished), unique("C", "l", UniqueUntil::Started), job("D")]).await;
    let before = bench.table().await;
    bench.at(7);
    let answer = bench.claim("n", 1, 3).await;
    assert_eq!(counts(&answer), (3, 1, 0));
    let Claimed::Jobs { token, now_ms, jobs, .. } = answer else { unreachable!() };
    assert_eq!((token, now_ms), ((T0 + 7) * 1000, T0 + 7));
    let a = &jobs[0];
    assert_eq!(
        (a.id.as_str(), a.packed.attempt, a.packed.start_ms, a.packed.node.as_deref()),
        (id("A").as_str(), 1, T0 + 7, Some("n"))
    );
    assert_eq!(punctual_core::codec::decode(&a.body).unwrap().spec.handler, "noop");
    bench
        .changed(
            &before,
            "- r2 [D C B A]
                            + r2 [D]
                            - owners n 0 0
                            + owners n 1 k7000
                            + run:n {A B C}
                            + s A rk7000 1 0 0 0 0 t7 n
                            + s B rk7000 1 0 0 32 0 t7 n
                            + s C rk7000 1 0 0 0 0 t7 n
                            - u:l C
                            + token k7000",
        )
        .await;
}

#[tokio::test]
async fn claim_by_one_who_is_no_owner_is_refused() {
    let bench = Bench::new().await;
    bench.enqueue(&[job("A")]).await;
    let before = bench.table().await;
    assert_eq!(bench.claim("stranger", 1, 5).await, Claimed::Gone);
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn claim_on_a_paused_queue_puts_fetched_entries_back_in_order() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&["A", "B", "C", "D"].map(job)).await;
    let before = bench.table().await;
    bench.fetch("n").await;
    bench.fetch("n").await;
    assert!(bench.table().await.has("p:n [B A]"));
    bench.store.pause(Q).await.unwrap();
    assert_eq!(bench.claim("n", 1, 5).await, Claimed::Paused);
    bench.changed(&before, "+ paused 1").await;
}

#[tokio::test]
async fn claim_without_free_slots_puts_fetched_entries_back_in_order() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&["A", "B", "C"].map(job)).await;
    let before = bench.table().await;
    bench.fetch("n").await;
    bench.fetch("n").await;
    assert_eq!(counts(&bench.claim("n", 1, 0).await), (0, 3, 0));
    let after = bench.table().await;
    assert_eq!(after.lines("r2"), before.lines("r2"));
    assert_eq!((after.lines("p:"), after.lines("run:"), after.lines("s ")), (vec![], vec![], vec![]));
}

#[tokio::test]
async fn claim_takes_what_was_fetched_first_and_never_more_than_its_slots() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&["A", "B", "C", "D"].map(job)).await;
    for _ in 0..3 {
        bench.fetch("n").await;
    }
    assert_eq!(names(bench.claim("n", 1, 2).await), ["A", "B"]);
    assert!(bench.table().await.has("r2 [D C]"));
    // A fetched entry comes before more urgent ones: it was moved when they were not there.
    bench.fetch("n").await;
    bench.enqueue(&[band("E", Priority::Critical)]).await;
    assert_eq!(names(bench.claim("n", 2, 2).await), ["C", "E"]);
}

#[tokio::test]
async fn claim_never_takes_more_than_the_most_of_one_call() {
    let bench = Bench::new().await;
    bench.join("n").await;
    let jobs: Vec<NewJob> = (0..600).map(|n| job(&format!("{n:03}Z"))).collect();
    for page in jobs.chunks(300) {
        bench.enqueue(page).await;
    }
    assert_eq!(counts(&bench.claim("n", 1, 10_000).await), (MOST, 100, 0));
    assert_eq!(bench.raw::<usize>("SCARD", "run:n", &[]).await, MOST);
}

#[tokio::test]
async fn claim_fills_shares_first_and_the_rest_by_urgency() {
    let all = [("C", Priority::Critical), ("H", Priority::High), ("N", Priority::Normal), ("K", Priority::Low)];
    let cases: &[(usize, [usize; 4], &str)] = &[
        (4, [0; 4], "C1 C2 C3 H1"),
        (4, [1, 1, 1, 1], "C1 H1 N1 K1"),
        (6, [1, 1, 1, 1], "C1 H1 N1 K1 C2 C3"),
        (2, [0, 0, 0, 2], "K1 K2"),
        (5, [0, 0, 0, 9], "K1 K2 K3 C1 C2"),
        // A share larger than the slots ends at the slots, the most urgent first.
        (2, [5, 5, 5, 5], "C1 C2"),
        (99, [0, 0, 1, 0], "N1 C1 C2 C3 H1 H2 H3 N2 N3 K1 K2 K3"),
    ];
    for (slots, shares, expected) in cases {
        let bench = Bench::new().await;
        bench.join("n").await;
        for (name, priority) in all {
            let jobs: Vec<NewJob> = (1..=3).map(|n| band(&format!("{name}{n}"), priority)).collect();
            bench.enqueue(&jobs).await;
        }
        let got = names(bench.claim_with("n", 1, *slots, *shares, false).await);
        assert_eq!(got.join(" "), *expected, "{slots} slots, shares {shares:?}");
    }
}

#[tokio::test]
async fn claim_drops_entries_that_no_longer_stand_for_a_ready_job() {
    let bench = Bench::new().await;
    bench.join("n").await;
    let jobs = ["A", "B", "C", "D", "E"].map(job);
    bench.enqueue(&jobs).await;
    // A is cancelled, B deleted, C rescheduled away, D rescheduled to now (an old and a new entry).
    bench.store.cancel(Q, &ids(&["A"])).await.unwrap();
    bench.store.delete(Q, &ids(&["B"])).await.unwrap();
    bench.store.requeue(Q, Requeue::Reschedule(T0 + 1000), &ids(&["C"])).await.unwrap();
    bench.at(3);
    bench.store.requeue(Q, Requeue::Reschedule(T0 + 2), &ids(&["D"])).await.unwrap();
    let before = bench.table().await;
    assert_eq!(before.lines("r2"), ["r2 [D#k3000 E D C B A]"]);
    let answer = bench.claim("n", 1, 9).await;
    assert_eq!(counts(&answer), (2, 0, 4));
    assert_eq!(names(answer), ["E", "D"]);
    bench
        .changed(
            &before,
            "- r2 [D#k3000 E D C B A]
                            - owners n 0 0
                            + owners n 1 k3000
                            + run:n {D E}
                            - s D qk- 0 0 0 0 t2 0 -
                            + s D rk3000 1 0 0 0 t2 t3 n
                            + s E rk3000 1 0 0 0 0 t3 n
                            + token k3000",
        )
        .await;
}

#[tokio::test]
async fn claim_runs_a_job_once_although_two_entries_of_it_come_at_once() {
    for stamps in [["", ""], ["", "#5"]] {
        let bench = Bench::new().await;
        bench.join("n").await;
        bench.enqueue(&[job("A")]).await;
        bench.raw::<()>("DEL", "r2", &[]).await;
        for stamp in stamps {
            bench.raw::<()>("LPUSH", "r2", &[&format!("{}{stamp}", id("A"))]).await;
        }
        assert_eq!(names(bench.claim("n", 1, 9).await), ["A"], "{stamps:?}");
        assert_eq!(names(bench.claim("n", 2, 9).await), [""; 0], "{stamps:?}");
    }
}

#[tokio::test]
async fn claim_drops_what_is_left_of_a_lost_record() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    bench.settle("n", "A", token, retry(0)).await;
    bench.promote().await;
    let bucket = bench.store.keys().bucket(Q, &id("A"));
    bench.command::<()>(redis::cmd("DEL").arg(bucket)).await;
    assert_eq!(counts(&bench.claim("n", 2, 1).await), (0, 0, 1));
    let table = bench.table().await;
    assert_eq!((table.lines("s "), table.lines("h:"), table.lines("r")), (vec![], vec![], vec![]));
}

#[tokio::test]
async fn claim_looks_past_dropped_entries_but_not_without_bound() {
    let bench = Bench::new().await;
    bench.join("n").await;
    let dead: Vec<String> = (0..50).map(|n| id(&format!("D{n}"))).collect();
    for entry in &dead {
        bench.raw::<()>("LPUSH", "r2", &[entry]).await;
    }
    bench.enqueue(&[job("A")]).await;
    // One slot looks at a few entries; what is left is told, so that the node asks again at once.
    let mut number = 0;
    loop {
        number += 1;
        let answer = bench.claim("n", number, 1).await;
        let (got, left, dropped) = counts(&answer);
        assert!(got + usize::try_from(dropped).unwrap() <= 10, "{answer:?}");
        if got == 1 {
            break;
        }
        assert!(left > 0 && dropped > 0, "{answer:?}");
    }
    assert!(number <= 51, "{number} claims");
}

#[tokio::test]
async fn claim_with_the_same_number_gives_the_same_jobs_again() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&["A", "B", "C"].map(job)).await;
    let first = claimed(bench.claim("n", 4, 2).await);
    let before = bench.table().await;
    bench.at(50);
    let mut again = claimed(bench.claim("n", 4, 2).await);
    again.1.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(again, first);
    bench.unchanged(&before).await;
    // What was settled meanwhile is not given again, and another number is a claim of its own.
    bench.settle("n", "A", first.0, done()).await;
    assert_eq!(names(bench.claim("n", 4, 2).await), ["B"]);
    assert_eq!(names(bench.claim("n", 5, 2).await), ["C"]);
    // A job that this incarnation has claimed anew belongs to the later number.
    assert_eq!(names(bench.claim("n", 5, 2).await), ["C"]);
}

#[tokio::test]
async fn claim_with_a_lower_number_does_nothing() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&["A", "B"].map(job)).await;
    bench.claim("n", 4, 1).await;
    let before = bench.table().await;
    assert_eq!(bench.claim("n", 3, 1).await, Claimed::Old);
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn claim_that_got_nothing_is_remembered_by_its_number_too() {
    let bench = Bench::new().await;
    bench.join("n").await;
    assert_eq!(counts(&bench.claim("n", 4, 1).await), (0, 0, 0));
    bench.enqueue(&[job("A")]).await;
    // A copy of the call, or of an older one, that the network held up must not take jobs for a node that does not listen.
    assert_eq!(counts(&bench.claim("n", 4, 1).await), (0, 0, 0));
    assert_eq!(bench.claim("n", 3, 1).await, Claimed::Old);
    assert_eq!(names(bench.claim("n", 5, 1).await), ["A"]);
}

#[tokio::test]
async fn claim_repeats_itself_with_more_jobs_than_lua_can_unpack() {
    let bench = Bench::new().await;
    bench.join("n").await;
    let others: Vec<String> = (0..9000).map(|n| format!("other-{n}")).collect();
    for page in others.chunks(1000) {
        let page: Vec<&str> = page.iter().map(String::as_str).collect();
        bench.raw::<()>("SADD", "run:n", &page).await;
    }
    bench.enqueue(&[job("A")]).await;
    let first = claimed(bench.claim("n", 1, 1).await);
    assert_eq!(claimed(bench.claim("n", 1, 1).await), first);
}

#[tokio::test]
async fn token_grows_strictly_even_when_the_time_goes_back() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&["A", "B", "C", "D", "E"].map(job)).await;
    let mut last = 0;
    for (number, ms) in [(1, 1000), (2, 1000), (3, 500), (4, 0), (5, 1001)] {
        bench.at(ms);
        let (token, jobs) = claimed(bench.claim("n", number, 1).await);
        assert_eq!(jobs.len(), 1);
        assert!(token > last, "{token} after {last} at {ms} ms");
        last = token;
    }
    assert_eq!(last, (T0 + 1001) * 1000);
}

#[tokio::test]
async fn claim_drops_a_bell_and_rings_again_while_it_leaves_work() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&[band("A", Priority::High), band("B", Priority::High), band("C", Priority::Low)]).await;
    assert_eq!(bench.fetch("n").await.as_deref(), Some("!"));
    assert_eq!(names(bench.claim("n", 1, 1).await), ["A"]);
    assert_eq!(bench.table().await.lines("r"), ["r1 [B]", "r2 [!]", "r3 [C]", "run:n {A}"]);
    // Without the detour over the fetcher.
    assert_eq!(names(bench.claim("n", 2, 1).await), ["B"]);
    assert_eq!(bench.table().await.lines("r"), ["r2 [!]", "r3 [C]", "run:n {A B}"]);
    assert_eq!(names(bench.claim("n", 3, 1).await), ["C"]);
    assert_eq!(bench.table().await.lines("r"), ["run:n {A B C}"]);
    assert_eq!(counts(&bench.claim("n", 4, 1).await), (0, 0, 0));
    assert_eq!(bench.table().await.lines("r"), ["run:n {A B C}"]);
}

#[tokio::test]
async fn claim_without_slots_rings_for_the_work_that_it_leaves() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&[band("A", Priority::High)]).await;
    bench.fetch("n").await;
    assert_eq!(counts(&bench.claim("n", 1, 0).await), (0, 1, 0));
    assert_eq!(bench.table().await.lines("r"), ["r1 [A]", "r2 [!]"]);
}

#[tokio::test]
async fn claim_leaves_no_bell_where_a_job_wakes_as_well() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&[job("A"), job("B"), band("C", Priority::Low)]).await;
    assert_eq!(names(bench.claim("n", 1, 1).await), ["A"]);
    assert_eq!(bench.table().await.lines("r"), ["r2 [B]", "r3 [C]", "run:n {A}"]);
}

#[tokio::test]
async fn claim_takes_one_suspect_and_only_when_asked() {
    let bench = Bench::new().await;
    crate::reap::suspect(&bench, job("A")).await;
    crate::reap::suspect(&bench, job("B")).await;
    bench.at(60_000);
    bench.promote().await;
    bench.enqueue(&[job("C"), job("D")]).await;
    bench.join("n9").await;
    assert_eq!(names(bench.claim_with("n9", 1, 1, [0; 4], false).await), ["C"]);
    // Before all bands, but one a call.
    assert_eq!(names(bench.claim_with("n9", 2, 9, [0; 4], true).await), ["A", "D"]);
    assert_eq!(names(bench.claim_with("n9", 3, 9, [0; 4], false).await), [""; 0]);
    let (_, jobs) = claimed(bench.claim_with("n9", 4, 9, [0; 4], true).await);
    assert_eq!((jobs.len(), jobs[0].packed.flags & punctual_core::store::packed::FLAG_SUSPECT), (1, 8));
}

#[tokio::test]
async fn claim_counts_attempts_from_the_state() {
    let bench = Bench::new().await;
    let mut token = bench.run(job("A"), "n", 1).await;
    for number in 2..5 {
        bench.settle("n", "A", token, retry(0)).await;
        bench.promote().await;
        let (next, jobs) = claimed(bench.claim("n", number, 1).await);
        assert_eq!(u64::from(jobs[0].packed.attempt), number);
        token = next;
    }
    bench.settle("n", "A", token, to(State::Ready, AttemptOutcome::HandedBack)).await;
    assert_eq!(claimed(bench.claim("n", 9, 1).await).1[0].packed.attempt, 4);
}

#[tokio::test]
async fn a_deleted_job_is_neither_run_nor_counted() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&["A", "B"].map(job)).await;
    bench.enqueue(&[own("order-7"), NewJob { due: Due::In(9), ..job("D") }]).await;
    bench.store.delete(Q, &[id("A"), "order-7".to_owned(), id("D")]).await.unwrap();
    bench.at(9);
    bench.promote().await;
    assert_eq!(names(bench.claim("n", 1, 9).await), ["B"]);
    let token = bench.now_us();
    bench.settle_keeping(&drop_all(), "n", &[("B", token, done())]).await;
    assert_eq!(bench.table().await.lines("b "), [""; 0]);
}
