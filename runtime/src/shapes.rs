//! The documents that deploy and node exchange through the bucket, as celld writes them.
//!
//! The order of fields is the order of the bytes, and the bytes of the asset index are part of the version: neither may
//! change. Readers take what they know and ignore the rest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Failure,
    failure::Outcome,
    names::{is_binding_name, is_plain_relative, is_script_name, is_sha256},
    version::sha256_hex,
};

/// The key of the pointer that a fleet follows.
pub(crate) const FLEET_POINTER: &str = "deploy/current.json";

/// The key of the pointer to the newest deployment of one script.
pub(crate) fn script_pointer(script: &str) -> String {
    format!("deploy/{script}/current.json")
}

/// The key of an asset's body.
pub(crate) fn asset_blob(sha256: &str) -> String {
    format!("deploy-blobs/assets/sha256/{}/{sha256}", sha256.get(..2).unwrap_or_default())
}

/// Which deployment is current.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pointer {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_name: Option<String>,
    pub version: String,
    /// Where its objects are, relative to the fleet's prefix.
    pub prefix: String,
    #[serde(default)]
    pub rollout: Rollout,
}

/// Always 100: nodes do not look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rollout {
    pub percent: u8,
}

impl Default for Rollout {
    fn default() -> Self {
        Self { percent: 100 }
    }
}

/// What a deployment consists of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Manifest {
    #[serde(default = "one")]
    pub schema_version: u32,
    pub version: String,
    pub script_name: String,
    pub main_module: Option<String>,
    pub do_classes: Vec<String>,
    pub sqlite_classes: Vec<String>,
    pub modules: Vec<ModuleRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assets: Option<AssetsRef>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crons: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub required_features: Vec<String>,
    pub raw_metadata: Value,
}

fn one() -> u32 {
    1
}

/// One module of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModuleRef {
    pub name: String,
    pub bytes: u64,
    /// 64 hexadecimal digits; older releases wrote 16.
    pub sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ModuleKind>,
}

/// What a module is, where it is not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ModuleKind {
    Wasm,
}

/// Where the index of the assets is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AssetsRef {
    pub index: String,
    pub sha256: String,
    pub file_count: u32,
    pub total_bytes: u64,
}

/// Every asset by its path, and how they are served.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct AssetIndex {
    pub schema_version: u32,
    pub entries: BTreeMap<String, AssetEntry>,
    pub config: AssetConfig,
}

/// One asset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AssetEntry {
    pub sha256: String,
    pub bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
}

/// How assets are served.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AssetConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub html_handling: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_found_handling: Option<String>,
    #[serde(default)]
    pub run_worker_first: RunWorkerFirst,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirects: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compatibility_date: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compatibility_flags: Vec<String>,
}

/// Which requests see the Worker before the assets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum RunWorkerFirst {
    Always(bool),
    Routes(Vec<String>),
}

impl Default for RunWorkerFirst {
    fn default() -> Self {
        Self::Always(false)
    }
}

/// What `env` gets, as far as the stand-in can give it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Binding {
    PlainText {
        name: String,
        text: String,
    },
    DurableObjectNamespace {
        name: String,
        class_name: String,
    },
    Service {
        name: String,
        service: String,
        #[serde(default)]
        entrypoint: Option<String>,
    },
    Assets {
        name: String,
    },
}

/// The compatibility settings and bindings of a manifest, checked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metadata {
    pub compatibility_date: Option<String>,
    pub compatibility_flags: Vec<String>,
    pub bindings: Vec<Binding>,
}

/// Features of celld that the stand-in has too.
pub(crate) const FEATURES: [&str; 3] = ["assets-v1", "cron-v1", "wasm-v1"];

impl Pointer {
    /// Reads a pointer; its prefix must be a plain relative path.
    pub(crate) fn decode(bytes: &[u8]) -> Outcome<Self> {
        let pointer: Self =
            serde_json::from_slice(bytes).map_err(|error| Failure::because("decode the deployment pointer", error))?;
        let plain = is_plain_relative(&pointer.prefix)
            && is_plain_relative(&pointer.version)
            && pointer.script_name.as_deref().is_none_or(is_script_name);
        if plain { Ok(pointer) } else { Err(Failure::new("the deployment pointer names no place of a deployment")) }
    }
}

