//! A collector: takes spans over OTLP and remembers them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

/// One span as it came.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) service: String,
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) attributes: BTreeMap<String, String>,
}

#[derive(Clone, Default)]
struct Kept {
    spans: Arc<Mutex<Vec<Span>>>,
    /// Everything that came, whatever it was, as text.
    text: Arc<Mutex<String>>,
    mute: Arc<AtomicBool>,
}

/// A running collector; it ends when it is dropped.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    kept: Kept,
    _serving: JoinSet<()>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        Self::serve(Server::builder()).await
    }

    /// One that shows a certificate of this authority.
    pub(crate) async fn behind_tls(authority: &Authority) -> Self {
        let tls = ServerTlsConfig::new().identity(authority.certificate("127.0.0.1"));
        Self::serve(Server::builder().tls_config(tls).expect("a certificate")).await
    }

    async fn serve(mut server: Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let kept = Kept::default();
        let service = TraceServiceServer::new(kept.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let server = server.add_service(service);
            server.serve_with_incoming(TcpListenerStream::new(listener)).await.expect("a working listener");
        });
        Self { address, kept, _serving: serving }
    }

    /// The spans of a trace so far.
    pub(crate) fn of(&self, trace: &str) -> Vec<Span> {
        self.spans().into_iter().filter(|span| span.trace == trace).collect()
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        self.kept.spans.lock().expect("nothing panics with it").clone()
    }

    /// From now on it takes what it is sent and never answers.
    pub(crate) fn fall_silent(&self) {
        self.kept.mute.store(true, Ordering::SeqCst);
    }

    pub(crate) fn text(&self) -> String {
        self.kept.text.lock().expect("nothing panics with it").clone()
    }
}

/// Who vouches for a collector.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub(crate) fn named(name: &str) -> Self {
        let mut about = CertificateParams::default();
        about.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        about.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = about.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(about, key), pem }
    }

    /// Its own certificate.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    fn certificate(&self, name: &str) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let about = CertificateParams::new([name.to_owned()]).expect("a name");
        let certificate = about.signed_by(&key, &self.issuer).expect("a certificate");
        Identity::from_pem(certificate.pem(), key.serialize_pem())
    }
}

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        if self.mute.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let request = request.into_inner();
        self.text.lock().expect("nothing panics with it").push_str(&format!("{request:?}\n"));
        let mut spans = self.spans.lock().expect("nothing panics with it");
        for of_resource in request.resource_spans {
            let resource = texts(&of_resource.resource.unwrap_or_default().attributes);
            let service = resource.get("service.name").cloned().unwrap_or_default();
            for span in of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                spans.push(Span {
                    service: service.clone(),
                    attributes: texts(&span.attributes),
                    name: span.name,
                    trace: hex(&span.trace_id),
                    id: hex(&span.span_id),
                    parent: hex(&span.parent_span_id),
                });
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.clone()) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), text(attribute))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
