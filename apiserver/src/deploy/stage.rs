//! The stage: one directory for each deploy, `stage/<deploy id>/`, with `artifact`, `meta.json`, `tree/` and `unpacked.json`.
//!
//! `meta.json` is written last and at once, when the artifact is whole on the disk. A directory without it was never
//! acknowledged to anybody. `unpacked.json` says the same of the tree, within one boot of the machine: see [`Project`].

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use scafo_core::id::DeployId;
use scafo_core::record::{Artifact, Source};
use scafo_proto::boot::Boot;
use serde::{Deserialize, Serialize};

/// What is known of a staged deploy beside its artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    /// Its id.
    pub(crate) id: DeployId,
    /// Who deploys.
    pub(crate) by: String,
    /// Where the code came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<Source>,
    /// What the workload token that brought it said, verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) oidc: Option<serde_json::Value>,
    /// The artifact.
    pub(crate) artifact: Artifact,
    /// When its application was made, as the registry daemon said it. Empty for what an earlier build staged.
    #[serde(default)]
    pub(crate) application_since: String,
}

/// Every staged deploy of this node.
pub(super) struct Stage {
    dir: PathBuf,
}

/// One deploy's directory. Dropping it removes the directory, unless it was told to stay.
#[derive(Debug)]
pub(super) struct Staged {
    dir: PathBuf,
    stays: bool,
}

impl Stage {
    /// Opens the stage. Gives back the deploys with everything they need, oldest first, and removes what was never acknowledged.
    pub(super) fn open(dir: &Path) -> io::Result<(Self, Vec<(Staged, Meta)>)> {
        let dir = dir.join("stage");
        // The group are deploy jobs, where they are users of their own: they read what was unpacked, and nothing else of ours.
        DirBuilder::new().recursive(true).mode(0o750).create(&dir)?;
        let mut left = Vec::new();
        for entry in fs::read_dir(&dir)? {
            // Removed when it is dropped.
            let staged = Staged { dir: entry?.path(), stays: false };
            match staged.load() {
                Ok(None) => {}
                Ok(Some(meta)) => {
                    left.push((Staged { stays: true, dir: staged.dir.clone() }, meta));
                    staged.stay();
                }
                Err(error) => {
                    tracing::error!(path = %staged.dir.display(), %error, "an acknowledged deploy cannot be read; it is left where it is");
                    staged.stay();
                }
            }
        }
        // The registry daemon keeps to the order of acceptance in any case; this one lets the first be unpacked first.
        left.sort_by(|(a, x), (b, y)| (a.completed_at(), &x.id).cmp(&(b.completed_at(), &y.id)));
        Ok((Self { dir }, left))
    }

    pub(super) fn create(&self, id: &DeployId) -> io::Result<Staged> {
        let dir = self.dir.join(id.as_str());
        DirBuilder::new().mode(0o750).create(&dir)?;
        Ok(Staged { dir, stays: false })
    }
}

impl Staged {
    /// Where the artifact goes.
    pub(super) fn artifact(&self) -> PathBuf {
        self.dir.join("artifact")
    }

    /// What is unpacked from it.
    pub(super) fn project(&self) -> Project {
        Project { dir: self.dir.clone() }
    }

    /// Completes the stage, durably. From here on a crash leaves it in place.
    pub(super) fn complete(&mut self, meta: &Meta) -> io::Result<()> {
        let fresh = self.dir.join("meta.json.new");
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(&scafo_core::record::to_bytes(meta))?;
        file.sync_all()?;
        fs::rename(&fresh, self.dir.join("meta.json"))?;
        for dir in [Some(self.dir.as_path()), self.dir.parent()].into_iter().flatten() {
            File::open(dir)?.sync_all()?;
        }
        self.stays = true;
        Ok(())
    }

    /// Leaves the directory where it is.
    pub(super) fn stay(mut self) {
        self.stays = true;
    }

    /// Removes the directory.
    pub(super) fn remove(mut self) {
        self.stays = false;
    }

    /// When it was complete, which is right before it was accepted.
    fn completed_at(&self) -> Option<SystemTime> {
        fs::metadata(self.dir.join("meta.json")).and_then(|meta| meta.modified()).ok()
    }

