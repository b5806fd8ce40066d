//! Looking: `jobs show`, `jobs list`, `queues show`.

use std::collections::BTreeMap;

use punctual_core::job::{Due, JobSpec, NewJob, Priority};
use punctual_core::state::{Move, State};
use punctual_core::store::inspect::{Cursor, Page};
use punctual_core::store::requeue::Requeue;
use serde_json::Value;

use crate::states::{self, bench_with};
use crate::table::{Bench, Q, T0, band, bury, claimed, done, id, ids, job, own, retry, tidy};

fn page(states: &[State], limit: usize) -> Page {
    Page { states: states.to_vec(), limit, cursor: None, handler: None, tag: None }
}

/// All pages of a listing, as short ids with their states.
async fn all_pages(bench: &Bench, mut page: Page) -> Vec<(String, State)> {
    let mut listed = Vec::new();
    let queues = [Q.to_owned()];
    for _ in 0..10_000 {
        let (jobs, next) = bench.store.list(&queues, &page).await.expect("an answer");
        assert!(jobs.len() <= page.limit);
        listed.extend(jobs.iter().map(|job| (tidy(&job.id), job.state)));
        let Some(next) = next else { return listed };
        // As a user passes it on.
        page.cursor = Some(Cursor::parse(&next.to_text()).expect("an answer"));
    }
    panic!("the listing does not end");
}

#[tokio::test]
async fn show_has_every_field_of_the_contract_in_every_state() {
    for state in states::ALL {
        let (bench, token) = bench_with(state).await;
        bench.store.note(Q, &crate::note::both("A", token)).await.unwrap();
        let before = bench.table().await;
        let view = bench.store.show(&id("A"), Some(Q)).await.unwrap().unwrap();
        bench.unchanged(&before).await;
        let document: Value = serde_json::to_value(&view).unwrap();
        let fields = [
            "id",
            "handler",
            "queue",
            "state",
            "priority",
            "args",
            "tags",
            "created_at",
            "due_at",
            "attempt",
            "max_attempts",
            "crashes",
            "attempts",
            "timeline",
        ];
        for field in fields {
            assert!(document.get(field).is_some(), "{state:?} without {field}");
        }
        assert_eq!(document["state"], state.word());
        assert_eq!(
            (document["id"].as_str(), document["handler"].as_str(), document["queue"].as_str()),
            (Some(id("A").as_str()), Some("noop"), Some(Q))
        );
        for attempt in document["attempts"].as_array().unwrap() {
            for field in ["number", "node", "claim", "started_at", "ended_at", "outcome", "lateness_ms"] {
                assert!(attempt.get(field).is_some(), "{state:?}: an attempt without {field}");
            }
        }
        // The last step of the timeline is where it stands.
        let steps = document["timeline"].as_array().unwrap();
        assert_eq!(steps.last().unwrap()["state"], state.word(), "{steps:?}");
        let times: Vec<&str> = steps.iter().map(|step| step["at"].as_str().unwrap()).collect();
        assert!(times.is_sorted(), "{state:?}: {steps:?}");
    }
}

/// State and time of each step, milliseconds after the beginning.
async fn timeline(bench: &Bench) -> String {
    let view = bench.store.show(&id("A"), Some(Q)).await.expect("an answer").expect("an answer");
    let step = |at: &str| punctual_core::clock::parse_instant(at).expect("an answer") - T0;
    let steps: Vec<String> = view.timeline.iter().map(|one| format!("{}@{}", one.state, step(&one.at))).collect();
    steps.join(" ")
}

#[tokio::test]
async fn timeline_tells_every_state_with_its_time() {
    let expected = [
        (State::Scheduled, "scheduled@0"),
        (State::Ready, "ready@0"),
        (State::Running, "ready@0 running@0"),
        (State::Retrying, "ready@0 running@0 retrying@50"),
        (State::Succeeded, "ready@0 running@0 succeeded@50"),
        (State::Dead, "ready@0 running@0 dead@50"),
        (State::Cancelled, "ready@0 cancelled@50"),
        (State::Held, "scheduled@0 held@50"),
    ];
    for (state, steps) in expected {
        let (bench, _) = bench_with(state).await;
        assert_eq!(timeline(&bench).await, steps);
    }
}

