//! The internal listener: for the supervisor and operators, unauthenticated as in celld.

use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    conductor::{Adoption, Orders},
    server::{Body, Handler, draining, json},
    state::State,
    status::Status,
};
use crate::environment::Surface;

/// Answers on the internal listener.
pub(super) struct Internal {
    pub surface: Surface,
    pub status: Arc<Status>,
    pub state: State,
    /// `None` without a bucket.
    pub orders: Option<Orders>,
    /// Begins the drain.
    pub shutdown: CancellationToken,
}

impl Handler for Internal {
    async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        if path == "/state" {
            return match *request.method() {
                Method::GET | Method::HEAD => json(StatusCode::OK, &self.state.document()),
                _ => method_not_allowed("GET"),
            };
        }
        if self.status.is_draining() {
            return draining();
        }
        let reload = path == "/reload" && self.surface == Surface::V0_6;
        if path != "/shutdown" && !reload {
            return json(StatusCode::NOT_FOUND, &json!({ "error": "not_found" }));
        }
        if request.method() != Method::POST {
            return method_not_allowed("POST");
        }
        if reload {
            return self.reload().await;
        }
        // `?handoff=preserve` asks to keep what a stand-in has not got; the stop is the same.
        self.shutdown.cancel();
        json(StatusCode::OK, &json!({ "ok": true }))
    }
}

impl Internal {
    async fn reload(&self) -> Response<Body> {
        let adoption = async {
            match &self.orders {
                Some(orders) => orders.reload().await,
                None => None,
            }
        };
        let adoption = tokio::select! {
            biased;
            adoption = adoption => adoption,
            () = self.status.draining() => None,
        };
        let Some(adoption) = adoption else {
            return json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "ok": false, "outcome": "unavailable" }));
        };
        let taken = |outcome: &str, generation, version: &str, prefix: &str| {
            let document = json!({
                "ok": true, "outcome": outcome, "generation": generation, "version": version, "prefix": prefix,
            });
            json(StatusCode::OK, &document)
        };
        match adoption {
            Adoption::Adopted { generation, pointer } => {
                taken("adopted", generation, &pointer.version, &pointer.prefix)
            }
            Adoption::Unchanged { generation, pointer } => {
                taken("unchanged", generation, &pointer.version, &pointer.prefix)
            }
            Adoption::Failed { pointer, error } => {
                let (version, prefix) = pointer.map(|pointer| (pointer.version, pointer.prefix)).unzip();
                let document = json!({
                    "ok": false, "outcome": "failed", "version": version, "prefix": prefix, "error": error,
                });
                json(StatusCode::UNPROCESSABLE_ENTITY, &document)
            }
            Adoption::Unavailable { error } => {
                let document = json!({ "ok": false, "outcome": "unavailable", "error": error });
                json(StatusCode::SERVICE_UNAVAILABLE, &document)
            }
        }
    }
}

fn method_not_allowed(allow: &'static str) -> Response<Body> {
    let mut response = json(StatusCode::METHOD_NOT_ALLOWED, &json!({ "error": "method_not_allowed" }));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}
