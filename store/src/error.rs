//! Why a call to the bucket gave no result.

use std::{fmt, sync::Arc};

use scafo_core::{Problem, ProblemCode};

/// Title of the violation of If-Match or If-None-Match.
pub const TITLE_CONDITIONS: &str = "Store does not honour conditional writes";
/// Title of the violation of `Range`.
pub const TITLE_RANGES: &str = "Store does not honour ranged reads";
/// Title of an answer or a listing without ETags, or with others than those of GET and PUT.
pub const TITLE_ETAGS: &str = "Store does not answer with ETags";
/// Title of a listing that leaves keys out.
pub const TITLE_LISTING: &str = "Store cuts listings short";
/// Title of a store that loses `x-amz-meta-…` headers.
pub const TITLE_METADATA: &str = "Store does not keep user metadata";
/// Title of the problem for an object that is larger than was to be read.
pub const TITLE_TOO_LARGE: &str = "Object too large";

/// What happened underneath, for the log alone: it may name an endpoint.
#[derive(Clone, PartialEq, Eq)]
pub struct Cause(Arc<str>);

impl Cause {
    /// A cause in words.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into().into())
    }

    /// `error` and the chain below it, one line.
    #[must_use]
    pub fn from_chain(error: &dyn std::error::Error) -> Self {
        let mut text = error.to_string();
        let mut below = error.source();
        while let Some(error) = below {
            let next = error.to_string();
            // Some layers print their source themselves.
            if !text.ends_with(&next) {
                text.push_str(": ");
                text.push_str(&next);
            }
            below = error.source();
        }
        Self::new(text)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// Why a read gave no answer, or a write was certainly not done.
///
/// A write whose end nobody knows is no error but [`Put::Unknown`](crate::Put::Unknown).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No answer, a broken one, or a 5xx: worth another try.
    #[error("the bucket does not answer ({operation} {key})")]
    Unavailable {
        /// What was asked.
        operation: &'static str,
        /// Of which key or prefix.
        key: String,
        /// For the log.
        cause: Cause,
    },
    /// The store asks for less haste (429, 503 `SlowDown`): worth another try, later.
    #[error("the bucket is busy ({operation} {key})")]
    Busy {
        /// What was asked.
        operation: &'static str,
        /// Of which key or prefix.
        key: String,
    },
    /// 401 or 403.
    #[error("the bucket refuses these credentials ({code}): check the access key, its secret and its policy")]
    Denied {
        /// The store's own code, such as `SignatureDoesNotMatch`.
        code: String,
    },
    /// The store refuses the signature's time.
    #[error("the clock of this machine and that of the bucket are {} apart: set this machine's clock (NTP)", apart(*.ahead_s))]
    ClockSkewed {
        /// Seconds that this machine is ahead of the store (negative: behind), where the answer had a `Date`.
        ahead_s: Option<i64>,
    },
    /// The bucket lives elsewhere.
    #[error("the bucket is in {}: set `bucket.region` to that", region.as_deref().unwrap_or("another region"))]
    WrongRegion {
        /// The region that the store named.
        region: Option<String>,
    },
    /// There is no such bucket.
    #[error("the bucket does not exist at this endpoint: create it, or check `bucket.name`")]
    NoSuchBucket,
    /// The store breaks a rule without which scafo cannot keep its promises.
    #[error("{title}: {detail}")]
    Nonconforming {
        /// One of the titles of this module.
        title: &'static str,
        /// What was seen.
        detail: String,
    },
    /// The object is larger than the reader takes.
    #[error("`{key}` has {size} bytes, more than the {limit} that are read")]
    TooLarge {
        /// The object.
        key: String,
        /// Its size in bytes, as far as it is known.
        size: u64,
        /// The reader's limit in bytes.
        limit: u64,
    },
    /// A request could not even be built from the settings.
    #[error("the bucket's settings cannot be used: check `bucket.name`, `bucket.endpoint` and `bucket.region`")]
    Misconfigured {
        /// For the log.
        cause: Cause,
    },
    /// Any other refusal (4xx, 501).
    #[error("the bucket refuses {operation} of `{key}` ({code})")]
    Rejected {
        /// What was asked.
        operation: &'static str,
        /// Of which key or prefix.
        key: String,
        /// The store's code or status.
        code: String,
    },
}

impl Error {
    /// Whether the same call may succeed a moment later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Busy { .. } => true,
            Self::Denied { .. }
            | Self::ClockSkewed { .. }
            | Self::WrongRegion { .. }
            | Self::NoSuchBucket
            | Self::Nonconforming { .. }
            | Self::TooLarge { .. }
            | Self::Misconfigured { .. }
            | Self::Rejected { .. } => false,
        }
    }

    /// What the log gets beside the message.
    #[must_use]
    pub const fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Unavailable { cause, .. } | Self::Misconfigured { cause } => Some(cause),
            Self::Busy { .. }
            | Self::Denied { .. }
            | Self::ClockSkewed { .. }
            | Self::WrongRegion { .. }
            | Self::NoSuchBucket
            | Self::Nonconforming { .. }
            | Self::TooLarge { .. }
            | Self::Rejected { .. } => None,
        }
    }

    pub(crate) fn nonconforming(title: &'static str, detail: impl Into<String>) -> Self {
        Self::Nonconforming { title, detail: detail.into() }
    }
}

impl From<Error> for Problem {
    /// What a caller of scafo reads about it. A store that refuses us is `store-unavailable` too: to the caller it is a
    /// bucket that gives nothing, and the detail tells the operator what to set right.
    fn from(error: Error) -> Self {
        let detail = error.to_string();
        let cause = error.cause().cloned();
        let problem = match error {
            Error::Nonconforming { title, detail } => {
                Problem::new(ProblemCode::StoreNonconforming, detail).titled(title)
            }
            Error::TooLarge { .. } => Problem::new(ProblemCode::StoreNonconforming, detail).titled(TITLE_TOO_LARGE),
            Error::Unavailable { .. }
            | Error::Busy { .. }
            | Error::Denied { .. }
            | Error::ClockSkewed { .. }
            | Error::WrongRegion { .. }
            | Error::NoSuchBucket
            | Error::Misconfigured { .. }
            | Error::Rejected { .. } => Problem::new(ProblemCode::StoreUnavailable, detail),
        };
        match cause {
            Some(cause) => problem.because(cause),
            None => problem,
        }
    }
}

fn apart(ahead_s: Option<i64>) -> String {
    match ahead_s {
        Some(s) if s >= 0 => format!("{s} s (this one ahead)"),
        Some(s) => format!("{} s (this one behind)", s.unsigned_abs()),
        None => "too far".to_owned(),
    }
}
