//! Version, help, arguments, environment, `deploy`, `diagnose`.

use crate::harness::{World, example, finish, standin};

#[test]
fn the_version_line_is_the_stand_ins_own() {
    let finished = finish(standin(&["--version"]));
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "celld-workerd 0.6.0\n"));
    let mut command = standin(&["--version"]);
    command.env("CELLD_STANDIN_SURFACE", "0.3");
    assert_eq!(finish(command).stdout, "celld-workerd 0.3.0\n");
}

#[test]
fn the_environment_is_checked_before_the_arguments() {
    for (name, value) in
        [("CELLD_TTL_MS", ""), ("CELLD_CLOUD", "yes"), ("CELLD_SHUTDOWN_DRAIN_MS", ""), ("CELLD_VAR_X", "1")]
    {
        let mut command = standin(&["--version"]);
        command.env(name, value);
        let finished = finish(command);
        assert_eq!(finished.code, Some(1), "{name}");
        assert!(finished.stderr.starts_with("Error: ") && finished.stderr.contains(name), "{finished:?}");
    }
}

#[test]
fn nothing_at_all_is_help() {
    let finished = finish(standin(&[]));
    assert_eq!(finished.code, Some(0));
    assert!(finished.stdout.contains("Usage:"), "{finished:?}");
}

#[test]
fn a_wrong_argument_ends_with_one() {
    for arguments in
        [&["--frobnicate"][..], &["--bucket=b"], &["run"], &["--listen", "0.0.0.0:1"], &["--advertise", "10.0.0.1:1"]]
    {
        let finished = finish(standin(arguments));
        assert_eq!(finished.code, Some(1), "{arguments:?}");
        assert!(finished.stderr.starts_with("Error: "), "{arguments:?}: {finished:?}");
    }
}

#[test]
fn a_bucket_that_nobody_set_aside_is_refused_by_every_command() {
    let mut environment = World::new().environment();
    environment.remove("CELLD_STANDIN_EMBEDDED");
    let project = example("hello");
    for arguments in [&["--listen", "127.0.0.1:0"][..], &["deploy", project.to_str().unwrap()], &["diagnose"]] {
        let mut command = standin(arguments);
        command.envs(&environment);
        let finished = finish(command);
        assert_eq!(finished.code, Some(1), "{arguments:?}");
        assert!(finished.stderr.contains("CELLD_STANDIN_ALLOW_BUCKET"), "{finished:?}");
    }
}

