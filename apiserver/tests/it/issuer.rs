//! An issuer of workload tokens: real metadata and keys over loopback, tokens of the shapes that CI systems issue, and every
//! way of not answering well. Shared by the unit tests of the verifier and the tests over HTTP.

use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use p521::ecdsa::signature::Signer as _;
use ring::rand::SystemRandom;
use ring::signature::{self as scheme, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaEncoding, RsaKeyPair};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Now, for the tests' clocks and their tokens.
pub(crate) const NOW_S: i64 = 1_800_000_000;
/// Every algorithm that the specification lists.
pub(crate) const ALGORITHMS: [&str; 11] =
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"];

/// How one of its two addresses answers.
#[derive(Clone)]
pub(crate) enum Manner {
    /// As it should.
    Well,
    Status(u16),
    Redirect(String),
    Body(Vec<u8>),
    /// The connection is taken and nothing comes.
    Silence,
}

pub(crate) struct World {
    pub(crate) keys: Vec<Value>,
    pub(crate) metadata: Manner,
    pub(crate) jwks: Manner,
    /// Requests for the metadata, and for the keys.
    pub(crate) asked: (usize, usize),
}

pub(crate) struct Issuer {
    pub(crate) url: String,
    world: Arc<Mutex<World>>,
    _serving: JoinSet<()>,
}

impl Issuer {
    /// Publishes the keys of `signers`.
    pub(crate) async fn start(signers: &[&Signer]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let keys = signers.iter().map(|signer| signer.jwk()).collect();
        let world = World { keys, metadata: Manner::Well, jwks: Manner::Well, asked: (0, 0) };
        let world = Arc::new(Mutex::new(world));
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(metadata))
            .route("/jwks", get(jwks))
            .with_state((url.clone(), world.clone()));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, world, _serving: serving }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    pub(crate) fn asked(&self) -> (usize, usize) {
        self.world().asked
    }

    /// What a job of GitHub Actions is issued.
    pub(crate) fn github(&self) -> Value {
        json!({
            "jti": "5d0a1b06-31f7-4d38-8bd8-3b9b1f0b8a11", "sub": "repo:acme/shop:ref:refs/heads/main", "aud": "scafo",
            "ref": "refs/heads/main", "sha": "6f1e3c9b0f5d4c0a9a3d7b2e8c1f4a5b6d7e8f90", "repository": "acme/shop",
            "repository_owner": "acme", "repository_owner_id": "650", "run_id": "7331", "run_number": "12",
            "run_attempt": "1", "repository_visibility": "private", "repository_id": "7400", "actor_id": "42",
            "actor": "sam", "workflow": "deploy", "head_ref": "", "base_ref": "", "event_name": "push",
            "ref_protected": "true", "ref_type": "branch", "runner_environment": "github-hosted",
            "workflow_ref": "acme/shop/.github/workflows/deploy.yml@refs/heads/main",
            "workflow_sha": "6f1e3c9b0f5d4c0a9a3d7b2e8c1f4a5b6d7e8f90",
            "job_workflow_ref": "acme/shop/.github/workflows/deploy.yml@refs/heads/main",
            "job_workflow_sha": "6f1e3c9b0f5d4c0a9a3d7b2e8c1f4a5b6d7e8f90",
            "iss": self.url, "nbf": NOW_S - 600, "exp": NOW_S + 300, "iat": NOW_S,
        })
    }

    /// What a job of GitLab CI is issued.
    pub(crate) fn gitlab(&self) -> Value {
        json!({
            "namespace_id": "72", "namespace_path": "acme", "project_id": "20", "project_path": "acme/shop",
            "user_id": "1", "user_login": "sam", "user_email": "sam@example.com", "user_access_level": "developer",
            "user_identities": [{ "provider": "saml", "extern_uid": "s-1" }], "pipeline_id": "574",
            "pipeline_source": "push", "job_id": "302", "ref": "main", "ref_type": "branch",
            "ref_path": "refs/heads/main", "ref_protected": "true", "groups_direct": ["acme"],
            "environment": "production", "environment_protected": "false", "deployment_tier": "production",
            "runner_id": 1, "runner_environment": "self-hosted", "sha": "714a629c0b401fdce83e847fc9589983fc6f46bc",
            "project_visibility": "private",
            "ci_config_ref_uri": "gitlab.example/acme/shop//.gitlab-ci.yml@refs/heads/main",
            "ci_config_sha": "714a629c0b401fdce83e847fc9589983fc6f46bc", "jti": "235b3a54-b797-45c7-ae9a-f72d7bc6ef5b",
            "iss": self.url, "iat": NOW_S, "nbf": NOW_S - 5, "exp": NOW_S + 3600,
            "sub": "project_path:acme/shop:ref_type:branch:ref:main", "aud": "scafo",
        })
    }
}

type Shared = State<(String, Arc<Mutex<World>>)>;

async fn metadata(State((url, world)): Shared) -> Response {
    let manner = {
        let mut world = world.lock().unwrap();
        world.asked.0 += 1;
        world.metadata.clone()
    };
    let well = json!({
        "issuer": url, "jwks_uri": format!("{url}/jwks"), "id_token_signing_alg_values_supported": ALGORITHMS,
        "subject_types_supported": ["public"], "response_types_supported": ["id_token"],
    });
    answer(manner, &well).await
}

