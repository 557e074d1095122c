//! The host of a request, in the one form that the documents use.

/// A host name as a document spells it: lower case, no port, no trailing dot. Having one proves that it can be looked
/// up: it is no pattern and no IPv6 literal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Host(String);

/// Longest name (RFC 1035 §2.3.4, in its text form).
const LONGEST: usize = 253;

impl Host {
    /// Reads a `Host` field or the authority of a target (RFC 9110 §7.2). `None` for what no document can name, which is
    /// then a host that nobody serves.
    ///
    /// One trailing dot is taken off: `shop.example.` is the same name written as absolute (RFC 1034 §3.1). A second one
    /// makes it no name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (name, port) = text.split_once(':').unwrap_or((text, ""));
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        let named = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
        let whole = (1..=LONGEST).contains(&name.len()) && !name.starts_with('.') && !name.ends_with('.');
        (named && whole).then(|| Self(name.to_ascii_lowercase()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::Host;

    #[test]
    fn case_port_and_one_trailing_dot_do_not_count() {
        let same = [
            "a.shop.example",
            "A.SHOP.EXAMPLE",
            "a.shop.example:8443",
            "a.shop.example.",
            "a.shop.example.:80",
            "a.shop.example:",
        ];
        for text in same {
            assert_eq!(Host::parse(text).unwrap().as_str(), "a.shop.example", "{text}");
        }
    }

    #[test]
    fn what_no_document_can_name_is_no_host() {
        let long = format!("{}.example", "a".repeat(250));
        for text in [
            "",
            ".",
            "..",
            ":80",
            ".shop.example",
            "shop.example..",
            "*.shop.example",
            "[::1]:80",
            "::1",
            "a b",
            "a/b",
            "a:b",
            "ä.example",
            "a%2eb",
            &long,
        ] {
            assert_eq!(Host::parse(text), None, "{text}");
        }
    }
}
