//! The rows.

use axum::routing::{delete, get, post, put};
use scafo_core::problem::ProblemCode::{
    self, ApplicationBlocked, CapabilityMissing, CasConflict, DeployOverloaded, DeployTimeout, DeploysFrozen,
    Immutable, InvalidInput, LeaseLost, NotFound, ReferenceHeld, StoreNonconforming, StoreUnavailable, VersionSkew,
};

use super::Answer::{Json, Nothing, Octets};
use super::{Parameter, Route, Takes, Verb};
use crate::guard::Access::{self, Ingress, Open, Signed};
use crate::guard::Subject::{Application, Deploy, Domain, Fleet};
use crate::guard::Who::{Admin, Deployer, Member, Operator};
use crate::routes::{
    applications, deletion, deploys, description, domains, fleet, health, operators, routing, state, storage,
};

const READ: &str = "/v1/applications/{name}";
const DOMAIN: &str = "/v1/applications/{name}/domains/{host}";
const FREEZE: &str = "/v1/fleet/freeze";
const OBJECT: &str = "/v1/storage/objects/{*key}";
const LOCK: &str = "/v1/storage/locks/{*name}";
const ADMIN: Access = Signed(Admin, Application);
const SETTER: Access = Signed(Member, Application);

/// What changing a record may meet.
const CHANGE: &[ProblemCode] = &[NotFound, CasConflict, ReferenceHeld, Immutable];
const STORE: &[ProblemCode] = &[InvalidInput, StoreUnavailable, StoreNonconforming];
const STORE_FOUND: &[ProblemCode] = &[InvalidInput, NotFound, StoreUnavailable, StoreNonconforming];
const STORE_LOCK: &[ProblemCode] = &[InvalidInput, CasConflict, StoreUnavailable, StoreNonconforming];
const DEPLOY: &[ProblemCode] = &[
    CasConflict,
    ReferenceHeld,
    DeploysFrozen,
    ApplicationBlocked,
    VersionSkew,
    CapabilityMissing,
    DeployOverloaded,
    DeployTimeout,
];

const PREFER: &[Parameter] = &[optional("prefer", "Text", "A node id, or `self`: its upstreams come first")];
const IF_NONE_MATCH: &[Parameter] =
    &[optional("if-none-match", "Text", "The entity tag of the document that the caller has")];
const METADATA: &[Parameter] = &[Parameter {
    name: "x-scafo-deploy",
    about: "Unpadded base64url of the canonical JSON metadata, at most 8192 characters",
    schema: "DeployMetadata",
    required: true,
}];
const VERSION: &[Parameter] = &[STORAGE_VERSION];
const LOCKING: &[Parameter] = &[
    STORAGE_VERSION,
    optional("x-scafo-lock-owner", "LockOwner", "Random for each client process, so that it can keep its own lock"),
];
const STORAGE_VERSION: Parameter = optional(
    "x-scafo-storage-version",
    "StorageVersion",
    "The version of the storage protocol: `1`, which is also meant without it",
);

const fn optional(name: &'static str, schema: &'static str, about: &'static str) -> Parameter {
    Parameter { name, about, schema, required: false }
}

const fn reading(path: &'static str, access: Access, about: &'static str, handler: super::Handler) -> Route {
    Route::new(Verb::Get, path, access, about, handler)
}

const fn posting(path: &'static str, access: Access, about: &'static str, handler: super::Handler) -> Route {
    Route::new(Verb::Post, path, access, about, handler)
}

const fn putting(path: &'static str, access: Access, about: &'static str, handler: super::Handler) -> Route {
    Route::new(Verb::Put, path, access, about, handler)
}

const fn deleting(path: &'static str, access: Access, about: &'static str, handler: super::Handler) -> Route {
    Route::new(Verb::Delete, path, access, about, handler)
}

