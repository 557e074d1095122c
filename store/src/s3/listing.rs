//! One page of `ListObjectsV2`, checked for what the cache builds on.

use std::borrow::Cow;

use aws_sdk_s3::{operation::list_objects_v2::ListObjectsV2Output, types::EncodingType};

use super::{
    CALL, S3Bucket,
    answer::{self, Failure},
    at, wire,
};
use crate::{ETag, Error, ListRequest, Listed, PAGE_KEYS_MAX, Page, PageToken, TITLE_ETAGS, TITLE_LISTING};

pub(super) async fn page(bucket: &S3Bucket, request: ListRequest<'_>) -> Result<Page, Error> {
    let at = at("list", request.prefix);
    let trace = bucket.trace();
    let call = bucket
        .client
        .list_objects_v2()
        .bucket(&bucket.name)
        .prefix(bucket.full(request.prefix))
        .max_keys(i32::from(request.limit.clamp(1, PAGE_KEYS_MAX)))
        // Without it one key with a control character makes the whole page unreadable XML.
        .encoding_type(EncodingType::Url)
        .set_delimiter(request.delimited.then(|| "/".to_owned()))
        .set_start_after(request.start_after.map(|key| bucket.full(key)))
        .set_continuation_token(request.token.map(|token| token.0.clone()));
    match wire::ask(CALL, call.customize().interceptor(trace.clone()).send(), &trace).await {
        Ok(output) => read(&output, &bucket.prefix, request.prefix, &trace),
        // A success that is no listing: a page of somebody else's.
        Err(Failure::Answer(answer)) if answer.status < 300 => Err(no_listing(request.prefix)),
        Err(failure) => {
            answer::of_other(failure, at)?;
            Err(Error::Rejected {
                operation: at.operation,
                key: request.prefix.to_owned(),
                code: "not found".to_owned(),
            })
        }
    }
}

fn read(output: &ListObjectsV2Output, root: &str, prefix: &str, trace: &wire::Trace) -> Result<Page, Error> {
    let encoded = output.encoding_type() == Some(&EncodingType::Url);
    let date = trace.date();
    // An answer that is no listing (a page of HTML with status 200) parses as an empty one; a listing names its bucket.
    if output.name().is_none() && output.is_truncated().is_none() && output.key_count().is_none() {
        return Err(no_listing(prefix));
    }
    let mut page = Page { date, ..Page::default() };
    for object in output.contents() {
        let Some(key) = object.key().map(|key| decode(key, encoded)) else { continue };
        // What is not under our prefix was not asked for.
        let Some(key) = key.strip_prefix(root) else { continue };
        let Some(etag) = object.e_tag().and_then(ETag::parse) else {
            return Err(Error::nonconforming(
                TITLE_ETAGS,
                format!("the listing of `{prefix}` has no ETag for `{key}`"),
            ));
        };
        page.entries.push(Listed {
            key: key.to_owned(),
            etag,
            size: object.size().and_then(|size| u64::try_from(size).ok()).unwrap_or_default(),
            last_modified: wire::time(object.last_modified()),
            date,
        });
    }
    for folded in output.common_prefixes() {
        let Some(folded) = folded.prefix().map(|folded| decode(folded, encoded)) else { continue };
        page.prefixes.extend(folded.strip_prefix(root).map(str::to_owned));
    }
    page.next = output.next_continuation_token().map(|token| PageToken(token.to_owned()));
    match output.is_truncated() {
        Some(true) if page.next.is_none() => Err(Error::nonconforming(
            TITLE_LISTING,
            format!("the listing of `{prefix}` says that it is cut short and not where to go on"),
        )),
        Some(true) => Ok(page),
        Some(false) | None => Ok(Page { next: None, ..page }),
    }
}

fn no_listing(prefix: &str) -> Error {
    let detail = format!("the answer to a listing of `{prefix}` is none of S3's: check `bucket.endpoint`");
    Error::nonconforming(TITLE_LISTING, detail)
}

/// The key behind `encoding-type=url`, where S3 writes a space as `+`. What is no valid encoding stays as it came: it can
/// be no key of ours then.
fn decode(text: &str, encoded: bool) -> Cow<'_, str> {
    if !encoded || !text.contains(['%', '+']) {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let hex = bytes.get(index + 1..index + 3).and_then(|pair| {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|b| b.is_ascii_hexdigit()))?;
            u8::from_str_radix(pair, 16).ok()
        });
        match (bytes[index], hex) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                index += 3;
            }
            (b'+', _) => {
                decoded.push(b' ');
                index += 1;
            }
            (byte, _) => {
                decoded.push(byte);
                index += 1;
            }
        }
    }
    match String::from_utf8(decoded) {
        Ok(decoded) => Cow::Owned(decoded),
        Err(_) => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_listing_are_decoded_only_when_they_are_encoded() {
        assert_eq!(decode("a%2Fb+c%C3%BC%2B", true), "a/b cü+");
        assert_eq!(decode("a%2Fb+c", false), "a%2Fb+c");
        assert_eq!(decode("100%", true), "100%");
        assert_eq!(decode("%zz%4", true), "%zz%4");
        assert_eq!(decode("%ff", true), "%ff");
    }
}
