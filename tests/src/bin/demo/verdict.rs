//! Compares what punctual accepted with what the world outside has seen, and with what punctual says of itself.
//!
//! A demo that only prints is a demo of printing: everything here that is not as it should be ends the demo with exit code 1.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use punctual_core::state::State;
use punctual_core::store::inspect::JobView;
use serde_json::Value;

use crate::chaos::{Blow, Hit};
use crate::input::{Input, Report};
use crate::service::{Books, Effect, Mood, OrderState, Visit};
use crate::stories::{Accepted, Aim, BASE, JITTER, MAX_ATTEMPTS};
use crate::watch::Watch;

/// Everything that is known when all is over.
pub struct Evidence<'a> {
    pub accepted: &'a [Accepted],
    pub input: &'a Input,
    pub books: &'a Books,
    pub views: &'a BTreeMap<String, JobView>,
    pub hits: &'a [Hit],
    pub watch: &'a Watch,
}

/// What is in the table, per queue.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub accepted: usize,
    pub succeeded: usize,
    pub dead: usize,
    pub retries: usize,
    pub struck: usize,
    pub again: usize,
    /// Milliseconds from due to the first sign of the job outside (of reports: to its start).
    pub late: Vec<u64>,
}

/// The findings.
#[derive(Debug, Default)]
pub struct Verdict {
    pub problems: Vec<String>,
    pub queues: BTreeMap<String, Tally>,
    /// Late by, of jobs that no blow has touched.
    pub late_untouched: Vec<u64>,
    /// Dead jobs with their attempts and reasons.
    pub dead: Vec<(String, u32, String)>,
    /// Waits before each retry of the article whose site stays busy.
    pub waits_ms: Vec<u64>,
    /// Requests that came to do what had been done.
    pub repeated_effects: usize,
    /// Requests that the service refused for an old claim.
    pub fenced_outside: usize,
    /// Runs that a node let go when it heard that they were no longer its own.
    pub revoked: u64,
}

