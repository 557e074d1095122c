//! What a process says that was told to look at its pointer (celld contract, section 3).

use http::StatusCode;
use scafo_core::text;
use serde::Deserialize;

/// What is kept of the text of a failed adoption: it ends in a record.
const MAX_ERROR_BYTES: usize = 2048;

/// What telling a process to look at its pointer brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reload {
    Adopted {
        version: String,
    },
    Unchanged {
        version: String,
    },
    /// The build failed; the old version keeps serving.
    Failed {
        version: String,
        error: String,
    },
    /// Not now: starting, draining, or no answer.
    Unavailable,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ReloadBody {
    outcome: Option<String>,
    version: Option<String>,
    error: Option<String>,
}

impl Reload {
    /// Reads the answer of `/reload` by its status first; the body is the runtime's and may change.
    pub(super) fn read(status: StatusCode, body: Option<&[u8]>) -> Self {
        let body: ReloadBody = body.and_then(|body| serde_json::from_slice(body).ok()).unwrap_or_default();
        let version = body.version.unwrap_or_default();
        let error = body.error.as_deref().map_or("", |error| text::head(error, MAX_ERROR_BYTES));
        match status {
            StatusCode::OK if body.outcome.as_deref() == Some("unchanged") => Self::Unchanged { version },
            StatusCode::OK => Self::Adopted { version },
            StatusCode::UNPROCESSABLE_ENTITY => Self::Failed { version, error: error.to_owned() },
            _ => {
                tracing::warn!(%status, error, "a process does not look at its pointer now");
                Self::Unavailable
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_422_is_a_failed_adoption() {
        let adopted = br#"{"ok":true,"outcome":"adopted","generation":2,"version":"v"}"#;
        assert_eq!(Reload::read(StatusCode::OK, Some(adopted)), Reload::Adopted { version: "v".to_owned() });
        let unchanged = br#"{"ok":true,"outcome":"unchanged","version":"v"}"#;
        assert_eq!(Reload::read(StatusCode::OK, Some(unchanged)), Reload::Unchanged { version: "v".to_owned() });
        let failed = br#"{"ok":false,"outcome":"failed","version":"v","error":"boom"}"#;
        let expected = Reload::Failed { version: "v".to_owned(), error: "boom".to_owned() };
        assert_eq!(Reload::read(StatusCode::UNPROCESSABLE_ENTITY, Some(failed)), expected);
        // Of a pointer that cannot be read the runtime knows no version.
        let unread = br#"{"ok":false,"outcome":"failed","version":null,"prefix":null,"error":"damaged"}"#;
        let expected = Reload::Failed { version: String::new(), error: "damaged".to_owned() };
        assert_eq!(Reload::read(StatusCode::UNPROCESSABLE_ENTITY, Some(unread)), expected);
        for status in [503, 500, 404, 405] {
            assert_eq!(Reload::read(StatusCode::from_u16(status).unwrap(), Some(failed)), Reload::Unavailable);
        }
    }
}