#[tokio::test]
async fn timeline_goes_on_after_the_last_attempt() {
    // Promoted, not yet claimed.
    let (bench, _) = bench_with(State::Scheduled).await;
    bench.at(1000);
    bench.promote().await;
    assert_eq!(timeline(&bench).await, "scheduled@0 ready@1000");
    // Promoted after a failure.
    let (bench, _) = bench_with(State::Retrying).await;
    bench.at(1050);
    bench.promote().await;
    assert_eq!(timeline(&bench).await, "ready@0 running@0 retrying@50 ready@1050");
    bench.at(1060);
    bench.claim("n", 2, 1).await;
    assert_eq!(timeline(&bench).await, "ready@0 running@0 retrying@50 ready@1050 running@1060");
    // Cancelled while it waited: not at the time of the failure.
    let (bench, _) = bench_with(State::Retrying).await;
    bench.at(300);
    bench.store.cancel(Q, &ids(&["A"])).await.unwrap();
    assert_eq!(timeline(&bench).await, "ready@0 running@0 retrying@50 cancelled@300");
    // Brought back by hand.
    let (bench, _) = bench_with(State::Dead).await;
    bench.at(300);
    bench.store.requeue(Q, Requeue::Retry, &ids(&["A"])).await.unwrap();
    assert_eq!(timeline(&bench).await, "ready@0 running@0 dead@50 ready@300");
    bench.at(310);
    let (token, _) = claimed(bench.claim("n", 2, 1).await);
    bench.at(320);
    bench.settle("n", "A", token, done()).await;
    assert_eq!(timeline(&bench).await, "ready@0 running@0 dead@50 ready@300 running@310 succeeded@320");
}

#[tokio::test]
async fn show_tells_the_result_the_error_and_the_notes() {
    let bench = Bench::new().await;
    let spec = JobSpec {
        args: r#"{"b":1.0,"a":12345678901234567890, "a":[ ]}"#.to_owned(),
        tags: [("shop".to_owned(), "de".to_owned())].into(),
        max_attempts: Some(7),
        ..job("A").spec
    };
    let mut token = bench.run(NewJob { spec, priority: Priority::Normal, ..job("A") }, "n", 1).await;
    bench.store.note(Q, &crate::note::both("A", token)).await.unwrap();
    bench.at(5);
    bench.settle("n", "A", token, retry(10)).await;
    bench.at(20);
    bench.promote().await;
    (token, _) = claimed(bench.claim("n", 2, 1).await);
    bench.at(30);
    bench.settle("n", "A", token, Move { result: Some("{\"n\": 1.0}".to_owned()), ..done() }).await;
    let view = bench.store.show(&id("A"), Some(Q)).await.unwrap().unwrap();
    let document: Value = serde_json::to_value(&view).unwrap();
    assert!(view.args.get().contains("12345678901234567890, \"a\":[ ]"));
    assert_eq!(view.result.as_ref().unwrap().get(), "{\"n\": 1.0}");
    assert_eq!((view.last_error.as_deref(), view.max_attempts, view.attempt), (Some("it broke"), 7, 2));
    assert_eq!((document["progress"]["percent"].as_f64(), document["tags"]["shop"].as_str()), (Some(50.0), Some("de")));
    assert_eq!(view.log.len(), 1);
    let told: Vec<_> = view.attempts.iter().map(|one| (one.number, one.outcome.as_str(), one.lateness_ms)).collect();
    assert_eq!(told, [(1, "failed", 0), (2, "succeeded", 5)]);
    assert_eq!(view.attempts[0].claim, (T0 * 1000).to_string());
}

#[tokio::test]
async fn show_of_an_unknown_job_is_nothing_and_every_registered_queue_is_asked() {
    let bench = Bench::new().await;
    bench.enqueue(&[job("A")]).await;
    assert!(bench.store.show(&id("Z"), Some(Q)).await.unwrap().is_none());
    assert!(bench.store.show(&id("A"), None).await.unwrap().is_none());
    bench.store.register_queue("other").await.unwrap();
    bench.store.register_queue(Q).await.unwrap();
    assert_eq!(bench.store.show(&id("A"), None).await.unwrap().unwrap().queue, Q);
    assert!(bench.store.show(&id("A"), Some("other")).await.unwrap().is_none());
}

