//! Where decisions come from: a seed, or the recorded decisions of an earlier run. 0 is always the harmless choice, so that a
//! record can be shortened by writing zeros into it.

use std::fmt;

use fastrand::Rng;

/// A source of decisions that remembers what it decided.
#[derive(Debug)]
pub struct Choices {
    rng: Option<Rng>,
    given: Vec<u32>,
    made: Vec<u32>,
}

impl Choices {
    /// Decisions of a seed.
    pub fn of_seed(seed: u64) -> Self {
        Self { rng: Some(Rng::with_seed(seed)), given: Vec::new(), made: Vec::new() }
    }

    /// Recorded decisions; past their end everything is harmless.
    pub fn replay(given: Vec<u32>) -> Self {
        Self { rng: None, given, made: Vec::new() }
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u32::try_from(bound).expect("few possibilities");
        let made = match &mut self.rng {
            Some(rng) => rng.u32(0..bound),
            None => self.given.get(self.made.len()).copied().unwrap_or(0) % bound,
        };
        self.made.push(made);
        made as usize
    }

    /// Whether something of this chance happens; 0 in a record means no.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) >= 100 - percent
    }

    /// One of several.
    pub fn one_of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.below(things.len())]
    }

    /// All decisions so far.
    pub fn made(&self) -> &[u32] {
        &self.made
    }
}

/// A record as one word: numbers between dots, a run of zeros as `z` and its length.
pub struct Word<'a>(pub &'a [u32]);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().rposition(|one| *one != 0).map_or(0, |last| last + 1);
        let mut rest = &self.0[..end];
        let mut first = true;
        while let Some(one) = rest.first() {
            let zeros = rest.iter().take_while(|one| **one == 0).count();
            f.write_str(if first { "" } else { "." })?;
            if zeros > 1 {
                write!(f, "z{zeros}")?;
                rest = &rest[zeros..];
            } else {
                write!(f, "{one}")?;
                rest = &rest[1..];
            }
            first = false;
        }
        Ok(())
    }
}

/// Reads a [`Word`].
pub fn parse(word: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in word.split('.').filter(|part| !part.is_empty()) {
        match part.strip_prefix('z') {
            Some(count) => numbers.extend(std::iter::repeat_n(0, count.parse().ok()?)),
            None => numbers.push(part.parse().ok()?),
        }
    }
    Some(numbers)
}

#[test]
fn a_word_reads_back() {
    for numbers in [vec![], vec![3], vec![0, 7], vec![0, 0, 0, 12, 0, 1], vec![5, 0, 0, 9]] {
        assert_eq!(parse(&Word(&numbers).to_string()).unwrap(), numbers);
    }
    assert_eq!(Word(&[1, 0, 0]).to_string(), "1");
}
