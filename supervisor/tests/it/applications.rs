//! Applications: celld processes and deploy jobs over gRPC.

use std::time::Duration;

use nix::sys::signal::Signal;
use scafo_core::problem::ProblemCode;
use scafo_core::record::ProcessState;
use scafo_core::view::ProcessStatus;
use scafo_proto::status::to_problem;
use scafo_proto::supervisor::supervisor_client::SupervisorClient;
use scafo_proto::supervisor::{
    ApplyProcessesRequest, DesiredProcess, JobExited, ReloadRequest, RunDeployRequest, SignNodeTokenRequest,
    WatchProcessesRequest, reload_response, run_deploy_event,
};
use tonic::transport::Channel;

use crate::node::{Place, alive, mentioning, until};

pub(crate) type Client = SupervisorClient<Channel>;

pub(crate) async fn apply(client: &mut Client, pass: u64, applications: &[&str]) -> Result<(), tonic::Status> {
    apply_deploy(client, pass, applications, "").await
}

async fn apply_deploy(
    client: &mut Client,
    pass: u64,
    applications: &[&str],
    deploy: &str,
) -> Result<(), tonic::Status> {
    let process = |name: &&str| DesiredProcess {
        application: (*name).to_owned(),
        deploy: deploy.to_owned(),
        ..DesiredProcess::default()
    };
    let processes = applications.iter().map(process).collect();
    let request =
        ApplyProcessesRequest { pass, run: "run-1".to_owned(), processes, ..ApplyProcessesRequest::default() };
    client.apply_processes(request).await.map(drop)
}

/// Orders one process of the application that was created then; answers of what else something is kept.
async fn apply_created(client: &mut Client, pass: u64, created_at: Option<&str>, gone: &[&str]) -> Vec<String> {
    let process = |created_at: &str| DesiredProcess {
        application: "shop".to_owned(),
        created_at: created_at.to_owned(),
        ..DesiredProcess::default()
    };
    let request = ApplyProcessesRequest {
        pass,
        run: "run-1".to_owned(),
        processes: created_at.map(process).into_iter().collect(),
        installation: "installation".to_owned(),
        gone: gone.iter().map(ToString::to_string).collect(),
    };
    client.apply_processes(request).await.unwrap().into_inner().kept
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_sees_nothing_of_an_earlier_one_of_its_name_and_a_deleted_one_leaves_nothing() {
    const FIRST: &str = "2026-01-01T00:00:00.000Z";
    const SECOND: &str = "2026-01-02T00:00:00.000Z";
    let place = Place::new();
    let mut node = place.start();
    node.ready();
    let mut client = node.client();
    apply_created(&mut client, 1, Some(FIRST), &[]).await;
    let first = watched(&mut client, ready_with("v1")).await.remove(0);
    let (data, log) = (place.state().join("celld/shop/watch/data"), place.state().join("logs/shop.log"));
    std::fs::write(&data, "of the first").unwrap();
    assert!(log.exists());

    // Deleted and made anew before this node looked again: its process has to end first.
    for pass in 2.. {
        apply_created(&mut client, pass, Some(SECOND), &[]).await;
        let statuses = client.watch_processes(WatchProcessesRequest {}).await.unwrap().into_inner().message().await;
        let statuses = statuses.unwrap().unwrap().statuses;
        let pids = statuses.iter().filter_map(|s| serde_json::from_slice::<ProcessStatus>(s).unwrap().pid);
        if pids.into_iter().any(|pid| Some(pid) != first.pid) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    watched(&mut client, ready_with("v1")).await;
    assert!(!data.exists(), "the second one has nothing of the first");

    std::fs::write(&data, "of the second").unwrap();
    let pass = u64::MAX - 2;
    assert!(apply_created(&mut client, pass, Some(SECOND), &["shop"]).await.is_empty(), "what is wanted is not gone");
    assert!(data.exists());
    assert_eq!(apply_created(&mut client, pass, None, &[]).await, ["shop"]);
    watched(&mut client, <[_]>::is_empty).await;
    assert!(data.exists(), "unplaced is not deleted");
    until("what it left to be gone", || {
        // What had not ended is asked about again.
        let kept = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(apply_created(&mut client, pass + 1, None, &["shop"]))
        });
        kept.is_empty().then_some(())
    });
    assert!(!place.state().join("celld/shop").exists() && !log.exists());
    assert!(apply_created(&mut client, pass + 2, None, &[]).await.is_empty());
    node.signal(Signal::SIGTERM);
    assert!(node.ended().success(), "{}", place.log());
}

