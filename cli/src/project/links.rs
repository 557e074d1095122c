//! Symbolic links of a project: those that stay inside go along as relative links, those that leave are refused by name.
//!
//! Decided on the text of the paths. The caller has made sure that the places themselves are real: it never walks through a
//! link, so the directory that a link stands in is where its path says.

use std::path::{Component, Path, PathBuf};

/// The target to pack for a link at `place` (relative to the root) that reads `target`; `None` when it leads out of `root`
/// (absolute and canonical).
pub(super) fn inside(root: &Path, place: &Path, target: &Path) -> Option<PathBuf> {
    let directory = place.parent().unwrap_or(Path::new(""));
    if target.is_relative() && stays(directory, target) {
        return Some(target.to_owned());
    }
    // Out and back in, or absolute: the same place, spelled from inside.
    let absolute = normal(&root.join(directory).join(target));
    let within = absolute.strip_prefix(root).ok()?;
    Some(relative(directory, within))
}

/// Whether following `target` from `directory` never steps above the root on the way.
fn stays(directory: &Path, target: &Path) -> bool {
    let mut depth = directory.components().count();
    for component in target.components() {
        match component {
            Component::ParentDir if depth == 0 => return false,
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}

/// An absolute path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => out.push(component),
        }
    }
    out
}

/// The way from one directory to a place, both relative to the same root and normal.
fn relative(directory: &Path, place: &Path) -> PathBuf {
    let shared = directory.components().zip(place.components()).take_while(|(a, b)| a == b).count();
    let mut way: PathBuf = directory.components().skip(shared).map(|_| Component::ParentDir).collect();
    way.extend(place.components().skip(shared));
    if way.as_os_str().is_empty() { PathBuf::from(".") } else { way }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_stays_inside_is_kept_and_one_that_leaves_is_not() {
        for (place, target, packed) in [
            ("a", "b", Some("b")),
            ("node_modules/a", ".pnpm/a@1/node_modules/a", Some(".pnpm/a@1/node_modules/a")),
            ("x/y/link", "../../z", Some("../../z")),
            ("x/link", "..", Some("..")),
            ("link", ".", Some(".")),
            ("link", "..", None),
            ("x/link", "../../z", None),
            ("link", "/etc/passwd", None),
            ("link", "../projects/z", None),
            // Out and back in.
            ("x/link", "../../project/z", Some("../z")),
            // Absolute, into the project.
            ("x/y/link", "/home/project/x/z", Some("../z")),
            ("x/link", "/home/project", Some("..")),
            ("link", "/home/project/", Some(".")),
            ("link", "/home/project/../other", None),
        ] {
            let found = inside(Path::new("/home/project"), Path::new(place), Path::new(target));
            assert_eq!(found.as_deref(), packed.map(Path::new), "{place} -> {target}");
        }
    }
}
