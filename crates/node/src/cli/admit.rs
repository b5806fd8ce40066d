//! Whether a job may be handed in from here: [`Admission`] judges, and this adds what helps a person at a terminal: the
//! nearest name, the reason why a demo handler is missing, the presets that there are, and a way around.

use std::sync::Arc;

use punctual_core::backoff::Retry;
use punctual_core::client::EnqueueError;
use punctual_core::handler::Registry;
use punctual_core::job::{FieldError, NewJob};
use punctual_core::store::{Store, StoreError};

use super::session::{Cluster, Session};
use crate::admission::Admission;

/// Judges the jobs of one command.
pub(crate) struct Admit {
    admission: Admission,
    store: Store,
    /// The handlers that this configuration has.
    here: Registry,
    /// Every handler of this binary, also those that are turned off.
    all: Registry,
    presets: Vec<String>,
    unknown_handlers: bool,
}

/// Why a job was not let in.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// These fields are wrong.
    Fields(Vec<FieldError>),
    /// Redis could not be asked.
    Store(StoreError),
}

impl Admit {
    /// `unknown_handlers`: whether a job may wait for a handler that nobody has yet.
    pub(crate) fn new(session: &Session, cluster: &Cluster, unknown_handlers: bool) -> Self {
        Self {
            admission: Admission::new(Arc::new(cluster.registry.clone()), cluster.store().clone()),
            store: cluster.store().clone(),
            here: cluster.registry.clone(),
            all: session.all_handlers(),
            presets: cluster.config.retry.presets.keys().cloned().collect(),
            unknown_handlers,
        }
    }

    /// Everything that is wrong with what a job runs.
    pub(crate) async fn check(&self, job: &NewJob) -> Result<(), Refusal> {
        let mut wrong = match self.admission.check(job).await {
            Ok(()) | Err(EnqueueError::NoCluster) => Vec::new(),
            Err(EnqueueError::Refused(wrong)) => wrong,
            Err(EnqueueError::Store(error)) => return Err(Refusal::Store(error)),
        };
        if wrong.iter().any(|error| error.field == "handler") {
            wrong = match self.unknown_handlers {
                true => Vec::new(),
                false => vec![FieldError::new("handler", self.unknown(&job.spec.handler).await.map_err(Refusal::Store)?)],
            };
        }
        if let Some(Retry::Preset(name)) = &job.spec.retry
            && !self.presets.contains(name)
        {
            let known = self.presets.join(", ");
            wrong.push(FieldError::new("retry", format!("no preset {name:?} in retry.presets; there are {known}")));
        }
        if wrong.is_empty() { Ok(()) } else { Err(Refusal::Fields(wrong)) }
    }

    async fn unknown(&self, name: &str) -> Result<String, StoreError> {
        let demo = if_demo(name, &self.all);
        let others = self.store.advertised().await?;
        let near = near(name, self.here.names().into_iter().chain(others.into_keys()));
        let near = if demo.is_empty() { near } else { String::new() };
        Ok(format!(
            "{name:?} is neither in this program nor on a node{near}{demo}; --allow-unknown-handler stores it all the same"
        ))
    }
}

/// `, the nearest is NAME`, or nothing when there is no name at all.
pub(crate) fn near(name: &str, names: impl Iterator<Item = String>) -> String {
    let nearest = names.min_by_key(|candidate| distance(name, candidate));
    nearest.map_or_else(String::new, |nearest| format!(", the nearest is {nearest}"))
}

/// Why a handler that is built in is missing.
pub(crate) fn if_demo(name: &str, all: &Registry) -> &'static str {
    let demo = all.get(name).is_some_and(|handler| handler.demo);
    if demo { " (demo handlers are off; handlers.demo = true turns them on)" } else { "" }
}

/// Letters to insert, delete or replace.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = corner + usize::from(a != *b);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(corner + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_changes() {
        for (a, b, changes) in [("", "abc", 3), ("abc", "abc", 0), ("kitten", "sitting", 3), ("order.clsoe", "order.close", 2)] {
            assert_eq!(distance(a, b), changes, "{a} {b}");
        }
    }

    #[test]
    fn nearest_name_is_named_when_there_is_one() {
        let names = || ["order.close", "report.run"].map(str::to_owned).into_iter();
        assert_eq!(near("order.clsoe", names()), ", the nearest is order.close");
        assert_eq!(near("x", std::iter::empty()), "");
    }
}
