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
    time::{Duration, SystemTime},
};

use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, future::BoxFuture, stream};
use scafo_store::Bucket;

use super::{
    config::{Places, render},
    load::Deployment,
};
use crate::{
    Failure,
    failure::{Context, Outcome},
    shapes::asset_blob,
    version::sha256_hex,
};

/// Bodies that are fetched at once, as many as a deploy uploads.
const FETCHES_AT_ONCE: usize = 16;

/// Largest asset, as for a deploy.
const ASSET_BYTES_MAX: u64 = 25 << 20;

/// Makes stages.
#[derive(Debug)]
pub(crate) struct Stage {
    /// `CELLD_WATCH/workerd`, ours alone.
    root: PathBuf,
    /// Bodies of assets by digest, kept over starts.
    cache: PathBuf,
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
    pub(crate) async fn take(watch: &Path, cache: &Path, newest_date: String) -> Outcome<Self> {
        let root = watch.join("workerd");
        // Configurations hold the values of vars, which are nobody else's business.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&root)
            .context(|| format!("make {}", root.display()))?;
        make_directory(cache)?;
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
        Ok(Self { root, cache: cache.to_owned(), newest_date, made: AtomicU64::new(0), _lock: file })
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
                files.push(self.place(bucket, &entry.sha256, file).boxed());
            }
            stream::iter(files).buffer_unordered(FETCHES_AT_ONCE).try_collect::<()>().await?;
        }
        let config = render(deployment, &Places { storage: &storage, newest_date: &self.newest_date });
        write(&staged.config(), config.as_bytes())?;
        Ok(Arc::new(staged))
    }

    /// Puts the body with this digest at `file`, from the cache or from the bucket.
    async fn place(&self, bucket: &dyn Bucket, sha256: &str, file: PathBuf) -> Outcome<()> {
        let cached = self.cache.join(sha256.get(..2).unwrap_or_default()).join(sha256);
        if !cached.is_file() {
            self.fetch(bucket, sha256, &cached).await?;
        }
        if let Some(parent) = file.parent() {
            make_directory(parent)?;
        }
        // A link costs nothing; across file systems it must be a copy.
        if fs::hard_link(&cached, &file).is_err() {
            fs::copy(&cached, &file).context(|| format!("place asset {}", file.display()))?;
        }
        Ok(())
    }

    async fn fetch(&self, bucket: &dyn Bucket, sha256: &str, cached: &Path) -> Outcome<()> {
        let key = asset_blob(sha256);
        let object = bucket.get_bounded(&key, ASSET_BYTES_MAX).await.context(|| format!("read {key}"))?;
        let object = object.context(|| format!("{key} is missing from the bucket: deploy again"))?;
        if sha256_hex(&object.body) != sha256 {
            return Err(Failure::new(format!("{key} is damaged in the bucket: deploy again")));
        }
        // The cache may be shared by processes; a body appears in it whole or not at all.
        let unique = format!("{sha256}.{}.{}", std::process::id(), self.made.fetch_add(1, Ordering::Relaxed));
        let partial = cached.with_file_name(unique);
        write(&partial, &object.body)?;
        // workerd makes entity tags from it: they should be the same after every start.
        let file = fs::File::open(&partial).context(|| format!("open {}", partial.display()))?;
        let _cosmetic = file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(946_684_800));
        fs::rename(&partial, cached).context(|| format!("cache {key}"))
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

/// CommonJS packages `require` modules of Node. esbuild leaves a helper for that in the bundle, which looks for a function of
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

fn make_directory(path: &Path) -> Outcome<()> {
    fs::create_dir_all(path).context(|| format!("make the directory {}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Outcome<()> {
    if let Some(parent) = path.parent() {
        make_directory(parent)?;
    }
    fs::write(path, bytes).context(|| format!("write {}", path.display()))
}
