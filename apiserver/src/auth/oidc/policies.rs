//! The trust policies, read for each token.
//!
//! They are not kept here: a policy that was set works at once, and one that was removed admits nobody from then on.

use std::time::Duration;

use scafo_core::id::ApplicationName;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::record::TrustPolicy;
use scafo_proto::registry::GetTrustRequest;
use scafo_proto::registry::administration_client::AdministrationClient;
use scafo_proto::status::to_problem;
use scafo_proto::transport;
use tokio::sync::Semaphore;
use tonic::transport::Channel;

use crate::registry::{call, parse};

/// Policies read at once. Each read costs the bucket one request, and anybody can cause one with a token that he made up; more
/// than this many are waiting jobs of CI systems only in a fleet of thousands.
const READS: usize = 32;
/// How long a request waits for its turn.
const TURN: Duration = Duration::from_secs(10);

pub(in crate::auth) struct Policies {
    client: AdministrationClient<Channel>,
    reads: Semaphore,
}

impl Policies {
    pub(in crate::auth) fn new(registry: Channel) -> Self {
        Self { client: AdministrationClient::new(registry), reads: Semaphore::new(READS) }
    }

    /// The policy of `application`; `None` when it has none.
    ///
    /// # Errors
    /// When the registry daemon or the bucket does not say.
    pub(in crate::auth) async fn get(&self, application: &ApplicationName) -> Result<Option<TrustPolicy>, Problem> {
        let Ok(Ok(_turn)) = tokio::time::timeout(TURN, self.reads.acquire()).await else {
            let detail = "too many workload tokens are being looked at; try again in a moment";
            return Err(Problem::new(ProblemCode::Draining, detail));
        };
        let request = GetTrustRequest { application: application.to_string() };
        match call!(self, transport::STORE, get_trust, request) {
            Ok(reply) => parse("a trust policy", &reply.policy).map(Some),
            Err(status) => match to_problem(&status) {
                problem if problem.code == ProblemCode::NotFound => Ok(None),
                problem => Err(problem),
            },
        }
    }
}