/// A queue with many jobs of each state, and which state each has.
async fn populated() -> (Bench, BTreeMap<String, State>) {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.join("m").await;
    let mut expected = BTreeMap::new();
    let mut put = |name: &str, state| {
        expected.insert(tidy(name), state);
    };
    let name = |kind: &str, n: usize| format!("{n:02}{kind}");
    let mut number = 0;
    for n in 0..30 {
        let kinds = [("S", done()), ("X", bury("x")), ("T", retry(1000 + n as u64 % 3))];
        for (kind, end) in kinds {
            number += 1;
            let name = name(kind, n);
            bench.enqueue(&[job(&name)]).await;
            let (token, jobs) = claimed(bench.claim("n", number, 1).await);
            assert_eq!(jobs[0].id, id(&name));
            let to = end.to;
            bench.settle("n", &name, token, end).await;
            put(&id(&name), to);
        }
        for node in ["n", "m"] {
            number += 1;
            let name = name(if node == "n" { "R" } else { "W" }, n);
            bench.enqueue(&[job(&name)]).await;
            bench.claim(node, number, 1).await;
            put(&id(&name), State::Running);
        }
    }
    for n in 0..30 {
        bench
            .enqueue(&[NewJob { due: Due::In(1 + n as u64 % 2), late: punctual_core::job::Late::Hold, ..job(&name("H", n)) }])
            .await;
        put(&id(&name("H", n)), State::Held);
    }
    bench.at(100);
    bench.promote().await;
    for n in 0..30 {
        bench.enqueue(&[NewJob { due: Due::In(1000 + n as u64 % 3), ..job(&name("D", n)) }]).await;
        put(&id(&name("D", n)), State::Scheduled);
        for priority in Priority::ALL {
            let name = name(["K", "M", "N", "P"][usize::from(priority.band())], n);
            bench.enqueue(&[band(&name, priority)]).await;
            put(&id(&name), State::Ready);
        }
        let cancelled = name("C", n);
        bench.enqueue(&[job(&cancelled)]).await;
        bench.store.cancel(Q, &ids(&[&cancelled])).await.expect("an answer");
        put(&id(&cancelled), State::Cancelled);
        // Ready with an older entry in the list, by each way that leaves one.
        let again = name("Y", n);
        bench.enqueue(&[job(&again)]).await;
        bench.store.requeue(Q, Requeue::Reschedule(1), &ids(&[&again])).await.expect("an answer");
        put(&id(&again), State::Ready);
        let own_id = format!("own-{n}");
        bench.enqueue(&[own(&own_id)]).await;
        bench.store.delete(Q, std::slice::from_ref(&own_id)).await.expect("an answer");
        bench.at_us(100_000 + 1 + n as u64);
        bench.enqueue(&[own(&own_id)]).await;
        put(&own_id, State::Ready);
    }
    (bench, expected)
}

#[tokio::test]
async fn list_pages_over_all_states_lose_and_repeat_no_job() {
    let (bench, expected) = populated().await;
    for limit in [1, 7, 200] {
        let listed = all_pages(&bench, page(&State::ALL, limit)).await;
        let distinct: BTreeMap<String, State> = listed.iter().cloned().collect();
        assert_eq!(listed.len(), distinct.len(), "limit {limit}: a job came twice");
        assert_eq!(distinct, expected, "limit {limit}");
    }
    for state in State::ALL {
        let listed = all_pages(&bench, page(&[state], 11)).await;
        assert!(listed.iter().all(|(_, listed)| *listed == state));
        assert_eq!(listed.len(), expected.values().filter(|one| **one == state).count(), "{state:?}");
    }
    // What waits comes by its time, what is ready in the order in which it is taken, what ended the newest first.
    let first = |state| {
        let bench = &bench;
        async move { bench.store.list(&[Q.to_owned()], &page(&[state], 1)).await.unwrap().0.remove(0) }
    };
    assert_eq!(tidy(&first(State::Ready).await.id), "K");
    assert_eq!(tidy(&first(State::Scheduled).await.id), "D");
}

#[tokio::test]
async fn list_filters_by_handler_and_tag_and_ends_when_nothing_fits() {
    let (bench, _) = populated().await;
    let spec = |handler: &str, tag: &str| JobSpec {
        handler: handler.to_owned(),
        tags: [("shop".to_owned(), tag.to_owned())].into(),
        ..job("A").spec
    };
    bench.enqueue(&[NewJob { spec: spec("other", "de"), ..job("Q1") }, NewJob { spec: spec("other", "fr"), ..job("Q2") }]).await;
    let with = |handler: Option<&str>, tag: Option<&str>| Page {
        handler: handler.map(str::to_owned),
        tag: tag.map(|tag| ("shop".to_owned(), tag.to_owned())),
        ..page(&State::ALL, 50)
    };
    let names = |listed: Vec<(String, State)>| listed.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(all_pages(&bench, with(Some("other"), None)).await), ["Q1", "Q2"]);
    assert_eq!(names(all_pages(&bench, with(None, Some("fr"))).await), ["Q2"]);
    assert_eq!(names(all_pages(&bench, with(Some("none"), None)).await), [""; 0]);
}

