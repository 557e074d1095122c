//! Every environment variable that the command reads by itself. The settings of a node (`SCAFO_` and the key) are the
//! configuration's, in `scafo_core::config`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// State directory of the node on this machine; also the configuration key `stateDir`.
pub(crate) const STATE_DIR: &str = "SCAFO_STATE_DIR";
/// Name of a context.
pub(crate) const CONTEXT: &str = "SCAFO_CONTEXT";
/// Base URL of a node's API.
pub(crate) const URL: &str = "SCAFO_URL";
/// File with an operator's private key.
pub(crate) const KEY: &str = "SCAFO_KEY";
/// Id of that key.
pub(crate) const OPERATOR: &str = "SCAFO_OPERATOR";
/// Directory with the tools of the development runtime.
pub(crate) const RUNTIME_TOOLS: &str = "SCAFO_RUNTIME_TOOLS";
/// Where a user's configuration is (XDG Base Directory Specification).
pub(crate) const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
/// The user's home directory.
pub(crate) const HOME: &str = "HOME";
/// No colours when it is set and not empty.
pub(crate) const NO_COLOR: &str = "NO_COLOR";

/// A variable that is set to something.
pub(crate) fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A path that is set to something.
pub(crate) fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The whole environment; what is no text cannot be a setting.
pub(crate) fn all() -> BTreeMap<String, String> {
    let texts = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(texts).collect()
}
