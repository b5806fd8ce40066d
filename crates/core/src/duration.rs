//! Durations as people write them: `5s`, `1h 30m`. A bare number is refused, because its unit would be a guess.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

/// Reads a duration; the error says how to write one.
///
/// # Errors
/// A line that names the text and shows a right one.
pub fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return Err(format!("{text:?} has no unit; write for example \"{text}s\" or \"{text}ms\""));
    }
    // humantime adds the parts without looking, so a number near 2^64 would overflow it.
    if text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 12) {
        return Err(format!("{text:?} has a number that is too long"));
    }
    // humantime reads M as a month, which is hardly ever meant beside m for a minute.
    if text.split(|c: char| !c.is_ascii_alphabetic()).any(|unit| unit == "M") {
        return Err(format!("{text:?}: M is a month; write m for minutes, or days"));
    }
    humantime::parse_duration(text).map_err(|error| format!("{text:?} is not a duration such as \"5s\" or \"1h 30m\": {error}"))
}

/// Writes a duration in the form that [`parse`] reads.
#[must_use]
pub fn format(value: Duration) -> String {
    humantime::format_duration(value).to_string()
}

/// For `#[serde(with = "crate::duration")]`.
///
/// # Errors
/// As the serializer's.
pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*value))
}

/// For `#[serde(with = "crate::duration")]`.
///
/// # Errors
/// When the text is not a duration or is a bare number.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    struct Text;
    impl de::Visitor<'_> for Text {
        type Value = Duration;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a duration such as \"5s\" or \"1h 30m\"")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
            parse(text).map_err(E::custom)
        }
        fn visit_u64<E: de::Error>(self, number: u64) -> Result<Duration, E> {
            parse(&number.to_string()).map_err(E::custom)
        }
        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Duration, E> {
            parse(&number.to_string()).map_err(E::custom)
        }
        fn visit_f64<E: de::Error>(self, number: f64) -> Result<Duration, E> {
            parse(&number.to_string()).map_err(E::custom)
        }
    }
    deserializer.deserialize_any(Text)
}

/// Lists of durations.
pub mod list {
    use super::{Deserialize, Deserializer, Duration, Serializer, de};

    /// For `#[serde(with = "crate::duration::list")]`.
    ///
    /// # Errors
    /// As the serializer's.
    pub fn serialize<S: Serializer>(value: &[Duration], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(value.iter().map(|one| super::format(*one)))
    }

    /// For `#[serde(with = "crate::duration::list")]`.
    ///
    /// # Errors
    /// When one of the texts is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Duration>, D::Error> {
        Vec::<String>::deserialize(deserializer)?.iter().map(|text| super::parse(text).map_err(de::Error::custom)).collect()
    }
}

/// Durations that may be absent.
pub mod option {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    #[derive(Deserialize)]
    struct Wrapped(#[serde(with = "super")] Duration);

    /// For `#[serde(with = "crate::duration::option")]`.
    ///
    /// # Errors
    /// As the serializer's.
    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.serialize_some(&super::format(*value)),
            None => serializer.serialize_none(),
        }
    }

    /// For `#[serde(with = "crate::duration::option")]`.
    ///
    /// # Errors
    /// When the text is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Wrapped>::deserialize(deserializer)?.map(|wrapped| wrapped.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_numbers_months_and_overflows_are_refused() {
        assert_eq!(parse("1h 30m").unwrap(), Duration::from_secs(5400));
        assert_eq!(parse("0").unwrap(), Duration::ZERO);
        assert!(parse("5").unwrap_err().contains("5s"));
        assert!(parse("1M").unwrap_err().contains("month"));
        assert!(parse("18446744073709551615s 1000000000ns").is_err());
        assert!(parse("").is_err());
    }
}
