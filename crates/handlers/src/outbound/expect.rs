//! Which status codes count as done: `200-299`, or a list such as `200,201,300-304`.

use serde::{Deserialize, Serialize};

/// A set of status codes, in the words that it was written in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Expect {
    text: String,
    ranges: Vec<(u16, u16)>,
}

impl Expect {
    /// Whether the code counts as done.
    #[must_use]
    pub fn contains(&self, status: u16) -> bool {
        self.ranges.iter().any(|(low, high)| (*low..=*high).contains(&status))
    }
}

impl Default for Expect {
    fn default() -> Self {
        Self { text: "200-299".to_owned(), ranges: vec![(200, 299)] }
    }
}

impl TryFrom<String> for Expect {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let range = |part: &str| {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let (low, high) = (low.trim().parse::<u16>().ok()?, high.trim().parse::<u16>().ok()?);
            (100 <= low && low <= high && high <= 599).then_some((low, high))
        };
        match text.split(',').map(range).collect() {
            Some(ranges) => Ok(Self { text, ranges }),
            None => Err(format!("{text:?} is not a list of status codes such as \"200-299\" or \"200,201,300-304\"")),
        }
    }
}

impl From<Expect> for String {
    fn from(expect: Expect) -> Self {
        expect.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_codes_and_ranges_are_read() {
        let expect = Expect::try_from("200, 201,300-304".to_owned()).unwrap();
        let codes: Vec<u16> = (100..600).filter(|code| expect.contains(*code)).collect();
        assert_eq!(codes, [200, 201, 300, 301, 302, 303, 304]);
        for wrong in ["", "2xx", "200-", "-299", "299-200", "99", "600", "200,,201", "200-299-300", "+200x"] {
            assert!(Expect::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }
}
