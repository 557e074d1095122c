//! The archive of a project: `tar.gz`, the same bytes for the same files, whoever packs them and when.
//!
//! Entries are sorted, without times and owners; of the mode only "executable" is kept. Nothing outside the project goes along:
//! links that leave it are refused by name. The archive is an unlinked temporary file, which no crash leaves behind.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use crate::error::{Failure, Outcome};
use crate::project::{Project, links};

/// Left out wherever they are: nothing that a deployment needs, and `.git` can be larger than the project.
const NEVER: [&str; 3] = [".git", ".scafo", ".wrangler"];
/// Left out at the top level, alone or with a suffix (`.env.local`): secrets of a development machine, which no deployment
/// reads.
const SECRETS: [&str; 2] = [".env", ".dev.vars"];
/// Both in one directory, they say that it is the state directory of a node, this one's or another's: its keys are in it.
const STATE: [&str; 2] = ["node-id", "node.key"];
/// Most entries that are looked at: 15 times what a node takes by default. It ends the walk through a disk that was meant to be
/// a project.
const MAX_ENTRIES: usize = 1_000_000;
/// Bytes that are written to the disk at once.
const BUFFER: usize = 256 * 1024;

/// A packed project.
#[derive(Debug)]
pub(crate) struct Packed {
    /// The archive, to be read from its start.
    pub(crate) file: File,
    /// Its size.
    pub(crate) bytes: u64,
    /// Size of the files in it.
    pub(crate) expanded_bytes: u64,
    /// Files, directories and links in it.
    pub(crate) entries: usize,
    /// What was left out because it holds secrets.
    pub(crate) left_out: Vec<String>,
}

/// One thing in the tree, with what the archive says of it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// Relative to the root.
    path: PathBuf,
    what: What,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Directory,
    File { size: u64, executable: bool },
    Link { target: PathBuf },
}

/// Packs `project` without `also_not`, an absolute path (the state directory of a node that lives in the project).
///
/// # Errors
/// When something cannot be read, changes meanwhile, is neither file, directory nor link, or is a link that leaves the project.
pub(crate) fn pack(project: &Project, also_not: Option<&Path>) -> Outcome<Packed> {
    let (entries, left_out) = walk(project.root(), also_not)?;
    let temporary = tempfile::tempfile().map_err(|error| no_room(&error))?;
    let writer = BufWriter::with_capacity(BUFFER, temporary);
    let mut archive = Archive {
        root: project.root(),
        config: (Path::new(project.config_name()), project.config().replacement()),
        // No time and no name in the head. Fast: what is saved on the wire costs more than it brings.
        builder: Builder::new(GzBuilder::new().mtime(0).write(writer, Compression::fast())),
        expanded_bytes: 0,
    };
    for entry in &entries {
        archive.append(entry)?;
    }
    let expanded_bytes = archive.expanded_bytes;
    let file = archive.finish().map_err(|error| no_room(&error))?;
    let bytes = file.metadata().map_err(|error| no_room(&error))?.len();
    Ok(Packed { file, bytes, expanded_bytes, entries: entries.len(), left_out })
}

/// Everything to pack, sorted with each directory before what is in it; and the secrets that were left out.
fn walk(root: &Path, also_not: Option<&Path>) -> Outcome<(Vec<Entry>, Vec<String>)> {
    let mut entries = Vec::new();
    let mut left_out = Vec::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(directory) = waiting.pop() {
        let unreadable = |error: &io::Error| cannot_read(&directory, error);
        for found in std::fs::read_dir(root.join(&directory)).map_err(|error| unreadable(&error))? {
            let found = found.map_err(|error| unreadable(&error))?;
            let path = directory.join(found.file_name());
            if is_secret(&path) {
                left_out.push(path.display().to_string());
                continue;
            }
            if is_left_out(&path) || also_not == Some(&root.join(&path)) {
                continue;
            }
            let metadata = found.metadata().map_err(|error| cannot_read(&path, &error))?;
            let what = classify(root, &path, &metadata)?;
            if what == What::Directory {
                if is_node_state(&root.join(&path)) {
                    left_out.push(path.display().to_string());
                    continue;
                }
                waiting.push(path.clone());
            }
            entries.push(Entry { path, what });
            if entries.len() > MAX_ENTRIES {
                return Err(Failure::new(format!("the project has more than {MAX_ENTRIES} files"))
                    .hint("is this the right directory? move what the Worker does not need elsewhere"));
            }
        }
    }
    entries.sort();
    left_out.sort();
    Ok((entries, left_out))
}

