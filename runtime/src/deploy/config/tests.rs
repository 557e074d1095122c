use serde_json::json;

use super::*;

/// A project with `worker.js` and `public/`, and the configuration `value`.
fn read_value(value: &Value) -> Outcome<Project> {
    read_text(&value.to_string())
}

fn read_text(text: &str) -> Outcome<Project> {
    let project = tempfile::tempdir().unwrap();
    std::fs::create_dir(project.path().join("public")).unwrap();
    std::fs::write(project.path().join("worker.js"), "export default {}").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", project.path().join("link.js")).unwrap();
    let path = project.path().join("wrangler.jsonc");
    std::fs::write(&path, text).unwrap();
    read(&path)
}

/// A Worker called `shop` with these settings more.
fn with(settings: Value) -> Value {
    let mut value = json!({ "name": "shop", "main": "worker.js" });
    let Value::Object(settings) = settings else { panic!("settings are an object") };
    value.as_object_mut().unwrap().extend(settings);
    value
}

#[track_caller]
fn refused(value: &Value, because: &str) {
    let failure = read_value(value).expect_err("should be refused").chain();
    assert!(failure.contains(because), "{value}: {failure:?} does not say {because:?}");
}

#[test]
fn an_unknown_key_is_named() {
    for key in ["routes", "env", "secrets", "site", "build", "observability", "placement"] {
        refused(&with(json!({ key: {} })), &format!("`{key}`"));
    }
}

#[test]
fn a_feature_that_would_not_run_is_refused() {
    for key in MISSING {
        refused(&with(json!({ key: [] })), "development stand-in cannot run");
    }
}

#[test]
fn comments_and_trailing_commas_are_read_and_nothing_looser() {
    let text = "{ // shop\n \"name\": \"shop\", /* main */ \"main\": \"./worker.js\", }";
    assert_eq!(read_text(text).unwrap().entry.unwrap().path, "worker.js");
    assert!(read_text(&format!("\u{feff}{text}")).is_ok(), "a byte order mark");
    for text in ["{ name: 'shop' }", "[]", "{", ""] {
        assert!(read_text(text).is_err(), "{text:?}");
    }
}

#[test]
fn the_entry_point_is_a_regular_file_inside_the_project() {
    refused(&json!({ "name": "shop", "main": "../worker.js" }), "inside the project");
    refused(&json!({ "name": "shop", "main": "/etc/passwd" }), "inside the project");
    refused(&json!({ "name": "shop", "main": "gone.js" }), "gone.js");
    refused(&json!({ "name": "shop", "main": "public" }), "not a regular file");
    refused(&json!({ "name": "shop", "main": "link.js" }), "not a regular file");
    refused(&json!({ "name": "shop" }), "nothing to deploy");
    refused(&json!({ "name": "Shop", "main": "worker.js" }), "lower-case");
    refused(&json!({ "main": "worker.js" }), "no `name`");
}

