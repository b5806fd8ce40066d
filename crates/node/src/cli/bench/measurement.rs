//! One number of the bench with what belongs to it, and the table of all.

use punctual_core::store::StoreError;
use serde::Serialize;

use super::super::output::Output;

/// Why a measurement could not be taken.
#[derive(Debug)]
pub(super) struct Skip(pub(super) String);

impl From<StoreError> for Skip {
    fn from(error: StoreError) -> Self {
        Self(error.to_string())
    }
}

impl From<std::io::Error> for Skip {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<&str> for Skip {
    fn from(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}

/// One measurement of the document.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Measurement {
    pub(super) name: &'static str,
    /// `None` when it could not be taken.
    pub(super) value: Option<f64>,
    pub(super) unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p50: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_commands_per_job: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_requests_per_job: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_reads_per_job: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_cpu_us_per_job: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node_cpu_us_per_job: Option<f64>,
    /// Why there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) skipped: Option<String>,
}

impl Measurement {
    pub(super) fn new(name: &'static str, value: f64, unit: &'static str) -> Self {
        Self { name, value: Some(rounded(value)), unit, ..Self::default() }
    }

    pub(super) fn skipped(name: &'static str, reason: &str) -> Self {
        Self { name, skipped: Some(reason.to_owned()), ..Self::default() }
    }

    /// A distribution; its median is the value.
    pub(super) fn spread(name: &'static str, unit: &'static str, values: Vec<f64>) -> Result<Self, Skip> {
        let last = values.len().checked_sub(1).ok_or(Skip::from("no job was run"))?;
        Ok(Self::new(name, 0.0, unit).with_spread(values, last).with_median())
    }

    /// Adds a distribution beside the value.
    pub(super) fn beside(self, values: Vec<f64>) -> Self {
        match values.len().checked_sub(1) {
            Some(last) => self.with_spread(values, last),
            None => self,
        }
    }

    fn with_spread(mut self, mut values: Vec<f64>, last: usize) -> Self {
        values.sort_by(f64::total_cmp);
        // The smallest value that at least so many per cent do not exceed.
        let rank = |percent: usize| (values.len() * percent).div_ceil(100).saturating_sub(1).min(last);
        let at = |index: usize| values.get(index).copied().map(rounded);
        (self.min, self.p50, self.p99, self.max) = (at(0), at(rank(50)), at(rank(99)), at(last));
        self
    }

    fn with_median(mut self) -> Self {
        self.value = self.p50;
        self
    }
}

/// Four significant digits: more would pretend.
pub(super) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let digits = 3.0 - value.abs().log10().floor();
    let factor = 10_f64.powf(digits.clamp(-12.0, 6.0));
    (value * factor).round() / factor
}

/// The table for people.
pub(super) fn table(out: Output, measurements: &[Measurement]) -> String {
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let header = [
        "name",
        "value",
        "unit",
        "min",
        "p50",
        "p99",
        "max",
        "commands/job",
        "requests/job",
        "reads/job",
        "redis us/job",
        "node us/job",
    ];
    let rows: Vec<Vec<String>> = measurements
        .iter()
        .map(|one| {
            let mut row = vec![one.name.to_owned()];
            if let Some(reason) = &one.skipped {
                row.extend(["-".to_owned(), format!("skipped: {reason}")]);
            } else {
                row.extend([number(one.value), one.unit.to_owned()]);
            }
            row.extend([one.min, one.p50, one.p99, one.max].map(number));
            row.extend([one.redis_commands_per_job, one.redis_requests_per_job, one.redis_reads_per_job].map(number));
            row.extend([one.redis_cpu_us_per_job, one.node_cpu_us_per_job].map(number));
            row
        })
        .collect();
    out.table(&header, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let one = Measurement::spread("x", "ms", (1..=200).rev().map(f64::from).collect()).unwrap();
        assert_eq!(
            (one.value, one.min, one.p50, one.p99, one.max),
            (Some(100.0), Some(1.0), Some(100.0), Some(198.0), Some(200.0))
        );
        let single = Measurement::spread("x", "ms", vec![7.0]).unwrap();
        assert_eq!((single.p50, single.p99, single.max), (Some(7.0), Some(7.0), Some(7.0)));
        assert!(Measurement::spread("x", "ms", Vec::new()).is_err());
    }

    #[test]
    fn numbers_have_four_digits() {
        assert_eq!([rounded(123_456.0), rounded(0.012_345_6), rounded(-3.0), rounded(0.0)], [123_500.0, 0.012_35, -3.0, 0.0]);
    }

    #[test]
    fn what_was_skipped_says_why_and_has_no_value() {
        let text = serde_json::to_string(&Measurement::skipped("x", "no INFO")).unwrap();
        assert_eq!(text, r#"{"name":"x","value":null,"unit":"","skipped":"no INFO"}"#);
    }
}
