//! The day of the machine's clock.

use std::time::{SystemTime, UNIX_EPOCH};

use exeat_policy::Day;

/// Returns today's day in UTC, which expiries are compared with.
#[must_use]
pub fn today() -> Day {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Day::from_unix(i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
}
