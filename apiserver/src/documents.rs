//! Routing documents, from the router daemon and from what it said last.
//!
//! They come compressed and are kept so: that is how nearly every ingress takes them.
//! The router daemon is asked on every request, with the entity tag of what is kept, so an unchanged document crosses the
//! process boundary once. When it is away, or was started again and has nothing yet, what it said last is served: for an
//! ingress an old document is better than none.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_proto::chunk::{Assembly, MAX_DOCUMENT_BYTES};
use scafo_proto::router::GetRoutingRequest;
use scafo_proto::router::router_client::RouterClient;
use scafo_proto::status::{to_problem, to_status};
use scafo_proto::transport;
use scafo_telemetry::metrics::Counter;
use tokio::sync::OnceCell;
use tonic::Status;
use tonic::transport::Channel;

use crate::encoding;

/// Documents kept at once. An ingress asks for one; a node has one or two beside it and those of other nodes in an outage.
const KEPT: usize = 16;
/// Bytes kept at once: two formats of 100,000 hosts in a few orders, one or two of them decompressed.
const KEPT_BYTES: usize = 256 * 1024 * 1024;
/// How long a request waits for the router daemon when there is a document to fall back to.
const PATIENCE_WITH_ANOTHER: Duration = Duration::from_secs(1);
/// Longest name of a format that is passed on; longer ones are cut, and are unknown as they were.
const FORMAT_MAX: usize = 64;
/// Longest node id. A longer preference names nobody.
const PREFER_MAX: usize = 63;

/// One document.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    /// Strong entity tag of the JSON, quotes included.
    pub(crate) etag: String,
    /// Bytes of JSON.
    pub(crate) length: usize,
    /// The JSON, compressed.
    pub(crate) gzip: Bytes,
    /// The JSON, once somebody wanted it so.
    plain: Arc<OnceCell<Bytes>>,
}

