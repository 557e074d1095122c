//! A Worker project on this machine: its configuration, and the archive that goes to the node.

pub(crate) mod config;
mod links;
pub(crate) mod pack;

use std::path::{Path, PathBuf};

use crate::error::{Failure, Outcome};
use crate::project::config::WranglerConfig;

/// The names under which the node looks for the configuration, in its order.
pub(crate) const CONFIG_NAMES: [&str; 2] = ["wrangler.jsonc", "wrangler.json"];

const WHICH_DIRECTORY: &str = "give the directory of a Worker project, the one with wrangler.jsonc: scafo deploy DIR";

/// A directory with a configuration in it.
#[derive(Debug)]
pub(crate) struct Project {
    root: PathBuf,
    config_name: &'static str,
    config: WranglerConfig,
}

impl Project {
    /// Opens the project in `directory`.
    ///
    /// # Errors
    /// When it is no directory, has no configuration that the node reads, or has one that cannot be read.
    pub(crate) fn open(directory: &Path) -> Outcome<Self> {
        let root = directory.canonicalize().map_err(|error| {
            Failure::because(format!("cannot open the project {}", directory.display()), &error).hint(WHICH_DIRECTORY)
        })?;
        if !root.is_dir() {
            return Err(Failure::new(format!("{} is no directory", directory.display())).hint(WHICH_DIRECTORY));
        }
        let Some(config_name) = CONFIG_NAMES.into_iter().find(|name| root.join(name).is_file()) else {
            return Err(without_config(directory, &root));
        };
        let config = WranglerConfig::read(&root.join(config_name))?;
        Ok(Self { root, config_name, config })
    }

    /// The directory, canonical.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Name of the configuration file that counts.
    pub(crate) const fn config_name(&self) -> &'static str {
        self.config_name
    }

    /// The configuration.
    pub(crate) const fn config(&self) -> &WranglerConfig {
        &self.config
    }

    /// The configuration, to be changed for this deploy.
    pub(crate) const fn config_mut(&mut self) -> &mut WranglerConfig {
        &mut self.config
    }
}

fn without_config(directory: &Path, root: &Path) -> Failure {
    let shown = directory.display();
    let [first, second] = CONFIG_NAMES;
    if root.join("wrangler.toml").exists() {
        return Failure::new(format!("{shown} has a wrangler.toml only, which nodes do not read"))
            .hint(format!("write the same settings as JSON into {first} or {second}"));
    }
    Failure::new(format!("{shown} has neither {first} nor {second}")).hint(WHICH_DIRECTORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(files: &[(&str, &str)]) -> Outcome<Project> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        Project::open(dir.path())
    }

    fn message(refused: Outcome<Project>) -> String {
        refused.err().unwrap().report().unwrap().message().to_owned()
    }

    #[test]
    fn jsonc_comes_before_json() {
        let both = [("wrangler.json", r#"{"name":"second"}"#), ("wrangler.jsonc", r#"{"name":"first"} // here"#)];
        let project = open(&both).unwrap();
        assert_eq!((project.config_name(), project.config().name()), ("wrangler.jsonc", Some("first")));
        assert_eq!(open(&both[..1]).unwrap().config().name(), Some("second"));
    }

    #[test]
    fn a_directory_without_configuration_names_the_two_files() {
        let said = message(open(&[("index.js", "")]));
        assert!(said.contains("wrangler.jsonc") && said.contains("wrangler.json"), "{said}");
        assert!(message(open(&[("wrangler.toml", "")])).contains("wrangler.toml"));
        assert!(Project::open(Path::new("/nonexistent/project")).is_err());
    }

    #[test]
    fn a_configuration_that_is_no_json_says_where() {
        let said = message(open(&[("wrangler.jsonc", "{\n  \"name\": \"a\n}")]));
        assert!(said.contains("line 2"), "{said}");
    }
}
