//! `scafo.observe.v1`, from both ends: a process says what it counts, and another one asks. A daemon that has no gRPC service otherwise
//! does so on a socket of its own, [`SOCKET`], and answers there whether it lives: strangers cannot fill that one.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, Stream, stream};
use tokio::net::UnixListener;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::chunk;
use crate::observe::observe_client::ObserveClient;
use crate::observe::observe_server::{Observe, ObserveServer};
use crate::observe::{MetricsChunk, MetricsRequest};
use crate::transport;

/// How long a process may take to say what it counts, with what it asks others for.
pub const ASK: Duration = Duration::from_secs(2);
/// How long one may take that asks nobody: it has it in memory, and whoever asks it is asked himself, for no longer than [`ASK`].
pub const ASK_ALONE: Duration = Duration::from_secs(1);
/// The name of the socket on which a daemon does nothing but say that it lives and what it counts.
pub const SOCKET: &str = "figures";

type Collect = Arc<dyn Fn() -> BoxFuture<'static, String> + Send + Sync>;

/// The service of a process that counts.
#[derive(Clone)]
pub struct Exposed(Collect);

impl Exposed {
    /// Answers with what `collect` gives: OpenMetrics text without the mark of its end.
    pub fn server<F>(collect: impl Fn() -> F + Send + Sync + 'static) -> ObserveServer<Self>
    where
        F: Future<Output = String> + Send + 'static,
    {
        ObserveServer::new(Self(Arc::new(move || collect().boxed())))
    }
}

#[tonic::async_trait]
impl Observe for Exposed {
    type MetricsStream = Pin<Box<dyn Stream<Item = Result<MetricsChunk, Status>> + Send>>;

    async fn metrics(&self, _: Request<MetricsRequest>) -> Result<Response<Self::MetricsStream>, Status> {
        let text = Bytes::from((self.0)().await);
        let pieces = chunk::split(text).map(|(data, _)| Ok(MetricsChunk { data }));
        Ok(Response::new(Box::pin(stream::iter(pieces))))
    }
}

/// Says on a socket of its own that a daemon lives and what it counts, until it is dropped. A socket that breaks ends nobody's work.
pub async fn say<F>(listener: UnixListener, collect: impl Fn() -> F + Send + Sync + 'static)
where
    F: Future<Output = String> + Send + 'static,
{
    // The library starts with "serving" for the server as a whole.
    let (_reporter, health) = tonic_health::server::health_reporter();
    let router = transport::server().add_service(health).add_service(Exposed::server(collect));
    let peers = transport::Peers::of_socket(SOCKET);
    let ended = transport::serve(listener, peers, router, std::future::pending()).await;
    tracing::error!(?ended, "this process does not say any more that it lives and what it counts");
    std::future::pending::<()>().await;
}

/// What the process behind `channel` counts; `None` when it does not answer within `patience`.
pub async fn ask(channel: Channel, patience: Duration) -> Option<String> {
    let asked = async {
        let mut client = ObserveClient::new(channel);
        let mut pieces = client.metrics(transport::within(patience, MetricsRequest {})).await?.into_inner();
        let mut text = chunk::Assembly::default();
        while let Some(piece) = pieces.message().await? {
            text.push(&piece.data).map_err(|problem| crate::status::to_status(&problem))?;
        }
        Ok::<_, Status>(text.take())
    };
    match tokio::time::timeout(patience, asked).await {
        Ok(Ok(text)) => String::from_utf8(text.to_vec()).ok(),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a process does not say what it counts");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;

    use super::*;

    #[tokio::test]
    async fn a_daemon_says_on_its_socket_that_it_lives_and_what_it_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let mut saying = JoinSet::new();
        saying.spawn(say(UnixListener::bind(&path).unwrap(), || std::future::ready("a 1\n".to_owned())));
        let channel = transport::channel(&path);
        let question = HealthCheckRequest { service: String::new() };
        let answer = HealthClient::new(channel.clone()).check(question).await.unwrap();
        assert_eq!(answer.get_ref().status, i32::from(ServingStatus::Serving));
        assert_eq!(ask(channel, Duration::from_secs(60)).await.as_deref(), Some("a 1\n"));
    }
}
