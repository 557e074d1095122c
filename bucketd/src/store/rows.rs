//! Objects and bodies as rows. Functions of a connection: what they see and change belongs to the caller's transaction.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    body::{Segment, Stored},
    error::StoreError,
    files::{FileName, PendingFile},
    spool::{Content, NewBody},
    types::{Attributes, ETag, Millis, ObjectInfo, ObjectKey, TagMatch, WriteCondition},
    writer::Change,
};

/// The row number of a bucket.
#[derive(Debug, Clone, Copy)]
pub(super) struct BucketId(pub(super) i64);

/// The row number that the rows of one body share.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyId(pub(super) i64);

/// Finds a bucket.
pub(super) fn bucket_id(conn: &Connection, name: &str) -> Result<BucketId, StoreError> {
    conn.prepare_cached("SELECT id FROM bucket WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()?
        .map(BucketId)
        .ok_or(StoreError::NoSuchBucket)
}

/// What a write needs to know of the object that is there.
struct Current {
    etag: ETag,
    body: BodyId,
}

fn current(conn: &Connection, bucket: BucketId, key: &ObjectKey) -> Result<Option<Current>, StoreError> {
    let found = conn
        .prepare_cached("SELECT etag, body FROM object WHERE bucket = ?1 AND key = ?2")?
        .query_row(params![bucket.0, key.as_bytes()], |row| {
            Ok(Current { etag: ETag(row.get(0)?), body: BodyId(row.get(1)?) })
        })
        .optional()?;
    Ok(found)
}

/// Where an object goes and under which condition.
pub(super) struct Target {
    pub(super) bucket: String,
    pub(super) key: ObjectKey,
    pub(super) condition: WriteCondition,
}

/// Writes an object over whatever is there, if the condition holds.
pub(super) fn put(
    conn: &Connection,
    target: &Target,
    body: NewBody,
    attributes: &Attributes,
    now: Millis,
) -> Result<Change<ETag>, StoreError> {
    let etag = ETag::from_md5(body.md5);
    let size = body.size;
    replace(conn, target, |conn| {
        let (body, adopted) = insert_body(conn, body)?;
        let info = ObjectInfo { etag: etag.clone(), size, modified: now, attributes: attributes.clone() };
        Ok(Replacement { info, body, adopted })
    })
}

/// What takes an object's place.
pub(super) struct Replacement {
    pub(super) info: ObjectInfo,
    pub(super) body: BodyId,
    pub(super) adopted: Option<PendingFile>,
}

/// Decides the condition, lets `make` build the new object, and retires the old body.
pub(super) fn replace(
    conn: &Connection,
    target: &Target,
    make: impl FnOnce(&Connection) -> Result<Replacement, StoreError>,
) -> Result<Change<ETag>, StoreError> {
    let bucket = bucket_id(conn, &target.bucket)?;
    let current = current(conn, bucket, &target.key)?;
    target.condition.check(current.as_ref().map(|current| &current.etag))?;
    let retired = current.map_or(Ok(Vec::new()), |current| delete_body(conn, current.body))?;
    let Replacement { info, body, adopted } = make(conn)?;
    conn.prepare_cached(
        "INSERT OR REPLACE INTO object (bucket, key, etag, size, modified_ms, attributes, body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![
        bucket.0,
        target.key.as_bytes(),
        info.etag.as_str(),
        to_integer(info.size)?,
        info.modified.0,
        to_json(&info.attributes)?,
        body.0
    ])?;
    Ok(Change { value: info.etag, adopted, retired })
}

/// Deletes an object. One that is not there counts as deleted, with a condition too.
pub(super) fn delete(
    conn: &Connection,
    bucket: BucketId,
    key: &ObjectKey,
    condition: Option<&TagMatch>,
) -> Result<Vec<FileName>, StoreError> {
    let Some(current) = current(conn, bucket, key)? else { return Ok(Vec::new()) };
    if condition.is_some_and(|wanted| !wanted.holds(&current.etag)) {
        return Err(StoreError::PreconditionFailed);
    }
    conn.prepare_cached("DELETE FROM object WHERE bucket = ?1 AND key = ?2")?
        .execute(params![bucket.0, key.as_bytes()])?;
    delete_body(conn, current.body)
}

/// Finds an object and the number of its body.
pub(super) fn info(conn: &Connection, bucket: &str, key: &ObjectKey) -> Result<(ObjectInfo, BodyId), StoreError> {
    let bucket = bucket_id(conn, bucket)?;
    let (row, attributes) = conn
        .prepare_cached("SELECT etag, size, modified_ms, body, attributes FROM object WHERE bucket = ?1 AND key = ?2")?
        .query_row(params![bucket.0, key.as_bytes()], |row| Ok((head(row)?, row.get::<_, String>(4)?)))
        .optional()?
        .ok_or(StoreError::NoSuchKey)?;
    let (etag, size, modified, body) = row;
    let attributes = from_json(&attributes)?;
    Ok((ObjectInfo { etag, size: from_integer(size)?, modified, attributes }, body))
}

