//! A client of the node API that signs a fresh token for each request.

use std::time::SystemTime;

use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::DecodePrivateKey as _;
use reqwest::{Client, Method, RequestBuilder};
use scafo_core::{Timestamp, token};
use serde_json::Value;

use crate::{Dev, load};

/// A caller of the API.
#[derive(Clone)]
pub struct Api {
    base: String,
    operator: String,
    key: SigningKey,
    ingress_token: String,
    client: Client,
}

impl Api {
    /// The operator of a node.
    ///
    /// # Panics
    /// When its files cannot be read.
    pub fn of(dev: &Dev) -> Self {
        let pem = std::fs::read_to_string(&dev.operator_key).expect("the operator's key");
        let token = std::fs::read_to_string(&dev.ingress_token_file).expect("the ingress token");
        Self {
            base: dev.api.clone(),
            operator: dev.operator_id.clone(),
            key: SigningKey::from_pkcs8_pem(&pem).expect("a PKCS#8 key"),
            ingress_token: token.trim().to_owned(),
            client: load::client(),
        }
    }

    /// A fresh token of the operator.
    pub fn token(&self) -> String {
        self.token_at(Timestamp::from_system(SystemTime::now()))
    }

    /// A token that was signed at another time.
    pub fn token_at(&self, now: Timestamp) -> String {
        token::sign(&self.key, &self.operator, now, rand::random())
    }

    /// A request with a bearer token.
    pub fn with_token(&self, method: Method, path: &str, token: &str) -> RequestBuilder {
        self.bare(method, path).bearer_auth(token)
    }

    /// A request without any token.
    pub fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    /// A request of the operator.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.with_token(method, path, &self.token())
    }

    /// A GET of an ingress.
    pub fn ingress(&self, path: &str) -> RequestBuilder {
        self.ingress_with(Method::GET, path)
    }

    /// A request of an ingress.
    pub fn ingress_with(&self, method: Method, path: &str) -> RequestBuilder {
        self.with_token(method, path, &self.ingress_token)
    }

    /// Status and body of a GET of the operator.
    ///
    /// # Errors
    /// When there is no answer, or no JSON in it.
    pub async fn get(&self, path: &str) -> reqwest::Result<(u16, Value)> {
        let answer = self.request(Method::GET, path).send().await?;
        Ok((answer.status().as_u16(), answer.json().await?))
    }
}
