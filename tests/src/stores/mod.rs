//! True S3 stores for tests, each a process on free ports with a directory of its own, gone when it is dropped.

pub(crate) mod leash;
pub mod tools;

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use scafo_core::settings::{BucketAccess, Secret};
use scafo_store::{Bucket as _, S3Bucket};
use tempfile::TempDir;

use self::leash::Leash;
use crate::{load, node, wait};

const BUCKET: &str = "fleet";
const REGION: &str = "us-east-1";
const ACCESS_KEY_ID: &str = "SCAFOTEST";
const SECRET_ACCESS_KEY: &str = "a-secret-of-the-tests";

/// How long a store may take until it answers. The slowest takes three seconds alone on a machine; CI's are shared.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How often other ports are tried: somebody may take one between the choice and the start.
const START_TRIES: u32 = 3;

/// A running store with one empty bucket.
pub struct Store {
    access: BucketAccess,
    /// Before the directory, so that the process has ended when that is removed.
    leash: Leash,
    sockets: Vec<String>,
    dir: TempDir,
}

impl Store {
    /// `scafo-bucketd`.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn bucketd() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let leash = start_bucketd(dir.path(), "127.0.0.1:0");
        let address = leash.said("listening on ", START_LIMIT).await;
        let store = Self { access: access(&address), leash, sockets: Vec::new(), dir };
        store.until_ready().await.unwrap_or_else(|log| panic!("scafo-bucketd does not answer:\n{log}"));
        store
    }

    /// Kills a `scafo-bucketd` where it stands, and starts it again on the same directory and port. The other stores promise
    /// nothing that a test could look for afterwards.
    ///
    /// # Panics
    /// When it does not start again.
    pub async fn crash_bucketd(&mut self) {
        self.leash.pull();
        let address = self.access.endpoint.as_deref().and_then(|url| url.strip_prefix("http://"));
        let address = address.expect("an endpoint of ours").to_owned();
        let mut last = String::new();
        // A connection of somebody else may have got the port for a moment.
        for _ in 0..START_TRIES {
            self.leash = start_bucketd(self.dir.path(), &address);
            match self.until_ready().await {
                Ok(()) => return,
                Err(log) => last = log,
            }
        }
        panic!("scafo-bucketd does not come back:\n{last}");
    }

    /// `SeaweedFS`, all of it in one process.
    ///
    /// # Panics
    /// When it is not installed or does not start.
    pub async fn seaweedfs() -> Self {
        let mut last = String::new();
        for _ in 0..START_TRIES {
            let store = Self::start_seaweedfs();
            match store.until_ready().await {
                Ok(()) => return store,
                Err(log) => last = log,
            }
        }
        panic!("SeaweedFS does not answer:\n{last}")
    }

    fn start_seaweedfs() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let [s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc, admin, admin_grpc] =
            free_ports();
        let config = dir.path().join("s3.json");
        write_config(&config);
        let data = dir.path().join("data");
        fs::create_dir(&data).expect("a new directory");
        let mut command = Command::new(tools::find("weed"));
        command.args(["-logtostderr", "mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.port.iceberg=0"]);
        command.args(["-s3.port.lance=0", "-webdav=false", "-admin.ui=false", "-master.telemetry=false"]);
        command.arg(format!("-dir={}", data.display())).arg(format!("-s3.config={}", config.display()));
        command.arg(format!("-bucket={BUCKET}"));
        let ports = [("s3", s3, s3_grpc), ("master", master, master_grpc), ("volume", volume, volume_grpc)];
        for (part, port, grpc) in ports.into_iter().chain([("filer", filer, filer_grpc), ("admin", admin, admin_grpc)])
        {
            command.arg(format!("-{part}.port={port}")).arg(format!("-{part}.port.grpc={grpc}"));
        }
        // It leaves sockets that it names after its ports, in a place that cannot be chosen.
        let sockets = [("s3", s3), ("filer", filer), ("s3-grpc", s3_grpc), ("master-grpc", master_grpc)];
        let sockets = sockets.into_iter().chain([
            ("volume-grpc", volume_grpc),
            ("filer-grpc", filer_grpc),
            ("admin-grpc", admin_grpc),
        ]);
        let sockets = sockets.map(|(part, port)| format!("/tmp/seaweedfs-{part}-{port}.sock")).collect();
        let leash = Leash::start(&command, &dir.path().join("log"));
        Self { access: access(&format!("http://127.0.0.1:{s3}")), leash, sockets, dir }
    }

    /// moto's server, which keeps everything in memory.
    ///
    /// # Panics
    /// When it is not installed or does not start.
    pub async fn moto() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let mut command = Command::new(tools::find("moto_server"));
        command.args(["-H", "127.0.0.1", "-p", "0"]).env("PYTHONUNBUFFERED", "1");
        let leash = Leash::start(&command, &dir.path().join("log"));
        let endpoint = leash.said("Running on ", START_LIMIT).await;
        let store = Self { access: access(&endpoint), leash, sockets: Vec::new(), dir };
        // It takes what is not signed.
        let created = load::client().put(format!("{endpoint}/{BUCKET}")).send().await;
        assert!(created.is_ok_and(|answer| answer.status().is_success()), "no bucket in moto:\n{}", store.leash.log());
        store.until_ready().await.unwrap_or_else(|log| panic!("moto does not answer:\n{log}"));
        store
    }

    /// How to reach the bucket.
    pub const fn access(&self) -> &BucketAccess {
        &self.access
    }

    /// A client of the bucket.
    pub fn bucket(&self) -> S3Bucket {
        S3Bucket::new(&self.access)
    }

    /// The directory of the store, its log included.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Waits until the store takes a write, or gives its log if it ends before or takes too long.
    async fn until_ready(&self) -> Result<(), String> {
        let bucket = self.bucket();
        wait::until("the store", START_LIMIT + Duration::from_secs(5), || async {
            if self.leash.ended() {
                return Some(Err(self.leash.log()));
            }
            let put = bucket.put("ready", bytes::Bytes::new(), scafo_store::PutOptions::default()).await;
            let ready = matches!(put, Ok(scafo_store::Put::Written(_))) && bucket.delete("ready").await.is_ok();
            ready.then_some(Ok(()))
        })
        .await
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.leash.pull();
        for socket in &self.sockets {
            // Not all of them are there.
            let _ = fs::remove_file(socket);
        }
    }
}

