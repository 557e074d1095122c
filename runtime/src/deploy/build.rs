//! From a project to the objects of a deployment, and its version.

use std::collections::BTreeMap;

use super::{
    assets::{self, BuiltAssets},
    bundle::{MAIN_MODULE, bundle},
    config::Project,
};
use crate::{
    environment::Environment,
    failure::Outcome,
    shapes::{AssetsRef, Manifest, ModuleKind, ModuleRef},
    version::{canonical_json, deployment_version, sha256_hex, sorted},
};

/// A deployment, ready to be published.
#[derive(Debug)]
pub(crate) struct Built {
    pub manifest: Manifest,
    /// Where its objects go.
    pub prefix: String,
    /// By name; the main module is among them.
    pub modules: BTreeMap<String, Vec<u8>>,
    pub assets: Option<BuiltAssets>,
}

/// Bundles, indexes, and computes the version.
pub(crate) fn build(project: &Project, environment: &Environment) -> Outcome<Built> {
    let assets = project.assets.as_ref().map(assets::build).transpose()?;
    let bundle = project.entry.as_ref().map(|entry| bundle(&project.root, entry, environment)).transpose()?;
    let mut modules = BTreeMap::new();
    let mut wasm_names = Vec::new();
    if let Some(bundle) = bundle {
        modules.insert(MAIN_MODULE.to_owned(), bundle.main);
        wasm_names.extend(bundle.wasm.keys().cloned());
        modules.extend(bundle.wasm);
    }
    let metadata = canonical_json(&project.metadata);
    let contents = modules.iter().map(|(name, body)| (name.as_str(), body.as_slice()));
    let version = deployment_version(contents, &metadata, assets.as_ref().map(|assets| assets.index.as_slice()));

    let mut required_features = Vec::new();
    for (feature, needed) in
        [("assets-v1", assets.is_some()), ("cron-v1", !project.crons.is_empty()), ("wasm-v1", !wasm_names.is_empty())]
    {
        if needed {
            required_features.push(feature.to_owned());
        }
    }
    let module = |name: &String, body: &Vec<u8>| ModuleRef {
        name: name.clone(),
        bytes: body.len() as u64,
        sha256: sha256_hex(body),
        kind: wasm_names.contains(name).then_some(ModuleKind::Wasm),
    };
    // The main module comes first, then the others by name.
    let (main, rest): (Vec<_>, Vec<_>) = modules.iter().partition(|(name, _)| *name == MAIN_MODULE);
    let manifest = Manifest {
        schema_version: if assets.is_some() { 2 } else { 1 },
        version: version.clone(),
        script_name: project.script_name.clone(),
        main_module: project.entry.is_some().then(|| MAIN_MODULE.to_owned()),
        do_classes: project.do_classes.clone(),
        sqlite_classes: project.sqlite_classes.clone(),
        modules: main.into_iter().chain(rest).map(|(name, body)| module(name, body)).collect(),
        assets: assets.as_ref().map(|assets| AssetsRef {
            index: "assets.json".to_owned(),
            sha256: sha256_hex(&assets.index),
            file_count: assets.file_count,
            total_bytes: assets.total_bytes,
        }),
        crons: project.crons.clone(),
        required_features,
        raw_metadata: sorted(&project.metadata),
    };
    let prefix = format!("deploy/{}/{version}", project.script_name);
    Ok(Built { manifest, prefix, modules, assets })
}