fn head(row: &Row<'_>) -> rusqlite::Result<(ETag, i64, Millis, BodyId)> {
    Ok((ETag(row.get(0)?), row.get(1)?, Millis(row.get(2)?), BodyId(row.get(3)?)))
}

/// Finds what a body consists of.
pub(super) fn stored(conn: &Connection, body: BodyId) -> Result<Stored, StoreError> {
    let mut statement = conn.prepare_cached("SELECT size, data, file FROM body WHERE id = ?1 ORDER BY seq")?;
    let mut rows = statement.query([body.0])?;
    let mut segments = Vec::new();
    while let Some(row) = rows.next()? {
        if let Some(data) = row.get::<_, Option<Vec<u8>>>(1)? {
            return Ok(Stored::Inline(Bytes::from(data)));
        }
        segments.push(Segment { file: file_name(&row.get::<_, String>(2)?)?, size: from_integer(row.get(0)?)? });
    }
    if segments.is_empty() {
        return Err(StoreError::Damaged(format!("body {} has no rows", body.0)));
    }
    Ok(Stored::Files(segments))
}

fn next_body(conn: &Connection) -> Result<BodyId, StoreError> {
    let mut statement = conn.prepare_cached("SELECT coalesce(max(id), 0) + 1 FROM body")?;
    Ok(BodyId(statement.query_row([], |row| row.get(0))?))
}

/// Stores a body. The file, if it is one, must be kept after the commit.
pub(super) fn insert_body(conn: &Connection, body: NewBody) -> Result<(BodyId, Option<PendingFile>), StoreError> {
    let id = next_body(conn)?;
    let size = to_integer(body.size)?;
    let mut statement =
        conn.prepare_cached("INSERT INTO body (id, seq, size, data, file) VALUES (?1, 0, ?2, ?3, ?4)")?;
    match body.content {
        Content::Inline(data) => {
            statement.execute(params![id.0, size, data, None::<String>])?;
            Ok((id, None))
        }
        Content::File(file) => {
            statement.execute(params![id.0, size, None::<Vec<u8>>, file.name().as_str()])?;
            Ok((id, Some(file)))
        }
    }
}

/// Joins bodies into a new one, in order, without touching their bytes. The old numbers are gone afterwards.
pub(super) fn join_bodies(conn: &Connection, parts: &[BodyId]) -> Result<BodyId, StoreError> {
    let id = next_body(conn)?;
    let mut take = conn.prepare_cached("UPDATE body SET id = ?1, seq = ?2 WHERE id = ?3")?;
    for (seq, part) in parts.iter().enumerate() {
        let seq = i64::try_from(seq).map_err(|_| StoreError::InvalidArgument("too many parts".into()))?;
        take.execute(params![id.0, seq, part.0])?;
    }
    Ok(id)
}

/// Deletes the rows of a body and names the files that must go after the commit.
pub(super) fn delete_body(conn: &Connection, body: BodyId) -> Result<Vec<FileName>, StoreError> {
    let mut files = Vec::new();
    {
        let mut statement = conn.prepare_cached("SELECT file FROM body WHERE id = ?1 AND file IS NOT NULL")?;
        let mut rows = statement.query([body.0])?;
        while let Some(row) = rows.next()? {
            files.push(file_name(&row.get::<_, String>(0)?)?);
        }
    }
    conn.prepare_cached("DELETE FROM body WHERE id = ?1")?.execute([body.0])?;
    Ok(files)
}

fn file_name(text: &str) -> Result<FileName, StoreError> {
    FileName::parse(text).ok_or_else(|| StoreError::Damaged("a body file has an impossible name".into()))
}

pub(super) fn to_integer(size: u64) -> Result<i64, StoreError> {
    i64::try_from(size).map_err(|_| StoreError::BodyTooLarge)
}

pub(super) fn from_integer(size: i64) -> Result<u64, StoreError> {
    u64::try_from(size).map_err(|_| StoreError::Damaged("a size is negative".into()))
}

pub(super) fn to_json(attributes: &Attributes) -> Result<String, StoreError> {
    serde_json::to_string(attributes).map_err(|error| StoreError::InvalidArgument(error.to_string()))
}

pub(super) fn from_json(text: &str) -> Result<Attributes, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Damaged(format!("attributes: {error}")))
}