impl Document {
    fn new(etag: String, length: u64, gzip: Bytes) -> Result<Self, Problem> {
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_DOCUMENT_BYTES);
        let length = length.ok_or_else(|| Problem::new(ProblemCode::Internal, "a routing document is too large"))?;
        Ok(Self { etag, length, gzip, plain: Arc::default() })
    }

    fn bytes(&self) -> usize {
        self.gzip.len() + self.plain.get().map_or(0, Bytes::len)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Which {
    format: String,
    prefer: String,
}

/// The router daemon, and its last words.
pub(crate) struct Documents {
    router: RouterClient<Channel>,
    channel: Channel,
    /// Documents that were served from here because the router was away.
    stale: Counter,
    /// Most recently asked last.
    kept: Mutex<Vec<(Which, Document)>>,
    /// Bytes that they may have together.
    room: usize,
}

impl Documents {
    pub(crate) fn new(socket: &Path, stale: Counter) -> Self {
        let channel = transport::channel(socket);
        Self { router: RouterClient::new(channel.clone()), channel, stale, kept: Mutex::default(), room: KEPT_BYTES }
    }

    /// The connection, for the daemon's other services.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The document in `format` (empty for the generic one) with the upstreams of `prefer` first (empty for the fleet's order).
    ///
    /// # Errors
    /// `draining` when there is none yet, `not-found` for a format that is not rendered.
    pub(crate) async fn get(&self, format: &str, prefer: &str) -> Result<Document, Problem> {
        let which = Which {
            format: format.chars().take(FORMAT_MAX).collect(),
            prefer: if prefer.len() > PREFER_MAX { String::new() } else { prefer.to_owned() },
        };
        let last = self.kept(&which);
        let patience = if last.is_some() { PATIENCE_WITH_ANOTHER } else { transport::QUICK };
        let tag = last.as_ref().map(|document| document.etag.clone()).unwrap_or_default();
        match self.ask(&which, tag, patience).await {
            Ok(Some(document)) => Ok(self.keep(which, document)),
            Ok(None) => last.ok_or_else(|| Problem::new(ProblemCode::Internal, "").because("not modified since never")),
            Err(status) => match (to_problem(&status), last) {
                (problem, Some(last)) if problem.code == ProblemCode::Draining => {
                    tracing::debug!(?problem, "the router is away; what it said last is served");
                    self.stale.inc();
                    Ok(last)
                }
                (problem, _) => Err(problem),
            },
        }
    }

    /// The JSON of a document, decompressed once and then kept beside it, for which others are let go.
    ///
    /// # Errors
    /// `internal`.
    pub(crate) async fn plain(&self, document: &Document) -> Result<Bytes, Problem> {
        let mut expanded = false;
        let expand = || {
            expanded = true;
            encoding::gunzip(document.gzip.clone(), document.length)
        };
        let plain = document.plain.get_or_try_init(expand).await.cloned();
        if expanded {
            self.make_room(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        }
        plain
    }

    /// The document, or `None` when it still is the one with this tag.
    async fn ask(&self, which: &Which, tag: String, patience: Duration) -> Result<Option<Document>, Status> {
        let Which { format, prefer } = which.clone();
        let request = GetRoutingRequest { format, prefer, if_none_match: tag };
        transport::read_again(patience, |left| {
            let (mut router, request) = (self.router.clone(), request.clone());
            async move {
                let mut stream = router.get_routing(transport::within(left, request)).await?.into_inner();
                let nothing =
                    || to_status(&Problem::new(ProblemCode::Internal, "").because("a document without a first piece"));
                let first = stream.message().await?.ok_or_else(nothing)?;
                if first.not_modified {
                    // To its end: a stream that is given up before is reset, and of many resets the connection ends.
                    stream.message().await?;
                    return Ok(None);
                }
                let mut assembly = Assembly::default();
                let refused = |problem: Problem| to_status(&problem);
                let mut data = Some(first.data);
                while let Some(piece) = data {
                    assembly.push(&piece).map_err(refused)?;
                    data = stream.message().await?.map(|chunk| chunk.data);
                }
                Document::new(first.etag, first.length, assembly.take()).map(Some).map_err(refused)
            }
        })
        .await
    }

    fn kept(&self, which: &Which) -> Option<Document> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let index = kept.iter().position(|(other, _)| other == which)?;
        let entry = kept.remove(index);
        let document = entry.1.clone();
        kept.push(entry);
        Some(document)
    }

    fn keep(&self, which: Which, mut document: Document) -> Document {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(other, _)| *other != which);
        // A preference that names nobody gives the plain document: its bytes are held once.
        if let Some((_, same)) = kept.iter().find(|(_, other)| other.etag == document.etag) {
            document = same.clone();
        }
        kept.push((which, document.clone()));
        self.make_room(&mut kept);
        document
    }

    /// Lets go of those that were not asked for longest. The last one stays, however large it is.
    fn make_room(&self, kept: &mut Vec<(Which, Document)>) {
        let bytes = |kept: &[(Which, Document)]| kept.iter().map(|(_, document)| document.bytes()).sum::<usize>();
        while kept.len() > KEPT || (kept.len() > 1 && bytes(kept) > self.room) {
            kept.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// Some two hundred times as long as it is compressed.
    fn document(tag: &str, length: usize) -> Document {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&vec![b'x'; length]).unwrap();
        Document::new(tag.to_owned(), length as u64, encoder.finish().unwrap().into()).unwrap()
    }

    fn which(prefer: &str) -> Which {
        Which { format: String::new(), prefer: prefer.to_owned() }
    }

    fn names(documents: &Documents) -> Vec<String> {
        documents.kept.lock().unwrap().iter().map(|(which, _)| which.prefer.clone()).collect()
    }

    #[tokio::test]
    async fn what_is_expanded_later_counts_and_the_longest_unasked_go_for_it() {
        let mut documents = Documents::new(Path::new("/nonexistent/router.sock"), Counter::default());
        documents.room = 250_000;
        for name in ["a", "b", "c"] {
            documents.keep(which(name), document(name, 100_000));
        }
        assert_eq!(names(&documents), ["a", "b", "c"], "compressed they have room");
        for name in ["a", "b"] {
            let kept = documents.kept(&which(name)).unwrap();
            assert_eq!(documents.plain(&kept).await.unwrap().len(), 100_000);
        }
        assert_eq!(names(&documents), ["c", "a", "b"], "two of them expanded as well");
        let kept = documents.kept(&which("c")).unwrap();
        documents.plain(&kept).await.unwrap();
        assert_eq!(names(&documents), ["b", "c"], "a third one is too much");
        let large = documents.keep(which("large"), document("large", 400_000));
        documents.plain(&large).await.unwrap();
        assert_eq!(names(&documents), ["large"], "the last one stays, however large it is");
    }
}