impl Manifest {
    /// Reads the manifest that `pointer` names. Refuses what this node cannot run.
    pub(crate) fn decode(bytes: &[u8], pointer: &Pointer) -> Outcome<Self> {
        let manifest: Self =
            serde_json::from_slice(bytes).map_err(|error| Failure::because("decode the manifest", error))?;
        let refused = |why: String| Err(Failure::new(format!("the manifest of {}: {why}", pointer.prefix)));
        if let Some(feature) = manifest.required_features.iter().find(|name| !FEATURES.contains(&name.as_str())) {
            return refused(format!("it needs the feature {feature:?}, which this runtime has not got"));
        }
        if !(1..=2).contains(&manifest.schema_version) {
            return refused(format!("schema version {} is unknown", manifest.schema_version));
        }
        if manifest.version != pointer.version
            || pointer.script_name.as_ref().is_some_and(|name| *name != manifest.script_name)
        {
            return refused("version and script are not those of the pointer".into());
        }
        if !is_script_name(&manifest.script_name) {
            return refused(format!("{:?} is no script name", manifest.script_name));
        }
        if let Some(module) = manifest.modules.iter().find(|module| !is_plain_relative(&module.name)) {
            return refused(format!("{:?} is no module name", module.name));
        }
        let main_is_there = |main: &String| manifest.modules.iter().any(|module| module.name == *main);
        if !manifest.main_module.as_ref().is_none_or(main_is_there) {
            return refused("its main module is not among its modules".into());
        }
        if manifest.main_module.is_none() && manifest.assets.is_none() {
            return refused("it has neither a Worker nor assets".into());
        }
        Ok(manifest)
    }

    /// The part of the raw metadata that shapes the Worker.
    pub(crate) fn metadata(&self) -> Outcome<Metadata> {
        #[derive(Deserialize)]
        struct Raw {
            #[serde(default)]
            compatibility_date: Option<String>,
            #[serde(default)]
            compatibility_flags: Vec<String>,
            #[serde(default)]
            bindings: Vec<Value>,
        }
        let raw: Raw = serde_json::from_value(self.raw_metadata.clone())
            .map_err(|error| Failure::because("decode the metadata of the manifest", error))?;
        let mut bindings = Vec::with_capacity(raw.bindings.len());
        for value in raw.bindings {
            let kind = value.get("type").and_then(Value::as_str).unwrap_or("without a type").to_owned();
            let binding = serde_json::from_value::<Binding>(value)
                .map_err(|error| Failure::because(format!("binding of type {kind:?} cannot be made here"), error))?;
            if !is_binding_name(binding.name()) {
                return Err(Failure::new(format!("{:?} is no binding name", binding.name())));
            }
            bindings.push(binding);
        }
        Ok(Metadata {
            compatibility_date: raw.compatibility_date,
            compatibility_flags: raw.compatibility_flags,
            bindings,
        })
    }
}

impl Binding {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::PlainText { name, .. }
            | Self::DurableObjectNamespace { name, .. }
            | Self::Service { name, .. }
            | Self::Assets { name } => name,
        }
    }
}

impl ModuleRef {
    /// Whether `body` is the module that was meant.
    pub(crate) fn verify(&self, body: &[u8]) -> Outcome<()> {
        let digest = sha256_hex(body);
        let whole = matches!(self.sha256.len(), 16 | 64) && digest.starts_with(&self.sha256);
        if whole && body.len() as u64 == self.bytes {
            return Ok(());
        }
        Err(Failure::new(format!("module {:?} is not the one that the manifest names: deploy again", self.name)))
    }
}

