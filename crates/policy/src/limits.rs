//! Defines how much of the machine a stage may use: numbers with units, and the smaller of two. Nothing here
//! enforces a limit.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// Defines [`Limits`] and [`Limit`] from one list: the docs, the key, its variant and the type of its value.
macro_rules! limits {
    ($($(#[$doc:meta])* $key:ident $variant:ident: $value:ty;)*) => {
        /// The limits of a run. `None` means no limit.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Limits {
            $($(#[$doc])* pub $key: Option<$value>,)*
        }

        /// A limit of a run, by its key.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Limit {
            $($(#[$doc])* $variant,)*
        }

        impl Limit {
            /// Every limit.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the key in the `[limits]` section of a policy file.
            pub fn key(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($key),)*
                }
            }
        }

        impl Limits {
            /// Returns each limit that is set and its value, in the order of [`Limit::ALL`].
            pub fn set(&self) -> impl Iterator<Item = (Limit, String)> {
                let all = [$((Limit::$variant, self.$key.map(|value| value.to_string()))),*];
                all.into_iter().filter_map(|(limit, value)| Some((limit, value?)))
            }

            /// Returns each limit on a number of things that is set, and its value.
            pub fn counts(&self) -> impl Iterator<Item = (Limit, u32)> {
                let all = [$((Limit::$variant, self.$key.and_then(Value::as_count))),*];
                all.into_iter().filter_map(|(limit, value)| Some((limit, value?)))
            }

            /// Returns only the limits for which `is_kept` holds.
            #[must_use]
            pub fn filter(self, is_kept: impl Fn(Limit) -> bool) -> Self {
                Self { $($key: self.$key.filter(|_| is_kept(Limit::$variant)),)* }
            }

            /// Returns the smaller of each two limits, so that neither side can lift a limit of the other.
            #[must_use]
            pub fn min(self, other: Self) -> Self {
                Self { $($key: least(self.$key, other.$key),)* }
            }

            /// Returns the limits of `other` where they are set, and these elsewhere, as flags override a file.
            #[must_use]
            pub fn overridden_by(self, other: Self) -> Self {
                Self { $($key: other.$key.or(self.$key),)* }
            }
        }
    };
}

limits! {
    /// The key `timeout`: wall time of the whole run, after which the stage is stopped.
    timeout Timeout: Span;
    /// The key `grace`: time from the signal that asks the stage to end to the one that kills it.
    grace Grace: Span;
    /// The key `cpu_time`: processor time of each process, in whole seconds, rounded up (`RLIMIT_CPU`).
    cpu_time CpuTime: Span;
    /// The key `memory`: memory of all processes of the stage together, at least [`LEAST_MEMORY`].
    memory Memory: Size;
    /// The key `pids`: processes and threads at one time.
    pids Pids: u32;
    /// The key `open_files`: descriptors of each process (`RLIMIT_NOFILE`), at least [`LEAST_OPEN_FILES`].
    open_files OpenFiles: u32;
    /// The key `file_size`: the largest file that a process may write (`RLIMIT_FSIZE`).
    file_size FileSize: Size;
    /// The key `tmpfs_size`: size of each of the private `/tmp` and `/var/tmp`.
    tmpfs_size TmpfsSize: Size;
    /// The key `output_size`: stdout and stderr of the stage together.
    output_size OutputSize: Size;
    /// The key `connections`: connections of the run at one time, 1 to [`MAX_CONNECTIONS`].
    connections Connections: u32;
    /// The key `connections_per_host`: connections to one host at one time, 1 to [`MAX_CONNECTIONS`].
    connections_per_host ConnectionsPerHost: u32;
    /// The key `audit_size`: bytes of the record, at least [`LEAST_AUDIT_SIZE`]. Beyond it no connection is let
    /// out.
    audit_size AuditSize: Size;
}

impl Limit {
    /// Returns the values that a limit on a number of things may have.
    pub fn range(self) -> RangeInclusive<u32> {
        match self {
            Self::OpenFiles => LEAST_OPEN_FILES..=u32::MAX,
            Self::Connections | Self::ConnectionsPerHost => 1..=MAX_CONNECTIONS,
            Self::Pids => 1..=u32::MAX,
            // Times and sizes have units, and bounds of their own.
            Self::Timeout
            | Self::Grace
            | Self::CpuTime
            | Self::Memory
            | Self::FileSize
            | Self::TmpfsSize
            | Self::OutputSize
            | Self::AuditSize => 1..=u32::MAX,
        }
    }

    /// Whether the proxy enforces the limit. It then also holds in `exeat proxy`, which has no stage.
    ///
    /// The proxy gets no other limit: see [`Limits::of_proxy`].
    pub fn is_of_proxy(self) -> bool {
        match self {
            Self::Connections | Self::ConnectionsPerHost | Self::AuditSize => true,
            Self::Timeout
            | Self::Grace
            | Self::CpuTime
            | Self::Memory
            | Self::Pids
            | Self::OpenFiles
            | Self::FileSize
            | Self::TmpfsSize
            | Self::OutputSize => false,
        }
    }
}

impl Limits {
    /// Returns only the limits that the proxy enforces.
    #[must_use]
    pub fn of_proxy(self) -> Self {
        self.filter(Limit::is_of_proxy)
    }
}

/// The value of a limit.
trait Value: Copy {
    /// Returns the value if it is a number of things.
    fn as_count(self) -> Option<u32> {
        None
    }
}

impl Value for Span {}

impl Value for Size {}

impl Value for u32 {
    fn as_count(self) -> Option<u32> {
        Some(self)
    }
}

pub(crate) fn least<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Maximum number of connections in a policy. No machine serves more.
pub const MAX_CONNECTIONS: u32 = 1_000_000;

/// Minimum `open_files`: what exeat's helper and a dynamic linker need.
pub const LEAST_OPEN_FILES: u32 = 16;

/// Minimum `memory`. No command starts with less, so the unit was probably forgotten.
pub const LEAST_MEMORY: Size = Size(1 << 20);

/// Minimum `audit_size`: room for the start and the end of a run, and for some hundred connections.
pub const LEAST_AUDIT_SIZE: Size = Size(1 << 20);

/// Guesses what was meant by a `memory` below [`LEAST_MEMORY`]: `100M` for 100 bytes, `64MiB` for 64 KiB.
pub fn memory_meant(size: Size) -> Option<String> {
    if size.0 < 1000 {
        return Some(format!("{}M", size.0));
    }
    let shown = size.to_string();
    let meant = [("KiB", "MiB"), ("kB", "MB")].iter().find_map(|(unit, larger)| {
        let number = shown.strip_suffix(unit)?;
        Some(format!("{number}{larger}"))
    });
    meant.filter(|_| size < LEAST_MEMORY)
}

/// A duration, from a millisecond to 366 days. A longer one is a mistake, and would overflow clocks.
///
/// It is written `90s`, `10m`, `1h30m` or `500ms`: whole numbers with units, each unit once, the large ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

/// A number of bytes, at least one.
///
/// It is written `512`, `64KiB`, `10MB` or `2GiB`: a whole number with a unit of 1000 (`kB`, `MB`, `GB`, `TB`) or
/// of 1024 (`KiB`, `MiB`, `GiB`, `TiB`), in any letter case. `K`, `M`, `G` and `T` alone are those of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

const MAX_SPAN: Duration = Duration::from_secs(366 * 24 * 60 * 60);

const SPAN_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("", 1),
];

/// The reason why a text is not a duration or number of bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The text has only digits.
    #[error("the unit is missing: `{0}s`, `{0}m`?")]
    NoUnit(String),
    /// The text is not a duration.
    #[error(
        "a duration is written in whole numbers with a unit, like `90s`, `10m`, `1h30m` or `500ms`, and is not zero"
    )]
    Span,
    /// The duration is longer than a year.
    #[error("a duration is at most 366d")]
    TooLong,
    /// The text is not a number of bytes.
    #[error("a size is a whole number with a unit, like `512MiB`, `2GiB` or `10MB`, and is not zero")]
    Size,
}

