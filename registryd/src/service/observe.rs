//! `scafo.observe.v1` as registryd serves it: the desk where observations are handed in, and the way back to them for the node's own
//! command line.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use scafo_core::observation::ObservationKey;
use scafo_core::{NodeId, Problem, ProblemCode};
use scafo_proto::chunk;
use scafo_proto::observe::observations_server::{Observations, ObservationsServer};
use scafo_proto::observe::recorder_server::{Recorder, RecorderServer};
use scafo_proto::observe::{
    ListObservationsRequest, MetricsChunk, ReadObservationRequest, RecordRequest, RecordResponse,
};
use scafo_proto::transport::QUICK;
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

use super::{answer, answer_within, json, ready};
use crate::daemon::Phase;
use crate::observe::buffer::{TEXT_BYTES_MAX, known};
use crate::observe::flush::Desk;
use crate::observe::read::{InBucket, Source as _};
use crate::observe::rows::Span;

/// The desk.
pub(crate) struct RecorderService {
    /// `None` when nothing is recorded.
    desk: Option<Desk>,
}

impl RecorderService {
    pub(crate) fn server(desk: Option<Desk>) -> RecorderServer<Self> {
        RecorderServer::new(Self { desk })
    }
}

#[tonic::async_trait]
impl Recorder for RecorderService {
    async fn record(&self, request: Request<Streaming<RecordRequest>>) -> Result<Response<RecordResponse>, Status> {
        let mut messages = request.into_inner();
        answer_within(QUICK, "Record", async {
            let mut text = Vec::new();
            let mut from = None;
            while let Some(message) =
                messages.message().await.map_err(|status| scafo_proto::status::to_problem(&status))?
            {
                let Some(desk) = &self.desk else { continue };
                let process = known(&message.process)
                    .ok_or_else(|| Problem::new(ProblemCode::InvalidInput, "no process of a node is called that"))?;
                from = Some((process, message.measured_at_ms));
                // One piece beyond the bound makes the text too long, and its end is noticed there.
                if text.len() <= TEXT_BYTES_MAX {
                    text.extend_from_slice(&message.metrics);
                }
                let mut buffer = desk.buffer();
                let spans = message.spans.into_iter().filter_map(|span| Span::handed_in(process, span));
                spans.for_each(|span| buffer.span(span));
            }
            if let (Some(desk), Some((process, at_ms))) = (&self.desk, from)
                && let Ok(text) = String::from_utf8(text)
            {
                desk.buffer().text(process, at_ms.saturating_mul(1000), text);
            }
            Ok(RecordResponse {})
        })
        .await
    }
}

/// The way back.
pub(crate) struct ObservationsService {
    phase: watch::Receiver<Phase>,
}

impl ObservationsService {
    pub(crate) fn server(phase: watch::Receiver<Phase>) -> ObservationsServer<Self> {
        ObservationsServer::new(Self { phase })
    }
}

type Pieces = Pin<Box<dyn Stream<Item = Result<MetricsChunk, Status>> + Send>>;

#[tonic::async_trait]
impl Observations for ObservationsService {
    type ListObservationsStream = Pieces;

    async fn list_observations(
        &self,
        request: Request<ListObservationsRequest>,
    ) -> Result<Response<Self::ListObservationsStream>, Status> {
        let ListObservationsRequest { node, within_ms } = request.into_inner();
        answer("ListObservations", async {
            let core = ready(&self.phase).await?;
            let node: Option<NodeId> = if node.is_empty() { None } else { Some(node.parse()?) };
            let source = InBucket(core.registry.bucket().clone());
            let found = source.find(node.as_ref(), Duration::from_millis(within_ms)).await?;
            Ok(pieces(json(&found)))
        })
        .await
    }

    type ReadObservationStream = Pieces;

    async fn read_observation(
        &self,
        request: Request<ReadObservationRequest>,
    ) -> Result<Response<Self::ReadObservationStream>, Status> {
        answer("ReadObservation", async {
            let core = ready(&self.phase).await?;
            let key: Result<ObservationKey, _> = request.into_inner().key.parse();
            let key = key.map_err(|why| Problem::new(ProblemCode::InvalidInput, why.to_string()))?;
            let body = InBucket(core.registry.bucket().clone()).get(&key).await?;
            let gone = || Problem::new(ProblemCode::NotFound, "this observation is gone");
            Ok(pieces(body.ok_or_else(gone)?))
        })
        .await
    }
}

fn pieces(document: Bytes) -> Pieces {
    let pieces = chunk::split(document);
    Box::pin(futures_util::stream::iter(pieces.map(|(data, _)| Ok(MetricsChunk { data }))))
}
