//! A real scafo-bucketd and a real client.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use aws_sdk_s3::{
    Client, Config,
    config::{
        BehaviorVersion, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
        retry::RetryConfig,
    },
    error::{ProvideErrorMetadata, SdkError},
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub(crate) const BUCKET: &str = "fleet";
pub(crate) const ACCESS_KEY_ID: &str = "SCAFOTEST";
pub(crate) const SECRET: &str = "a-secret-of-this-test";

/// How long anything may take that is not the subject of a test.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A running scafo-bucketd; it is killed when dropped.
pub(crate) struct Bucketd {
    child: Child,
    address: String,
}

pub(crate) fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scafo-bucketd"));
    command.arg("--dir").arg(dir).args(["--listen", "127.0.0.1:0", "--bucket", BUCKET]);
    command
        .env("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("SCAFO_LOG", "warn,s3s=off");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

impl Bucketd {
    pub(crate) fn start(dir: &Path) -> Self {
        Self::spawn(command(dir))
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("said {line:?}"));
        Self { address: address.to_owned(), child }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// A client as the SDK makes it by default: checksums in trailers, but no retries, so that a test sees every answer.
    pub(crate) fn client(&self) -> Client {
        client(&self.address, ACCESS_KEY_ID, SECRET)
    }

    /// Ends it as the supervisor does and waits.
    pub(crate) fn stop(mut self) -> Option<i32> {
        kill_process(self.pid(), Signal::TERM).unwrap();
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "does not end on SIGTERM");
            std::thread::yield_now();
        }
    }

    /// SIGKILL, and wait.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Bucketd {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn client(address: &str, id: &str, secret: &str) -> Client {
    Client::from_conf(config(address, id, secret).build())
}

/// A client that neither sends checksums nor asks for them unless it must, as the ones for third-party stores.
pub(crate) fn plain_client(bucketd: &Bucketd) -> Client {
    let config = config(bucketd.address(), ACCESS_KEY_ID, SECRET)
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
    Client::from_conf(config.build())
}

fn config(address: &str, id: &str, secret: &str) -> aws_sdk_s3::config::Builder {
    Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .endpoint_url(format!("http://{address}"))
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new(id, secret, None, None, "test"))
        .retry_config(RetryConfig::disabled())
        .force_path_style(true)
}

/// Status and S3 error code of a refusal.
pub(crate) fn refusal<T: std::fmt::Debug, E: ProvideErrorMetadata>(answer: Result<T, SdkError<E>>) -> (u16, String) {
    match answer {
        Ok(answer) => panic!("was not refused: {answer:?}"),
        Err(error) => {
            let status = error.raw_response().map_or(0, |response| response.status().as_u16());
            (status, error.code().unwrap_or_default().to_owned())
        }
    }
}

pub(crate) fn refused(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

/// Sends a request as it stands and answers everything that came back.
pub(crate) async fn raw(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Names of the body files in a store's directory.
pub(crate) fn body_files(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir.join("bodies")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Waits until the directory holds this many body files: their removal is behind the answers.
pub(crate) fn until_body_files(dir: &Path, count: usize) {
    let deadline = Instant::now() + LIMIT;
    while body_files(dir).len() != count {
        assert!(Instant::now() < deadline, "{:?} are not {count} files", body_files(dir));
        std::thread::yield_now();
    }
}

/// Bytes that differ by `seed` and do not repeat soon.
pub(crate) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
