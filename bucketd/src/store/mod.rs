//! The store: buckets, objects and uploads in one directory.
//!
//! Kept true: an answered write is on the disk; a reader sees a write whole or not at all, and sees it as soon as it is
//! answered; of conditional writes that race, one wins; a failed write changes nothing and leaves no file behind; one process
//! owns the directory.
//!
//! `store.sqlite` holds keys, attributes and small bodies, `bodies/` the large ones, `lock` the claim on the directory.

mod body;
mod error;
mod files;
mod list;
mod lock;
mod reserve;
mod rows;
mod schema;
mod spool;
mod types;
mod uploads;
mod writer;

use std::{
    collections::HashSet,
    fs,
    os::unix::fs::DirBuilderExt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use rusqlite::Connection;
use s3s::checksum::ChecksumHasher;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::{
    body::Stored,
    files::{FileName, Files},
    lock::DirectoryLock,
    rows::Target,
    spool::{Content, blocking},
    writer::{Change, Writer},
};
pub use self::{
    body::{Body, FileReader, Reading},
    error::{OpenError, StoreError},
    list::{ListPage, ListQuery, Listed, MAX_KEYS, Position},
    spool::{MAX_BODY_BYTES, NewBody, Spool},
    types::{Attributes, Checksums, ETag, Millis, ObjectInfo, ObjectKey, TagMatch, WriteCondition},
    uploads::{MAX_PARTS, NamedPart, Part, Upload, UploadRef},
};

/// Reads at the same time. Each is a lookup or one page of a listing, a matter of microseconds, so four keep the two to eight cores of
/// a small node busy.
const READERS: usize = 4;

/// Buckets in one store: what S3 allowed an account for long, and far more than the one that a node has.
const MAX_BUCKETS: usize = 100;

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// When it was created.
    pub created: Millis,
}

/// An object with its body.
pub struct Object {
    /// What is known of it.
    pub info: ObjectInfo,
    /// Its body, of `info.size` bytes.
    pub body: Body,
}

/// An open store. Clones share it; it closes when the last one is dropped.
#[derive(Clone)]
pub struct Store {
    files: Arc<Files>,
    readers: Arc<Readers>,
    writer: Writer,
    ended: CancellationToken,
}

struct Readers {
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
}

