//! The tree that an archive is unpacked into, with every rule about what may stand in it.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use scafo_core::problem::Problem;

use super::{Limits, Stop, disk, limit, malformed, too_many_entries, unreadable};

/// Longest name of one file or directory (`NAME_MAX` of the file systems in use).
const NAME_MAX: usize = 255;
/// Longest path inside the tree. With the stage in front it stays under `PATH_MAX`, 4,096.
const PATH_LENGTH_MAX: usize = 1024;
/// Deepest directory. Real projects have about twenty levels.
const DEPTH_MAX: usize = 64;
/// Bytes of all names together: what is remembered of them is bounded by twice this.
const NAMES_MAX: usize = 32 * 1024 * 1024;
/// Links followed for one link before it counts as a circle (what Linux allows).
const HOPS_MAX: usize = 40;
/// Headers for one entry: its own, a long name, a long target, pax attributes.
const HEADERS_OF_ENTRY: u64 = 4;
/// Longest target of a link.
pub(super) const TARGET_MAX: usize = 1024;
const COPY_BUFFER: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
    Link,
}

struct Entry {
    path: String,
    kind: Kind,
}

pub(super) struct Tree {
    root: PathBuf,
    limits: Limits,
    stop: Stop,
    /// By what a file system that ignores case would call it.
    entries: HashMap<String, Entry>,
    headers: u64,
    names: usize,
    bytes: u64,
    links: HashMap<String, String>,
    buffer: Vec<u8>,
}

impl Tree {
    pub(super) fn create(root: &Path, limits: Limits, stop: Stop) -> Result<Self, Problem> {
        fs::create_dir(root).map_err(disk)?;
        Ok(Self {
            root: root.to_owned(),
            limits,
            stop,
            entries: HashMap::new(),
            headers: 0,
            names: 0,
            bytes: 0,
            links: HashMap::new(),
            buffer: vec![0; COPY_BUFFER],
        })
    }

    /// A header of the archive, whatever it stands for. A directory that is named again and what only says more of the next entry
    /// make no entry of the tree, and cost time all the same.
    pub(super) fn header(&mut self) -> Result<(), Problem> {
        self.stop.check()?;
        self.headers += 1;
        if self.headers > self.limits.entries.saturating_mul(HEADERS_OF_ENTRY) {
            return Err(too_many_entries(self.limits));
        }
        Ok(())
    }

    /// A directory. It may be named more than once.
    pub(super) fn directory(&mut self, name: &[u8]) -> Result<(), Problem> {
        let parts = parts(name)?;
        self.directories(&parts, name)
    }

    /// A file with what `contents` gives. Of its mode only whether it can be executed is kept.
    pub(super) fn file(&mut self, name: &[u8], executable: bool, contents: &mut dyn Read) -> Result<(), Problem> {
        let path = self.claim(name, Kind::File)?;
        let mode = if executable { 0o755 } else { 0o644 };
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(self.root.join(path)).map_err(disk)?;
        loop {
            self.stop.check()?;
            let read = match contents.read(&mut self.buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(unreadable(error)),
            };
            self.bytes += read as u64;
            if self.bytes > self.limits.bytes {
                let bytes = self.limits.bytes;
                return Err(limit(format!("the archive expands to more than {bytes} bytes (`deploy.artifactBytes`)")));
            }
            file.write_all(&self.buffer[..read]).map_err(disk)?;
        }
    }

    /// A symbolic link. It is made by [`Tree::finish`], when it is known where it leads.
    pub(super) fn link(&mut self, name: &[u8], target: &[u8]) -> Result<(), Problem> {
        let target = text(target).filter(|target| !target.is_empty() && target.len() <= TARGET_MAX);
        let target = target.ok_or_else(|| malformed(format!("the link {} has no readable target", shown(name))))?;
        let path = self.claim(name, Kind::Link)?;
        self.links.insert(path, target.to_owned());
        Ok(())
    }

    /// Makes the links, if each one leads to a place inside the tree. Gives the bytes of all files.
    pub(super) fn finish(self) -> Result<u64, Problem> {
        for (path, target) in &self.links {
            if let Err(why) = follow(path, &self.links, &self.stop)? {
                return Err(malformed(format!("the link {path:?} to {} {why}", shown(target.as_bytes()))));
            }
        }
        for (path, target) in &self.links {
            symlink(target, self.root.join(path)).map_err(disk)?;
        }
        Ok(self.bytes)
    }

