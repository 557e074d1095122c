use super::*;

fn project() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap().join("project");
    std::fs::create_dir_all(root.join("src")).unwrap();
    std::fs::write(root.join("src/a.js"), "").unwrap();
    std::fs::write(root.join("../secret.js"), "").unwrap();
    std::os::unix::fs::symlink("../secret.js", root.join("link.js")).unwrap();
    (directory, root)
}

#[test]
fn a_file_is_inside_as_written_and_after_links() {
    let (_directory, root) = project();
    let boundary = Boundary::of(&root);
    for file in ["src/a.js", "src/../src/a.js", "<data:text/plain,x>", "src/not-there.js"] {
        assert!(boundary.holds(file), "{file}");
    }
    for file in
        ["../secret.js", "link.js", "/etc/passwd", "src/../../secret.js", "../not-there.js", "../project-2/a.js"]
    {
        assert!(!boundary.holds(file), "{file}");
    }
}

#[test]
fn a_message_about_another_file_keeps_nothing_of_it() {
    let (_directory, root) = project();
    let said = "✘ [ERROR] Expected \";\" but found \"HIDDEN\"\n\n    ../secret.js:1:7:\n      1 │ root:x HIDDEN\n        ╵        ;\n\n\
        ✘ [ERROR] Unexpected \"HIDDEN\"\n\n    link.js:1:0:\n      1 │ HIDDEN\n\n\
        ✘ [ERROR] No matching export in \"../secret.js\" for import \"b\"\n\n    src/a.js:1:8:\n      1 │ mine\n\n  \
        Did you mean to import \"HIDDEN\" instead?\n\n\
        ✘ [ERROR] Unexpected \"/\"\n\n    src/a.js:2:1:\n      2 │ kept\n\n";
    let kept = Boundary::of(&root).messages(said);
    assert!(!kept.contains("HIDDEN") && kept.contains("kept"), "{kept}");
    for named in ["`../secret.js`", "`link.js`", "src/a.js:1:8"] {
        assert!(kept.contains(named), "{named} in {kept}");
    }
}

#[test]
fn an_import_is_resolved_from_where_it_is_written() {
    let (_directory, root) = project();
    let boundary = Boundary::of(&root);
    let said =
        |import: &str| format!("✘ [ERROR] Could not resolve \"{import}\"\n\n    src/a.js:1:7:\n      1 │ line\n");
    assert!(boundary.messages(&said("../lib/b.js")).contains("line"));
    assert!(boundary.messages(&said("left-pad")).contains("line"));
    assert!(boundary.messages(&said("../../b.js")).contains("`../../b.js` is outside"));
}

#[test]
fn the_refusal_of_a_build_names_the_import_of_the_project() {
    let (_directory, root) = project();
    let account = r#"{ "inputs": {
        "../secret.js": { "imports": [{ "path": "../deeper.js", "original": "./hidden.js" }] },
        "../deeper.js": { "imports": [] },
        "src/a.js": { "imports": [{ "path": "../secret.js", "original": "alias" }] } } }"#;
    let said = Boundary::of(&root).check(account.as_bytes()).unwrap_err().chain();
    assert!(said.contains("src/a.js: `alias` is outside") && !said.contains("hidden"), "{said}");
}

#[test]
fn settings_are_followed_through_what_they_extend() {
    let (_directory, root) = project();
    let account = br#"{ "inputs": { "src/a.js": { "imports": [] } } }"#;
    std::fs::write(root.join("tsconfig.json"), r#"{ "extends": ["./base"] }"#).unwrap();
    std::fs::write(root.join("base.json"), r#"{ "compilerOptions": {}, /* fine */ }"#).unwrap();
    Boundary::of(&root).check(account).unwrap();
    std::fs::write(root.join("base.json"), r#"{ "extends": "../secret" }"#).unwrap();
    assert!(Boundary::of(&root).check(account).unwrap_err().chain().contains("base.json"));
}

#[test]
fn a_directory_that_could_not_be_listed_is_told_only_where_nothing_else_is() {
    let (_directory, root) = project();
    let boundary = Boundary::of(&root);
    let listing = "✘ [ERROR] Cannot read directory \"..\": permission denied\n\n";
    let import = "✘ [ERROR] Could not resolve \"../../b.js\"\n\n    src/a.js:1:7:\n      1 │ line\n";
    assert_eq!(boundary.messages(&format!("{listing}{import}")).lines().count(), 1);
    assert!(boundary.messages(listing).contains("a directory outside"));
}
