//! Defines calendar days in UTC, for expiries. It reads no clock.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A UTC day, counted from 1970-01-01.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(i32);

impl Day {
    /// Seconds of a UTC day. Unix time has no leap seconds.
    const SECONDS: i64 = 86_400;

    /// Returns the day of a Unix time in seconds.
    pub fn from_unix(seconds: i64) -> Self {
        let days = seconds.div_euclid(Self::SECONDS);
        Self(i32::try_from(days).unwrap_or(if days < 0 { i32::MIN } else { i32::MAX }))
    }

    /// Returns a date of the Gregorian calendar, years 0 to 9999, or `None` if it does not exist.
    pub fn from_ymd(year: i32, month: u8, day: u8) -> Option<Self> {
        let length = match month {
            1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
            4 | 6 | 9 | 11 => 30,
            2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
            2 => 28,
            _ => return None,
        };
        if !(0..=9999).contains(&year) || day == 0 || day > length {
            return None;
        }
        // Days are counted in eras of 400 years that start on 1 March, so that the leap day comes last.
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let day_of_year = (153 * i32::from(month) + 2) / 5 + i32::from(day) - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        Some(Self(era * 146_097 + day_of_era - 719_468))
    }

    /// Returns how many days this day is after another one; negative if it is earlier.
    pub fn days_after(self, other: Self) -> i64 {
        i64::from(self.0) - i64::from(other.0)
    }

    /// Returns year, month and day, the inverse of [`Day::from_ymd`].
    pub fn ymd(self) -> (i64, i64, i64) {
        let z = i64::from(self.0) + 719_468;
        let era = z.div_euclid(146_097);
        let day_of_era = z.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted + 2) / 5 + 1;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        (year_of_era + era * 400 + i64::from(month <= 2), month, day)
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.ymd();
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

/// The text is not a day written `YYYY-MM-DD`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a day is written YYYY-MM-DD")]
pub struct DayError;

impl FromStr for Day {
    type Err = DayError;

    fn from_str(text: &str) -> Result<Self, DayError> {
        let shape = text.len() == 10
            && text
                .bytes()
                .enumerate()
                .all(|(i, b)| if i == 4 || i == 7 { b == b'-' } else { b.is_ascii_digit() });
        let mut parts = text.split('-');
        let (Some(year), Some(month), Some(day), true) = (parts.next(), parts.next(), parts.next(), shape)
        else {
            return Err(DayError);
        };
        let (Ok(year), Ok(month), Ok(day)) = (year.parse(), month.parse(), day.parse()) else {
            return Err(DayError);
        };
        Self::from_ymd(year, month, day).ok_or(DayError)
    }
}

impl Serialize for Day {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_days_from_1970() {
        for (text, days) in [
            ("1970-01-01", 0),
            ("1969-12-31", -1),
            ("2000-02-29", 11_016),
            ("2000-03-01", 11_017),
            ("2026-11-21", 20_778),
            ("2027-03-31", 20_908),
        ] {
            assert_eq!(text.parse(), Ok(Day(days)), "{text}");
            assert_eq!(Day(days).to_string(), text);
            assert_eq!(Day::from_unix(i64::from(days) * 86_400 + 86_399), Day(days));
        }
    }

    #[test]
    fn parses_every_printed_day() {
        for days in (-200_000..200_000).step_by(37) {
            assert_eq!(Day(days).to_string().parse(), Ok(Day(days)));
        }
    }

    #[test]
    fn refuses_invalid_days() {
        for text in [
            "",
            "2027-3-31",
            "2027-02-29",
            "1900-02-29",
            "2027-13-01",
            "2027-00-10",
            "2027-01-00",
            "2027-01-32",
            "20270131",
            "2027/01/31",
            "+027-01-31",
            "2027-01-31T00:00:00Z",
            " 2027-01-31",
            "tomorrow",
        ] {
            assert!(text.parse::<Day>().is_err(), "{text}");
        }
    }
}
