//! `scafo completions` and `scafo man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// Print a shell's completions of this command
///
/// bash: scafo completions bash > ~/.local/share/bash-completion/completions/scafo
///
/// zsh: scafo completions zsh > "${fpath[1]}/_scafo"
///
/// fish: scafo completions fish > ~/.config/fish/completions/scafo.fish
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// Print a manual page, in roff
///
/// To read one: scafo man deploy | man -l -
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The command that it is about, such as `app domain add` [default: scafo itself]
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<String>,

    /// Write the pages of all commands into this directory instead, each as NAME.1
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    pub(crate) out: Option<PathBuf>,
}
