//! Where `scripts/test-tools.sh` puts the stores of others.

use std::env;
use std::path::PathBuf;

/// An installed command.
///
/// # Panics
/// When it is not installed: says how to install it.
pub fn find(name: &str) -> PathBuf {
    let path = root().join("bin").join(name);
    assert!(path.is_file(), "{name} is not installed in {}: run `make test-tools`", root().display());
    path
}

/// The directory with everything that was installed.
///
/// # Panics
/// When nothing says where that is.
pub fn root() -> PathBuf {
    let of = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")));
    let tools = of("SCAFO_TOOLS").or_else(|| Some(cache()?.join("scafo/tools")));
    tools.expect("HOME, XDG_CACHE_HOME or SCAFO_TOOLS is set")
}
