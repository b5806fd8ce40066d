//! Ids and names: what they may look like, and how an id is made.

/// Makes a ULID; later ones of one process sort after earlier ones, also within a millisecond.
#[must_use]
pub fn new_id() -> String {
    use std::sync::Mutex;
    static GENERATOR: Mutex<ulid::Generator> = Mutex::new(ulid::Generator::new());
    let mut generator = GENERATOR.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match generator.generate() {
        Ok(id) => id,
        Err(overflow) => overflow.commit_overflow_random(),
    }
    .to_string()
}

/// Whether a text has the form of a generated id: 26 characters of Crockford's base 32.
#[must_use]
pub fn is_generated_id(id: &str) -> bool {
    let bytes = id.as_bytes();
    bytes.len() == 26
        && matches!(bytes[0], b'0'..=b'7')
        && bytes.iter().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'H' | b'J' | b'K' | b'M' | b'N' | b'P'..=b'T' | b'V'..=b'Z'))
}

/// Whether `id` can name a job at all, generated or the caller's own.
///
/// # Errors
/// The rule that it breaks.
pub fn check_id(id: &str) -> Result<(), String> {
    if is_generated_id(id) { Ok(()) } else { check_own_id(id) }
}

pub(super) fn check_own_id(id: &str) -> Result<(), String> {
    let fits = (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if !fits || id == "." || id == ".." {
        return Err("must be 1 to 128 characters of A-Z a-z 0-9 . _ - and neither . nor ..".to_owned());
    }
    if is_generated_id(&id.to_ascii_uppercase()) {
        return Err("has the form of a generated id (ULID); choose another".to_owned());
    }
    Ok(())
}

/// Checks a queue's name.
///
/// # Errors
/// The rule, when it is broken.
pub fn check_queue(name: &str) -> Result<(), String> {
    let fits = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-'));
    if fits { Ok(()) } else { Err("must be 1 to 64 characters of a-z 0-9 _ -".to_owned()) }
}

/// Checks a handler's name.
///
/// # Errors
/// The rule, when it is broken.
pub fn check_handler_name(name: &str) -> Result<(), String> {
    let fits =
        (1..=128).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if fits { Ok(()) } else { Err("must be 1 to 128 characters of A-Z a-z 0-9 . _ -".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_ids_sort_and_never_equal_an_own_one() {
        let ids: Vec<String> = (0..1000).map(|_| new_id()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ids.iter().all(|id| is_generated_id(id) && check_own_id(id).is_err()));
    }
}
