//! `scafo.observe.v1`, from both ends: a process says what it counts, and another one asks. A daemon that has no gRPC service otherwise
//! does so on a socket of its own, [`SOCKET`].

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
/// The name of the socket on which a daemon does nothing but say what it counts.
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

/// Says on a socket of its own what a daemon counts, until it is dropped. A socket that breaks ends nobody's work.
pub async fn say<F>(listener: UnixListener, collect: impl Fn() -> F + Send + Sync + 'static)
where
    F: Future<Output = String> + Send + 'static,
{
    let router = transport::server().add_service(Exposed::server(collect));
    let peers = transport::Peers::of_socket(SOCKET);
    let ended = transport::serve(listener, peers, router, std::future::pending()).await;
    tracing::error!(?ended, "this process does not say any more what it counts");
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
