//! One request from its arrival to its end.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use scafo_core::Timestamp;
use scafo_core::settings::BucketAccess;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::asked::Asked;
use super::body::{self, Body, BoxError};
use super::character::Turned;
use super::reply::Reply;
use super::rule::{Fate, Plan};
use super::sign::Signer;
use super::{Shared, listing, lock};

/// How long the true store may take: far longer than any client of it waits.
const STORE_LIMIT: Duration = Duration::from_secs(60);

/// Headers that belong to a connection and not to a message (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [HeaderName; 5] =
    [header::CONNECTION, header::TRANSFER_ENCODING, header::TE, header::UPGRADE, HeaderName::from_static("keep-alive")];

/// The true store.
pub(super) struct Upstream {
    client: Client<HttpConnector, Body>,
    authority: Authority,
    signer: Signer,
}

/// Why there is no answer: the connection is closed instead.
#[derive(Debug)]
pub(super) struct Withheld;

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the answer is withheld")
    }
}

impl std::error::Error for Withheld {}

impl Upstream {
    pub(super) fn new(access: &BucketAccess) -> io::Result<Self> {
        let endpoint = access.endpoint.as_deref().unwrap_or_default();
        let authority = endpoint.strip_prefix("http://").map(|rest| rest.trim_end_matches('/').parse());
        let Some(Ok(authority)) = authority else {
            let text = format!("the fault proxy needs an endpoint of the form http://HOST:PORT, not {endpoint:?}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        // A connection for each request: one that the store closed meanwhile would be a fault that nobody planned.
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .retry_canceled_requests(false)
            .build(HttpConnector::new());
        Ok(Self { client, authority, signer: Signer::new(access) })
    }

    /// Sends a request whose `Host` is the one that its signature covers.
    async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let mut uri = std::mem::take(request.uri_mut()).into_parts();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = Some(self.authority.clone());
        uri.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
        *request.uri_mut() = Uri::from_parts(uri)?;
        remove_hop_by_hop(request.headers_mut());
        let answer = timeout(STORE_LIMIT, self.client.request(request)).await??;
        let mut answer = answer.map(body::passing);
        remove_hop_by_hop(answer.headers_mut());
        Ok(answer)
    }

    /// Whether the object of `uri` is there.
    async fn has(&self, uri: &Uri) -> Result<bool, BoxError> {
        let mut request = Request::new(body::full(""));
        *request.method_mut() = Method::HEAD;
        *request.uri_mut() = uri.path().parse()?;
        request.headers_mut().insert(header::HOST, HeaderValue::from_str(self.authority.as_str())?);
        self.signer.sign(&mut request)?;
        Ok(self.send(request).await?.status() != StatusCode::NOT_FOUND)
    }
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Answers one request, or withholds the answer. The work is done in a task of the proxy: a client that gives up takes
/// nothing back that it has sent.
pub(super) async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Withheld> {
    let (parts, incoming) = request.into_parts();
    let request = Request::from_parts(parts, body::passing(incoming));
    let (tell, told) = oneshot::channel();
    {
        let mut exchanges = lock(&shared.exchanges);
        while exchanges.try_join_next().is_some() {}
        exchanges.spawn(run(Arc::clone(&shared), request, tell));
    }
    told.await.map_err(|_| Withheld)
}

/// Where the answer goes; dropped, it withholds it.
type Tell = oneshot::Sender<Response<Body>>;

async fn run(shared: Arc<Shared>, request: Request<Body>, tell: Tell) {
    let (parts, body) = request.into_parts();
    let asked = Asked::of(&parts);
    let plan = lock(&shared.rules).plan(&asked);
    let number = lock(&shared.log).begin(&asked, &plan.faults, shared.started.elapsed());
    let exchange = Exchange { shared: &shared, asked, number };
    let answer = exchange.carry(Request::from_parts(parts, body), &plan, tell).await;
    let told = answer.map(|(answer, tell)| {
        let status = answer.status().as_u16();
        // Logged before it is told, so that a client that looks at the log finds its own request ended.
        exchange.end(Some(status));
        // Fails where the client has left.
        let _ = tell.send(answer);
    });
    if told.is_none() {
        exchange.end(None);
    }
}

struct Exchange<'a> {
    shared: &'a Shared,
    asked: Asked,
    number: usize,
}

impl Exchange<'_> {
    /// The answer and where it goes, unless it is withheld.
    async fn carry(&self, request: Request<Body>, plan: &Plan, tell: Tell) -> Option<(Response<Body>, Tell)> {
        sleep(plan.before).await;
        let method = request.method().clone();
        let answer = match plan.fate {
            Some(Fate::DropRequest) => return None,
            Some(Fate::LandLate(after)) => {
                self.land_late(request, after, tell).await;
                return None;
            }
            Some(Fate::Answer(reply)) => instead(request.into_body(), reply, &method).await,
            None => self.forward(request).await.ok()?,
            Some(Fate::DropAnswer) => {
                self.forward(request).await.ok()?;
                return None;
            }
            Some(Fate::Mask(reply)) => {
                self.forward(request).await.ok()?;
                reply.answer(&method)
            }
            Some(Fate::TearAnswer) => tear(self.forward(request).await.ok()?, &method).await?,
        };
        let answer = self.finish(answer, plan).await.ok()?;
        sleep(plan.after).await;
        Some((answer, tell))
    }

