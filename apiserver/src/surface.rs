//! The surface of the API: one table with a row for each route.
//!
//! The router is built from the table, each route behind the guard that its row names, and so is the `OpenAPI` document. A
//! route that is not here does not exist, and none exists without saying who may call it.

mod table;

use std::sync::Arc;

use axum::routing::MethodRouter;
use http::Method;
use scafo_core::problem::ProblemCode;

pub use self::table::ROUTES;
use crate::app::App;
use crate::guard::{Access, Subject, Who};

/// One route.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    verb: Verb,
    /// Its path; `{name}` stands for one component, `{*key}` for any number of them.
    pub path: &'static str,
    /// Who may call it.
    pub access: Access,
    /// What it does, in a sentence.
    pub about: &'static str,
    pub(crate) takes: Takes,
    pub(crate) query: &'static [Parameter],
    pub(crate) headers: &'static [Parameter],
    pub(crate) status: u16,
    pub(crate) answer: Answer,
    refusals: &'static [ProblemCode],
    pub(crate) handler: Handler,
}

/// Gives the handler with its method. A route that reads answers `HEAD` too.
pub(crate) type Handler = fn() -> MethodRouter<Arc<App>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

/// What a route takes as its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    Nothing,
    /// JSON of a named schema.
    Json(&'static str),
    /// The same, or nothing.
    PerhapsJson(&'static str),
    /// An artifact; there is one.
    Artifact,
    /// Bytes, perhaps none.
    Octets,
}

/// What a route answers when it does not refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Nothing,
    /// JSON of a named schema.
    Json(&'static str),
    /// Bytes.
    Octets,
}

/// A parameter of the query, or a header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Of a named schema.
    pub(crate) schema: &'static str,
    pub(crate) required: bool,
}

impl Route {
    const fn new(verb: Verb, path: &'static str, access: Access, about: &'static str, handler: Handler) -> Self {
        Self {
            verb,
            path,
            access,
            about,
            takes: Takes::Nothing,
            query: &[],
            headers: &[],
            status: 200,
            answer: Answer::Nothing,
            refusals: &[],
            handler,
        }
    }

    const fn takes(self, takes: Takes) -> Self {
        Self { takes, ..self }
    }

    const fn query(self, query: &'static [Parameter]) -> Self {
        Self { query, ..self }
    }

    const fn headers(self, headers: &'static [Parameter]) -> Self {
        Self { headers, ..self }
    }

    const fn answers(self, status: u16, answer: Answer) -> Self {
        Self { status, answer, ..self }
    }

    const fn refuses(self, refusals: &'static [ProblemCode]) -> Self {
        Self { refusals, ..self }
    }

    /// What stands before a part of any length at the end of its path.
    pub(crate) fn before_tail(&self) -> Option<&'static str> {
        self.path.split_once("{*").map(|(before, _)| before)
    }

    /// Whether it changes something in somebody's name, so that it leaves an event that says who.
    pub fn decides(&self) -> bool {
        self.verb != Verb::Get && matches!(self.access, Access::Signed(..))
    }

    /// Its method.
    pub fn method(&self) -> Method {
        match self.verb {
            Verb::Get => Method::GET,
            Verb::Post => Method::POST,
            Verb::Put => Method::PUT,
            Verb::Delete => Method::DELETE,
        }
    }

    /// Its method as text.
    pub(crate) const fn verb(&self) -> &'static str {
        match self.verb {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Put => "PUT",
            Verb::Delete => "DELETE",
        }
    }

    /// Every refusal that it may answer with, in the order of the table of codes.
    pub fn refusals(&self) -> Vec<ProblemCode> {
        let may = |code: &ProblemCode| {
            self.refusals.contains(code) || of_access(self.access).contains(code) || self.of_body().contains(code)
        };
        ProblemCode::ALL.into_iter().filter(may).collect()
    }

    fn of_body(&self) -> &'static [ProblemCode] {
        match self.takes {
            Takes::Nothing => &[],
            Takes::Json(_) | Takes::PerhapsJson(_) | Takes::Artifact | Takes::Octets => {
                &[ProblemCode::InvalidInput, ProblemCode::ResourceLimit]
            }
        }
    }
}

/// What the guard refuses with, and what anything that asks the registry may meet.
fn of_access(access: Access) -> Vec<ProblemCode> {
    use ProblemCode::{
        AuthInvalid, AuthScope, Draining, Internal, InvalidSlug, NotFound, StoreNonconforming, StoreUnavailable,
        TrustMismatch,
    };
    let mut codes = vec![Internal];
    match access {
        Access::Open => {}
        Access::Ingress => codes.extend([AuthInvalid, Draining]),
        Access::Signed(who, subject) => {
            codes.extend([AuthInvalid, Draining, StoreUnavailable, StoreNonconforming]);
            match who {
                Who::Deployer => codes.push(TrustMismatch),
                Who::Member => {}
                Who::Operator | Who::Admin => codes.push(AuthScope),
            }
            match subject {
                Subject::Fleet => {}
                Subject::Application => codes.extend([InvalidSlug, AuthScope]),
                Subject::Domain => codes.extend([InvalidSlug, AuthScope, TrustMismatch]),
                Subject::Deploy => codes.extend([NotFound, AuthScope]),
            }
        }
    }
    codes
}
