//! The registry of every key that punctual writes: name, type, who writes it, how it ends. Nothing else exists.
//!
//! All keys of queue Q carry the hash tag `{ns:Q}`, cluster-wide keys carry `{ns}`: one script can move a job atomically, and
//! Redis Cluster spreads queues over its primaries. The scripts build the same names from the tag; a test holds both together.

use std::sync::Arc;

use sha1_smol::Sha1;

use crate::job::is_generated_id;
use crate::state::State;

/// What a key is for, as data: the documentation and the test of "no key outside the registry" both read it.
#[derive(Clone, Copy, Debug)]
pub struct KeyKind {
    /// The part after the tag; `*` stands for a name.
    pub pattern: &'static str,
    /// Whether it belongs to a queue or to the cluster.
    pub per_queue: bool,
    /// Redis' type.
    pub kind: &'static str,
    /// What it holds.
    pub holds: &'static str,
    /// How it ends.
    pub ends: &'static str,
}

const fn key(pattern: &'static str, per_queue: bool, kind: &'static str, holds: &'static str, ends: &'static str) -> KeyKind {
    KeyKind { pattern, per_queue, kind, holds, ends }
}

/// Every key.
pub const REGISTRY: &[KeyKind] = &[
    key("b:*", true, "hash", "id → body, 1,024 buckets for generated ids and 256 for callers'", "with its last job"),
    key("s", true, "hash", "id → packed state, once a job has left its first waiting", "with its last job"),
    key("r0", true, "list", "ready entries of the critical band", "when drained"),
    key("r1", true, "list", "ready entries of the high band", "when drained"),
    key("r2", true, "list", "ready entries of the normal band, and the bell", "when drained"),
    key("r3", true, "list", "ready entries of the low band", "when drained"),
    key("suspects", true, "list", "jobs that were in flight on two nodes that died", "when drained"),
    key("p:*", true, "list", "entries that one incarnation has fetched and not claimed", "claimed, or reaped"),
    key("run:*", true, "set", "ids that one incarnation has claimed", "settled, or reaped"),
    key("owners", true, "hash", "incarnation → last claim number and token, or gone since", "on leaving; an hour after a death"),
    key("scheduled", true, "zset", "id → due ms, first waits and snoozes", "promoted"),
    key("retrying", true, "zset", "id → due ms, after a failure", "promoted"),
    key("succeeded", true, "zset", "id → when", "trimmed by age and count"),
    key("dead", true, "zset", "id → when", "trimmed by age and count"),
    key("cancelled", true, "zset", "id → when", "trimmed by age and count"),
    key("held", true, "zset", "id → when", "released or cancelled by a person"),
    key("results", true, "hash", "id → JSON text", "with the job"),
    key("progress", true, "hash", "id → percent and text", "with the job"),
    key("h:*", true, "list", "the attempts of one job that had to be recorded, the last 100", "with the job"),
    key("l:*", true, "list", "the log lines of one job, the last 100", "with the job"),
    key("u:*", true, "string", "unique key → id of the job that holds it", "when its holder starts or ends"),
    key("d:*", true, "string", "dedupe key → id", "by its own TTL"),
    key("rc:*", true, "string", "the answer of one enqueue call", "TTL of seconds; a day for an Idempotency-Key"),
    key("totals", true, "hash", "counts since the queue began", "with the queue"),
    key("fence", true, "string", "highest lease term seen", "with the queue"),
    key("token", true, "string", "highest claim token given", "with the queue"),
    key("paused", true, "string", "present while the queue is paused", "on resume"),
    key("lease", false, "string", "holder, term, since", "TTL"),
    key("term", false, "string", "last term and how it ended", "with the cluster"),
    key("beat:*", false, "string", "one incarnation is alive", "TTL of node.dead_after"),
    key("nodes", false, "hash", "incarnation → what it says of itself", "on leaving, or buried"),
    key("queues", false, "set", "every queue that anybody used", "with the cluster"),
    key("handlers", false, "hash", "handler → schema, defaults, when last advertised", "an hour after the last advertisement"),
    key(
        "idem:*",
        false,
        "string",
        "the digest of the request that an Idempotency-Key stands for, and since when",
        "TTL of a day",
    ),
];

