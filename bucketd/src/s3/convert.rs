//! Between the types of the wire and those of the store.

use std::time::{Duration, SystemTime};

use http::HeaderValue;
use s3s::{
    S3Result,
    dto::{ETag as WireETag, EncodingType, Metadata, Timestamp, TimestampFormat},
    s3_error,
};

use crate::store::{Checksums, ETag, Millis};

/// What S3 allows for the names and values of user metadata together, in bytes.
const MAX_USER_METADATA_BYTES: usize = 2048;

pub(super) fn etag_to_wire(etag: &ETag) -> WireETag {
    WireETag::Strong(etag.as_str().to_owned())
}

/// A time as HTTP gives it, to the second, so that conditions compare what clients were told.
pub(super) fn timestamp(at: Millis) -> Timestamp {
    let seconds = u64::try_from(at.to_seconds()).unwrap_or_default();
    Timestamp::from(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// A time to the millisecond, as listings give it.
pub(super) fn precise_timestamp(at: Millis) -> Timestamp {
    Timestamp::from(at.to_system_time())
}

pub(super) fn http_date(at: Millis) -> Option<HeaderValue> {
    let mut text = Vec::new();
    timestamp(at).format(TimestampFormat::HttpDate, &mut text).ok()?;
    HeaderValue::from_bytes(&text).ok()
}

pub(super) fn expires_to_text(expires: Option<&Timestamp>) -> Option<String> {
    let mut text = Vec::new();
    expires?.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

pub(super) fn expires_from_text(text: Option<&str>) -> Option<Timestamp> {
    Timestamp::parse(TimestampFormat::HttpDate, text?).ok()
}

/// User metadata within its bound.
pub(super) fn user_metadata(metadata: Option<Metadata>) -> S3Result<std::collections::BTreeMap<String, String>> {
    let metadata = metadata.unwrap_or_default();
    let bytes: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > MAX_USER_METADATA_BYTES {
        return Err(s3_error!(
            MetadataTooLarge,
            "User metadata has at most {MAX_USER_METADATA_BYTES} bytes, not {bytes}."
        ));
    }
    Ok(metadata.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect())
}

/// Takes [`crate::store::Attributes`] out of an input that has the usual fields.
macro_rules! attributes_of {
    ($input:expr) => {
        $crate::store::Attributes {
            content_type: $input.content_type.take(),
            cache_control: $input.cache_control.take(),
            content_disposition: $input.content_disposition.take(),
            content_encoding: $crate::s3::convert::stored_encoding($input.content_encoding.take()),
            content_language: $input.content_language.take(),
            expires: $crate::s3::convert::expires_to_text($input.expires.as_ref()),
            user: $crate::s3::convert::user_metadata($input.metadata.take())?,
            checksums: $crate::store::Checksums::default(),
        }
    };
}
pub(super) use attributes_of;

/// Refuses what the store would have to ignore: a caller that asks for encryption or a lock must not believe that it got it.
macro_rules! refuse_unsupported {
    ($input:expr, $($field:ident),+ $(,)?) => {
        $(if $input.$field.is_some() {
            return Err(s3s::s3_error!(NotImplemented, "This store has no {}.", stringify!($field)));
        })+
    };
}
pub(super) use refuse_unsupported;

/// `aws-chunked` describes the request, not the object.
pub(super) fn stored_encoding(encoding: Option<String>) -> Option<String> {
    let encoding = encoding?;
    let kept: Vec<_> = encoding
        .split(',')
        .map(str::trim)
        .filter(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("aws-chunked"))
        .collect();
    (!kept.is_empty()).then(|| kept.join(","))
}

/// Sets the checksum fields of an output from the store's.
macro_rules! set_checksums {
    ($output:expr, $checksums:expr) => {{
        let crate::store::Checksums { crc32, crc32c, crc64nvme, sha1, sha256 } = $checksums;
        $output.checksum_crc32 = crc32;
        $output.checksum_crc32c = crc32c;
        $output.checksum_crc64nvme = crc64nvme;
        $output.checksum_sha1 = sha1;
        $output.checksum_sha256 = sha256;
    }};
}
pub(super) use set_checksums;

/// Takes the checksums that an input declares.
macro_rules! declared_checksums {
    ($input:expr) => {
        $crate::store::Checksums {
            crc32: $input.checksum_crc32.take(),
            crc32c: $input.checksum_crc32c.take(),
            crc64nvme: $input.checksum_crc64nvme.take(),
            sha1: $input.checksum_sha1.take(),
            sha256: $input.checksum_sha256.take(),
        }
    };
}
pub(super) use declared_checksums;

/// The algorithms by the name of their header, for reading and comparing them alike.
pub(super) fn checksum_fields(checksums: &mut Checksums) -> [(&'static str, &mut Option<String>); 5] {
    [
        ("x-amz-checksum-crc32", &mut checksums.crc32),
        ("x-amz-checksum-crc32c", &mut checksums.crc32c),
        ("x-amz-checksum-crc64nvme", &mut checksums.crc64nvme),
        ("x-amz-checksum-sha1", &mut checksums.sha1),
        ("x-amz-checksum-sha256", &mut checksums.sha256),
    ]
}

/// A text of a listing in the encoding that the request asks for.
pub(super) fn encoded(text: &str, encoding: Option<&EncodingType>) -> S3Result<String> {
    match encoding.map(EncodingType::as_str) {
        None => Ok(text.to_owned()),
        Some(EncodingType::URL) => Ok(percent_encoded(text)),
        Some(_) => Err(s3_error!(InvalidArgument, "encoding-type is url or absent.")),
    }
}

/// Percent-encodes everything but the unreserved characters of RFC 3986 section 2.3 and the slash.
fn percent_encoded(text: &str) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                encoded.push(char::from(byte));
            }
            byte => write!(encoded, "%{byte:02X}").expect("writing to a String does not fail"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_encoding_keeps_slashes_and_encodes_bytes() {
        assert_eq!(percent_encoded("a b/ü+~"), "a%20b/%C3%BC%2B~");
    }

    #[test]
    fn aws_chunked_is_not_kept_as_an_encoding() {
        for (sent, kept) in [("aws-chunked", None), ("aws-chunked,gzip", Some("gzip")), ("gzip", Some("gzip"))] {
            assert_eq!(stored_encoding(Some(sent.into())).as_deref(), kept, "{sent}");
        }
    }
}
