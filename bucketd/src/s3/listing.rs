//! Listings, in both versions of the protocol.

use s3s::{S3Response, S3Result, dto, s3_error};

use super::{
    Answer,
    convert::{encoded, etag_to_wire, precise_timestamp},
    errors::to_s3,
};
use crate::store::{ListPage, ListQuery, Listed, MAX_KEYS, Position, Store};

pub(super) async fn version_2(store: &Store, input: dto::ListObjectsV2Input) -> Answer<dto::ListObjectsV2Output> {
    let after = match (&input.continuation_token, &input.start_after) {
        (Some(token), _) => Position::from_token(token).map_err(to_s3)?,
        (None, Some(key)) if !key.is_empty() => Position::AfterKey(key.clone()),
        (None, _) => Position::Start,
    };
    let max = page_size(input.max_keys)?;
    let query = ListQuery {
        prefix: input.prefix.clone().unwrap_or_default(),
        delimiter: delimiter(input.delimiter.as_ref()),
        after,
        max,
    };
    let page = store.list(&input.bucket, query).await.map_err(to_s3)?;
    let encoding = input.encoding_type;
    let text = |text: &String| encoded(text, encoding.as_ref());
    let count = page.objects.len() + page.prefixes.len();
    let output = dto::ListObjectsV2Output {
        prefix: Some(text(&input.prefix.unwrap_or_default())?),
        delimiter: input.delimiter.as_ref().map(text).transpose()?,
        start_after: input.start_after.as_ref().map(text).transpose()?,
        max_keys: Some(to_wire_count(max)),
        key_count: Some(to_wire_count(count)),
        continuation_token: input.continuation_token,
        is_truncated: Some(page.next.is_some()),
        next_continuation_token: page.next.as_ref().map(Position::to_token),
        contents: Some(contents(&page, encoding.as_ref())?),
        common_prefixes: Some(common_prefixes(&page, encoding.as_ref())?),
        name: Some(input.bucket),
        encoding_type: encoding,
        ..Default::default()
    };
    Ok(S3Response::new(output))
}

pub(super) async fn version_1(store: &Store, input: dto::ListObjectsInput) -> Answer<dto::ListObjectsOutput> {
    let delimiter = delimiter(input.delimiter.as_ref());
    let prefix = input.prefix.clone().unwrap_or_default();
    let max = page_size(input.max_keys)?;
    let query = ListQuery {
        after: marker_position(input.marker.as_deref(), &prefix, delimiter.as_deref()),
        prefix: prefix.clone(),
        delimiter,
        max,
    };
    let page = store.list(&input.bucket, query).await.map_err(to_s3)?;
    let encoding = input.encoding_type;
    let text = |text: &String| encoded(text, encoding.as_ref());
    let next_marker = page.next.as_ref().and_then(|next| match next {
        Position::Start => None,
        Position::AfterKey(key) => Some(key),
        Position::AfterGroup(prefix) => Some(prefix),
    });
    let output = dto::ListObjectsOutput {
        prefix: Some(text(&prefix)?),
        delimiter: input.delimiter.as_ref().map(text).transpose()?,
        marker: Some(text(&input.marker.unwrap_or_default())?),
        next_marker: next_marker.map(text).transpose()?,
        max_keys: Some(to_wire_count(max)),
        is_truncated: Some(page.next.is_some()),
        contents: Some(contents(&page, encoding.as_ref())?),
        common_prefixes: Some(common_prefixes(&page, encoding.as_ref())?),
        name: Some(input.bucket),
        encoding_type: encoding,
        ..Default::default()
    };
    Ok(S3Response::new(output))
}

/// A marker that is a common prefix of this very listing came out of its last page, and stands for all keys below it.
fn marker_position(marker: Option<&str>, prefix: &str, delimiter: Option<&str>) -> Position {
    let Some(marker) = marker.filter(|marker| !marker.is_empty()) else { return Position::Start };
    let is_group = delimiter.is_some_and(|delimiter| {
        let rest = marker.strip_prefix(prefix);
        rest.and_then(|rest| rest.find(delimiter).map(|at| at + delimiter.len() == rest.len())).unwrap_or(false)
    });
    if is_group { Position::AfterGroup(marker.to_owned()) } else { Position::AfterKey(marker.to_owned()) }
}

fn delimiter(delimiter: Option<&String>) -> Option<String> {
    delimiter.filter(|delimiter| !delimiter.is_empty()).cloned()
}

fn page_size(max_keys: Option<i32>) -> S3Result<usize> {
    let asked = usize::try_from(max_keys.unwrap_or(i32::MAX));
    Ok(asked.map_err(|_| s3_error!(InvalidArgument, "max-keys is not negative."))?.min(MAX_KEYS))
}

fn to_wire_count(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn contents(page: &ListPage, encoding: Option<&dto::EncodingType>) -> S3Result<Vec<dto::Object>> {
    page.objects.iter().map(|listed| object(listed, encoding)).collect()
}

fn object(listed: &Listed, encoding: Option<&dto::EncodingType>) -> S3Result<dto::Object> {
    Ok(dto::Object {
        key: Some(encoded(listed.key.as_str(), encoding)?),
        e_tag: Some(etag_to_wire(&listed.etag)),
        size: Some(i64::try_from(listed.size).unwrap_or(i64::MAX)),
        last_modified: Some(precise_timestamp(listed.modified)),
        storage_class: Some(dto::ObjectStorageClass::from_static(dto::ObjectStorageClass::STANDARD)),
        ..Default::default()
    })
}

fn common_prefixes(page: &ListPage, encoding: Option<&dto::EncodingType>) -> S3Result<Vec<dto::CommonPrefix>> {
    let prefixes = page.prefixes.iter();
    prefixes.map(|prefix| Ok(dto::CommonPrefix { prefix: Some(encoded(prefix, encoding)?) })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_that_is_a_common_prefix_skips_all_below_it() {
        let check = |marker: &str, expected: Position| {
            assert_eq!(marker_position(Some(marker), "p/", Some("/")), expected, "{marker}");
        };
        check("p/a/", Position::AfterGroup("p/a/".into()));
        check("p/a/b", Position::AfterKey("p/a/b".into()));
        check("p/a/b/", Position::AfterKey("p/a/b/".into()));
        check("p/a", Position::AfterKey("p/a".into()));
        check("other/", Position::AfterKey("other/".into()));
        check("", Position::Start);
    }
}