    /// Takes a new name with the directories above it.
    fn claim(&mut self, name: &[u8], kind: Kind) -> Result<String, Problem> {
        let parts = parts(name)?;
        let Some((_, above)) = parts.split_last() else {
            return Err(malformed(format!("the entry {} names no file", shown(name))));
        };
        self.directories(above, name)?;
        let path = parts.join("/");
        self.enter(path.clone(), kind, name)?;
        Ok(path)
    }

    /// Makes every directory of a path that is not there yet.
    fn directories(&mut self, parts: &[&str], name: &[u8]) -> Result<(), Problem> {
        for depth in 1..=parts.len() {
            let path = parts[..depth].join("/");
            match self.entries.get(&folded(&path)) {
                Some(entry) if entry.kind == Kind::Directory && entry.path == path => {}
                Some(entry) => return Err(collision(name, &entry.path)),
                None => {
                    self.enter(path.clone(), Kind::Directory, name)?;
                    fs::create_dir(self.root.join(path)).map_err(disk)?;
                }
            }
        }
        Ok(())
    }

    fn enter(&mut self, path: String, kind: Kind, name: &[u8]) -> Result<(), Problem> {
        self.stop.check()?;
        if self.entries.len() as u64 >= self.limits.entries {
            return Err(too_many_entries(self.limits));
        }
        self.names += path.len();
        if self.names > NAMES_MAX {
            return Err(limit(format!("the names in the archive are longer than {NAMES_MAX} bytes together")));
        }
        match self.entries.entry(folded(&path)) {
            std::collections::hash_map::Entry::Occupied(taken) => Err(collision(name, &taken.get().path)),
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(Entry { path, kind });
                Ok(())
            }
        }
    }
}

/// What is neither a file, a directory nor a symbolic link.
pub(super) fn refused(name: &[u8], what: &str) -> Problem {
    malformed(format!("the entry {} is {what}, which no project needs; leave it out", shown(name)))
}

fn collision(name: &[u8], taken: &str) -> Problem {
    malformed(format!("the entry {} stands in the archive beside {taken:?}, which has the same name", shown(name)))
}

/// The names that a path is made of; empty for the root itself.
fn parts(name: &[u8]) -> Result<Vec<&str>, Problem> {
    let refuse = |why: &str| malformed(format!("the entry {} {why}", shown(name)));
    let text = text(name).ok_or_else(|| refuse("has a name that is no text"))?;
    if text.starts_with('/') {
        return Err(refuse("has an absolute path"));
    }
    if text.contains('\\') {
        return Err(refuse("has a backslash in its name"));
    }
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(refuse("leads out of the archive with `..`"));
    }
    if parts.len() > DEPTH_MAX || text.len() > PATH_LENGTH_MAX || parts.iter().any(|part| part.len() > NAME_MAX) {
        return Err(refuse("has a name that is too long or too deep"));
    }
    Ok(parts)
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.chars().any(char::is_control))
}

/// What two names have in common that a file system which ignores case cannot tell apart.
fn folded(path: &str) -> String {
    path.to_lowercase()
}

/// A name for a message: escaped and not too long.
fn shown(name: &[u8]) -> String {
    const SHOWN: usize = 120;
    let text = String::from_utf8_lossy(name);
    let cut: String = text.chars().take(SHOWN).collect();
    format!("{cut:?}{}", if cut.len() < text.len() { "…" } else { "" })
}

/// Follows a link as the kernel would, on paper; the inner failure says why it may not stand.
fn follow(link: &str, links: &HashMap<String, String>, stop: &Stop) -> Result<Result<(), &'static str>, Problem> {
    const OUT: &str = "leads out of the project; only links inside of it are taken";
    let mut place: Vec<&str> = link.split('/').collect();
    place.pop();
    let mut hops = 1;
    let mut rest: Vec<&str> = Vec::new();
    if enqueue(&mut rest, &links[link]).is_none() {
        return Ok(Err(OUT));
    }
    while let Some(part) = rest.pop() {
        stop.check()?;
        match part {
            "" | "." => {}
            ".." if place.pop().is_none() => return Ok(Err(OUT)),
            ".." => {}
            name => {
                place.push(name);
                if let Some(next) = links.get(&place.join("/")) {
                    hops += 1;
                    if hops > HOPS_MAX {
                        return Ok(Err("leads in a circle"));
                    }
                    place.pop();
                    if enqueue(&mut rest, next).is_none() {
                        return Ok(Err(OUT));
                    }
                }
            }
        }
    }
    Ok(Ok(()))
}

/// Puts the parts of a target on top of what is left to walk; `None` for an absolute one.
fn enqueue<'a>(rest: &mut Vec<&'a str>, target: &'a str) -> Option<()> {
    if target.starts_with('/') {
        return None;
    }
    rest.extend(target.rsplit('/'));
    Some(())
}