    /// What is known of it; `Ok(None)` for what was never acknowledged.
    ///
    /// # Errors
    /// It was acknowledged, and what is there does not go together: a person, or a next start with a disk that answers, can tell.
    fn load(&self) -> io::Result<Option<Meta>> {
        let text = match fs::read(self.dir.join("meta.json")) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let meta: Meta = serde_json::from_slice(&text)?;
        let artifact = fs::metadata(self.artifact())?;
        let named = self.dir.file_name().is_some_and(|name| name == meta.id.as_str());
        if named && artifact.is_file() && artifact.len() == meta.artifact.bytes {
            return Ok(Some(meta));
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the artifact is not the one that meta.json describes"))
    }
}

/// What the artifact of one deploy unpacks to.
///
/// Nobody is offered a tree before it is noted that it is whole. From then on a job may read it at any moment, and goes on reading
/// when this process ends: so it stays as it is for as long as its deploy is carried, and the next process offers it again instead of
/// unpacking under the eyes of a job. Only the end of the machine may leave files empty or half, and it leaves no job either.
#[derive(Debug, Clone)]
pub(super) struct Project {
    dir: PathBuf,
}

/// That a tree is whole.
#[derive(Debug, Serialize, Deserialize)]
struct Whole {
    /// In which boot of the machine it was unpacked.
    boot: String,
    /// Bytes of all its files.
    bytes: u64,
}

impl Project {
    /// Where it is unpacked.
    pub(super) fn tree(&self) -> PathBuf {
        self.dir.join("tree")
    }

    fn note(&self) -> PathBuf {
        self.dir.join("unpacked.json")
    }

    /// Bytes of all files, when the tree is known to be whole. Whatever cannot be read says nothing.
    pub(super) fn whole(&self) -> Option<u64> {
        let whole: Whole = serde_json::from_slice(&fs::read(self.note()).ok()?).ok()?;
        (whole.boot == Boot::current().ok()?.as_str() && self.tree().is_dir()).then_some(whole.bytes)
    }

    /// Notes that the tree is whole.
    pub(super) fn complete(&self, bytes: u64) -> io::Result<()> {
        let fresh = self.dir.join("unpacked.json.new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(&scafo_core::record::to_bytes(&Whole { boot: Boot::current()?.as_str().to_owned(), bytes }))?;
        fs::rename(&fresh, self.note())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        if let Err(error) = clear(&self.dir) {
            tracing::warn!(%error, "what was staged stays on the disk until the next start");
        }
    }
}

/// Removes what is staged in `dir`, `meta.json` before anything else: without it the next start takes the rest for what was never
/// acknowledged to anybody, and removes it.
fn clear(dir: &Path) -> io::Result<()> {
    if !dir.is_dir() {
        return fs::remove_file(dir);
    }
    match fs::remove_file(dir.join("meta.json")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::remove_dir_all(dir),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(id: &str) -> Meta {
        let artifact = Artifact { sha256: "00".repeat(32), bytes: 3 };
        Meta {
            id: id.parse().unwrap(),
            by: "op".to_owned(),
            source: None,
            oidc: None,
            artifact,
            application_since: String::new(),
        }
    }

    #[test]
    fn what_is_complete_is_found_again_and_what_is_not_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (stage, left) = Stage::open(dir.path()).unwrap();
        assert!(left.is_empty());
        let whole = meta("shop.0000000000000001");
        let mut staged = stage.create(&whole.id).unwrap();
        fs::write(staged.artifact(), "abc").unwrap();
        staged.complete(&whole).unwrap();
        drop(staged);
        stage.create(&"shop.0000000000000002".parse().unwrap()).unwrap().stay();
        fs::write(dir.path().join("stage/stray"), "").unwrap();

        let (_, left) = Stage::open(dir.path()).unwrap();
        assert_eq!(left.iter().map(|(_, meta)| meta).collect::<Vec<_>>(), [&whole]);
        assert_eq!(fs::read_dir(dir.path().join("stage")).unwrap().count(), 1);
        left.into_iter().for_each(|(staged, _)| staged.remove());
        assert_eq!(fs::read_dir(dir.path().join("stage")).unwrap().count(), 0);
    }

    #[test]
    fn what_was_acknowledged_and_cannot_be_read_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (stage, _) = Stage::open(dir.path()).unwrap();
        for (id, artifact, text) in [("shop.0000000000000001", "abc", Some("{")), ("shop.0000000000000002", "ab", None)]
        {
            let mut staged = stage.create(&id.parse().unwrap()).unwrap();
            fs::write(staged.artifact(), artifact).unwrap();
            staged.complete(&meta(id)).unwrap();
            if let Some(text) = text {
                fs::write(staged.dir.join("meta.json"), text).unwrap();
            }
        }
        let (_, left) = Stage::open(dir.path()).unwrap();
        assert!(left.is_empty());
        assert_eq!(fs::read_dir(dir.path().join("stage")).unwrap().count(), 2);
    }

