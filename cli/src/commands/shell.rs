//! `scafo completions` and `scafo man`: made from the command line itself.

use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::error::{Failure, Outcome};
use crate::output::{self, Output};

/// What the pages belong to, as their heads say.
const MANUAL: &str = "scafo manual";

/// `scafo completions`
pub(super) fn completions(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "scafo", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// `scafo man`
pub(super) fn man(args: &ManArgs, output: Output) -> Outcome {
    let mut whole = Cli::command().disable_help_subcommand(true);
    whole.build();
    match &args.out {
        Some(directory) => {
            let count = all(&whole, directory)?;
            output.say(&format!("{count} pages are in {}", directory.display()));
            Ok(())
        }
        None => output::print(&page(find(&whole, &args.command)?)?),
    }
}

fn find<'a>(whole: &'a Command, path: &[String]) -> Outcome<&'a Command> {
    path.iter().try_fold(whole, |command, name| {
        command.find_subcommand(name).ok_or_else(|| {
            Failure::usage(format!("there is no command `scafo {}`", path.join(" "))).hint("see `scafo --help`")
        })
    })
}

/// Writes the page of a command and of each below it. Answers how many that were.
fn all(command: &Command, directory: &Path) -> Outcome<usize> {
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::because(format!("cannot make {}", directory.display()), &error))?;
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = directory.join(format!("{name}.1"));
    std::fs::write(&path, page(command)?)
        .map_err(|error| Failure::because(format!("cannot write {}", path.display()), &error))?;
    let below: Outcome<Vec<usize>> = command.get_subcommands().map(|below| all(below, directory)).collect();
    Ok(1 + below?.iter().sum::<usize>())
}

fn page(command: &Command) -> Outcome<String> {
    let mut roff = Vec::new();
    let version = command.get_version().unwrap_or_default();
    let man = Man::new(command.clone()).manual(MANUAL).source(format!("scafo {version}"));
    man.render(&mut roff).map_err(|error| Failure::because("cannot make the page", &error))?;
    Ok(String::from_utf8_lossy(&roff).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_under_its_own_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut whole = Cli::command().disable_help_subcommand(true);
        whole.build();
        let count = all(&whole, &dir.path().join("man1")).unwrap();
        let files: Vec<_> = std::fs::read_dir(dir.path().join("man1")).unwrap().map(|entry| entry.unwrap()).collect();
        assert_eq!(files.len(), count);
        for name in ["scafo.1", "scafo-sail.1", "scafo-app-domain-add.1", "scafo-operator-rotate.1"] {
            let page = std::fs::read_to_string(dir.path().join("man1").join(name)).unwrap();
            assert!(page.contains(".SH NAME") && page.contains(".SH DESCRIPTION"), "{name}");
        }
    }

    #[test]
    fn the_unit_points_at_the_page() {
        let unit = include_str!("../../../packaging/systemd/scafo.service");
        assert!(unit.contains("\nDocumentation=man:scafo(1) man:scafo-sail(1)\n"));
    }
}
