//! Names and ids. Having a value of one of these types proves that it was checked.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::hex::is_lower_hex;
use crate::problem::{Problem, ProblemCode};

/// Longest DNS label (RFC 1035 §2.3.4); application, node and operator names share it.
const LABEL_MAX: usize = 63;
/// Longest version string that celld may assign (today it assigns 16 hexadecimal digits).
const VERSION_MAX: usize = 128;
/// Hexadecimal digits of the random half of a deploy id.
const DEPLOY_DIGITS: usize = 16;

macro_rules! checked_string {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Problem;

            fn try_from(text: String) -> Result<Self, Problem> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

checked_string!(
    /// An application's name: a DNS label, since it becomes one under every platform domain.
    ApplicationName
);
checked_string!(
    /// A node's id. Node and operator ids share one keyspace.
    NodeId
);
checked_string!(
    /// An operator key's id. Node and operator ids share one keyspace.
    OperatorId
);
checked_string!(
    /// One attempt to deploy: `<application>.<16 hexadecimal digits>`.
    DeployId
);
checked_string!(
    /// The version that celld gave to what it published. A content id: it can come again.
    DeploymentVersion
);

impl FromStr for ApplicationName {
    type Err = Problem;

    /// # Errors
    /// `invalid-slug` when the text is no DNS label.
    fn from_str(text: &str) -> Result<Self, Problem> {
        if is_label(text) {
            return Ok(Self(text.to_owned()));
        }
        Err(Problem::new(
            ProblemCode::InvalidSlug,
            format!("{} is not an application name: 1 to 63 of a-z, 0-9 and inner hyphens", quoted(text)),
        ))
    }
}

impl FromStr for NodeId {
    type Err = Problem;

    /// # Errors
    /// `invalid-input` when the text is no id.
    fn from_str(text: &str) -> Result<Self, Problem> {
        identity(text, "a node id").map(Self)
    }
}

impl FromStr for OperatorId {
    type Err = Problem;

    /// # Errors
    /// `invalid-input` when the text is no id.
    fn from_str(text: &str) -> Result<Self, Problem> {
        identity(text, "an operator id").map(Self)
    }
}

impl FromStr for DeployId {
    type Err = Problem;

    /// # Errors
    /// `not-found` when the text is no deploy id: such an id names no deploy.
    fn from_str(text: &str) -> Result<Self, Problem> {
        let halves = text.rsplit_once('.');
        if halves.is_some_and(|(name, digits)| is_label(name) && is_lower_hex(digits, DEPLOY_DIGITS)) {
            return Ok(Self(text.to_owned()));
        }
        Err(Problem::new(ProblemCode::NotFound, "no deploy has this id"))
    }
}

impl DeployId {
    /// The id of a new deploy of `application`, from 64 random bits.
    pub fn new(application: &ApplicationName, random: u64) -> Self {
        Self(format!("{application}.{random:016x}"))
    }

    /// The application that the id names.
    pub fn application(&self) -> ApplicationName {
        let (name, _) = self.0.rsplit_once('.').unwrap_or((&self.0, ""));
        ApplicationName(name.to_owned())
    }
}

impl FromStr for DeploymentVersion {
    type Err = Problem;

    /// # Errors
    /// `invalid-input` when the text could not stand in a key as one segment.
    fn from_str(text: &str) -> Result<Self, Problem> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let shaped = (1..=VERSION_MAX).contains(&text.len()) && text.bytes().all(legal);
        if shaped && text != "." && text != ".." {
            return Ok(Self(text.to_owned()));
        }
        Err(Problem::new(ProblemCode::InvalidInput, format!("{} is not a deployment version", quoted(text))))
    }
}

impl NodeId {
    /// The nearest legal id to a host name: lower case, other characters as hyphens, cut to length; `node` when nothing
    /// is left.
    pub fn from_host_name(host: &str) -> Self {
        let spelled: String = host
            .chars()
            .map(|c| c.to_ascii_lowercase())
            .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
            .take(LABEL_MAX)
            .collect();
        let trimmed = spelled.trim_matches('-');
        Self(if trimmed.is_empty() { "node".to_owned() } else { trimmed.to_owned() })
    }
}

/// Whether `text` is a lower-case DNS label (RFC 1123 §2.1): 1–63 of `[a-z0-9-]`, alphanumeric at both ends.
pub fn is_label(text: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    bytes.len() <= LABEL_MAX
        && alphanumeric(first)
        && alphanumeric(last)
        && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
}

fn identity(text: &str, what: &str) -> Result<String, Problem> {
    if is_label(text) {
        return Ok(text.to_owned());
    }
    Err(Problem::new(
        ProblemCode::InvalidInput,
        format!("{} is not {what}: 1 to 63 of a-z, 0-9 and inner hyphens", quoted(text)),
    ))
}

/// What the caller wrote, shortened and escaped so that it can stand in a message.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN: usize = 80;
    let cut: String = text.chars().take(SHOWN).collect();
    let more = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_name_is_a_dns_label() {
        let longest = "a".repeat(63);
        for good in ["a", "shop", "shop-2", "0", "a--b", longest.as_str()] {
            assert!(good.parse::<ApplicationName>().is_ok(), "{good}");
        }
        let long = "a".repeat(64);
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "ä", "a b", "../x", long.as_str(), "a\n"] {
            let refused = bad.parse::<ApplicationName>().unwrap_err();
            assert_eq!(refused.code, ProblemCode::InvalidSlug, "{bad}");
        }
    }

    #[test]
    fn a_deploy_id_names_its_application() {
        let shop: ApplicationName = "shop-2".parse().unwrap();
        let id = DeployId::new(&shop, 0xab);
        assert_eq!(id.as_str(), "shop-2.00000000000000ab");
        assert_eq!(id.application(), shop);
        assert_eq!(id.as_str().parse::<DeployId>().unwrap(), id);
    }

    #[test]
    fn what_is_no_deploy_id_is_not_found() {
        for bad in ["", "shop", "shop.12", "shop.00000000000000AB", ".00000000000000ab", "a/b.00000000000000ab"] {
            assert_eq!(bad.parse::<DeployId>().unwrap_err().code, ProblemCode::NotFound, "{bad}");
        }
    }

    #[test]
    fn a_version_is_never_a_path() {
        for bad in ["", ".", "..", "a/b", "a b", "ä"] {
            assert!(bad.parse::<DeploymentVersion>().is_err(), "{bad}");
        }
        assert!("0123456789abcdef".parse::<DeploymentVersion>().is_ok());
    }

    #[test]
    fn a_host_name_becomes_a_legal_node_id() {
        for (host, id) in [("Web-1.example", "web-1-example"), ("___", "node"), ("é", "node"), ("a.", "a")] {
            assert_eq!(NodeId::from_host_name(host).as_str(), id);
            assert!(is_label(id));
        }
    }
}
