//! Which bucket a command works on, and whether the stand-in may touch it at all.

use std::{fmt, sync::Arc};

use scafo_core::settings::{BucketAccess, Secret};
use scafo_store::{Bucket, S3Bucket};

use crate::{
    Failure,
    args::StoreOptions,
    environment::Environment,
    failure::{Context, Outcome},
};

/// The bucket of one fleet.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    pub bucket: Arc<dyn Bucket>,
    /// How people call it.
    pub name: Location,
}

/// `s3://NAME/PREFIX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    name: String,
    /// Without slashes at its ends; may be empty.
    prefix: String,
}

impl Location {
    /// Reads `[s3://]NAME[/PREFIX]`.
    ///
    /// # Errors
    /// Another scheme, no name, or characters that a prefix cannot have.
    pub(crate) fn parse(text: &str) -> Outcome<Self> {
        let refused = |why: &str| Failure::new(format!("--bucket is {text:?}: {why}"));
        let rest = match text.split_once("://") {
            None => text,
            Some(("s3", rest)) => rest,
            Some((scheme, _)) => return Err(refused(&format!("the stand-in speaks S3 only, not {scheme}"))),
        };
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let legal_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let legal_prefix = |byte: u8| legal_name(byte) || byte == b'/';
        if name.is_empty() || !name.bytes().all(legal_name) {
            return Err(refused("write [s3://]NAME[/PREFIX]"));
        }
        let prefix = prefix.trim_matches('/');
        if !prefix.bytes().all(legal_prefix) {
            return Err(refused("a prefix is made of letters, digits, `-`, `_`, `.` and `/`"));
        }
        Ok(Self { name: name.to_owned(), prefix: prefix.to_owned() })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.name)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

/// The bucket that options and environment name, or `None` where they name none.
///
/// # Errors
/// A name that does not parse, missing credentials, or a bucket that nobody set aside for a stand-in: its documents look
/// like celld's, so on the wrong bucket it would publish and lease on behalf of a real fleet.
pub(crate) fn open(options: &StoreOptions, environment: &Environment) -> Outcome<Option<Fleet>> {
    let given = |option: &Option<String>, variables: &[&str]| {
        let option = option.as_deref().map(str::trim).filter(|value| !value.is_empty());
        option.or_else(|| variables.iter().find_map(|name| environment.text(name))).map(str::to_owned)
    };
    let Some(text) = given(&options.bucket, &["CELLD_BUCKET"]) else { return Ok(None) };
    let location = Location::parse(&text)?;
    if !environment.flag("CELLD_STANDIN_EMBEDDED") && !environment.flag("CELLD_STANDIN_ALLOW_BUCKET") {
        return Err(Failure::new(format!(
            "{location} is not the embedded store: this is a development stand-in, which works on other buckets only with \
             CELLD_STANDIN_ALLOW_BUCKET=1; never allow it on a bucket of a real fleet"
        )));
    }
    let endpoint = given(&options.endpoint, &["S3_ENDPOINT", "AWS_ENDPOINT_URL"]);
    let region = given(&options.region, &["AWS_REGION", "AWS_DEFAULT_REGION"]);
    let credential = |name: &str| {
        environment.text(name).map(str::to_owned).context(|| format!("{name} is not set: {location} needs it"))
    };
    let access = BucketAccess {
        name: location.name.clone(),
        prefix: location.prefix.clone(),
        path_style: endpoint.is_some(),
        endpoint,
        region: region.unwrap_or_else(|| "us-east-1".to_owned()),
        access_key_id: credential("AWS_ACCESS_KEY_ID")?,
        secret_access_key: Secret::new(credential("AWS_SECRET_ACCESS_KEY")?),
        session_token: environment.text("AWS_SESSION_TOKEN").map(Secret::new),
    };
    Ok(Some(Fleet { bucket: Arc::new(S3Bucket::new(&access)), name: location }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Environment {
        Environment::from_iter([
            ("CELLD_STANDIN_ALLOW_BUCKET", "1"),
            ("AWS_ACCESS_KEY_ID", "k"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
        ])
    }

    fn named(bucket: &str) -> StoreOptions {
        StoreOptions { bucket: Some(bucket.into()), ..StoreOptions::default() }
    }

    #[test]
    fn a_bare_name_is_s3_and_other_schemes_are_refused() {
        for (text, shown) in [("b", "s3://b"), ("s3://b/p/q/", "s3://b/p/q"), ("b//fleets/shop", "s3://b/fleets/shop")]
        {
            assert_eq!(Location::parse(text).unwrap().to_string(), shown);
        }
        for text in ["gs://b", "az://b", "", "s3://", "/p", "b/p q", "b/ü"] {
            assert!(Location::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_bucket_that_nobody_set_aside_is_refused() {
        let refusal = open(&named("shop"), &Environment::default()).unwrap_err().chain();
        assert!(refusal.contains("CELLD_STANDIN_ALLOW_BUCKET"), "{refusal}");
        assert!(open(&named("shop"), &allowed()).unwrap().is_some());
    }

    #[test]
    fn no_bucket_is_no_error_but_missing_credentials_are() {
        assert!(open(&StoreOptions::default(), &Environment::default()).unwrap().is_none());
        let environment = Environment::from_iter([("CELLD_STANDIN_EMBEDDED", "1")]);
        assert!(open(&named("b"), &environment).unwrap_err().chain().contains("AWS_ACCESS_KEY_ID"));
    }
}
