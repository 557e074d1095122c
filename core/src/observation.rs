//! The name of one flush of observations: who wrote it, when, and in which hour it is filed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::NodeId;
use crate::key::prefix::OBSERVE;
use crate::time::Timestamp;

/// The first instant that has no four digits of a year: 10000-01-01T00:00:00Z.
const YEAR_10000: i64 = 253_402_300_800_000;

/// `_scafo/observe/<node>/<yyyy>/<mm>/<dd>/<hh>/<epochMs>-<seq>.parquet`. Having one proves that the hour in which it is filed is the
/// hour of its stamp, so that whoever removes or skips whole hours goes by what is in them.
///
/// Keys of one node sort by time, as long as stamps have equally many digits (until the year 2286).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObservationKey {
    at: Timestamp,
    sequence: u64,
    node: NodeId,
}

/// Why a key names no observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAnObservation {
    /// It is another object's.
    #[error("it is not named like an observation")]
    Foreign,
    /// The hour in which it is filed is not the hour of its stamp.
    #[error("its stamp is not of the hour in which it is filed")]
    Disagrees,
}

impl ObservationKey {
    /// A flush of `node` at this time; `sequence` tells flushes of one millisecond apart. `None` for a time that four digits of a
    /// year cannot name, or before 1970.
    #[must_use]
    pub fn new(node: NodeId, at: Timestamp, sequence: u64) -> Option<Self> {
        (0..YEAR_10000).contains(&at.as_millis()).then_some(Self { at, sequence, node })
    }

    /// The node that wrote it.
    #[must_use]
    pub const fn node(&self) -> &NodeId {
        &self.node
    }

    /// When it was written, by the clock of its node.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// Everything of one node, with the trailing separator.
    #[must_use]
    pub fn of_node(node: &NodeId) -> String {
        format!("{OBSERVE}{node}/")
    }

    /// What every key of `node` from the hour of `from` on sorts behind.
    #[must_use]
    pub fn behind(node: &NodeId, from: Timestamp) -> String {
        let from = Timestamp::from_millis(from.as_millis().clamp(0, YEAR_10000 - 1));
        format!("{}{}/", Self::of_node(node), partition(from))
    }
}

/// `yyyy/mm/dd/hh`, in UTC. A [`Timestamp`] of these years is spelled `yyyy-mm-ddThh:…`.
fn partition(at: Timestamp) -> String {
    at.to_string().chars().take(13).map(|c| if c.is_ascii_digit() { c } else { '/' }).collect()
}

impl fmt::Display for ObservationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, sequence, node } = self;
        write!(f, "{}{}/{}-{sequence}.parquet", Self::of_node(node), partition(*at), at.as_millis())
    }
}

impl From<ObservationKey> for String {
    fn from(key: ObservationKey) -> Self {
        key.to_string()
    }
}

impl TryFrom<String> for ObservationKey {
    type Error = NotAnObservation;

    fn try_from(text: String) -> Result<Self, NotAnObservation> {
        text.parse()
    }
}

impl FromStr for ObservationKey {
    type Err = NotAnObservation;

    fn from_str(text: &str) -> Result<Self, NotAnObservation> {
        let parts: Vec<&str> = text.strip_prefix(OBSERVE).ok_or(NotAnObservation::Foreign)?.split('/').collect();
        let [node, year, month, day, hour, file] = parts[..] else { return Err(NotAnObservation::Foreign) };
        let filed = [(year, 4), (month, 2), (day, 2), (hour, 2)];
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !filed.iter().all(|(part, width)| part.len() == *width && is_digits(part)) {
            return Err(NotAnObservation::Foreign);
        }
        let named = file.strip_suffix(".parquet").and_then(|name| name.split_once('-'));
        let (stamp, sequence) = named.ok_or(NotAnObservation::Foreign)?;
        let foreign = |_| NotAnObservation::Foreign;
        let node = node.parse().map_err(|_| NotAnObservation::Foreign)?;
        let at = Timestamp::from_millis(stamp.parse().map_err(foreign)?);
        let key = Self::new(node, at, sequence.parse().map_err(foreign)?).ok_or(NotAnObservation::Foreign)?;
        // Of the spellings of a number one is ours.
        if format!("{}-{}.parquet", at.as_millis(), key.sequence) != file {
            return Err(NotAnObservation::Foreign);
        }
        if key.to_string() == text { Ok(key) } else { Err(NotAnObservation::Disagrees) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_stamp_that_disagrees_with_its_partition_is_no_observation() {
        let stamp = at("2026-11-23T09:59:59.999Z").as_millis();
        let key = |hour: &str, file: &str| format!("{OBSERVE}a/{hour}/{file}");
        let file = format!("{stamp}-7.parquet");
        let read: ObservationKey = key("2026/11/23/09", &file).parse().unwrap();
        assert_eq!((read.node().as_str(), read.at().as_millis()), ("a", stamp));
        for hour in ["2026/11/23/10", "2026/11/23/08", "2026/11/24/09", "2026/10/23/09", "2025/11/23/09"] {
            assert_eq!(key(hour, &file).parse::<ObservationKey>(), Err(NotAnObservation::Disagrees), "{hour}");
        }
        for (hour, file) in [
            ("2026/11/23/09", "x-7.parquet"),
            ("2026/11/23/09", "7.parquet"),
            ("2026/11/23/09", "notes.txt"),
            ("2026/11/23/09", &format!("{stamp}-07.parquet")),
            ("2026/11/23/09", &format!("+{stamp}-7.parquet")),
            ("2026/11/23/09", &format!("{stamp}-7.parquet.tmp")),
            ("2026/11/23/9", &file),
            ("2026/11/23", &file),
            ("2026/11/23/09/0", &file),
            ("26/11/23/09", &file),
        ] {
            assert_eq!(key(hour, file).parse::<ObservationKey>(), Err(NotAnObservation::Foreign), "{hour} {file}");
        }
        for key in [format!("{OBSERVE}A/2026/11/23/09/{file}"), format!("_scafo/nodes/a/2026/11/23/09/{file}")] {
            assert_eq!(key.parse::<ObservationKey>(), Err(NotAnObservation::Foreign), "{key}");
        }
        assert_eq!(ObservationKey::new("a".parse().unwrap(), Timestamp::from_millis(-1), 0), None);
    }

    proptest! {
        #[test]
        fn an_observation_is_read_as_it_is_named_and_sorts_by_time(
            a in 1_000_000_000_000_i64..9_000_000_000_000, b in 1_000_000_000_000_i64..9_000_000_000_000, sequence: u64
        ) {
            let node: NodeId = "node-a".parse().unwrap();
            let key = |at| ObservationKey::new(node.clone(), Timestamp::from_millis(at), sequence).unwrap();
            prop_assert_eq!(key(a).to_string().parse::<ObservationKey>(), Ok(key(a)));
            prop_assert_eq!(key(a).to_string() < key(b).to_string(), a < b);
            prop_assert_eq!(ObservationKey::behind(&node, Timestamp::from_millis(a)) < key(b).to_string(), a - a % 3_600_000 <= b);
        }
    }
}
