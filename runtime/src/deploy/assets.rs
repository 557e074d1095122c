//! The assets of a project: what may be published, and the index of it.

use std::{
    collections::BTreeMap,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::config::{contained, inside};
use crate::{
    Failure,
    failure::{Context, Outcome},
    names::is_plain_relative,
    shapes::{AssetConfig, AssetEntry, AssetIndex, RunWorkerFirst},
    version::sha256_hex,
};

// celld's own limits.
const FILES_MAX: usize = 20_000;
const FILE_BYTES_MAX: u64 = 25 << 20;
const TOTAL_BYTES_MAX: u64 = 1 << 30;
const DIRECTIVE_BYTES_MAX: u64 = 100 << 10;
const PATH_BYTES_MAX: usize = 1024;
const ROUTES_MAX: usize = 100;
const ROUTE_BYTES_MAX: usize = 100;

/// Directories within directories: as deep as a path of [`PATH_BYTES_MAX`] bytes can go is far deeper than any project.
const DEPTH_MAX: usize = 64;

/// The asset settings of a project.
#[derive(Debug)]
pub(crate) struct ProjectAssets {
    pub directory: PathBuf,
    pub config: AssetConfig,
    /// What of it goes into the metadata.
    pub metadata: Value,
}

/// The assets as they are published.
#[derive(Debug)]
pub(crate) struct BuiltAssets {
    /// The exact bytes of `assets.json`.
    pub index: Vec<u8>,
    /// The file of every body, by its digest.
    pub bodies: BTreeMap<String, PathBuf>,
    pub file_count: u32,
    pub total_bytes: u64,
}

/// Checks the `assets` of a configuration.
pub(super) fn read(value: &Value, root: &Path, config: &Map<String, Value>) -> Outcome<ProjectAssets> {
    let object = value.as_object().context(|| "`assets` must be an object".into())?;
    let keys = ["directory", "binding", "html_handling", "not_found_handling", "run_worker_first"];
    if let Some(key) = object.keys().find(|key| !keys.contains(&key.as_str())) {
        return Err(Failure::new(format!("`assets.{key}` is not supported: remove it")));
    }
    let path = inside(object.get("directory").unwrap_or(&Value::Null), "assets.directory")?;
    let directory = root.join(&path);
    let metadata = std::fs::symlink_metadata(&directory)
        .context(|| format!("`assets.directory`: read {}", directory.display()))?;
    if !metadata.is_dir() {
        return Err(Failure::new(format!("`assets.directory`: {} is not a directory", directory.display())));
    }
    contained(root, &path, "assets.directory")?;
    let binding = match object.get("binding") {
        None => None,
        Some(binding) => Some(binding.as_str().context(|| "`assets.binding` must be a string".into())?.to_owned()),
    };
    let html = ["auto-trailing-slash", "force-trailing-slash", "drop-trailing-slash", "none"];
    let html_handling = mode(object, "html_handling", &html)?;
    let not_found_handling = mode(object, "not_found_handling", &["none", "single-page-application", "404-page"])?;
    let run_worker_first = worker_first(object.get("run_worker_first"))?;
    let headers = directive(&directory, "_headers")?;
    let redirects = directive(&directory, "_redirects")?;
    let date = config.get("compatibility_date").and_then(Value::as_str).map(str::to_owned);
    let flags = config.get("compatibility_flags").and_then(Value::as_array);
    let flags = flags.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();

    // Only what was written goes into the metadata; the index has the defaults too.
    let mut written = Map::new();
    for key in ["html_handling", "not_found_handling", "run_worker_first"] {
        if let Some(value) = object.get(key) {
            written.insert(key.to_owned(), value.clone());
        }
    }
    for (key, text) in [("_headers", &headers), ("_redirects", &redirects)] {
        if let Some(text) = text {
            written.insert(key.to_owned(), json!(text));
        }
    }
    Ok(ProjectAssets {
        directory,
        config: AssetConfig {
            binding,
            html_handling: Some(html_handling),
            not_found_handling: Some(not_found_handling),
            run_worker_first,
            headers,
            redirects,
            compatibility_date: date,
            compatibility_flags: flags,
        },
        metadata: json!({ "config": written }),
    })
}

/// One of the `modes`, the first being the default.
fn mode(object: &Map<String, Value>, key: &str, modes: &[&str]) -> Outcome<String> {
    let default = Value::from(modes.first().copied().unwrap_or_default());
    let value = object.get(key).unwrap_or(&default);
    match value.as_str() {
        Some(mode) if modes.contains(&mode) => Ok(mode.to_owned()),
        Some(_) | None => {
            Err(Failure::new(format!("`assets.{key}` is {value}: it must be one of {}", modes.join(", "))))
        }
    }
}

fn worker_first(value: Option<&Value>) -> Outcome<RunWorkerFirst> {
    let Some(value) = value else { return Ok(RunWorkerFirst::default()) };
    let parsed = serde_json::from_value(value.clone());
    let parsed =
        parsed.map_err(|_| Failure::new("`assets.run_worker_first` must be true, false or a list of routes"))?;
    let RunWorkerFirst::Routes(routes) = &parsed else { return Ok(parsed) };
    if routes.is_empty() || routes.len() > ROUTES_MAX {
        return Err(Failure::new(format!("`assets.run_worker_first` must have 1 to {ROUTES_MAX} routes")));
    }
    for (index, route) in routes.iter().enumerate() {
        let path = route.strip_prefix('!').unwrap_or(route);
        if !path.starts_with('/')
            || route.len() > ROUTE_BYTES_MAX
            || route.contains(['\\', '\0'])
            || routes.iter().take(index).any(|earlier| earlier == route)
        {
            return Err(Failure::new(format!("`assets.run_worker_first` has the route {route:?}, which is none")));
        }
    }
    if routes.iter().all(|route| route.starts_with('!')) {
        return Err(Failure::new("`assets.run_worker_first` has exceptions only: name at least one route"));
    }
    Ok(parsed)
}

fn directive(directory: &Path, name: &str) -> Outcome<Option<String>> {
    let path = directory.join(name);
    let metadata = match std::fs::symlink_metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::because(format!("read {}", path.display()), error)),
    };
    if !metadata.is_file() || metadata.len() > DIRECTIVE_BYTES_MAX {
        return Err(Failure::new(format!("{} must be a regular file of at most 100 KiB", path.display())));
    }
    std::fs::read_to_string(&path).map(Some).context(|| format!("read {}", path.display()))
}

