//! `punctual jobs show`: the whole life of one job.

use punctual_core::policy;
use punctual_core::store::inspect::{Found, JobView};

use super::super::failure::Failure;
use super::super::input;
use super::super::output::{Output, clean};
use super::super::session::{Cluster, Session};
use super::locate::{Place, locate};

/// Shows a job's whole life: every state with its time, every attempt.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: punctual jobs show order-7-close -o json")]
pub(super) struct Args {
    /// Id of the job, looked up in all queues.
    #[arg(value_parser = input::id)]
    id: String,

    /// Only this queue: an id of your own may stand in several.
    #[arg(long, value_name = "Q", value_parser = input::queue)]
    queue: Option<String>,
}

pub(super) async fn run(session: &Session, args: &Args) -> Result<(), Failure> {
    let cluster = session.connect().await?;
    let view = life(&cluster, &args.id, args.queue.as_deref()).await?;
    session.out.show(&view, |out| text(out, &view))
}

/// The life of a job that exists, in exactly one queue.
pub(in super::super) async fn life(cluster: &Cluster, id: &str, queue: Option<&str>) -> Result<JobView, Failure> {
    let ids = [id.to_owned()];
    let place = locate(cluster, &ids, queue).await?.into_iter().next().unwrap_or(Place::Nowhere);
    let queue = match place {
        Place::In(queue, _) => queue,
        Place::Nowhere => return Err(Failure::failed(place.error(id, queue))),
        Place::Several(_) => return Err(Failure::usage(place.error(id, queue))),
    };
    let view = cluster.store().show(id, Some(&queue)).await.map_err(cluster.failed("read the job"))?;
    let mut view = [view.ok_or_else(|| Failure::failed(Place::Nowhere.error(id, Some(&queue))))?];
    fill_max_attempts(cluster, &mut view).await?;
    let [view] = view;
    Ok(view)
}

/// Puts in what a node with this configuration would allow: a job need not say it itself.
pub(super) async fn fill_max_attempts(cluster: &Cluster, views: &mut [JobView]) -> Result<(), Failure> {
    let pairs: Vec<(String, String)> = views.iter().map(|view| (view.queue.clone(), view.id.clone())).collect();
    let found = cluster.store().read(&pairs).await.map_err(cluster.failed("read the jobs"))?;
    for (view, found) in views.iter_mut().zip(found) {
        if let Some(Found { record: Ok(record), .. }) = found {
            let handler = cluster.registry.get(&record.spec.handler);
            view.max_attempts = policy::effective(&record.spec, handler, &cluster.config).max_attempts;
        }
    }
    Ok(())
}

/// The life as a person reads it.
pub(in super::super) fn text(out: Output, view: &JobView) -> String {
    let mut facts = vec![
        ("id", view.id.clone()),
        ("handler", view.handler.clone()),
        ("queue", format!("{}, {} priority", view.queue, view.priority)),
        ("state", view.state.word().to_owned()),
        ("args", view.args.get().to_owned()),
        ("created", view.created_at.clone()),
        ("due", view.due_at.clone()),
        ("attempt", format!("{} of {}, {} crashes", view.attempt, view.max_attempts, view.crashes)),
    ];
    facts.extend(view.tags.iter().map(|(key, value)| ("tag", format!("{key}={value}"))));
    facts.extend(view.progress.as_ref().map(|progress| ("progress", format!("{} % {}", progress.percent, progress.text))));
    facts.extend(view.result.as_ref().map(|result| ("result", result.get().to_owned())));
    facts.extend(view.reason.iter().map(|reason| ("reason", reason.clone())));
    facts.extend(view.last_error.iter().map(|error| ("error", error.clone())));
    facts.extend(view.raw.iter().map(|raw| ("unreadable", raw.clone())));
    let mut text = String::new();
    for (name, fact) in facts {
        text.push_str(&format!("{name:<11}{}\n", clean(&fact)));
    }
    let steps: Vec<Vec<String>> = view.timeline.iter().map(|step| vec![step.at.clone(), step.state.clone()]).collect();
    text.push_str(&format!("\nTimeline\n{}\n", out.table(&["at", "state"], &steps).trim_end()));
    if !view.attempts.is_empty() {
        let header = ["attempt", "outcome", "started", "took", "late", "node", "error"];
        text.push_str(&format!("\nAttempts\n{}\n", out.table(&header, &attempts(view)).trim_end()));
    }
    if !view.log.is_empty() {
        text.push_str("\nLog\n");
        for line in &view.log {
            text.push_str(&format!("{}\n", clean(line)));
        }
    }
    text
}

fn attempts(view: &JobView) -> Vec<Vec<String>> {
    let ms = |text: &str| punctual_core::clock::parse_instant(text).ok();
    view.attempts
        .iter()
        .map(|one| {
            let ended = one.ended_at.as_deref().and_then(ms);
            let took = ended.zip(ms(&one.started_at)).map(|(end, start)| format!("{} ms", end.saturating_sub(start)));
            vec![
                one.number.to_string(),
                one.outcome.clone(),
                one.started_at.clone(),
                took.unwrap_or_default(),
                format!("{} ms", one.lateness_ms),
                one.node.clone(),
                one.error.clone().unwrap_or_default(),
            ]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::output::Format;
    use super::*;

    #[test]
    fn life_story_has_every_attempt_with_node_error_duration_and_lateness() {
        let view: JobView = serde_json::from_str(
            r#"{"id":"a","handler":"h","queue":"q","state":"retrying","priority":"high","args":{"a":1},"tags":{"t":"v"},
                "created_at":"2026-03-29T01:00:00.000Z","due_at":"2026-03-29T01:00:05.000Z","attempt":1,"max_attempts":5,"crashes":0,
                "attempts":[{"number":1,"node":"n-1","claim":"7","started_at":"2026-03-29T01:00:00.002Z",
                "ended_at":"2026-03-29T01:00:00.044Z","outcome":"failed","error":"boom\u001b[2J","lateness_ms":2}],
                "timeline":[{"state":"ready","at":"2026-03-29T01:00:00.000Z"}],"log":["line"]}"#,
        )
        .unwrap();
        let text = text(Output::new(Format::Table), &view);
        for part in ["n-1", "boom", "42 ms", "2 ms", "t=v", "high priority", "1 of 5", "Timeline", "Log\nline"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains('\u{1b}'));
    }
}
