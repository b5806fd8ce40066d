//! Beats, so that the others know that this process lives; tells the node whether it may start jobs.
//!
//! Lives on a thread and a runtime of its own, with a connection of its own, so that no handler and no slow script can starve it.
//! After a gap it asks whether the node was declared dead meanwhile. An outage is no crash: it counts and beats on.
//! Deliberately absent: any judgement about other nodes.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::store::{Store, StoreError};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

use super::supervisor;
use crate::status::Status;
use crate::telemetry::Repeats;

/// What the heartbeat works on.
pub struct State {
    /// A connection of its own.
    pub store: Store,
    /// What the node knows of itself.
    pub status: Arc<Status>,
    /// Between two beats.
    pub every: Duration,
    /// How long a beat is good for.
    pub dead_after: Duration,
    repeats: Repeats,
}

impl State {
    /// A heartbeat that has not beaten.
    #[must_use]
    pub fn new(store: Store, status: Arc<Status>, every: Duration, dead_after: Duration) -> Self {
        Self { store, status, every, dead_after, repeats: Repeats::default() }
    }
}

/// What one pass found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The beat was answered.
    Beat,
    /// Redis did not answer.
    Silent,
    /// The node was declared dead while it could not beat.
    Buried,
}

/// One beat.
pub async fn run_once(state: &mut State) -> Pass {
    let sent = Instant::now();
    let after_gap = state.status.beat_age().is_none_or(|age| age > state.dead_after * 2 / 3);
    match beat(state, after_gap).await {
        Ok(true) => {
            if let Some(times) = state.repeats.recovered() {
                tracing::info!(target: "heartbeat", times, "beat answered again");
            }
            state.status.beat_confirmed(sent);
            Pass::Beat
        }
        Ok(false) => Pass::Buried,
        Err(error) => {
            if let Some(report) = state.repeats.failed(&error.text) {
                tracing::warn!(target: "heartbeat", error = %error, times = report.count, "beat not answered");
            }
            Pass::Silent
        }
    }
}

async fn beat(state: &State, after_gap: bool) -> Result<bool, StoreError> {
    let incarnation = state.status.incarnation();
    state.store.beat(&incarnation, state.dead_after).await?;
    if after_gap { state.store.is_registered(&incarnation).await } else { Ok(true) }
}

/// The heartbeat's only message.
pub struct Beat;

/// The actor.
pub struct Heartbeat;

impl Actor for Heartbeat {
    type Msg = Beat;
    type State = (State, ActorRef<supervisor::Message>);
    type Arguments = (State, ActorRef<supervisor::Message>);

    async fn pre_start(&self, myself: ActorRef<Beat>, arguments: Self::Arguments) -> Result<Self::State, ActorProcessingErr> {
        myself.cast(Beat)?;
        Ok(arguments)
    }

    async fn handle(
        &self,
        myself: ActorRef<Beat>,
        _: Beat,
        (state, supervisor): &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let began = Instant::now();
        if run_once(state).await == Pass::Buried {
            supervisor.cast(supervisor::Message::Buried)?;
        }
        // One timer at the end of each pass: after a pause of the process there is one beat, not a hundred.
        myself.send_after(state.every.saturating_sub(began.elapsed()).max(Duration::from_millis(10)), || Beat);
        Ok(())
    }
}