    #[test]
    fn a_stage_that_was_half_cleared_is_gone_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let (stage, _) = Stage::open(dir.path()).unwrap();
        let whole = meta("shop.0000000000000001");
        let mut staged = stage.create(&whole.id).unwrap();
        fs::write(staged.artifact(), "abc").unwrap();
        staged.complete(&whole).unwrap();
        // In the place of `meta.json` is what cannot be removed as a file: clearing ends at it.
        let (artifact, at) = (staged.artifact(), staged.dir.join("meta.json"));
        fs::remove_file(&at).unwrap();
        fs::create_dir(&at).unwrap();
        staged.remove();
        assert!(artifact.is_file(), "nothing is removed before `meta.json`");

        fs::remove_dir(&at).unwrap();
        let (_, left) = Stage::open(dir.path()).unwrap();
        assert!(left.is_empty());
        assert_eq!(fs::read_dir(dir.path().join("stage")).unwrap().count(), 0);
    }

    #[test]
    fn what_was_staged_first_is_found_first() {
        let dir = tempfile::tempdir().unwrap();
        let (stage, _) = Stage::open(dir.path()).unwrap();
        let ids = ["shop.0000000000000003", "shop.0000000000000001", "shop.0000000000000002"];
        for (at, id) in (1..).zip(ids) {
            let mut staged = stage.create(&id.parse().unwrap()).unwrap();
            fs::write(staged.artifact(), "abc").unwrap();
            staged.complete(&meta(id)).unwrap();
            let file = File::options().write(true).open(staged.dir.join("meta.json")).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(at)).unwrap();
        }
        let (_, left) = Stage::open(dir.path()).unwrap();
        assert_eq!(left.iter().map(|(_, meta)| meta.id.as_str()).collect::<Vec<_>>(), ids);
    }

    #[test]
    fn a_tree_is_whole_once_that_is_noted_and_only_in_the_same_boot() {
        let dir = tempfile::tempdir().unwrap();
        let (stage, _) = Stage::open(dir.path()).unwrap();
        let staged = stage.create(&"shop.0000000000000001".parse().unwrap()).unwrap();
        let project = staged.project();
        assert_eq!(project.whole(), None);
        fs::create_dir(project.tree()).unwrap();
        assert_eq!(project.whole(), None, "nobody knows how much of it is there");
        project.complete(7).unwrap();
        assert_eq!(staged.project().whole(), Some(7));
        let another = Whole { boot: "another boot\n".to_owned(), bytes: 7 };
        for note in [scafo_core::record::to_bytes(&another), b"{".to_vec(), Vec::new()] {
            fs::write(project.note(), note).unwrap();
            assert_eq!(project.whole(), None);
        }
        project.complete(8).unwrap();
        fs::remove_dir(project.tree()).unwrap();
        assert_eq!(project.whole(), None);
    }

    #[test]
    fn an_abandoned_stage_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (stage, _) = Stage::open(dir.path()).unwrap();
        drop(stage.create(&"shop.0000000000000001".parse().unwrap()).unwrap());
        assert_eq!(fs::read_dir(dir.path().join("stage")).unwrap().count(), 0);
    }
}
