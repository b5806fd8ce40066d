//! `punctual lease`: who may promote due jobs, and asking the holder to give it up.

use std::time::{Duration, Instant};

use punctual_core::clock;
use punctual_core::store::lease::Held;
use punctual_core::store::nudge::Nudge;
use serde::Serialize;

use super::failure::Failure;
use super::output::note;
use super::session::{Cluster, Session};

/// Another term begins within this time, or the command has failed: twice the default `lease.ttl`.
const CHANGE_WITHIN: Duration = Duration::from_secs(10);
/// A nudge is only a hint, so it is given again.
const NUDGE_EVERY: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);

const EXAMPLE: &str = "\
Examples:
  punctual lease
  punctual lease --step-down";

/// Shows which node holds the lease: the right to promote due jobs.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    /// Asks the holder to give it up, and waits until another term has begun.
    #[arg(long)]
    step_down: bool,
}

/// The document. All but the holder are null when nobody holds it.
#[derive(Serialize)]
struct Document {
    holder: Option<String>,
    term: Option<u64>,
    expires_in_ms: Option<u64>,
    since: Option<String>,
}

pub(super) async fn run(session: &Session, args: &Args) -> Result<(), Failure> {
    let cluster = session.connect().await?;
    let mut held = look(&cluster).await?;
    let mut unchanged = false;
    if args.step_down {
        match held.take() {
            None => note("nobody holds the lease, so nobody has to give it up"),
            Some(before) => {
                held = step_down(&cluster, &before).await?;
                unchanged = held.as_ref().is_some_and(|held| held.term == before.term);
            }
        }
    }
    let document = Document {
        holder: held.as_ref().map(|held| held.holder.clone()),
        term: held.as_ref().map(|held| held.term),
        expires_in_ms: held.as_ref().map(|held| clock::as_ms(held.expires_in)),
        since: held.as_ref().map(|held| clock::format_ms(held.since_ms)),
    };
    session.out.show(&document, |_| match &held {
        None => "nobody holds the lease".to_owned(),
        Some(held) => {
            let Held { holder, term, since_ms, expires_in } = held;
            let (since, left) = (clock::format_ms(*since_ms), expires_in.as_millis());
            format!("{holder} holds the lease in term {term} since {since}; it expires in {left} ms unless renewed")
        }
    })?;
    if unchanged {
        return Err(Failure::failed(format!("the holder did not give the lease up within {} s", CHANGE_WITHIN.as_secs())));
    }
    Ok(())
}

async fn look(cluster: &Cluster) -> Result<Option<Held>, Failure> {
    cluster.store().lease().await.map_err(cluster.failed("read the lease"))
}

/// The lease once somebody holds it in another term; what it is at the end of the wait when nobody does.
async fn step_down(cluster: &Cluster, before: &Held) -> Result<Option<Held>, Failure> {
    let started = Instant::now();
    let mut nudged: Option<Instant> = None;
    loop {
        let held = look(cluster).await?;
        let same = held.as_ref().is_some_and(|held| held.term == before.term);
        if (held.is_some() && !same) || started.elapsed() >= CHANGE_WITHIN {
            return Ok(held);
        }
        // Once it is free there is nobody to ask: the new holder must not be asked as well.
        if same && nudged.is_none_or(|at| at.elapsed() >= NUDGE_EVERY) {
            cluster.store().publish(&Nudge::StepDown).await.map_err(cluster.failed("ask the holder"))?;
            nudged = Some(Instant::now());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