    /// Takes the whole request in, closes the connection, and passes it on when its sender has long given up.
    async fn land_late(&self, request: Request<Body>, after: Duration, tell: Tell) {
        let (parts, body) = request.into_parts();
        let Ok(whole) = body::whole(body).await else { return };
        drop(tell);
        sleep(after).await;
        // Its end is in the log; nobody else waits for it.
        let _ = self.forward(Request::from_parts(parts, body::full(whole))).await;
    }

    /// Passes the request on as the store that is played would understand it.
    async fn forward(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let upstream = &self.shared.upstream;
        let (mut parts, body) = request.into_parts();
        let method = parts.method.clone();
        let (limited, looks_first) = {
            let mut played = lock(&self.shared.played);
            let limited = played.limited(&self.asked, Instant::now());
            (limited, played.character().looks_first(&parts.headers))
        };
        if let Some(reply) = limited {
            return Ok(instead(body, reply, &method).await);
        }
        let there = if looks_first { Some(upstream.has(&parts.uri).await?) } else { None };
        let turned = lock(&self.shared.played).turn_request(&self.asked, &mut parts.headers, there);
        let mut request = Request::from_parts(parts, body);
        match turned {
            Turned::Kept => {}
            Turned::Changed => {
                remove_hop_by_hop(request.headers_mut());
                upstream.signer.sign(&mut request)?;
            }
            Turned::Refused(reply) => return Ok(instead(request.into_body(), reply, &method).await),
        }
        let answer = upstream.send(request).await?;
        lock(&self.shared.log).reached(self.number, answer.status().as_u16());
        Ok(self.turn(answer))
    }

    /// The head of an answer of the true store as the one that is played would give it.
    fn turn(&self, mut answer: Response<Body>) -> Response<Body> {
        let mut played = lock(&self.shared.played);
        played.turn_answer(&self.asked, answer.headers_mut(), Instant::now());
        answer
    }

    /// What is done to every answer, whoever gave it: its clock, and pages of listings.
    async fn finish(&self, answer: Response<Body>, plan: &Plan) -> Result<Response<Body>, BoxError> {
        let (mut parts, mut body) = answer.into_parts();
        let (clock_s, changes) = {
            let played = lock(&self.shared.played);
            (played.character().clock_s + plan.shift_s, played.changes_body(&self.asked))
        };
        if clock_s != 0 {
            parts.headers.insert(header::DATE, shifted(parts.headers.get(header::DATE), clock_s)?);
        }
        let cut = plan.cut.filter(|_| self.asked.operation == super::Operation::List);
        if parts.status == StatusCode::OK && (changes || cut.is_some()) {
            let page = String::from_utf8_lossy(&body::whole(body).await?).into_owned();
            let mut page = if changes { lock(&self.shared.played).turn_page(&page) } else { page };
            if let Some(cut) = cut {
                page = listing::cut(&page, cut);
            }
            parts.headers.insert(header::CONTENT_LENGTH, page.len().into());
            body = body::full(page);
        }
        Ok(Response::from_parts(parts, body))
    }

    fn end(&self, told: Option<u16>) {
        lock(&self.shared.log).end(self.number, told, self.shared.started.elapsed());
    }
}

/// An answer of the proxy, once the request is in: what is left of it would be taken for the next one.
async fn instead(request: Body, reply: Reply, method: &Method) -> Response<Body> {
    // A client that stops in the middle does not see the answer anyway.
    let _ = body::whole(request).await;
    reply.answer(method)
}

/// The same answer, broken off in the middle; nothing of one that has no body.
async fn tear(answer: Response<Body>, method: &Method) -> Option<Response<Body>> {
    let (mut parts, body) = answer.into_parts();
    let whole = body::whole(body).await.ok()?;
    if whole.is_empty() || method == Method::HEAD {
        return None;
    }
    parts.headers.insert(header::CONTENT_LENGTH, whole.len().into());
    Some(Response::from_parts(parts, body::torn(&whole)))
}

/// `Date`, or now where there is none, moved by so many seconds.
fn shifted(date: Option<&HeaderValue>, by_s: i64) -> Result<HeaderValue, BoxError> {
    let now = || Timestamp::from_system(SystemTime::now()).as_millis() / 1_000;
    let given = date.and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
    let seconds = given.map_or_else(now, |given| Timestamp::from_system(given).as_millis() / 1_000);
    let moved = u64::try_from(seconds.saturating_add(by_s)).unwrap_or_default();
    let moved = SystemTime::UNIX_EPOCH + Duration::from_secs(moved);
    Ok(HeaderValue::from_str(&httpdate::fmt_http_date(moved))?)
}
