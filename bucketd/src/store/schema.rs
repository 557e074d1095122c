//! The database: its connection settings and its tables.
//!
//! Keys are blobs, so that SQLite orders them by their UTF-8 bytes as S3 lists them. Bodies have a table of their own, so that a
//! listing never reads over them. A body is one row with the bytes, or a row for each file that it consists of.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::error::OpenError;

/// The format of the tables below. Another number in a database is refused.
const FORMAT: i64 = 1;

/// Marks the file as ours for tools such as `file`: "scbk".
const APPLICATION_ID: i64 = 0x7363_626b;

const TABLES: &str = "
CREATE TABLE bucket (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE body (
    id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    size INTEGER NOT NULL,
    data BLOB,
    file TEXT,
    UNIQUE (id, seq),
    CHECK ((data IS NULL) <> (file IS NULL))
) STRICT;
CREATE TABLE object (
    bucket INTEGER NOT NULL,
    key BLOB NOT NULL,
    etag TEXT NOT NULL,
    size INTEGER NOT NULL,
    modified_ms INTEGER NOT NULL,
    attributes TEXT NOT NULL,
    body INTEGER NOT NULL,
    PRIMARY KEY (bucket, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE upload (
    id TEXT PRIMARY KEY,
    bucket INTEGER NOT NULL,
    key BLOB NOT NULL,
    attributes TEXT NOT NULL,
    initiated_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE part (
    upload TEXT NOT NULL,
    number INTEGER NOT NULL,
    etag TEXT NOT NULL,
    size INTEGER NOT NULL,
    modified_ms INTEGER NOT NULL,
    body INTEGER NOT NULL,
    PRIMARY KEY (upload, number)
) STRICT, WITHOUT ROWID;
";

/// Opens the one connection that writes, creating the tables in an empty file.
pub(super) fn open_writer(dir: &Path, path: &Path) -> Result<Connection, OpenError> {
    let fail = || OpenError::database(path);
    let mut conn = Connection::open(path).map_err(fail())?;
    configure(&conn).map_err(fail())?;
    // A commit returns only when its log record is on the disk.
    conn.pragma_update(None, "synchronous", "FULL").map_err(fail())?;
    // After a burst the log shrinks to this again. 16 MiB is four times what the automatic checkpoint lets it grow to.
    conn.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024).map_err(fail())?;
    let found: i64 = conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(fail())?;
    match found {
        FORMAT => Ok(conn),
        0 => create(&mut conn).map_err(fail()).map(|()| conn),
        found => Err(OpenError::Format { dir: dir.to_owned(), found, known: FORMAT }),
    }
}

/// Opens a connection that only reads. It sees every transaction committed before its statement began.
pub(super) fn open_reader(path: &Path) -> Result<Connection, OpenError> {
    let fail = || OpenError::database(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(fail())?;
    configure(&conn).map_err(fail())?;
    conn.pragma_update(None, "query_only", true).map_err(fail())?;
    Ok(conn)
}

fn configure(conn: &Connection) -> rusqlite::Result<()> {
    let mode: String = conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        tracing::warn!(mode, "the file system does not carry a write-ahead log; writes will be slower");
    }
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    // More than every statement that the store prepares, so that none is compiled twice.
    conn.set_prepared_statement_cache_capacity(64);
    Ok(())
}

fn create(conn: &mut Connection) -> rusqlite::Result<()> {
    let tx = conn.transaction()?;
    tx.execute_batch(TABLES)?;
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", FORMAT)?;
    tx.commit()
}
