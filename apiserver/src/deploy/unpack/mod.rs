//! Unpacking an artifact into a fresh directory that nothing else writes to.
//!
//! No archive gets out of the tree: names are checked before anything is made ([`tree`]); links are made last, when every
//! one of them was followed on paper and stays inside, so that nothing is ever written through one. What a project cannot
//! need (hard links, devices, FIFOs, sparse files) is refused by name. Bytes, entries, names and depth are bounded.

mod tar;
mod tree;
mod zip;

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scafo_core::problem::{Problem, ProblemCode};

use self::tree::Tree;
use super::{full, is_full};

/// The configuration files, in the order in which they are looked for.
const CONFIGURATIONS: [&str; 2] = ["wrangler.jsonc", "wrangler.json"];
/// Largest window of a zstd frame, as a power of two: the most that zstd itself uses without being told to.
const ZSTD_WINDOW_LOG: u32 = 27;
/// What a tar archive may hold beside the contents of its files for each entry: headers, long names, padding.
const TAR_ENTRY_OVERHEAD: u64 = 8 * 1024;
/// Where a tar header says that it is one.
const USTAR_AT: usize = 257;

/// What an archive may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of all files together.
    pub(super) bytes: u64,
    /// Files, links and directories, implied directories included.
    pub(super) entries: u64,
}

/// Tells the thread that unpacks to stop, and how long it may take.
#[derive(Debug, Clone)]
pub(super) struct Stop {
    told: Arc<AtomicBool>,
    deadline: Instant,
}

/// Stops when it is dropped.
pub(super) struct StopOnDrop(Stop);

impl Stop {
    pub(super) fn after(allowed: Duration) -> Self {
        Self { told: Arc::default(), deadline: Instant::now() + allowed }
    }

    pub(super) fn on_drop(self) -> StopOnDrop {
        StopOnDrop(self)
    }

    fn check(&self) -> Result<(), Problem> {
        if self.told.load(Ordering::Relaxed) {
            return Err(Problem::new(ProblemCode::Draining, "this node is stopping"));
        }
        if Instant::now() > self.deadline {
            let detail = "unpacking the artifact took longer than one deploy may take (`deploy.taskTimeout`)";
            return Err(Problem::new(ProblemCode::DeployTimeout, detail));
        }
        Ok(())
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.told.store(true, Ordering::Relaxed);
    }
}

/// Unpacks `artifact` into the directory `tree`, which is made anew. Gives the bytes of all files. Blocks.
///
/// # Errors
/// `invalid-input` naming the entry, `resource-limit` naming the limit or the full disk, `deploy-timeout`, `internal` for another
/// failure of the disk.
pub(super) fn unpack(artifact: &Path, tree: &Path, limits: Limits, stop: &Stop) -> Result<u64, Problem> {
    if tree.exists() {
        fs::remove_dir_all(tree).map_err(disk)?;
    }
    let mut tree = Tree::create(tree, limits, stop.clone())?;
    let mut file = File::open(artifact).map_err(disk)?;
    let mut head = Vec::new();
    file.by_ref().take(512).read_to_end(&mut head).map_err(disk)?;
    file.seek(SeekFrom::Start(0)).map_err(disk)?;
    let reader = BufReader::with_capacity(128 * 1024, file);
    let stream = limits.bytes.saturating_add(limits.entries.saturating_mul(TAR_ENTRY_OVERHEAD));
    match head.as_slice() {
        [0x1f, 0x8b, ..] => tar::unpack(Bounded::new(flate2::bufread::MultiGzDecoder::new(reader), stream), &mut tree)?,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::Decoder::with_buffer(reader).map_err(disk)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG).map_err(disk)?;
            tar::unpack(Bounded::new(decoder, stream), &mut tree)?;
        }
        [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => zip::unpack(artifact, limits, &mut tree)?,
        _ if head.get(USTAR_AT..).is_some_and(|rest| rest.starts_with(b"ustar")) => {
            tar::unpack(Bounded::new(reader, stream), &mut tree)?;
        }
        _ => return Err(malformed("the artifact is neither tar, tar.gz, tar.zst nor zip")),
    }
    tree.finish()
}

/// The configuration at the root of an unpacked project.
///
/// # Errors
/// `invalid-input` when there is none.
pub(super) fn configuration(tree: &Path) -> Result<PathBuf, Problem> {
    CONFIGURATIONS.iter().map(|name| tree.join(name)).find(|path| path.is_file()).ok_or_else(|| {
        malformed(format!(
            "the artifact has neither `{}` nor `{}` at its root; deploy the directory that holds one",
            CONFIGURATIONS[0], CONFIGURATIONS[1]
        ))
    })
}

/// A reader that fails when there is more than was allowed.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R> Bounded<R> {
    fn new(inner: R, limit: u64) -> Self {
        Self { inner, left: limit }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buf)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| io::Error::other(TooMuch))?;
        Ok(read)
    }
}

/// Marks the error of a [`Bounded`] reader.
#[derive(Debug, thiserror::Error)]
#[error("the archive expands to more than this node takes")]
struct TooMuch;

fn malformed(detail: impl Into<String>) -> Problem {
    Problem::new(ProblemCode::InvalidInput, detail).titled("The artifact cannot be unpacked")
}

fn too_many_entries(limits: Limits) -> Problem {
    limit(format!("the archive has more than {} entries (`deploy.archiveEntries`)", limits.entries))
}

fn limit(detail: impl Into<String>) -> Problem {
    Problem::new(ProblemCode::ResourceLimit, detail).titled("The archive is too large")
}

/// A failure while an archive is read: it holds too much, or it is damaged.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` calls")]
fn unreadable(error: io::Error) -> Problem {
    if error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<TooMuch>) {
        return limit("the archive expands to more than this node takes (`deploy.artifactBytes`)");
    }
    malformed(format!("the archive is damaged: {error}"))
}

/// A failure of the disk.
pub(super) fn disk(error: io::Error) -> Problem {
    if is_full(&error) {
        let detail = "the disk of the node is full: free some space under its state directory and deploy again";
        return full(detail).because(error);
    }
    Problem::new(ProblemCode::Internal, "the artifact could not be unpacked on this node; its log says why")
        .because(error)
}

#[cfg(test)]
mod tests;
