//! How values are written: durations, sizes, ranges, lists, maps.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// A value as a layer wrote it: the file has lists and tables, everything else has text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Raw {
    Text(String),
    List(Vec<String>),
    Map(BTreeMap<String, String>),
}

/// Why a value cannot be read, and how it is written. It does not repeat the value: that may be a secret.
pub(super) type Refusal = String;

impl Raw {
    pub(super) fn text(&self) -> Result<&str, Refusal> {
        match self {
            Self::Text(text) => Ok(text.trim()),
            Self::List(_) | Self::Map(_) => Err("write one value, no list and no table".to_owned()),
        }
    }

    /// Comma-separated text or a list. White space around the items is dropped; empty items are kept for the caller to
    /// judge, except that empty text is an empty list.
    pub(super) fn list(&self) -> Result<Vec<String>, Refusal> {
        match self {
            Self::Text(text) if text.trim().is_empty() => Ok(Vec::new()),
            Self::Text(text) => Ok(text.split(',').map(|item| item.trim().to_owned()).collect()),
            Self::List(items) => Ok(items.clone()),
            Self::Map(_) => Err("write a list, no table".to_owned()),
        }
    }

    /// Comma-separated `K=V` or a table.
    pub(super) fn map(&self) -> Result<BTreeMap<String, String>, Refusal> {
        let items = match self {
            Self::Map(map) => return Ok(map.clone()),
            Self::Text(_) | Self::List(_) => self.list()?,
        };
        let mut map = BTreeMap::new();
        for item in items {
            let (key, value) =
                item.split_once('=').ok_or("write K=V, several separated by commas (in the file: a table)")?;
            if map.insert(key.trim().to_owned(), value.trim().to_owned()).is_some() {
                return Err(format!("{:?} is there twice", key.trim()));
            }
        }
        Ok(map)
    }

    pub(super) fn bool(&self) -> Result<bool, Refusal> {
        match self.text()? {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err("write true or false".to_owned()),
        }
    }

    pub(super) fn count(&self, bounds: RangeInclusive<u64>) -> Result<u64, Refusal> {
        let number: u64 = self.text()?.parse().map_err(|_| "write a whole number".to_owned())?;
        within(number, &bounds, ToString::to_string)
    }

    pub(super) fn size(&self, bounds: RangeInclusive<u64>) -> Result<u64, Refusal> {
        let bytes = parse_size(self.text()?).ok_or("write bytes, or a number with KiB, MiB or GiB, like 64MiB")?;
        within(bytes, &bounds, |bound| format!("{bound} bytes"))
    }

    pub(super) fn duration(&self, bounds: RangeInclusive<Duration>) -> Result<Duration, Refusal> {
        let duration = parse_duration(self.text()?).ok_or("write a number with its unit: 500ms, 10s, 5m, 2h or 7d")?;
        within(duration, &bounds, |bound| format!("{bound:?}"))
    }

    pub(super) fn range<N: FromStr + PartialOrd>(&self) -> Result<RangeInclusive<N>, Refusal> {
        let how = "write FIRST-LAST, both included, like 24000-31999";
        let (first, last) = self.text()?.split_once('-').ok_or(how)?;
        let number = |text: &str| text.trim().parse::<N>().map_err(|_| how.to_owned());
        let range = number(first)?..=number(last)?;
        if range.is_empty() {
            return Err("the last of the range is below its first".to_owned());
        }
        Ok(range)
    }

    pub(super) fn parsed<T: FromStr>(&self, how: &str) -> Result<T, Refusal> {
        self.text()?.parse().map_err(|_| how.to_owned())
    }
}

fn within<T: PartialOrd>(value: T, bounds: &RangeInclusive<T>, spell: impl Fn(&T) -> String) -> Result<T, Refusal> {
    if bounds.contains(&value) {
        return Ok(value);
    }
    Err(format!("it must lie from {} to {}", spell(bounds.start()), spell(bounds.end())))
}

/// Splits `64MiB` into the number and its unit.
fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim()))
}

/// A duration with its unit, as in `500ms`, `10s`, `5m`, `2h`, `7d`; a bare `0` is fine.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = number_and_unit(text)?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        "" if number == 0 => 0,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
}

/// A size in bytes, plain or with `KiB`, `MiB`, `GiB`.
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let bytes: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit() {
        for (text, millis) in [("500ms", 500), ("10s", 10_000), ("5m", 300_000), ("7d", 604_800_000), ("0", 0)] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "10", "s", "1.5s", "-1s", "10 weeks", "99999999999999999999s", "9999999999999999999d"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_size_is_bytes_or_has_a_binary_unit() {
        for (text, bytes) in [("65536", 65_536), ("64MiB", 64 << 20), ("4 GiB", 4 << 30), ("1KiB", 1024)] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for bad in ["", "MiB", "64MB", "1.5GiB", "-1", "99999999999GiB"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn lists_and_maps_are_separated_by_commas() {
        let text = |text: &str| Raw::Text(text.to_owned());
        assert_eq!(text("a, b").list().unwrap(), ["a", "b"]);
        assert!(text(" ").list().unwrap().is_empty());
        assert_eq!(text("a,,b").list().unwrap(), ["a", "", "b"]);
        let map = text("region=eu, tier=fast=er").map().unwrap();
        assert_eq!(map["region"], "eu");
        assert_eq!(map["tier"], "fast=er");
        assert!(text("a").map().is_err() && text("a=1,a=2").map().is_err());
    }

    #[test]
    fn a_range_has_both_ends_in_order() {
        let range = |text: &str| Raw::Text(text.to_owned()).range::<u16>();
        assert_eq!(range("24000-31999").unwrap(), 24_000..=31_999);
        for bad in ["", "1", "5-1", "1-70000", "a-b"] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }
}
