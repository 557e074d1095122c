//! What applications keep on this disk, and whose it is: `celld/<name>/`, `logs/<name>.log*`, and `owners/<name>.json`, which
//! tells the one that it belongs to from all others that have, had or will have that name.
//!
//! Kept true: no application meets what another one of its name left. That is decided before a process starts, from the time of
//! creation alone, so that it holds for a deletion that this node was away for, too. The file of an owner is out of the reach of
//! the application: it could keep its data for the next one otherwise.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use scafo_core::{ApplicationName, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::log;
use super::past::Kept;
use crate::state::{Dirs, private_dir, read_json, remove, write_json};

/// One application among all of its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Owner {
    pub(crate) installation: String,
    pub(crate) created_at: Timestamp,
}

/// The owners of everything that is kept here.
#[derive(Debug)]
pub(super) struct Belongings {
    dirs: Dirs,
    /// `None`: it belongs to somebody, but whom cannot be read.
    owners: BTreeMap<ApplicationName, Option<Owner>>,
    removed: Arc<Notify>,
}

impl Belongings {
    pub(super) fn open(dirs: &Dirs) -> io::Result<Self> {
        let (owners, removed) = (BTreeMap::new(), Arc::default());
        let mut this = Self { dirs: dirs.clone(), owners, removed };
        for dir in [this.owners_dir(), this.removed_dir(), this.aside_dir()] {
            private_dir(&dir)?;
        }
        for entry in std::fs::read_dir(this.owners_dir())? {
            let path = entry?.path();
            let stem =
                path.file_stem().and_then(|stem| stem.to_str()).filter(|_| path.extension() == Some("json".as_ref()));
            let Some(Ok(name)) = stem.map(str::parse) else { continue };
            let owner = read_json(&path).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "cannot read whose data this is");
                None
            });
            this.owners.insert(name, owner);
        }
        Ok(this)
    }

    /// Whether what is kept under this name belongs to somebody else.
    pub(super) fn are_anothers(&self, application: &ApplicationName, owner: &Owner) -> bool {
        self.owners.get(application).is_some_and(|there| there.as_ref() != Some(owner))
    }

    /// Makes what is kept under this name its own: what another one left is removed; that of another installation, or of nobody
    /// knows whom, is put aside. Only while no process of that name runs.
    pub(super) fn claim(&mut self, application: &ApplicationName, owner: &Owner) -> io::Result<()> {
        match self.owners.get(application) {
            Some(Some(there)) if there == owner => return Ok(()),
            None => {}
            Some(Some(there)) if there.installation == owner.installation => {
                tracing::info!(%application, "removing what an application of this name left that was deleted");
                self.clear(application, &self.removed_dir())?;
            }
            Some(_) => {
                let aside = self.aside_dir();
                tracing::warn!(%application, path = %aside.display(), "putting aside what an application of this name left in another fleet");
                self.clear(application, &aside)?;
            }
        }
        write_json(&self.owner_file(application), owner)?;
        self.owners.insert(application.clone(), Some(owner.clone()));
        Ok(())
    }

    /// Removes everything of an application of this installation that exists no more. Only while no process of it runs.
    pub(super) fn forget(&mut self, application: &ApplicationName, installation: &str) -> io::Result<()> {
        let theirs = |owner: &Option<Owner>| owner.as_ref().is_some_and(|owner| owner.installation == installation);
        if !self.owners.get(application).is_some_and(theirs) {
            return Ok(());
        }
        tracing::info!(%application, "removing what a deleted application left");
        self.clear(application, &self.removed_dir())?;
        remove(&self.owner_file(application))?;
        self.owners.remove(application);
        Ok(())
    }

    /// Those of an installation of which something is kept.
    pub(super) fn kept<'a>(&'a self, installation: &'a str) -> impl Iterator<Item = &'a ApplicationName> {
        let theirs = self
            .owners
            .iter()
            .filter(move |(_, owner)| owner.as_ref().is_some_and(|owner| owner.installation == installation));
        theirs.map(|(name, _)| name)
    }

    /// Empties the directory of what was removed, now and whenever there is more. Ends only when it is dropped.
    pub(super) fn sweep(&self) -> impl Future<Output = ()> + use<> {
        let (dir, removed) = (self.removed_dir(), Arc::clone(&self.removed));
        async move {
            loop {
                let dir = dir.clone();
                if let Ok(Err(error)) = tokio::task::spawn_blocking(move || empty(&dir)).await {
                    tracing::warn!(%error, "cannot remove what a deleted application left; trying again later");
                }
                removed.notified().await;
            }
        }
    }

    /// Takes the data away in one step, however much it is, so that a crash leaves all of it or nothing under the name.
    fn clear(&self, application: &ApplicationName, to: &Path) -> io::Result<()> {
        let to = to.join(format!("{application}.{}", hex::encode(rand::random::<[u8; 8]>())));
        match std::fs::rename(self.dirs.application(application.as_str()), to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        log::forget(&self.dirs.log(application.as_str()))?;
        Kept::forget(&self.dirs.processes(), application);
        self.removed.notify_one();
        Ok(())
    }

    fn owners_dir(&self) -> PathBuf {
        self.dirs.state.join("owners")
    }

    fn owner_file(&self, application: &ApplicationName) -> PathBuf {
        self.owners_dir().join(format!("{application}.json"))
    }

    /// Beside the data, so that moving it there is one step; no application has a name with a dot.
    fn removed_dir(&self) -> PathBuf {
        self.dirs.application(".removed")
    }

    fn aside_dir(&self) -> PathBuf {
        self.dirs.application(".set-aside")
    }
}