/// Parses an age: a [`Span`], in which `30m` means minutes, or any number of days (`d`), weeks (`w`), months of 31
/// days (`mo`) or years of 366 (`y`).
///
/// # Errors
/// Returns a [`LimitError`] for other text.
pub fn parse_age(text: &str) -> Result<Duration, LimitError> {
    const DAY: u64 = 24 * 60 * 60;
    for (unit, days) in [("d", 1), ("w", 7), ("mo", 31), ("y", 366)] {
        if let Some(count) = text.strip_suffix(unit).and_then(number) {
            let seconds = count.checked_mul(days * DAY).ok_or(LimitError::TooLong)?;
            return if seconds > 0 { Ok(Duration::from_secs(seconds)) } else { Err(LimitError::Span) };
        }
    }
    text.parse().map(Span::get)
}

impl Span {
    /// Creates a span; `None` below a millisecond and above 366 days.
    pub fn new(span: Duration) -> Option<Self> {
        (Duration::from_millis(1)..=MAX_SPAN).contains(&span).then_some(Self(span))
    }

    /// Returns the nearest span: a millisecond for less, 366 days for more.
    pub fn nearest(span: Duration) -> Self {
        Self(span.clamp(Duration::from_millis(1), MAX_SPAN))
    }

    /// Returns the standard library's type.
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl Size {
    /// Creates a size; `None` for 0.
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes == 0 { None } else { Some(Self(bytes)) }
    }