fn is_left_out(path: &Path) -> bool {
    let Some(name) = path.file_name() else { return false };
    let above = path.parent().and_then(Path::file_name);
    NEVER.iter().any(|never| name == *never) || (name == ".cache" && above == Some(OsStr::new("node_modules")))
}

/// Whether a node has its state in `directory`.
pub(crate) fn is_node_state(directory: &Path) -> bool {
    STATE.iter().all(|name| directory.join(name).is_file())
}

fn is_secret(path: &Path) -> bool {
    let at_the_top = path.components().count() == 1;
    let Some(name) = path.to_str().filter(|_| at_the_top) else { return false };
    SECRETS.iter().any(|secret| name.strip_prefix(secret).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

fn classify(root: &Path, path: &Path, metadata: &Metadata) -> Outcome<What> {
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Ok(What::Directory);
    }
    if kind.is_file() {
        let executable = metadata.permissions().mode() & 0o111 != 0;
        return Ok(What::File { size: metadata.len(), executable });
    }
    if kind.is_symlink() {
        return link(root, path);
    }
    Err(Failure::new(format!("`{}` in the project is neither a file, a directory nor a link", path.display()))
        .hint("remove it, or move it out of the project"))
}

fn link(root: &Path, path: &Path) -> Outcome<What> {
    let place = root.join(path);
    let target = std::fs::read_link(&place).map_err(|error| cannot_read(path, &error))?;
    let real = place.canonicalize().ok();
    // The text may be deceived by a link on the way (`here/..` where `here` is one); the kernel is not. It knows a place inside also
    // where the text goes through a link to the project or above it.
    let really_inside = real.as_ref().is_none_or(|real| real.starts_with(root));
    let inside = links::inside(root, path, &target).or_else(|| links::inside(root, path, real.as_deref()?));
    match inside {
        Some(target) if really_inside => Ok(What::Link { target }),
        _ => Err(Failure::new(format!(
            "the link `{}` leads out of the project, to {}",
            path.display(),
            target.display()
        ))
        .hint("copy what it leads to into the project, or deploy the directory above that holds both")),
    }
}

struct Archive<'a, W: Write> {
    root: &'a Path,
    /// The configuration's path, and what to pack in its place.
    config: (&'a Path, Option<Vec<u8>>),
    builder: Builder<GzEncoder<W>>,
    expanded_bytes: u64,
}

impl Archive<'_, BufWriter<File>> {
    fn finish(self) -> io::Result<File> {
        let writer = self.builder.into_inner()?.finish()?;
        writer.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

impl<W: Write> Archive<'_, W> {
    fn append(&mut self, entry: &Entry) -> Outcome {
        match (&entry.what, &self.config) {
            (_, (config, Some(replacement))) if entry.path == *config => {
                let mut header = header(EntryType::Regular, replacement.len() as u64, 0o644);
                self.expanded_bytes += replacement.len() as u64;
                self.builder
                    .append_data(&mut header, &entry.path, replacement.as_slice())
                    .map_err(|error| no_room(&error))
            }
            (What::Directory, _) => self
                .builder
                .append_data(&mut header(EntryType::Directory, 0, 0o755), &entry.path, io::empty())
                .map_err(|error| no_room(&error)),
            (What::Link { target }, _) => self
                .builder
                .append_link(&mut header(EntryType::Symlink, 0, 0o777), &entry.path, target)
                .map_err(|error| no_room(&error)),
            (What::File { size, executable }, _) => self.append_file(&entry.path, *size, *executable),
        }
    }

    fn append_file(&mut self, path: &Path, size: u64, executable: bool) -> Outcome {
        let file = File::open(self.root.join(path)).map_err(|error| cannot_read(path, &error))?;
        let mode = if executable { 0o755 } else { 0o644 };
        let mut content = Exactly { file, left: size, failed: None };
        let appended = self.builder.append_data(&mut header(EntryType::Regular, size, mode), path, &mut content);
        // Whose fault it was: the file's, or the archive's.
        if let Some(error) = content.failed {
            return Err(cannot_read(path, &error));
        }
        if content.left > 0 {
            return Err(Failure::new(format!("`{}` became shorter while it was packed", path.display()))
                .hint("deploy again when nothing writes to the project"));
        }
        self.expanded_bytes += size;
        appended.map_err(|error| no_room(&error))
    }
}

/// Reads as many bytes as the header promises: a file that grows is cut, one that shrinks is noticed.
struct Exactly {
    file: File,
    left: u64,
    failed: Option<io::Error>,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        match self.file.read(&mut buffer[..most]) {
            Ok(count) => {
                self.left -= count as u64;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let kind = error.kind();
                self.failed = Some(error);
                Err(kind.into())
            }
        }
    }
}

