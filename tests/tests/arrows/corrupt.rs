//! Damaged records at the head of a queue: claim passes them on, because reading is Rust's business, and the queue goes on.

use punctual_core::codec::{self, DecodeError};
use punctual_core::job::{NewJob, UniqueUntil};
use punctual_core::state::{Ended, Limits, after};
use punctual_core::store::cancel::Acted;
use punctual_core::store::requeue::Requeue;
use punctual_core::store::settle::Settled;

use crate::table::{Bench, Q, claimed, done, drop_all, job, names, own, retry, tidy, unique};

/// What a good body becomes, and whether it can still be read.
type Shape = (&'static str, fn(Vec<u8>) -> Vec<u8>, bool);

fn set(mut body: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    body[at] = byte;
    body
}

const SHAPES: &[Shape] = &[
    ("empty", |_| Vec::new(), false),
    ("one byte", |_| vec![1], false),
    ("header cut", |body| body[..9].to_vec(), false),
    ("header only", |body| body[..16].to_vec(), false),
    ("one byte short", |body| body[..body.len() - 1].to_vec(), false),
    (
        "one byte more",
        |mut body| {
            body.push(0);
            body
        },
        false,
    ),
    ("version 0", |body| set(body, 0, 0), false),
    ("newer version", |body| set(body, 0, 2), false),
    ("no version", |body| set(body, 0, b'{'), false),
    ("band 7", |body| set(body, 1, b'7'), false),
    ("band NUL", |body| set(body, 1, 0), false),
    ("late policy X", |body| set(body, 2, b'X'), false),
    ("mark X", |body| set(body, 3, b'X'), false),
    ("mark + without extension", |body| [&set(body, 3, b'+')[..16], b"\x05a"].concat(), false),
    ("extension without line feed", |body| [&set(body, 3, b'+')[..16], b"0 0 0 f k"].concat(), false),
    ("extension of letters", |body| [&set(body, 3, b'+')[..16], b"a b c d e\nrest"].concat(), false),
    (
        "extension with huge numbers",
        |body| [&set(body, 3, b'+')[..16], b"99999999999999999999999999 1e9 -1 f k\n"].concat(),
        false,
    ),
    ("mark - before an extension", |body| set(body, 3, b'-'), true),
    ("bincode of random bytes", |body| [&body[..16], &[0xff; 40][..]].concat(), false),
    ("length that is a lie", |body| [&body[..16], b"\xfd\xff\xff\xff\xff\xff\xff\xff\xffabc"].concat(), false),
    ("JSON text", |_| br#"{"handler":"noop","args":{}}"#.to_vec(), false),
    ("zeros", |_| vec![0; 64], false),
    ("invalid UTF-8", |body| [&body[..16], b"\x04\xff\xfe\xfd\xfc\x02{}\0\0\0\0\0\0"].concat(), false),
    ("control characters", |_| b"# !\n\r\0\x1b[31m".to_vec(), false),
];

async fn damage(bench: &Bench, id: &str, change: impl Fn(Vec<u8>) -> Vec<u8>) {
    let bucket = bench.store.keys().bucket(Q, id);
    let body: Vec<u8> = bench.command(redis::cmd("HGET").arg(&bucket).arg(id)).await;
    bench.command::<()>(redis::cmd("HSET").arg(&bucket).arg(id).arg(change(body))).await;
}

/// Jobs of every kind of id and header; each is damaged in each way.
fn jobs(number: usize) -> [NewJob; 4] {
    [
        job(&format!("{number}A")),
        own(&format!("own-{number}")),
        unique(&format!("{number}B"), &format!("f{number}"), UniqueUntil::Finished),
        unique(&format!("{number}C"), &format!("s{number}"), UniqueUntil::Started),
    ]
}

#[tokio::test]
async fn damaged_bodies_at_the_head_of_a_queue_do_not_stop_it() {
    assert!(SHAPES.len() >= 20);
    let bench = Bench::new().await;
    bench.join("n").await;
    let mut planted = Vec::new();
    for (number, (what, change, readable)) in SHAPES.iter().enumerate() {
        for job in jobs(number) {
            bench.enqueue(std::slice::from_ref(&job)).await;
            damage(&bench, &job.id, change).await;
            planted.push((job.id, *what, *readable));
        }
    }
    bench.enqueue(&[job("GD")]).await;
    let limits = Limits {
        attempt: 1,
        max_attempts: 1,
        policy: punctual_core::backoff::RetryPolicy::default(),
        age: std::time::Duration::ZERO,
        roll: 0.5,
    };
    let mut seen = Vec::new();
    for number in 1.. {
        let (token, jobs) = claimed(bench.claim("n", number, 10).await);
        if jobs.is_empty() {
            break;
        }
        for job in jobs {
            let end = match codec::decode(&job.body) {
                Ok(_) => done(),
                Err(DecodeError::Corrupt(reason)) => after(Ended::Corrupt(reason), &limits),
                Err(DecodeError::Newer(_)) => after(Ended::Unroutable(std::time::Duration::from_secs(1)), &limits),
            };
            assert_eq!(bench.settle("n", &job.id, token, end).await, Settled::Done, "{}", tidy(&job.id));
            seen.push(job.id);
        }
    }
    // The good one ran, and each damaged one came to Rust exactly once: none is left where nobody looks.
    assert_eq!(seen.iter().filter(|seen| tidy(seen) == "GD").count(), 1);
    for (id, what, _) in &planted {
        assert_eq!(seen.iter().filter(|seen| *seen == id).count(), 1, "{what} {}", tidy(id));
        let state = bench.store.find(id, Some(Q)).await.unwrap()[0].state.word();
        let expected: &[&str] = if *what == "newer version" { &["scheduled"] } else { &["dead", "succeeded"] };
        assert!(expected.contains(&state), "{what} {}: {state}", tidy(id));
    }
    assert_eq!(bench.table().await.lines("r"), [""; 0]);
}

#[tokio::test]
async fn damaged_bodies_go_through_promotion() {
    for (what, change, _) in SHAPES {
        let bench = Bench::new().await;
        bench.join("n").await;
        for job in jobs(1) {
            let id = job.id.clone();
            bench.enqueue(&[NewJob { due: punctual_core::job::Due::In(5), ..job }]).await;
            damage(&bench, &id, change).await;
        }
        bench.at(5);
        assert_eq!(crate::table::moved(&bench.promote().await), (4, None, 0, 0), "{what}");
        assert_eq!(names(bench.claim("n", 1, 9).await).len(), 4, "{what}");
    }
}

#[tokio::test]
async fn a_person_can_look_at_a_damaged_job_cancel_it_and_delete_it() {
    for (what, change, _) in SHAPES {
        let bench = Bench::new().await;
        for job in jobs(1) {
            let id = job.id.clone();
            bench.enqueue(&[job]).await;
            damage(&bench, &id, change).await;
            let view = bench.store.show(&id, None).await.unwrap();
            assert!(view.is_none(), "{what}: found without a registered queue");
            let view = bench.store.show(&id, Some(Q)).await.unwrap().unwrap();
            assert!(view.raw.is_some() || !view.handler.is_empty(), "{what}");
            let ids = [id];
            assert!(matches!(bench.store.cancel(Q, &ids).await.unwrap()[0], Acted::Done(_)), "{what}");
            assert!(matches!(bench.store.requeue(Q, Requeue::Retry, &ids).await.unwrap()[0], Acted::Done(_)), "{what}");
            assert_eq!(bench.store.delete(Q, &ids).await.unwrap(), [true], "{what}");
        }
        let table = bench.table().await;
        assert_eq!((table.lines("b "), table.lines("s ")), (vec![], vec![]), "{what}");
    }
}

#[tokio::test]
async fn a_job_whose_state_cannot_be_read_runs_as_if_it_never_had() {
    let shapes = ["", "q", "zzz", "r", "d1", "q 1 2", "s1800000000000000 1 0 0", "q1800000000000000 x 0 0 0 0 0 -", "\n", "t"];
    let bench = Bench::new().await;
    bench.join("n").await;
    for (number, shape) in shapes.iter().enumerate() {
        let name = format!("{number}A");
        bench.enqueue(&[job(&name)]).await;
        bench.raw::<()>("HSET", "s", &[&crate::table::id(&name), shape]).await;
    }
    bench.enqueue(&[job("GD")]).await;
    let (token, jobs) = claimed(bench.claim("n", 1, 20).await);
    assert_eq!(jobs.len(), shapes.len() + 1);
    assert!(jobs.iter().all(|job| job.packed.attempt == 1 && job.packed.token == token));
}

#[tokio::test]
async fn a_settle_of_a_damaged_state_is_stale_and_stops_no_other() {
    let bench = Bench::new().await;
    bench.join("n").await;
    bench.enqueue(&["A", "B", "C"].map(job)).await;
    let (token, _) = claimed(bench.claim("n", 1, 3).await);
    bench.raw::<()>("HSET", "s", &[&crate::table::id("A"), &format!("r{token}")]).await;
    bench.raw::<()>("HSET", "s", &[&crate::table::id("B"), "nonsense"]).await;
    let ends = [("A", token, retry(5)), ("B", token, done()), ("C", token, done())];
    let answers = bench.settle_keeping(&drop_all(), "n", &ends).await;
    assert_eq!(answers, [Settled::Stale, Settled::Stale, Settled::Done]);
}

#[tokio::test]
async fn odd_entries_in_a_ready_list_are_dropped() {
    let bench = Bench::new().await;
    bench.join("n").await;
    for entry in ["", "#", "#1", "no-such-job", "no-such-job#5", "a#b#c", "!", "!!", "\n", " ", "..", "{x}"] {
        bench.raw::<()>("LPUSH", "r2", &[entry]).await;
        bench.raw::<()>("LPUSH", "suspects", &[entry]).await;
    }
    bench.enqueue(&[job("A")]).await;
    let mut number = 0;
    while names(bench.claim_with("n", number + 1, 9, [0; 4], true).await).is_empty() {
        number += 1;
        assert!(number < 30);
    }
    assert!(bench.table().await.has("run:n {A}"));
}