impl Store {
    /// Opens the store in `dir`, creating both when they are missing, and removes the litter of a killed predecessor. Blocks.
    ///
    /// # Errors
    /// [`OpenError`]: the directory is in use, of another format, or not usable.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let create = |path: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        create(dir).map_err(OpenError::io("create the directory", dir))?;
        let lock = DirectoryLock::take(dir)?;
        let files = Files::open(dir.join("bodies"))?;
        let path = dir.join("store.sqlite");
        let conn = schema::open_writer(dir, &path)?;
        reserve::take(&conn, dir);
        sweep(&conn, &path, &files)?;
        // The entries of the database, its log and the body directory survive a power cut from here on.
        files::sync_directory(dir).map_err(OpenError::io("write out the directory", dir))?;
        sync_parent(dir);
        let idle = (0..READERS).map(|_| schema::open_reader(&path)).collect::<Result<_, _>>()?;
        let readers = Readers { idle: Mutex::new(idle), permits: Arc::new(Semaphore::new(READERS)) };
        let (writer, ended) =
            Writer::start(conn, lock, Arc::clone(&files)).map_err(OpenError::io("start a thread for", dir))?;
        Ok(Self { files, readers: Arc::new(readers), writer, ended })
    }

    /// Resolves when the thread that writes has ended, which while a `Store` lives means that it failed.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Closes the store once every clone is dropped: resolves when the queued writes are on the disk and the directory is free for
    /// another process.
    pub async fn close(self) {
        let ended = self.ended.clone();
        drop(self);
        ended.cancelled().await;
    }

    /// Whether writes can be carried out at all.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.ended.is_cancelled()
    }

    /// Begins to take in a body, computing the checksums that `checksums` has switched on.
    #[must_use]
    pub fn spool(&self, checksums: ChecksumHasher) -> Spool {
        Spool::new(Arc::clone(&self.files), checksums)
    }

    /// Creates a bucket; one that exists is left as it is.
    ///
    /// # Errors
    /// [`StoreError::InvalidArgument`] beyond 100 buckets.
    pub async fn create_bucket(&self, name: &str) -> Result<(), StoreError> {
        let (name, now) = (name.to_owned(), Millis::now());
        let create = move |conn: &Connection| {
            let count: i64 =
                conn.query_row("SELECT count(*) FROM bucket WHERE name <> ?1", [&name], |row| row.get(0))?;
            if usize::try_from(count).is_ok_and(|count| count >= MAX_BUCKETS) {
                return Err(StoreError::InvalidArgument(format!("this store holds at most {MAX_BUCKETS} buckets")));
            }
            conn.execute("INSERT OR IGNORE INTO bucket (name, created_ms) VALUES (?1, ?2)", (&name, now.0))?;
            Ok(Change::of(()))
        };
        self.writer.submit(create).await
    }

    /// All buckets by name.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn buckets(&self) -> Result<Vec<Bucket>, StoreError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached("SELECT name, created_ms FROM bucket ORDER BY name")?;
            let rows = statement.query_map([], |row| Ok(Bucket { name: row.get(0)?, created: Millis(row.get(1)?) }))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Checks that a bucket exists.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`].
    pub async fn require_bucket(&self, name: &str) -> Result<(), StoreError> {
        let name = name.to_owned();
        self.read(move |conn| rows::bucket_id(conn, &name).map(|_| ())).await
    }

    /// Writes an object if the condition holds. It is on the disk when this returns; when the future is dropped before, it is
    /// written or not.
    ///
    /// # Errors
    /// [`StoreError::PreconditionFailed`], [`StoreError::NoSuchKey`] (a match on an absent key), [`StoreError::NoSpace`], …:
    /// nothing was changed.
    pub async fn put(
        &self,
        bucket: &str,
        key: ObjectKey,
        condition: WriteCondition,
        body: NewBody,
        attributes: Attributes,
    ) -> Result<ETag, StoreError> {
        let target = Target { bucket: bucket.to_owned(), key, condition };
        let now = Millis::now();
        self.writer.submit(move |conn| rows::put(conn, &target, body, &attributes, now)).await
    }

    /// Finds an object.
    ///
    /// # Errors
    /// [`StoreError::NoSuchKey`], [`StoreError::NoSuchBucket`].
    pub async fn head(&self, bucket: &str, key: ObjectKey) -> Result<ObjectInfo, StoreError> {
        let bucket = bucket.to_owned();
        self.read(move |conn| rows::info(conn, &bucket, &key).map(|(info, _)| info)).await
    }

    /// Finds an object with its body.
    ///
    /// # Errors
    /// [`StoreError::NoSuchKey`], [`StoreError::NoSuchBucket`].
    pub async fn get(&self, bucket: &str, key: ObjectKey) -> Result<Object, StoreError> {
        let bucket = bucket.to_owned();
        // Before the row is read: from here on no file that it may name is removed.
        let pin = self.files.pin();
        self.read(move |conn| {
            // Both statements must see the same state.
            let tx = conn.unchecked_transaction()?;
            let (info, body) = rows::info(&tx, &bucket, &key)?;
            let content = rows::stored(&tx, body)?;
            Ok(Object { info, body: Body { content, pin } })
        })
        .await
    }

    /// Deletes an object if the condition holds; one that is absent counts as deleted.
    ///
    /// # Errors
    /// [`StoreError::PreconditionFailed`].
    pub async fn delete(&self, bucket: &str, key: ObjectKey, condition: Option<TagMatch>) -> Result<(), StoreError> {
        let bucket = bucket.to_owned();
        let delete = move |conn: &Connection| {
            let bucket = rows::bucket_id(conn, &bucket)?;
            let retired = rows::delete(conn, bucket, &key, condition.as_ref())?;
            Ok(Change::of(()).retire(retired))
        };
        self.writer.submit(delete).await
    }

    /// Deletes objects in one commit and answers for each, in their order.
    ///
    /// # Errors
    /// Those that concern all of them; those of one object are its own answer.
    pub async fn delete_many(
        &self,
        bucket: &str,
        objects: Vec<(ObjectKey, Option<TagMatch>)>,
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let bucket = bucket.to_owned();
        let delete = move |conn: &Connection| {
            let bucket = rows::bucket_id(conn, &bucket)?;
            let (mut answers, mut retired) = (Vec::with_capacity(objects.len()), Vec::new());
            for (key, condition) in &objects {
                match rows::delete(conn, bucket, key, condition.as_ref()) {
                    Ok(files) => {
                        retired.extend(files);
                        answers.push(Ok(()));
                    }
                    Err(StoreError::PreconditionFailed) => answers.push(Err(StoreError::PreconditionFailed)),
                    Err(error) => return Err(error),
                }
            }
            Ok(Change::of(answers).retire(retired))
        };
        self.writer.submit(delete).await
    }

    /// Reads one page of a listing.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`].
    pub async fn list(&self, bucket: &str, query: ListQuery) -> Result<ListPage, StoreError> {
        let bucket = bucket.to_owned();
        self.read(move |conn| list::page(conn, rows::bucket_id(conn, &bucket)?, &query)).await
    }

    /// Makes a body of an object's present one: a second name of its file, or its bytes again.
    ///
    /// # Errors
    /// [`StoreError::InvalidArgument`] for an object of several parts above 5 GiB.
    pub async fn duplicate(&self, object: Object) -> Result<NewBody, StoreError> {
        let Object { info, body } = object;
        match &body.content {
            Stored::Files(segments)
                if let [only] = segments.as_slice()
                    && let Ok(md5) = hex::decode(info.etag.as_str())
                    && let Ok(md5) = <[u8; 16]>::try_from(md5) =>
            {
                let (files, name) = (Arc::clone(&self.files), only.file.clone());
                let content = blocking(move || {
                    let mut file = files.link(&name)?;
                    file.finish()?;
                    Ok(Content::File(file))
                })
                .await?;
                // Only now may the source be removed.
                drop(body);
                Ok(NewBody::from_parts(info.size, md5, content))
            }
            Stored::Files(_) | Stored::Inline(_) => self.respool(body, info.size).await,
        }
    }

    async fn respool(&self, body: Body, size: u64) -> Result<NewBody, StoreError> {
        use futures_util::StreamExt;
        let mut spool = self.spool(ChecksumHasher::default());
        match body.read(0..size) {
            Reading::Whole(bytes) => spool.write(&bytes).await?,
            Reading::Stream(reader) => {
                let mut pieces = std::pin::pin!(reader.into_stream());
                while let Some(piece) = pieces.next().await {
                    spool.write(&piece?).await?;
                }
            }
        }
        spool.finish().await
    }

    /// Starts a multipart upload and answers its id.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`], [`StoreError::NoSpace`].
    pub async fn create_upload(
        &self,
        bucket: &str,
        key: ObjectKey,
        attributes: Attributes,
    ) -> Result<String, StoreError> {
        let id = format!("{:032x}", rand::random::<u128>());
        let upload = UploadRef { bucket: bucket.to_owned(), key, id: id.clone() };
        let now = Millis::now();
        self.writer.submit(move |conn| uploads::create(conn, &upload, &attributes, now)).await?;
        Ok(id)
    }

    /// Checks that an upload is under way.
    ///
    /// # Errors
    /// [`StoreError::NoSuchUpload`].
    pub async fn require_upload(&self, upload: UploadRef) -> Result<(), StoreError> {
        self.read(move |conn| uploads::require(conn, &upload)).await
    }

    /// Stores a part.
    ///
    /// # Errors
    /// [`StoreError::NoSuchUpload`], [`StoreError::NoSpace`], or [`StoreError::InvalidArgument`] for a number outside 1 to
    /// 10,000.
    pub async fn put_part(&self, upload: UploadRef, number: u32, body: NewBody) -> Result<ETag, StoreError> {
        if !(1..=MAX_PARTS).contains(&number) {
            return Err(StoreError::InvalidArgument(format!("a part number is 1 to {MAX_PARTS}")));
        }
        let body = body.into_file(&self.files).await?;
        let now = Millis::now();
        self.writer.submit(move |conn| uploads::put_part(conn, &upload, number, body, now)).await
    }

    /// Makes the named parts the object, if the condition holds.
    ///
    /// # Errors
    /// Those of a put, and what is wrong with the parts. The upload stays as it was.
    pub async fn complete_upload(
        &self,
        upload: UploadRef,
        parts: Vec<NamedPart>,
        condition: WriteCondition,
    ) -> Result<ETag, StoreError> {
        let target = Target { bucket: upload.bucket.clone(), key: upload.key.clone(), condition };
        let now = Millis::now();
        self.writer.submit(move |conn| uploads::complete(conn, &upload, &target, &parts, now)).await
    }

    /// Drops an upload with its parts.
    ///
    /// # Errors
    /// [`StoreError::NoSuchUpload`].
    pub async fn abort_upload(&self, upload: UploadRef) -> Result<(), StoreError> {
        self.writer.submit(move |conn| uploads::abort(conn, &upload)).await
    }

    /// The parts of an upload so far, by number.
    ///
    /// # Errors
    /// [`StoreError::NoSuchUpload`].
    pub async fn parts(&self, upload: UploadRef) -> Result<Vec<Part>, StoreError> {
        self.read(move |conn| uploads::parts(conn, &upload)).await
    }

    /// The uploads under way whose key begins with `prefix`, at most `max`.
    ///
    /// # Errors
    /// [`StoreError::NoSuchBucket`].
    pub async fn uploads(&self, bucket: &str, prefix: String, max: usize) -> Result<Vec<Upload>, StoreError> {
        let bucket = bucket.to_owned();
        self.read(move |conn| uploads::under_way(conn, rows::bucket_id(conn, &bucket)?, &prefix, max)).await
    }

    async fn read<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    {
        let readers = Arc::clone(&self.readers);
        let permit = Arc::clone(&readers.permits).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        blocking(move || {
            let conn = readers.take().ok_or(StoreError::Closed)?;
            let result = work(&conn);
            readers.give_back(conn);
            drop(permit);
            result
        })
        .await
    }
}

