//! Which band a slot is meant for: urgent first, but nobody starves.
//!
//! Sixteen slots in a row are meant for the bands in a fixed pattern. A slot whose band is empty goes to the most urgent one that
//! is not. So a short queue drains in order of urgency, and under pressure low still gets one slot of sixteen.

use punctual_core::job::Priority::{self, Critical, High, Low, Normal};

const PATTERN: [Priority; 16] = [
    Critical, Critical, Critical, Critical, High, Critical, Critical, High, Normal, Critical, Critical, High, Critical, High,
    Normal, Low,
];

/// Where in the pattern a queue stands.
#[derive(Debug, Default)]
pub struct Bands {
    at: usize,
    strict: bool,
}

impl Bands {
    /// A queue's bands; strict means in order of urgency, whatever starves.
    #[must_use]
    pub fn new(strict: bool) -> Self {
        Self { at: 0, strict }
    }

    /// How many of the next `slots` slots are meant for each band.
    #[must_use]
    pub fn shares(&self, slots: usize) -> [usize; 4] {
        let mut shares = [0; 4];
        if !self.strict {
            // Critical is left at 0: what no other band is meant for goes to the most urgent anyway.
            for slot in 0..slots {
                shares[usize::from(PATTERN[(self.at + slot) % 16].band())] += 1;
            }
        }
        shares
    }

    /// So many slots were filled.
    pub fn advance(&mut self, filled: usize) {
        self.at = (self.at + filled) % 16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a claim script does with the shares, over queues of these lengths.
    fn order(mut lengths: [usize; 4], slots: usize, strict: bool) -> String {
        let mut bands = Bands::new(strict);
        let mut taken = String::new();
        while lengths.iter().sum::<usize>() > 0 {
            let shares = bands.shares(slots);
            let mut left = slots;
            let mut filled = 0;
            for pass in [shares, [usize::MAX; 4]] {
                for band in 0..4 {
                    let n = pass[band].min(lengths[band]).min(left);
                    lengths[band] -= n;
                    left -= n;
                    filled += n;
                    taken.push_str(&"CHNL"[band..=band].repeat(n));
                }
            }
            bands.advance(filled);
        }
        taken
    }

    #[test]
    fn a_few_jobs_come_in_order_of_urgency() {
        assert_eq!(order([1, 1, 1, 1], 1, false), "CHNL");
        assert_eq!(order([2, 2, 2, 2], 1, false), "CCHHNNLL");
    }

    #[test]
    fn under_pressure_every_band_gets_its_part() {
        let first: String = order([100, 100, 100, 100], 1, false).chars().take(64).collect();
        let count = |band| first.chars().filter(|c| *c == band).count();
        assert_eq!((count('C'), count('H'), count('N'), count('L')), (36, 16, 8, 4));
    }

    #[test]
    fn strict_starves() {
        assert!(order([50, 50, 0, 50], 4, true).starts_with(&"C".repeat(50)));
    }
}
