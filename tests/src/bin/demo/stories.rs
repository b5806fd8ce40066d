//! The three stories, told as a month that passes in half a minute: every second is a day. In the morning its orders come in and
//! its articles are planned, at noon some customers pay, in the evening its reports are wanted.
//!
//! This is the only part of the demo that enqueues, as a service in Rust would. What is accepted is written down here, and nowhere
//! but here: the verdict compares the world with this list.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use punctual_core::client::Client;
use punctual_core::clock;
use punctual_core::duration;
use punctual_core::job::JobRequest;
use punctual_core::store::enqueue::CallId;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::input::{Article, Input, Order, Report};
use crate::service::{self, Mood, OrderState, Service};

/// A day of the month.
const DAY: Duration = Duration::from_secs(1);
/// Every so many unpaid orders a second job closes the order once more: it must find nothing to do.
const TWIN_EVERY: usize = 50;
/// Every so many days the shop hands the same jobs in once more, as a client does whose answer got lost.
const REPEAT_EVERY: usize = 10;
/// Attempts in all.
pub const MAX_ATTEMPTS: u32 = 5;
/// The wait before the first retry; each further one is twice as long.
pub const BASE: Duration = Duration::from_millis(500);
/// A wait may be shorter or longer by this part.
pub const JITTER: f64 = 0.1;

/// What a job is to bring about.
#[derive(Clone, Debug)]
pub enum Aim {
    /// Closes the order, or leaves it alone when it was paid.
    Close { order: u64, paid: bool, twin: bool },
    /// Publishes the article, as far as it lets.
    Publish { slug: String, mood: Mood },
    /// Makes the report.
    Report(Report),
}

/// A job that punctual has accepted.
#[derive(Clone, Debug)]
pub struct Accepted {
    pub id: String,
    pub queue: String,
    pub due_ms: u64,
    pub aim: Aim,
}

/// What was handed in so far.
#[derive(Default)]
pub struct Ledger {
    pub accepted: Vec<Accepted>,
    /// Jobs that were handed in again and recognised.
    pub recognised: usize,
    /// Whether all is handed in.
    pub complete: bool,
}

/// Who enqueues what, and where it points to.
pub struct Teller<'a> {
    pub client: &'a Client,
    pub service: &'a Service,
    pub input: &'a Input,
    /// Absolute paths, because programs are allowed by their absolute paths only.
    pub script: &'a Path,
    pub orders_csv: &'a Path,
    pub ledger: &'a RefCell<Ledger>,
}

/// The site's articles as the file describes them.
pub fn articles(input: &Input) -> BTreeMap<String, service::Article> {
    let article = |one: &Article| service::Article { mood: mood(one), title: one.title.clone(), tries: 0, published: false };
    input.articles.iter().map(|one| (one.slug.clone(), article(one))).collect()
}

fn mood(article: &Article) -> Mood {
    match article {
        Article { gone: true, .. } => Mood::Withdrawn,
        Article { fails_always: true, .. } => Mood::Overwhelmed,
        Article { fails_first: 0, .. } => Mood::Willing,
        Article { fails_first, .. } => Mood::Busy(*fails_first),
    }
}