async fn jwks(State((_, world)): Shared) -> Response {
    let (manner, keys) = {
        let mut world = world.lock().unwrap();
        world.asked.1 += 1;
        (world.jwks.clone(), json!({ "keys": world.keys }))
    };
    answer(manner, &keys).await
}

async fn answer(manner: Manner, well: &Value) -> Response {
    let builder = Response::builder();
    match manner {
        Manner::Well => builder.header("content-type", "application/json").body(Body::from(well.to_string())),
        Manner::Status(status) => builder.status(status).body(Body::from(well.to_string())),
        Manner::Redirect(to) => builder.status(302).header("location", to).body(Body::empty()),
        Manner::Body(body) => builder.body(Body::from(body)),
        Manner::Silence => std::future::pending().await,
    }
    .unwrap()
}

enum Secret {
    Rsa(RsaKeyPair, &'static dyn RsaEncoding),
    Ec(EcdsaKeyPair, &'static str),
    P521(Box<p521::ecdsa::SigningKey>),
    Ed25519(Ed25519KeyPair),
}

/// One key of an issuer, for one algorithm.
pub(crate) struct Signer {
    pub(crate) algorithm: &'static str,
    pub(crate) kid: Option<&'static str>,
    secret: Secret,
}

impl Signer {
    /// A new key; of RSA there is one in the repository, because it takes long to make.
    pub(crate) fn new(algorithm: &'static str, kid: &'static str) -> Self {
        let (random, kid) = (SystemRandom::new(), Some(kid));
        let ec = |scheme, curve| {
            let pkcs8 = EcdsaKeyPair::generate_pkcs8(scheme, &random).unwrap();
            Secret::Ec(EcdsaKeyPair::from_pkcs8(scheme, pkcs8.as_ref(), &random).unwrap(), curve)
        };
        let rsa = |encoding| {
            let pkcs8 = include_bytes!("../fixtures/rsa-2048.test-only.pk8");
            Secret::Rsa(RsaKeyPair::from_pkcs8(pkcs8).unwrap(), encoding)
        };
        let secret = match algorithm {
            "RS256" => rsa(&scheme::RSA_PKCS1_SHA256),
            "RS384" => rsa(&scheme::RSA_PKCS1_SHA384),
            "RS512" => rsa(&scheme::RSA_PKCS1_SHA512),
            "PS256" => rsa(&scheme::RSA_PSS_SHA256),
            "PS384" => rsa(&scheme::RSA_PSS_SHA384),
            "PS512" => rsa(&scheme::RSA_PSS_SHA512),
            "ES256" => ec(&scheme::ECDSA_P256_SHA256_FIXED_SIGNING, "P-256"),
            "ES384" => ec(&scheme::ECDSA_P384_SHA384_FIXED_SIGNING, "P-384"),
            "ES512" => {
                let mut secret = [0; 66];
                ring::rand::SecureRandom::fill(&random, &mut secret[2..]).unwrap();
                Secret::P521(Box::new(p521::ecdsa::SigningKey::from_slice(&secret).unwrap()))
            }
            "EdDSA" | "Ed25519" => {
                let pkcs8 = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
                Secret::Ed25519(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
            }
            _ => panic!("no such algorithm: {algorithm}"),
        };
        Self { algorithm, kid, secret }
    }

    /// Its public half as a JWK.
    pub(crate) fn jwk(&self) -> Value {
        let mut jwk = match &self.secret {
            Secret::Rsa(pair, _) => {
                let public = scheme::RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({ "kty": "RSA", "n": encode(&public.n), "e": encode(&public.e) })
            }
            Secret::Ec(pair, curve) => ec(curve, pair.public_key().as_ref()),
            Secret::P521(key) => ec("P-521", key.verifying_key().to_sec1_point(false).as_ref()),
            Secret::Ed25519(pair) => json!({ "kty": "OKP", "crv": "Ed25519", "x": encode(pair.public_key().as_ref()) }),
        };
        jwk["use"] = "sig".into();
        jwk["alg"] = self.algorithm.into();
        if let Some(kid) = self.kid {
            jwk["kid"] = kid.into();
        }
        jwk
    }

    /// A token with the header that CI systems write.
    pub(crate) fn token(&self, claims: &Value) -> String {
        let mut header = json!({ "typ": "JWT", "alg": self.algorithm, "x5t": "eJ5Q0r8yWb3uXkz1Ca7Vd2hNf4M" });
        if let Some(kid) = self.kid {
            header["kid"] = kid.into();
        }
        self.token_with(&header, claims)
    }

    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> String {
        self.token_of(&header.to_string(), &claims.to_string())
    }

    /// Signs whatever stands in header and claims.
    pub(crate) fn token_of(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", encode(header.as_bytes()), encode(claims.as_bytes()));
        let signature = self.sign(signed.as_bytes());
        format!("{signed}.{}", encode(&signature))
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.secret {
            Secret::Rsa(pair, encoding) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(*encoding, &random, message, &mut signature).unwrap();
                signature
            }
            Secret::Ec(pair, _) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Secret::P521(key) => {
                let signature: p521::ecdsa::Signature = key.sign(message);
                signature.to_bytes().to_vec()
            }
            Secret::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }
}

fn ec(curve: &str, point: &[u8]) -> Value {
    let (x, y) = point[1..].split_at(point.len() / 2);
    json!({ "kty": "EC", "crv": curve, "x": encode(x), "y": encode(y) })
}

pub(crate) fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
