//! The application: everything that the routes share, put together from the settings.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::HeaderMap;
use scafo_core::problem::Problem;
use scafo_core::settings::{ApiserverSettings, ObserveSettings};
use scafo_core::view::Health;
use scafo_proto::record::Recording;
use scafo_telemetry::metrics::Metrics;

use crate::administration::Administration;
use crate::auth::{Authenticator, IngressTokens};
use crate::body;
use crate::clock::Clock;
use crate::deploy::Intake;
use crate::documents::Documents;
use crate::figures::Figures;
use crate::registry::Registry;
use crate::routes;
use crate::server::Served;
use crate::storage::Storage;

/// The running application. It owns the deploys that it carries.
pub struct App {
    pub(crate) health: Health,
    pub(crate) registry: Registry,
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) ingress_tokens: IngressTokens,
    pub(crate) documents: Documents,
    pub(crate) intake: Arc<Intake>,
    pub(crate) administration: Administration,
    pub(crate) storage: Storage,
    /// Bound of a JSON request body in bytes.
    pub(crate) json_bytes: u64,
    pub(crate) figures: Figures,
    /// The figures as text.
    pub(crate) metrics: Metrics,
}

/// What keeps the API from starting.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An ingress token is empty.
    #[error("an ingress token is empty, which would let everybody in: remove it from `ingress.token`")]
    EmptyIngressToken,
    /// The directory cannot be used.
    #[error("cannot use the directory {dir}: {cause}")]
    Directory {
        /// Which.
        dir: String,
        /// Why.
        cause: io::Error,
    },
}

impl App {
    /// Reads back what the last process left, and goes on with its deploys. Has to be called within a runtime.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(settings: ApiserverSettings, clock: Arc<dyn Clock>) -> Result<Arc<Self>, OpenError> {
        let dir = settings.dir;
        let unusable = |cause| OpenError::Directory { dir: dir.display().to_string(), cause };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(unusable)?;
        let registry = Registry::new(&settings.registry_socket);
        let figures = Figures::default();
        let intake = Intake::open(&dir, settings.deploy, settings.deploy_runner, registry.clone(), figures.clone());
        let intake = intake.map_err(unusable)?;
        let authenticator = Arc::new(Authenticator::open(&dir, registry.clone(), clock).map_err(unusable)?);
        Ok(Arc::new(Self {
            health: Health { ok: true, version: settings.version, node: settings.node },
            metrics: figures.metrics(authenticator.clone(), intake.clone()),
            authenticator,
            ingress_tokens: IngressTokens::new(&settings.ingress_tokens).ok_or(OpenError::EmptyIngressToken)?,
            documents: Documents::new(&settings.router_socket, figures.stale_documents.clone()),
            administration: Administration::new(&settings.registry_socket),
            storage: Storage::new(&settings.registry_socket, settings.storage_value_bytes),
            json_bytes: settings.json_bytes,
            registry,
            intake,
            figures,
        }))
    }

    /// Every route, counted.
    pub fn served(self: &Arc<Self>) -> Served {
        Served::new(self.router(), self.figures.clone())
    }

    /// Every route.
    pub fn router(self: &Arc<Self>) -> axum::Router {
        routes::router(self.clone())
    }

    /// The JSON body of a control request.
    pub(crate) async fn control(&self, headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
        body::whole(headers, body, self.json_bytes, "api.jsonBytes").await
    }

    /// Hands in what this process measures and traces, where the node keeps observations. Has to be called within a runtime.
    pub fn record(&self, told: Option<&ObserveSettings>) -> Option<Recording> {
        let metrics = self.metrics.clone();
        Recording::begin("apiserver", told, move || metrics.text())
    }

    /// Lays down the deploys that are being carried; the next process takes them up again.
    pub async fn stop(&self) {
        self.intake.stop().await;
    }
}