impl Teller<'_> {
    /// Lets the month pass.
    pub async fn tell(&self) -> Result<()> {
        let days = self.input.orders.len();
        let mut plans = self.input.articles.chunks(self.input.articles.len().div_ceil(days));
        let mut dawn = Instant::now();
        for (number, (day, orders)) in self.input.orders.iter().enumerate() {
            self.place(orders);
            let mut morning: Vec<_> = orders.iter().map(|order| self.close(order, false)).collect();
            let unpaid = orders.iter().filter(|order| !order.paid);
            morning.extend(unpaid.filter(|order| order.id % TWIN_EVERY as u64 == 0).map(|order| self.close(order, true)));
            morning.extend(plans.next().unwrap_or_default().iter().map(|article| self.publish(article)));
            self.hand_in(morning.clone(), false).await?;
            if number % REPEAT_EVERY == REPEAT_EVERY - 1 {
                self.hand_in(morning, true).await?;
            }
            sleep_until(dawn + DAY / 2).await;
            self.pay(orders);
            let wanted = self.input.reports.iter().filter(|report| report.day == *day);
            self.hand_in(wanted.map(|report| self.report(report)).collect(), false).await?;
            dawn += DAY;
            sleep_until(dawn).await;
        }
        self.ledger.borrow_mut().complete = true;
        Ok(())
    }

    fn place(&self, orders: &[Order]) {
        let mut books = self.service.books();
        books.orders.extend(orders.iter().map(|order| (order.id, OrderState::Unpaid)));
    }

    fn pay(&self, orders: &[Order]) {
        let mut books = self.service.books();
        books.orders.extend(orders.iter().filter(|order| order.paid).map(|order| (order.id, OrderState::Paid)));
    }

    fn close(&self, order: &Order, twin: bool) -> (JobRequest, Aim) {
        let id = format!("close-{}{}", order.id, if twin { "-again" } else { "" });
        // "In half an hour", as a shop would say; here it is seconds.
        let delay = order.close_after + if twin { DAY } else { Duration::ZERO };
        let args = json!({ "order_id": order.id, "shop": self.service.url() });
        let request = JobRequest { delay: Some(duration::format(delay)), ..request("order.close", "orders", id, &args) };
        (request, Aim::Close { order: order.id, paid: order.paid, twin })
    }

    fn publish(&self, article: &Article) -> (JobRequest, Aim) {
        let at_ms = clock::local_ms() + clock::as_ms(article.publish_after);
        let args = json!({ "slug": article.slug, "title": article.title, "site": self.service.url() });
        let id = format!("publish-{}", article.slug);
        // At an instant, as an editor would say.
        let request = JobRequest { run_at: Some(clock::format_ms(at_ms)), ..request("article.publish", "articles", id, &args) };
        (request, Aim::Publish { slug: article.slug.clone(), mood: mood(article) })
    }

    fn report(&self, report: &Report) -> (JobRequest, Aim) {
        let command = [self.script.display().to_string(), self.orders_csv.display().to_string(), report.lines.to_string()];
        let args = json!({ "report": report.report, "day": report.day, "command": command });
        let id = format!("report-{}-{}", report.report, report.day);
        let request = JobRequest { delay: Some("500ms".to_owned()), ..request("report.run", "reports", id, &args) };
        (request, Aim::Report(report.clone()))
    }

    async fn hand_in(&self, jobs: Vec<(JobRequest, Aim)>, again: bool) -> Result<()> {
        let (requests, aims): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        let check = |request: JobRequest| request.check(self.client.max_payload()).map_err(|wrong| anyhow::anyhow!("{wrong:?}"));
        let checked = requests.into_iter().map(check).collect::<Result<Vec<_>>>()?;
        let receipts = self.client.submit_many(&CallId::fresh(), checked).await.context("failed to enqueue")?;
        ensure!(receipts.len() == aims.len(), "{} receipts for {} jobs", receipts.len(), aims.len());
        let mut ledger = self.ledger.borrow_mut();
        for (receipt, aim) in receipts.into_iter().zip(aims) {
            ensure!(receipt.duplicate_of.is_some() == again, "job {} was taken for another one: {receipt:?}", receipt.id);
            if again {
                ledger.recognised += 1;
                continue;
            }
            let due_ms = clock::parse_instant(&receipt.due_at).map_err(anyhow::Error::msg)?;
            ledger.accepted.push(Accepted { id: receipt.id, queue: receipt.queue, due_ms, aim });
        }
        Ok(())
    }
}

fn request(handler: &str, queue: &str, id: String, args: &Value) -> JobRequest {
    JobRequest {
        handler: handler.to_owned(),
        queue: Some(queue.to_owned()),
        id: Some(id),
        args: Some(to_raw_value(args).expect("a JSON value has a text")),
        retry: Some(
            json!({ "base": duration::format(BASE), "factor": 2, "cap": "4s", "jitter": JITTER, "max_attempts": MAX_ATTEMPTS }),
        ),
        ..JobRequest::default()
    }
}
