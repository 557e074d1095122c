//! What can go wrong in the store, told apart by what the caller may do about it.

use std::{io, path::PathBuf, sync::Arc};

use rusqlite::ErrorCode;

/// Why an operation was refused or failed. The S3 layer turns each into one S3 error code.
///
/// The causes are shared because one failed commit answers every write of its group.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No bucket of that name.
    #[error("the bucket does not exist")]
    NoSuchBucket,
    /// No object under that key, where the operation needs one.
    #[error("the key does not exist")]
    NoSuchKey,
    /// The condition of the request does not hold; nothing was changed.
    #[error("the condition of the request does not hold for the current object")]
    PreconditionFailed,
    /// The upload was never created, is completed, or was aborted.
    #[error("the multipart upload does not exist, was completed or was aborted")]
    NoSuchUpload,
    /// The part was not uploaded, or its ETag is another one.
    #[error("part {0} was not uploaded, or with another ETag")]
    InvalidPart(u32),
    /// The parts of a completion are not in ascending order.
    #[error("the parts are not listed in ascending order")]
    InvalidPartOrder,
    /// A part that is not the last is smaller than S3 allows (5 MiB).
    #[error("part {0} is smaller than 5 MiB and is not the last one")]
    PartTooSmall(u32),
    /// A key, name or number outside its bounds; says which.
    #[error("{0}")]
    InvalidArgument(String),
    /// The key is longer than 1024 bytes.
    #[error("the key is longer than 1024 bytes")]
    KeyTooLong,
    /// The body exceeds what one request may carry (5 GiB).
    #[error("the body is larger than 5 GiB")]
    BodyTooLarge,
    /// There is no room for the write, or the file system refuses it. Nothing was written; the same request succeeds once
    /// there is room again, without a restart.
    #[error(
        "the disk of the bucket refuses the write (full, over quota or beyond the file size limit); nothing was written"
    )]
    NoSpace,
    /// The store is shutting down.
    #[error("the store is shutting down")]
    Closed,
    /// The database failed in a way that is not the caller's fault.
    #[error("the database of the bucket failed")]
    Database(#[source] Arc<rusqlite::Error>),
    /// A body file could not be read or written.
    #[error("a body file of the bucket failed")]
    File(#[source] Arc<io::Error>),
    /// What is on disk contradicts itself: not a race, a damaged directory.
    #[error("the bucket's data is damaged: {0}")]
    Damaged(String),
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error() {
            Some(cause) if is_no_space(*cause) => Self::NoSpace,
            Some(_) | None => Self::Database(Arc::new(error)),
        }
    }
}

/// SQLite knows only ENOSPC as "full"; a quota (EDQUOT) and a file size limit (EFBIG) surface as failed writes.
fn is_no_space(error: rusqlite::ffi::Error) -> bool {
    use rusqlite::ffi::{SQLITE_IOERR_SHMSIZE, SQLITE_IOERR_WRITE};
    error.code == ErrorCode::DiskFull || [SQLITE_IOERR_WRITE, SQLITE_IOERR_SHMSIZE].contains(&error.extended_code)
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => Self::NoSpace,
            _ => Self::File(Arc::new(error)),
        }
    }
}

/// Why a directory could not be opened as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process holds the directory.
    #[error(
        "{dir} is in use by another scafo-bucketd{holder}; stop that one first, or choose another directory",
        dir = dir.display()
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// ` (pid N)` when the other one wrote its pid, else empty.
        holder: String,
    },
    /// The directory was written by a version that this one does not know.
    #[error(
        "{dir} holds a store of format {found}, this scafo-bucketd knows format {known}; use the version that wrote it",
        dir = dir.display()
    )]
    Format {
        /// The directory.
        dir: PathBuf,
        /// The format on disk.
        found: i64,
        /// The format of this version.
        known: i64,
    },
    /// The file system refused something.
    #[error("cannot {what} {path}", path = path.display())]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The database could not be opened.
    #[error("cannot open the database {path}", path = path.display())]
    Database {
        /// The database file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: rusqlite::Error,
    },
}

impl OpenError {
    pub(super) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    pub(super) fn database(path: impl Into<PathBuf>) -> impl FnOnce(rusqlite::Error) -> Self {
        let path = path.into();
        move |source| Self::Database { path, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sqlite(extended: i32) -> StoreError {
        rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(extended), None).into()
    }

    #[test]
    fn every_way_to_run_out_of_room_is_no_space() {
        for code in [rusqlite::ffi::SQLITE_FULL, rusqlite::ffi::SQLITE_IOERR_WRITE, rusqlite::ffi::SQLITE_IOERR_SHMSIZE]
        {
            assert!(matches!(sqlite(code), StoreError::NoSpace), "{code}");
        }
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge] {
            assert!(matches!(StoreError::from(io::Error::from(kind)), StoreError::NoSpace), "{kind}");
        }
        assert!(matches!(sqlite(rusqlite::ffi::SQLITE_CORRUPT), StoreError::Database(_)));
    }
}
