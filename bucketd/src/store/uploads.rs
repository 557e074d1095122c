//! Multipart uploads: parts collect under an upload until its completion makes them one object.

use rusqlite::{Connection, OptionalExtension, params};
use s3s::crypto::{Checksum as _, Md5};

use super::{
    error::StoreError,
    files::FileName,
    rows::{
        BodyId, BucketId, Replacement, Target, bucket_id, delete_body, from_integer, from_json, info, insert_body,
        join_bodies, replace, to_integer, to_json,
    },
    spool::NewBody,
    types::{Attributes, ETag, Millis, ObjectInfo, ObjectKey},
    writer::Change,
};

/// The highest part number of S3.
pub const MAX_PARTS: u32 = 10_000;

/// The least size of a part that is not the last, in bytes.
const MIN_PART_BYTES: u64 = 5 * 1024 * 1024;

/// How long an upload that nobody completes is kept, in milliseconds: a week, the expiry that S3 users commonly configure.
const ABANDONED_AFTER_MS: i64 = 7 * 24 * 60 * 60 * 1000;

/// A part that was uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// 1 to [`MAX_PARTS`].
    pub number: u32,
    /// The MD5 of the part.
    pub etag: ETag,
    /// Bytes.
    pub size: u64,
    /// When it was uploaded.
    pub modified: Millis,
}

/// A part as the completion names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPart {
    /// Its number.
    pub number: u32,
    /// The ETag that its upload answered, without quotes, if the client gives it.
    pub etag: Option<String>,
}

/// An upload under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// Its id.
    pub id: String,
    /// The key that it will become.
    pub key: ObjectKey,
    /// When it began.
    pub initiated: Millis,
}

/// Which upload of which object.
#[derive(Debug, Clone)]
pub struct UploadRef {
    /// The bucket.
    pub bucket: String,
    /// The key that the upload was created for.
    pub key: ObjectKey,
    /// The id that the creation answered.
    pub id: String,
}

