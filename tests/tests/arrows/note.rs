//! Progress and log lines of running jobs.

use punctual_core::handler::Note;
use punctual_core::store::note::JobNote;

use crate::table::{Bench, Q, done, drop_all, id, job, retry};

/// Progress and a log line of a job.
pub fn both(name: &str, token: u64) -> Vec<JobNote> {
    let note = |note| JobNote { id: crate::table::name_to_id(name), token, note };
    vec![note(Note::Progress(50.0, "half".to_owned())), note(Note::Log("hello".to_owned()))]
}

#[tokio::test]
async fn note_keeps_progress_and_lines_with_a_running_job() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    let before = bench.table().await;
    bench.at(3);
    assert_eq!(bench.store.note(Q, &both("A", token)).await.unwrap(), 2);
    bench
        .changed(
            &before,
            "+ progress A 50 half
                            + l:A [t3 hello]
                            - s A rk0 1 0 0 0 0 t0 n
                            + s A rk0 1 0 0 6 0 t0 n",
        )
        .await;
    let before = bench.table().await;
    let more = [
        JobNote { id: id("A"), token, note: Note::Progress(62.5, "more".to_owned()) },
        JobNote { id: id("A"), token, note: Note::Log("again".to_owned()) },
    ];
    assert_eq!(bench.store.note(Q, &more).await.unwrap(), 2);
    bench
        .changed(
            &before,
            "- progress A 50 half
                            + progress A 62.5 more
                            - l:A [t3 hello]
                            + l:A [t3 hello t3 again]",
        )
        .await;
}

#[tokio::test]
async fn note_of_a_claim_that_is_not_current_keeps_nothing() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    let before = bench.table().await;
    for (name, token) in [("A", token + 1), ("A", token - 1), ("A", 0), ("Z", token)] {
        assert_eq!(bench.store.note(Q, &both(name, token)).await.unwrap(), 0, "{name} {token}");
    }
    bench.unchanged(&before).await;
    bench.settle("n", "A", token, retry(1000)).await;
    let before = bench.table().await;
    assert_eq!(bench.store.note(Q, &both("A", token)).await.unwrap(), 0);
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn note_counts_only_what_it_kept() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    let mixed: Vec<JobNote> = both("A", token).into_iter().chain(both("Z", token)).collect();
    assert_eq!(bench.store.note(Q, &mixed).await.unwrap(), 2);
}

#[tokio::test]
async fn note_keeps_the_last_hundred_lines_and_cuts_long_ones() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    let line = |n: usize| JobNote { id: id("A"), token, note: Note::Log(format!("{n} {}", "ä".repeat(2000))) };
    let lines: Vec<JobNote> = (0..130).map(line).collect();
    assert_eq!(bench.store.note(Q, &lines).await.unwrap(), 130);
    let log = bench.store.show(&id("A"), Some(Q)).await.unwrap().unwrap().log;
    assert_eq!(log.len(), 100);
    assert!(log[0].contains("Z 30 ä") && log[99].contains("Z 129 ä"), "{}", log[0]);
    assert!(log.iter().all(|line| line.len() < 1100));
}

#[tokio::test]
async fn notes_stay_with_a_job_and_go_with_it() {
    let bench = Bench::new().await;
    let token = bench.run(job("A"), "n", 1).await;
    bench.store.note(Q, &both("A", token)).await.unwrap();
    bench.settle("n", "A", token, retry(0)).await;
    bench.promote().await;
    let (token, _) = crate::table::claimed(bench.claim("n", 2, 1).await);
    let view = bench.store.show(&id("A"), Some(Q)).await.unwrap().unwrap();
    assert_eq!((view.progress.unwrap().percent, view.log.len()), (50.0, 1));
    bench.settle_keeping(&drop_all(), "n", &[("A", token, done())]).await;
    let table = bench.table().await;
    assert!(!table.has("l:") && !table.has("progress") && !table.has("h:"));
}
