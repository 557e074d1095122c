//! A project reads its own files when it is bundled, and no others: with the kernel's help and without.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use crate::harness::{Finished, World};

/// Stands in files that no project may read.
const SECRET: &str = "SECRETWORD";

const JSON_IMPORT: &str = r#"import found from "../bucket.json"; export default { fetch() { return found } };"#;

/// One way out of a project.
struct Escape {
    way: &'static str,
    script: &'static str,
    settings: &'static str,
    files: &'static [(&'static str, &'static str)],
    /// Name and target of links.
    links: &'static [(&'static str, &'static str)],
}

impl Escape {
    const fn script(way: &'static str, script: &'static str) -> Self {
        Self { way, script, settings: "", files: &[], links: &[] }
    }
}

const PACKAGE: &str = r#"import found from "q"; export default { fetch() { return found } };"#;

const ESCAPES: &[Escape] = &[
    Escape::script("an import of data", JSON_IMPORT),
    Escape::script("an import of text", r#"import found from "../secret.txt"; export default found;"#),
    Escape::script("an import of wasm", r#"import found from "../secret.wasm"; export default found;"#),
    Escape::script("a file that is no JavaScript", r#"import "../notes.js";"#),
    Escape::script(
        "an export that is not there",
        r#"import { secretword } from "../module.js"; export default secretword;"#,
    ),
    Escape::script("a require", r#"export default require("../bucket.json");"#),
    Escape::script("a dynamic import", r#"export default { fetch: () => import("../bucket.json") };"#),
    Escape {
        files: &[("style.css", r#"@import "../secret.css";"#)],
        ..Escape::script("a style sheet", r#"import "./style.css"; export default {};"#)
    },
    Escape {
        settings: r#", "rules": [{ "type": "Data", "globs": ["**/*.dat"] }]"#,
        ..Escape::script("a rule for data", r#"import found from "../secret.dat"; export default found;"#)
    },
    Escape {
        links: &[("link.json", "../bucket.json")],
        ..Escape::script("a link to data", r#"import found from "./link.json"; export default found;"#)
    },
    Escape {
        links: &[("link.js", "../notes.js")],
        ..Escape::script("a link to what is no JavaScript", r#"import "./link.js";"#)
    },
    Escape {
        links: &[("lib", "..")],
        ..Escape::script("a link to a directory", r#"import found from "./lib/bucket.json"; export default found;"#)
    },
    Escape {
        files: &[("tsconfig.json", r#"{ "compilerOptions": { "paths": { "q": ["../bucket.json"] } } }"#)],
        ..Escape::script("paths of tsconfig", PACKAGE)
    },
    Escape {
        files: &[("tsconfig.json", r#"{ "extends": "../bucket.json" }"#)],
        ..Escape::script("extends of tsconfig", "export default {};")
    },
    Escape {
        files: &[("tsconfig.json", r#"{ "extends": "../notes.js" }"#)],
        ..Escape::script("extends of tsconfig with what is no JSON", "export default {};")
    },
    Escape { links: &[("tsconfig.json", "../notes.js")], ..Escape::script("tsconfig is a link", "export default {};") },
    Escape {
        files: &[("node_modules/q/package.json", r#"{ "main": "../../../bucket.json" }"#)],
        ..Escape::script("main of a package", PACKAGE)
    },
    Escape {
        files: &[("node_modules/q/package.json", r#"{ "exports": "./../../../bucket.json" }"#)],
        ..Escape::script("exports of a package", PACKAGE)
    },
    Escape {
        files: &[
            ("node_modules/q/package.json", r#"{ "browser": { "./index.js": "../../../bucket.json" } }"#),
            ("node_modules/q/index.js", "export default 1;"),
        ],
        ..Escape::script("browser of a package", PACKAGE)
    },
    Escape {
        files: &[("node_modules/q/index.js", "export default 1;")],
        links: &[("node_modules/q/package.json", "../../../notes.js")],
        ..Escape::script("a package's description is a link", PACKAGE)
    },
    Escape { links: &[("node_modules/q", "../../package")], ..Escape::script("a package is a link", PACKAGE) },
];

/// A world with secrets beside the project.
fn world() -> World {
    let world = World::new();
    let beside = world.directory.path();
    for (name, body) in [
        ("bucket.json", r#"{ "secret_access_key": "SECRETWORD" }"#),
        ("secret.txt", SECRET),
        ("secret.wasm", SECRET),
        ("secret.dat", SECRET),
        ("secret.css", "a { color: SECRETWORD }"),
        ("notes.js", "root:x SECRETWORD"),
        ("module.js", "export const secretWord = 'SECRETWORD';"),
        ("package/index.js", "export default 'SECRETWORD';"),
        ("config.json", r#"{ "name": "shop", "main": "index.js", "SECRETWORD": 1 }"#),
    ] {
        write(&beside.join(name), body);
    }
    world
}

fn write(path: &Path, body: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, body).unwrap();
}

fn link(path: &Path, target: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(target, path).unwrap();
}

#[track_caller]
fn refused(world: &World, way: &str, project: &Path, more: &[(&str, &str)]) -> Finished {
    let finished = world.run(&["deploy", project.to_str().unwrap()], more);
    assert_eq!(finished.code, Some(1), "{way}: {finished:?}");
    for output in [&finished.stdout, &finished.stderr] {
        assert!(!output.to_lowercase().contains(&SECRET.to_lowercase()), "{way}: {finished:?}");
    }
    assert!(world.bucket.read("deploy/current.json").is_none(), "{way}");
    finished
}

/// A bundler that is a script cannot be confined, as on a kernel without Landlock.
fn unconfined(world: &World) -> String {
    let script = world.directory.path().join("esbuild.sh");
    fs::write(&script, format!("#!/bin/sh\nexec '{}' \"$@\"\n", world.environment()["CELLD_ESBUILD"])).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script.display().to_string()
}

fn every_escape_is_refused(world: &World, more: &[(&str, &str)]) {
    for (index, escape) in ESCAPES.iter().enumerate() {
        let project = world.named_project(&format!("way-{index}"), escape.script, escape.settings);
        for (name, body) in escape.files {
            write(&project.join(name), body);
        }
        for (name, target) in escape.links {
            link(&project.join(name), target);
        }
        refused(world, escape.way, &project, more);
    }
}

#[test]
fn no_way_out_of_the_project_is_bundled_or_quoted() {
    every_escape_is_refused(&world(), &[]);
}

#[test]
fn no_way_out_of_the_project_is_bundled_or_quoted_without_the_kernels_help() {
    let world = world();
    let bundler = unconfined(&world);
    every_escape_is_refused(&world, &[("CELLD_ESBUILD", &bundler)]);
    let finished = world.run(&["deploy", world.worker("one").to_str().unwrap()], &[("CELLD_ESBUILD", &bundler)]);
    assert!(finished.stderr.contains("not confined"), "{finished:?}");
}

#[test]
fn a_pattern_of_imports_finds_nothing_outside() {
    let world = world();
    let project = world.project("export default { fetch: (name) => import(`../${name}.json`) };", "");
    refused(&world, "a pattern", &project, &[("CELLD_ESBUILD", &unconfined(&world))]);
    // A confined bundler sees no file there that would match. A kernel without Landlock refuses as above.
    let finished = world.run(&["deploy", project.to_str().unwrap()], &[]);
    if let Some(version) = finished.stdout.strip_prefix("Current Version ID: ") {
        let module = world.bucket.bytes(&format!("deploy/shop/{}/index.js", version.trim_end())).unwrap();
        assert!(!String::from_utf8(module).unwrap().contains(SECRET));
    } else {
        refused(&world, "a pattern", &project, &[]);
    }
}

#[test]
fn an_import_from_outside_is_named_as_it_was_written() {
    let world = world();
    let bundler = unconfined(&world);
    let absolute = world.directory.path().join("bucket.json").display().to_string();
    for written in ["../bucket.json", &absolute, "/proc/self/environ", "/etc/passwd"] {
        let project = world.project(&format!("import found from {written:?}; export default found;"), "");
        let confined = refused(&world, written, &project, &[]);
        assert!(confined.stderr.contains("outside of the project"), "{confined:?}");
        assert!(confined.stderr.contains(&format!("`{written}`")), "{confined:?}");
        let unconfined = refused(&world, written, &project, &[("CELLD_ESBUILD", &bundler)]);
        assert!(unconfined.stderr.contains("outside of the project"), "{unconfined:?}");
        assert!(!unconfined.stderr.contains("root:"), "{unconfined:?}");
    }
}

#[test]
fn neither_the_configuration_nor_what_it_names_leads_out() {
    let world = world();
    let project = world.worker("one");
    let config = project.join("wrangler.jsonc");
    for (key, value) in [("main", "../notes.js"), ("main", "link.js"), ("main", "lib/notes.js")] {
        let _first = symlink("../notes.js", project.join("link.js"));
        let _first = symlink("..", project.join("lib"));
        for bundling in ["", r#", "no_bundle": true"#] {
            fs::write(&config, format!(r#"{{ "name": "shop", "{key}": "{value}" {bundling} }}"#)).unwrap();
            refused(&world, value, &project, &[]);
        }
    }
    for directory in ["..", "lib", "lib/package"] {
        fs::write(&config, format!(r#"{{ "name": "shop", "assets": {{ "directory": "{directory}" }} }}"#)).unwrap();
        refused(&world, directory, &project, &[]);
    }
    fs::remove_file(&config).unwrap();
    symlink("../config.json", &config).unwrap();
    let finished = refused(&world, "the configuration is a link", &project, &[]);
    assert!(finished.stderr.contains("out of the project"), "{finished:?}");
}

/// A project with packages as pnpm lays them out, inner links, TypeScript settings, text, data and wasm.
fn honest(world: &World) -> std::path::PathBuf {
    let script = r#"import left from "left";
import { shared } from "./inner.ts";
import { shared as again } from "@/shared";
import notes from "./notes.txt";
import virtual from "data:text/javascript,export default 1";
import add from "./add.wasm";
export default { fetch() { return new Response([left, shared === again, notes, virtual, typeof add].join()); } };
"#;
    let project = world.project(script, "");
    for (name, body) in [
        ("node_modules/.pnpm/left@1.0.0/node_modules/left/package.json", r#"{"name":"left","main":"index.js"}"#),
        (
            "node_modules/.pnpm/left@1.0.0/node_modules/left/index.js",
            r#"import right from "right"; export default "left " + right;"#,
        ),
        (
            "node_modules/.pnpm/right@2.0.0/node_modules/right/package.json",
            r#"{"name":"right","exports":{".":"./index.js"}}"#,
        ),
        ("node_modules/.pnpm/right@2.0.0/node_modules/right/index.js", r#"export default "right";"#),
        ("lib/shared.ts", r#"export const shared: string = "shared";"#),
        ("tsconfig.json", r#"{"extends":"./tsconfig.base.json"}"#),
        ("tsconfig.base.json", r#"{"compilerOptions":{"baseUrl":".","paths":{"@/*":["lib/*"]}}}"#),
        ("add.wasm", "\0asm\u{1}\0\0\0"),
        ("notes.txt", "words"),
    ] {
        write(&project.join(name), body);
    }
    link(&project.join("node_modules/left"), ".pnpm/left@1.0.0/node_modules/left");
    link(&project.join("node_modules/.pnpm/left@1.0.0/node_modules/right"), "../../right@2.0.0/node_modules/right");
    link(&project.join("inner.ts"), "lib/shared.ts");
    project
}

/// Versions as they were before bundling was confined.
const HONEST: &str = "598f03138143fdfe";

#[test]
fn an_honest_project_keeps_its_version_however_it_is_bundled() {
    let world = world();
    let project = honest(&world);
    let bundler = unconfined(&world);
    let version = |more: &[(&str, &str)]| {
        let finished = world.run(&["deploy", project.to_str().unwrap(), "--dry-run", "--json"], more);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let document: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
        document["version"].as_str().unwrap().to_owned()
    };
    assert_eq!(version(&[]), HONEST);
    assert_eq!(version(&[("CELLD_ESBUILD", &bundler)]), HONEST);
}

#[test]
fn an_honest_mistake_is_quoted_with_its_line() {
    let world = world();
    let script = "import { nothing } from './lib/empty.js';\nimport './missing.js';\nexport default nothing;";
    let project = world.project(script, "");
    write(&project.join("lib/empty.js"), "export const something = 1;");
    let finished = refused(&world, "a mistake", &project, &[]);
    for part in ["./missing.js", "index.js:2:7", "import './missing.js'"] {
        assert!(finished.stderr.contains(part), "{part}: {finished:?}");
    }
    assert!(!finished.stderr.contains("outside"), "{finished:?}");
}
