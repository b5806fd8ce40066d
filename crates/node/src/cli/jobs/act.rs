//! `punctual jobs cancel|retry|run-now|release|reschedule|delete`: one result per id, exit code 1 when any went wrong.

use std::collections::{BTreeMap, HashSet};

use punctual_core::state::State;
use punctual_core::store::StoreError;
use punctual_core::store::cancel::Acted;
use punctual_core::store::requeue::Requeue;
use serde::Serialize;

use super::super::failure::Failure;
use super::super::output::Output;
use super::super::session::{Cluster, Session};
use super::Ids;
use super::locate::{Place, locate};

/// Ids of one call.
const AT_ONCE: usize = 500;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Cancel,
    Retry,
    RunNow,
    Release,
    Delete,
    /// To this instant, milliseconds since 1970.
    Reschedule(u64),
}

impl Action {
    /// Why a job in this state is left alone.
    fn refusal(self, state: State) -> String {
        let which = match self {
            Self::Cancel => "only a job that has not ended can be cancelled",
            Self::Retry => "only a dead, cancelled or succeeded job can be retried",
            Self::RunNow => "only a scheduled or retrying job can be run now",
            Self::Release => "only a held job can be released",
            Self::Delete => "the job cannot be deleted",
            Self::Reschedule(_) => "only a job that waits can be rescheduled",
        };
        format!("{which}; this one is {}", state.word())
    }
}

/// What became of one id. The state is null when there is no job (any more).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ActionResult {
    id: String,
    ok: bool,
    state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl ActionResult {
    pub(super) fn done(id: &str, state: Option<State>) -> Self {
        Self { id: id.to_owned(), ok: true, state: state.map(|state| state.word().to_owned()), error: None }
    }

    pub(super) fn refused(id: &str, state: Option<State>, error: String) -> Self {
        Self { id: id.to_owned(), ok: false, state: state.map(|state| state.word().to_owned()), error: Some(error) }
    }
}

/// The document of every action on ids.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    results: Vec<ActionResult>,
}

impl Results {
    /// Prints them; fails when any of them is not ok.
    pub(super) fn tell(out: Output, results: Vec<ActionResult>) -> Result<(), Failure> {
        let document = Self { results };
        out.show(&document, |out| {
            let row = |one: &ActionResult| {
                let ok = if one.ok { "yes" } else { "no" };
                vec![one.id.clone(), ok.to_owned(), one.state.clone().unwrap_or_default(), one.error.clone().unwrap_or_default()]
            };
            out.table(&["id", "done", "state", "error"], &document.results.iter().map(row).collect::<Vec<_>>())
        })?;
        if document.results.iter().all(|one| one.ok) { Ok(()) } else { Err(Failure::told()) }
    }
}

pub(super) async fn run(session: &Session, action: Action, ids: &Ids) -> Result<(), Failure> {
    let cluster = session.connect().await?;
    let queue = ids.queue.as_deref();
    // The same id twice would be refused the second time for what the first time did.
    let mut seen = HashSet::new();
    let ids: Vec<String> = ids.ids.iter().filter(|id| seen.insert(id.as_str())).cloned().collect();
    let places = locate(&cluster, &ids, queue).await?;
    let mut by_queue: BTreeMap<&str, Vec<(String, State)>> = BTreeMap::new();
    for (id, place) in ids.iter().zip(&places) {
        if let Place::In(queue, state) = place {
            by_queue.entry(queue).or_default().push((id.clone(), *state));
        }
    }
    let mut acted: BTreeMap<String, ActionResult> = BTreeMap::new();
    for (queue, jobs) in by_queue {
        for page in jobs.chunks(AT_ONCE) {
            let ids: Vec<String> = page.iter().map(|(id, _)| id.clone()).collect();
            let answers = answers(&cluster, action, queue, &ids).await.map_err(cluster.failed("change the jobs"))?;
            let told = page.iter().zip(answers).map(|((id, state), answer)| told(action, (id, queue, *state), answer));
            acted.extend(ids.into_iter().zip(told));
        }
    }
    let results = ids
        .iter()
        .zip(&places)
        .map(|(id, place)| acted.remove(id).unwrap_or_else(|| ActionResult::refused(id, None, place.error(id, queue))));
    Results::tell(session.out, results.collect())
}

/// What the store said about one id; `None` stands for a job that was removed.
type Answer = Result<Option<State>, Acted>;

async fn answers(cluster: &Cluster, action: Action, queue: &str, ids: &[String]) -> Result<Vec<Answer>, StoreError> {
    let store = cluster.store();
    let requeue = match action {
        Action::Delete => {
            let removed = store.delete(queue, ids).await?;
            return Ok(removed.into_iter().map(|removed| if removed { Ok(None) } else { Err(Acted::Unknown) }).collect());
        }
        Action::Cancel => None,
        Action::Retry => Some(Requeue::Retry),
        Action::RunNow => Some(Requeue::RunNow),
        Action::Release => Some(Requeue::Release),
        Action::Reschedule(at_ms) => Some(Requeue::Reschedule(at_ms)),
    };
    let acted = match requeue {
        None => store.cancel(queue, ids).await?,
        Some(requeue) => store.requeue(queue, requeue, ids).await?,
    };
    let answer = |one| if let Acted::Done(state) = one { Ok(Some(state)) } else { Err(one) };
    Ok(acted.into_iter().map(answer).collect())
}

/// `before` is the state in which the job was found.
fn told(action: Action, (id, queue, before): (&str, &str, State), answer: Answer) -> ActionResult {
    match answer {
        Ok(state) => ActionResult::done(id, state),
        Err(Acted::WrongState(state)) => ActionResult::refused(id, Some(state), action.refusal(state)),
        Err(Acted::Conflict(other)) => {
            ActionResult::refused(id, Some(before), format!("its unique key is held by {other}; cancel that one first"))
        }
        Err(_) => ActionResult::refused(id, None, Place::Nowhere.error(id, Some(queue))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_say_why_and_what_the_state_is() {
        let result = told(Action::Release, ("a", "q", State::Ready), Err(Acted::WrongState(State::Running)));
        assert_eq!((result.ok, result.state.as_deref()), (false, Some("running")));
        assert!(result.error.unwrap().ends_with("this one is running"));
        assert!(told(Action::Retry, ("a", "q", State::Dead), Err(Acted::Conflict("b".to_owned()))).error.unwrap().contains('b'));
        assert_eq!(told(Action::Delete, ("a", "q", State::Dead), Ok(None)), ActionResult::done("a", None));
        let text = serde_json::to_string(&ActionResult::done("a", Some(State::Ready))).unwrap();
        assert_eq!(text, r#"{"id":"a","ok":true,"state":"ready"}"#);
    }
}