impl Readers {
    fn take(&self) -> Option<Connection> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give_back(&self, conn: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
    }
}

/// Puts the entry of a new store's directory on the disk, as far as that is ours to do: the parent may be closed to this process, and
/// is then the business of whoever made it.
fn sync_parent(dir: &Path) {
    let synced = fs::canonicalize(dir).and_then(|dir| dir.parent().map_or(Ok(()), files::sync_directory));
    if let Err(error) = synced {
        tracing::debug!(%error, "cannot write out the parent of the store's directory");
    }
}

/// Removes the body files that no row names: what a killed process was writing, or had not removed yet.
fn sweep(conn: &Connection, path: &Path, files: &Files) -> Result<(), OpenError> {
    let names = || -> rusqlite::Result<HashSet<FileName>> {
        let mut statement = conn.prepare("SELECT file FROM body WHERE file IS NOT NULL")?;
        let names = statement.query_map([], |row| row.get::<_, String>(0))?;
        names.filter_map(|name| name.map(|name| FileName::parse(&name)).transpose()).collect()
    };
    let named = names().map_err(OpenError::database(path))?;
    let swept = files.sweep(&named)?;
    if swept > 0 {
        tracing::info!(swept, "removed body files that an earlier process left unfinished");
    }
    Ok(())
}
