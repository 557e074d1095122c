//! `scafo.router.v1`: documents by format and preference.

use std::sync::Arc;

use scafo_core::id::NodeId;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_proto::router::router_server::Router;
use scafo_proto::router::{GetRoutingRequest, RoutingChunk};
use scafo_proto::status::to_status;
use tokio::sync::watch;
use tokio_stream::Iter;
use tonic::{Request, Response, Status};

use crate::document::Document;
use crate::documents::Prefer;
use crate::render::Format;
use crate::watch::Current;

/// Answers from what was rendered last.
pub(crate) struct RouterService {
    node: NodeId,
    current: Arc<watch::Receiver<Current>>,
}

impl RouterService {
    pub(crate) fn new(node: NodeId, current: Arc<watch::Receiver<Current>>) -> Self {
        Self { node, current }
    }

    async fn find(&self, format: &str, prefer: &str) -> Result<Arc<Document>, Problem> {
        let format = Format::parse(format).ok_or_else(|| unknown_format(format))?;
        let documents = self.current.borrow().clone().ok_or_else(|| self.not_yet())?;
        let prefer = match prefer {
            "" => Prefer::Fleet,
            "self" => documents.prefer(self.node.as_str()),
            node => documents.prefer(node),
        };
        if let Some(document) = documents.ready(format, &prefer) {
            return Ok(document);
        }
        // Rendered by the first who asks. Dropping the call does not drop the work: the next one finds it done.
        let failed = |error: &dyn std::fmt::Display| {
            Problem::new(ProblemCode::Internal, "a document was not rendered; keep the last one").because(error)
        };
        let rendered = tokio::task::spawn_blocking(move || documents.get(format, &prefer)).await;
        rendered.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
    }

    fn not_yet(&self) -> Problem {
        let detail = format!(
            "no reconcile pass has completed on node \"{}\" yet, so it cannot say what the fleet answers on; keep the last \
             document and ask again in a few seconds",
            self.node
        );
        Problem::new(ProblemCode::Draining, detail).titled("The fleet's routing is not known yet")
    }
}

fn unknown_format(asked: &str) -> Problem {
    /// A format's name is shown back only so far.
    const SHOWN: usize = 40;
    let asked: String = asked.chars().take(SHOWN).collect();
    let known: Vec<String> = Format::NATIVE.iter().map(|format| format!("`{}`", format.as_str())).collect();
    let detail = format!("this node renders no format {asked:?}; it renders {}", known.join(", "));
    Problem::new(ProblemCode::NotFound, detail).titled("No such routing format")
}

type Chunks = Iter<std::vec::IntoIter<Result<RoutingChunk, Status>>>;

#[tonic::async_trait]
impl Router for RouterService {
    type GetRoutingStream = Chunks;

    async fn get_routing(&self, request: Request<GetRoutingRequest>) -> Result<Response<Chunks>, Status> {
        let GetRoutingRequest { format, prefer, if_none_match } = request.into_inner();
        let document = self.find(&format, &prefer).await.map_err(|problem| {
            if problem.code == ProblemCode::Internal {
                tracing::error!(?problem, "a document could not be given");
            }
            to_status(&problem)
        })?;
        Ok(Response::new(tokio_stream::iter(chunks(&document, &if_none_match))))
    }
}

fn chunks(document: &Document, if_none_match: &str) -> Vec<Result<RoutingChunk, Status>> {
    let (etag, length) = (document.etag.clone(), document.length);
    if if_none_match == document.etag {
        return vec![Ok(RoutingChunk { etag, not_modified: true, length, data: bytes::Bytes::new() })];
    }
    let mut chunks: Vec<_> =
        document.gzip().into_iter().map(|data| RoutingChunk { data, ..RoutingChunk::default() }).collect();
    if let Some(first) = chunks.first_mut() {
        (first.etag, first.length) = (etag, length);
    }
    chunks.into_iter().map(Ok).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing::{documents_of, fleet, node};

    fn service(current: Current) -> (watch::Sender<Current>, RouterService) {
        let (publish, receiver) = watch::channel(current);
        (publish, RouterService::new("vps-a".parse().unwrap(), Arc::new(receiver)))
    }

    #[tokio::test]
    async fn before_the_first_snapshot_every_known_format_is_draining_and_names_the_node() {
        let (_publish, service) = service(None);
        for format in ["", "traefik"] {
            let refused = service.find(format, "").await.unwrap_err();
            assert_eq!(refused.code, ProblemCode::Draining);
            assert_eq!(refused.title(), "The fleet's routing is not known yet");
            assert!(refused.detail.starts_with("no reconcile pass has completed on node \"vps-a\" yet"));
        }
    }

    #[tokio::test]
    async fn an_unknown_format_names_those_that_are_rendered() {
        let (_publish, service) = service(None);
        let refused = service.find("nginx", "").await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::NotFound);
        assert!(refused.detail.contains("`traefik`"), "{}", refused.detail);
    }

    #[tokio::test]
    async fn self_is_the_node_that_answers_and_a_stranger_changes_nothing() {
        let fleet = fleet(&[node("vps-0").serves("shop", 1), node("vps-a").serves("shop", 2)], &["shop"]);
        let (_publish, service) = service(Some(Arc::new(documents_of(&fleet))));
        let plain = service.find("", "").await.unwrap();
        let own = service.find("", "self").await.unwrap();
        assert_ne!(plain.etag, own.etag);
        assert_eq!(own.etag, service.find("", "vps-a").await.unwrap().etag);
        assert_eq!(plain.etag, service.find("", "nobody").await.unwrap().etag);
    }

    #[test]
    fn a_document_that_the_caller_has_is_not_sent_again() {
        let documents = documents_of(&fleet(&[node("a").serves("shop", 1)], &["shop"]));
        let document = documents.get(Format::Generic, &Prefer::Fleet).unwrap();
        let unchanged: Vec<_> = chunks(&document, &document.etag).into_iter().map(Result::unwrap).collect();
        assert!(unchanged.len() == 1 && unchanged[0].not_modified && unchanged[0].data.is_empty());
        let whole: Vec<_> = chunks(&document, "\"other\"").into_iter().map(Result::unwrap).collect();
        assert!(!whole[0].not_modified && whole[0].etag == document.etag && whole[0].length == document.length);
        let gzip: Vec<u8> = whole.iter().flat_map(|chunk| chunk.data.to_vec()).collect();
        assert_eq!(gzip, document.gzip().concat());
    }
}
