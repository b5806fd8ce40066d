//! What `doctor` finds in the stored jobs, and how it is mended. The store looks and mends; this decides what is damage.
//!
//! A busy cluster moves jobs while it is looked through, so only what is seen twice counts.

use std::collections::HashSet;

use punctual_core::store::repair::Damage;

use super::super::failure::Failure;
use super::super::session::Cluster;
use super::Check;

/// Ids that a check names.
const NAMED: usize = 3;

/// What each kind is called, in the order in which it is shown.
const KINDS: [(&str, &str, &str); 5] = [
    ("index", "index entries without a record", "a record was deleted or evicted behind punctual's back"),
    ("state", "states without a record", "a record was deleted or evicted behind punctual's back"),
    ("unique", "unique keys whose job is gone", "they keep new jobs out"),
    ("lost", "jobs that lie in no list", "nothing would ever run them"),
    ("owner", "processing lists of nodes that nobody knows", "the reaper does not look there"),
];

/// Damage that two looks agree on.
pub(super) async fn look(cluster: &Cluster) -> Result<Vec<Damage>, Failure> {
    let queues = cluster.store().queues().await.map_err(cluster.failed("list the queues"))?;
    let mut found = Vec::new();
    for queue in queues {
        let first = cluster.store().examine(&queue).await.map_err(cluster.failed("look through the queue"))?;
        if !first.is_empty() {
            let second = cluster.store().examine(&queue).await.map_err(cluster.failed("look through the queue"))?;
            found.extend(both(first, &second));
        }
    }
    Ok(found)
}

fn both(first: Vec<Damage>, second: &[Damage]) -> Vec<Damage> {
    let agree = |one: Damage| {
        let again: HashSet<&String> = second
            .iter()
            .filter(|other| other.kind == one.kind && other.name == one.name && other.queue == one.queue)
            .flat_map(|other| &other.ids)
            .collect();
        let ids: Vec<String> = one.ids.into_iter().filter(|id| again.contains(id)).collect();
        (!ids.is_empty()).then_some(Damage { ids, ..one })
    };
    first.into_iter().filter_map(agree).collect()
}

/// Mends it; returns how many entries were still damaged and are mended.
pub(super) async fn mend(cluster: &Cluster, found: &[Damage]) -> Result<u64, Failure> {
    let mut mended = 0;
    for damage in found {
        mended += cluster.store().repair(damage).await.map_err(cluster.failed("repair the queue"))?;
    }
    Ok(mended)
}

/// One check per kind.
pub(super) fn checks(found: &[Damage]) -> Vec<Check> {
    KINDS
        .iter()
        .map(|(kind, what, why)| {
            let of_kind: Vec<&Damage> = found.iter().filter(|damage| damage.kind == *kind).collect();
            let count: usize = of_kind.iter().map(|damage| damage.ids.len()).sum();
            if count == 0 {
                return Check::fine(kind, format!("no {what}"));
            }
            let names = of_kind.iter().flat_map(|damage| damage.ids.iter().map(|id| format!("{id} in {}", damage.queue)));
            let names: Vec<String> = names.take(NAMED).collect();
            let more = if count > NAMED { ", …" } else { "" };
            let detail = format!("{count} {what}: {}{more}", names.join(", "));
            Check::wrong(kind, detail, format!("{why}; punctual doctor --repair mends it"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damage(kind: &'static str, ids: &[&str]) -> Damage {
        Damage { queue: "q".to_owned(), kind, name: String::new(), ids: ids.iter().map(|id| (*id).to_owned()).collect() }
    }

    #[test]
    fn only_what_is_seen_twice_is_damage() {
        let first = vec![damage("lost", &["a", "b"]), damage("state", &["c"])];
        assert_eq!(both(first, &[damage("lost", &["b", "d"]), damage("index", &["c"])]), [damage("lost", &["b"])]);
    }

    #[test]
    fn every_kind_is_a_check_with_a_few_ids() {
        let checks = checks(&[damage("lost", &["a", "b", "c", "d"])]);
        assert_eq!(checks.len(), KINDS.len());
        let wrong: Vec<&Check> = checks.iter().filter(|check| !check.ok).collect();
        assert!(wrong.len() == 1 && wrong[0].detail.starts_with("4 jobs") && wrong[0].detail.ends_with("c in q, …"), "{wrong:?}");
        assert!(wrong[0].todo.as_ref().unwrap().contains("--repair"));
    }
}