impl Evidence<'_> {
    /// Looks at everything.
    pub fn judge(&self) -> Verdict {
        let mut verdict = Verdict { revoked: self.revoked(), ..Verdict::default() };
        let mut visits: BTreeMap<&str, Vec<&Visit>> = BTreeMap::new();
        for visit in &self.books.visits {
            visits.entry(&visit.job).or_default().push(visit);
        }
        for job in self.accepted {
            let visits = visits.remove(job.id.as_str()).unwrap_or_default();
            match self.views.get(&job.id) {
                Some(view) => self.judge_job(&mut verdict, job, view, &visits),
                None => verdict.problem(format!("{} was accepted and is nowhere", job.id)),
            }
        }
        for job in visits.keys() {
            verdict.problem(format!("the service was called for {job}, which nobody handed in"));
        }
        for odd in &self.books.odd {
            verdict.problem(format!("the service got a request that it does not know: {odd}"));
        }
        self.judge_orders(&mut verdict);
        self.judge_lease(&mut verdict);
        self.judge_logs(&mut verdict);
        verdict
    }

    /// Runs that a node let go when it heard that they were no longer its own.
    fn revoked(&self) -> u64 {
        self.watch.lines("declared dead, joined anew").iter().map(|line| line.number("revoked")).sum()
    }

    /// Whether one of the three blows may have made this job run again.
    fn struck(&self, id: &str) -> bool {
        self.hits.iter().any(|hit| hit.in_flight.contains(id))
    }

    fn judge_job(&self, verdict: &mut Verdict, job: &Accepted, view: &JobView, visits: &[&Visit]) {
        let id = &job.id;
        let struck = self.struck(id);
        let count = |effect: Effect| visits.iter().filter(|visit| visit.effect == effect).count();
        let busy = count(Effect::Busy);
        let claims: BTreeSet<u64> = visits.iter().map(|visit| visit.claim).collect();
        // Of a report the world outside sees only its result; its claims are those that punctual has recorded.
        let starts = if matches!(job.aim, Aim::Report(_)) { view.attempts.len() } else { claims.len() };
        let expected_starts = match job.aim {
            Aim::Publish { mood: Mood::Overwhelmed, .. } => busy,
            _ => busy + 1,
        };
        let again = starts.saturating_sub(expected_starts);
        verdict.repeated_effects += count(Effect::Again);
        verdict.fenced_outside += count(Effect::Stale);

        if again > 0 && !struck {
            verdict.problem(format!("{id} ran {starts} times instead of {expected_starts}, and no blow is to blame"));
        }
        if view.crashes > 0 && !struck {
            verdict.problem(format!("{id} counts {} crashes and was on no node that was struck", view.crashes));
        }
        let twin = matches!(job.aim, Aim::Close { order, .. } if self.has_twin(order));
        if count(Effect::Again) + count(Effect::Stale) > 0 && !struck && !twin {
            verdict.problem(format!("{id} tried its effect twice, and no blow is to blame"));
        }
        if !struck && view.attempt as usize != expected_starts {
            verdict.problem(format!("{id} counts {} attempts, the service saw {expected_starts}", view.attempt));
        }
        let late = self.late(verdict, job, view, visits);

        let state = self.judge_aim(verdict, job, view, busy);
        let dead = view.last_error.clone().or_else(|| view.reason.clone()).filter(|_| view.state == State::Dead);
        if view.state != state {
            verdict.problem(format!(
                "{id} is {} and should be {}: {}",
                view.state.word(),
                state.word(),
                dead.clone().unwrap_or_default()
            ));
        }
        if let Some(reason) = dead {
            verdict.dead.push((id.clone(), view.attempt, reason));
        }
        if !struck {
            self.backoff(verdict, job, visits);
        }

        let tally = verdict.queues.entry(job.queue.clone()).or_default();
        tally.accepted += 1;
        tally.succeeded += usize::from(view.state == State::Succeeded);
        tally.dead += usize::from(view.state == State::Dead);
        tally.retries += (view.attempt as usize).saturating_sub(1);
        tally.struck += usize::from(struck);
        tally.again += again;
        tally.late.extend(late);
    }

    /// How late the job was; a problem when it was early.
    fn late(&self, verdict: &mut Verdict, job: &Accepted, view: &JobView, visits: &[&Visit]) -> Option<u64> {
        let late = match visits.iter().map(|visit| visit.at_ms).min() {
            Some(first) if first < job.due_ms => {
                verdict.problem(format!("{} came {} ms before it was due", job.id, job.due_ms - first));
                return None;
            }
            Some(first) => first - job.due_ms,
            None => view.attempts.first()?.lateness_ms,
        };
        let leaderless = |hit: &Hit| {
            hit.takeover_ms.is_some_and(|ms| (hit.at_ms.saturating_sub(100)..hit.at_ms + ms + 500).contains(&job.due_ms))
        };
        let fetched = self.hits.iter().any(|hit| hit.fetched.contains(&job.id));
        if !self.struck(&job.id) && !fetched && !self.hits.iter().any(leaderless) {
            verdict.late_untouched.push(late);
        }
        Some(late)
    }

    /// The state in which the job should be; problems when the world is not as the job should have left it.
    fn judge_aim(&self, verdict: &mut Verdict, job: &Accepted, view: &JobView, busy: usize) -> State {
        let id = &job.id;
        let result: Value = view.result.as_ref().and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        match &job.aim {
            Aim::Close { order, paid, .. } => {
                let because = result["because"].as_str().unwrap_or_default();
                let fits = if *paid { because == "paid" } else { matches!(because, "unpaid" | "already closed") };
                // Only one of them may say that it was the one.
                let lone = !self.struck(id) && !self.has_twin(*order);
                if !fits || (lone && because == "already closed") {
                    verdict.problem(format!("{id} says {result}, which does not fit its order"));
                }
                State::Succeeded
            }
            Aim::Publish { slug, mood } => {
                let Some(article) = self.books.articles.get(slug) else { return State::Succeeded };
                let (published, tries, state) = match mood {
                    Mood::Willing => (true, 0, State::Succeeded),
                    Mood::Busy(first) => (true, *first, State::Succeeded),
                    Mood::Overwhelmed => (false, MAX_ATTEMPTS as usize, State::Dead),
                    Mood::Withdrawn => (false, 0, State::Dead),
                };
                if article.published != published {
                    verdict.problem(format!("article {slug} is {}published", if article.published { "" } else { "not " }));
                }
                if busy != tries && !self.struck(id) {
                    verdict.problem(format!("{id} found the site busy {busy} times instead of {tries}"));
                }
                let reason = view.last_error.as_deref().unwrap_or_default();
                let status = if *mood == Mood::Withdrawn { "status 410" } else { "status 503" };
                if state == State::Dead && !reason.contains(status) {
                    verdict.problem(format!("{id} does not give {status} as its reason: {reason:?}"));
                }
                state
            }
            Aim::Report(report) => {
                let expected = recompute(self.input, report);
                if result["stdout"] != *expected {
                    verdict.problem(format!(
                        "{id} is wrong; expected\n{expected}\ngot\n{}",
                        result["stdout"].as_str().unwrap_or("nothing")
                    ));
                }
                State::Succeeded
            }
        }
    }

    fn has_twin(&self, order: u64) -> bool {
        self.accepted.iter().any(|job| matches!(job.aim, Aim::Close { order: other, twin: true, .. } if other == order))
    }

    /// The waits between tries as the service saw them: never shorter than the policy.
    fn backoff(&self, verdict: &mut Verdict, job: &Accepted, visits: &[&Visit]) {
        let busy = visits.iter().enumerate().filter(|(_, visit)| visit.effect == Effect::Busy);
        for (retry, (index, visit)) in busy.enumerate() {
            let Some(next) = visits.get(index + 1) else { break };
            let waited_ms = next.at_ms.saturating_sub(visit.at_ms);
            let shortest = BASE.mul_f64(f64::from(1_u32 << retry) * (1.0 - JITTER));
            if Duration::from_millis(waited_ms + 1) < shortest {
                verdict.problem(format!("{} was tried again after {waited_ms} ms, before {shortest:?}", job.id));
            }
            if matches!(job.aim, Aim::Publish { mood: Mood::Overwhelmed, .. }) {
                verdict.waits_ms.push(waited_ms);
            }
        }
    }

    fn judge_orders(&self, verdict: &mut Verdict) {
        for order in self.input.orders.values().flatten() {
            let wanted = if order.paid { OrderState::Paid } else { OrderState::Closed };
            let state = self.books.orders.get(&order.id);
            if state != Some(&wanted) {
                verdict.problem(format!("order {} is {state:?} and should be {wanted:?}", order.id));
            }
        }
    }

    fn judge_lease(&self, verdict: &mut Verdict) {
        let mut terms = Vec::new();
        for line in self.watch.lines("lease acquired") {
            terms.push((line.at_ms, line.number("lease_term"), line.text("node_id").to_owned()));
        }
        terms.sort();
        for pair in terms.windows(2) {
            if pair[0].1 >= pair[1].1 {
                verdict.problem(format!(
                    "the lease's term did not grow: {} of {}, then {} of {}",
                    pair[0].1, pair[0].2, pair[1].1, pair[1].2
                ));
            }
        }
    }

    fn judge_logs(&self, verdict: &mut Verdict) {
        for line in self.watch.errors() {
            verdict.problem(format!("a node logged an error: {}", line.value));
        }
        for line in self.watch.lines("stale claim rejected") {
            if !self.struck(line.text("job_id")) {
                verdict.problem(format!("{} was refused as stale, and no blow is to blame", line.text("job_id")));
            }
        }
        let frozen = self.hits.iter().filter(|hit| hit.blow == Blow::Frozen).map(|hit| hit.in_flight.len()).sum::<usize>();
        if frozen > 0 && self.watch.lines("stale claim rejected").is_empty() && self.revoked() == 0 {
            verdict.problem(format!("the frozen node woke up with {frozen} jobs in flight, and nothing of it was refused"));
        }
        let declared: BTreeSet<String> =
            self.watch.lines("node dead").iter().map(|line| line.text("node_id").to_owned()).collect();
        let struck: BTreeSet<String> = self.hits.iter().map(|hit| hit.node_id.clone()).collect();
        for id in declared.difference(&struck) {
            verdict.problem(format!("{id} was declared dead, and nothing had struck it"));
        }
        for id in struck.difference(&declared) {
            verdict.problem(format!("{id} was struck and never declared dead"));
        }
    }
}

