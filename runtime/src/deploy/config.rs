//! The project's configuration: what a deployment may ask for, by an allow-list.
//!
//! A key that is not on the list stops the deploy and is named, since a setting that is silently dropped becomes a surprise in
//! production. So does a feature that celld has and this stand-in has not.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::{assets, assets::ProjectAssets};
use crate::{
    Failure,
    cron::Schedule,
    failure::{Context, Outcome},
    names::{is_binding_name, is_plain_relative, is_script_name},
    shapes::RunWorkerFirst,
};

/// Keys whose meaning is understood.
const KEYS: [&str; 14] = [
    "$schema",
    "name",
    "main",
    "compatibility_date",
    "compatibility_flags",
    "no_bundle",
    "durable_objects",
    "migrations",
    "assets",
    "services",
    "triggers",
    "vars",
    "define",
    "rules",
];

/// Keys of features that celld has and the stand-in has not.
const MISSING: [&str; 7] =
    ["d1_databases", "kv_namespaces", "queues", "workflows", "r2_buckets", "worker_loaders", "containers"];

/// Classes that celld itself provides.
const RESERVED_CLASS_PREFIX: &str = "__";

/// Largest configuration that is read, in bytes: 100 times what the largest ones in the wild have.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// What a configuration asks for, checked.
#[derive(Debug)]
pub(crate) struct Project {
    /// The directory that everything is relative to.
    pub root: PathBuf,
    pub script_name: String,
    pub entry: Option<Entry>,
    pub assets: Option<ProjectAssets>,
    /// What is hashed into the version and shapes `env`.
    pub metadata: Value,
    pub do_classes: Vec<String>,
    pub sqlite_classes: Vec<String>,
    pub crons: Vec<String>,
}

/// The entry point, and what becomes of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Relative to the project, so that the same source gives the same bundle from wherever it is built.
    pub path: String,
    pub bundling: Bundling,
}

/// How the entry point becomes a module.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Bundling {
    /// Taken as it is.
    None,
    /// By esbuild, with these additions to its command line.
    Esbuild { define: BTreeMap<String, String>, loaders: BTreeMap<String, Loader> },
}

/// How esbuild loads a kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loader {
    /// Into the bundle, as a string.
    Text,
    /// Into the bundle, as bytes.
    Binary,
    /// Beside the bundle, as a module of its own.
    Copy,
}

/// The configuration file that `given` means.
///
/// # Errors
/// No configuration there, or one in TOML.
pub(crate) fn locate(given: Option<&Path>) -> Outcome<PathBuf> {
    let directory = match given {
        Some(path) if path.is_file() => return Ok(path.to_owned()),
        Some(path) if path.is_dir() => path,
        Some(path) => return Err(Failure::new(format!("there is no project at {}", path.display()))),
        None => Path::new("."),
    };
    for name in ["wrangler.jsonc", "wrangler.json"] {
        let path = directory.join(name);
        if path.is_file() {
            return Ok(path);
        }
    }
    let at = directory.display();
    if directory.join("wrangler.toml").exists() {
        return Err(Failure::new(format!("{at} has a wrangler.toml, which is not read: convert it to wrangler.jsonc")));
    }
    Err(Failure::new(format!("{at} has no wrangler.jsonc or wrangler.json: add one with at least `name` and `main`")))
}

/// Reads and checks the configuration at `path`.
///
/// # Errors
/// The first thing that cannot be deployed, with its key.
pub(crate) fn read(path: &Path) -> Outcome<Project> {
    let shown = path.display();
    let root = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Some(name) = path.file_name().and_then(OsStr::to_str) {
        // Its errors quote it, so it must be the project's own.
        contained(root, name, "the configuration")?;
    }
    let size = path.metadata().context(|| format!("read {shown}"))?.len();
    if size > CONFIG_BYTES_MAX {
        return Err(Failure::new(format!("{shown} has {size} bytes: a configuration has at most {CONFIG_BYTES_MAX}")));
    }
    let text = std::fs::read_to_string(path).context(|| format!("read {shown}"))?;
    // Some editors begin a file with a byte order mark; RFC 8259 §8.1 lets a reader ignore it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let value: Value = jsonc_parser::parse_to_serde_value(text, &options()).context(|| format!("parse {shown}"))?;
    let Value::Object(config) = value else { return Err(Failure::new(format!("{shown} is not a JSON object"))) };
    project(&config, root)
}

