use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use scafo_store::{Fault, MemoryBucket, Operation};

use super::*;
use crate::{
    deploy::{assets::BuiltAssets, build::build, config},
    environment::Environment,
};

/// A project with an unbundled Worker and one asset, built.
fn built(script: &str) -> (tempfile::TempDir, Built) {
    let project = tempfile::tempdir().unwrap();
    std::fs::create_dir(project.path().join("public")).unwrap();
    std::fs::write(project.path().join("public/a.txt"), "a").unwrap();
    std::fs::write(project.path().join("worker.js"), script).unwrap();
    let config = r#"{ "name": "shop", "main": "worker.js", "no_bundle": true, "assets": { "directory": "public" } }"#;
    std::fs::write(project.path().join("wrangler.json"), config).unwrap();
    let read = config::read(&config::locate(Some(project.path())).unwrap()).unwrap();
    let built = build(&read, &Environment::default()).unwrap();
    (project, built)
}

fn location() -> Location {
    Location::parse("bucket/fleets/shop").unwrap()
}

/// The keys of all writes, in order.
fn recorded(bucket: &MemoryBucket) -> Arc<Mutex<Vec<String>>> {
    let writes = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&writes);
    bucket.plan(move |operation| {
        if let Operation::Put(key, condition) = operation {
            let conditional = if *condition == Condition::None { "" } else { " (conditional)" };
            seen.lock().unwrap().push(format!("{key}{conditional}"));
        }
        None
    });
    writes
}

#[tokio::test]
async fn bodies_come_first_and_the_fleet_pointer_last() {
    let (_project, built) = built("export default {}");
    let bucket = MemoryBucket::new();
    let writes = recorded(&bucket);
    publish(&bucket, &location(), &built, None).await.unwrap();
    let prefix = &built.prefix;
    let sha256 = sha256_hex(b"a");
    assert_eq!(
        *writes.lock().unwrap(),
        [
            format!("deploy-blobs/assets/sha256/{}/{sha256}", &sha256[..2]),
            format!("{prefix}/index.js"),
            format!("{prefix}/assets.json"),
            format!("{prefix}/manifest.json"),
            "deploy/shop/current.json (conditional)".to_owned(),
            "deploy/current.json (conditional)".to_owned(),
        ]
    );
    let object = bucket.get(FLEET_POINTER).await.unwrap().unwrap();
    assert_eq!(Pointer::decode(&object.body).unwrap().version, built.manifest.version);
}

#[tokio::test]
async fn a_body_that_is_there_is_not_uploaded_again() {
    let (_project, built) = built("export default {}");
    let bucket = MemoryBucket::new();
    publish(&bucket, &location(), &built, None).await.unwrap();
    let writes = recorded(&bucket);
    publish(&bucket, &location(), &built, None).await.unwrap();
    assert!(writes.lock().unwrap().iter().all(|key| !key.starts_with("deploy-blobs/")));
}

#[tokio::test]
async fn a_moved_pointer_is_a_lost_race_and_is_not_overwritten() {
    let (_project, first) = built("export default 1");
    let (_other_project, second) = built("export default 2");
    let bucket = MemoryBucket::new();
    publish(&bucket, &location(), &first, None).await.unwrap();
    bucket.fail_next_puts(FLEET_POINTER, [Fault::Refuse]);
    let failure = publish(&bucket, &location(), &second, None).await.unwrap_err().chain();
    assert!(failure.contains("lost a race"), "{failure}");
    let object = bucket.get(FLEET_POINTER).await.unwrap().unwrap();
    assert_eq!(Pointer::decode(&object.body).unwrap().version, first.manifest.version);
}

#[tokio::test]
async fn a_lost_answer_of_the_pointer_is_said_and_not_guessed() {
    let (_project, built) = built("export default {}");
    let bucket = MemoryBucket::new();
    bucket.fail_next_puts(FLEET_POINTER, [Fault::LoseAnswer]);
    let failure = publish(&bucket, &location(), &built, None).await.unwrap_err().chain();
    assert!(failure.contains("nobody knows") && !failure.contains("lost a race"), "{failure}");
}