fn header(kind: EntryType, size: u64, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn cannot_read(path: &Path, error: &io::Error) -> Failure {
    Failure::because(format!("cannot read `{}` in the project", path.display()), error)
        .hint("see that you may read everything in the project")
}

fn no_room(error: &io::Error) -> Failure {
    let place = std::env::temp_dir();
    Failure::because(format!("cannot write the archive in {}", place.display()), error)
        .hint("make room there, or set TMPDIR to a directory with room")
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, SeekFrom};
    use std::os::unix::fs::symlink;

    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[&str]) -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            for file in ["wrangler.jsonc"].iter().chain(files) {
                tree.write(file, if file.starts_with("wrangler") { "{\"name\":\"a\"}" } else { file });
            }
            tree
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn link(&self, path: &str, target: &str) {
            symlink(target, self.0.path().join(path)).unwrap();
        }

        fn pack(&self) -> Outcome<Packed> {
            pack(&Project::open(self.0.path())?, None)
        }
    }

    /// Each entry as `path`, `path/` or `path -> target`, with mode and owner where they are not as usual.
    fn list(packed: &mut Packed) -> Vec<String> {
        packed.file.seek(SeekFrom::Start(0)).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&packed.file));
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (0, 0, 0));
            let path = entry.path().unwrap().display().to_string();
            match (entry.link_name().unwrap(), header.mode().unwrap()) {
                (Some(target), _) => format!("{path} -> {}", target.display()),
                (None, 0o755) if header.entry_type() == EntryType::Regular => format!("{path}*"),
                (None, _) if header.entry_type() == EntryType::Directory => format!("{}/", path.trim_end_matches('/')),
                (None, _) => path,
            }
        });
        entries.collect()
    }

    fn bytes(packed: &mut Packed) -> Vec<u8> {
        let mut all = Vec::new();
        packed.file.seek(SeekFrom::Start(0)).unwrap();
        packed.file.read_to_end(&mut all).unwrap();
        all
    }

    fn message(refused: Outcome<Packed>) -> String {
        refused.err().unwrap().report().unwrap().message().to_owned()
    }

    #[test]
    fn a_project_is_packed_sorted_and_without_what_no_deployment_needs() {
        let tree = Tree::new(&[
            "src/index.js",
            "src-b.js",
            ".git/config",
            ".scafo/node.key",
            ".wrangler/tmp/x",
            "pkg/.git",
            "node_modules/a/index.js",
            "node_modules/.cache/x",
            "src/.cache/kept",
            ".env",
            ".env.local",
            ".dev.vars",
            ".environment",
            "src/.env",
        ]);
        let mut packed = tree.pack().unwrap();
        let expected = [
            ".environment",
            "node_modules/",
            "node_modules/a/",
            "node_modules/a/index.js",
            "pkg/",
            "src/",
            "src/.cache/",
            "src/.cache/kept",
            "src/.env",
            "src/index.js",
            "src-b.js",
            "wrangler.jsonc",
        ];
        assert_eq!(list(&mut packed), expected);
        assert_eq!(packed.left_out, [".dev.vars", ".env", ".env.local"]);
        assert_eq!((packed.entries, packed.bytes), (expected.len(), bytes(&mut packed).len() as u64));
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let (one, two) = (Tree::new(&["b", "a/c", "a/b"]), Tree::new(&["a/b", "a/c", "b"]));
        std::fs::set_permissions(one.0.path().join("b"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let (mut one, mut two) = (one.pack().unwrap(), two.pack().unwrap());
        assert_eq!(bytes(&mut one), bytes(&mut two));
    }

    #[test]
    fn an_executable_stays_one() {
        let tree = Tree::new(&["tool"]);
        std::fs::set_permissions(tree.0.path().join("tool"), std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(list(&mut tree.pack().unwrap()), ["tool*", "wrangler.jsonc"]);
    }

    #[test]
    fn links_inside_go_along_and_are_not_followed() {
        let tree = Tree::new(&["store/a/index.js"]);
        std::fs::create_dir(tree.0.path().join("node_modules")).unwrap();
        tree.link("node_modules/a", "../store/a");
        tree.link("node_modules/gone", "../store/gone");
        let absolute = tree.0.path().canonicalize().unwrap().join("store");
        tree.link("absolute", absolute.to_str().unwrap());
        let listed = list(&mut tree.pack().unwrap());
        for link in ["node_modules/a -> ../store/a", "node_modules/gone -> ../store/gone", "absolute -> store"] {
            assert!(listed.contains(&link.to_owned()), "{listed:?}");
        }
    }

    #[test]
    fn an_absolute_link_into_the_project_goes_along_also_when_it_names_the_project_by_a_link() {
        let tree = Tree::new(&["store/a/index.js", "bin/tool"]);
        let elsewhere = tempfile::tempdir().unwrap();
        let alias = elsewhere.path().join("alias");
        symlink(tree.0.path(), &alias).unwrap();
        tree.link("bin/a", alias.join("store/a").to_str().unwrap());
        tree.link("all", alias.to_str().unwrap());
        let project = Project::open(&alias).unwrap();
        let listed = list(&mut pack(&project, None).unwrap());
        for link in ["bin/a -> ../store/a", "all -> ."] {
            assert!(listed.contains(&link.to_owned()), "{listed:?}");
        }
        // What cannot be followed cannot be known either.
        tree.link("gone", alias.join("store/gone").to_str().unwrap());
        assert!(message(tree.pack()).contains("`gone`"));
    }

    #[test]
    fn a_link_that_leaves_is_refused_by_name() {
        for target in ["/etc/hostname", "../../outside", "../here/../../outside"] {
            let tree = Tree::new(&["src/index.js"]);
            tree.link("src/out", target);
            assert!(message(tree.pack()).contains("`src/out`"), "{target}");
        }
    }

    #[test]
    fn a_link_through_a_link_cannot_leave_either() {
        let tree = Tree::new(&["src/index.js"]);
        tree.link("here", ".");
        // By its text it stays inside; in truth it is the directory above the project.
        tree.link("out", "here/..");
        assert!(message(tree.pack()).contains("`out`"));
    }

    #[test]
    fn what_is_neither_file_nor_directory_nor_link_is_refused_by_name() {
        let tree = Tree::new(&[]);
        let _socket = std::os::unix::net::UnixListener::bind(tree.0.path().join("socket")).unwrap();
        assert!(message(tree.pack()).contains("`socket`"));
    }

    #[test]
    fn a_changed_configuration_is_packed_in_place_of_the_file_which_stays_as_it_is() {
        let tree = Tree::new(&[]);
        let mut project = Project::open(tree.0.path()).unwrap();
        project.config_mut().set_no_bundle();
        let packed = pack(&project, None).unwrap();
        let mut file = packed.file;
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
        let mut text = String::new();
        archive.entries().unwrap().next().unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert!(text.contains("\"no_bundle\": true"));
        assert_eq!(std::fs::read_to_string(tree.0.path().join("wrangler.jsonc")).unwrap(), "{\"name\":\"a\"}");
    }

    #[test]
    fn the_state_directory_of_any_node_is_left_out_and_named() {
        let state = ["node-id", "node.key", "operator.key", "bucket.json", "logs/node.log"];
        let files: Vec<_> = state.iter().flat_map(|file| [format!("data/{file}"), format!("a/b/{file}")]).collect();
        let mut files: Vec<_> = files.iter().map(String::as_str).collect();
        files.extend(["a/kept", "c/node.key", "d/node-id"]);
        let mut packed = Tree::new(&files).pack().unwrap();
        let expected = ["a/", "a/kept", "c/", "c/node.key", "d/", "d/node-id", "wrangler.jsonc"];
        assert_eq!(list(&mut packed), expected, "one of the two alone says nothing");
        assert_eq!(packed.left_out, ["a/b", "data"]);
    }

    #[test]
    fn long_names_and_the_state_directory() {
        let deep = format!("{}/{}", "d".repeat(120), "f".repeat(200));
        let tree = Tree::new(&[&deep, "state/node.key"]);
        let project = Project::open(tree.0.path()).unwrap();
        let state = project.root().join("state");
        let listed = list(&mut pack(&project, Some(&state)).unwrap());
        assert!(listed.contains(&deep) && !listed.iter().any(|entry| entry.contains("state")));
    }
}