#[tokio::test]
async fn list_goes_over_several_queues() {
    let bench = Bench::new().await;
    bench.enqueue(&[job("A"), job("B")]).await;
    let elsewhere = NewJob { queue: "other".to_owned(), ..job("C") };
    bench.store.enqueue(&punctual_core::store::enqueue::CallId::fresh(), "other", &[elsewhere]).await.unwrap();
    let queues = [Q.to_owned(), "empty".to_owned(), "other".to_owned()];
    let mut page = page(&[State::Ready], 1);
    let mut listed = Vec::new();
    loop {
        let (jobs, next) = bench.store.list(&queues, &page).await.unwrap();
        listed.extend(jobs.iter().map(|job| format!("{} {}", job.queue, tidy(&job.id))));
        page.cursor = next;
        if page.cursor.is_none() {
            break;
        }
    }
    assert_eq!(listed, ["q A", "q B", "other C"]);
}

#[test]
fn cursors_read_back_and_nonsense_is_refused() {
    for text in ["0.0.0", "1.7.3e8"] {
        assert_eq!(Cursor::parse(text).unwrap().to_text(), text);
    }
    for text in ["", "1", "1.2", "1.2.3.4", "a.b.-1", "x.y.z", "1.2.99999999999999999999", "..", "0.0.0 "] {
        assert_eq!(Cursor::parse(text), None, "{text}");
    }
}

#[tokio::test]
async fn queue_counts_jobs_by_state_and_no_bell() {
    let bench = Bench::new().await;
    let view = bench.store.queue(Q, Some(&[])).await.unwrap();
    assert_eq!(
        serde_json::to_value(&view.states).unwrap(),
        serde_json::json!({"scheduled":0,"ready":0,"running":0,"retrying":0,"succeeded":0,"dead":0,"cancelled":0,"held":0})
    );
    assert_eq!((view.oldest_ready_ms, view.paused), (None, false));
    for state in states::ALL {
        let (bench, _) = bench_with(state).await;
        bench.store.pause(Q).await.unwrap();
        if state == State::Cancelled {
            // Drops the entry of the cancelled job.
            bench.store.resume(Q).await.unwrap();
            bench.join("n").await;
            bench.claim("n", 1, 1).await;
        }
        let view = bench.store.queue(Q, Some(&[])).await.unwrap();
        let counts = serde_json::to_value(&view.states).unwrap();
        for other in states::ALL {
            assert_eq!(counts[other.word()], u64::from(other == state), "{other:?} in a queue with one {state:?}");
        }
        let document: Value = serde_json::to_value(&view).unwrap();
        for field in ["queue", "paused", "states", "oldest_ready_ms", "unroutable", "totals"] {
            assert!(document.get(field).is_some(), "{field}");
        }
        assert_eq!(view.paused, state != State::Cancelled);
    }
    let bench = Bench::new().await;
    bench
        .enqueue(&[
            band("A", Priority::High),
            band("B", Priority::Low),
            NewJob { due: Due::In(59_000), ..job("C") },
            NewJob { due: Due::In(61_000), ..job("D") },
        ])
        .await;
    bench.at(500);
    let view = bench.store.queue(Q, Some(&[])).await.unwrap();
    assert_eq!((view.states.ready, view.oldest_ready_ms, view.due_soon), (2, Some(500), 1));
}

#[tokio::test]
async fn queue_names_jobs_that_no_node_can_run() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    let away = Move { outcome: None, ..crate::table::to(State::Scheduled, punctual_core::state::AttemptOutcome::Snoozed) };
    bench.settle("n", "A", token, Move { delay: std::time::Duration::from_secs(1), ..away }).await;
    bench.enqueue(&[NewJob { due: Due::In(5), ..job("B") }]).await;
    let unroutable = |handlers: &[&str]| {
        let handlers: Vec<String> = handlers.iter().map(|name| (*name).to_owned()).collect();
        let bench = &bench;
        async move { bench.store.queue(Q, Some(&handlers)).await.unwrap().unroutable }
    };
    assert_eq!(unroutable(&["other"]).await, [("noop".to_owned(), 1)].into());
    assert_eq!(unroutable(&["noop"]).await, BTreeMap::new());
}
