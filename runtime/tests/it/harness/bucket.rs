//! An embedded store of its own for each test, and what a test puts into it behind the stand-in's back.

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use scafo_core::settings::{BucketAccess, Secret};
use scafo_store::{Bucket as _, PutOptions, S3Bucket};

use super::{eventually, own_address};

pub(crate) struct Bucket {
    pub endpoint: String,
    process: Child,
    directory: tempfile::TempDir,
}

impl Bucket {
    pub(crate) const NAME: &str = "development";
    pub(crate) const KEY: &str = "test-key";
    pub(crate) const SECRET: &str = "test-secret-of-no-worth";

    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (process, endpoint) = listening(directory.path(), &format!("{}:0", own_address()));
        Self { endpoint, process, directory }
    }

    /// Ends it at once: from now on nobody listens there.
    pub(crate) fn goes_away(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again with what it had, at the same address.
    pub(crate) fn comes_back(&mut self) {
        let address = self.endpoint.trim_start_matches("http://").to_owned();
        (self.process, _) = listening(self.directory.path(), &address);
    }

    fn store(&self) -> Arc<S3Bucket> {
        Arc::new(S3Bucket::new(&BucketAccess {
            name: Self::NAME.into(),
            prefix: "fleets/shop".into(),
            endpoint: Some(self.endpoint.clone()),
            region: "us-east-1".into(),
            path_style: true,
            access_key_id: Self::KEY.into(),
            secret_access_key: Secret::new(Self::SECRET),
            session_token: None,
        }))
    }

    /// The document at `key` of the fleet.
    pub(crate) fn read(&self, key: &str) -> Option<serde_json::Value> {
        self.bytes(key).map(|body| serde_json::from_slice(&body).unwrap())
    }

    /// What is at `key` of the fleet.
    pub(crate) fn bytes(&self, key: &str) -> Option<Vec<u8>> {
        let store = self.store();
        block_on(async move { store.get(key).await }).unwrap().map(|object| object.body.to_vec())
    }

    /// Puts a document there, whatever is there.
    pub(crate) fn write(&self, key: &str, document: &serde_json::Value) {
        let (store, body) = (self.store(), document.to_string());
        block_on(async move { store.put(key, body.into(), PutOptions::default()).await }).unwrap();
    }

    pub(crate) fn delete(&self, key: &str) {
        let store = self.store();
        block_on(async move { store.delete(key).await }).unwrap();
    }
}

fn listening(directory: &Path, address: &str) -> (Child, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_celld-workerd")).with_file_name("scafo-bucketd");
    assert!(program.is_file(), "{} is missing: run `cargo build -p scafo-bucketd`", program.display());
    let output = directory.join("out");
    let mut process = Command::new(program)
        .args(["--listen", address, "--bucket", Bucket::NAME, "--dir"])
        .arg(directory.join("store"))
        .env("AWS_ACCESS_KEY_ID", Bucket::KEY)
        .env("AWS_SECRET_ACCESS_KEY", Bucket::SECRET)
        .stdin(Stdio::null())
        .stdout(File::create(&output).unwrap())
        .stderr(File::create(directory.join("err")).unwrap())
        .spawn()
        .unwrap();
    let endpoint = eventually("the bucket listens", || {
        let said = std::fs::read_to_string(&output).unwrap();
        let ended = process.try_wait().unwrap();
        assert!(ended.is_none(), "the bucket ended: {ended:?}");
        Some(said.lines().find_map(|line| line.strip_prefix("listening on "))?.to_owned())
    });
    (process, endpoint)
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}
