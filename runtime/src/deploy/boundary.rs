//! What the bundler may have read: files of the project.
//!
//! This asks esbuild's own account of a build, so it works on every kernel. What a project learns about a file outside of it
//! is the name that the project itself used for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Component, Path, PathBuf},
};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    Failure,
    failure::{Context, Outcome},
};

/// How esbuild begins a message, by severity.
const HEADERS: [&str; 2] = ["✘ [ERROR] ", "▲ [WARNING] "];

/// Settings for TypeScript that extend one another, in one chain: `TypeScript` projects have two or three.
const EXTENDS_MAX: usize = 16;

/// Largest file of settings that is looked at, in bytes: as for the project's own configuration.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;

/// The project's directory after links are followed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Boundary<'a> {
    root: &'a Path,
}

#[derive(Deserialize)]
struct Metafile {
    inputs: BTreeMap<String, Input>,
}

#[derive(Deserialize)]
struct Input {
    #[serde(default)]
    imports: Vec<Import>,
}

#[derive(Deserialize)]
struct Import {
    path: String,
    /// As the source has it. Missing where esbuild itself added the import.
    original: Option<String>,
}

impl<'a> Boundary<'a> {
    /// Of the project at `root`, which must be canonical.
    pub(crate) const fn of(root: &'a Path) -> Self {
        Self { root }
    }

    /// Refuses a build that read a file outside of the project, by the account that esbuild gives of it.
    ///
    /// # Errors
    /// The first such file, by the name of the import that led there; an account that cannot be read.
    pub(crate) fn check(self, metafile: &[u8]) -> Outcome<()> {
        let account: Metafile = serde_json::from_slice(metafile).context(|| "read esbuild's account".into())?;
        if let Some(name) = account.inputs.keys().find(|name| !self.holds(file_of(name))) {
            return Err(self.stray(&account, name));
        }
        self.check_settings(&account)
    }

    fn stray(self, account: &Metafile, name: &str) -> Failure {
        let imports =
            account.inputs.iter().flat_map(|(from, input)| input.imports.iter().map(move |import| (from, import)));
        // A file outside may import others there: only a name that the project wrote is told.
        let mut imports =
            imports.filter(|(from, import)| !self.holds(file_of(&import.path)) && self.holds(file_of(from)));
        let named = imports.clone().find(|(_, import)| import.path == name).or_else(|| imports.next());
        match named {
            Some((from, Import { original: Some(original), .. })) => Failure::new(outside(from, original)),
            Some((from, _)) => Failure::new(format!("{from}: an import is outside of the project")),
            None => Failure::new("a file outside of the project would be bundled"),
        }
    }

    /// Keeps of esbuild's messages those that are about the project.
    pub(crate) fn messages(self, said: &str) -> String {
        // Words of the forerunner, which never speaks of what a file holds.
        let mut kept = said.lines().next().filter(|line| line.starts_with("Error: ")).unwrap_or_default().to_owned();
        let messages = split(said);
        let listings = messages.iter().filter(|message| self.is_listing(message)).count();
        for message in &messages {
            // The import that needed the listing has a message too, with its place.
            if listings < messages.len() && self.is_listing(message) {
                continue;
            }
            // Writing to a string cannot fail.
            let _infallible = match self.stray_in(message) {
                None => writeln!(kept, "{}", message.join("\n").trim_end()),
                Some(complaint) => writeln!(kept, "✘ [ERROR] {complaint}"),
            };
        }
        kept
    }

    /// Whether a message only says that a directory outside could not be listed.
    fn is_listing(self, message: &[&str]) -> bool {
        let directory = message.first().and_then(|header| header.split_once("Cannot read directory "));
        let directory = directory.and_then(|(_, rest)| quoted(rest).next());
        directory.is_some_and(|directory| !self.holds(directory)) && !message.iter().any(|line| place(line).is_some())
    }

