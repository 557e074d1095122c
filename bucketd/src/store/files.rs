//! Body files: bodies too large for the database.
//!
//! A file has a random name and is complete and on the disk, its directory entry too, before a row names it; so a row never
//! names a file that a crash could take away. A file without a row is litter: removed when its upload fails, or at the next start
//! when the process was killed in between.
//!
//! A file that lost its row may still be read by requests that saw the row. It is removed when the last request that began
//! before the loss has ended; requests are counted by the generation in which they began.

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
};

use super::error::{OpenError, StoreError};

/// The random name of a body file: 32 hexadecimal digits, never a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FileName(String);

impl FileName {
    fn random() -> Self {
        Self(format!("{:032x}", rand::random::<u128>()))
    }

    /// A name from the database or from the directory.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let hex = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        hex.then(|| Self(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The directory of body files.
pub(super) struct Files {
    dir: PathBuf,
    readers: Mutex<Readers>,
    /// Names to remove, off the request path. Bounded by the number of files on the disk.
    litter: mpsc::Sender<FileName>,
}

#[derive(Default)]
struct Readers {
    /// Moves whenever files are retired.
    generation: u64,
    /// Requests under way, by the generation in which they began.
    active: BTreeMap<u64, usize>,
    /// Retired files with the generation in which that happened, oldest first.
    retired: VecDeque<(u64, Vec<FileName>)>,
}

impl Readers {
    fn begin(&mut self) -> u64 {
        *self.active.entry(self.generation).or_default() += 1;
        self.generation
    }

    fn end(&mut self, generation: u64) -> Vec<FileName> {
        if let Some(count) = self.active.get_mut(&generation) {
            *count -= 1;
            if *count == 0 {
                self.active.remove(&generation);
            }
        }
        self.unread()
    }

    fn retire(&mut self, files: Vec<FileName>) -> Vec<FileName> {
        self.retired.push_back((self.generation, files));
        self.generation += 1;
        self.unread()
    }

    /// Takes the files that no request under way can have seen named.
    fn unread(&mut self) -> Vec<FileName> {
        let oldest = self.active.first_key_value().map_or(u64::MAX, |(generation, _)| *generation);
        let mut unread = Vec::new();
        while let Some((_, files)) = self.retired.pop_front_if(|(generation, _)| *generation < oldest) {
            unread.extend(files);
        }
        unread
    }
}

impl Files {
    /// Opens the directory, creating it when it is missing, and starts the thread that removes files.
    pub(super) fn open(dir: PathBuf) -> Result<Arc<Self>, OpenError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(OpenError::io("create the directory", &dir))?;
        let (litter, names) = mpsc::channel::<FileName>();
        let base = dir.clone();
        thread::Builder::new()
            .name("store-janitor".into())
            .spawn(move || names.iter().for_each(|name| remove(&base, &name)))
            .map_err(OpenError::io("start a thread for", &dir))?;
        Ok(Arc::new(Self { dir, readers: Mutex::default(), litter }))
    }

    /// Removes every file that is not in `named`. Only at start, before any request.
    pub(super) fn sweep(&self, named: &HashSet<FileName>) -> Result<usize, OpenError> {
        let fail = || OpenError::io("list", &self.dir);
        let mut swept = 0;
        for entry in fs::read_dir(&self.dir).map_err(fail())? {
            let entry = entry.map_err(fail())?;
            let Some(name) = entry.file_name().to_str().and_then(FileName::parse) else { continue };
            if !named.contains(&name) {
                remove(&self.dir, &name);
                swept += 1;
            }
        }
        Ok(swept)
    }

