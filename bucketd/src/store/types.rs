//! The words of the store: keys, ETags, conditions, attributes.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use super::error::StoreError;

/// The longest key of S3, in bytes of UTF-8.
const MAX_KEY_BYTES: usize = 1024;

/// An object key: 1 to 1024 bytes of UTF-8. Ordered by its bytes, as listings are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(String);

impl ObjectKey {
    /// Checks the length.
    ///
    /// # Errors
    /// [`StoreError::KeyTooLong`] above 1024 bytes, [`StoreError::InvalidArgument`] when empty.
    pub fn parse(text: impl Into<String>) -> Result<Self, StoreError> {
        let text = text.into();
        if text.is_empty() {
            return Err(StoreError::InvalidArgument("a key has at least one byte".into()));
        }
        if text.len() > MAX_KEY_BYTES {
            return Err(StoreError::KeyTooLong);
        }
        Ok(Self(text))
    }

    /// A key as it stands in the database, checked when it was written.
    pub(super) fn from_database(bytes: Vec<u8>) -> Result<Self, StoreError> {
        String::from_utf8(bytes).map(Self).map_err(|_| StoreError::Damaged("a key is not UTF-8".into()))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The ETag of an object without its quotes: the MD5 of the body in hexadecimal, or `<md5 of the part md5s>-<parts>`.
/// Always strong (RFC 9110 section 8.8.1).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ETag(pub(super) String);

impl ETag {
    /// The value without quotes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The ETag of a body that was put in one piece.
    #[must_use]
    pub fn from_md5(md5: [u8; 16]) -> Self {
        Self(hex::encode(md5))
    }
}

/// Which ETag a condition asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TagMatch {
    /// `*`: any existing object.
    Any,
    /// The value of one strong ETag, without quotes. A weak ETag never matches (RFC 9110 section 13.1.1), so it is parsed
    /// into a value that no object has.
    Tag(String),
}

impl TagMatch {
    /// Does the object's ETag satisfy this?
    #[must_use]
    pub fn holds(&self, etag: &ETag) -> bool {
        match self {
            Self::Any => true,
            Self::Tag(wanted) => wanted == etag.as_str(),
        }
    }
}

/// The condition of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteCondition {
    /// Write whatever is there.
    Always,
    /// `If-None-Match: *`: only where nothing is.
    Absent,
    /// `If-Match`: only over this object.
    Matches(TagMatch),
}

impl WriteCondition {
    /// Decides from the ETag of the object that is there now.
    ///
    /// # Errors
    /// [`StoreError::PreconditionFailed`], or [`StoreError::NoSuchKey`] for a match on an absent key, as S3 answers it.
    pub(super) fn check(&self, current: Option<&ETag>) -> Result<(), StoreError> {
        match (self, current) {
            (Self::Always, _) | (Self::Absent, None) => Ok(()),
            (Self::Absent, Some(_)) => Err(StoreError::PreconditionFailed),
            (Self::Matches(_), None) => Err(StoreError::NoSuchKey),
            (Self::Matches(wanted), Some(etag)) if wanted.holds(etag) => Ok(()),
            (Self::Matches(_), Some(_)) => Err(StoreError::PreconditionFailed),
        }
    }
}

/// What is kept with an object besides its body, and given back as it came.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attributes {
    /// `Content-Type`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// `Cache-Control`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_control: Option<String>,
    /// `Content-Disposition`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_disposition: Option<String>,
    /// `Content-Encoding`, without `aws-chunked`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_encoding: Option<String>,
    /// `Content-Language`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_language: Option<String>,
    /// `Expires`, as an HTTP date.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// User metadata: the names without `x-amz-meta-`, in lower case.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub user: BTreeMap<String, String>,
    /// The checksums that the client sent and that were verified, in base64. Only for objects put in one request.
    #[serde(skip_serializing_if = "Checksums::is_empty")]
    pub checksums: Checksums,
}

/// Checksums of a whole body by algorithm, in base64, as S3 spells them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checksums {
    /// CRC-32 (ISO-HDLC).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crc32: Option<String>,
    /// CRC-32C (Castagnoli).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<String>,
    /// CRC-64/NVME.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crc64nvme: Option<String>,
    /// SHA-1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha1: Option<String>,
    /// SHA-256.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl Checksums {
    /// No algorithm at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An object without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its ETag.
    pub etag: ETag,
    /// Bytes of the body.
    pub size: u64,
    /// When it was written, to the millisecond.
    pub modified: Millis,
    /// What is kept with it.
    pub attributes: Attributes,
}

/// Milliseconds since the Unix epoch, never negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub(super) i64);

impl Millis {
    /// The wall clock. Used for what people read, never to decide who wins.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// As a time of the system clock.
    #[must_use]
    pub fn to_system_time(self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(self.0).unwrap_or_default())
    }

    /// The whole second, in which HTTP dates are given.
    #[must_use]
    pub fn to_seconds(self) -> i64 {
        self.0 / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_condition_decides_from_what_is_there() {
        let there = ETag("a".into());
        let tag = |value: &str| WriteCondition::Matches(TagMatch::Tag(value.into()));
        let rows = [
            (WriteCondition::Always, None, "ok"),
            (WriteCondition::Always, Some(&there), "ok"),
            (WriteCondition::Absent, None, "ok"),
            (WriteCondition::Absent, Some(&there), "PreconditionFailed"),
            (tag("a"), Some(&there), "ok"),
            (tag("b"), Some(&there), "PreconditionFailed"),
            (tag("a"), None, "NoSuchKey"),
            (WriteCondition::Matches(TagMatch::Any), Some(&there), "ok"),
            (WriteCondition::Matches(TagMatch::Any), None, "NoSuchKey"),
        ];
        for (condition, current, expected) in rows {
            let found = match condition.check(current) {
                Ok(()) => "ok".to_owned(),
                Err(error) => format!("{error:?}"),
            };
            assert_eq!(found, expected, "{condition:?} on {current:?}");
        }
    }

    #[test]
    fn key_has_1_to_1024_bytes() {
        assert!(ObjectKey::parse("é".repeat(512)).is_ok());
        assert!(matches!(ObjectKey::parse("é".repeat(513)), Err(StoreError::KeyTooLong)));
        assert!(matches!(ObjectKey::parse(""), Err(StoreError::InvalidArgument(_))));
    }
}