/// JSON with comments and trailing commas, nothing looser.
fn options() -> jsonc_parser::ParseOptions {
    jsonc_parser::ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

fn project(config: &Map<String, Value>, root: &Path) -> Outcome<Project> {
    check_keys(config)?;
    let script_name =
        config.get("name").and_then(Value::as_str).context(|| "the configuration has no `name`".into())?;
    if !is_script_name(script_name) {
        return Err(Failure::new(format!(
            "`name` is {script_name:?}: it must have 1 to 63 lower-case letters, digits and inner hyphens"
        )));
    }
    let entry = entry(config, root)?;
    let assets = config.get("assets").map(|value| assets::read(value, root, config)).transpose()?;
    if entry.is_none() && assets.is_none() {
        return Err(Failure::new("the configuration has neither `main` nor `assets`: there is nothing to deploy"));
    }
    let sqlite_classes = sqlite_classes(config)?;
    let crons = crons(config)?;
    let (bindings, do_classes) = bindings(config, assets.as_ref())?;
    if entry.is_none() {
        refuse_worker_settings(config, assets.as_ref(), &sqlite_classes, &crons)?;
    }
    if let Some(class) = do_classes.iter().chain(&sqlite_classes).find(|class| class.starts_with(RESERVED_CLASS_PREFIX))
    {
        return Err(Failure::new(format!("class name {class:?} is reserved: rename the class")));
    }
    let metadata = metadata(config, entry.is_some(), assets.as_ref(), bindings, &sqlite_classes)?;
    Ok(Project {
        root: root.to_owned(),
        script_name: script_name.to_owned(),
        entry,
        assets,
        metadata,
        do_classes,
        sqlite_classes,
        crons,
    })
}

fn check_keys(config: &Map<String, Value>) -> Outcome<()> {
    let among = |keys: &[&str]| config.keys().filter(|key| keys.contains(&key.as_str())).cloned().collect::<Vec<_>>();
    let missing = among(&MISSING);
    if !missing.is_empty() {
        return Err(Failure::new(format!(
            "the development stand-in cannot run projects with {}: deploy to celld itself",
            quoted(&missing)
        )));
    }
    let unknown: Vec<_> = config.keys().filter(|key| !KEYS.contains(&key.as_str())).cloned().collect();
    if !unknown.is_empty() {
        return Err(Failure::new(format!("unsupported configuration keys: {}; remove them", quoted(&unknown))));
    }
    Ok(())
}

fn quoted(keys: &[String]) -> String {
    keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
}

fn entry(config: &Map<String, Value>, root: &Path) -> Outcome<Option<Entry>> {
    let no_bundle = match config.get("no_bundle") {
        None => false,
        Some(Value::Bool(value)) => *value,
        Some(_) => return Err(Failure::new("`no_bundle` must be true or false")),
    };
    let Some(main) = config.get("main") else {
        if no_bundle {
            return Err(Failure::new("`no_bundle` needs `main`"));
        }
        return Ok(None);
    };
    let path = inside(main, "main")?;
    let metadata = std::fs::symlink_metadata(root.join(&path)).context(|| format!("`main`: read {path}"))?;
    if !metadata.is_file() {
        return Err(Failure::new(format!("`main` is {path:?}, which is not a regular file")));
    }
    contained(root, &path, "main")?;
    let bundling = if no_bundle {
        if let Some(key) = ["define", "rules"].into_iter().find(|key| config.contains_key(*key)) {
            return Err(Failure::new(format!("`{key}` has no effect with `no_bundle`: remove one of them")));
        }
        Bundling::None
    } else {
        Bundling::Esbuild { define: define(config)?, loaders: loaders(config)? }
    };
    Ok(Some(Entry { path, bundling }))
}

/// A path of the configuration that must stay inside the project.
pub(super) fn inside(value: &Value, key: &str) -> Outcome<String> {
    let path = value.as_str().context(|| format!("`{key}` must be a string"))?;
    let path = path.strip_prefix("./").unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    if is_plain_relative(path) {
        return Ok(path.to_owned());
    }
    Err(Failure::new(format!("`{key}` is {path:?}: it must be a path inside the project")))
}

/// The same after links are followed.
pub(super) fn contained(root: &Path, path: &str, key: &str) -> Outcome<()> {
    let root = root.canonicalize().context(|| format!("resolve {}", root.display()))?;
    let resolved = root.join(path).canonicalize().context(|| format!("`{key}`: resolve {path}"))?;
    if resolved.starts_with(&root) {
        return Ok(());
    }
    Err(Failure::new(format!("`{key}` is {path:?}, which a link leads out of the project")))
}

fn define(config: &Map<String, Value>) -> Outcome<BTreeMap<String, String>> {
    let mut define = BTreeMap::new();
    for (name, value) in object(config, "define")? {
        let value = value.as_str().context(|| format!("`define.{name}` must be a string"))?;
        // esbuild divides name and value at the first `=`.
        if name.is_empty() || name.contains(|c: char| c == '=' || c.is_whitespace() || c.is_control()) {
            return Err(Failure::new(format!("`define` has the name {name:?}, which no expression can have")));
        }
        define.insert(name.clone(), value.to_owned());
    }
    Ok(define)
}

fn loaders(config: &Map<String, Value>) -> Outcome<BTreeMap<String, Loader>> {
    let mut loaders = BTreeMap::from([(".wasm".to_owned(), Loader::Copy)]);
    for rule in array(config, "rules")? {
        let rule = rule.as_object().context(|| "`rules` must hold objects".into())?;
        if let Some(key) = rule.keys().find(|key| !matches!(key.as_str(), "type" | "globs")) {
            return Err(Failure::new(format!("`rules[].{key}` is not supported: remove it")));
        }
        let loader = match rule.get("type").and_then(Value::as_str) {
            Some("Text") => Loader::Text,
            Some("Data") => Loader::Binary,
            Some("CompiledWasm") => Loader::Copy,
            _ => return Err(Failure::new("`rules[].type` must be Text, Data or CompiledWasm")),
        };
        let globs = array(rule, "globs")?;
        if globs.is_empty() {
            return Err(Failure::new("`rules[].globs` must name at least one `**/*.ext`"));
        }
        for glob in globs {
            let extension = extension(glob)?;
            if loaders.insert(extension.clone(), loader).is_some_and(|earlier| earlier != loader) {
                return Err(Failure::new(format!("two rules claim {extension:?}")));
            }
        }
    }
    Ok(loaders)
}

/// esbuild chooses by extension, so a glob must be one.
fn extension(glob: &Value) -> Outcome<String> {
    let text = glob.as_str().unwrap_or_default();
    let pattern = text.strip_prefix("**/").unwrap_or(text);
    match pattern.strip_prefix("*.") {
        Some(name) if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            Ok(format!(".{name}"))
        }
        Some(_) | None => Err(Failure::new(format!("glob {text:?} of `rules` must have the form `**/*.ext`"))),
    }
}