fn empty(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        std::fs::remove_dir_all(entry?.path())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Disk {
        _dir: tempfile::TempDir,
        dirs: Dirs,
    }

    impl Disk {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let dirs = Dirs::create(&dir.path().join("state"), &dir.path().join("run")).unwrap();
            Self { _dir: dir, dirs }
        }

        fn open(&self) -> Belongings {
            Belongings::open(&self.dirs).unwrap()
        }

        fn data(&self) -> PathBuf {
            self.dirs.application("shop").join("watch")
        }

        fn write(&self) {
            std::fs::create_dir_all(self.data()).unwrap();
            std::fs::write(self.dirs.log("shop"), "said").unwrap();
        }

        fn is_there(&self) -> bool {
            assert_eq!(self.data().exists(), self.dirs.log("shop").exists());
            self.data().exists()
        }
    }

    fn shop() -> ApplicationName {
        "shop".parse().unwrap()
    }

    fn owner(installation: &str, created: i64) -> Owner {
        Owner { installation: installation.to_owned(), created_at: Timestamp::from_millis(created) }
    }

    #[test]
    fn an_application_finds_its_own_again_and_nothing_of_another_one_of_its_name() {
        let disk = Disk::new();
        disk.open().claim(&shop(), &owner("i", 1)).unwrap();
        disk.write();
        // Another process of ours, which was not there when it was deleted and made anew.
        let mut later = disk.open();
        assert!(!later.are_anothers(&shop(), &owner("i", 1)) && later.are_anothers(&shop(), &owner("i", 2)));
        later.claim(&shop(), &owner("i", 1)).unwrap();
        assert!(disk.is_there());
        later.claim(&shop(), &owner("i", 2)).unwrap();
        assert!(!disk.is_there());
        disk.write();
        disk.open().claim(&shop(), &owner("i", 2)).unwrap();
        assert!(disk.is_there());
    }

    #[test]
    fn only_what_belongs_to_the_installation_that_says_so_is_forgotten() {
        let disk = Disk::new();
        let mut belongings = disk.open();
        belongings.claim(&shop(), &owner("i", 1)).unwrap();
        disk.write();
        assert_eq!((belongings.kept("i").count(), belongings.kept("other").count()), (1, 0));
        belongings.forget(&shop(), "other").unwrap();
        assert!(disk.is_there());
        belongings.forget(&shop(), "i").unwrap();
        assert!(!disk.is_there());
        assert_eq!((belongings.kept("i").count(), disk.open().kept("i").count()), (0, 0));
    }

    #[test]
    fn what_belongs_to_another_installation_or_to_nobody_knows_whom_is_put_aside() {
        let disk = Disk::new();
        for (kept, belongs_to) in (1..).zip(["another's", "unreadable"]) {
            let mut belongings = disk.open();
            belongings.claim(&shop(), &owner("other", 1)).unwrap();
            disk.write();
            if belongs_to == "unreadable" {
                std::fs::write(belongings.owner_file(&shop()), "{").unwrap();
            }
            let mut belongings = disk.open();
            belongings.claim(&shop(), &owner("i", 1)).unwrap();
            assert!(!disk.is_there());
            let aside = std::fs::read_dir(belongings.aside_dir()).unwrap();
            assert_eq!(aside.filter(|entry| entry.as_ref().unwrap().path().join("watch").exists()).count(), kept);
        }
    }

    #[tokio::test]
    async fn what_was_removed_is_gone_from_the_disk_soon_also_after_a_restart() {
        let disk = Disk::new();
        let mut belongings = disk.open();
        belongings.claim(&shop(), &owner("i", 1)).unwrap();
        disk.write();
        belongings.forget(&shop(), "i").unwrap();
        let removed = belongings.removed_dir();
        assert_eq!(std::fs::read_dir(&removed).unwrap().count(), 1);
        let emptied = async {
            while std::fs::read_dir(&removed).unwrap().count() > 0 {
                tokio::task::yield_now().await;
            }
        };
        let next = disk.open();
        tokio::select! {
            () = next.sweep() => unreachable!(),
            emptied = tokio::time::timeout(std::time::Duration::from_secs(60), emptied) => emptied.unwrap(),
        }
    }
}
