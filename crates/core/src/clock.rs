//! The one place that reads this machine's wall clock.
//!
//! Due times, leases and claims are judged by Redis' clock inside the scripts. The local clock serves only
//! to refuse instants that are years away before they are sent, and to stamp log lines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Milliseconds since 1970 by this machine's clock; 0 when the clock stands before 1970.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this module is the seam that everything else goes through")]
pub fn local_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Writes an instant as RFC 3339 in UTC with milliseconds: `2026-03-29T01:00:00.000Z`.
///
/// Instants past the year 9999 are written as that year's last millisecond.
#[must_use]
pub fn format_ms(ms: u64) -> String {
    let instant = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::MAX);
    format!("{instant:.3}")
}

/// Reads an RFC 3339 instant with an offset, in milliseconds since 1970.
///
/// # Errors
/// A line that says what is missing; a local time without offset is named as such.
pub fn parse_instant(text: &str) -> Result<u64, String> {
    let instant: Timestamp = text.trim().parse().map_err(|_| {
        format!("{text:?} is not an RFC 3339 instant with an offset, such as 2026-03-29T01:00:00Z or 2026-03-29T03:00:00+02:00")
    })?;
    u64::try_from(instant.as_millisecond()).map_err(|_| format!("{text:?} lies before 1970"))
}

/// Reads a local time of `zone` (an IANA name) or an instant with an offset.
///
/// # Errors
/// A line that says whether the zone or the time is wrong.
pub fn parse_instant_in(text: &str, zone: &str) -> Result<u64, String> {
    if let Ok(instant) = parse_instant(text) {
        return Ok(instant);
    }
    let zone = jiff::tz::TimeZone::get(zone).map_err(|_| format!("{zone:?} is not a time zone of the IANA database"))?;
    let local: jiff::civil::DateTime =
        text.trim().parse().map_err(|_| format!("{text:?} is not a local time such as 2026-03-29T03:00:00"))?;
    let zoned = zone.to_ambiguous_zoned(local).compatible().map_err(|error| error.to_string())?;
    u64::try_from(zoned.timestamp().as_millisecond()).map_err(|_| format!("{text:?} lies before 1970"))
}

/// Whole milliseconds of a duration, saturating.
#[must_use]
pub fn as_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_read_back() {
        assert_eq!(format_ms(parse_instant("2026-03-29T03:00:00+02:00").unwrap()), "2026-03-29T01:00:00.000Z");
        assert!(parse_instant("2026-03-29T03:00:00").unwrap_err().contains("offset"));
        assert_eq!(
            parse_instant_in("2026-07-01T02:00:00", "Europe/Berlin").unwrap(),
            parse_instant("2026-07-01T00:00:00Z").unwrap()
        );
        assert!(parse_instant_in("2026-07-01T02:00:00", "Mars/Base").unwrap_err().contains("Mars/Base"));
        assert!(format_ms(u64::MAX).starts_with("9999"));
    }
}
