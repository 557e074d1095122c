//! Multipart uploads.

use s3s::{S3Request, S3Response, S3Result, dto, s3_error};

use super::{
    Answer,
    conditions::write_condition,
    convert::{attributes_of, declared_checksums, etag_to_wire, precise_timestamp, refuse_unsupported, set_checksums},
    errors::to_s3,
    intake::{Declared, receive},
};
use crate::store::{NamedPart, ObjectKey, Store, UploadRef};

/// The most entries of a page of parts or uploads in S3.
const MAX_PAGE: usize = 1000;

fn reference(bucket: String, key: String, id: String) -> S3Result<UploadRef> {
    Ok(UploadRef { bucket, key: ObjectKey::parse(key).map_err(to_s3)?, id })
}

pub(super) async fn create(
    store: &Store,
    mut input: dto::CreateMultipartUploadInput,
) -> Answer<dto::CreateMultipartUploadOutput> {
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
    );
    let attributes = attributes_of!(input);
    let key = ObjectKey::parse(input.key.as_str()).map_err(to_s3)?;
    let id = store.create_upload(&input.bucket, key, attributes).await.map_err(to_s3)?;
    let output = dto::CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(id),
        ..Default::default()
    };
    Ok(S3Response::new(output))
}

pub(super) async fn upload_part(store: &Store, req: S3Request<dto::UploadPartInput>) -> Answer<dto::UploadPartOutput> {
    let S3Request { mut input, headers, trailing_headers, .. } = req;
    refuse_unsupported!(input, sse_customer_algorithm, sse_customer_key);
    let number =
        u32::try_from(input.part_number).map_err(|_| s3_error!(InvalidArgument, "A part number is not negative."))?;
    let upload = reference(input.bucket, input.key, input.upload_id)?;
    // Before the bytes are taken in, so that parts of an aborted upload do not fill the disk.
    store.require_upload(upload.clone()).await.map_err(to_s3)?;
    let declared = Declared {
        length: input.content_length,
        md5: input.content_md5.take(),
        checksums: declared_checksums!(input),
        headers,
        trailers: trailing_headers,
    };
    let body = receive(store, input.body.take(), declared).await?;
    let checksums = body.checksums().clone();
    let etag = store.put_part(upload, number, body).await.map_err(to_s3)?;
    let mut output = dto::UploadPartOutput { e_tag: Some(etag_to_wire(&etag)), ..Default::default() };
    set_checksums!(output, checksums);
    Ok(S3Response::new(output))
}

pub(super) async fn complete(
    store: &Store,
    mut input: dto::CompleteMultipartUploadInput,
) -> Answer<dto::CompleteMultipartUploadOutput> {
    let condition = write_condition(input.if_match.take(), input.if_none_match.take())?;
    let mut parts = Vec::new();
    for part in input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default() {
        let number = part.part_number.and_then(|number| u32::try_from(number).ok());
        let number = number.ok_or_else(|| s3_error!(MalformedXML, "A part of the completion has no number."))?;
        parts.push(NamedPart { number, etag: part.e_tag.map(dto::ETag::into_value) });
    }
    let upload = reference(input.bucket.clone(), input.key.clone(), input.upload_id)?;
    let etag = store.complete_upload(upload, parts, condition).await.map_err(to_s3)?;
    let output = dto::CompleteMultipartUploadOutput {
        location: Some(format!("/{}/{}", input.bucket, input.key)),
        bucket: Some(input.bucket),
        key: Some(input.key),
        e_tag: Some(etag_to_wire(&etag)),
        ..Default::default()
    };
    Ok(S3Response::new(output))
}

pub(super) async fn abort(
    store: &Store,
    input: dto::AbortMultipartUploadInput,
) -> Answer<dto::AbortMultipartUploadOutput> {
    let upload = reference(input.bucket, input.key, input.upload_id)?;
    store.abort_upload(upload).await.map_err(to_s3)?;
    Ok(S3Response::new(dto::AbortMultipartUploadOutput::default()))
}

pub(super) async fn list_parts(store: &Store, input: dto::ListPartsInput) -> Answer<dto::ListPartsOutput> {
    let upload = reference(input.bucket.clone(), input.key.clone(), input.upload_id.clone())?;
    let marker = input.part_number_marker.and_then(|marker| u32::try_from(marker).ok()).unwrap_or(0);
    let max = page(input.max_parts);
    let mut parts = store.parts(upload).await.map_err(to_s3)?;
    parts.retain(|part| part.number > marker);
    let truncated = parts.len() > max;
    parts.truncate(max);
    let next = parts.last().filter(|_| truncated).and_then(|part| i32::try_from(part.number).ok());
    let parts = parts.into_iter().map(|part| dto::Part {
        part_number: i32::try_from(part.number).ok(),
        e_tag: Some(etag_to_wire(&part.etag)),
        size: i64::try_from(part.size).ok(),
        last_modified: Some(precise_timestamp(part.modified)),
        ..Default::default()
    });
    let output = dto::ListPartsOutput {
        parts: Some(parts.collect()),
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        max_parts: i32::try_from(max).ok(),
        part_number_marker: input.part_number_marker,
        next_part_number_marker: next,
        is_truncated: Some(truncated),
        ..Default::default()
    };
    Ok(S3Response::new(output))
}

fn page(asked: Option<i32>) -> usize {
    asked.and_then(|asked| usize::try_from(asked).ok()).unwrap_or(MAX_PAGE).min(MAX_PAGE)
}

/// Uploads under way, one page: a client that cleans up aborts what it was told and asks again.
pub(super) async fn list_uploads(
    store: &Store,
    input: dto::ListMultipartUploadsInput,
) -> Answer<dto::ListMultipartUploadsOutput> {
    refuse_unsupported!(input, delimiter, key_marker, upload_id_marker);
    let prefix = input.prefix.clone().unwrap_or_default();
    let max = page(input.max_uploads);
    let mut uploads = store.uploads(&input.bucket, prefix, max + 1).await.map_err(to_s3)?;
    let truncated = uploads.len() > max;
    uploads.truncate(max);
    let uploads = uploads.into_iter().map(|upload| dto::MultipartUpload {
        key: Some(upload.key.to_string()),
        upload_id: Some(upload.id),
        initiated: Some(precise_timestamp(upload.initiated)),
        ..Default::default()
    });
    let output = dto::ListMultipartUploadsOutput {
        uploads: Some(uploads.collect()),
        bucket: Some(input.bucket),
        prefix: input.prefix,
        max_uploads: i32::try_from(max).ok(),
        is_truncated: Some(truncated),
        ..Default::default()
    };
    Ok(S3Response::new(output))
}
