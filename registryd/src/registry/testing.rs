//! A registry on a bucket in memory, and records to put there.

use std::sync::Arc;

use bytes::Bytes;
use scafo_core::{
    ApplicationName, DeployId, Timestamp,
    record::{
        Artifact, DeployRecord, DeployState, DeploymentRecord, Fence, NodeRecord, ProcessState, Rest, Serving, V1,
    },
    token::PublicKey,
};
use scafo_store::{Bucket, MemoryBucket, PutOptions};

use super::{Registry, TokioClock};

/// One node's view: its own faults, everybody's objects.
pub(crate) struct World {
    pub(crate) registry: Registry,
    pub(crate) memory: Arc<MemoryBucket>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::on(MemoryBucket::new())
    }

    pub(crate) fn on(memory: MemoryBucket) -> Self {
        let memory = Arc::new(memory);
        let bucket: Arc<dyn Bucket> = Arc::clone(&memory) as _;
        let clock = TokioClock::starting_at(Timestamp::from_millis(1_800_000_000_000));
        Self { registry: Registry::new(bucket, Arc::new(clock), "test"), memory }
    }

    pub(crate) fn sibling(&self) -> Self {
        Self::on(self.memory.sibling())
    }
}

pub(crate) async fn put_raw(bucket: &MemoryBucket, key: &str, body: &str) {
    bucket.put(key, Bytes::from(body.to_owned()), PutOptions::default()).await.unwrap();
}

/// The key of a secret that consists of one byte.
pub(crate) fn key_of(secret: u8) -> PublicKey {
    PublicKey::from(&ed25519_dalek::SigningKey::from_bytes(&[secret; 32]))
}

pub(crate) fn node(id: &str, secret: u8) -> NodeRecord {
    let now = Timestamp::from_millis(1_800_000_000_000);
    NodeRecord {
        v: V1,
        id: id.parse().unwrap(),
        public_key: key_of(secret),
        address: "127.0.0.1".to_owned(),
        api: "127.0.0.1:7400".to_owned(),
        labels: [].into(),
        platform_domains: Vec::new(),
        api_public: true,
        version: "0.1.0".to_owned(),
        celld_version: None,
        started_at: now,
        heartbeat_at: now,
        leaving: false,
        draining: false,
        drain: None,
        local_only: false,
        fence: Fence::default(),
        serving: Vec::new(),
        rest: Rest::new(),
    }
}

fn artifact() -> Artifact {
    Artifact { sha256: "00".repeat(32), bytes: 10 }
}

pub(crate) fn serving(name: &str, state: ProcessState) -> Serving {
    let json =
        serde_json::json!({ "application": name, "port": 1, "state": state, "since": "2026-01-01T00:00:00.000Z" });
    serde_json::from_value(json).unwrap()
}

pub(crate) fn deploy(world: &World, random: u64) -> DeployRecord {
    let application: ApplicationName = "shop".parse().unwrap();
    let now = world.registry.clock().wall();
    DeployRecord {
        v: V1,
        id: DeployId::new(&application, random),
        application,
        state: DeployState::Accepted,
        node: "a".parse().unwrap(),
        by: "op".to_owned(),
        accepted_at: now,
        application_since: None,
        admitted: None,
        moved_at: now,
        finished_at: None,
        deployment: None,
        code: None,
        detail: None,
        source: None,
        oidc: None,
        artifact: Some(artifact()),
        celld_version: None,
        rest: Rest::new(),
    }
}

pub(crate) fn deployment(world: &World, version: &str, random: u64) -> DeploymentRecord {
    let application: ApplicationName = "shop".parse().unwrap();
    DeploymentRecord {
        v: V1,
        deploy: DeployId::new(&application, random),
        application,
        version: version.parse().unwrap(),
        node: "a".parse().unwrap(),
        by: "op".to_owned(),
        celld_version: "0.6.0".to_owned(),
        source: None,
        oidc: None,
        artifact: artifact(),
        created_at: world.registry.clock().wall(),
        rest: Rest::new(),
    }
}
