//! The files of demo/input: orders, articles, reports.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use punctual_core::duration;
use serde::Deserialize;

/// An order as the shop has it.
#[derive(Clone, Debug)]
pub struct Order {
    pub id: u64,
    pub customer: String,
    pub cents: u64,
    pub paid: bool,
    pub close_after: Duration,
    pub day: String,
}

/// An article that waits for its time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Article {
    pub slug: String,
    pub title: String,
    #[serde(with = "duration")]
    pub publish_after: Duration,
    /// So many first tries find the site busy.
    #[serde(default)]
    pub fails_first: usize,
    /// Every try finds it busy.
    #[serde(default)]
    pub fails_always: bool,
    /// It was withdrawn.
    #[serde(default)]
    pub gone: bool,
}

/// A report that somebody wants.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    pub report: String,
    pub day: String,
    pub lines: usize,
}

/// All of it.
pub struct Input {
    /// By day, in the file's order.
    pub orders: BTreeMap<String, Vec<Order>>,
    pub articles: Vec<Article>,
    pub reports: Vec<Report>,
}

impl Input {
    /// Reads the directory.
    pub fn read(dir: &Path) -> Result<Self> {
        let text = |name: &str| {
            let path = dir.join(name);
            std::fs::read_to_string(&path)
                .with_context(|| format!("failed to read {}: is this the repository's root?", path.display()))
        };
        let mut orders: BTreeMap<String, Vec<Order>> = BTreeMap::new();
        for (number, line) in text("orders.csv")?.lines().enumerate().skip(1) {
            let order = order(line).with_context(|| format!("orders.csv, line {}: {line}", number + 1))?;
            orders.entry(order.day.clone()).or_default().push(order);
        }
        let articles: Vec<Article> = serde_json::from_str(&text("articles.json")?).context("articles.json")?;
        let reports: Vec<Report> = serde_json::from_str(&text("reports.json")?).context("reports.json")?;
        ensure!(reports.iter().all(|report| orders.contains_key(&report.day)), "reports.json names a day without orders");
        Ok(Self { orders, articles, reports })
    }

    /// Jobs that they make.
    pub fn jobs(&self) -> usize {
        self.orders.values().map(Vec::len).sum::<usize>() + self.articles.len() + self.reports.len()
    }
}

fn order(line: &str) -> Result<Order> {
    let fields: Vec<&str> = line.split(',').collect();
    let [id, customer, amount, state, close_after, day] = fields[..] else { bail!("expected 6 fields, got {}", fields.len()) };
    let (units, cents) = amount.split_once('.').context("the amount has no cents")?;
    ensure!(cents.len() == 2 && matches!(state, "paid" | "unpaid"), "an odd amount or state");
    Ok(Order {
        id: id.parse()?,
        customer: customer.to_owned(),
        cents: units.parse::<u64>()? * 100 + cents.parse::<u64>()?,
        paid: state == "paid",
        close_after: duration::parse(close_after).map_err(anyhow::Error::msg)?,
        day: day.to_owned(),
    })
}