/// Builds the names of one namespace.
#[derive(Clone, Debug)]
pub struct Keys {
    namespace: Arc<str>,
}

impl Keys {
    /// Names of this namespace.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.into() }
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The tag of cluster-wide keys.
    #[must_use]
    pub fn cluster_tag(&self) -> String {
        format!("{{{}}}", self.namespace)
    }

    /// The tag of a queue's keys.
    #[must_use]
    pub fn queue_tag(&self, queue: &str) -> String {
        format!("{{{}:{queue}}}", self.namespace)
    }

    /// A cluster-wide key by the part after its tag.
    #[must_use]
    pub fn cluster(&self, part: &str) -> String {
        format!("{{{}}}:{part}", self.namespace)
    }

    /// A queue's key by the part after its tag.
    #[must_use]
    pub fn queue(&self, queue: &str, part: &str) -> String {
        format!("{{{}:{queue}}}:{part}", self.namespace)
    }

    /// Where an incarnation's beat lies.
    #[must_use]
    pub fn beat(&self, incarnation: &str) -> String {
        self.cluster(&format!("beat:{incarnation}"))
    }

    /// The channel of nudges: hints that nothing depends on.
    #[must_use]
    pub fn nudges(&self) -> String {
        self.cluster("nudge")
    }

    /// The hash that holds a job's body.
    #[must_use]
    pub fn bucket(&self, queue: &str, id: &str) -> String {
        if is_generated_id(id) {
            return self.queue(queue, &format!("b:{}", &id[24..]));
        }
        let digest = Sha1::from(id).digest().to_string();
        self.queue(queue, &format!("b:h{}", &digest[..2]))
    }

    /// The ready list of a band.
    #[must_use]
    pub fn ready(&self, queue: &str, band: u8) -> String {
        self.queue(queue, &format!("r{band}"))
    }

    /// The sorted set that lists the jobs of a state; ready and running ones lie elsewhere.
    #[must_use]
    pub fn set_of(&self, queue: &str, state: State) -> Option<String> {
        match state {
            State::Ready | State::Running => None,
            other => Some(self.queue(queue, other.word())),
        }
    }

    /// Whether a key of this namespace is one of [`REGISTRY`].
    #[must_use]
    pub fn is_registered(&self, key: &str) -> bool {
        let Some((tag, part)) = key.strip_prefix('{').and_then(|rest| rest.split_once("}:")) else { return false };
        let per_queue = match tag.split_once(':') {
            Some((namespace, _)) if namespace == self.namespace() => true,
            None if tag == self.namespace() => false,
            _ => return false,
        };
        REGISTRY.iter().any(|kind| {
            kind.per_queue == per_queue
                && kind.pattern.strip_suffix('*').map_or(kind.pattern == part, |prefix| part.starts_with(prefix))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_that_a_script_names_is_registered() {
        let keys = Keys::new("ns");
        for (name, text) in crate::store::script::sources() {
            for piece in text.split("Q .. ':").skip(1) {
                let part: String = piece.chars().take_while(|c| *c != '\'').collect();
                let part = if part.ends_with(':') || part == "r" || part.is_empty() { format!("{part}2") } else { part };
                let part = if part == "2" { continue } else { part };
                let known = keys.is_registered(&format!("{{ns:q}}:{part}")) || keys.is_registered(&format!("{{ns}}:{part}"));
                assert!(known, "{name} names {part}");
            }
        }
    }

    #[test]
    fn tags_keep_a_queue_in_one_slot() {
        let keys = Keys::new("ns");
        assert_eq!(keys.queue("mail", "r2"), "{ns:mail}:r2");
        assert_eq!(keys.bucket("mail", "01ARZ3NDEKTSV4RRFFQ69G5FAV"), "{ns:mail}:b:AV");
        assert!(keys.bucket("mail", "order-17-close").starts_with("{ns:mail}:b:h"));
        assert!(!keys.is_registered("{ns:mail}:other"));
        assert!(!keys.is_registered("{other}:lease"));
    }
}