fn start_bucketd(dir: &Path, listen: &str) -> Leash {
    let mut command = Command::new(node::built("scafo-bucketd"));
    command.args(["--listen", listen, "--bucket", BUCKET, "--dir"]).arg(dir.join("store"));
    command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID).env("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY);
    command.env("SCAFO_LOG", "warn,s3s=off");
    Leash::start(&command, &dir.join("log"))
}

fn access(endpoint: &str) -> BucketAccess {
    BucketAccess {
        name: BUCKET.to_owned(),
        prefix: String::new(),
        endpoint: Some(endpoint.to_owned()),
        region: REGION.to_owned(),
        path_style: true,
        access_key_id: ACCESS_KEY_ID.to_owned(),
        secret_access_key: Secret::new(SECRET_ACCESS_KEY),
        session_token: None,
    }
}

fn write_config(path: &Path) {
    let config = serde_json::json!({"identities": [{
        "name": "tests",
        "credentials": [{"accessKey": ACCESS_KEY_ID, "secretKey": SECRET_ACCESS_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }]});
    let file = fs::File::options().write(true).create_new(true).mode(0o600).open(path).expect("a new file");
    serde_json::to_writer(file, &config).expect("a small file");
}

/// Ports that nobody has at this moment, and that nobody else of this process is given: some wait for long until they are used. They
/// are none of those that the kernel gives to outgoing connections, nor of those that nodes give to their applications.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    [(); N].map(|()| {
        // Below the ranges of fleets ([`crate::fleet`]), and between these and the usual range of a node.
        let any =
            || if rand::random() { rand::random_range(10_000..12_000) } else { rand::random_range(22_000..24_000) };
        let mut tries = std::iter::repeat_with(any).take(10_000).filter(|port| !given.contains(port));
        let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        let port = tries.find(free).expect("a free port");
        given.insert(port);
        port
    })
}
