//! Asking a daemon whether it is ready: the standard gRPC health service on its Unix socket, or the embedded store's HTTP health route.
//! Where strangers may connect, nobody is asked: a daemon whose connections are all taken would be killed as one that hangs.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use scafo_proto::transport;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::life::Found;
use crate::http::Question;

/// How long one answer may take. The socket is ours, so while a daemon starts the question waits in the backlog and is answered
/// the moment it serves.
const DEADLINE: Duration = Duration::from_secs(2);
/// Longest body of a health answer that is read.
const MAX_BODY: usize = 64 * 1024;

/// How to ask one daemon.
#[derive(Debug, Clone)]
pub(crate) enum Probe {
    Grpc(Channel),
    Http { address: SocketAddr, host: String, path: &'static str },
}

impl Probe {
    pub(crate) fn grpc(socket: &Path) -> Self {
        Self::Grpc(transport::channel(socket))
    }

    pub(crate) async fn ask(&self) -> Found {
        match self {
            Self::Grpc(channel) => grpc(channel.clone()).await,
            Self::Http { address, host, path } => {
                let question = Question { host: host.clone(), ..Question::get(*address, path, MAX_BODY, DEADLINE) };
                match question.ask().await {
                    Some(answer) if answer.status.is_success() => Found::Serving,
                    Some(_) => Found::NotServing,
                    None => Found::Silent,
                }
            }
        }
    }
}

async fn grpc(channel: Channel) -> Found {
    let request = transport::within(DEADLINE, HealthCheckRequest { service: String::new() });
    let mut client = HealthClient::new(channel);
    match tokio::time::timeout(DEADLINE, client.check(request)).await {
        Ok(Ok(answer)) if answer.get_ref().status == i32::from(ServingStatus::Serving) => Found::Serving,
        Ok(Ok(_)) => Found::NotServing,
        Ok(Err(status)) if scafo_proto::status::is_transport(&status) => Found::Silent,
        Ok(Err(_)) => Found::NotServing,
        Err(_) => Found::Silent,
    }
}