fn sqlite_classes(config: &Map<String, Value>) -> Outcome<Vec<String>> {
    let (mut tags, mut classes) = (BTreeSet::new(), Vec::new());
    for migration in array(config, "migrations")? {
        let migration = migration.as_object().context(|| "`migrations` must hold objects".into())?;
        if let Some(key) = migration.keys().find(|key| !matches!(key.as_str(), "tag" | "new_sqlite_classes")) {
            return Err(Failure::new(format!(
                "`migrations[].{key}` is not supported: only `tag` and `new_sqlite_classes`"
            )));
        }
        let tag = text(migration, "tag", "migrations[]")?;
        if !tags.insert(tag.to_owned()) {
            return Err(Failure::new(format!("`migrations` has the tag {tag:?} twice")));
        }
        for class in array(migration, "new_sqlite_classes")? {
            let class = class.as_str().filter(|class| !class.is_empty());
            let class = class.context(|| "`migrations[].new_sqlite_classes` must hold class names".into())?;
            if classes.iter().any(|earlier| earlier == class) {
                return Err(Failure::new(format!("`migrations` introduces the class {class:?} twice")));
            }
            classes.push(class.to_owned());
        }
    }
    Ok(classes)
}

fn crons(config: &Map<String, Value>) -> Outcome<Vec<String>> {
    let triggers = object(config, "triggers")?.collect::<BTreeMap<_, _>>();
    let Some(crons) = triggers.get(&"crons".to_owned()) else { return Ok(Vec::new()) };
    let crons = crons.as_array().context(|| "`triggers.crons` must be a list".into())?;
    let parse = |cron: &Value| {
        let text = cron.as_str().context(|| "`triggers.crons` must hold strings".into())?;
        Schedule::parse(text).map(|schedule| schedule.expression)
    };
    crons.iter().map(parse).collect()
}

