//! Room for small writes on a disk that is full.
//!
//! A node on an embedded store has to write a few small records to go on at all: its heartbeat, the leases of its applications,
//! the end of a deploy that failed for want of space. So the database keeps some free pages inside of itself, and the
//! write-ahead log starts as long as it may become between two checkpoints. Both are real blocks of the file system, taken
//! while there is space; afterwards such writes need no new ones. Large bodies are files and get nothing of it.

use std::path::Path;

use rusqlite::{Connection, Transaction, TransactionBehavior};

/// What is kept: a thousand small records, and the length of the log at which SQLite checkpoints it by itself.
const RESERVE_BYTES: u64 = 4 * 1024 * 1024;
/// On a smaller disk the reserve would be what fills it. It is taken twice, in the database and in the log.
const LEAST_AVAILABLE: u64 = 8 * RESERVE_BYTES;

/// Takes the reserve, as far as the disk has it to give. A store without one works too, so a failure is only told.
pub(super) fn take(conn: &Connection, dir: &Path) {
    match available(dir) {
        Ok(bytes) if bytes >= LEAST_AVAILABLE => {
            if let Err(error) = fill(conn) {
                tracing::warn!(%error, "no room is kept for small writes on a full disk");
            }
        }
        Ok(bytes) => tracing::warn!(bytes, "little space is left: no room is kept for small writes on a full disk"),
        Err(error) => tracing::warn!(%error, "cannot see how much space is left"),
    }
}

fn available(dir: &Path) -> rustix::io::Result<u64> {
    let disk = rustix::fs::statvfs(dir)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// In two transactions: pages that are freed in the one that took them are never written. A predecessor may have ended between them.
fn fill(conn: &Connection) -> rusqlite::Result<()> {
    transaction(
        conn,
        &format!(
            "DROP TABLE IF EXISTS reserve; CREATE TABLE reserve (body BLOB);
             INSERT INTO reserve VALUES (zeroblob({RESERVE_BYTES}));"
        ),
    )?;
    transaction(conn, "DROP TABLE reserve;")?;
    // From the log into the database; the next write starts the log over, in the blocks that it has.
    conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// Rolled back where it fails: the store goes on with this connection.
fn transaction(conn: &Connection, statements: &str) -> rusqlite::Result<()> {
    let transaction = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    transaction.execute_batch(statements)?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_has_free_pages_and_the_log_its_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sqlite");
        let conn = super::super::schema::open_writer(dir.path(), &path).unwrap();
        for _ in 0..2 {
            take(&conn, dir.path());
            let free: i64 = conn.pragma_query_value(None, "freelist_count", |row| row.get(0)).unwrap();
            let page: i64 = conn.pragma_query_value(None, "page_size", |row| row.get(0)).unwrap();
            let (kept, reserve) = (u64::try_from(free * page).unwrap(), RESERVE_BYTES);
            assert!(kept >= reserve * 9 / 10 && kept < reserve * 2, "{free} pages of {page}");
            assert!(std::fs::metadata(dir.path().join("store.sqlite-wal")).unwrap().len() >= RESERVE_BYTES);
        }
    }

    fn tables(conn: &Connection) -> i64 {
        conn.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'reserve'", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn what_a_predecessor_left_that_ended_in_the_middle_is_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let conn = super::super::schema::open_writer(dir.path(), &dir.path().join("store.sqlite")).unwrap();
        conn.execute_batch("CREATE TABLE reserve (body BLOB)").unwrap();
        take(&conn, dir.path());
        assert_eq!((tables(&conn), conn.is_autocommit()), (0, true));
    }

    #[test]
    fn a_reserve_that_cannot_be_taken_leaves_no_transaction_open() {
        let dir = tempfile::tempdir().unwrap();
        let conn = super::super::schema::open_writer(dir.path(), &dir.path().join("store.sqlite")).unwrap();
        let pages: i64 = conn.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        conn.pragma_update(None, "max_page_count", pages + 10).unwrap();
        assert!(fill(&conn).is_err(), "the database is full");
        assert_eq!((tables(&conn), conn.is_autocommit()), (0, true));
    }
}
