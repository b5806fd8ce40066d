//! `punctual jobs …`: looks at jobs and acts on them by hand.

mod act;
mod edit;
mod list;
mod locate;
pub(super) mod show;

use clap::Subcommand;

use self::act::Action;
use super::failure::Failure;
use super::input;
use super::session::Session;

const EXAMPLE: &str = "\
Examples:
  punctual jobs list --state dead --queue mail
  punctual jobs show order-7-close
  punctual jobs retry 01JZ5M5QF1Y6X8T3V2W9K4R7N0";

/// Looks at jobs, or acts on them by hand.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

/// Which jobs an action is about.
#[derive(Debug, clap::Args)]
struct Ids {
    /// Ids of jobs, looked up in all queues.
    #[arg(value_name = "ID", required = true, value_parser = input::id)]
    ids: Vec<String>,

    /// Only this queue: an id of your own may stand in several.
    #[arg(long, value_name = "Q", value_parser = input::queue)]
    queue: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(list::Args),
    Show(show::Args),
    /// Ends jobs that wait; a running one is asked to stop.
    #[command(after_help = "Example: punctual jobs cancel order-7-close")]
    Cancel(Ids),
    /// Runs dead, cancelled or succeeded jobs again, attempts counted anew.
    #[command(after_help = "Example: punctual jobs retry 01JZ5M5QF1Y6X8T3V2W9K4R7N0")]
    Retry(Ids),
    /// Makes scheduled or retrying jobs due now.
    #[command(after_help = "Example: punctual jobs run-now order-7-close")]
    RunNow(Ids),
    /// Lets held jobs run.
    #[command(after_help = "Example: punctual jobs release order-7-close")]
    Release(Ids),
    /// Removes jobs with every trace, whatever their state.
    #[command(after_help = "Example: punctual jobs delete order-7-close --yes")]
    Delete {
        #[command(flatten)]
        ids: Ids,
        /// Does not ask; needed where nobody can be asked.
        #[arg(long)]
        yes: bool,
    },
    /// Moves waiting jobs to another instant.
    #[command(after_help = "Example: punctual jobs reschedule order-7-close --at 2027-03-28T09:00 --tz Asia/Shanghai")]
    Reschedule {
        #[command(flatten)]
        ids: Ids,
        /// The instant, RFC 3339; a local time needs --tz.
        #[arg(long, value_name = "T")]
        at: String,
        /// IANA time zone of --at where it names none.
        #[arg(long, value_name = "ZONE")]
        tz: Option<String>,
    },
    Edit(edit::Args),
}

pub(super) async fn run(session: &Session, args: Args) -> Result<(), Failure> {
    let (action, ids) = match args.command {
        Command::List(args) => return list::run(session, args).await,
        Command::Show(args) => return show::run(session, &args).await,
        Command::Edit(args) => return edit::run(session, &args).await,
        Command::Cancel(ids) => (Action::Cancel, ids),
        Command::Retry(ids) => (Action::Retry, ids),
        Command::RunNow(ids) => (Action::RunNow, ids),
        Command::Release(ids) => (Action::Release, ids),
        Command::Delete { ids, yes } => {
            let what = if ids.ids.len() == 1 { "this job".to_owned() } else { format!("these {} jobs", ids.ids.len()) };
            super::output::confirm(yes, &format!("Delete {what} for good?"))?;
            (Action::Delete, ids)
        }
        Command::Reschedule { ids, at, tz } => {
            let at = input::instant("at", &at, tz.as_deref()).map_err(|wrong| Failure::fields(&[wrong]))?;
            let at_ms = punctual_core::clock::parse_instant(&at).map_err(Failure::usage)?;
            (Action::Reschedule(at_ms), ids)
        }
    };
    act::run(session, action, &ids).await
}