#[tokio::test(start_paused = true)]
async fn a_busy_store_is_asked_again() {
    let (_project, built) = built("export default {}");
    let bucket = MemoryBucket::new();
    bucket.fail_next_puts(FLEET_POINTER, [Fault::Busy]);
    bucket.fail_next_puts(&format!("{}/manifest.json", built.prefix), [Fault::LoseAnswer, Fault::Busy]);
    publish(&bucket, &location(), &built, None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pointer_that_is_not_read_at_once_is_asked_for_again() {
    let (_project, built) = built("export default {}");
    let bucket = MemoryBucket::new();
    let mut asked = 0;
    bucket.plan(move |operation| {
        asked += u32::from(matches!(operation, Operation::Get(FLEET_POINTER)));
        (asked == 1).then_some(Fault::LoseRequest)
    });
    publish(&bucket, &location(), &built, None).await.unwrap();
}

#[tokio::test]
async fn hooks_end_a_deploy_as_they_say() {
    let (_project, built) = built("export default {}");
    let bucket = MemoryBucket::new();
    let lost = publish(&bucket, &location(), &built, Some(DeployHook::LostRace)).await.unwrap_err().chain();
    assert!(lost.contains("lost a race"), "{lost}");
    assert!(bucket.get(FLEET_POINTER).await.unwrap().is_none(), "the pointer stands where it stood");
    publish(&bucket, &location(), &built, Some(DeployHook::Ambiguous)).await.unwrap_err();
    assert!(bucket.get(FLEET_POINTER).await.unwrap().is_some(), "the write is done, only its answer is lost");
}

#[tokio::test]
async fn an_asset_that_changes_while_it_is_published_stops_the_deploy() {
    let (project, built) = built("export default {}");
    std::fs::write(project.path().join("public/a.txt"), "b").unwrap();
    let bucket = MemoryBucket::new();
    let failure = publish(&bucket, &location(), &built, None).await.unwrap_err().chain();
    assert!(failure.contains("changed while"), "{failure}");
    assert!(bucket.get(FLEET_POINTER).await.unwrap().is_none());
}

#[test]
fn bodies_are_kept_once_whatever_their_names() {
    let project = tempfile::tempdir().unwrap();
    for name in ["a.txt", "b.txt"] {
        std::fs::write(project.path().join(name), "same").unwrap();
    }
    let settings = config_of_assets(project.path());
    let BuiltAssets { bodies, file_count, total_bytes, .. } = crate::deploy::assets::build(&settings).unwrap();
    assert_eq!((bodies.len(), file_count, total_bytes), (1, 2, 8));
}

fn config_of_assets(directory: &std::path::Path) -> crate::deploy::assets::ProjectAssets {
    crate::deploy::assets::ProjectAssets {
        directory: directory.to_owned(),
        config: crate::shapes::AssetConfig::default(),
        metadata: serde_json::json!({}),
    }
}

#[test]
fn the_manifest_names_features_modules_and_assets() {
    let (_project, built) = built("export default {}");
    assert_eq!(built.manifest.required_features, ["assets-v1"]);
    assert_eq!(built.manifest.schema_version, 2);
    assert_eq!(built.manifest.modules.len(), 1);
    assert_eq!(built.manifest.assets.as_ref().unwrap().file_count, 1);
    assert_eq!(built.manifest.modules[0].sha256.len(), 64);
    let modules: BTreeMap<_, _> = built.modules.iter().collect();
    assert_eq!(*modules[&"index.js".to_owned()], b"export default {}");
}

/// Computed from the description of the formula, by another program.
#[test]
fn the_version_of_a_whole_project_is_golden() {
    let (_project, built) = built("export default {}");
    assert_eq!(built.manifest.version, "f3d02fb4e86f5b52");
}
