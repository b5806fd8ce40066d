//! Sizes as people write them: `256 KiB`, `1 MiB`, `512 B`, or a whole number of bytes.

use std::fmt;

/// Units, largest first. Powers of ten (kB, MB) are refused: half of their writers mean powers of two.
const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A number of bytes. `Display` writes the form that [`Bytes::parse`] reads, in the largest unit that divides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Reads a size; units are not case-sensitive, and a bare whole number is bytes.
    ///
    /// # Errors
    /// A line that names the text and shows a right one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.chars().take_while(char::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let wrong = || format!("{text:?} is not a size such as \"256 KiB\", \"1 MiB\" or 4096");
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let unit = unit.trim_start();
        let scale = UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)).map(|(_, scale)| *scale);
        let scale = if unit.is_empty() { 1 } else { scale.ok_or_else(wrong)? };
        number.checked_mul(scale).map(Self).ok_or_else(|| format!("{text:?} is more than a size can hold"))
    }

    /// The number of bytes as a length in memory; saturates where addresses are shorter than 64 bits.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS.iter().find(|(_, scale)| self.0 >= *scale && self.0.is_multiple_of(*scale));
        let (unit, scale) = whole.unwrap_or(&("B", 1));
        write!(f, "{} {unit}", self.0 / scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back() {
        for (text, bytes, shown) in [
            ("256 KiB", 262_144, "256 KiB"),
            ("1mib", 1 << 20, "1 MiB"),
            (" 4096 ", 4096, "4 KiB"),
            ("0", 0, "0 B"),
            ("1000 B", 1000, "1000 B"),
        ] {
            let size = Bytes::parse(text).unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, shown));
            assert_eq!(Bytes::parse(shown), Ok(size));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "KiB", "-1", "1.5 MiB", "1 MB", "1 k", "1 KiB 2", "99999999999 GiB", "99999999999999999999"] {
            assert!(Bytes::parse(text).is_err(), "{text}");
        }
    }
}