/// Reads every file once, for its digest; bodies are read again when they are uploaded.
pub(crate) fn build(project: &ProjectAssets) -> Outcome<BuiltAssets> {
    let mut files = Vec::new();
    collect(&project.directory, "", 0, &mut files)?;
    files.sort();
    let (mut entries, mut bodies, mut total_bytes) = (BTreeMap::new(), BTreeMap::new(), 0);
    for (relative, path) in files {
        let shown = path.display();
        let size = path.metadata().context(|| format!("read {shown}"))?.len();
        if size > FILE_BYTES_MAX {
            return Err(Failure::new(format!("asset /{relative} is larger than 25 MiB")));
        }
        let body = std::fs::read(&path).context(|| format!("read {shown}"))?;
        total_bytes += body.len() as u64;
        if total_bytes > TOTAL_BYTES_MAX {
            return Err(Failure::new("the assets are larger than 1 GiB together"));
        }
        let sha256 = sha256_hex(&body);
        let content_type = content_type(&path).map(str::to_owned);
        entries.insert(
            format!("/{relative}"),
            AssetEntry { sha256: sha256.clone(), bytes: body.len() as u64, content_type },
        );
        bodies.entry(sha256).or_insert(path);
    }
    let file_count = u32::try_from(entries.len()).context(|| "count the assets".into())?;
    let index = AssetIndex { schema_version: 1, entries, config: project.config.clone() };
    let index = serde_json::to_vec(&index).context(|| "encode the asset index".into())?;
    Ok(BuiltAssets { index, bodies, file_count, total_bytes })
}

fn collect(directory: &Path, relative: &str, depth: usize, files: &mut Vec<(String, PathBuf)>) -> Outcome<()> {
    let entries = std::fs::read_dir(directory).context(|| format!("read {}", directory.display()))?;
    for entry in entries {
        let entry = entry.context(|| format!("read {}", directory.display()))?;
        let path = entry.path();
        let refused = |why: &str| Err(Failure::new(format!("asset {} {why}", path.display())));
        let name = entry.file_name();
        let Some(name) = name.to_str() else { return refused("has a name that is not UTF-8") };
        match (relative.is_empty(), name) {
            (true, ".assetsignore") => return refused("is not supported: remove it"),
            (true, "_worker.js") => return refused("is the source of a Worker: set `main` instead"),
            (true, "_headers" | "_redirects") => continue,
            _ => {}
        }
        let child = if relative.is_empty() { name.to_owned() } else { format!("{relative}/{name}") };
        if child.len() + 1 > PATH_BYTES_MAX || depth > DEPTH_MAX {
            return refused("has a path that is too long");
        }
        if !is_plain_relative(&child) || path.as_os_str().as_bytes().contains(&b'\n') {
            return refused("has a name that cannot be served");
        }
        let kind = entry.file_type().context(|| format!("read {}", path.display()))?;
        if kind.is_dir() {
            collect(&path, &child, depth + 1, files)?;
        } else if kind.is_file() {
            files.push((child, path));
        } else {
            return refused("is neither a file nor a directory: links and special files are not published");
        }
        if files.len() > FILES_MAX {
            return Err(Failure::new(format!("there are more than {FILES_MAX} assets")));
        }
    }
    Ok(())
}

/// The content type that goes into the index, and with it into the version.
fn content_type(path: &Path) -> Option<&'static str> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    Some(match extension.as_str() {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" | "cjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json; charset=utf-8",
        "txt" => "text/plain; charset=utf-8",
        "xml" => "application/xml; charset=utf-8",
        "webmanifest" => "application/manifest+json; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/x-icon",
        "wasm" => "application/wasm",
        "pdf" => "application/pdf",
        "zip" => "application/zip",
        "gz" => "application/gzip",
        "br" => "application/octet-stream",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "ttf" => "font/ttf",
        "otf" => "font/otf",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "ogg" => "audio/ogg",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        _ => return None,
    })
}
