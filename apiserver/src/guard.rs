//! Who may call a route, decided before the route does anything.
//!
//! Every route names its [`Access`] in the table of routes, and the one guard here enforces it. The order is part of the API:
//! the token, then the kind of caller, then the name in the path, then the caller's scope, then its tier. The token comes first,
//! so that nothing about a path is said to somebody unknown; nothing but the key of the token is read before all of it holds.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use scafo_core::id::{ApplicationName, DeployId};
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::record::Role;
use tracing::Span;

use crate::answer::{Refusal, RequestId, Signed, Target};
use crate::app::App;
use crate::auth::{Caller, Freshness, WORKLOAD};
use crate::routes::parameter;
use crate::surface::Route;

/// What a caller has to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nothing.
    Open,
    /// An ingress token.
    Ingress,
    /// A signed token of such a caller, for such a subject.
    Signed(Who, Subject),
}

/// Which callers are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Nodes, operators, and workloads that the trust policy of the application admits.
    Deployer,
    /// Nodes and operators.
    Member,
    /// Operators. Their record is read for each request.
    Operator,
    /// Operators of the tier `admin`. Their record is read for each request.
    Admin,
}

/// What a route is about, as far as scopes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The fleet, or what is narrowed to the caller's scope.
    Fleet,
    /// The application `{name}`.
    Application,
    /// A domain of the application `{name}`. A workload token is known here and out of scope: a pipeline publishes an
    /// application and does not decide which hosts it answers on.
    Domain,
    /// The application of the deploy `{id}`.
    Deploy,
}

impl Who {
    fn freshness(self) -> Freshness {
        match self {
            Self::Deployer | Self::Member => Freshness::Cached,
            Self::Operator | Self::Admin => Freshness::Now,
        }
    }
}

/// Where events go that say who decided what.
const AUDIT: &str = "scafo::audit";
/// The outcome of an action whose caller did not wait for it.
const CUT_OFF: &str = "cut-off";
/// As much of a part of a path as an event shows: the longest name of ours is a host of 253 characters.
const SHOWN: usize = 256;

/// Around each route: lets through who may call it, with its [`Caller`] and the [`ApplicationName`] in the extensions. A route that
/// decides leaves one event for each caller who is known, whatever becomes of it, also when the caller hangs up meanwhile.
pub(crate) async fn guard(
    State((app, route)): State<(Arc<App>, &'static Route)>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let mut signed = None;
    let about = route.decides().then(|| About::of(&parts));
    let admitted = match route.access {
        Access::Open => Ok(()),
        Access::Ingress => app.ingress_tokens.admit(&parts.headers),
        Access::Signed(who, subject) => admit(&app, who, subject, &mut parts, &mut signed).await,
    };
    let deed = about.zip(signed.clone()).map(|(about, by)| Deed { app, route, by, about, told: false });
    let mut response = match admitted {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(problem) => Refusal::from(problem).into_response(),
    };
    if let Some(deed) = deed {
        deed.answered(&response);
    }
    if let Some(signed) = signed {
        response.extensions_mut().insert(signed);
    }
    response
}

/// What an action is about, as its path says.
struct About {
    request: String,
    application: String,
    target: String,
}

impl About {
    fn of(parts: &Parts) -> Self {
        let shown = |name| parameter(parts, name).chars().take(SHOWN).collect::<String>();
        let (host, id) = (shown("host"), shown("id"));
        Self {
            request: parts.extensions.get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default(),
            application: shown("name"),
            target: if host.is_empty() { id } else { host },
        }
    }
}

/// An action of somebody who is known, until its one event is left.
struct Deed {
    app: Arc<App>,
    route: &'static Route,
    by: Signed,
    about: About,
    told: bool,
}

impl Deed {
    fn answered(mut self, response: &Response) {
        let refused = response.extensions().get::<Problem>().map(|problem| problem.code.as_str());
        // A coordinator's refusal is passed on as it came.
        let passed_on = if response.status().is_success() { "done" } else { "refused" };
        if let Some(Target(target)) = response.extensions().get() {
            self.about.target.clone_from(target);
        }
        self.tell(refused.unwrap_or(passed_on));
    }

    fn tell(&mut self, outcome: &'static str) {
        let (by, route, about) = (&self.by, self.route, &self.about);
        self.app.figures.decided(route.verb(), route.path, outcome);
        tracing::info!(
            target: AUDIT, request = about.request, kind = by.kind, actor = by.id, method = route.verb(), route = route.path,
            application = about.application, subject = about.target, outcome, "administrative action"
        );
        self.told = true;
    }
}

impl Drop for Deed {
    /// The connection ended before there was an answer, and the action may have been carried out.
    fn drop(&mut self) {
        if !self.told {
            self.tell(CUT_OFF);
        }
    }
}

async fn admit(
    app: &App,
    who: Who,
    subject: Subject,
    parts: &mut Parts,
    signed: &mut Option<Signed>,
) -> Result<(), Problem> {
    let application = application(subject, parts);
    let named = application.as_ref().and_then(|name| name.as_ref().ok());
    let caller = if who == Who::Deployer || subject == Subject::Domain {
        let verified = app.authenticator.verify_deployer(&parts.headers, named, who.freshness()).await;
        verified.map_err(|turned| {
            // A job is known by its token, whatever the policy says of it.
            *signed = turned.by.map(|id| Signed { id, kind: WORKLOAD });
            turned.problem
        })?
    } else {
        app.authenticator.verify(&parts.headers, who.freshness()).await?
    };
    *signed = Some(Signed { id: caller.id().to_owned(), kind: caller.kind() });
    if matches!(who, Who::Operator | Who::Admin) {
        caller.operator()?;
    }
    if let Some(application) = application.transpose()? {
        caller.must_reach(&application)?;
        Span::current().record("scafo.application", application.as_str());
        parts.extensions.insert(application);
    }
    if who == Who::Admin {
        must_be_admin(&caller, subject)?;
    }
    parts.extensions.insert(caller);
    Ok(())
}

/// The application that the path names; `None` where it names none. What is no name is refused in the words of its kind.
fn application(subject: Subject, parts: &Parts) -> Option<Result<ApplicationName, Problem>> {
    match subject {
        Subject::Fleet => None,
        Subject::Application | Subject::Domain => Some(parameter(parts, "name").parse()),
        Subject::Deploy => Some(parameter(parts, "id").parse().map(|id: DeployId| id.application())),
    }
}

fn must_be_admin(caller: &Caller, subject: Subject) -> Result<(), Problem> {
    if caller.operator()?.role == Role::Admin {
        return Ok(());
    }
    let detail = match subject {
        Subject::Fleet => {
            "only an admin key may do this: it is a decision that the fleet makes about itself, not one taken inside an \
             application"
        }
        Subject::Application | Subject::Domain | Subject::Deploy => {
            "only an admin key may do this, although yours reaches the application"
        }
    };
    Err(Problem::new(ProblemCode::AuthScope, detail))
}