    /// What to say instead of a message that is about something outside.
    fn stray_in(self, message: &[&str]) -> Option<String> {
        let places: Vec<_> = message.iter().filter_map(|line| place(line)).collect();
        let first = places.first().copied();
        if let Some((file, _)) = places.iter().find(|(file, _)| !self.holds(file)) {
            // A link's own name looks as if it were inside; esbuild names most files by where links lead.
            return Some(format!("`{file}` is outside of the project"));
        }
        let header = message.first()?;
        let at = first.map_or_else(|| "the project".to_owned(), |(file, position)| format!("{file}:{position}"));
        if let Some((_, rest)) = header.split_once("Could not resolve ") {
            let import = quoted(rest).next()?;
            let from = first.and_then(|(file, _)| Path::new(file).parent()).unwrap_or(Path::new(""));
            let relative = import.starts_with("./") || import.starts_with("../") || import.starts_with('/');
            let strays = relative && !self.holds(&from.join(import).to_string_lossy());
            return strays.then(|| outside(&at, import));
        }
        if self.is_listing(message) {
            return Some("a directory outside of the project was named".to_owned());
        }
        if let Some((_, path)) = header.split_once("from file: ") {
            return (!self.holds(path)).then(|| format!("{at}: a file outside of the project was named"));
        }
        // esbuild names files relative to the project.
        let named = quoted(header).find(|name| name.starts_with("../") && !self.holds(name))?;
        Some(outside(&at, named))
    }

    /// Whether `file`, relative to the project, is in it, both as it is written and after links are followed.
    fn holds(self, file: &str) -> bool {
        let path = self.root.join(file);
        if !plain(&path).starts_with(self.root) {
            return false;
        }
        // What is not there was not read: esbuild also has names for what it makes itself.
        path.canonicalize().map_or(true, |path| path.starts_with(self.root))
    }

    /// Settings for TypeScript shape a bundle and may come from elsewhere, but are not in esbuild's account.
    fn check_settings(self, account: &Metafile) -> Outcome<()> {
        let directories: BTreeSet<_> =
            account.inputs.keys().flat_map(|name| Path::new(name.as_str()).ancestors().skip(1)).collect();
        for directory in directories {
            for name in ["tsconfig.json", "jsconfig.json"] {
                self.check_chain(directory.join(name))?;
            }
        }
        Ok(())
    }

    fn check_chain(self, first: PathBuf) -> Outcome<()> {
        let mut waiting = vec![(first.clone(), first)];
        for _ in 0..EXTENDS_MAX {
            let Some((file, from)) = waiting.pop() else { return Ok(()) };
            if !self.holds(&file.to_string_lossy()) {
                return Err(Failure::new(format!("{}: it leads out of the project", from.display())));
            }
            let path = self.root.join(&file);
            let sized =
                path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() <= SETTINGS_BYTES_MAX);
            let Some(text) = sized.then(|| std::fs::read_to_string(&path).ok()).flatten() else { continue };
            // esbuild has read it already, and has complained if it could not.
            let value: Value = jsonc_parser::parse_to_serde_value(&text, &Default::default()).unwrap_or_default();
            let extends = match value.get("extends") {
                Some(Value::Array(several)) => several.clone(),
                Some(one) => vec![one.clone()],
                None => Vec::new(),
            };
            let directory = file.parent().unwrap_or(Path::new(""));
            // Other names are those of packages, which are found in the project.
            let paths = extends.iter().filter_map(Value::as_str).filter(|name| name.starts_with(['.', '/']));
            for path in paths.map(|name| directory.join(name)) {
                waiting.push((path.with_added_extension("json"), file.clone()));
                waiting.push((path, file.clone()));
            }
        }
        Ok(())
    }
}

fn outside(at: &str, import: &str) -> String {
    format!("{at}: `{import}` is outside of the project: copy it into the project, or import it as a package")
}

/// The file of a name in esbuild's account, which marks files that a package left out for browsers.
fn file_of(name: &str) -> &str {
    name.strip_prefix("(disabled):").unwrap_or(name)
}

/// A path without `..` and `.`, as it is written.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(part),
        }
    }
    plain
}

/// The messages of one run. What comes before the first one is none of esbuild's and is left out.
fn split(said: &str) -> Vec<Vec<&str>> {
    let mut messages: Vec<Vec<&str>> = Vec::new();
    for line in said.lines() {
        if HEADERS.iter().any(|header| line.starts_with(header)) {
            messages.push(vec![line]);
        } else if let Some(message) = messages.last_mut() {
            message.push(line);
        }
    }
    messages
}

/// The file of a line such as `    src/index.js:1:14:`, and the position in it.
fn place(line: &str) -> Option<(&str, &str)> {
    let line = line.strip_prefix("    ")?.strip_suffix(':')?;
    let (rest, column) = line.rsplit_once(':')?;
    let (file, row) = rest.rsplit_once(':')?;
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let position = line.get(file.len() + 1..)?;
    (number(row) && number(column) && !file.starts_with(' ')).then_some((file, position))
}

/// What stands between double quotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').skip(1).step_by(2)
}

#[cfg(test)]
mod tests;
