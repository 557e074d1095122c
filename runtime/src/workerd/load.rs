//! Reading a deployment from the bucket: pointer, manifest, modules, asset index, and those of every script that it binds.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use scafo_store::Bucket;

use crate::{
    Failure,
    cron::Schedule,
    failure::{Context, Outcome},
    names::{is_binding_name, is_script_name},
    shapes::{AssetIndex, Binding, FLEET_POINTER, Manifest, Metadata, Pointer, script_pointer},
    version::sha256_hex,
};

/// Scripts that one process hosts: the application and what it binds. Each costs some megabytes in workerd.
const SCRIPTS_MAX: usize = 32;

/// A pointer is some 200 bytes, a manifest some kilobytes; an index has 20,000 entries of at most 1.2 KiB.
const POINTER_BYTES_MAX: u64 = 64 << 10;
const MANIFEST_BYTES_MAX: u64 = 8 << 20;
const INDEX_BYTES_MAX: u64 = 32 << 20;

/// Everything that a node runs, but for the bodies of its assets.
#[derive(Debug)]
pub(crate) struct Deployment {
    pub pointer: Pointer,
    pub main: Script,
    /// What it binds, transitively.
    pub bound: Vec<Script>,
}

/// One script.
#[derive(Debug)]
pub(crate) struct Script {
    pub manifest: Manifest,
    /// The digest of the manifest's bytes: crons are in it and not in the version.
    pub manifest_sha256: String,
    pub metadata: Metadata,
    pub schedules: Vec<Schedule>,
    pub modules: BTreeMap<String, Bytes>,
    pub assets: Option<AssetIndex>,
    /// Which of the services that it binds have assets in front.
    pub services_with_assets: BTreeSet<String>,
}

impl Deployment {
    pub(crate) fn scripts(&self) -> impl Iterator<Item = &Script> {
        std::iter::once(&self.main).chain(&self.bound)
    }

    /// Whether any script keeps state: then two processes must never run it at once.
    pub(crate) fn has_durable_objects(&self) -> bool {
        self.scripts()
            .any(|script| !script.manifest.do_classes.is_empty() || !script.manifest.sqlite_classes.is_empty())
    }

    /// What tells this deployment from another one, schedules and bound scripts included.
    pub(crate) fn identity(&self) -> String {
        let parts: Vec<_> = self.scripts().map(|script| script.manifest_sha256.as_str()).collect();
        sha256_hex(parts.join("\n").as_bytes())
    }
}

/// The fleet's pointer, or `None` before the first deployment.
pub(crate) async fn read_pointer(bucket: &dyn Bucket) -> Outcome<Option<Pointer>> {
    let object =
        bucket.get_bounded(FLEET_POINTER, POINTER_BYTES_MAX).await.context(|| format!("read {FLEET_POINTER}"))?;
    object.map(|object| Pointer::decode(&object.body)).transpose()
}

/// Reads what `pointer` names.
///
/// # Errors
/// Something missing, damaged, or beyond this runtime.
pub(crate) async fn load(bucket: &dyn Bucket, pointer: Pointer) -> Outcome<Deployment> {
    let mut main = script(bucket, &pointer).await?;
    let mut bound: Vec<Script> = Vec::new();
    let mut wanted: Vec<String> = services(&main);
    while let Some(name) = wanted.pop() {
        let known = |script: &Script| script.manifest.script_name == name;
        if known(&main) || bound.iter().any(known) {
            continue;
        }
        if bound.len() + 1 >= SCRIPTS_MAX {
            return Err(Failure::new(format!("the deployment binds more than {SCRIPTS_MAX} scripts")));
        }
        let target = bound_script(bucket, &name).await?;
        wanted.extend(services(&target));
        bound.push(target);
    }
    let with_assets: BTreeSet<String> = std::iter::once(&main)
        .chain(&bound)
        .filter(|script| script.assets.is_some())
        .map(|script| script.manifest.script_name.clone())
        .collect();
    for script in std::iter::once(&mut main).chain(&mut bound) {
        script.services_with_assets.clone_from(&with_assets);
    }
    Ok(Deployment { pointer, main, bound })
}

fn services(script: &Script) -> Vec<String> {
    let service = |binding: &Binding| match binding {
        Binding::Service { service, .. } => Some(service.clone()),
        Binding::PlainText { .. } | Binding::DurableObjectNamespace { .. } | Binding::Assets { .. } => None,
    };
    script.metadata.bindings.iter().filter_map(service).collect()
}

async fn bound_script(bucket: &dyn Bucket, name: &str) -> Outcome<Script> {
    if !is_script_name(name) {
        return Err(Failure::new(format!("service binding to {name:?}, which is no script name")));
    }
    let key = script_pointer(name);
    let object = bucket.get_bounded(&key, POINTER_BYTES_MAX).await.context(|| format!("read {key}"))?;
    let object = object.context(|| format!("service binding to {name:?}, which this fleet has not deployed"))?;
    let mut pointer = Pointer::decode(&object.body)?;
    pointer.script_name.get_or_insert_with(|| name.to_owned());
    let mut script = script(bucket, &pointer).await?;
    if !script.schedules.is_empty() {
        tracing::warn!(script = name, "the crons of a bound script never run");
        script.schedules.clear();
    }
    Ok(script)
}

async fn script(bucket: &dyn Bucket, pointer: &Pointer) -> Outcome<Script> {
    let prefix = &pointer.prefix;
    let bytes = get(bucket, &format!("{prefix}/manifest.json"), MANIFEST_BYTES_MAX).await?;
    let manifest = Manifest::decode(&bytes, pointer)?;
    let classes = manifest.do_classes.iter().chain(&manifest.sqlite_classes);
    if let Some(class) = classes.into_iter().find(|class| !is_binding_name(class) || class.starts_with("__")) {
        return Err(Failure::new(format!("the manifest of {prefix} has the class {class:?}, which cannot run here")));
    }
    let metadata = manifest.metadata()?;
    let schedules = manifest.crons.iter().map(|cron| Schedule::parse(cron)).collect::<Outcome<_>>()?;
    let mut modules = BTreeMap::new();
    for module in &manifest.modules {
        let limit = module.bytes.saturating_add(1);
        let body = get(bucket, &format!("{prefix}/{}", module.name), limit).await?;
        module.verify(&body)?;
        modules.insert(module.name.clone(), body);
    }
    let assets = match &manifest.assets {
        None => None,
        Some(reference) if reference.index == "assets.json" => {
            let bytes = get(bucket, &format!("{prefix}/assets.json"), INDEX_BYTES_MAX).await?;
            Some(AssetIndex::decode(&bytes, reference)?)
        }
        Some(_) => return Err(Failure::new(format!("the manifest of {prefix} has its asset index in an odd place"))),
    };
    Ok(Script {
        manifest,
        manifest_sha256: sha256_hex(&bytes),
        metadata,
        schedules,
        modules,
        assets,
        services_with_assets: BTreeSet::new(),
    })
}

async fn get(bucket: &dyn Bucket, key: &str, limit: u64) -> Outcome<Bytes> {
    let object = bucket.get_bounded(key, limit).await.context(|| format!("read {key}"))?;
    object.map(|object| object.body).context(|| format!("{key} is missing from the bucket: deploy again"))
}
