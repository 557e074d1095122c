//! Daemons and a celld that do as little as the supervisor can be content with.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use scafo_proto::child::{self, Listeners};
use scafo_proto::transport::{self, Peers};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Fills a directory with executables that end up in [`stand_in`].
pub(crate) fn install(dir: &Path) {
    let own = std::env::current_exe().unwrap();
    for daemon in ["registryd", "routerd", "apiserver", "bucketd", "ingressd"] {
        script(&dir.join(format!("scafo-{daemon}")), &start(daemon, dir, &own));
    }
    let version = "if [ \"$1\" = --version ]; then echo 'celld 0.6.0'; exit 0; fi";
    let deploy = format!("if [ \"$1\" = deploy ]; then . {}; fi", dir.join("deploy.sh").display());
    script(&dir.join("celld"), &format!("{version}\n{deploy}\n{}", start("celld", dir, &own)));
}

fn start(what: &str, dir: &Path, own: &Path) -> String {
    format!(
        "export FAKE={what} FAKE_DIR='{}' FAKE_ARGS=\"$*\"\nexec '{}' --exact fakes::stand_in --nocapture",
        dir.display(),
        own.display()
    )
}

fn script(path: &Path, text: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// No test unless a script above started it.
#[test]
fn stand_in() {
    let Ok(what) = std::env::var("FAKE") else { return };
    let dir = PathBuf::from(std::env::var("FAKE_DIR").unwrap());
    if let Ok(code) = std::fs::read_to_string(dir.join(format!("{what}.exit"))) {
        eprintln!("{what} was told to refuse");
        leave(code.trim().parse().unwrap());
    }
    let mut settings = String::new();
    std::io::stdin().read_to_string(&mut settings).unwrap();
    note(&dir, &format!("settings.{what}"), &settings);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        match what.as_str() {
            "registryd" | "routerd" => grpc(&dir, &what).await,
            "celld" => celld(&dir).await,
            _ => http(&dir, &what).await,
        }
    });
    leave(0);
}

#[allow(clippy::exit)]
fn leave(code: i32) -> ! {
    std::process::exit(code)
}

fn note(dir: &Path, file: &str, line: &str) {
    let mut file = File::options().create(true).append(true).open(dir.join(file)).unwrap();
    // One write: two daemons end at the same time.
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

async fn grpc(dir: &Path, what: &str) {
    let mut listeners = Listeners::from_env();
    let listener = listeners.take_unix("grpc").unwrap();
    let stop = child::shutdown_signal().unwrap();
    let (health, service) = tonic_health::server::health_reporter();
    health.set_service_status("", tonic_health::ServingStatus::Serving).await;
    let router = transport::server().add_service(service);
    transport::serve(listener, Peers::same_user(), router, stop).await.unwrap();
    note(dir, "ended", what);
}

async fn http(dir: &Path, what: &str) {
    let mut listeners = Listeners::from_env();
    let name = match what {
        "apiserver" => "api",
        "bucketd" => "s3",
        _ => "http",
    };
    let listener = listeners.take_tcp(name).unwrap();
    let stop = child::shutdown_signal().unwrap();
    tokio::select! {
        () = stop => {}
        () = answer(listener, |_| "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok".to_owned()) => {}
    }
    note(dir, "ended", what);
}

/// Health 200, `/state` with what the file `version` says, `/reload` that fails while there is a file `reload.fail`.
async fn celld(dir: &Path) {
    let arguments = std::env::var("FAKE_ARGS").unwrap();
    let value = |option: &str| -> SocketAddr {
        let mut words = arguments.split(' ').skip_while(|word| *word != option);
        words.nth(1).unwrap().parse().unwrap()
    };
    let public = TcpListener::bind(value("--listen")).await.unwrap();
    let internal = TcpListener::bind(value("--internal-listen")).await.unwrap();
    let stop = child::shutdown_signal().unwrap();
    let deaf = dir.join("celld.deaf").exists();
    let version = || std::fs::read_to_string(dir.join("version")).unwrap_or_else(|_| "v1".to_owned());
    let state = |request: &str| {
        let failing = dir.join("reload.fail").exists();
        if request.starts_with("POST /reload") && failing {
            return respond(
                422,
                &format!(r#"{{"ok":false,"outcome":"failed","version":"{}","error":"boom"}}"#, version()),
            );
        }
        if request.starts_with("POST /reload") {
            return respond(200, &format!(r#"{{"ok":true,"outcome":"adopted","version":"{}"}}"#, version()));
        }
        respond(200, &format!(r#"{{"deployment":{{"version":"{}"}}}}"#, version()))
    };
    let stopped = async {
        stop.await;
        if deaf {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = stopped => {}
        () = answer(public, |_| respond(200, r#"{"ok":true}"#)) => {}
        () = answer(internal, state) => {}
    }
    note(dir, "ended", "celld");
}

fn respond(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

async fn answer(listener: TcpListener, with: impl Fn(&str) -> String) {
    let mut open = JoinSet::new();
    loop {
        let Ok((mut stream, _)) = listener.accept().await else { continue };
        let request = head(&mut stream).await;
        let response = with(&request);
        open.spawn(async move {
            let _ = stream.write_all(response.as_bytes()).await;
            let _ = stream.shutdown().await;
        });
        while open.try_join_next().is_some() {}
    }
}

async fn head(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let reading = async {
        while !text.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            text.push(byte);
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(10), reading).await;
    String::from_utf8_lossy(&text).into_owned()
}
