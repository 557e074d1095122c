//! Takes a body in as it arrives: hashes it, keeps a small one in memory and writes a large one to a file.

use std::sync::Arc;

use s3s::{
    checksum::ChecksumHasher,
    crypto::{Checksum as _, Md5},
};
use tokio::task::spawn_blocking;

use super::{
    error::StoreError,
    files::{Files, PendingFile},
    types::Checksums,
};

/// Bodies up to this size live in the database. Registry records and manifests are far below it, and one row then costs about as
/// much as a file's directory entry and block would.
pub(super) const INLINE_LIMIT: usize = 64 * 1024;

/// How much is collected before it is hashed and written. Together with one chunk of the connection it bounds what an upload holds
/// in memory; at this size the cost of handing the work to a thread is small against the work.
const BLOCK: usize = 256 * 1024;

/// The largest body of one PUT or part in S3.
pub const MAX_BODY_BYTES: u64 = 5 * 1024 * 1024 * 1024;

/// A body on its way in.
pub struct Spool {
    files: Arc<Files>,
    buffer: Vec<u8>,
    size: u64,
    // Moved to the blocking thread and back with each block; absent only after a failed block.
    sink: Option<Sink>,
}

struct Sink {
    md5: Md5,
    checksums: ChecksumHasher,
    file: Option<PendingFile>,
}

/// A body that is complete: on the disk if it is a file, in memory if it is small. Dropped before a row names it, it leaves
/// nothing behind.
pub struct NewBody {
    pub(super) size: u64,
    pub(super) md5: [u8; 16],
    pub(super) content: Content,
    checksums: Checksums,
}

pub(super) enum Content {
    Inline(Vec<u8>),
    File(PendingFile),
}

impl NewBody {
    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The MD5 of the body.
    #[must_use]
    pub fn md5(&self) -> [u8; 16] {
        self.md5
    }

    pub(super) fn from_parts(size: u64, md5: [u8; 16], content: Content) -> Self {
        Self { size, md5, content, checksums: Checksums::default() }
    }

    /// The same body as a file, however small: a body of several parts consists of files only.
    pub(super) async fn into_file(self, files: &Arc<Files>) -> Result<Self, StoreError> {
        let Content::Inline(bytes) = self.content else { return Ok(self) };
        let files = Arc::clone(files);
        let content = blocking(move || {
            let mut file = files.create()?;
            file.append(&bytes)?;
            file.finish()?;
            Ok(Content::File(file))
        })
        .await?;
        Ok(Self { content, ..self })
    }

    /// The checksums that were asked for when the spool was made.
    #[must_use]
    pub fn checksums(&self) -> &Checksums {
        &self.checksums
    }
}

impl Spool {
    pub(super) fn new(files: Arc<Files>, checksums: ChecksumHasher) -> Self {
        let sink = Sink { md5: Md5::new(), checksums, file: None };
        Self { files, buffer: Vec::new(), size: 0, sink: Some(sink) }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// [`StoreError::BodyTooLarge`], [`StoreError::NoSpace`] or [`StoreError::File`]; the body is lost then.
    pub async fn write(&mut self, chunk: &[u8]) -> Result<(), StoreError> {
        self.size += chunk.len() as u64;
        if self.size > MAX_BODY_BYTES {
            return Err(StoreError::BodyTooLarge);
        }
        self.buffer.extend_from_slice(chunk);
        if self.buffer.len() >= BLOCK {
            self.flush().await?;
        }
        Ok(())
    }

    /// Ends the body and, when it is a file, puts it on the disk.
    ///
    /// # Errors
    /// As [`Spool::write`].
    pub async fn finish(mut self) -> Result<NewBody, StoreError> {
        let small = self.size <= INLINE_LIMIT as u64;
        if !small {
            self.flush().await?;
        }
        let Self { buffer, size, sink, .. } = self;
        let Sink { mut md5, mut checksums, file } = sink.ok_or_else(failed_before)?;
        let content = match file {
            Some(mut file) => {
                let file = blocking(move || file.finish().map(|()| file)).await?;
                Content::File(file)
            }
            None => {
                md5.update(&buffer);
                checksums.update(&buffer);
                Content::Inline(buffer)
            }
        };
        Ok(NewBody { size, md5: md5.finalize(), content, checksums: to_checksums(checksums) })
    }

    async fn flush(&mut self) -> Result<(), StoreError> {
        let mut sink = self.sink.take().ok_or_else(failed_before)?;
        let block = std::mem::take(&mut self.buffer);
        let files = Arc::clone(&self.files);
        let (sink, mut block) = blocking(move || {
            sink.md5.update(&block);
            sink.checksums.update(&block);
            let mut file = match sink.file.take() {
                Some(file) => file,
                None => files.create()?,
            };
            file.append(&block)?;
            sink.file = Some(file);
            Ok((sink, block))
        })
        .await?;
        block.clear();
        self.buffer = block;
        self.sink = Some(sink);
        Ok(())
    }
}

fn failed_before() -> StoreError {
    StoreError::Damaged("a body was continued after a failed write".into())
}

fn to_checksums(hasher: ChecksumHasher) -> Checksums {
    let sums = hasher.finalize();
    Checksums {
        crc32: sums.checksum_crc32,
        crc32c: sums.checksum_crc32c,
        crc64nvme: sums.checksum_crc64nvme,
        sha1: sums.checksum_sha1,
        sha256: sums.checksum_sha256,
    }
}

/// Runs blocking work on the runtime's threads for it. The work itself ends even when the caller goes away.
pub(super) async fn blocking<T, F>(work: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, StoreError> + Send + 'static,
{
    // The only other outcomes are a runtime that shuts down and a panic, which the panic hook has reported.
    spawn_blocking(work).await.map_err(|_| StoreError::Closed)?
}
