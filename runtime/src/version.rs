//! The version of a deployment: a content id, which celld computes the same way from the same bytes.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// JSON without white space, object keys in alphabetical order at every depth: the form that is hashed.
///
/// The order must not depend on whether some crate of the build makes `serde_json` keep insertion order.
pub(crate) fn canonical_json(value: &Value) -> Vec<u8> {
    serde_json::to_vec(&sorted(value)).expect("a JSON value always serialises")
}

/// The same value with its keys in order, for documents that people read.
pub(crate) fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            Value::Object(entries.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// Indented JSON as the bucket's documents have it.
pub(crate) fn pretty_json(value: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1024);
    let mut serializer = serde_json::Serializer::pretty(&mut bytes);
    value.serialize(&mut serializer).expect("the bucket's documents have string keys and finite numbers");
    bytes
}

/// The first 16 hexadecimal digits of a SHA-256 over the modules in order of their names (name, zero, content), the
/// metadata, and, where there are assets, a zero, `assets.json`, a zero, the index.
pub(crate) fn deployment_version<'a>(
    modules: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    metadata_json: &[u8],
    asset_index: Option<&[u8]>,
) -> String {
    let mut modules: Vec<_> = modules.into_iter().collect();
    modules.sort_by_key(|(name, _)| *name);
    let mut hash = Sha256::new();
    for (name, content) in modules {
        hash.update(name);
        hash.update([0]);
        hash.update(content);
    }
    hash.update(metadata_json);
    if let Some(index) = asset_index {
        hash.update(b"\0assets.json\0");
        hash.update(index);
    }
    let mut digits = hex::encode(hash.finalize());
    digits.truncate(16);
    digits
}

/// The whole SHA-256 in lower-case hexadecimal.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // The vectors were computed with coreutils, for example:
    // { printf 'index.js\0'; printf 'export default {};\n'; printf '{"bindings":[],"main_module":"index.js"}'; } | sha256sum
    const METADATA: &[u8] = br#"{"bindings":[],"main_module":"index.js"}"#;
    const MODULE: (&str, &[u8]) = ("index.js", b"export default {};\n");

    #[test]
    fn golden_one_module() {
        assert_eq!(deployment_version([MODULE], METADATA, None), "27dbe924431479bc");
    }

    #[test]
    fn golden_module_and_wasm_in_order_of_their_names() {
        let wasm: (&str, &[u8]) = ("add.wasm", b"\0asm\x01\0\0\0");
        let one = deployment_version([MODULE, wasm], METADATA, None);
        assert_eq!(one, "cad50e8cd92ff33c");
        assert_eq!(one, deployment_version([wasm, MODULE], METADATA, None));
    }

    #[test]
    fn golden_assets() {
        let index = br#"{"schema_version":1,"entries":{},"config":{"run_worker_first":false}}"#;
        assert_eq!(deployment_version([MODULE], METADATA, Some(index)), "5224959925f41233");
    }

    #[test]
    fn golden_vars_in_any_order() {
        let value = json!({
            "main_module": "index.js",
            "compatibility_date": "2026-01-01",
            "bindings": [{ "type": "plain_text", "name": "A", "text": "1" }],
        });
        let canonical = canonical_json(&value);
        assert_eq!(
            String::from_utf8(canonical.clone()).unwrap(),
            r#"{"bindings":[{"name":"A","text":"1","type":"plain_text"}],"compatibility_date":"2026-01-01","main_module":"index.js"}"#
        );
        assert_eq!(deployment_version([MODULE], &canonical, None), "e9c19bdbf55c411f");
    }
}
