//! `punctual jobs edit`: new arguments for a job that does not run, checked as at enqueue.

use punctual_core::job::JobRequest;
use punctual_core::store::edit::Edited;

use super::super::admit::Admit;
use super::super::enqueue::refused as refused_job;
use super::super::failure::Failure;
use super::super::input;
use super::super::session::Session;
use super::act::{ActionResult, Results};
use super::locate::{Place, locate};

/// Gives a job that does not run other arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: punctual jobs edit order-7-close --args '{\"order_id\":8}'")]
pub(super) struct Args {
    /// Id of the job, looked up in all queues.
    #[arg(value_parser = input::id)]
    id: String,

    /// Only this queue: an id of your own may stand in several.
    #[arg(long, value_name = "Q", value_parser = input::queue)]
    queue: Option<String>,

    /// The new arguments as JSON, from a file with @FILE, or from standard input with -.
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    args: String,
}

pub(super) async fn run(session: &Session, args: &Args) -> Result<(), Failure> {
    let new = input::json(&args.args)?;
    let cluster = session.connect().await?;
    let (id, queue) = (&args.id, args.queue.as_deref());
    let place = locate(&cluster, std::slice::from_ref(id), queue).await?.into_iter().next().unwrap_or(Place::Nowhere);
    let refused = |state, error| Results::tell(session.out, vec![ActionResult::refused(id, state, error)]);
    let Place::In(queue, _) = place else { return refused(None, place.error(id, queue)) };
    let found = cluster.store().find(id, Some(&queue)).await.map_err(cluster.failed("read the job"))?.into_iter().next();
    let Some(found) = found else { return refused(None, Place::Nowhere.error(id, Some(&queue))) };
    let Ok(record) = found.record else {
        return refused(Some(found.state), "its record cannot be read, so it cannot be edited".to_owned());
    };
    let mut spec = record.spec;
    let request = JobRequest { handler: spec.handler.clone(), args: Some(new), ..JobRequest::default() };
    let checked = request.check(cluster.client.max_payload()).map_err(|wrong| Failure::fields(&wrong))?;
    // The handler was let in once; only the arguments are new.
    Admit::new(session, &cluster, true).check(&checked).await.map_err(|refusal| refused_job(&cluster, refusal))?;
    spec.args = checked.spec.args;
    let edited = cluster.store().edit(&queue, id, &found.body, &spec).await.map_err(cluster.failed("edit the job"))?;
    let result = match edited {
        Edited::Done => ActionResult::done(id, Some(found.state)),
        Edited::Refused => {
            let error = "it runs, has succeeded, or was changed by somebody else at this moment".to_owned();
            ActionResult::refused(id, Some(found.state), error)
        }
        Edited::Unknown => ActionResult::refused(id, None, Place::Nowhere.error(id, Some(&queue))),
    };
    Results::tell(session.out, vec![result])
}
