//! Asking a daemon whether it is ready: the standard gRPC health service on its Unix socket. Where strangers or applications may connect,
//! nobody is asked: a daemon whose connections are all taken would be killed as one that hangs.

use std::path::Path;
use std::time::Duration;

use scafo_proto::transport;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::life::Found;
use crate::http::is_a_lack;

/// How long one answer may take. The socket is ours, so while a daemon starts the question waits in the backlog and is answered
/// the moment it serves.
const DEADLINE: Duration = Duration::from_secs(2);

/// How to ask one daemon.
#[derive(Debug, Clone)]
pub(crate) struct Probe(Channel);

impl Probe {
    pub(crate) fn grpc(socket: &Path) -> Self {
        Self(transport::channel(socket))
    }

    pub(crate) async fn ask(&self) -> Found {
        let request = transport::within(DEADLINE, HealthCheckRequest { service: String::new() });
        let mut client = HealthClient::new(self.0.clone());
        match tokio::time::timeout(DEADLINE, client.check(request)).await {
            Ok(Ok(answer)) if answer.get_ref().status == i32::from(ServingStatus::Serving) => Found::Serving,
            Ok(Ok(_)) => Found::NotServing,
            Ok(Err(status)) if is_a_lack(&status) => Found::Unknown,
            Ok(Err(status)) if scafo_proto::status::is_transport(&status) => Found::Silent,
            Ok(Err(_)) => Found::NotServing,
            Err(_) => Found::Silent,
        }
    }
}
