//! One module from a project: esbuild's bundle, or the entry point as it is.

use std::{collections::BTreeMap, io::Read as _, path::Path, process::Command};

use super::{
    boundary::Boundary,
    config::{Bundling, Entry, Loader},
    confine::Confinement,
};
use crate::{
    Failure,
    environment::Environment,
    failure::{Context, Outcome},
    tools::Tool,
};

/// What every main module is called.
pub(crate) const MAIN_MODULE: &str = "index.js";

/// Largest module, in bytes: ten times what Cloudflare takes for a whole Worker on the largest plan.
const MODULE_BYTES_MAX: u64 = 100 << 20;

/// How much of esbuild's own words goes into an error.
const MESSAGE_BYTES_MAX: u64 = 16 << 10;

/// Modules of Node that Workers may import without `node:`. They stay outside of the bundle.
const NODE_MODULES: [&str; 54] = [
    "assert",
    "assert/strict",
    "async_hooks",
    "buffer",
    "child_process",
    "cluster",
    "console",
    "constants",
    "crypto",
    "dgram",
    "diagnostics_channel",
    "dns",
    "dns/promises",
    "domain",
    "events",
    "fs",
    "fs/promises",
    "http",
    "http2",
    "https",
    "inspector",
    "module",
    "net",
    "os",
    "path",
    "path/posix",
    "path/win32",
    "perf_hooks",
    "process",
    "punycode",
    "querystring",
    "readline",
    "readline/promises",
    "repl",
    "stream",
    "stream/consumers",
    "stream/promises",
    "stream/web",
    "string_decoder",
    "sys",
    "timers",
    "timers/promises",
    "tls",
    "trace_events",
    "tty",
    "url",
    "util",
    "util/types",
    "v8",
    "vm",
    "wasi",
    "worker_threads",
    "zlib",
    "inspector/promises",
];

/// The main module, and the wasm modules beside it, by name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bundle {
    pub main: Vec<u8>,
    pub wasm: BTreeMap<String, Vec<u8>>,
}

/// Makes the modules of `entry`.
///
/// # Errors
/// No esbuild, esbuild's own complaint, or a file that cannot be read.
pub(crate) fn bundle(root: &Path, entry: &Entry, environment: &Environment) -> Outcome<Bundle> {
    match &entry.bundling {
        Bundling::None => as_it_is(root, entry),
        Bundling::Esbuild { define, loaders } => esbuild(root, entry, define, loaders, environment),
    }
}

fn as_it_is(root: &Path, entry: &Entry) -> Outcome<Bundle> {
    let path = root.join(&entry.path);
    let main = read(&path)?;
    let mut wasm = BTreeMap::new();
    let directory = path.parent().unwrap_or(root);
    for file in std::fs::read_dir(directory).context(|| format!("read {}", directory.display()))? {
        let file = file.context(|| format!("read {}", directory.display()))?;
        let name = file.file_name();
        if let Some(name) = name.to_str().filter(|name| is_wasm(name))
            && file.file_type().is_ok_and(|kind| kind.is_file())
            && file.path() != path
        {
            wasm.insert(name.to_owned(), read(&file.path())?);
        }
    }
    Ok(Bundle { main, wasm })
}

fn is_wasm(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "wasm")
}

fn esbuild(
    root: &Path,
    entry: &Entry,
    define: &BTreeMap<String, String>,
    loaders: &BTreeMap<String, Loader>,
    environment: &Environment,
) -> Outcome<Bundle> {
    let program = Tool::Esbuild.find(environment)?;
    let program = std::path::absolute(&program).context(|| format!("resolve {}", program.display()))?;
    let confinement = Confinement::available(&program);
    driven(&program, confinement, root, entry, define, loaders)
}