#[test]
fn a_deploy_prints_one_line_and_moves_both_pointers() {
    let world = World::new();
    let project = example("counter");
    let finished = world.run(&["deploy", project.to_str().unwrap()], &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let version = finished.stdout.strip_prefix("Current Version ID: ").unwrap().trim_end();
    assert!(version.len() == 16 && version.bytes().all(|byte| byte.is_ascii_hexdigit()), "{version}");
    for key in ["deploy/current.json", "deploy/counter/current.json"] {
        let pointer = world.bucket.read(key).unwrap();
        assert_eq!(pointer["version"], version);
        assert_eq!(pointer["script_name"], "counter");
        assert_eq!(pointer["prefix"], format!("deploy/counter/{version}"));
        assert_eq!(pointer["rollout"]["percent"], 100);
    }
    let manifest = world.bucket.read(&format!("deploy/counter/{version}/manifest.json")).unwrap();
    assert_eq!(manifest["main_module"], "index.js");
    assert_eq!(manifest["sqlite_classes"], serde_json::json!(["Counter"]));
    assert_eq!(world.deploy(&project), version, "the same content has the same version");
}

#[test]
fn json_is_one_object_and_a_dry_run_needs_no_bucket() {
    let world = World::new();
    let project = example("hello");
    let mut command = standin(&["deploy", project.to_str().unwrap(), "--dry-run", "--json"]);
    command.env("CELLD_ESBUILD", &world.environment()["CELLD_ESBUILD"]);
    let finished = finish(command);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let document: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(document["worker"], "hello");
    assert_eq!(document["dry_run"], true);
    let finished = world.run(&["deploy", project.to_str().unwrap(), "--dry-run"], &[]);
    assert!(finished.stdout.ends_with(" (dry run; nothing written)\n"), "{finished:?}");
    assert!(world.bucket.read("deploy/current.json").is_none());
}

#[test]
fn a_syntax_error_fails_with_the_bundlers_words_and_moves_nothing() {
    let world = World::new();
    let version = world.deploy(&world.worker("one"));
    let project = world.project("export default { fetch( { return 1 } }", "");
    let finished = world.run(&["deploy", project.to_str().unwrap()], &[]);
    assert_eq!(finished.code, Some(1));
    assert!(finished.stderr.contains("esbuild failed") && finished.stderr.contains("index.js:1"), "{finished:?}");
    assert_eq!(world.bucket.read("deploy/current.json").unwrap()["version"], version);
}

#[test]
fn an_older_surface_says_everything_on_standard_output() {
    let world = World::new();
    let finished = world.run(&["deploy", example("hello").to_str().unwrap()], &[("CELLD_STANDIN_SURFACE", "0.3")]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(finished.stdout.starts_with(" celld-workerd 0.3.0\n"), "{finished:?}");
    let at = finished.stdout.lines().position(|line| line.starts_with("Current Version ID: ")).unwrap();
    assert!(finished.stdout.lines().count() > at + 1, "a reminder follows");
}

#[test]
fn hooks_let_a_deploy_lose_its_race_or_its_answer() {
    let world = World::new();
    let project = world.worker("one");
    let project = project.to_str().unwrap();
    let lost = world.run(&["deploy", project], &[("CELLD_STANDIN_DEPLOY", "lost-race")]);
    assert_eq!(lost.code, Some(1));
    assert!(lost.stderr.contains("lost a race"), "{lost:?}");
    assert!(world.bucket.read("deploy/current.json").is_none());
    let ambiguous = world.run(&["deploy", project], &[("CELLD_STANDIN_DEPLOY", "ambiguous")]);
    assert_eq!(ambiguous.code, Some(1));
    assert!(world.bucket.read("deploy/current.json").is_some());
}

#[test]
fn a_hanging_deploy_ends_by_a_signal() {
    let world = World::new();
    let project = world.worker("one");
    let command = world.command(&["deploy", project.to_str().unwrap()], &[("CELLD_STANDIN_DEPLOY", "hang")]);
    let mut deploy = crate::harness::Node::start(command, world.directory.path());
    crate::harness::eventually("it is built", || deploy.stderr().contains("Bundled shop").then_some(()));
    assert!(deploy.is_running());
    deploy.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&deploy.ended()), Some(15));
}

#[test]
fn diagnose_has_a_row_for_each_check() {
    let world = World::new();
    let finished = world.run(&["diagnose", "--listen", "127.0.0.1:0"], &[]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    for row in [
        "ok listen: ",
        "ok internal listen: ",
        "ok advertise: ",
        "ok bucket: ",
        "ok bucket conditional write: ",
        "ok fleet: 0 ",
    ] {
        assert!(finished.stdout.lines().any(|line| line.starts_with(row)), "{row:?} is missing in {finished:?}");
    }
    let finished = world.run(&["diagnose", "--listen", "127.0.0.1:0", "--read-only", "--json", "--peer", "gone"], &[]);
    assert_eq!(finished.code, Some(1), "a peer without a lease is a failure");
    let rows: Vec<serde_json::Value> =
        finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.iter().any(|row| row["verdict"] == "skip" && row["check"] == "bucket write probe"), "{rows:?}");
    assert!(rows.iter().any(|row| row["verdict"] == "fail" && row["check"] == "peer gone"), "{rows:?}");
}

#[test]
fn diagnose_fails_on_a_port_in_use() {
    let world = World::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let finished = world.run(&["diagnose", "--listen", &taken.local_addr().unwrap().to_string()], &[]);
    assert_eq!(finished.code, Some(1));
    assert!(finished.stdout.contains("fail listen: "), "{finished:?}");
}
