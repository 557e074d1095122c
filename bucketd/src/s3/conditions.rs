//! Conditional requests (RFC 9110 section 13) as S3 has them.

use http::header::{ETAG, LAST_MODIFIED};
use s3s::{
    S3Error, S3Result,
    dto::{ETag as WireETag, ETagCondition, Timestamp},
    s3_error,
};

use super::convert::{etag_to_wire, http_date, timestamp};
use crate::store::{ObjectInfo, TagMatch, WriteCondition};

/// An ETag condition in the store's words. A weak ETag, which a store of strong ones never gave out, matches nothing.
pub(super) fn tag_match(condition: ETagCondition) -> TagMatch {
    match condition {
        ETagCondition::Any => TagMatch::Any,
        ETagCondition::ETag(WireETag::Strong(value)) => TagMatch::Tag(value),
        ETagCondition::ETag(WireETag::Weak(value)) => TagMatch::Tag(format!("W/{value}")),
    }
}

/// The condition of a write. S3 knows `If-None-Match` only as `*` here, and not both headers at once.
pub(super) fn write_condition(
    if_match: Option<ETagCondition>,
    if_none_match: Option<ETagCondition>,
) -> S3Result<WriteCondition> {
    match (if_match, if_none_match) {
        (None, None) => Ok(WriteCondition::Always),
        (Some(tag), None) => Ok(WriteCondition::Matches(tag_match(tag))),
        (None, Some(ETagCondition::Any)) => Ok(WriteCondition::Absent),
        (None, Some(ETagCondition::ETag(_))) => {
            Err(s3_error!(NotImplemented, "If-None-Match of a write takes only *."))
        }
        (Some(_), Some(_)) => {
            Err(s3_error!(NotImplemented, "If-Match and If-None-Match exclude each other in a write."))
        }
    }
}

/// The conditions of a read.
#[derive(Debug, Default)]
pub(super) struct ReadConditions {
    pub(super) if_match: Option<ETagCondition>,
    pub(super) if_none_match: Option<ETagCondition>,
    pub(super) if_modified_since: Option<Timestamp>,
    pub(super) if_unmodified_since: Option<Timestamp>,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Answer,
    NotModified,
    Failed,
}

impl ReadConditions {
    /// Decides in the order of RFC 9110 section 13.2.2.
    fn decide(self, info: &ObjectInfo) -> Verdict {
        let modified = timestamp(info.modified);
        let failed = match (self.if_match, self.if_unmodified_since) {
            (Some(tag), _) => !tag_match(tag).holds(&info.etag),
            (None, Some(since)) => modified > since,
            (None, None) => false,
        };
        if failed {
            return Verdict::Failed;
        }
        let unmodified = match (self.if_none_match, self.if_modified_since) {
            (Some(tag), _) => tag_match(weakly(tag)).holds(&info.etag),
            (None, Some(since)) => modified <= since,
            (None, None) => false,
        };
        if unmodified { Verdict::NotModified } else { Verdict::Answer }
    }

    /// Passes, or says why the object is not answered.
    pub(super) fn check(self, info: &ObjectInfo) -> S3Result<()> {
        match self.decide(info) {
            Verdict::Answer => Ok(()),
            Verdict::NotModified => Err(not_modified(info)),
            Verdict::Failed => {
                Err(s3_error!(PreconditionFailed, "The condition does not hold for the current object."))
            }
        }
    }
}

/// `If-None-Match` compares weakly (RFC 9110 section 13.1.2).
fn weakly(condition: ETagCondition) -> ETagCondition {
    match condition {
        ETagCondition::ETag(tag) => ETagCondition::ETag(WireETag::Strong(tag.into_value())),
        ETagCondition::Any => ETagCondition::Any,
    }
}

/// 304 with the headers that a cache needs (RFC 9110 section 15.4.5).
fn not_modified(info: &ObjectInfo) -> S3Error {
    let mut error = s3_error!(NotModified);
    let mut headers = http::HeaderMap::new();
    if let Ok(etag) = etag_to_wire(&info.etag).to_http_header() {
        headers.insert(ETAG, etag);
    }
    if let Some(date) = http_date(info.modified) {
        headers.insert(LAST_MODIFIED, date);
    }
    error.set_headers(headers);
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Attributes, Millis};

    fn tag(text: &str) -> Option<ETagCondition> {
        Some(ETagCondition::parse_http_header(text.as_bytes()).unwrap())
    }

    #[test]
    fn read_conditions_follow_the_order_of_the_rfc() {
        let now = Millis::now();
        let body = crate::store::ETag::from_md5([0; 16]);
        let same = format!("\"{}\"", body.as_str());
        let weak = format!("W/{same}");
        let info = ObjectInfo { etag: body, size: 1, modified: now, attributes: Attributes::default() };
        let past = || Some(Timestamp::from(std::time::SystemTime::UNIX_EPOCH));
        let present = || Some(timestamp(now));
        let none = ReadConditions::default;
        let rows = [
            (none(), Verdict::Answer),
            (ReadConditions { if_match: tag(&same), ..none() }, Verdict::Answer),
            (ReadConditions { if_match: tag("*"), ..none() }, Verdict::Answer),
            (ReadConditions { if_match: tag(&weak), ..none() }, Verdict::Failed),
            (ReadConditions { if_match: tag("\"b\""), ..none() }, Verdict::Failed),
            (ReadConditions { if_none_match: tag(&same), ..none() }, Verdict::NotModified),
            (ReadConditions { if_none_match: tag(&weak), ..none() }, Verdict::NotModified),
            (ReadConditions { if_none_match: tag("\"b\""), ..none() }, Verdict::Answer),
            (ReadConditions { if_unmodified_since: past(), ..none() }, Verdict::Failed),
            (ReadConditions { if_unmodified_since: past(), if_match: tag(&same), ..none() }, Verdict::Answer),
            (ReadConditions { if_modified_since: present(), ..none() }, Verdict::NotModified),
            (ReadConditions { if_modified_since: past(), ..none() }, Verdict::Answer),
            (ReadConditions { if_modified_since: present(), if_none_match: tag("\"b\""), ..none() }, Verdict::Answer),
        ];
        for (conditions, expected) in rows {
            let text = format!("{conditions:?}");
            assert_eq!(conditions.decide(&info), expected, "{text}");
        }
    }
}
