//! A daemon or a celld that does as little as the supervisor can be content with: what it is says the name that it is started by.
//!
//! A daemon is confined, this one too: it writes no files and reads none. So it is told things by links, whose targets may be read,
//! and what it notes goes to the supervisor's log. A celld has files.

// clippy.toml allows these in test functions; here everything belongs to tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use scafo_proto::child::{self, Listeners};
use scafo_proto::figures;
use scafo_proto::transport::{self, Peers};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

fn main() -> ExitCode {
    let own = PathBuf::from(std::env::args_os().next().unwrap());
    let (dir, name) = (own.parent().unwrap(), own.file_name().unwrap().to_str().unwrap());
    let what = name.strip_prefix("scafo-").unwrap_or("celld");
    if let Ok(code) = std::fs::read_link(dir.join(format!("{what}.exit"))) {
        eprintln!("{what} was told to refuse");
        return code.to_str().unwrap().parse::<u8>().unwrap().into();
    }
    if std::fs::read_link(dir.join(format!("{what}.mute"))).is_ok() {
        loop {
            std::thread::park();
        }
    }
    let mut settings = String::new();
    std::io::stdin().read_to_string(&mut settings).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        if what == "celld" {
            note(dir, "settings.celld", &settings);
            return celld(dir).await;
        }
        say(&format!("settings.{what}"), &settings);
        match what {
            "registryd" | "routerd" => grpc(what).await,
            _ => http(dir, what).await,
        }
    });
    ExitCode::SUCCESS
}

/// Notes a line in the log, in one write: two daemons end at the same time. What is noted may be a secret, which the log itself is
/// searched for.
fn say(file: &str, line: &str) {
    std::io::stderr().write_all(format!("noted {file} {}\n", hex::encode(line)).as_bytes()).unwrap();
}

fn note(dir: &Path, file: &str, line: &str) {
    let mut file = File::options().create(true).append(true).open(dir.join(file)).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

async fn grpc(what: &str) {
    let mut listeners = Listeners::from_env();
    let listener = listeners.take_unix("grpc").unwrap();
    let stop = child::shutdown_signal().unwrap();
    let (health, service) = tonic_health::server::health_reporter();
    health.set_service_status("", tonic_health::ServingStatus::Serving).await;
    let router = transport::server().add_service(service);
    transport::serve(listener, Peers::same_user(), router, stop).await.unwrap();
    say("ended", what);
}

/// One that is full accepts no connection and lives.
async fn http(dir: &Path, what: &str) {
    let mut listeners = Listeners::from_env();
    let name = match what {
        "apiserver" => "api",
        "bucketd" => "s3",
        _ => "http",
    };
    let listener = listeners.take_tcp(name).unwrap();
    let lives = listeners.take_unix(figures::SOCKET).unwrap();
    let stop = child::shutdown_signal().unwrap();
    if std::fs::read_link(dir.join(format!("{what}.full"))).is_ok() {
        tokio::select! {
            () = stop => {}
            () = figures::say(lives, || std::future::ready(String::new())) => {}
        }
        return say("ended", what);
    }
    tokio::select! {
        () = stop => {}
        () = figures::say(lives, || std::future::ready(String::new())) => {}
        () = answer(listener, |_| "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok".to_owned()) => {}
    }
    say("ended", what);
}

/// Health 200, `/state` with what the file `version` says, `/reload` that fails while there is a file `reload.fail`.
async fn celld(dir: &Path) {
    let value = |option: &str| -> SocketAddr {
        std::env::args().skip_while(|word| word != option).nth(1).unwrap().parse().unwrap()
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
