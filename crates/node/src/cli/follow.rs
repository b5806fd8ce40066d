//! `enqueue --wait`: looks at a job until it has ended, then prints its life.
//!
//! It asks ever less often, from every 50 ms to every 500 ms. A moment without Redis ends nothing; the job goes on without
//! the one who waits, so stopping this stops no job.

use std::time::{Duration, Instant};

use punctual_core::client::Receipt;
use punctual_core::state::State;

use super::failure::Failure;
use super::jobs::show;
use super::output::note;
use super::session::{Cluster, Session};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// Redis may be away for so long, which is more than a failover takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for the end of a stored job; fails unless it succeeded.
pub(super) async fn to_the_end(session: &Session, cluster: &Cluster, receipt: &Receipt) -> Result<(), Failure> {
    let mut pause = FIRST_PAUSE;
    let mut seen = None;
    let mut away_since: Option<Instant> = None;
    loop {
        match cluster.store().find(&receipt.id, Some(&receipt.queue)).await {
            Ok(found) => {
                away_since = None;
                let Some(found) = found.into_iter().next() else {
                    return Err(Failure::failed(format!(
                        "{} is gone: it was deleted, or it ended and retention.succeeded keeps nothing",
                        receipt.id
                    )));
                };
                if found.state.is_final() {
                    break;
                }
                if seen != Some(found.state) {
                    seen = Some(found.state);
                    pause = FIRST_PAUSE;
                    if found.state == State::Held {
                        note(format!("{} is held: it was too late and waits for a person (punctual jobs release)", receipt.id));
                    }
                }
            }
            Err(error) if error.is_transient() => {
                let since = *away_since.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    return Err(cluster.failed("follow the job")(error));
                }
            }
            Err(error) => return Err(cluster.failed("follow the job")(error)),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 5 / 4).min(LAST_PAUSE);
    }
    let shown = show::life(cluster, &receipt.id, Some(&receipt.queue)).await?;
    session.out.show(&shown, |out| show::text(out, &shown))?;
    if shown.state == State::Succeeded { Ok(()) } else { Err(Failure::told()) }
}
