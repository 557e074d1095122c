//! Hosts: the claim rule for custom domains, and platform domains.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{ApplicationName, quoted};
use crate::problem::{Problem, ProblemCode};

/// Longest host name (RFC 1035 §2.3.4, without the trailing dot).
const HOST_MAX: usize = 253;
const LABEL_MAX: usize = 63;

/// A fully qualified, lower-case host that may be claimed. No wildcard, port, scheme, path, trailing dot or underscore.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Host(String);

impl Host {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is `base` or lies below it.
    pub fn is_under(&self, base: &str) -> bool {
        self.0 == base || self.0.strip_suffix(base).is_some_and(|rest| rest.ends_with('.'))
    }

    /// The host one label up, when that is a host too.
    pub fn parent(&self) -> Option<Self> {
        self.0.split_once('.').and_then(|(_, rest)| rest.parse().ok())
    }
}

impl FromStr for Host {
    type Err = Problem;

    /// Lower-cases, then holds the text to the claim rule.
    ///
    /// # Errors
    /// `invalid-input` naming the rule that it breaks.
    fn from_str(text: &str) -> Result<Self, Problem> {
        let host = text.to_ascii_lowercase();
        match broken_rule(&host) {
            None => Ok(Self(host)),
            Some(rule) => {
                Err(Problem::new(ProblemCode::InvalidInput, format!("{} is not a host to claim: {rule}", quoted(text))))
            }
        }
    }
}

fn broken_rule(host: &str) -> Option<&'static str> {
    if host.len() > HOST_MAX {
        return Some("it is longer than 253 characters");
    }
    let labels: Vec<&str> = host.split('.').collect();
    if labels.len() < 2 {
        return Some("it needs at least two labels");
    }
    for label in &labels {
        if !(1..=LABEL_MAX).contains(&label.len()) {
            return Some("each label has 1 to 63 characters, and there is no trailing dot");
        }
        if !label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
            return Some("a label is made of a-z, 0-9 and hyphens (no wildcard, port, scheme, path or underscore)");
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Some("no label starts or ends with a hyphen");
        }
    }
    let last_is_numeric = labels.last().is_some_and(|label| label.bytes().all(|b| b.is_ascii_digit()));
    last_is_numeric.then_some("the last label is not all digits")
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Host {
    type Error = Problem;

    fn try_from(text: String) -> Result<Self, Problem> {
        text.parse()
    }
}

impl From<Host> for String {
    fn from(host: Host) -> Self {
        host.0
    }
}

/// Where an application answers under one platform domain.
pub fn platform_host(application: &ApplicationName, domain: &Host) -> String {
    format!("{application}.{domain}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_claim_rule_passes() {
        for good in ["shop.example", "xn--mnchen-3ya.de", "EXAMPLE.com", "a.b.c.d", "dev.localhost"] {
            assert!(good.parse::<Host>().is_ok(), "{good}");
        }
        let long_label = format!("{}.de", "a".repeat(64));
        let long_host = format!("{}de", "abc.".repeat(63));
        for bad in [
            "münchen.de",
            "example.com.",
            "ex_ample.com",
            "1.2.3.4",
            "example.123",
            "a..b",
            "-a.b",
            "a-.b",
            "*.shop.example",
            "shop.example:443",
            "localhost",
            "",
            "http://a.b",
            "a.b/c",
            "a`.b",
            "a.b)",
            "a.b\n",
            &long_label,
            &long_host,
        ] {
            assert_eq!(bad.parse::<Host>().map_err(|p| p.code), Err(ProblemCode::InvalidInput), "{bad}");
        }
        assert_eq!("EXAMPLE.com".parse::<Host>().unwrap().as_str(), "example.com");
    }

    #[test]
    fn under_means_at_a_label_boundary() {
        let host: Host = "a.apps.example".parse().unwrap();
        assert!(host.is_under("apps.example") && host.is_under("a.apps.example"));
        assert!(!host.is_under("pps.example") && !host.is_under("b.a.apps.example"));
    }

    mod properties {
        use proptest::prelude::*;

        use super::*;
        use crate::fuzz;

        /// Near hosts: labels of what may and may not stand in them, and what may stand around a host.
        fn text() -> impl Strategy<Value = String> {
            let label =
                prop_oneof!["[a-z0-9]{1,4}", "[A-Za-z0-9-]{0,6}", "[0-9]{1,3}", "[a-z]{62,64}", "[a-z_*%: /é]{0,3}"];
            let near = prop::collection::vec(label, 0..6).prop_map(|labels| labels.join("."));
            prop_oneof![4 => near, 1 => ".{0,20}", 1 => "[a-z]{1,63}(\\.[a-z]{1,63}){3,5}"]
        }

        /// The claim rule once more, in the order of its words.
        fn is_claimable(host: &str) -> bool {
            let labels: Vec<_> = host.split('.').collect();
            let right = |label: &str| {
                let inner = label.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '-'));
                inner && (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
            };
            host.len() <= 253
                && labels.len() >= 2
                && labels.iter().all(|label| right(label))
                && !labels.iter().last().is_some_and(|label| label.chars().all(|c| c.is_ascii_digit()))
        }

        #[test]
        fn a_host_is_read_exactly_when_the_claim_rule_says_so() {
            fuzz::holds(2000, &text(), |text| {
                let lower = text.to_ascii_lowercase();
                match text.parse::<Host>() {
                    Ok(host) => {
                        prop_assert!(is_claimable(&lower), "{text:?}");
                        prop_assert_eq!(host.as_str(), lower.as_str());
                        prop_assert_eq!(host.to_string().parse::<Host>().unwrap(), host);
                    }
                    Err(problem) => {
                        prop_assert!(!is_claimable(&lower), "{text:?}");
                        prop_assert_eq!(problem.code, ProblemCode::InvalidInput);
                        prop_assert!(problem.detail.len() < 700 && !problem.detail.contains('\n'));
                    }
                }
                Ok(())
            });
        }

        const WORDS: [&str; 14] = [
            ".",
            "..",
            "-",
            "*.",
            "xn--",
            "_",
            ":443",
            "/",
            "%2e",
            "0",
            "127.0.0.1",
            "\u{130}",
            "\u{ad}",
            "abcdefghijklmnopqrstuvwxyz012345",
        ];

        #[test]
        fn what_became_of_a_host_is_read_exactly_when_the_claim_rule_says_so() {
            fuzz::holds(2000, &fuzz::mutated("host", &WORDS), |input| {
                let text = String::from_utf8_lossy(&input);
                let read = text.parse::<Host>().is_ok_and(|host| host.as_str() == text.to_ascii_lowercase());
                prop_assert_eq!(read, is_claimable(&text.to_ascii_lowercase()), "{:?}", text);
                Ok(())
            });
        }

        #[test]
        fn a_host_lies_under_itself_and_its_parents_and_nothing_else() {
            fuzz::holds(2000, &(text(), text()), |(a, b)| {
                let (Ok(a), Ok(b)) = (a.parse::<Host>(), b.parse::<Host>()) else { return Ok(()) };
                prop_assert!(a.is_under(a.as_str()));
                let below: Host = match format!("x.{a}").parse() {
                    Ok(below) => below,
                    Err(_) => return Ok(()),
                };
                prop_assert!(below.is_under(a.as_str()) && !a.is_under(below.as_str()));
                prop_assert_eq!(below.parent(), Some(a.clone()));
                let labels_end_alike = format!(".{a}").ends_with(&format!(".{b}"));
                prop_assert_eq!(a.is_under(b.as_str()), labels_end_alike);
                Ok(())
            });
        }
    }
}
