//! Points in time as records spell them: RFC 3339 in UTC with exactly three digits of milliseconds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A wall-clock time in whole milliseconds since the Unix epoch. It goes into records and to people; no decision about
/// authority may rest on one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From milliseconds since the Unix epoch; out of the years −9999 to 9999 it is clamped.
    pub fn from_millis(millis: i64) -> Self {
        Self(millis.clamp(jiff::Timestamp::MIN.as_millisecond(), jiff::Timestamp::MAX.as_millisecond()))
    }

    /// From milliseconds within the years 1 to 9999, for constants.
    pub const fn from_millis_const(millis: i64) -> Self {
        assert!(millis > -62_135_596_800_000 && millis < 253_402_300_800_000, "a year from 1 to 9999");
        Self(millis)
    }

    /// The same instant of a [`std::time::SystemTime`], cut to milliseconds.
    pub fn from_system(time: std::time::SystemTime) -> Self {
        match time.duration_since(std::time::UNIX_EPOCH) {
            Ok(since) => Self::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)),
            Err(before) => Self::from_millis(i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |ms| -ms)),
        }
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded down.
    pub const fn as_seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// How long after `earlier` this is; zero when it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// This instant and `duration` more.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self::from_millis(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = jiff::Timestamp::from_millisecond(self.0).map_err(|_| fmt::Error)?;
        write!(f, "{time:.3}")
    }
}

impl FromStr for Timestamp {
    type Err = NotATimestamp;

    fn from_str(text: &str) -> Result<Self, NotATimestamp> {
        let time: jiff::Timestamp = text.parse().map_err(|_| NotATimestamp)?;
        Ok(Self(time.as_millisecond()))
    }
}

/// The text is no RFC 3339 time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 time")]
pub struct NotATimestamp;

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_spelled_with_exactly_three_digits_of_milliseconds() {
        assert_eq!(Timestamp::from_millis(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::from_millis(1_775_046_600_120).to_string(), "2026-04-01T12:30:00.120Z");
    }

    #[test]
    fn a_time_reads_back_as_it_was_written() {
        for millis in [0, 1, 999, 1_775_046_600_120, -1] {
            let time = Timestamp::from_millis(millis);
            assert_eq!(time.to_string().parse(), Ok(time));
        }
        assert_eq!("2026-04-01T12:30:00Z".parse(), Ok(Timestamp::from_millis(1_775_046_600_000)));
        assert_eq!("yesterday".parse::<Timestamp>(), Err(NotATimestamp));
    }
}