/// Every route.
pub const ROUTES: &[Route] = &[
    reading("/.well-known/scafo/health", Open, "Whether this node's API answers", || get(health::show))
        .answers(200, Json("Health")),
    reading("/openapi.json", Open, "This document", || get(description::show)).answers(200, Json("OpenApi")),
    reading("/v1/state", Signed(Member, Fleet), "The state of this node, narrowed to the caller's scope", || {
        get(state::show)
    })
    .answers(200, Json("DaemonState")),
    // Deploys.
    posting(
        "/v1/applications/{name}/deploys",
        Signed(Deployer, Application),
        "Deploys the archive in the body; the first deploy creates the application",
        || post(deploys::create),
    )
    .takes(Takes::Artifact)
    .headers(METADATA)
    .answers(202, Json("DeployStatus"))
    .refuses(DEPLOY),
    reading("/v1/deploys/{id}", Signed(Deployer, Deploy), "A deploy as it stands", || get(deploys::show))
        .answers(200, Json("DeployStatus")),
    // Operator keys.
    reading("/v1/operators", Signed(Operator, Fleet), "The operator keys that the caller may see, by id", || {
        get(operators::list)
    })
    .answers(200, Json("Operators")),
    posting("/v1/operators", Signed(Operator, Fleet), "Registers an operator key", || post(operators::register))
        .takes(Takes::Json("NewOperator"))
        .answers(200, Json("OperatorAnswer"))
        .refuses(CHANGE),
    deleting("/v1/operators/{id}", Signed(Operator, Fleet), "Revokes an operator key", || delete(operators::revoke))
        .answers(200, Json("Removed"))
        .refuses(&[InvalidInput, NotFound, CasConflict, ReferenceHeld]),
    // Applications.
    reading("/v1/applications", Signed(Operator, Fleet), "The applications that the caller reaches, by name", || {
        get(applications::list)
    })
    .answers(200, Json("Applications")),
    reading(READ, Signed(Operator, Application), "One application", || get(applications::show))
        .answers(200, Json("ApplicationAnswer"))
        .refuses(&[NotFound]),
    posting("/v1/applications/{name}/block", ADMIN, "Stops serving it until it is unblocked", || {
        post(applications::set_blocked::<true>)
    })
    .answers(200, Json("ApplicationAnswer"))
    .refuses(CHANGE),
    posting("/v1/applications/{name}/unblock", ADMIN, "Serves it again", || post(applications::set_blocked::<false>))
        .answers(200, Json("ApplicationAnswer"))
        .refuses(CHANGE),
    posting("/v1/applications/{name}/labels", ADMIN, "Replaces the fleet's notes about it", || {
        post(applications::label)
    })
    .takes(Takes::Json("Labels"))
    .answers(200, Json("ApplicationAnswer"))
    .refuses(CHANGE),
    posting("/v1/applications/{name}/retire", SETTER, "Stops serving it; it may be deleted after its grace", || {
        post(applications::set_retired::<true>)
    })
    .answers(200, Json("ApplicationAnswer"))
    .refuses(CHANGE),
    posting("/v1/applications/{name}/unretire", SETTER, "Takes the retirement back", || {
        post(applications::set_retired::<false>)
    })
    .answers(200, Json("ApplicationAnswer"))
    .refuses(CHANGE),
    posting("/v1/applications/{name}/selector", SETTER, "Says which nodes may serve it", || post(applications::select))
        .takes(Takes::Json("Selector"))
        .answers(200, Json("ApplicationAnswer"))
        .refuses(CHANGE),
    posting("/v1/applications/{name}/replicas", SETTER, "Says how many nodes shall serve it", || {
        post(applications::replicate)
    })
    .takes(Takes::Json("Replicas"))
    .answers(200, Json("ApplicationAnswer"))
    .refuses(CHANGE),
    posting(DOMAIN, Signed(Operator, Domain), "Claims a host for it", || post(domains::claim))
        .query(&[optional("wildcard", "Text", "`1` claims the single label below the host too")])
        .answers(200, Json("DomainAnswer"))
        .refuses(&[InvalidInput, NotFound, CasConflict, ReferenceHeld, Immutable, ApplicationBlocked]),
    deleting(DOMAIN, Signed(Operator, Domain), "Releases a host of it", || delete(domains::release))
        .answers(200, Json("DomainAnswer"))
        .refuses(&[InvalidInput, NotFound, CasConflict, ReferenceHeld, Immutable]),
    deleting(READ, SETTER, "Deletes it with everything that it has, here or through the coordinator", || {
        delete(deletion::delete)
    })
    .query(&[optional("force", "Text", "`1` or `true` skips retirement and grace")])
    .answers(200, Json("Deleted"))
    .refuses(&[NotFound, CasConflict, ReferenceHeld, Immutable, LeaseLost, CapabilityMissing]),
    // The fleet.
    posting(FREEZE, Signed(Admin, Fleet), "Freezes deploys everywhere", || post(fleet::freeze))
        .takes(Takes::PerhapsJson("Freeze"))
        .answers(200, Json("FreezeAnswer"))
        .refuses(&[CasConflict]),
    deleting(FREEZE, Signed(Admin, Fleet), "Takes deploys again", || delete(fleet::unfreeze))
        .answers(200, Json("Lifted"))
        .refuses(&[CasConflict]),
    reading(FREEZE, Signed(Operator, Fleet), "The freeze that stands", || get(fleet::show))
        .answers(200, Json("FreezeShown"))
        .refuses(&[NotFound]),
    // Certificate storage.
    putting(OBJECT, Ingress, "Stores a value", || put(storage::put))
        .takes(Takes::Octets)
        .headers(VERSION)
        .answers(204, Nothing)
        .refuses(STORE),
    reading(OBJECT, Ingress, "A stored value", || get(storage::get))
        .headers(VERSION)
        .answers(200, Octets)
        .refuses(STORE_FOUND),
    deleting(OBJECT, Ingress, "Removes a key and everything beneath it", || delete(storage::delete))
        .headers(VERSION)
        .answers(204, Nothing)
        .refuses(STORE_FOUND),
    reading("/v1/storage/list", Ingress, "The keys at or under a prefix", || get(storage::list))
        .query(&[
            optional("prefix", "StoragePrefix", "Empty for everything"),
            optional("recursive", "Text", "`true` or `1`: everything beneath, and not only the immediate children"),
        ])
        .headers(VERSION)
        .answers(200, Json("Keys"))
        .refuses(STORE_FOUND),
    reading("/v1/storage/stat", Ingress, "What is known of a key", || get(storage::stat))
        .query(&[Parameter { name: "key", about: "The key", schema: "StorageKey", required: true }])
        .headers(VERSION)
        .answers(200, Json("Stat"))
        .refuses(STORE_FOUND),
    posting(LOCK, Ingress, "Takes a lock, or keeps one's own; never waits", || post(storage::lock))
        .headers(LOCKING)
        .answers(204, Nothing)
        .refuses(STORE_LOCK),
    deleting(LOCK, Ingress, "Gives a lock up", || delete(storage::unlock))
        .headers(LOCKING)
        .answers(204, Nothing)
        .refuses(STORE),
    // Routing.
    reading("/v1/ingress/routes", Ingress, "The fleet's routing", || get(routing::generic))
        .query(PREFER)
        .headers(IF_NONE_MATCH)
        .answers(200, Json("FleetRouting")),
    reading("/v1/ingress/routes/{format}", Ingress, "The fleet's routing as an ingress reads it natively", || {
        get(routing::native)
    })
    .query(PREFER)
    .headers(IF_NONE_MATCH)
    .answers(200, Json("NativeRouting"))
    .refuses(&[NotFound]),
];