/// Runs esbuild and collects what it wrote, unless it read what is not the project's.
fn driven(
    program: &Path,
    confinement: Confinement,
    root: &Path,
    entry: &Entry,
    define: &BTreeMap<String, String>,
    loaders: &BTreeMap<String, Loader>,
) -> Outcome<Bundle> {
    let root = root.canonicalize().context(|| format!("resolve {}", root.display()))?;
    let boundary = Boundary::of(&root);
    let output = tempfile::tempdir().context(|| "make a directory for the bundle".into())?;
    // Apart from the modules, whatever a rule calls a module.
    let (modules, account) = (output.path().join("modules"), output.path().join("account.json"));
    let mut command = confinement.command(program, &root, output.path())?;
    command
        .arg(&entry.path)
        .args(["--bundle", "--format=esm", "--platform=browser", "--target=es2024"])
        .args(["--conditions=workerd,worker,browser", "--external:node:*", "--external:cloudflare:*"])
        .args(NODE_MODULES.iter().map(|name| format!("--external:{name}")))
        .args(loaders.iter().map(|(extension, loader)| format!("--loader:{extension}={}", loader.word())))
        .args(define.iter().map(|(name, value)| format!("--define:{name}={value}")))
        .arg(format!("--outdir={}", modules.display()))
        .args(["--entry-names=index", "--log-level=warning", "--log-limit=10", "--color=false"])
        .arg(format!("--metafile={}", account.display()));
    run(command, boundary)?;
    boundary.check(&read(&account)?)?;
    let main = read(&modules.join(MAIN_MODULE))?;
    let mut wasm = BTreeMap::new();
    for file in std::fs::read_dir(&modules).context(|| "read esbuild's output".into())? {
        let file = file.context(|| "read esbuild's output".into())?;
        let name = file.file_name().to_string_lossy().into_owned();
        let copied = loaders.iter().any(|(extension, loader)| *loader == Loader::Copy && name.ends_with(extension));
        if copied && name != MAIN_MODULE {
            wasm.insert(name, read(&file.path())?);
        }
    }
    Ok(Bundle { main, wasm })
}

impl Loader {
    const fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Binary => "binary",
            Self::Copy => "copy",
        }
    }
}

/// Runs esbuild to its end. Whoever started this deploy bounds its time.
fn run(mut command: Command, boundary: Boundary<'_>) -> Outcome<()> {
    let mut child = command.spawn().context(|| "start esbuild".into())?;
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        let mut stderr = stderr.take(MESSAGE_BYTES_MAX);
        stderr.read_to_end(&mut said).context(|| "read esbuild's messages".into())?;
        // The rest is not kept, but must be read, or esbuild would wait for us.
        std::io::copy(&mut stderr.into_inner(), &mut std::io::sink()).context(|| "read esbuild's messages".into())?;
    }
    let status = child.wait().context(|| "wait for esbuild".into())?;
    if status.success() {
        return Ok(());
    }
    let messages = boundary.messages(&String::from_utf8_lossy(&said));
    if messages.is_empty() {
        return Err(Failure::new(format!(
            "esbuild failed ({status}) without a word: look whether it runs on this machine"
        )));
    }
    Err(Failure::new(format!("esbuild failed ({status}):\n{}", messages.trim_end())))
}

fn read(path: &Path) -> Outcome<Vec<u8>> {
    let shown = path.display();
    let size = path.metadata().context(|| format!("read {shown}"))?.len();
    if size > MODULE_BYTES_MAX {
        return Err(Failure::new(format!("module {shown} has {size} bytes: at most {MODULE_BYTES_MAX} are deployed")));
    }
    std::fs::read(path).context(|| format!("read {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_bundling_the_entry_is_kept_byte_for_byte_with_its_wasm() {
        let project = tempfile::tempdir().unwrap();
        for (name, body) in [("worker.mjs", "export default {}"), ("add.wasm", "\0asm"), ("notes.txt", "no")] {
            std::fs::write(project.path().join(name), body).unwrap();
        }
        let entry = Entry { path: "worker.mjs".into(), bundling: Bundling::None };
        let bundle = bundle(project.path(), &entry, &Environment::default()).unwrap();
        assert_eq!(bundle.main, b"export default {}");
        assert_eq!(bundle.wasm.keys().collect::<Vec<_>>(), ["add.wasm"]);
    }

    #[test]
    fn a_missing_bundler_is_named() {
        let entry = Entry {
            path: "a.js".into(),
            bundling: Bundling::Esbuild { define: BTreeMap::new(), loaders: BTreeMap::new() },
        };
        let nowhere = Environment::from_iter([("PATH", "/nonexistent")]);
        assert!(bundle(Path::new("."), &entry, &nowhere).unwrap_err().chain().contains("CELLD_ESBUILD"));
    }
}