    /// Returns the number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for Span {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        if number(text).is_some() {
            return Err(LimitError::NoUnit(text.to_owned()));
        }
        let mut rest = text;
        let mut units = SPAN_UNITS.iter();
        let mut total = Duration::ZERO;
        while !rest.is_empty() {
            let (digits, tail) = split_while(rest, |c| c.is_ascii_digit());
            let (unit, tail) = split_while(tail, |c| c.is_ascii_alphabetic());
            let (_, factor) = units.find(|(name, _)| *name == unit).ok_or(LimitError::Span)?;
            let millis = number(digits).ok_or(LimitError::Span)?;
            let part = millis.checked_mul(*factor).ok_or(LimitError::TooLong)?;
            total = total.checked_add(Duration::from_millis(part)).ok_or(LimitError::TooLong)?;
            rest = tail;
        }
        if total > MAX_SPAN {
            return Err(LimitError::TooLong);
        }
        Self::new(total).ok_or(LimitError::Span)
    }
}

impl FromStr for Size {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let (digits, unit) = split_while(text, |c| c.is_ascii_digit());
        let short = ["k", "m", "g", "t"].contains(&unit.to_ascii_lowercase().as_str());
        let unit = if short { format!("{unit}iB") } else { unit.to_owned() };
        let known = SIZE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(&unit));
        let (_, factor) = known.ok_or(LimitError::Size)?;
        let bytes = number(digits).and_then(|number| number.checked_mul(*factor));
        bytes.and_then(Self::new).ok_or(LimitError::Size)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // INVARIANT: a span is at most 366 days.
        let mut rest = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        for (unit, factor) in SPAN_UNITS {
            if rest >= factor {
                write!(f, "{}{unit}", rest / factor)?;
                rest %= factor;
            }
        }
        Ok(())
    }
}

/// Formats it in the largest unit without a remainder.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = SIZE_UNITS.iter().find(|(_, factor)| self.0.is_multiple_of(*factor));
        match unit {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => self.0.fmt(f),
        }
    }
}

fn number(digits: &str) -> Option<u64> {
    let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| digits.parse().ok())?
}

fn split_while(text: &str, keep: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !keep(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_spans() {
        for (text, millis) in [
            ("90s", 90_000),
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
            ("366d", 366 * 86_400_000),
            ("90m", 5_400_000),
        ] {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(millis))), "{text}");
        }
        for text in [
            "",
            "s",
            "1.5s",
            "-1s",
            "1s1m",
            "1s1s",
            "0s",
            " 1s",
            "1 s",
            "1x",
            "１s",
            "1S",
            "+1s",
            "1\u{661}s",
            "1\u{b5}s",
        ] {
            assert_eq!(text.parse::<Span>(), Err(LimitError::Span), "{text}");
        }
        assert_eq!("90".parse::<Span>(), Err(LimitError::NoUnit("90".into())));
        for text in ["367d", "99999999999999999d", "18446744073709551615d", "366d1ms"] {
            assert_eq!(text.parse::<Span>(), Err(LimitError::TooLong), "{text}");
        }
    }

    #[test]
    fn parses_sizes() {
        for (text, bytes) in [
            ("512", 512),
            ("64KiB", 65_536),
            ("10MB", 10_000_000),
            ("10mb", 10_000_000),
            ("2GiB", 2 << 30),
            ("2g", 2 << 30),
            ("1K", 1024),
            ("1kB", 1000),
            ("3TiB", 3 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "0", "0MB", "1.5GB", "-1", "MB", "1 MB", "1PB", "1i", "99999999TiB", "1KB2"] {
            assert_eq!(text.parse::<Size>(), Err(LimitError::Size), "{text}");
        }
    }

    #[test]
    fn parses_displayed_limits_back() {
        for text in ["1d2h3m4s5ms", "90m", "1ms", "366d"] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string().parse(), Ok(span), "{text}");
        }
        for (text, shown) in
            [("2048", "2KiB"), ("10MB", "10MB"), ("1001", "1001"), ("1536MiB", "1536MiB"), ("1000", "1kB")]
        {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.to_string().as_str(), size.to_string().parse()), (shown, Ok(size)));
        }
    }

    #[test]
    fn guesses_the_unit_of_a_small_memory() {
        for (text, meant) in [
            ("100", Some("100M")),
            ("1000", Some("1MB")),
            ("64KiB", Some("64MiB")),
            ("100kB", Some("100MB")),
            ("2001", None),
            ("1MiB", None),
            ("1MB", None),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!(memory_meant(size).as_deref(), meant, "{text}");
        }
    }

    /// K13: a child can only narrow limits.
    #[test]
    fn k13_takes_the_smaller_limit() {
        let pids = |pids| Limits { pids, ..Limits::default() };
        assert_eq!(pids(Some(3)).min(pids(Some(5))), pids(Some(3)));
        assert_eq!(pids(None).min(pids(Some(5))), pids(Some(5)));
        assert_eq!(pids(Some(3)).min(pids(None)), pids(Some(3)));
        assert_eq!(pids(Some(3)).overridden_by(pids(Some(5))), pids(Some(5)));
        assert_eq!(pids(Some(3)).overridden_by(pids(None)), pids(Some(3)));
    }
}
