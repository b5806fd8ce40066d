//! The cluster-wide right to promote.

use std::time::Duration;

use punctual_core::store::lease::{Acquired, After, Held};
use punctual_core::store::nudge::Nudge;
use punctual_tests::eventually;

use crate::table::{Bench, T0};

const TTL: Duration = Duration::from_secs(60);

async fn take(bench: &Bench, node: &str, ttl: Duration, above: u64) -> Option<(u64, After)> {
    match bench.store.acquire_lease(node, ttl, above).await.expect("an answer") {
        Acquired::Mine { term, after } => Some((term, after)),
        Acquired::Held(_) => None,
    }
}

#[tokio::test]
async fn acquire_takes_a_free_lease_and_only_a_free_one() {
    let bench = Bench::new().await;
    assert_eq!(bench.store.lease().await.unwrap(), None);
    assert_eq!(take(&bench, "a", TTL, 0).await, Some((T0 * 1000, After::Free)));
    bench
        .is("lease a k0 t0 (expires)
              term k0 held")
        .await;
    let before = bench.table().await;
    bench.at(5);
    // Nor by the holder itself: a lost reply is waited out.
    for node in ["b", "a"] {
        let Acquired::Held(held) = bench.store.acquire_lease(node, TTL, 0).await.unwrap() else { panic!("taken twice") };
        assert_eq!((held.holder.as_str(), held.term, held.since_ms), ("a", T0 * 1000, T0));
        assert!(held.expires_in <= TTL && held.expires_in > TTL / 2, "{:?}", held.expires_in);
    }
    bench.unchanged(&before).await;
    let held = bench.store.lease().await.unwrap().unwrap();
    let expected = Held { holder: "a".to_owned(), term: T0 * 1000, since_ms: T0, expires_in: held.expires_in };
    assert_eq!(held, expected);
}

#[tokio::test]
async fn release_and_renew_are_the_holders_alone_and_of_its_term() {
    let bench = Bench::new().await;
    let (term, _) = take(&bench, "a", TTL, 0).await.unwrap();
    let before = bench.table().await;
    for (node, term) in [("b", term), ("a", term + 1), ("a", term - 1), ("a", 0), ("", term)] {
        assert!(!bench.store.renew_lease(node, term, TTL).await.unwrap(), "{node} {term}");
        assert!(!bench.store.release_lease(node, term).await.unwrap(), "{node} {term}");
    }
    bench.unchanged(&before).await;
    assert!(bench.store.renew_lease("a", term, TTL).await.unwrap());
    bench.unchanged(&before).await;
    assert!(bench.store.release_lease("a", term).await.unwrap());
    bench
        .changed(
            &before,
            "- lease a k0 t0 (expires)
                            - term k0 held
                            + term k0 released",
        )
        .await;
    let before = bench.table().await;
    assert!(!bench.store.renew_lease("a", term, TTL).await.unwrap());
    assert!(!bench.store.release_lease("a", term).await.unwrap());
    bench.unchanged(&before).await;
}

#[tokio::test]
async fn a_holder_whose_name_begins_like_anothers_is_another() {
    let bench = Bench::new().await;
    let (term, _) = take(&bench, "web-1", TTL, 0).await.unwrap();
    assert!(!bench.store.renew_lease("web", term, TTL).await.unwrap());
    assert!(!bench.store.release_lease("web-11", term).await.unwrap());
}

#[tokio::test]
async fn renew_prolongs_the_lease() {
    let bench = Bench::new().await;
    let (term, _) = take(&bench, "a", TTL, 0).await.unwrap();
    assert!(bench.store.renew_lease("a", term, TTL * 100).await.unwrap());
    assert!(bench.store.lease().await.unwrap().unwrap().expires_in > TTL * 99);
}

#[tokio::test]
async fn terms_grow_over_release_and_expiry_even_when_the_time_goes_back() {
    let bench = Bench::new().await;
    let (first, after) = take(&bench, "a", TTL, 0).await.unwrap();
    assert_eq!(after, After::Free);
    bench.store.release_lease("a", first).await.unwrap();
    bench.at_instant(T0 - 60_000);
    let (second, after) = take(&bench, "b", TTL, 0).await.unwrap();
    assert_eq!((second, after), (first + 1, After::Released));
    bench.store.renew_lease("b", second, Duration::from_millis(1)).await.unwrap();
    let taken = eventually(Duration::from_secs(10), "the lease to expire", async || take(&bench, "a", TTL, 0).await);
    let (third, after) = taken.await.unwrap();
    assert_eq!((third, after), (second + 1, After::Expired));
    bench.store.release_lease("a", third).await.unwrap();
    bench.at(1);
    let (fourth, _) = take(&bench, "a", TTL, 0).await.unwrap();
    assert_eq!(fourth, (T0 + 1) * 1000);
}

#[tokio::test]
async fn acquire_exceeds_the_fence_that_refused_the_last_term() {
    let bench = Bench::new().await;
    let fence = (T0 + 999_999) * 1000;
    let (term, _) = take(&bench, "a", TTL, fence).await.unwrap();
    assert_eq!(term, fence + 1);
    bench.store.release_lease("a", term).await.unwrap();
    // It is remembered: without a fence to tell the next goes on from there.
    assert_eq!(take(&bench, "b", TTL, 0).await, Some((fence + 2, After::Released)));
}

#[tokio::test]
async fn release_wakes_the_others() {
    let bench = Bench::new().await;
    let (term, _) = take(&bench, "a", TTL, 0).await.unwrap();
    let mut nudges = bench.store.nudges().await.unwrap();
    bench.store.release_lease("b", term).await.unwrap();
    bench.store.release_lease("a", term).await.unwrap();
    bench.store.publish(&Nudge::StepDown).await.unwrap();
    assert_eq!(crate::table::next(&mut nudges).await, Nudge::Lease);
    assert_eq!(crate::table::next(&mut nudges).await, Nudge::StepDown);
}