impl Verdict {
    pub fn problem(&mut self, text: String) {
        self.problems.push(text);
    }
}

/// What report.sh should have printed, by other means.
fn recompute(input: &Input, report: &Report) -> String {
    let money = |cents: u64| format!("{}.{:02}", cents / 100, cents % 100);
    let counted = |count: usize| format!("{count} order{}", if count == 1 { "" } else { "s" });
    let orders = input.orders.get(&report.day).map(Vec::as_slice).unwrap_or_default();
    let total: u64 = orders.iter().map(|order| order.cents).sum();
    let state = |paid: bool| if paid { "paid" } else { "unpaid" };
    let grouped = |wanted: &dyn Fn(&crate::input::Order) -> Option<String>| {
        let mut groups: BTreeMap<String, (u64, usize)> = BTreeMap::new();
        for order in orders {
            let Some(name) = wanted(order) else { continue };
            let group = groups.entry(name).or_default();
            *group = (group.0 + order.cents, group.1 + 1);
        }
        let row =
            |(name, (sum, count)): (String, (u64, usize))| (sum, format!("{name:<16} {:>10}  {}", money(sum), counted(count)));
        groups.into_iter().map(row).collect::<Vec<_>>()
    };
    let mut rows = match report.report.as_str() {
        "daily-total" => grouped(&|order| Some(state(order.paid).to_owned())),
        "sales-by-customer" => grouped(&|order| Some(order.customer.clone())),
        "unpaid-by-customer" => grouped(&|order| (!order.paid).then(|| order.customer.clone())),
        _ => orders
            .iter()
            .map(|order| {
                (order.cents, format!("{:<8} {:<16} {:>10}  {}", order.id, order.customer, money(order.cents), state(order.paid)))
            })
            .collect(),
    };
    rows.sort_by(|a, b| (Reverse(a.0), &a.1).cmp(&(Reverse(b.0), &b.1)));
    let head = format!("{} {}: {}, {}", report.report, report.day, counted(orders.len()), money(total));
    std::iter::once(head).chain(rows.into_iter().take(report.lines).map(|(_, text)| text)).collect::<Vec<_>>().join("\n")
}
