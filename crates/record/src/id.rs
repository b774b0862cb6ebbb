//! The names of runs and connections.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use ulid::Ulid;

/// The name of one run: a ULID, so that names sort by the time of their creation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(Ulid);

impl RunId {
    /// Makes a new name from the current milliseconds and 80 random bits.
    #[expect(clippy::new_without_default, reason = "a default that differs every time would surprise")]
    pub fn new() -> RunId {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let draw = || u128::from(random_number());
        RunId(Ulid::from_parts(u64::try_from(now).unwrap_or(u64::MAX), draw() << 64 | draw()))
    }

    /// Returns when the name was made, to the millisecond.
    pub fn created_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0.timestamp_ms())
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}

/// The error for text that is not the name of a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a run: 26 letters and digits were expected")]
pub struct ParseRunIdError;

impl FromStr for RunId {
    type Err = ParseRunIdError;

    fn from_str(text: &str) -> Result<RunId, ParseRunIdError> {
        // 26 characters hold 130 bits: with a first one above 7 they would not fit in 128.
        if text.len() != 26 || !text.starts_with(|c| ('0'..='7').contains(&c)) {
            return Err(ParseRunIdError);
        }
        text.to_ascii_uppercase().parse().map(RunId).map_err(|_| ParseRunIdError)
    }
}

impl Serialize for RunId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Returns a number that nobody can predict.
#[must_use]
pub fn random_number() -> u64 {
    // The kernel draws the keys of a hasher, and those of two hashers differ.
    RandomState::new().build_hasher().finish()
}

/// The number of a connection in its run. A decision and its close have the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ConnId(pub u64);

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_name_has_its_time_and_eighty_random_bits() {
        let (mut ever, mut always) = (0, u128::MAX);
        for _ in 0..200 {
            let name = RunId::new();
            let age = SystemTime::now().duration_since(name.created_at()).unwrap();
            assert!(age < Duration::from_secs(10), "{age:?}");
            ever |= name.0.random();
            always &= name.0.random();
        }
        assert_eq!((ever, always), ((1 << 80) - 1, 0), "each bit was seen both ways");
    }
}