/// Bindings in the order that goes into the version: Durable Objects, services, vars by name, assets.
fn bindings(config: &Map<String, Value>, assets: Option<&ProjectAssets>) -> Outcome<(Vec<Value>, Vec<String>)> {
    let (mut bindings, mut classes) = (Vec::new(), Vec::new());
    let durable = object(config, "durable_objects")?.collect::<BTreeMap<_, _>>();
    if let Some(list) = durable.get(&"bindings".to_owned()) {
        for binding in list.as_array().context(|| "`durable_objects.bindings` must be a list".into())? {
            let binding = binding.as_object().context(|| "`durable_objects.bindings` must hold objects".into())?;
            let name = text(binding, "name", "durable_objects.bindings[]")?;
            let class = text(binding, "class_name", "durable_objects.bindings[]")?;
            if let Some(key) = binding.keys().find(|key| !matches!(key.as_str(), "name" | "class_name")) {
                return Err(Failure::new(format!("`durable_objects.bindings[].{key}` is not supported: remove it")));
            }
            bindings.push(json!({ "type": "durable_object_namespace", "name": name, "class_name": class }));
            classes.push(class.to_owned());
        }
    }
    for service in array(config, "services")? {
        let service = service.as_object().context(|| "`services` must hold objects".into())?;
        let name = text(service, "binding", "services[]")?;
        let target = text(service, "service", "services[]")?;
        let mut binding = json!({ "type": "service", "name": name, "service": target });
        if service.contains_key("entrypoint") {
            binding["entrypoint"] = json!(text(service, "entrypoint", "services[]")?);
        }
        bindings.push(binding);
    }
    // Sorted, whatever the map of the JSON library does.
    let vars: BTreeMap<_, _> = object(config, "vars")?.collect();
    for (name, value) in vars {
        let value = value.as_str().context(|| format!("`vars.{name}` must be a string"))?;
        bindings.push(json!({ "type": "plain_text", "name": name, "text": value }));
    }
    if let Some(name) = assets.and_then(|assets| assets.config.binding.as_ref()) {
        bindings.push(json!({ "type": "assets", "name": name }));
    }
    let mut names = BTreeSet::new();
    for name in bindings.iter().filter_map(|binding| binding["name"].as_str()) {
        if !is_binding_name(name) {
            return Err(Failure::new(format!("binding name {name:?} cannot be a property of `env`")));
        }
        if !names.insert(name.to_owned()) {
            return Err(Failure::new(format!("two bindings have the name {name:?}")));
        }
    }
    Ok((bindings, classes))
}

/// An asset-only project has no Worker to give anything to.
fn refuse_worker_settings(
    config: &Map<String, Value>,
    assets: Option<&ProjectAssets>,
    sqlite_classes: &[String],
    crons: &[String],
) -> Outcome<()> {
    if !crons.is_empty() {
        return Err(Failure::new("`triggers.crons` needs `main`: there is no Worker to call"));
    }
    let has = |key: &str| config.get(key).is_some_and(|value| !is_empty(value));
    if let Some(key) = ["durable_objects", "services", "vars"].into_iter().find(|key| has(key)) {
        return Err(Failure::new(format!("`{key}` needs `main`: a project of assets alone has no Worker")));
    }
    if !sqlite_classes.is_empty() {
        return Err(Failure::new("`migrations` needs `main`: a project of assets alone has no Worker"));
    }
    match assets.map(|assets| &assets.config.run_worker_first) {
        None | Some(RunWorkerFirst::Always(false)) => Ok(()),
        Some(RunWorkerFirst::Always(true) | RunWorkerFirst::Routes(_)) => {
            Err(Failure::new("`assets.run_worker_first` needs `main`: a project of assets alone has no Worker"))
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn metadata(
    config: &Map<String, Value>,
    has_main: bool,
    assets: Option<&ProjectAssets>,
    bindings: Vec<Value>,
    sqlite_classes: &[String],
) -> Outcome<Value> {
    let mut metadata = Map::new();
    if has_main {
        metadata.insert("main_module".into(), json!("index.js"));
    }
    if let Some(assets) = assets {
        metadata.insert("assets".into(), assets.metadata.clone());
    }
    if let Some(date) = config.get("compatibility_date") {
        date.as_str()
            .and_then(|date| date.parse::<jiff::civil::Date>().ok())
            .context(|| "`compatibility_date` must be a date, YYYY-MM-DD".into())?;
        metadata.insert("compatibility_date".into(), date.clone());
    }
    if let Some(flags) = config.get("compatibility_flags") {
        let all_text = flags.as_array().is_some_and(|flags| flags.iter().all(Value::is_string));
        all_text.then_some(()).context(|| "`compatibility_flags` must be a list of strings".into())?;
        metadata.insert("compatibility_flags".into(), flags.clone());
    }
    metadata.insert("bindings".into(), Value::Array(bindings));
    if !sqlite_classes.is_empty() {
        metadata.insert("migrations".into(), json!({ "new_sqlite_classes": sqlite_classes }));
    }
    Ok(Value::Object(metadata))
}

fn text<'a>(object: &'a Map<String, Value>, key: &str, at: &str) -> Outcome<&'a str> {
    object
        .get(key)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
        .context(|| format!("`{at}.{key}` must be a string that is not empty"))
}

fn array<'a>(object: &'a Map<String, Value>, key: &str) -> Outcome<&'a [Value]> {
    match object.get(key) {
        None => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(Failure::new(format!("`{key}` must be a list"))),
    }
}

fn object<'a>(parent: &'a Map<String, Value>, key: &str) -> Outcome<impl Iterator<Item = (&'a String, &'a Value)>> {
    match parent.get(key) {
        None => Ok(None.into_iter().flatten()),
        Some(Value::Object(map)) => Ok(Some(map.iter()).into_iter().flatten()),
        Some(_) => Err(Failure::new(format!("`{key}` must be an object"))),
    }
}

#[cfg(test)]
mod tests;
