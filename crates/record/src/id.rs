//! Names of runs and connections.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use ulid::Ulid;

/// The name of one run: a ULID, so that names sort by the time they were made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(Ulid);

impl RunId {
    /// A new name: milliseconds of now, then 80 random bits.
    #[expect(clippy::new_without_default, reason = "a default that differs every time would surprise")]
    pub fn new() -> RunId {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let draw = || u128::from(random_number());
        RunId(Ulid::from_parts(u64::try_from(now).unwrap_or(u64::MAX), draw() << 64 | draw()))
    }

    /// When the name was made, to the millisecond.
    pub fn made(&self) -> SystemTime {
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

/// Text that is not the name of a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a run: 26 letters and digits were expected")]
pub struct ParseRunIdError;

impl FromStr for RunId {
    type Err = ParseRunIdError;

    fn from_str(text: &str) -> Result<RunId, ParseRunIdError> {
        // 26 characters hold 130 bits: a first one above 7 would not fit 128.
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

/// A number that nobody can foresee.
#[must_use]
pub fn random_number() -> u64 {
    // The keys of a hasher are drawn by the kernel, and those of two differ.
    RandomState::new().build_hasher().finish()
}

/// The number of a connection within its run: it joins a decision with its close.
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
    fn a_new_name_has_its_time_and_eighty_bits_that_nobody_knows() {
        let (mut ever, mut always) = (0, u128::MAX);
        for _ in 0..200 {
            let name = RunId::new();
            let age = SystemTime::now().duration_since(name.made()).unwrap();
            assert!(age < Duration::from_secs(10), "{age:?}");
            ever |= name.0.random();
            always &= name.0.random();
        }
        assert_eq!((ever, always), ((1 << 80) - 1, 0), "each bit was seen both ways");
    }
}
