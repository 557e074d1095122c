//! The stage: a directory of its own for each start of workerd, with its configuration, modules, assets and sockets.
//!
//! A new directory each time means that a start never meets what an earlier one left. What must outlive a start, the data of
//! Durable Objects, is elsewhere and named in the configuration.

use std::{
    borrow::Cow,
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use scafo_store::Bucket;

use super::{
    cache::AssetCache,
    config::{Places, render},
    load::Deployment,
};
use crate::{
    Failure,
    failure::{Context, Outcome},
};

/// Bodies that are fetched at once, as many as a deploy uploads.
const FETCHES_AT_ONCE: usize = 16;

/// Makes stages.
#[derive(Debug)]
pub(crate) struct Stage {
    /// `CELLD_WATCH/workerd`, ours alone.
    root: PathBuf,
    cache: AssetCache,
    newest_date: String,
    made: AtomicU64,
    /// Held for as long as this process lives.
    _lock: fs::File,
}

/// A stage that is set.
#[derive(Debug)]
pub(crate) struct Staged {
    directory: PathBuf,
}

/// Where Durable Objects find their data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    /// Where it belongs.
    Real,
    /// In the stage, to see whether a deployment starts at all while another one uses the real data.
    Scratch,
}

impl Stage {
    /// Takes the directory `watch/workerd` for this process and removes what earlier ones left of their stages.
    ///
    /// # Errors
    /// Another process has it: two would corrupt each other's data.
    pub(crate) async fn take(watch: &Path, cache: AssetCache, newest_date: String) -> Outcome<Self> {
        let root = watch.join("workerd");
        // Configurations hold the values of vars, which are nobody else's business.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&root)
            .context(|| format!("make {}", root.display()))?;
        let lock = root.join("lock");
        let file = fs::File::create(&lock).context(|| format!("open {}", lock.display()))?;
        // A predecessor that was killed a moment ago may not be quite gone.
        let mut tries = 0;
        while let Err(error) = file.try_lock() {
            tries += 1;
            if tries > 20 {
                let used = format!("CELLD_WATCH {} is used by another process", watch.display());
                return Err(Failure::because(used, error));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let run = root.join("run");
        match fs::remove_dir_all(&run) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::because(format!("remove {}", run.display()), error));
            }
            Ok(()) | Err(_) => {}
        }
        make_directory(&run)?;
        Ok(Self { root, cache, newest_date, made: AtomicU64::new(0), _lock: file })
    }

    /// Sets the stage for `deployment`.
    pub(crate) async fn set(
        &self,
        bucket: &dyn Bucket,
        deployment: &Deployment,
        storage: Storage,
    ) -> Outcome<Arc<Staged>> {
        let directory = self.root.join("run").join(self.made.fetch_add(1, Ordering::Relaxed).to_string());
        make_directory(&directory)?;
        let staged = Staged { directory };
        let storage = match storage {
            Storage::Real => self.root.join("storage"),
            Storage::Scratch => staged.directory.join("storage"),
        };
        self.cache.keep_within_bounds();
        for script in deployment.scripts() {
            let name = &script.manifest.script_name;
            make_directory(&storage.join(name))?;
            for (module, body) in &script.modules {
                let file = staged.directory.join("modules").join(name).join(module);
                if script.manifest.main_module.as_ref() == Some(module) {
                    write(&file, &bridged(body))?;
                } else {
                    write(&file, body)?;
                }
            }
            let Some(index) = &script.assets else { continue };
            let assets = staged.directory.join("assets").join(name);
            make_directory(&assets)?;
            // Boxed, because the compiler cannot see that futures of a closure over references may change threads.
            let mut files: Vec<BoxFuture<'_, Outcome<()>>> = Vec::with_capacity(index.entries.len());
            for (path, entry) in &index.entries {
                let file = assets.join(path.trim_start_matches('/'));
                files.push(self.cache.place(bucket, &entry.sha256, file).boxed());
            }
            stream::iter(files).buffer_unordered(FETCHES_AT_ONCE).try_collect::<()>().await?;
        }
        let config = render(deployment, &Places { storage: &storage, newest_date: &self.newest_date });
        write(&staged.config(), config.as_bytes())?;
        Ok(Arc::new(staged))
    }
}

impl Staged {
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn config(&self) -> PathBuf {
        self.directory.join("config.capnp")
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // What stays is removed at the next start.
        let _leftover = fs::remove_dir_all(&self.directory);
    }
}

/// `CommonJS` packages `require` modules of Node. esbuild leaves a helper for that in the bundle, which looks for a function of
/// this name; workerd has the modules under another one. On the first line, so that no line of the bundle moves.
const REQUIRE: &str = "var require = (name) => { const found = globalThis.process?.getBuiltinModule?.(name); \
    if (found === undefined) throw new Error(`${name} cannot be required here`); return found; }; ";

/// What esbuild's helper says when there is no `require`.
const HELPER: &[u8] = b"Dynamic require of";

fn bridged(main: &[u8]) -> Cow<'_, [u8]> {
    if main.windows(HELPER.len()).any(|window| window == HELPER) {
        Cow::Owned([REQUIRE.as_bytes(), main].concat())
    } else {
        Cow::Borrowed(main)
    }
}

pub(super) fn make_directory(path: &Path) -> Outcome<()> {
    fs::create_dir_all(path).context(|| format!("make the directory {}", path.display()))
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Outcome<()> {
    if let Some(parent) = path.parent() {
        make_directory(parent)?;
    }
    fs::write(path, bytes).context(|| format!("write {}", path.display()))
}
