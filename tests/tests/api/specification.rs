//! The index of `docs/specification.md`: no rule without a test, and no test that is not there.

use std::collections::BTreeSet;
use std::path::Path;

const INDEX: &str = include_str!("../../../docs/specification.md");

/// The names of all tests in the sources, Rust's and Go's.
fn tests(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && name != "node_modules" && !name.starts_with('.') {
                tests(&path, found);
            }
        } else if name.ends_with(".rs") {
            found.extend(of_rust(&std::fs::read_to_string(path).unwrap()));
        } else if name.ends_with("_test.go") {
            let text = std::fs::read_to_string(path).unwrap();
            let names = text.lines().filter_map(|line| line.strip_prefix("func Test")?.split_once('('));
            found.extend(names.map(|(name, _)| format!("Test{name}")));
        }
    }
}

/// The functions behind `#[test]` and its like, other attributes in between.
fn of_rust(text: &str) -> Vec<String> {
    let (mut names, mut marked) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        let function = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
        if line.starts_with("#[test") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some(function) = function.filter(|_| std::mem::take(&mut marked)) {
            names.extend(function.split_once('(').map(|(name, _)| name.to_owned()));
        }
    }
    names
}

/// `3`, `4-6` and lists of them.
fn ordinals(cell: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in cell.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        all.extend(first..=last);
    }
    (!all.is_empty() && all.iter().all(|ordinal| *ordinal > 0)).then_some(all)
}

/// The rows of the index: page, section, ordinals, and the names of tests.
fn rows() -> Vec<(String, String, Vec<u32>, Vec<String>)> {
    let (mut page, mut section, mut rows) = (String::new(), String::new(), Vec::new());
    for line in INDEX.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            name.clone_into(&mut page);
        } else if let Some(name) = line.strip_prefix("### ") {
            name.clone_into(&mut section);
        } else if let Some(cells) = line.strip_prefix("| ").and_then(|rest| rest.strip_suffix(" |")) {
            let Some((cell, names)) = cells.split_once(" | ") else { panic!("no two cells: {line}") };
            if cell == "rule" || cell == "---" {
                continue;
            }
            let ordinals = ordinals(cell).unwrap_or_else(|| panic!("{page}, {section}: no ordinals: {line}"));
            let names = names.split(", ").map(|name| name.trim_matches('`').to_owned()).collect();
            rows.push((page.clone(), section.clone(), ordinals, names));
        } else {
            assert!(!line.starts_with('|'), "a cell is empty: {line}");
        }
    }
    rows
}

#[test]
fn each_rule_in_the_index_has_tests_and_each_of_them_is_there() {
    let mut found = BTreeSet::new();
    tests(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut found);
    assert!(found.contains("each_rule_in_the_index_has_tests_and_each_of_them_is_there"));
    let mut seen = BTreeSet::new();
    let mut missing = Vec::new();
    for (page, section, ordinals, names) in rows() {
        assert!(
            !names.is_empty() && names.iter().all(|name| !name.is_empty()),
            "{page}, {section}, {ordinals:?}: no test"
        );
        for ordinal in ordinals {
            assert!(seen.insert((page.clone(), section.clone(), ordinal)), "{page}, {section}, {ordinal} stands twice");
        }
        missing.extend(
            names.into_iter().filter(|name| !found.contains(name)).map(|name| format!("{page}, {section}: {name}")),
        );
    }
    assert!(missing.is_empty(), "not in the sources: {missing:#?}");
    let pages: BTreeSet<&str> = seen.iter().map(|(page, ..)| page.as_str()).collect();
    let all = ["ingress-protocol.md", "node-api.md", "registry.md", "routing-and-ingress.md"];
    assert_eq!(pages, BTreeSet::from(all));
}

#[test]
fn a_gap_in_the_index_is_seen() {
    for (cell, read) in [("1", Some(vec![1])), ("1, 3-5", Some(vec![1, 3, 4, 5])), ("", None), ("0", None), ("a", None)]
    {
        assert_eq!(ordinals(cell), read, "{cell}");
    }
    let names =
        of_rust("#[test]\n#[cfg(unix)]\nfn a() {}\nfn b() {}\n#[tokio::test(start_paused = true)]\nasync fn c() {\n");
    assert_eq!(names, ["a", "c"]);
}
