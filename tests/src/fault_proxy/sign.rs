//! A new signature for a request that the proxy changed (AWS Signature Version 4, in headers).

use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PercentEncodingMode, SignableBody, SignableRequest, SigningSettings, UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4;
use http::{HeaderName, Request, header};
use scafo_core::settings::BucketAccess;

use super::body::BoxError;

const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";

/// Who signs.
pub(super) struct Signer {
    credentials: Credentials,
    region: String,
}

impl Signer {
    pub(super) fn new(access: &BucketAccess) -> Self {
        let token = access.session_token.as_ref().map(|token| token.expose().to_owned());
        let secret = access.secret_access_key.expose();
        let credentials = Credentials::new(&access.access_key_id, secret, token, None, "fault-proxy");
        Self { credentials, region: access.region.clone() }
    }

    /// Replaces the signature of `request`, whose `Host` stays. The hash of its body is the one that it came with.
    ///
    /// # Errors
    /// A body that is signed chunk by chunk, since each chunk's signature rests on that of the head.
    pub(super) fn sign<B>(&self, request: &mut Request<B>) -> Result<(), BoxError> {
        let headers = request.headers_mut();
        for stale in [header::AUTHORIZATION, HeaderName::from_static("x-amz-date")] {
            headers.remove(stale);
        }
        headers.remove("x-amz-security-token");
        let hash = headers.entry(CONTENT_SHA256).or_insert(header::HeaderValue::from_static(UNSIGNED));
        let hash = hash.to_str()?.to_owned();
        if hash.starts_with("STREAMING-AWS4") {
            return Err("a body that is signed in chunks cannot be signed anew".into());
        }
        let host = request.headers().get(header::HOST).ok_or("a request without a host")?.to_str()?;
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let uri = format!("http://{host}{path}");
        let mut settings = SigningSettings::default();
        // The two ways in which S3 differs from AWS's other services.
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        let identity = self.credentials.clone().into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name("s3")
            .time(SystemTime::now())
            .settings(settings)
            .build()?
            .into();
        let signed: Result<Vec<(&str, &str)>, _> =
            request.headers().iter().map(|(name, value)| Ok((name.as_str(), value.to_str()?))).collect();
        let signed = signed.map_err(|error: header::ToStrError| error.to_string())?;
        let signable =
            SignableRequest::new(request.method().as_str(), uri, signed.into_iter(), SignableBody::Precomputed(hash))?;
        let (instructions, _) = sign(signable, &params)?.into_parts();
        instructions.apply_to_request_http1x(request);
        Ok(())
    }
}
