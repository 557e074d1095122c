//! The public listener: health, and everything else to the Worker.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Limited;
use hyper::body::Incoming;
use scafo_proxy::{FailureKind, Outbound, Unforwardable};
use serde_json::json;

use super::{
    gate::Gate,
    generation::Upload,
    server::{Body, Counted, Handler, draining, json, text},
    status::Status,
};
use crate::workerd::PROTO_HEADER;

/// Tries of one request: workerd may be exchanged or restarted under it once.
const TRIES: u32 = 2;

/// Answers on the public listener.
pub(super) struct Public {
    pub status: Arc<Status>,
    /// `None` without a bucket: there is nothing to serve.
    pub gate: Option<Arc<Gate>>,
    pub health_path: &'static str,
    pub trust_forwarded_headers: bool,
    pub max_request_body: u64,
}

impl Handler for Public {
    async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        if request.uri().path() == self.health_path {
            let ready = self.status.is_ready();
            let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            return json(code, &json!({ "ok": ready }));
        }
        if self.status.is_draining() {
            return draining();
        }
        if !self.status.has_authority() {
            return json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "ok": false }));
        }
        let Some(gate) = &self.gate else {
            return text(StatusCode::NOT_FOUND, "this node has no bucket and nothing to serve");
        };
        match self.outbound(request) {
            Ok(outbound) => forward(gate, outbound).await,
            Err(refusal) => refusal,
        }
    }
}

impl Public {
    #[expect(clippy::result_large_err, reason = "both variants are answers on their way out")]
    fn outbound(&self, request: Request<Incoming>) -> Result<Outbound<Upload>, Response<Body>> {
        let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if length.is_some_and(|length: u64| length > self.max_request_body) {
            return Err(text(StatusCode::PAYLOAD_TOO_LARGE, "the request body is larger than this node takes"));
        }
        let limit = usize::try_from(self.max_request_body).unwrap_or(usize::MAX);
        let mut outbound = Outbound::new(request.map(|body| Limited::new(body, limit))).map_err(|why| {
            let code = match why {
                Unforwardable::Connect => StatusCode::METHOD_NOT_ALLOWED,
                Unforwardable::NoHost | Unforwardable::SeveralHosts => StatusCode::BAD_REQUEST,
            };
            text(code, &why.to_string())
        })?;
        let headers = outbound.headers_mut();
        let mut proto = HeaderValue::from_static("http");
        if self.trust_forwarded_headers {
            if headers.get("x-forwarded-proto").is_some_and(|value| value == "https") {
                proto = HeaderValue::from_static("https");
            }
            // A chain of proxies makes a list, the one nearest to the client first.
            let host = headers.get("x-forwarded-host").and_then(|value| value.to_str().ok()?.split(',').next());
            if let Some(Ok(host)) = host.map(|host| HeaderValue::from_str(host.trim())) {
                headers.insert(header::HOST, host);
            }
        }
        headers.insert(HeaderName::from_static(PROTO_HEADER), proto);
        Ok(outbound)
    }
}

async fn forward(gate: &Gate, mut outbound: Outbound<Upload>) -> Response<Body> {
    let mut failed = None;
    for attempt in 1..=TRIES {
        let Ok(pass) = gate.pass(failed).await else { return busy("no Worker came up in time") };
        let generation = &pass.generation;
        let failure = match generation.forwarder.forward(&generation.workerd.http, outbound, &generation.tunnels).await
        {
            Ok(response) => return Counted::response(response, pass.token),
            Err(failure) => failure,
        };
        let kind = failure.kind();
        let gone = matches!(kind, FailureKind::Connect | FailureKind::Broken);
        match failure.try_into_outbound() {
            Ok(again) if gone && attempt < TRIES => {
                failed = Some(generation.incarnation);
                outbound = again;
            }
            Ok(_) | Err(_) => return refusal(kind),
        }
    }
    busy("no Worker came up in time")
}

fn refusal(kind: FailureKind) -> Response<Body> {
    match kind {
        FailureKind::TunnelLimit => busy("too many WebSockets are open"),
        FailureKind::RequestBody => text(StatusCode::BAD_REQUEST, "the request body ended early or is too large"),
        FailureKind::HeadDeadline => text(StatusCode::GATEWAY_TIMEOUT, "the Worker did not answer in time"),
        FailureKind::Connect | FailureKind::Broken | FailureKind::BadResponse => {
            text(StatusCode::BAD_GATEWAY, "the Worker's process ended before it answered")
        }
    }
}

fn busy(sentence: &str) -> Response<Body> {
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, sentence);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
