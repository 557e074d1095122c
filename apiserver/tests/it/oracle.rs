//! What the specification says about who is answered where, written down apart from the code: its route table, kinds of
//! callers, and what each gets.

use http::Method;
use scafo_apiserver::clock::Clock as _;
use scafo_core::token::sign;
use serde_json::{Value, json};

use crate::harness::{Answer, Harness, INGRESS_TOKEN, NO_METADATA, project, signing_key};

/// The column `Auth` of the route table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Open,
    Ingress,
    /// Node or operator token.
    Member,
    /// Node or operator token, application scope.
    MemberOf,
    /// Node, operator or workload token.
    Deployer,
    Operator,
    /// Operator token, application scope.
    OperatorOf,
    /// Admin operator, of an application.
    AdminOf,
    /// Admin operator, of the fleet.
    Admin,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Payload {
    Empty,
    Json(&'static str),
    Artifact,
    Bytes(&'static str),
}

/// One row of the route table with a request that succeeds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) class: Class,
    /// The path's tail after the parameters are filled in, and the query.
    pub(crate) request: &'static str,
    pub(crate) payload: Payload,
    pub(crate) status: u16,
}

const fn row(
    method: &'static str,
    path: &'static str,
    class: Class,
    request: &'static str,
    payload: Payload,
    status: u16,
) -> Row {
    Row { method, path, class, request, payload, status }
}

const NEW_OPERATOR: &str = r#"{"id":"op-9f3c","publicKey":{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},"applications":["shop"]}"#;

/// The route table of the specification.
pub(crate) const TABLE: [Row; 33] = {
    use Class::{Admin, AdminOf, Deployer, Ingress, Member, MemberOf, Open, Operator, OperatorOf};
    use Payload::{Artifact, Bytes, Empty, Json};
    [
        row("GET", "/.well-known/scafo/health", Open, "/.well-known/scafo/health", Empty, 200),
        row("GET", "/v1/state", Member, "/v1/state", Empty, 200),
        row("POST", "/v1/applications/{name}/deploys", Deployer, "/v1/applications/shop/deploys", Artifact, 202),
        row("GET", "/v1/deploys/{id}", Deployer, "/v1/deploys/shop.0123456789abcdef", Empty, 200),
        row("GET", "/v1/operators", Operator, "/v1/operators", Empty, 200),
        row("POST", "/v1/operators", Operator, "/v1/operators", Json(NEW_OPERATOR), 200),
        row("DELETE", "/v1/operators/{id}", Operator, "/v1/operators/op-9f3c", Empty, 200),
        row("GET", "/v1/applications", Operator, "/v1/applications", Empty, 200),
        row("GET", "/v1/applications/{name}", OperatorOf, "/v1/applications/shop", Empty, 200),
        row("POST", "/v1/applications/{name}/block", AdminOf, "/v1/applications/shop/block", Empty, 200),
        row("POST", "/v1/applications/{name}/unblock", AdminOf, "/v1/applications/shop/unblock", Empty, 200),
        row(
            "POST",
            "/v1/applications/{name}/labels",
            AdminOf,
            "/v1/applications/shop/labels",
            Json(r#"{"labels":{"plan":"pro"}}"#),
            200,
        ),
        row("POST", "/v1/applications/{name}/retire", MemberOf, "/v1/applications/shop/retire", Empty, 200),
        row("POST", "/v1/applications/{name}/unretire", MemberOf, "/v1/applications/shop/unretire", Empty, 200),
        row(
            "POST",
            "/v1/applications/{name}/selector",
            MemberOf,
            "/v1/applications/shop/selector",
            Json(r#"{"selector":{"tier":"fast"}}"#),
            200,
        ),
        row(
            "POST",
            "/v1/applications/{name}/replicas",
            MemberOf,
            "/v1/applications/shop/replicas",
            Json(r#"{"replicas":"all"}"#),
            200,
        ),
        row(
            "POST",
            "/v1/applications/{name}/domains/{host}",
            OperatorOf,
            "/v1/applications/shop/domains/shop.example",
            Empty,
            200,
        ),
        row(
            "DELETE",
            "/v1/applications/{name}/domains/{host}",
            OperatorOf,
            "/v1/applications/shop/domains/shop.example",
            Empty,
            200,
        ),
        row("DELETE", "/v1/applications/{name}", MemberOf, "/v1/applications/shop?force=1", Empty, 200),
        row("POST", "/v1/fleet/freeze", Admin, "/v1/fleet/freeze", Json(r#"{"reason":"moving"}"#), 200),
        row("DELETE", "/v1/fleet/freeze", Admin, "/v1/fleet/freeze", Empty, 200),
        row("GET", "/v1/fleet/freeze", Operator, "/v1/fleet/freeze", Empty, 200),
        row("PUT", "/v1/storage/objects/{*key}", Ingress, "/v1/storage/objects/a/b", Bytes("value"), 204),
        row("GET", "/v1/storage/objects/{*key}", Ingress, "/v1/storage/objects/a/b", Empty, 200),
        row("DELETE", "/v1/storage/objects/{*key}", Ingress, "/v1/storage/objects/a", Empty, 204),
        row("GET", "/v1/storage/list", Ingress, "/v1/storage/list?prefix=a&recursive=true", Empty, 200),
        row("GET", "/v1/storage/stat", Ingress, "/v1/storage/stat?key=a/b", Empty, 200),
        row("POST", "/v1/storage/locks/{*name}", Ingress, "/v1/storage/locks/issue/a", Empty, 204),
        row("DELETE", "/v1/storage/locks/{*name}", Ingress, "/v1/storage/locks/issue/a", Empty, 204),
        row("GET", "/v1/ingress/routes", Ingress, "/v1/ingress/routes", Empty, 200),
        row("GET", "/v1/ingress/routes", Ingress, "/v1/ingress/routes?prefer=self", Empty, 200),
        row("GET", "/v1/ingress/routes/{format}", Ingress, "/v1/ingress/routes/traefik", Empty, 200),
        // Beside the table: what describes it.
        row("GET", "/openapi.json", Open, "/openapi.json", Empty, 200),
    ]
};

/// Kinds of callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Nobody,
    Basic,
    Junk,
    Unknown,
    Forged,
    Swapped,
    Expired,
    Early,
    Replayed,
    Workload,
    Ingress,
    OtherIngress,
    AlmostIngress,
    Node,
    /// Admin of everything.
    Root,
    /// Admin of `blog` only.
    Lead,
    /// Operator of `shop` and `team-*`.
    Team,
    /// Operator of `shop` and `shop-*`.
    Family,
    /// Operator of `sho*`.
    Glob,
    /// Operator of `shop-*` and `shops`.
    Near,
    /// Operator of `blog`.
    Other,
    /// Operator of everything.
    Every,
}

impl Who {
    pub(crate) const ALL: [Self; 22] = [
        Self::Nobody,
        Self::Basic,
        Self::Junk,
        Self::Unknown,
        Self::Forged,
        Self::Swapped,
        Self::Expired,
        Self::Early,
        Self::Replayed,
        Self::Workload,
        Self::Ingress,
        Self::OtherIngress,
        Self::AlmostIngress,
        Self::Node,
        Self::Root,
        Self::Lead,
        Self::Team,
        Self::Family,
        Self::Glob,
        Self::Near,
        Self::Other,
        Self::Every,
    ];

    /// The id of a caller whose tokens hold up.
    pub(crate) fn signer(self) -> Option<&'static str> {
        match self {
            Self::Node => Some("n1"),
            Self::Root => Some("root"),
            Self::Lead => Some("lead"),
            Self::Team => Some("team"),
            Self::Family => Some("family"),
            Self::Glob => Some("glob"),
            Self::Near => Some("near"),
            Self::Other => Some("other"),
            Self::Every => Some("every"),
            _ => None,
        }
    }

    fn reaches_shop(self) -> bool {
        matches!(self, Self::Node | Self::Root | Self::Team | Self::Family | Self::Glob | Self::Every)
    }

    fn is_admin(self) -> bool {
        matches!(self, Self::Root | Self::Lead)
    }

    pub(crate) async fn authorization(self, harness: &Harness) -> Option<String> {
        let at = |seconds: i64| scafo_core::Timestamp::from_millis(harness.clock.wall().as_millis() + 1000 * seconds);
        let odd = |key: &str, kid: &str, seconds| {
            format!("Bearer {}", sign(&signing_key(key), kid, at(seconds), rand::random()))
        };
        Some(match self {
            Self::Nobody => return None,
            Self::Basic => harness.token("root").replace("Bearer", "Basic"),
            Self::Junk => "Bearer e30.e30.AAAA".to_owned(),
            Self::Unknown => odd("stranger", "stranger", 0),
            Self::Forged => odd("stranger", "root", 0),
            Self::Swapped => odd("team", "root", 0),
            Self::Expired => odd("root", "root", -91),
            Self::Early => odd("root", "root", 31),
            Self::Replayed => {
                let token = harness.token("root");
                harness.get("/v1/state", &token).await;
                token
            }
            // {"alg":"RS256"} and {"iss":"https://issuer.example"}.
            Self::Workload => "Bearer eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIn0.AAAA".to_owned(),
            Self::Ingress => format!("Bearer {INGRESS_TOKEN}"),
            Self::OtherIngress => "bearer another".to_owned(),
            Self::AlmostIngress => format!("Bearer {}", &INGRESS_TOKEN[1..]),
            _ => harness.token(self.signer()?),
        })
    }

    /// What the route answers this caller.
    pub(crate) fn expected(self, row: &Row) -> (u16, &'static str) {
        let good = (row.status, "");
        let (unknown, refused) = ((401, "auth-invalid"), (403, "auth-scope"));
        match row.class {
            Class::Open => return good,
            Class::Ingress if matches!(self, Self::Ingress | Self::OtherIngress) => return good,
            Class::Ingress => return unknown,
            _ if self.signer().is_none() => return unknown,
            _ => {}
        }
        let operator = self != Self::Node;
        let admitted = match row.class {
            Class::Open | Class::Ingress | Class::Member => true,
            Class::MemberOf | Class::Deployer => self.reaches_shop(),
            Class::Operator => operator,
            Class::OperatorOf => operator && self.reaches_shop(),
            Class::AdminOf => self.reaches_shop() && self.is_admin(),
            Class::Admin => self.is_admin(),
        };
        if admitted { good } else { refused }
    }
}

/// The class's callers in good standing, one each.
pub(crate) fn welcome(class: Class) -> Who {
    match class {
        Class::Open => Who::Nobody,
        Class::Ingress => Who::Ingress,
        _ => Who::Root,
    }
}

pub(crate) fn application(name: &str) -> Value {
    json!({ "v": 1, "name": name, "createdAt": "2026-04-01T12:30:00.000Z", "blocked": false,
            "labels": { "plan": "pro" }, "domains": [], "wildcardDomains": [], "future": { "kept": true } })
}

/// A world in which every request of [`TABLE`] succeeds.
pub(crate) fn settle(harness: &Harness) {
    harness.router.set("\"one\"", r#"{"v":1,"routes":[]}"#);
    let mut world = harness.registry.world();
    world.applications = json!([application("blog"), application("shop")]);
    world.state = json!({ "node": null, "lease": null, "coordinator": null, "processes": [], "placements": [] });
    let deploy = json!({ "id": "shop.0123456789abcdef", "application": "shop", "state": "deployed" });
    world.deploys.insert("shop.0123456789abcdef".to_owned(), deploy);
    world.refuse = None;
    world.administered.applications = ["blog", "shop"].map(|name| (name.to_owned(), application(name))).into();
    world.administered.freeze = Some(json!({ "v": 1, "frozenAt": "2026-04-01T12:30:00.000Z", "by": "root" }));
    world.administered.operators = json!({ "operators": [] });
    world.administered.asked.clear();
    world.prepared.clear();
    world.stored.objects = [("a/b".to_owned(), "value".into())].into();
    world.stored.locks.clear();
}

pub(crate) async fn ask(harness: &Harness, row: &Row, request: &str, who: Who) -> Answer {
    let authorization = who.authorization(harness).await;
    let mut headers: Vec<(&str, &str)> = authorization.iter().map(|value| ("authorization", value.as_str())).collect();
    let body = match row.payload {
        Payload::Empty => Vec::new(),
        Payload::Json(text) | Payload::Bytes(text) => text.as_bytes().to_vec(),
        Payload::Artifact => {
            headers.push(("x-scafo-deploy", NO_METADATA));
            project()
        }
    };
    harness.send(row.method.parse::<Method>().unwrap(), request, &headers, body).await
}

/// Status and code of an answer; the code is empty for one that is no refusal.
pub(crate) fn outcome(answer: &Answer) -> (u16, String) {
    let status = answer.status.as_u16();
    (status, if status < 400 { String::new() } else { answer.problem() })
}
