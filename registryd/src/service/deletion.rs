//! Deleting an application from any node: the coordinator does it, and the others pass the request on to it once.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{Stream, stream};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Method, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use scafo_core::problem::ProblemDocument;
use scafo_core::record::CoordinatorLease;
use scafo_core::token::{FORWARDED, OPERATION};
use scafo_core::{ApplicationName, NodeId, Problem, ProblemCode, key};
use scafo_proto::chunk::split;
use scafo_proto::registry::DeleteApplicationPiece;
use scafo_proto::transport::Operation;
use serde_json::json;
use tonic::Status;

use crate::coordinator::driver::standing;
use crate::coordinator::{Holder, Lead};
use crate::daemon::Core;
use crate::node::wake::{Look, seen};
use crate::registry::{Deletion, Surroundings, TOLD_BYTES_MAX};

/// How long all of it may take: what the caller gives us, less the way there.
pub(super) const LIMIT: Duration = Duration::from_secs(152);
/// How long the coordinator may take when this node passes the request on.
const FORWARD: Duration = Duration::from_secs(150);
/// How long making a connection to another node may take.
const CONNECT: Duration = Duration::from_secs(5);
/// Largest answer that is passed on.
const ANSWER_BYTES_MAX: usize = 16 << 20;
const _: () = assert!(TOLD_BYTES_MAX + 1024 < ANSWER_BYTES_MAX, "what a deletion tells and its frame are passed on");
/// Passes of the reconcile loop within which a node has noticed that a placement is gone: one may have begun just before.
const PASSES: u32 = 2;

/// An answer in pieces.
pub(super) type Pieces = Pin<Box<dyn Stream<Item = Result<DeleteApplicationPiece, Status>> + Send>>;

/// The deletions that this daemon is carrying out: a second one of the same application could outlive the first and meet
/// what was made anew under the name.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnderWay(Arc<Mutex<HashSet<ApplicationName>>>);

impl UnderWay {
    fn enter(&self, name: &ApplicationName) -> Result<Entered, Problem> {
        let fresh = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
        if fresh {
            return Ok(Entered { all: self.clone(), name: name.clone() });
        }
        let detail = format!("`{name}` is being deleted by an earlier request: ask again in a moment");
        Err(Problem::new(ProblemCode::Draining, detail))
    }
}

struct Entered {
    all: UnderWay,
    name: ApplicationName,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) name: &'a ApplicationName,
    pub(super) force: bool,
    /// Another node has passed it on already.
    pub(super) forwarded: bool,
    /// Of which operation it is.
    pub(super) operation: Operation,
}

/// An HTTP answer.
#[derive(Debug)]
pub(super) struct Answer {
    status: StatusCode,
    content_type: String,
    body: Bytes,
}

impl Answer {
    fn deleted(keys: &[String]) -> Self {
        let body = super::json(&json!({ "deleted": keys }));
        Self { status: StatusCode::OK, content_type: "application/json".to_owned(), body }
    }

    pub(super) fn is_success(&self) -> bool {
        self.status.is_success()
    }

    pub(super) fn into_pieces(self) -> Pieces {
        let Self { status, content_type, body } = self;
        let mut head = Some((u32::from(status.as_u16()), content_type));
        let pieces = split(body).map(move |(data, _)| {
            let (status, content_type) = head.take().unwrap_or_default();
            Ok(DeleteApplicationPiece { status, content_type, data })
        });
        Box::pin(stream::iter(pieces))
    }
}

/// Who is to do it.
enum Part {
    Ours(Lead),
    Theirs(CoordinatorLease),
    Nobodys,
}

/// Deletes an application, here or through the coordinator.
///
/// # Errors
/// `draining` when nobody coordinates, or the coordinator moved twice or does not answer; and as the registry's deletion.
pub(super) async fn delete(core: &Core, under_way: &UnderWay, asked: Asked<'_>) -> Result<Answer, Problem> {
    let Asked { name, operation, .. } = asked;
    // An application that was made anew under the name is another one.
    let found = async { Ok(core.registry.application(name).await?.map(|it| it.record.created_at.to_string())) };
    let again = core.operations.comes_again(operation).await;
    let deleted = core.operations.remove(operation, found, now(core, under_way, asked)).await?;
    match deleted {
        Some(answer) if !(again && answer.status == StatusCode::NOT_FOUND) => Ok(answer),
        // Which keys went is told to nobody any more; the last of them was this.
        Some(_) | None => Ok(Answer::deleted(&[key::application(name)])),
    }
}

async fn now(core: &Core, under_way: &UnderWay, asked: Asked<'_>) -> Result<Answer, Problem> {
    match part(core).await {
        Part::Ours(lead) => here(core, under_way, asked, lead).await,
        Part::Theirs(_) if asked.forwarded => Err(not_the_coordinator()),
        Part::Theirs(lease) => there(core, asked, &lease.node).await,
        Part::Nobodys => {
            let detail = "nobody holds the coordinator's lease, and this node could not take it: try again in a moment";
            Err(Problem::new(ProblemCode::Draining, detail).titled("No node is coordinating"))
        }
    }
}

/// Whose part it is. Where it is nobody's, the election that runs here all the time gets two lives of a lease to settle.
async fn part(core: &Core) -> Part {
    let mut leases = core.lease.subscribe();
    let clock = core.registry.clock();
    let until = clock.mono().after(core.settings.lease_ttl.get() * 2);
    loop {
        let view = leases.borrow_and_update().clone();
        let now = core.mono();
        if let Some(lead) = view.lead.clone().filter(|lead| now < lead.lapses) {
            return Part::Ours(lead);
        }
        if let Some(lease) = standing(&view, now) {
            return Part::Theirs(lease.clone());
        }
        tokio::select! {
            biased;
            moved = leases.changed() => if moved.is_err() { return Part::Nobodys },
            () = clock.sleep_until(until) => return Part::Nobodys,
        }
    }
}

