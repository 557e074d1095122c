//! Where the tools are. They are given by path or found on `PATH`, never downloaded.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use crate::{Failure, environment::Environment, failure::Outcome};

/// A program that the stand-in drives.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tool {
    /// Runs Workers.
    Workerd,
    /// Bundles them.
    Esbuild,
}

impl Tool {
    const fn name(self) -> &'static str {
        match self {
            Self::Workerd => "workerd",
            Self::Esbuild => "esbuild",
        }
    }

    const fn variable(self) -> &'static str {
        match self {
            Self::Workerd => "CELLD_STANDIN_WORKERD",
            Self::Esbuild => "CELLD_ESBUILD",
        }
    }

    /// The program's path.
    pub(crate) fn find(self, environment: &Environment) -> Outcome<PathBuf> {
        let (name, variable) = (self.name(), self.variable());
        if let Some(given) = environment.text(variable) {
            // A bare name means PATH, as for any command.
            if given.contains('/') {
                return is_program(Path::new(given)).then(|| given.into()).ok_or_else(|| {
                    Failure::new(format!("{variable} is {given:?}, where there is no program: correct the path"))
                });
            }
            return on_path(given, environment)
                .ok_or_else(|| Failure::new(format!("{variable} is {given:?}, which is not on PATH")));
        }
        on_path(name, environment).ok_or_else(|| {
            Failure::new(format!("{name} was not found on PATH: install it, or set {variable} to its path"))
        })
    }
}

fn on_path(name: &str, environment: &Environment) -> Option<PathBuf> {
    std::env::split_paths(environment.get("PATH")?).map(|directory| directory.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_names_the_variable_that_says_where_it_is() {
        let nowhere = Environment::from_iter([("PATH", "/nonexistent")]);
        assert!(Tool::Esbuild.find(&nowhere).unwrap_err().chain().contains("CELLD_ESBUILD"));
        let wrong = Environment::from_iter([("CELLD_STANDIN_WORKERD", "/nonexistent/workerd")]);
        assert!(Tool::Workerd.find(&wrong).unwrap_err().chain().contains("/nonexistent/workerd"));
    }

    #[test]
    fn a_bare_name_is_looked_up_on_path() {
        let environment = Environment::from_iter([("CELLD_ESBUILD", "sh"), ("PATH", "/bin:/usr/bin")]);
        assert!(Tool::Esbuild.find(&environment).unwrap().ends_with("sh"));
    }
}
