//! Nudges: hints over publish/subscribe that something changed. Nothing depends on them; a slow tick backs each.

use futures_util::StreamExt;

use super::{Store, StoreError};

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nudge {
    /// The earliest due time of a queue moved forward.
    Due(String),
    /// The lease became free.
    Lease,
    /// A queue goes on after a pause.
    Resume(String),
    /// A running job of a queue should stop.
    Cancel(String),
    /// The holder should give the lease up.
    StepDown,
    /// A node should drain.
    Drain(String),
}

impl Nudge {
    fn parse(text: &str) -> Option<Self> {
        let (what, about) = text.split_once(' ').unwrap_or((text, ""));
        match what {
            "due" => Some(Self::Due(about.to_owned())),
            "lease" => Some(Self::Lease),
            "resume" => Some(Self::Resume(about.to_owned())),
            "cancel" => Some(Self::Cancel(about.to_owned())),
            "step-down" => Some(Self::StepDown),
            "drain" => Some(Self::Drain(about.to_owned())),
            _ => None,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Due(queue) => format!("due {queue}"),
            Self::Lease => "lease".to_owned(),
            Self::Resume(queue) => format!("resume {queue}"),
            Self::Cancel(queue) => format!("cancel {queue}"),
            Self::StepDown => "step-down".to_owned(),
            Self::Drain(node) => format!("drain {node}"),
        }
    }
}

/// The stream of nudges over one connection.
pub struct Nudges {
    subscription: redis::aio::PubSub,
}

impl Store {
    /// Subscribes.
    ///
    /// # Errors
    /// As any call.
    pub async fn nudges(&self) -> Result<Nudges, StoreError> {
        let mut subscription = self.link.subscriber().await?;
        subscription.subscribe(self.keys.nudges()).await?;
        Ok(Nudges { subscription })
    }

    /// Tells every node; returns how many listen.
    ///
    /// # Errors
    /// As any call.
    pub async fn publish(&self, nudge: &Nudge) -> Result<u64, StoreError> {
        self.link.query(redis::cmd("PUBLISH").arg(self.keys.nudges()).arg(nudge.text())).await
    }
}

impl Nudges {
    /// The next nudge; `None` when the connection has ended. Unknown ones are passed over: a newer node may send them.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Option<Nudge> {
        let mut messages = self.subscription.on_message();
        loop {
            let text: String = messages.next().await?.get_payload().unwrap_or_default();
            if let Some(nudge) = Nudge::parse(&text) {
                return Some(nudge);
            }
        }
    }
}
