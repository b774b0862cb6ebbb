//! Points of time, as records write them and as people type them.
//!
//! UTC is the only time zone, because records have no other.

use std::fmt;
use std::time::SystemTime;

use exeat_policy::parse_age;
use jiff::{Timestamp, ToSpan as _, Unit};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes of `2026-11-21T10:20:32.123456Z`.
const WIDTH: usize = 27;

/// A point of time, UTC, to the microsecond, in the years 0 to 9999.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment([u8; WIDTH]);

impl Moment {
    /// Reads a line's `ts`; returns `None` if it is not a time.
    pub fn parse(ts: &str) -> Option<Moment> {
        Moment::as_written(ts).or_else(|| Moment::exact(ts.parse().ok()?))
    }

    /// Reads a time as a person types it at `now`: RFC 3339; a day, or a day and a time, in UTC; a span back, such as `30m` or `7d`;
    /// `now`, `today`, `yesterday`.
    pub fn typed(text: &str, now: SystemTime) -> Result<Moment, MomentError> {
        let now = Timestamp::try_from(now).map_err(|_| MomentError)?;
        let day = |back: i64| Some(now - (back * 24).hours()).map(|at| at.strftime("%Y-%m-%d").to_string());
        let text = match text {
            "now" => return Moment::exact(now).ok_or(MomentError),
            "today" => day(0).unwrap_or_default(),
            "yesterday" => day(1).unwrap_or_default(),
            text => text.to_owned(),
        };
        let back = text.strip_prefix('-').or_else(|| text.strip_suffix(" ago")).unwrap_or(&text);
        if let Ok(span) = parse_age(back) {
            let at = now.checked_sub(span).map_err(|_| MomentError)?;
            return Moment::exact(at).ok_or(MomentError);
        }
        let date =
            text.get(..10).filter(|date| date.parse::<exeat_policy::Day>().is_ok()).ok_or(MomentError)?;
        let whole = match text.get(10..).unwrap_or_default() {
            "" => format!("{date}T00:00:00Z"),
            time if time.ends_with(['Z', 'z']) || time.contains('+') || time.contains('-') => text.clone(),
            time if time.len() == 6 => format!("{date}{time}:00Z"),
            time => format!("{date}{time}Z"),
        };
        Moment::exact(whole.parse().map_err(|_| MomentError)?).ok_or(MomentError)
    }

    /// Returns the moment this many microseconds later, or earlier.
    pub(crate) fn moved(&self, us: i64) -> Option<Moment> {
        let at: Timestamp = self.as_str().parse().ok()?;
        Moment::exact(at.checked_add(jiff::SignedDuration::from_micros(us)).ok()?)
    }

    /// Returns the text that a line has for it.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }

    fn exact(at: Timestamp) -> Option<Moment> {
        let at = at.round(Unit::Microsecond).ok()?;
        Moment::as_written(&format!("{at:.6}"))
    }

    /// Reads the one form that exeat writes, whose texts sort as the times do.
    fn as_written(text: &str) -> Option<Moment> {
        const FORM: &[u8; WIDTH] = b"0000-00-00T00:00:00.000000Z";
        let bytes: &[u8; WIDTH] = text.as_bytes().try_into().ok()?;
        let fits = |(byte, form): (&u8, &u8)| match form {
            b'0' => byte.is_ascii_digit(),
            form => byte == form,
        };
        bytes.iter().zip(FORM).all(fits).then_some(Moment(*bytes))
    }
}

impl From<SystemTime> for Moment {
    /// Outside the years 0 to 9999 it is the first moment of year 0.
    fn from(at: SystemTime) -> Moment {
        Timestamp::try_from(at)
            .ok()
            .and_then(Moment::exact)
            .unwrap_or(Moment(*b"0000-01-01T00:00:00.000000Z"))
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Moment, D::Error> {
        Moment::parse(&String::deserialize(deserializer)?).ok_or_else(|| D::Error::custom(MomentError))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not a point of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a time is written `2026-11-21`, `2026-11-21 10:20` (UTC), `2026-11-21T10:20:32Z` or, back from now, `30m`, `2h` or `7d`"
)]
pub struct MomentError;

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&str>) {
        let now = "2026-11-22T18:30:00.5Z".parse::<Timestamp>().unwrap();
        let moment = Moment::typed(text, now.into());
        assert_eq!(moment.as_ref().map(Moment::as_str).ok(), expect, "{text:?}");
    }

    #[test]
    fn reads_typed_times() {
        check("2026-11-21T10:20:32.123456Z", Some("2026-11-21T10:20:32.123456Z"));
        check("2026-11-21T10:20:32Z", Some("2026-11-21T10:20:32.000000Z"));
        check("2026-11-21T12:20:32+02:00", Some("2026-11-21T10:20:32.000000Z"));
        check("2026-11-21T10:20:32-01:00", Some("2026-11-21T11:20:32.000000Z"));
        check("2026-11-21", Some("2026-11-21T00:00:00.000000Z"));
        check("2026-11-21 10:20", Some("2026-11-21T10:20:00.000000Z"));
        check("2026-11-21 10:20:32", Some("2026-11-21T10:20:32.000000Z"));
        check("2026-11-21T10:20", Some("2026-11-21T10:20:00.000000Z"));
        check("now", Some("2026-11-22T18:30:00.500000Z"));
        check("today", Some("2026-11-22T00:00:00.000000Z"));
        check("yesterday", Some("2026-11-21T00:00:00.000000Z"));
        check("2h", Some("2026-11-22T16:30:00.500000Z"));
        check("-2h", Some("2026-11-22T16:30:00.500000Z"));
        check("7d", Some("2026-11-15T18:30:00.500000Z"));
        check("1h30m ago", Some("2026-11-22T17:00:00.500000Z"));
        for bad in [
            "",
            "2",
            "h",
            "2026",
            "2026-13-01",
            "2026-02-30",
            "2026-11-21x",
            "10:20",
            "tomorrow",
            "2026-11-21T25:00",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn compares_times_of_lines_as_text() {
        let early = Moment::parse("2026-11-21T10:20:32.123456Z").unwrap();
        let late = Moment::parse("2026-11-21T12:20:32.2+01:00").unwrap();
        assert!(early < late);
        assert_eq!(late.as_str(), "2026-11-21T11:20:32.200000Z");
        for bad in ["", "x", "2026-11-21", "2026-11-21T10:20:32.12345\u{e9}Z"] {
            assert_eq!(Moment::parse(bad), None, "{bad}");
        }
    }
}
