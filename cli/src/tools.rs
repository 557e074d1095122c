//! The programs that the development stand-in needs: `workerd` and `esbuild` from npm, pinned in `runtime/`.
//!
//! What is used are the native executables inside the packages. The scripts around them start Node, which costs time and a
//! process that does not pass signals on.

use std::path::{Path, PathBuf};

use scafo_supervisor::DevOptions;

use crate::env;
use crate::error::{Failure, Outcome};

/// Where npm puts the packages in a checkout, from its root.
const IN_CHECKOUT: &str = "runtime/node_modules";
/// How far above the executable the checkout may be: `target/debug/deps` and a directory or two.
const MAX_STEPS_UP: usize = 6;

/// Finds the tools: in `flag`, else in `SCAFO_RUNTIME_TOOLS`, else in the checkout that the executable was built in. Both are
/// given, or none; a real celld needs none of them to start.
///
/// # Errors
/// When a directory was named and the tools are not in it.
pub(crate) fn find(flag: Option<&Path>) -> Outcome<Option<DevOptions>> {
    let named = flag.map(Path::to_owned).or_else(|| env::path(env::RUNTIME_TOOLS));
    if let Some(directory) = named {
        return inside(&directory).map(Some).ok_or_else(|| {
            Failure::new(format!("{} does not hold workerd and esbuild for this machine", directory.display()))
                .hint("run `make tools`, and name the directory node_modules that it fills")
        });
    }
    let executable = std::env::current_exe().and_then(|path| path.canonicalize()).ok();
    Ok(executable.as_deref().and_then(above))
}

/// What to say when a stand-in would be needed and its tools are nowhere.
pub(crate) fn missing() -> Failure {
    Failure::new("neither celld nor the tools of the development stand-in (workerd and esbuild) are on this machine")
        .hint("run `make tools`, or name a directory with --tools DIR")
}

fn above(executable: &Path) -> Option<DevOptions> {
    executable.ancestors().skip(1).take(MAX_STEPS_UP).find_map(|directory| inside(&directory.join(IN_CHECKOUT)))
}

fn inside(directory: &Path) -> Option<DevOptions> {
    let (workerd, esbuild) = match std::env::consts::ARCH {
        "x86_64" => ("@cloudflare/workerd-linux-64", "@esbuild/linux-x64"),
        "aarch64" => ("@cloudflare/workerd-linux-arm64", "@esbuild/linux-arm64"),
        _ => return None,
    };
    let native = |package: &str, name: &str| {
        let path: PathBuf = std::path::absolute(directory.join(package).join("bin").join(name)).ok()?;
        path.is_file().then_some(path)
    };
    Some(DevOptions { workerd: Some(native(workerd, "workerd")?), esbuild: Some(native(esbuild, "esbuild")?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(node_modules: &Path) {
        for (package, name) in [
            ("@cloudflare/workerd-linux-64", "workerd"),
            ("@cloudflare/workerd-linux-arm64", "workerd"),
            ("@esbuild/linux-x64", "esbuild"),
            ("@esbuild/linux-arm64", "esbuild"),
        ] {
            let bin = node_modules.join(package).join("bin");
            std::fs::create_dir_all(&bin).unwrap();
            std::fs::write(bin.join(name), "").unwrap();
        }
    }

    #[test]
    fn tools_are_found_in_the_checkout_above_the_executable() {
        let checkout = tempfile::tempdir().unwrap();
        install(&checkout.path().join("runtime/node_modules"));
        let found = above(&checkout.path().join("target/debug/scafo")).unwrap();
        let workerd = found.workerd.unwrap();
        assert!(workerd.is_absolute() && workerd.ends_with("bin/workerd"));
        assert_eq!(above(Path::new("/nowhere/target/debug/scafo")), None);
    }

    #[test]
    fn a_named_directory_without_tools_is_an_error_that_says_how_to_fill_it() {
        let empty = tempfile::tempdir().unwrap();
        let refused = find(Some(empty.path())).err().unwrap();
        assert!(refused.report().unwrap().next().unwrap().contains("make tools"));
        install(empty.path());
        assert!(find(Some(empty.path())).is_ok_and(|found| found.is_some()));
    }
}