#[test]
fn a_link_on_the_way_does_not_lead_out_of_the_project() {
    let (project, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir(outside.path().join("files")).unwrap();
    std::fs::write(outside.path().join("worker.js"), "export default {}").unwrap();
    std::os::unix::fs::symlink(outside.path(), project.path().join("out")).unwrap();
    let path = project.path().join("wrangler.json");
    for settings in [json!({ "main": "out/worker.js" }), json!({ "assets": { "directory": "out/files" } })] {
        let mut value = json!({ "name": "shop" });
        value.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        std::fs::write(&path, value.to_string()).unwrap();
        let failure = read(&path).unwrap_err().chain();
        assert!(failure.contains("out of the project"), "{failure}");
    }
}

#[test]
fn bindings_stand_in_their_fixed_order() {
    let value = with(json!({
        "vars": { "Z": "1", "A": "2" },
        "services": [{ "binding": "S", "service": "other", "entrypoint": "Api" }],
        "durable_objects": { "bindings": [{ "name": "DO", "class_name": "Thing" }] },
        "assets": { "directory": "public", "binding": "FILES" },
        "migrations": [{ "tag": "v1", "new_sqlite_classes": ["Thing"] }],
    }));
    let project = read_value(&value).unwrap();
    let names: Vec<_> = project.metadata["bindings"].as_array().unwrap().iter().map(|b| b["name"].clone()).collect();
    assert_eq!(names, ["DO", "S", "A", "Z", "FILES"]);
    assert_eq!(project.do_classes, ["Thing"]);
    assert_eq!(project.sqlite_classes, ["Thing"]);
    assert_eq!(project.metadata["migrations"], json!({ "new_sqlite_classes": ["Thing"] }));
}

#[test]
fn vars_are_strings_and_names_are_unique() {
    refused(&with(json!({ "vars": { "N": 1 } })), "`vars.N` must be a string");
    refused(&with(json!({ "vars": { "A": "1" }, "services": [{ "binding": "A", "service": "s" }] })), "two bindings");
    refused(&with(json!({ "vars": { "not-a-name": "1" } })), "cannot be a property");
}

#[test]
fn migrations_only_introduce_classes() {
    refused(&with(json!({ "migrations": [{ "tag": "v1", "renamed_classes": [] }] })), "renamed_classes");
    refused(&with(json!({ "migrations": [{ "tag": "v1", "new_classes": ["A"] }] })), "new_classes");
    refused(&with(json!({ "migrations": [{ "tag": "v1" }, { "tag": "v1" }] })), "twice");
    refused(&with(json!({ "migrations": [{ "new_sqlite_classes": ["A"] }] })), "tag");
    refused(&with(json!({ "migrations": [{ "tag": "v1", "new_sqlite_classes": ["__D1Database"] }] })), "reserved");
}

#[test]
fn crons_are_checked_and_are_no_part_of_the_metadata() {
    let project = read_value(&with(json!({ "triggers": { "crons": [" */5 * * * * "], "other": 1 } }))).unwrap();
    assert_eq!(project.crons, ["*/5 * * * *"]);
    assert!(!project.metadata.to_string().contains("*/5"));
    refused(&with(json!({ "triggers": { "crons": ["every day"] } })), "cron expression");
}

#[test]
fn assets_alone_have_no_worker_to_give_anything_to() {
    let alone = |settings: Value| {
        let mut value = json!({ "name": "shop", "assets": { "directory": "public" } });
        let Value::Object(settings) = settings else { panic!("settings are an object") };
        value.as_object_mut().unwrap().extend(settings);
        value
    };
    assert!(read_value(&alone(json!({}))).is_ok());
    refused(&alone(json!({ "vars": { "A": "1" } })), "`vars` needs `main`");
    refused(&alone(json!({ "triggers": { "crons": ["* * * * *"] } })), "needs `main`");
    refused(&alone(json!({ "assets": { "directory": "public", "run_worker_first": true } })), "needs `main`");
    refused(&alone(json!({ "no_bundle": true })), "needs `main`");
}

#[test]
fn asset_settings_are_an_allow_list_too() {
    let assets = |settings: Value| {
        let mut assets = json!({ "directory": "public" });
        let Value::Object(settings) = settings else { panic!("settings are an object") };
        assets.as_object_mut().unwrap().extend(settings);
        with(json!({ "assets": assets }))
    };
    refused(&assets(json!({ "exclude": [] })), "`assets.exclude`");
    refused(&assets(json!({ "html_handling": "magic" })), "auto-trailing-slash");
    refused(&assets(json!({ "directory": ".." })), "inside the project");
    refused(&assets(json!({ "run_worker_first": [] })), "1 to 100");
    refused(&assets(json!({ "run_worker_first": ["!/a"] })), "exceptions only");
    refused(&assets(json!({ "run_worker_first": ["a"] })), "which is none");
    let project = read_value(&assets(json!({ "run_worker_first": ["/api/*", "!/api/docs"] }))).unwrap();
    assert_eq!(project.metadata["assets"], json!({ "config": { "run_worker_first": ["/api/*", "!/api/docs"] } }));
}

#[test]
fn define_and_rules_go_to_the_bundler_only() {
    let value = with(json!({
        "define": { "MODE": "\"x\"" },
        "rules": [{ "type": "Text", "globs": ["**/*.sql"] }],
    }));
    let Some(Entry { bundling: Bundling::Esbuild { define, loaders }, .. }) = read_value(&value).unwrap().entry else {
        panic!("not bundled");
    };
    assert_eq!(define["MODE"], "\"x\"");
    assert_eq!(loaders[".sql"], Loader::Text);
    refused(&with(json!({ "rules": [{ "type": "Text", "globs": ["src/**"] }] })), "`**/*.ext`");
    refused(&with(json!({ "rules": [{ "type": "Text", "globs": ["*.wasm"] }] })), "two rules");
    refused(&with(json!({ "no_bundle": true, "define": {} })), "no effect");
}

#[test]
fn a_directory_without_a_configuration_says_what_to_add() {
    let empty = tempfile::tempdir().unwrap();
    assert!(locate(Some(empty.path())).unwrap_err().chain().contains("wrangler.jsonc"));
    std::fs::write(empty.path().join("wrangler.toml"), "").unwrap();
    assert!(locate(Some(empty.path())).unwrap_err().chain().contains("convert it"));
    assert!(locate(Some(Path::new("/nonexistent"))).unwrap_err().chain().contains("no project"));
}