/// Starts an upload, and drops those that were abandoned.
pub(super) fn create(
    conn: &Connection,
    upload: &UploadRef,
    attributes: &Attributes,
    now: Millis,
) -> Result<Change<()>, StoreError> {
    let bucket = bucket_id(conn, &upload.bucket)?;
    let retired = drop_abandoned(conn, now)?;
    conn.prepare_cached("INSERT INTO upload (id, bucket, key, attributes, initiated_ms) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![upload.id, bucket.0, upload.key.as_bytes(), to_json(attributes)?, now.0])?;
    Ok(Change::of(()).retire(retired))
}

fn drop_abandoned(conn: &Connection, now: Millis) -> Result<Vec<FileName>, StoreError> {
    let ids: Vec<String> = conn
        .prepare_cached("SELECT id FROM upload WHERE initiated_ms < ?1")?
        .query_map([now.0 - ABANDONED_AFTER_MS], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let mut retired = Vec::new();
    for id in ids {
        retired.extend(forget(conn, &id)?);
    }
    Ok(retired)
}

/// Checks that an upload is under way.
pub(super) fn require(conn: &Connection, upload: &UploadRef) -> Result<(), StoreError> {
    attributes(conn, upload).map(|_| ())
}

/// Finds an upload; the id alone is not enough, it must be of that bucket and key.
fn attributes(conn: &Connection, upload: &UploadRef) -> Result<Attributes, StoreError> {
    let bucket = bucket_id(conn, &upload.bucket)?;
    let text: Option<String> = conn
        .prepare_cached("SELECT attributes FROM upload WHERE id = ?1 AND bucket = ?2 AND key = ?3")?
        .query_row(params![upload.id, bucket.0, upload.key.as_bytes()], |row| row.get(0))
        .optional()?;
    from_json(&text.ok_or(StoreError::NoSuchUpload)?)
}

/// Stores a part over one of the same number.
pub(super) fn put_part(
    conn: &Connection,
    upload: &UploadRef,
    number: u32,
    body: NewBody,
    now: Millis,
) -> Result<Change<ETag>, StoreError> {
    attributes(conn, upload)?;
    let old: Option<i64> = conn
        .prepare_cached("SELECT body FROM part WHERE upload = ?1 AND number = ?2")?
        .query_row(params![upload.id, number], |row| row.get(0))
        .optional()?;
    let retired = old.map_or(Ok(Vec::new()), |body| delete_body(conn, BodyId(body)))?;
    let etag = ETag::from_md5(body.md5);
    let size = to_integer(body.size)?;
    let (body, adopted) = insert_body(conn, body)?;
    conn.prepare_cached(
        "INSERT OR REPLACE INTO part (upload, number, etag, size, modified_ms, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![upload.id, number, etag.as_str(), size, now.0, body.0])?;
    Ok(Change { value: etag, adopted, retired })
}

/// Makes the named parts one object, if the condition holds. Parts that are not named are dropped with the upload.
///
/// A completion that is repeated because its answer was lost is answered again, as long as its object stands.
pub(super) fn complete(
    conn: &Connection,
    upload: &UploadRef,
    target: &Target,
    named: &[NamedPart],
    now: Millis,
) -> Result<Change<ETag>, StoreError> {
    let attributes = match attributes(conn, upload) {
        Err(StoreError::NoSuchUpload) => return completed_before(conn, upload, named).map(Change::of),
        found => found?,
    };
    let stored = stored_parts(conn, &upload.id)?;
    let chosen = choose(&stored, named)?;
    let size = chosen.iter().map(|stored| stored.part.size).sum();
    let etag = joined_etag(chosen.iter().map(|stored| &stored.part.etag))?;
    let bodies: Vec<_> = chosen.iter().map(|stored| stored.body).collect();
    let numbers: Vec<_> = chosen.iter().map(|stored| stored.part.number).collect();
    let change = replace(conn, target, |conn| {
        let mut delete = conn.prepare_cached("DELETE FROM part WHERE upload = ?1 AND number = ?2")?;
        for number in numbers {
            delete.execute(params![upload.id, number])?;
        }
        let body = join_bodies(conn, &bodies)?;
        Ok(Replacement { info: ObjectInfo { etag, size, modified: now, attributes }, body, adopted: None })
    })?;
    let rest = forget(conn, &upload.id)?;
    Ok(change.retire(rest))
}

/// The ETag of the object, if it is the one that these parts make.
fn completed_before(conn: &Connection, upload: &UploadRef, named: &[NamedPart]) -> Result<ETag, StoreError> {
    let gone = |_| StoreError::NoSuchUpload;
    let etags: Option<Vec<_>> = named.iter().map(|part| part.etag.clone().map(ETag)).collect();
    let made = joined_etag(etags.ok_or(StoreError::NoSuchUpload)?.iter()).map_err(gone)?;
    let (info, _) = info(conn, &upload.bucket, &upload.key).map_err(gone)?;
    if info.etag == made { Ok(made) } else { Err(StoreError::NoSuchUpload) }
}

/// Drops an upload with its parts.
pub(super) fn abort(conn: &Connection, upload: &UploadRef) -> Result<Change<()>, StoreError> {
    attributes(conn, upload)?;
    let retired = forget(conn, &upload.id)?;
    Ok(Change::of(()).retire(retired))
}

fn forget(conn: &Connection, id: &str) -> Result<Vec<FileName>, StoreError> {
    let mut retired = Vec::new();
    for stored in stored_parts(conn, id)? {
        retired.extend(delete_body(conn, stored.body)?);
    }
    conn.prepare_cached("DELETE FROM part WHERE upload = ?1")?.execute([id])?;
    conn.prepare_cached("DELETE FROM upload WHERE id = ?1")?.execute([id])?;
    Ok(retired)
}

/// The parts that were uploaded so far, by number.
pub(super) fn parts(conn: &Connection, upload: &UploadRef) -> Result<Vec<Part>, StoreError> {
    attributes(conn, upload)?;
    Ok(stored_parts(conn, &upload.id)?.into_iter().map(|stored| stored.part).collect())
}

/// The uploads under way whose key begins with `prefix`, by key and age, at most `max`.
pub(super) fn under_way(
    conn: &Connection,
    bucket: BucketId,
    prefix: &str,
    max: usize,
) -> Result<Vec<Upload>, StoreError> {
    let mut statement = conn
        .prepare_cached("SELECT id, key, initiated_ms FROM upload WHERE bucket = ?1 ORDER BY key, initiated_ms, id")?;
    let mut rows = statement.query([bucket.0])?;
    let mut uploads = Vec::new();
    while let Some(row) = rows.next()?
        && uploads.len() < max
    {
        let key = ObjectKey::from_database(row.get(1)?)?;
        if key.as_str().starts_with(prefix) {
            uploads.push(Upload { id: row.get(0)?, key, initiated: Millis(row.get(2)?) });
        }
    }
    Ok(uploads)
}

struct StoredPart {
    part: Part,
    body: BodyId,
}

fn stored_parts(conn: &Connection, id: &str) -> Result<Vec<StoredPart>, StoreError> {
    let mut statement = conn
        .prepare_cached("SELECT number, etag, size, modified_ms, body FROM part WHERE upload = ?1 ORDER BY number")?;
    let mut rows = statement.query([id])?;
    let mut parts = Vec::new();
    while let Some(row) = rows.next()? {
        let part = Part {
            number: row.get(0)?,
            etag: ETag(row.get(1)?),
            size: from_integer(row.get(2)?)?,
            modified: Millis(row.get(3)?),
        };
        parts.push(StoredPart { part, body: BodyId(row.get(4)?) });
    }
    Ok(parts)
}

/// Picks the named parts out of the stored ones, which are in order of their numbers.
fn choose<'parts>(stored: &'parts [StoredPart], named: &[NamedPart]) -> Result<Vec<&'parts StoredPart>, StoreError> {
    if named.is_empty() {
        return Err(StoreError::InvalidArgument("a completion names at least one part".into()));
    }
    if !named.is_sorted_by(|left, right| left.number < right.number) {
        return Err(StoreError::InvalidPartOrder);
    }
    let mut chosen = Vec::with_capacity(named.len());
    for wanted in named {
        let at = stored.binary_search_by_key(&wanted.number, |stored| stored.part.number);
        let found = at.ok().and_then(|at| stored.get(at));
        let found = found.filter(|found| wanted.etag.as_ref().is_none_or(|etag| etag == found.part.etag.as_str()));
        chosen.push(found.ok_or(StoreError::InvalidPart(wanted.number))?);
    }
    if let Some((_, but_last)) = chosen.split_last()
        && let Some(small) = but_last.iter().find(|stored| stored.part.size < MIN_PART_BYTES)
    {
        return Err(StoreError::PartTooSmall(small.part.number));
    }
    Ok(chosen)
}

/// `<md5 of the concatenated binary md5s>-<number of parts>`.
fn joined_etag<'etag>(etags: impl Iterator<Item = &'etag ETag>) -> Result<ETag, StoreError> {
    let mut md5 = Md5::new();
    let mut count = 0;
    for etag in etags {
        let part = hex::decode(etag.as_str()).map_err(|_| StoreError::Damaged("a part has an odd ETag".into()))?;
        md5.update(&part);
        count += 1;
    }
    Ok(ETag(format!("{}-{count}", hex::encode(md5.finalize()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(number: u32, size: u64) -> StoredPart {
        let part = Part { number, etag: ETag(format!("{number:032x}")), size, modified: Millis(0) };
        StoredPart { part, body: BodyId(number.into()) }
    }

    #[test]
    fn completion_takes_the_named_parts_or_says_which_is_wrong() {
        let parts = [stored(1, MIN_PART_BYTES), stored(2, MIN_PART_BYTES - 1), stored(7, 3)];
        let check = |numbers: &[u32], expected: &str| {
            let named: Vec<_> = numbers.iter().map(|&number| NamedPart { number, etag: None }).collect();
            let found = match choose(&parts, &named) {
                Ok(chosen) => format!("{:?}", chosen.iter().map(|stored| stored.part.number).collect::<Vec<_>>()),
                Err(error) => format!("{error:?}"),
            };
            assert_eq!(found, expected, "{numbers:?}");
        };
        check(&[1, 7], "[1, 7]");
        check(&[2], "[2]");
        check(&[1, 2, 7], "PartTooSmall(2)");
        check(&[7, 1], "InvalidPartOrder");
        check(&[1, 1], "InvalidPartOrder");
        check(&[1, 3], "InvalidPart(3)");
        check(&[], "InvalidArgument(\"a completion names at least one part\")");
        let wrong = [NamedPart { number: 1, etag: Some("0".into()) }];
        assert!(matches!(choose(&parts, &wrong), Err(StoreError::InvalidPart(1))));
    }

    #[test]
    fn etag_of_a_multipart_object_is_the_md5_of_the_md5s() {
        // The md5 of the 16 bytes of md5("") is 59adb24ef3cdbe0297f05b395827453f.
        let empty = ETag("d41d8cd98f00b204e9800998ecf8427e".into());
        assert_eq!(joined_etag([&empty].into_iter()).unwrap().as_str(), "59adb24ef3cdbe0297f05b395827453f-1");
    }
}