async fn here(core: &Core, under_way: &UnderWay, asked: Asked<'_>, lead: Lead) -> Result<Answer, Problem> {
    let _entered = under_way.enter(asked.name)?;
    let around = Around(core);
    let holder = Holder::new(core, lead.fence);
    let deletion = Deletion {
        name: asked.name,
        force: asked.force,
        around: &around,
        holder: &holder,
        authority: lead.authority,
        notice: core.settings.reconcile_interval.get() * PASSES,
    };
    let deleted = Box::pin(core.registry.delete_application(&deletion)).await;
    core.wake.look(Look::Applications);
    match deleted {
        Ok(keys) => Ok(Answer::deleted(&keys)),
        Err(problem) if problem.code == ProblemCode::LeaseLost => Err(not_the_coordinator()),
        Err(problem) => Err(problem),
    }
}

/// The fleet, as this node sees it.
struct Around<'a>(&'a Core);

#[async_trait]
impl Surroundings for Around<'_> {
    async fn serving(&self, name: &ApplicationName) -> Result<Vec<NodeId>, Problem> {
        let ticket = self.0.wake.look(Look::Nodes);
        let world = seen(&mut self.0.worlds.subscribe(), ticket).await?;
        let runs = |node: &&crate::node::world::NodeView| {
            node.live && node.record.serving.iter().any(|serving| serving.application == *name)
        };
        Ok(world.nodes.values().filter(runs).map(|node| node.record.id.clone()).collect())
    }

    fn lives(&self, node: &NodeId) -> bool {
        self.0.worlds.borrow().lives(node)
    }
}

/// Passes the request on, under a fresh token of this node, and the answer back as it is.
async fn there(core: &Core, asked: Asked<'_>, coordinator: &NodeId) -> Result<Answer, Problem> {
    let away = |cause: String| {
        let detail = format!("the coordinator, node `{coordinator}`, does not answer: try again in a moment");
        Problem::new(ProblemCode::Draining, detail).because(cause)
    };
    let api = core.registry.node(coordinator).await?.map(|stored| stored.record.api);
    let api = api.ok_or_else(|| away("it has no record".to_owned()))?;
    let token = core.supervisor.sign_node_token().await.map_err(unsigned)?;
    let force = if asked.force { "?force=1" } else { "" };
    let uri: Uri = format!("http://{api}/v1/applications/{}{force}", asked.name)
        .parse()
        .map_err(|error: http::uri::InvalidUri| away(error.to_string()))?;
    let request = http::Request::builder()
        .method(Method::DELETE)
        .uri(uri)
        .header(AUTHORIZATION, format!("Bearer {token}"))
        .header(FORWARDED, "1")
        .header(OPERATION, asked.operation.to_string())
        .body(Empty::<Bytes>::new())
        .map_err(|error| away(error.to_string()))?;
    tokio::time::timeout(FORWARD, exchange(request))
        .await
        .map_err(|_| away("no answer in time".to_owned()))?
        .map_err(away)
}

/// Only a supervisor that is away is worth another try here.
fn unsigned(problem: Problem) -> Problem {
    if problem.code == ProblemCode::Draining {
        return problem;
    }
    let detail = "this node cannot sign a request to the coordinator: ask the node that coordinates, or another one";
    Problem::new(ProblemCode::CapabilityMissing, detail).because(problem)
}

async fn exchange(request: http::Request<Empty<Bytes>>) -> Result<Answer, String> {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT));
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let (head, body) = client.request(request).await.map_err(|error| error.to_string())?.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| error.to_string())?.to_bytes();
    let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or(ProblemDocument::CONTENT_TYPE).to_owned();
    Ok(Answer { status: head.status, content_type, body })
}

fn not_the_coordinator() -> Problem {
    let detail = "the coordinator changed while the request was on its way: try again in a moment";
    Problem::new(ProblemCode::Draining, detail).titled("Not the coordinator")
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn an_answer_carries_its_head_on_the_first_piece_only() {
        for length in [0, 10, 600_000] {
            let body = Bytes::from(vec![7; length]);
            let answer = Answer { status: StatusCode::CONFLICT, content_type: "x/y".to_owned(), body: body.clone() };
            let pieces: Vec<_> = answer.into_pieces().map(Result::unwrap).collect().await;
            assert_eq!((pieces[0].status, pieces[0].content_type.as_str()), (409, "x/y"));
            assert!(pieces[1..].iter().all(|piece| piece.status == 0 && piece.content_type.is_empty()));
            let whole: Vec<u8> = pieces.iter().flat_map(|piece| piece.data.to_vec()).collect();
            assert_eq!(whole, body);
        }
    }

    #[test]
    fn one_application_is_deleted_once_at_a_time() {
        let under_way = UnderWay::default();
        let (shop, other) = ("shop".parse().unwrap(), "other".parse().unwrap());
        let first = under_way.enter(&shop).unwrap();
        assert_eq!(under_way.clone().enter(&shop).err().unwrap().code, ProblemCode::Draining);
        assert!(under_way.enter(&other).is_ok());
        drop(first);
        assert!(under_way.enter(&shop).is_ok());
    }
}
