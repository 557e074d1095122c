//! Fleets for tests.

use std::io::Read as _;
use std::sync::Arc;

use scafo_core::record::{NodeRecord, ProcessState, Serving};
use scafo_core::snapshot::{Snapshot, SnapshotApplication};
use serde_json::json;

use crate::document::Document;
use crate::documents::Documents;
use crate::fleet::Fleet;
use crate::render::Attributes;
use crate::routes::Catalogue;

/// Entry point `web` and nothing of TLS.
pub(crate) fn attributes() -> Arc<Attributes> {
    Arc::new(Attributes::new(&["web".to_owned()], None))
}

/// A snapshot as it arrives.
pub(crate) fn parsed(snapshot: &Snapshot) -> Fleet {
    Fleet::parse(&serde_json::to_vec(snapshot).unwrap()).unwrap()
}

pub(crate) fn documents_of(snapshot: &Snapshot) -> Documents {
    Documents::write(Catalogue::new(parsed(snapshot)).routing().clone(), attributes(), None).unwrap()
}

/// The JSON of a document.
pub(crate) fn decoded(document: &Document) -> String {
    let compressed = document.gzip().concat();
    let mut text = String::new();
    flate2::read::GzDecoder::new(compressed.as_slice()).read_to_string(&mut text).unwrap();
    assert_eq!(text.len() as u64, document.length);
    text
}

#[derive(Clone)]
pub(crate) struct Node(pub(crate) NodeRecord);

pub(crate) fn node(id: &str) -> Node {
    let record = json!({
        "v": 1,
        "id": id,
        // The public key of RFC 8037, appendix A.
        "publicKey": { "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" },
        "address": "10.0.0.1",
        "api": "10.0.0.1:7400",
        "apiPublic": true,
        "version": "0.1.0",
        "startedAt": "2026-04-01T12:30:00.000Z",
        "heartbeatAt": "2026-04-01T12:30:00.000Z",
    });
    Node(serde_json::from_value(record).unwrap())
}

impl Node {
    pub(crate) fn serves(self, application: &str, port: u16) -> Self {
        self.serves_in(application, port, ProcessState::Ready)
    }

    pub(crate) fn serves_in(mut self, application: &str, port: u16, state: ProcessState) -> Self {
        let entry = json!({
            "application": application, "port": port, "state": state, "since": "2026-04-01T12:30:00.000Z",
        });
        let entry: Serving = serde_json::from_value(entry).unwrap();
        self.0.serving.push(entry);
        self
    }

    pub(crate) fn draining(mut self) -> Self {
        self.0.draining = true;
        self
    }

    pub(crate) fn leaving(mut self) -> Self {
        self.0.leaving = true;
        self
    }

    pub(crate) fn private(mut self) -> Self {
        self.0.api_public = false;
        self
    }

    pub(crate) fn at(mut self, address: &str) -> Self {
        self.0.address = address.to_owned();
        self.0.api = format!("{address}:7400");
        self
    }
}

/// A fleet under `apps.test` that publishes its API.
pub(crate) fn fleet(nodes: &[Node], applications: &[&str]) -> Snapshot {
    Snapshot {
        generation: 1,
        node: "vps-a".parse().unwrap(),
        platform_domains: vec!["apps.test".parse().unwrap()],
        api_public: true,
        nodes: nodes.iter().map(|node| node.0.clone()).collect(),
        applications: applications
            .iter()
            .map(|name| SnapshotApplication {
                name: name.parse().unwrap(),
                routable: true,
                domains: vec![],
                wildcard_domains: vec![],
            })
            .collect(),
    }
}

pub(crate) trait Claim {
    fn claim(&mut self, application: &str, host: &str, wildcard: bool);
}

impl Claim for Snapshot {
    fn claim(&mut self, application: &str, host: &str, wildcard: bool) {
        let application = self.applications.iter_mut().find(|a| a.name.as_str() == application).unwrap();
        application.domains.push(host.parse().unwrap());
        if wildcard {
            application.wildcard_domains.push(host.parse().unwrap());
        }
    }
}