/// Waits for a report that is as it should be.
pub(crate) async fn watched(client: &mut Client, fine: impl Fn(&[ProcessStatus]) -> bool) -> Vec<ProcessStatus> {
    let mut reports = client.watch_processes(WatchProcessesRequest {}).await.unwrap().into_inner();
    let waiting = async {
        loop {
            let report = reports.message().await.unwrap().expect("the stream goes on");
            let statuses: Vec<ProcessStatus> =
                report.statuses.iter().map(|status| serde_json::from_slice(status).unwrap()).collect();
            if fine(&statuses) {
                return statuses;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("such a report comes")
}

pub(crate) fn ready_with(version: &'static str) -> impl Fn(&[ProcessStatus]) -> bool {
    move |statuses| {
        let fine = |status: &ProcessStatus| {
            status.state == ProcessState::Ready && status.deployment.as_ref().is_some_and(|v| v.as_str() == version)
        };
        !statuses.is_empty() && statuses.iter().all(fine)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_runs_is_reloaded_and_ends_when_it_is_not_wanted() {
    let place = Place::new();
    let mut node = place.start();
    node.ready();
    let mut client = node.client();
    apply(&mut client, 1, &["shop", "blog"]).await.unwrap();
    let statuses = watched(&mut client, |s| s.len() == 2 && ready_with("v1")(s)).await;
    assert_ne!(statuses[0].port, statuses[1].port);
    assert!(statuses.iter().all(|s| s.celld_version.as_deref() == Some("0.6.0") && !s.adopted && s.restarts == 0));

    place.tell("version", "v2");
    let reload = ReloadRequest { application: "shop".to_owned() };
    let answer = client.reload(reload.clone()).await.unwrap().into_inner();
    assert_eq!((answer.outcome(), answer.version.as_str()), (reload_response::Outcome::Adopted, "v2"));
    watched(&mut client, |s| {
        s.iter().any(|s| s.application.as_str() == "shop" && ready_with("v2")(std::slice::from_ref(s)))
    })
    .await;
    place.tell("reload.fail", "");
    let answer = client.reload(reload).await.unwrap().into_inner();
    assert_eq!((answer.outcome(), answer.error.as_str()), (reload_response::Outcome::Failed, "boom"));
    let nobody = client.reload(ReloadRequest { application: "nobody".to_owned() }).await.unwrap().into_inner();
    assert_eq!(nobody.outcome(), reload_response::Outcome::Unavailable);

    apply(&mut client, 2, &["blog"]).await.unwrap();
    let statuses = watched(&mut client, |s| s.len() == 1).await;
    assert_eq!(statuses[0].application.as_str(), "blog");
    let refused = to_problem(&apply(&mut client, 1, &["shop"]).await.unwrap_err());
    assert_eq!(refused.code, ProblemCode::CasConflict);
    node.signal(Signal::SIGTERM);
    assert!(node.ended().success(), "{}", place.log());
    assert_eq!(place.noted("ended").iter().filter(|name| *name == "celld").count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_celld_is_started_again_on_the_same_ports() {
    let place = Place::new();
    let mut node = place.start();
    node.ready();
    let mut client = node.client();
    apply(&mut client, 1, &["shop"]).await.unwrap();
    let before = watched(&mut client, ready_with("v1")).await.remove(0);
    crate::node::signal(before.pid.unwrap(), Signal::SIGKILL);
    let after = watched(&mut client, |s| s.iter().any(|s| s.restarts == 1) && ready_with("v1")(s)).await.remove(0);
    assert_ne!(after.pid, before.pid);
    assert_eq!((after.port, after.internal_port), (before.port, before.internal_port));
    assert_eq!(after.last_exit.unwrap().signal, Some(9));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_script_that_does_not_exec_its_celld_leaves_behind_ends_with_it() {
    let place = Place::new();
    place.stays();
    let mut node = place.start();
    node.ready();
    let mut client = node.client();
    apply(&mut client, 1, &["shop"]).await.unwrap();
    let before = watched(&mut client, ready_with("v1")).await.remove(0);
    let is_real = |pid: &u32| {
        String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())
            .contains("real-celld")
    };
    let running = || mentioning(&place.state()).into_iter().filter(is_real).collect::<Vec<u32>>();
    let first = running();
    assert!(!first.is_empty() && !first.contains(&before.pid.unwrap()), "{first:?}");
    crate::node::signal(before.pid.unwrap(), Signal::SIGKILL);
    watched(&mut client, |s| s.iter().any(|s| s.restarts == 1) && ready_with("v1")(s)).await;
    assert!(running().iter().all(|pid| !first.contains(pid)), "{}", place.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn applications_outlive_a_killed_supervisor_and_are_taken_over_by_the_next() {
    let place = Place::new();
    let mut first = place.start();
    first.ready();
    let mut client = first.client();
    apply(&mut client, 1, &["shop", "blog"]).await.unwrap();
    let before = watched(&mut client, |s| s.len() == 2 && ready_with("v1")(s)).await;
    first.signal(Signal::SIGKILL);
    first.ended();
    assert!(before.iter().all(|status| alive(status.pid.unwrap())));

    let mut second = place.start();
    second.ready();
    let mut client = second.client();
    let after = watched(&mut client, |s| s.len() == 2 && ready_with("v1")(s)).await;
    for (old, new) in before.iter().zip(&after) {
        assert_eq!((old.pid, old.port, old.internal_port), (new.pid, new.port, new.internal_port));
        assert!(new.adopted);
    }
    apply(&mut client, 1, &["shop"]).await.unwrap();
    watched(&mut client, |s| s.len() == 1).await;
    second.signal(Signal::SIGTERM);
    assert!(second.ended().success(), "{}", place.log());
    assert!(before.iter().all(|status| !alive(status.pid.unwrap())));
    // How the end of another one's child went nobody sees, so what may stay is the pause before the next start, and no record.
    let mut left = std::fs::read_dir(place.state().join("processes")).unwrap().map(|entry| entry.unwrap().path());
    assert!(left.all(|path| path.extension().unwrap() == "past"), "{}", place.log());
}

fn with_lease(ttl_ms: u32) -> impl FnOnce(std::process::Command) -> std::process::Command {
    move |mut command| {
        command.env("SCAFO_CELLD_ENV", format!("CELLD_TTL_MS={ttl_ms}"));
        command
    }
}

fn waits(statuses: &[ProcessStatus]) -> bool {
    matches!(statuses, [one] if one.state == ProcessState::BackingOff && one.pid.is_none())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_at_its_start_says_why_and_the_next_deploy_starts_it() {
    let place = Place::new();
    place.refuses("celld", 1);
    let mut node = place.start();
    node.ready();
    let mut client = node.client();
    apply_deploy(&mut client, 1, &["shop"], "shop.1").await.unwrap();
    let looping = |s: &[ProcessStatus]| s.iter().any(|s| s.state == ProcessState::CrashLooping);
    let status = watched(&mut client, looping).await.remove(0);
    let exit = status.last_exit.unwrap();
    assert!(exit.code == Some(1) && exit.said.as_ref().unwrap().contains("celld was told to refuse"), "{exit:?}");
    std::fs::remove_file(place.fakes().join("celld.exit")).unwrap();
    apply_deploy(&mut client, 2, &["shop"], "shop.2").await.unwrap();
    watched(&mut client, ready_with("v1")).await;
    until("what was kept of its crashes to be forgotten", || {
        let kept = std::fs::read_dir(place.state().join("processes")).unwrap();
        (kept.count() == 1).then_some(())
    });
    node.signal(Signal::SIGTERM);
    assert!(node.ended().success(), "{}", place.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_after_a_crash_outlives_the_supervisor() {
    let place = Place::new();
    place.refuses("celld", 1);
    let mut first = place.start_with(with_lease(600_000));
    first.ready();
    let mut client = first.client();
    apply_deploy(&mut client, 1, &["shop"], "shop.1").await.unwrap();
    watched(&mut client, waits).await;
    first.signal(Signal::SIGKILL);
    first.ended();
    std::fs::remove_file(place.fakes().join("celld.exit")).unwrap();

    let mut second = place.start_with(with_lease(600_000));
    second.ready();
    let mut client = second.client();
    for (pass, deploy) in [(1, "shop.1"), (2, "shop.2")] {
        // Not even a new deploy starts it before the dead one's lease is over.
        apply_deploy(&mut client, pass, &["shop"], deploy).await.unwrap();
        watched(&mut client, waits).await;
    }
    assert_eq!(place.noted("settings.celld").len(), 0, "it was started");
    second.signal(Signal::SIGTERM);
    assert!(second.ended().success(), "{}", place.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_while_no_supervisor_was_there_waits_like_after_a_crash() {
    let place = Place::new();
    let mut first = place.start_with(with_lease(600_000));
    first.ready();
    let mut client = first.client();
    apply(&mut client, 1, &["shop"]).await.unwrap();
    let pid = watched(&mut client, ready_with("v1")).await[0].pid.unwrap();
    first.signal(Signal::SIGKILL);
    first.ended();
    crate::node::signal(pid, Signal::SIGKILL);
    until("it to end", || (!alive(pid)).then_some(()));

    let mut second = place.start_with(with_lease(600_000));
    second.ready();
    let mut client = second.client();
    apply(&mut client, 1, &["shop"]).await.unwrap();
    watched(&mut client, waits).await;
    second.signal(Signal::SIGTERM);
    assert!(second.ended().success(), "{}", place.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_applications_end_at_the_same_time() {
    let place = Place::new();
    let mut node = place.start();
    node.ready();
    let mut client = node.client();
    let names = ["a", "b", "c", "d", "e", "f"];
    apply(&mut client, 1, &names).await.unwrap();
    let statuses = watched(&mut client, |s| s.len() == names.len() && ready_with("v1")(s)).await;
    // Each is asked although none has ended: they all stand still.
    for status in &statuses {
        crate::node::signal(status.pid.unwrap(), Signal::SIGSTOP);
    }
    node.signal(Signal::SIGTERM);
    watched(&mut client, |s| s.len() == names.len() && s.iter().all(|s| s.state == ProcessState::Stopping)).await;
    for status in &statuses {
        crate::node::signal(status.pid.unwrap(), Signal::SIGCONT);
    }
    assert!(node.ended().success(), "{}", place.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_request_to_end_kills_what_does_not_listen() {
    let place = Place::new();
    place.tell("celld.deaf", "");
    let mut node = place.start();
    node.ready();
    let mut client = node.client();
    apply(&mut client, 1, &["shop"]).await.unwrap();
    let pid = watched(&mut client, ready_with("v1")).await[0].pid.unwrap();
    node.signal(Signal::SIGINT);
    watched(&mut client, |s| s.iter().all(|s| s.state == ProcessState::Stopping)).await;
    // Within a second of the first it is the same request, so it is repeated until it counts.
    until("the application to be killed", || {
        node.signal(Signal::SIGINT);
        (!alive(pid)).then_some(())
    });
    assert!(node.ended().success(), "{}", place.log());
}

async fn deploy(client: &mut Client, place: &Place, timeout_ms: u64) -> (Vec<String>, JobExited) {
    let mut events = client.run_deploy(order(place, timeout_ms)).await.unwrap().into_inner();
    let mut lines = Vec::new();
    while let Some(event) = events.message().await.unwrap() {
        match event.event.unwrap() {
            run_deploy_event::Event::Line(line) => lines.push(line),
            run_deploy_event::Event::Exited(exited) => return (lines, exited),
        }
    }
    panic!("a job ends with its exit");
}

fn order(place: &Place, timeout_ms: u64) -> RunDeployRequest {
    let config = place.fakes().join("wrangler.jsonc");
    std::fs::write(&config, "{}").unwrap();
    RunDeployRequest {
        deploy_id: "shop.0123456789abcdef".to_owned(),
        application: "shop".to_owned(),
        config_path: config.to_str().unwrap().to_owned(),
        timeout_ms,
    }
}

fn jobs_left(place: &Place) -> usize {
    std::fs::read_dir(place.state().join("jobs")).unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_job_has_a_scrubbed_environment_and_leaves_nothing() {
    let place = Place::new();
    place.tell(
        "deploy.sh",
        "echo bundling >&2; touch \"$TMPDIR/file\"; pwd >&2; env | grep -c '^SCAFO' >&2; echo \"$*\"; exit 7",
    );
    let mut node = place.start();
    node.ready();
    let (lines, exited) = deploy(&mut node.client(), &place, 60_000).await;
    assert_eq!(lines, ["bundling", place.fakes().to_str().unwrap(), "0"]);
    assert_eq!((exited.code, exited.timed_out, exited.celld_version.as_str()), (Some(7), false, "0.6.0"));
    let arguments = String::from_utf8(exited.stdout.to_vec()).unwrap();
    assert!(arguments.starts_with("deploy ") && arguments.contains("/fleets/shop ") && arguments.ends_with("--json\n"));
    assert_eq!(jobs_left(&place), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_job_ends_at_its_deadline_and_with_its_caller() {
    let place = Place::new();
    place.tell("deploy.sh", "echo $$ >&2; sleep 600 & wait");
    let mut node = place.start();
    node.ready();
    let (lines, exited) = deploy(&mut node.client(), &place, 300).await;
    assert!(exited.timed_out && exited.code.is_none());
    assert!(lines.iter().all(|pid| !alive(pid.parse().unwrap())));

    let mut stream = node.client().run_deploy(order(&place, 600_000)).await.unwrap().into_inner();
    let Some(run_deploy_event::Event::Line(pid)) = stream.message().await.unwrap().unwrap().event else {
        panic!("the job says who it is");
    };
    let pid: u32 = pid.parse().unwrap();
    assert!(alive(pid));
    drop(stream);
    until("the job to be gone", || (!alive(pid) && jobs_left(&place) == 0).then_some(()));
    node.signal(Signal::SIGTERM);
    assert!(node.ended().success());
    assert_eq!(mentioning(&place.state()), Vec::<u32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_token_is_signed_with_the_nodes_key() {
    let place = Place::new();
    let mut node = place.start();
    let ready = node.ready();
    let token = node.client().sign_node_token(SignNodeTokenRequest {}).await.unwrap().into_inner().token;
    let unverified = scafo_core::token::Unverified::parse(&token).unwrap();
    assert_eq!(unverified.kid(), ready.node.as_str());
    let settings: serde_json::Value = serde_json::from_str(&place.noted("settings.registryd").join("")).unwrap();
    let key = serde_json::from_value(settings["node"]["publicKey"].clone()).unwrap();
    let now = scafo_core::Timestamp::from_system(std::time::SystemTime::now());
    unverified.verify(&key, now).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_no_record_leads_to_is_found_and_taken_over() {
    let place = Place::new();
    let mut first = place.start();
    first.ready();
    apply(&mut first.client(), 1, &["shop", "blog"]).await.unwrap();
    let before = watched(&mut first.client(), |s| s.len() == 2 && ready_with("v1")(s)).await;
    first.signal(Signal::SIGKILL);
    first.ended();
    // As if it had been killed between starting a process and writing that down, and as if a record had been lost.
    let record = |name: &str| place.state().join("processes").join(format!("{name}.json"));
    let mut intent: serde_json::Value = serde_json::from_slice(&std::fs::read(record("shop")).unwrap()).unwrap();
    intent["pid"] = 0.into();
    intent["startTime"] = 0.into();
    std::fs::write(record("shop"), intent.to_string()).unwrap();
    std::fs::remove_file(record("blog")).unwrap();
    let mut second = place.start();
    second.ready();
    let after = watched(&mut second.client(), |s| s.len() == 2 && ready_with("v1")(s)).await;
    let pids = |statuses: &[ProcessStatus]| statuses.iter().map(|s| (s.pid, s.port)).collect::<Vec<_>>();
    assert_eq!(pids(&after), pids(&before));
    assert!(after.iter().all(|status| status.adopted));
    second.signal(Signal::SIGTERM);
    assert!(second.ended().success(), "{}", place.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_of_another_user_with_an_applications_variable_is_not_taken_over() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: only root starts programs as somebody else");
        return;
    }
    let place = Place::new();
    // The path that the supervisor finds: a temporary directory may be behind a link.
    std::fs::create_dir(place.state()).unwrap();
    let watch = std::fs::canonicalize(place.state()).unwrap().join("celld/shop/watch");
    let mut stranger = std::process::Command::new("setpriv");
    stranger.args(["--reuid=1812345679", "--regid=1812345679", "--clear-groups", "setsid", "sleep", "600"]);
    let mut stranger = stranger.env("CELLD_WATCH", watch).spawn().unwrap();
    // Not before it is what it wants to pass for.
    let stat = format!("/proc/{}/stat", stranger.id());
    until("it to lead a session", || std::fs::read_to_string(&stat).unwrap().contains("(sleep)").then_some(()));

    let mut node = place.start();
    node.ready();
    let mut client = node.client();
    apply(&mut client, 1, &["shop"]).await.unwrap();
    let status = watched(&mut client, ready_with("v1")).await.remove(0);
    assert!(!status.adopted && status.pid != Some(stranger.id()));
    node.signal(Signal::SIGTERM);
    assert!(node.ended().success(), "{}", place.log());
    assert!(alive(stranger.id()), "and it is not ended");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}