    /// Creates an empty body file. Blocks.
    pub(super) fn create(self: &Arc<Self>) -> Result<PendingFile, StoreError> {
        let name = FileName::random();
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.path(&name))?;
        Ok(PendingFile { files: Arc::clone(self), name, file: Some(file), kept: false })
    }

    /// Gives a file that a row names a second name, for a copy. Blocks.
    pub(super) fn link(self: &Arc<Self>, from: &FileName) -> Result<PendingFile, StoreError> {
        let name = FileName::random();
        fs::hard_link(self.path(from), self.path(&name))?;
        Ok(PendingFile { files: Arc::clone(self), name, file: None, kept: false })
    }

    /// Opens a file that a row names. Blocks.
    pub(super) fn read(&self, name: &FileName) -> io::Result<File> {
        File::open(self.path(name))
    }

    /// Puts the entries of the directory on the disk. Blocks.
    pub(super) fn sync_directory(&self) -> Result<(), StoreError> {
        Ok(sync_directory(&self.dir)?)
    }

    /// While the answer lives, no file is removed that is named by a row now or later.
    pub(super) fn pin(self: &Arc<Self>) -> Pin {
        let generation = self.readers().begin();
        Pin { files: Arc::clone(self), generation }
    }

    /// Takes over files whose rows are gone.
    pub(super) fn retire(&self, files: Vec<FileName>) {
        if !files.is_empty() {
            let unread = self.readers().retire(files);
            self.discard(unread);
        }
    }

    fn discard(&self, names: Vec<FileName>) {
        for name in names {
            // The thread lives as long as this sender; if it is gone all the same, the sweep of the next start removes the file.
            drop(self.litter.send(name));
        }
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        // Every change of the state is complete before anything in it could panic.
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &FileName) -> PathBuf {
        self.dir.join(name.as_str())
    }
}

fn remove(dir: &Path, name: &FileName) {
    match fs::remove_file(dir.join(name.as_str())) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(file = name.as_str(), %error, "cannot remove a body file that nobody needs"),
    }
}

/// Puts the entries of `dir` on the disk. Blocks.
pub(super) fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Holds back the removal of files; see [`Files::pin`].
pub(super) struct Pin {
    files: Arc<Files>,
    generation: u64,
}

impl Pin {
    pub(super) fn files(&self) -> &Arc<Files> {
        &self.files
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let unread = self.files.readers().end(self.generation);
        self.files.discard(unread);
    }
}

/// A body file that no row names yet. Dropped without [`PendingFile::keep`], it is removed.
pub(super) struct PendingFile {
    files: Arc<Files>,
    name: FileName,
    file: Option<File>,
    kept: bool,
}

impl PendingFile {
    pub(super) fn name(&self) -> &FileName {
        &self.name
    }

    /// Appends to the file. Blocks.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        use io::Write;
        match &mut self.file {
            Some(file) => Ok(file.write_all(bytes)?),
            None => Err(StoreError::Damaged("a finished body file was appended to".into())),
        }
    }

    /// Puts the file and its directory entry on the disk and closes it. Blocks.
    pub(super) fn finish(&mut self) -> Result<(), StoreError> {
        if let Some(file) = self.file.take() {
            file.sync_all()?;
        }
        self.files.sync_directory()
    }

    /// A row names it now.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        if !self.kept {
            self.files.discard(vec![self.name.clone()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(digit: char) -> FileName {
        FileName::parse(&digit.to_string().repeat(32)).unwrap()
    }

    #[test]
    fn retired_file_waits_for_the_requests_that_began_before() {
        let mut readers = Readers::default();
        let early = readers.begin();
        assert_eq!(readers.retire(vec![name('a')]), []);
        let late = readers.begin();
        assert_eq!(readers.retire(vec![name('b')]), []);
        // The late request can have seen `b`, never `a`.
        assert_eq!(readers.end(early), [name('a')]);
        assert_eq!(readers.end(late), [name('b')]);
        assert_eq!(readers.retire(vec![name('c')]), [name('c')]);
    }

    #[test]
    fn file_name_is_never_a_path() {
        for text in ["", "../../../etc/passwd", "0123", &"g".repeat(32), &"A".repeat(32)] {
            assert_eq!(FileName::parse(text), None, "{text}");
        }
    }
}
