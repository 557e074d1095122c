//! Takes the body of a request in and verifies what the client said about it.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures_util::StreamExt;
use http::HeaderMap;
use s3s::{
    S3Result, TrailingHeaders,
    checksum::ChecksumHasher,
    crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256},
    dto::StreamingBlob,
    s3_error,
};

use super::{convert::checksum_fields, errors::to_s3};
use crate::store::{Checksums, MAX_BODY_BYTES, NewBody, Store};

/// How long a client may be silent within a body. The clients are on this machine and give up on a request after 15 s themselves.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// What a request declares about its body.
pub(super) struct Declared {
    pub(super) length: Option<i64>,
    pub(super) md5: Option<String>,
    pub(super) checksums: Checksums,
    pub(super) headers: HeaderMap,
    pub(super) trailers: Option<TrailingHeaders>,
}

/// Reads the body to its end. What comes back was declared truthfully and, if large, is on the disk.
pub(super) async fn receive(store: &Store, body: Option<StreamingBlob>, declared: Declared) -> S3Result<NewBody> {
    if declared.length.and_then(|length| u64::try_from(length).ok()).is_some_and(|length| length > MAX_BODY_BYTES) {
        return Err(s3_error!(EntityTooLarge, "One request carries at most 5 GiB; use a multipart upload."));
    }
    let Declared { md5, mut checksums, headers, trailers, .. } = declared;
    let announced = announced_trailers(&headers);
    let mut spool = store.spool(hasher(&mut checksums, &announced));
    if let Some(mut body) = body {
        while let Some(chunk) = tokio::time::timeout(SILENCE_LIMIT, body.next())
            .await
            .map_err(|_| s3_error!(RequestTimeout, "The body did not go on for {} s.", SILENCE_LIMIT.as_secs()))?
        {
            let chunk = chunk.map_err(|error| {
                s3_error!(IncompleteBody, "The body ended early or is not what its signature covers: {error}")
            })?;
            spool.write(&chunk).await.map_err(to_s3)?;
        }
    }
    read_trailers(&mut checksums, &announced, trailers)?;
    let body = spool.finish().await.map_err(to_s3)?;
    verify(&body, md5.as_deref(), checksums)?;
    Ok(body)
}

/// The checksums that come after the body, by header name.
fn announced_trailers(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all("x-amz-trailer").into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

/// A hasher for every algorithm that is declared now or will be.
fn hasher(declared: &mut Checksums, announced: &[String]) -> ChecksumHasher {
    let [crc32, crc32c, crc64nvme, sha1, sha256] = checksum_fields(declared)
        .map(|(name, value)| value.is_some() || announced.iter().any(|announced| announced == name));
    ChecksumHasher {
        crc32: crc32.then(Crc32::new),
        crc32c: crc32c.then(Crc32c::new),
        crc64nvme: crc64nvme.then(Crc64Nvme::new),
        sha1: sha1.then(Sha1::new),
        sha256: sha256.then(Sha256::new),
    }
}

fn read_trailers(declared: &mut Checksums, announced: &[String], trailers: Option<TrailingHeaders>) -> S3Result<()> {
    let trailers = trailers.and_then(|trailers| trailers.take()).unwrap_or_default();
    for (name, value) in checksum_fields(declared) {
        if announced.iter().any(|announced| announced == name) {
            let sent = trailers.get(name).and_then(|sent| sent.to_str().ok());
            let sent = sent.ok_or_else(|| s3_error!(InvalidRequest, "The announced trailer {name} is missing."))?;
            *value = Some(sent.trim().to_owned());
        }
    }
    Ok(())
}

fn verify(body: &NewBody, md5: Option<&str>, mut declared: Checksums) -> S3Result<()> {
    if md5.is_some_and(|md5| md5 != STANDARD.encode(body.md5())) {
        return Err(s3_error!(BadDigest, "The body does not have the declared Content-MD5."));
    }
    let mut computed = body.checksums().clone();
    for ((name, declared), (_, computed)) in
        checksum_fields(&mut declared).into_iter().zip(checksum_fields(&mut computed))
    {
        if declared.is_some() && declared != computed {
            return Err(s3_error!(BadDigest, "The body does not have the declared {name}."));
        }
    }
    Ok(())
}
