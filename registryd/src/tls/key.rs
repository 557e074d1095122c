//! Keys of certificate storage, and names of its locks, which follow the same rule.

use std::{fmt, str::FromStr};

use scafo_core::{Problem, ProblemCode, key::prefix};

/// Longest key. S3 takes 1,024 bytes in all; the registry's own prefix takes 19 and the bucket's may take 100.
const KEY_BYTES_MAX: usize = 900;

/// A key as its client spells it: relative, of printable ASCII, with no empty, `.` or `..` segment. So it can never leave
/// the prefix that it is put under.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageKey(String);

impl StorageKey {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where the value stands.
    pub(super) fn object(&self) -> String {
        format!("{}{}", prefix::TLS_OBJECTS, self.0)
    }

    /// What all keys beneath it start with in the bucket.
    pub(super) fn beneath(&self) -> String {
        format!("{}{}/", prefix::TLS_OBJECTS, self.0)
    }

    /// Where the lock of this name stands.
    pub(super) fn lock(&self) -> String {
        format!("{}{}", prefix::TLS_LOCKS, self.0)
    }

    /// The key of an object; `None` for what no client can have put there.
    pub(super) fn of_object(key: &str) -> Option<Self> {
        key.strip_prefix(prefix::TLS_OBJECTS)?.parse().ok()
    }
}

impl FromStr for StorageKey {
    type Err = Problem;

    /// # Errors
    /// `invalid-input` naming the rule that the text breaks.
    fn from_str(text: &str) -> Result<Self, Problem> {
        let broken = if text.len() > KEY_BYTES_MAX {
            Some("it is longer than 900 characters")
        } else if !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            Some("it has a character that is not printable ASCII")
        } else if text.split('/').any(str::is_empty) {
            Some("it has an empty segment, or a slash at an end")
        } else if text.split('/').any(|segment| matches!(segment, "." | "..")) {
            Some("it has a segment `.` or `..`")
        } else {
            None
        };
        match broken {
            None => Ok(Self(text.to_owned())),
            Some(rule) => {
                let detail = format!("a storage key is refused: {rule}");
                Err(Problem::new(ProblemCode::InvalidInput, detail).titled("Invalid storage key"))
            }
        }
    }
}

impl fmt::Display for StorageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relative_printable_keys_pass() {
        let longest = "x".repeat(KEY_BYTES_MAX);
        for good in ["a", "a/b", "acme/x.example/x.crt", "a b", "~!%2F", "...", "a/.b", "..a", longest.as_str()] {
            assert_eq!(good.parse::<StorageKey>().unwrap().as_str(), good);
        }
        let long = "x".repeat(1500);
        for bad in
            ["", "/", "/a", "a/", "a//b", "../x", "a/../b", ".", "a/.", "a\0b", "a\nb", "ä", "\x7f", long.as_str()]
        {
            let refused = bad.parse::<StorageKey>().unwrap_err();
            assert_eq!((refused.code, refused.title()), (ProblemCode::InvalidInput, "Invalid storage key"), "{bad:?}");
        }
    }
}