impl AssetIndex {
    /// Reads the index that `reference` names. Every path in it is safe to make a file of.
    pub(crate) fn decode(bytes: &[u8], reference: &AssetsRef) -> Outcome<Self> {
        if sha256_hex(bytes) != reference.sha256 {
            return Err(Failure::new("the asset index is not the one that the manifest names: deploy again"));
        }
        let index: Self =
            serde_json::from_slice(bytes).map_err(|error| Failure::because("decode the asset index", error))?;
        for (path, entry) in &index.entries {
            let plain = path.strip_prefix('/').is_some_and(is_plain_relative);
            if !plain || !is_sha256(&entry.sha256) {
                return Err(Failure::new(format!("the asset index has an entry that cannot be served: {path:?}")));
            }
        }
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pointer() -> Pointer {
        Pointer {
            script_name: Some("shop".into()),
            version: "0123456789abcdef".into(),
            prefix: "deploy/shop/0123456789abcdef".into(),
            rollout: Rollout::default(),
        }
    }

    fn manifest(change: impl FnOnce(&mut Value)) -> Outcome<Manifest> {
        let mut value = json!({
            "version": "0123456789abcdef", "script_name": "shop", "main_module": "index.js",
            "do_classes": [], "sqlite_classes": [],
            "modules": [{ "name": "index.js", "bytes": 1, "sha256": "0123456789abcdef" }],
            "raw_metadata": { "bindings": [] },
        });
        change(&mut value);
        Manifest::decode(&serde_json::to_vec(&value).unwrap(), &pointer())
    }

    #[test]
    fn a_manifest_that_cannot_be_run_is_refused() {
        assert!(manifest(|_| {}).is_ok());
        let refusal = manifest(|value| value["required_features"] = json!(["d1-v1"])).unwrap_err().chain();
        assert!(refusal.contains("d1-v1"), "{refusal}");
        assert!(manifest(|value| value["schema_version"] = json!(3)).is_err());
        assert!(manifest(|value| value["version"] = json!("f")).is_err());
        assert!(manifest(|value| value["script_name"] = json!("other")).is_err());
        assert!(manifest(|value| value["main_module"] = json!("gone.js")).is_err());
        assert!(manifest(|value| value["modules"][0]["name"] = json!("../x")).is_err());
    }

    #[test]
    fn a_binding_that_the_stand_in_has_not_got_is_refused() {
        let manifest =
            manifest(|value| value["raw_metadata"]["bindings"] = json!([{ "type": "kv", "name": "KV", "id": "x" }]));
        assert!(manifest.unwrap().metadata().unwrap_err().chain().contains("kv"));
    }

    #[test]
    fn a_module_is_verified_by_length_and_by_either_digest() {
        let digest = sha256_hex(b"x");
        for (sha256, bytes, good) in
            [(&digest[..], 1, true), (&digest[..16], 1, true), (&digest[..15], 1, false), (&digest[..], 2, false)]
        {
            let module = ModuleRef { name: "m".into(), bytes, sha256: sha256.into(), kind: None };
            assert_eq!(module.verify(b"x").is_ok(), good);
        }
    }

    #[test]
    fn a_pointer_cannot_lead_out_of_the_fleet() {
        let with = |prefix: &str| serde_json::to_vec(&json!({ "version": "v", "prefix": prefix })).unwrap();
        assert!(Pointer::decode(&with("deploy/shop/v")).is_ok());
        assert!(Pointer::decode(&with("../other/v")).is_err());
    }

    #[test]
    fn the_asset_index_has_a_fixed_byte_order() {
        let entry = AssetEntry { sha256: "0".repeat(64), bytes: 3, content_type: Some("text/html".into()) };
        let index = AssetIndex {
            schema_version: 1,
            entries: BTreeMap::from([("/a".to_owned(), entry)]),
            config: AssetConfig { html_handling: Some("none".into()), ..AssetConfig::default() },
        };
        assert_eq!(
            serde_json::to_string(&index).unwrap(),
            format!(
                r#"{{"schema_version":1,"entries":{{"/a":{{"sha256":"{}","bytes":3,"content_type":"text/html"}}}},"config":{{"html_handling":"none","run_worker_first":false}}}}"#,
                "0".repeat(64)
            )
        );
    }
}
