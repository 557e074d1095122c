//! `scafo.observe.v1`, from both ends: a process says what it counts, and another one asks.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, Stream, stream};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::chunk;
use crate::observe::observe_client::ObserveClient;
use crate::observe::observe_server::{Observe, ObserveServer};
use crate::observe::{MetricsChunk, MetricsRequest};
use crate::transport;

/// How long a process may take to say what it counts: it has it in memory.
pub const ASK: Duration = Duration::from_secs(2);

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

/// What the process behind `channel` counts; `None` when it does not answer within [`ASK`].
pub async fn ask(channel: Channel) -> Option<String> {
    let asked = async {
        let mut client = ObserveClient::new(channel);
        let mut pieces = client.metrics(transport::within(ASK, MetricsRequest {})).await?.into_inner();
        let mut text = chunk::Assembly::default();
        while let Some(piece) = pieces.message().await? {
            text.push(&piece.data).map_err(|problem| crate::status::to_status(&problem))?;
        }
        Ok::<_, Status>(text.take())
    };
    match tokio::time::timeout(ASK, asked).await {
        Ok(Ok(text)) => String::from_utf8(text.to_vec()).ok(),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a process does not say what it counts");
            None
        }
        Err(_) => None,
    }
}
