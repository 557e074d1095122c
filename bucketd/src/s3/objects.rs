//! Objects: put, get, head, copy, delete.

use std::ops::Range;

use s3s::{Body, S3Request, S3Response, S3Result, dto, s3_error};

use super::{
    Answer,
    conditions::{ReadConditions, tag_match, write_condition},
    convert::{
        attributes_of, declared_checksums, etag_to_wire, expires_from_text, refuse_unsupported, set_checksums,
        timestamp,
    },
    errors::to_s3,
    intake::{Declared, receive},
};
use crate::store::{Checksums, MAX_KEYS, ObjectKey, Reading, Store, StoreError, WriteCondition};

pub(super) async fn put(store: &Store, req: S3Request<dto::PutObjectInput>) -> Answer<dto::PutObjectOutput> {
    let S3Request { mut input, headers, trailing_headers, .. } = req;
    refuse_unsupported!(
        input,
        object_lock_legal_hold_status,
        object_lock_mode,
        object_lock_retain_until_date,
        sse_customer_algorithm,
        sse_customer_key,
        ssekms_key_id,
        server_side_encryption,
        tagging,
        website_redirect_location,
        write_offset_bytes,
    );
    let key = ObjectKey::parse(input.key).map_err(to_s3)?;
    let condition = write_condition(input.if_match.take(), input.if_none_match.take())?;
    let mut attributes = attributes_of!(input);
    store.require_bucket(&input.bucket).await.map_err(to_s3)?;
    let declared = Declared {
        length: input.content_length,
        md5: input.content_md5.take(),
        checksums: declared_checksums!(input),
        headers,
        trailers: trailing_headers,
    };
    let body = receive(store, input.body.take(), declared).await?;
    attributes.checksums = body.checksums().clone();
    let checksums = attributes.checksums.clone();
    let etag = store.put(&input.bucket, key, condition, body, attributes).await.map_err(to_s3)?;
    let mut output = dto::PutObjectOutput { e_tag: Some(etag_to_wire(&etag)), ..Default::default() };
    output.checksum_type = full_object(&checksums);
    set_checksums!(output, checksums);
    Ok(S3Response::new(output))
}

fn full_object(checksums: &Checksums) -> Option<dto::ChecksumType> {
    (!checksums.is_empty()).then(|| dto::ChecksumType::from_static(dto::ChecksumType::FULL_OBJECT))
}

/// The fields that GET and HEAD share.
macro_rules! describe {
    ($output:expr, $info:expr) => {{
        let attributes = $info.attributes;
        $output.accept_ranges = Some("bytes".to_owned());
        $output.e_tag = Some(etag_to_wire(&$info.etag));
        $output.last_modified = Some(timestamp($info.modified));
        $output.content_type = Some(attributes.content_type.unwrap_or_else(|| "binary/octet-stream".to_owned()));
        $output.cache_control = attributes.cache_control;
        $output.content_disposition = attributes.content_disposition;
        $output.content_encoding = attributes.content_encoding;
        $output.content_language = attributes.content_language;
        $output.expires = expires_from_text(attributes.expires.as_deref());
        $output.metadata = Some(attributes.user.into_iter().collect());
    }};
}

pub(super) async fn get(store: &Store, mut input: dto::GetObjectInput) -> Answer<dto::GetObjectOutput> {
    refuse_unsupported!(input, part_number, sse_customer_algorithm);
    refuse_version(input.version_id.as_deref())?;
    let key = ObjectKey::parse(input.key).map_err(to_s3)?;
    let object = store.get(&input.bucket, key).await.map_err(to_s3)?;
    let conditions = ReadConditions {
        if_match: input.if_match.take(),
        if_none_match: input.if_none_match.take(),
        if_modified_since: input.if_modified_since.take(),
        if_unmodified_since: input.if_unmodified_since.take(),
    };
    conditions.check(&object.info)?;
    let size = object.info.size;
    let range = resolve(input.range, size)?;
    let mut output = dto::GetObjectOutput {
        content_length: Some(to_wire_size(range.end - range.start)),
        content_range: input.range.map(|_| format!("bytes {}-{}/{size}", range.start, range.end.saturating_sub(1))),
        ..Default::default()
    };
    if input.range.is_none() && wants_checksums(input.checksum_mode.as_ref()) {
        let checksums = object.info.attributes.checksums.clone();
        output.checksum_type = full_object(&checksums);
        set_checksums!(output, checksums);
    }
    describe!(output, object.info);
    output.content_type = input.response_content_type.or(output.content_type);
    output.cache_control = input.response_cache_control.or(output.cache_control);
    output.content_disposition = input.response_content_disposition.or(output.content_disposition);
    output.content_encoding = input.response_content_encoding.or(output.content_encoding);
    output.content_language = input.response_content_language.or(output.content_language);
    output.body = Some(match object.body.read(range) {
        Reading::Whole(bytes) => dto::StreamingBlob::from(Body::from(bytes)),
        Reading::Stream(reader) => dto::StreamingBlob::wrap(reader.into_stream()),
    });
    Ok(S3Response::new(output))
}

