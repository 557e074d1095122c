//! Giving directories to the users of [`super::Users`]. We are root here and what is below a directory is its owner's to arrange, so
//! no link is followed and no file that has another name is touched.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, fchown, fstat, openat, statat};

/// Makes a directory somebody's own, with everything below. Costs one look when it is already.
pub(crate) fn give(path: &Path, uid: u32, gid: u32, mode: u32) -> io::Result<()> {
    let metadata = std::fs::symlink_metadata(path)?;
    if metadata.uid() != uid || metadata.gid() != gid {
        give_below(&open(CWD, path)?, uid, gid)?;
        // Last, so that one that was cut off is done again.
        chownat(CWD, path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    set_mode(path, mode)
}

/// The same for a directory that stands in one which is theirs already, where they may have put anything in its place: a link there is
/// refused, and the mode stays as it is.
pub(crate) fn give_within(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let directory = open(CWD, path)?;
    let stat = fstat(&directory)?;
    if stat.st_uid != uid || stat.st_gid != gid {
        give_below(&directory, uid, gid)?;
        fchown(&directory, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    Ok(())
}

/// Changes the mode of a directory of ours, where it differs.
pub(crate) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    if std::fs::symlink_metadata(path)?.permissions().mode() & 0o7777 == mode {
        return Ok(());
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

fn open<P: rustix::path::Arg>(at: impl AsFd, path: P) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty()).map_err(io::Error::from)
}

fn give_below(directory: &OwnedFd, uid: u32, gid: u32) -> io::Result<()> {
    // A stack and not a recursion: how deep a tree is, is up to its owner.
    let mut open_ones = vec![(directory.try_clone()?, names(directory)?)];
    while let Some((directory, left)) = open_ones.last_mut() {
        let Some(name) = left.pop() else {
            open_ones.pop();
            continue;
        };
        let stat = statat(&*directory, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::Directory && stat.st_nlink > 1 {
            continue;
        }
        chownat(&*directory, &name, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW)?;
        if kind == FileType::Directory {
            let inner = open(&*directory, &name)?;
            let names = names(&inner)?;
            open_ones.push((inner, names));
        }
    }
    Ok(())
}

fn names(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let entries = Dir::read_from(directory)?.collect::<Result<Vec<_>, _>>()?;
    let names = entries.into_iter().map(|entry| entry.file_name().to_owned());
    Ok(names.filter(|name| ![c".", c".."].contains(&name.as_c_str())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_within_changes_hands_and_a_link_in_its_place_is_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root gives files away");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (inner, elsewhere) = (dir.path().join("inner"), dir.path().join("elsewhere"));
        for made in [&inner, &elsewhere] {
            std::fs::create_dir(made).unwrap();
        }
        std::fs::write(inner.join("file"), "").unwrap();
        give_within(&inner, 7007, 7008).unwrap();
        let owner = |path: &Path| std::fs::metadata(path).map(|m| (m.uid(), m.gid())).unwrap();
        assert_eq!((owner(&inner), owner(&inner.join("file"))), ((7007, 7008), (7007, 7008)));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        assert!(give_within(&link, 7007, 7008).is_err());
        assert_eq!(owner(&elsewhere).0, 0);
    }

    #[test]
    fn a_tree_changes_hands_and_what_is_linked_into_it_does_not() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root gives files away");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        std::fs::create_dir_all(own.join("a/b")).unwrap();
        std::fs::write(own.join("a/b/file"), "").unwrap();
        for name in ["secret", "linked"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink(dir.path().join("secret"), own.join("a/symlink")).unwrap();
        std::fs::hard_link(dir.path().join("linked"), own.join("hard")).unwrap();
        give(&own, 7007, 7008, 0o710).unwrap();
        let owner = |path: &Path| std::fs::metadata(path).map(|m| (m.uid(), m.gid())).unwrap();
        for given in ["own", "own/a", "own/a/b", "own/a/b/file"] {
            assert_eq!(owner(&dir.path().join(given)), (7007, 7008), "{given}");
        }
        for kept in ["secret", "linked"] {
            assert_eq!(owner(&dir.path().join(kept)).0, 0, "{kept}");
        }
        assert_eq!(std::fs::metadata(&own).unwrap().permissions().mode() & 0o7777, 0o710);
    }
}
