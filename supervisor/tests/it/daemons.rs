//! Our daemons: started, restarted, ended.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::node::{Place, alive, mentioning, signal, until, until_within};

#[test]
fn a_node_becomes_ready_says_how_to_reach_it_and_ends_in_order() {
    let place = Place::new();
    let mut node = place.start();
    let ready = node.ready();
    assert_eq!(ready.pids.supervisor, node.pid());
    for pid in [ready.pids.registryd, ready.pids.routerd, ready.pids.apiserver] {
        assert!(alive(pid));
    }
    assert!(ready.pids.bucketd.is_some_and(alive) && ready.pids.ingressd.is_some_and(alive));
    assert_eq!(ready.celld_version.as_deref(), Some("0.6.0"));
    assert_eq!(std::fs::read_to_string(&ready.ingress_token_file).unwrap(), "sesame\n");
    for file in ["node.json", "node.key", "ingress-token", "bucket.json", "node-id", "lock"] {
        let mode = std::fs::metadata(place.state().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    node.signal(Signal::SIGTERM);
    assert!(node.ended().success(), "{}", place.log());
    let ended = place.noted("ended");
    let position =
        |name: &str| ended.iter().position(|ended| ended == name).unwrap_or_else(|| panic!("{name}: {ended:?}"));
    for front in ["apiserver", "ingressd"] {
        assert!(position(front) < position("routerd"), "{ended:?}");
    }
    assert!(position("routerd") < position("registryd") && position("registryd") < position("bucketd"), "{ended:?}");
    assert!(!place.state().join("node.json").exists());
    assert_eq!(mentioning(&place.state()), Vec::<u32>::new());
}

#[test]
fn each_daemon_is_given_what_it_needs_and_no_more() {
    let place = Place::new();
    let mut node = place.start();
    node.ready();
    let bucket: Value = serde_json::from_slice(&std::fs::read(place.state().join("bucket.json")).unwrap()).unwrap();
    let secret = bucket["secretAccessKey"].as_str().unwrap();
    for (daemon, has_bucket, has_token) in [
        ("bucketd", true, false),
        ("registryd", true, false),
        ("routerd", false, false),
        ("apiserver", false, true),
        ("ingressd", false, true),
    ] {
        let settings = place.noted(&format!("settings.{daemon}")).join("");
        assert!(serde_json::from_str::<Value>(&settings).is_ok(), "{daemon}");
        assert_eq!(settings.contains(secret), has_bucket, "{daemon}");
        assert_eq!(settings.contains("sesame"), has_token, "{daemon}");
        assert!(!settings.contains("PRIVATE KEY"));
    }
    assert!(!place.log().contains(secret) && !place.log().contains("sesame"));
}

#[test]
fn a_killed_daemon_comes_back_and_no_connection_is_refused_meanwhile() {
    let place = Place::new();
    let mut node = place.start();
    let ready = node.ready();
    let address = ready.api_listen[0];
    signal(ready.pids.apiserver, Signal::SIGKILL);
    until("the daemon to be gone", || (!alive(ready.pids.apiserver)).then_some(()));
    let mut connection = TcpStream::connect(address).expect("the socket is the supervisor's");
    connection.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    connection.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(node);
    until("bound processes to die with the supervisor", || mentioning(&place.state()).is_empty().then_some(()));
}

#[test]
fn a_daemon_that_refuses_ends_the_node_with_its_code() {
    let place = Place::new();
    place.refuses("registryd", 78);
    let mut node = place.start();
    assert_eq!(node.ended().code(), Some(78));
    let log = place.log();
    assert!(
        log.contains("registryd was told to refuse")
            && log.contains("scafo-registryd refuses")
            && log.contains("hint:")
    );
    assert_eq!(mentioning(&place.state()), Vec::<u32>::new());
}

#[test]
fn a_daemon_that_fails_at_first_is_tried_again() {
    let place = Place::new();
    place.refuses("routerd", 1);
    let mut node = place.start();
    until("two tries", || (place.log().matches("starting it again").count() >= 2).then_some(()));
    assert!(!place.state().join("node.json").exists());
    std::fs::remove_file(place.fakes().join("routerd.exit")).unwrap();
    node.ready();
}

/// Were they asked where others connect, they would not become ready, and be killed after a minute.
#[test]
fn a_daemon_whose_connections_are_all_taken_is_not_taken_for_one_that_hangs() {
    let place = Place::new();
    for daemon in ["apiserver", "ingressd", "bucketd"] {
        place.fills(daemon);
    }
    let mut node = place.start();
    let ready = node.ready();
    let pids = [Some(ready.pids.apiserver), ready.pids.ingressd, ready.pids.bucketd];
    assert!(pids.into_iter().all(|pid| pid.is_some_and(alive)));
    assert!(!place.log().contains("hangs; killing it"), "{}", place.log());
}

/// It takes the minute that a daemon has for its first answer.
#[test]
fn a_daemon_that_says_nothing_after_its_start_is_killed_and_the_next_one_serves() {
    let place = Place::new();
    place.mutes("routerd");
    let mut node = place.start();
    let limit = std::time::Duration::from_secs(180);
    until_within(limit, "it to be killed", || place.log().contains("hangs; killing it").then_some(()));
    assert!(!place.state().join("node.json").exists());
    std::fs::remove_file(place.fakes().join("routerd.mute")).unwrap();
    node.ready();
}

#[test]
fn a_node_file_of_a_process_that_ended_says_nothing_of_the_one_that_has_its_number_now() {
    let place = Place::new();
    let mut node = place.start();
    let ready = node.ready();
    assert!(ready.started.is_some() && scafo_supervisor::holder(&place.state()) == Some(node.pid()));
    let path = place.state().join("node.json");
    let written: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mut earlier = written.clone();
    earlier["started"] = serde_json::json!(ready.started.unwrap() - 1);
    std::fs::write(&path, earlier.to_string()).unwrap();
    assert_eq!(scafo_supervisor::Ready::try_load(&place.state()).unwrap(), None);
    std::fs::write(&path, written.to_string()).unwrap();
    assert_eq!(scafo_supervisor::Ready::try_load(&place.state()).unwrap(), Some(ready));

    let copy = tempfile::tempdir().unwrap();
    for file in ["node.json", "lock"] {
        std::fs::copy(place.state().join(file), copy.path().join(file)).unwrap();
    }
    let copied = scafo_supervisor::Ready::try_load(copy.path()).unwrap();
    assert_eq!(copied, None, "a file that came with a checkout names no node");
}

/// The daemons of a killed supervisor die a moment after it, and the store's port has to stay the same for what outlived it.
#[test]
fn the_buckets_port_is_waited_for_after_a_supervisor_was_killed() {
    let place = Place::new();
    let mut node = place.start();
    let address = node.ready().bucket.expect("an embedded store");
    drop(node);
    until("bound processes to die with the supervisor", || mentioning(&place.state()).is_empty().then_some(()));
    let held = std::net::TcpListener::bind(address.trim_start_matches("http://")).unwrap();
    let mut node = place.start();
    until("the lock to be taken", || (scafo_supervisor::holder(&place.state()) == Some(node.pid())).then_some(()));
    drop(held);
    assert_eq!(node.ready().bucket, Some(address));
}

#[test]
fn a_missing_executable_is_named_with_the_next_step() {
    let place = Place::new();
    std::fs::remove_file(place.fakes().join("scafo-routerd")).unwrap();
    let mut node = place.start();
    assert_eq!(node.ended().code(), Some(1));
    assert!(place.log().contains("scafo-routerd is not there") && place.log().contains("SCAFO_LIBEXEC"));
}

#[test]
fn a_second_supervisor_on_the_directory_is_refused_and_the_first_goes_on() {
    let place = Place::new();
    let mut first = place.start();
    let ready = first.ready();
    let mut second = place.start();
    assert_eq!(second.ended().code(), Some(1));
    assert!(place.log().contains(&format!("process {}", first.pid())), "{}", place.log());
    assert_eq!(first.ready(), ready);
    assert!(alive(ready.pids.apiserver));
}

#[test]
fn settings_are_read_again_on_sighup_whoever_runs_the_node() {
    let place = Place::new();
    let file = place.fakes().join("scafo.toml");
    std::fs::write(&file, "[node.labels]\nregion = \"south\"\n").unwrap();
    let mut node = place.start_with(|mut command| {
        command.arg("--config").arg(&file);
        command
    });
    node.ready();
    std::fs::write(&file, "[node.labels]\nregion = 1979-05-27\n[node]\n").unwrap();
    node.signal(Signal::SIGHUP);
    until("the broken file to be refused", || place.log().contains("the settings stay as they are").then_some(()));
    std::fs::write(&file, "[node.labels]\nregion = \"north\"\n").unwrap();
    node.signal(Signal::SIGHUP);
    until("the registry to be told", || {
        place.noted("settings.registryd").last().filter(|told| told.contains("north")).map(drop)
    });
    node.signal(Signal::SIGTERM);
    assert!(node.ended().success(), "{}", place.log());
}