fn wants_checksums(mode: Option<&dto::ChecksumMode>) -> bool {
    mode.is_some_and(|mode| mode.as_str() == dto::ChecksumMode::ENABLED)
}

/// The bytes of a range, or of everything.
fn resolve(range: Option<dto::Range>, size: u64) -> S3Result<Range<u64>> {
    let Some(range) = range else { return Ok(0..size) };
    let within = range.check(size).ok().filter(|within| !within.is_empty());
    within.ok_or_else(|| {
        let mut error = s3_error!(InvalidRange, "The range lies outside the {size} bytes of the object.");
        if let Ok(value) = http::HeaderValue::try_from(format!("bytes */{size}")) {
            error.set_headers(http::HeaderMap::from_iter([(http::header::CONTENT_RANGE, value)]));
        }
        error
    })
}

fn to_wire_size(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

fn refuse_version(version: Option<&str>) -> S3Result<()> {
    match version {
        // What S3 calls the version of an object in a bucket without versions.
        None | Some("null") => Ok(()),
        Some(_) => Err(s3_error!(NotImplemented, "This store keeps no versions.")),
    }
}

pub(super) async fn head(store: &Store, mut input: dto::HeadObjectInput) -> Answer<dto::HeadObjectOutput> {
    refuse_unsupported!(input, part_number, sse_customer_algorithm);
    refuse_version(input.version_id.as_deref())?;
    let key = ObjectKey::parse(input.key).map_err(to_s3)?;
    let info = store.head(&input.bucket, key).await.map_err(to_s3)?;
    let conditions = ReadConditions {
        if_match: input.if_match.take(),
        if_none_match: input.if_none_match.take(),
        if_modified_since: input.if_modified_since.take(),
        if_unmodified_since: input.if_unmodified_since.take(),
    };
    conditions.check(&info)?;
    let mut output = dto::HeadObjectOutput { content_length: Some(to_wire_size(info.size)), ..Default::default() };
    if wants_checksums(input.checksum_mode.as_ref()) {
        let checksums = info.attributes.checksums.clone();
        output.checksum_type = full_object(&checksums);
        set_checksums!(output, checksums);
    }
    describe!(output, info);
    Ok(S3Response::new(output))
}

pub(super) async fn copy(store: &Store, mut input: dto::CopyObjectInput) -> Answer<dto::CopyObjectOutput> {
    refuse_unsupported!(
        input,
        object_lock_legal_hold_status,
        object_lock_mode,
        object_lock_retain_until_date,
        sse_customer_algorithm,
        copy_source_sse_customer_algorithm,
        ssekms_key_id,
        server_side_encryption,
        tagging,
        website_redirect_location,
    );
    let dto::CopySource::Bucket { bucket: from_bucket, key: from_key, version_id } = &input.copy_source else {
        return Err(s3_error!(NotImplemented, "A copy source is /bucket/key."));
    };
    refuse_version(version_id.as_deref())?;
    let replaces = input.metadata_directive.as_ref().is_some_and(|it| it.as_str() == dto::MetadataDirective::REPLACE);
    if !replaces && **from_bucket == *input.bucket && **from_key == *input.key {
        return Err(s3_error!(InvalidRequest, "A copy of an object onto itself has to replace its metadata."));
    }
    let key = ObjectKey::parse(input.key.as_str()).map_err(to_s3)?;
    let source = ObjectKey::parse(from_key.to_string()).map_err(to_s3)?;
    let object = store.get(from_bucket, source).await.map_err(to_s3)?;
    let conditions = ReadConditions {
        if_match: input.copy_source_if_match.take(),
        if_none_match: input.copy_source_if_none_match.take(),
        if_modified_since: input.copy_source_if_modified_since.take(),
        if_unmodified_since: input.copy_source_if_unmodified_since.take(),
    };
    // A copy knows no 304: what is not to be copied is a failed condition.
    conditions
        .check(&object.info)
        .map_err(|_| s3_error!(PreconditionFailed, "The source does not meet the condition."))?;
    let kept = object.info.attributes.clone();
    let mut attributes = if replaces { attributes_of!(input) } else { kept };
    // The bytes are the same, so what was verified of them still holds.
    attributes.checksums = object.info.attributes.checksums.clone();
    let body = store.duplicate(object).await.map_err(to_s3)?;
    let put = store.put(&input.bucket, key, WriteCondition::Always, body, attributes);
    let etag = put.await.map_err(to_s3)?;
    let result = dto::CopyObjectResult {
        e_tag: Some(etag_to_wire(&etag)),
        last_modified: Some(timestamp(crate::store::Millis::now())),
        ..Default::default()
    };
    Ok(S3Response::new(dto::CopyObjectOutput { copy_object_result: Some(result), ..Default::default() }))
}

pub(super) async fn delete(store: &Store, mut input: dto::DeleteObjectInput) -> Answer<dto::DeleteObjectOutput> {
    refuse_unsupported!(input, if_match_last_modified_time, if_match_size, mfa);
    refuse_version(input.version_id.as_deref())?;
    let key = ObjectKey::parse(input.key).map_err(to_s3)?;
    store.delete(&input.bucket, key, input.if_match.take().map(tag_match)).await.map_err(to_s3)?;
    Ok(S3Response::new(dto::DeleteObjectOutput::default()))
}

pub(super) async fn delete_many(store: &Store, input: dto::DeleteObjectsInput) -> Answer<dto::DeleteObjectsOutput> {
    refuse_unsupported!(input, mfa);
    if input.delete.objects.len() > MAX_KEYS {
        return Err(s3_error!(MalformedXML, "One request deletes at most {MAX_KEYS} objects."));
    }
    let quiet = input.delete.quiet.unwrap_or(false);
    let mut objects = Vec::with_capacity(input.delete.objects.len());
    for object in input.delete.objects {
        refuse_unsupported!(object, last_modified_time, size);
        refuse_version(object.version_id.as_deref())?;
        let condition = object.e_tag.map(|etag| tag_match(dto::ETagCondition::ETag(etag)));
        objects.push((ObjectKey::parse(object.key).map_err(to_s3)?, condition));
    }
    let keys: Vec<_> = objects.iter().map(|(key, _)| key.to_string()).collect();
    let answers = store.delete_many(&input.bucket, objects).await.map_err(to_s3)?;
    let mut output = dto::DeleteObjectsOutput::default();
    for (key, answer) in keys.into_iter().zip(answers) {
        match answer {
            Ok(()) if quiet => {}
            Ok(()) => {
                let deleted = dto::DeletedObject { key: Some(key), ..Default::default() };
                output.deleted.get_or_insert_default().push(deleted);
            }
            Err(error) => output.errors.get_or_insert_default().push(failed(key, error)),
        }
    }
    Ok(S3Response::new(output))
}

fn failed(key: String, error: StoreError) -> dto::Error {
    let error = to_s3(error);
    dto::Error {
        code: Some(error.code().as_str().to_owned()),
        message: error.message().map(str::to_owned),
        key: Some(key),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_resolves_within_the_object_or_is_refused() {
        let range = |text: &str| Some(dto::Range::parse(text).unwrap());
        let check = |text: &str, size: u64, expected: Option<Range<u64>>| {
            assert_eq!(resolve(range(text), size).ok(), expected, "{text} of {size}");
        };
        check("bytes=0-0", 10, Some(0..1));
        check("bytes=3-", 10, Some(3..10));
        check("bytes=3-99", 10, Some(3..10));
        check("bytes=-4", 10, Some(6..10));
        check("bytes=-99", 10, Some(0..10));
        check("bytes=10-", 10, None);
        check("bytes=-0", 10, None);
        check("bytes=0-", 0, None);
        check("bytes=-1", 0, None);
        assert_eq!(resolve(None, 0).ok(), Some(0..0));
    }
}
