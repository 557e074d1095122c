//! What a rule of a trust policy admits, and which issuers may be asked for their keys.

use std::net::IpAddr;

use crate::record::TrustRule;

impl TrustRule {
    /// Whether one of its patterns matches the subject of a token.
    pub fn admits_subject(&self, subject: &str) -> bool {
        self.subjects.iter().any(|pattern| matches(pattern, subject))
    }
}

/// Whether `pattern` matches all of `text`. `*` stands for any run of characters, none and separators included; everything
/// else stands for itself, byte for byte. There is no escape: an asterisk cannot be asked for.
///
/// Takes time in the length of both: what lies between two asterisks is searched for once, from the left, which finds a match
/// whenever there is one, because a later place for it would only leave less text to the rest.
pub fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut text) = text.strip_suffix(last) else { return false };
    for piece in middle.split('*') {
        let Some(at) = text.find(piece) else { return false };
        text = &text[at + piece.len()..];
    }
    true
}

/// Whether keys may be fetched from this URL: `https`, or plain `http` where nothing leaves the machine, which tests and
/// laboratories have. Without credentials, query and fragment.
pub fn is_fetchable(url: &str) -> bool {
    let (rest, plain) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => (rest, false),
        (None, Some(rest)) => (rest, true),
        (None, None) => return false,
    };
    let authority = rest.split('/').next().unwrap_or_default();
    // With an `@` the host would be another than it looks; a `\` is a `/` to some and not to others.
    let odd = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '?' | '#' | '\\');
    if authority.is_empty() || authority.contains('@') || url.contains(odd) {
        return false;
    }
    !plain || is_loopback(authority)
}

fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_asterisk_stands_for_any_run_and_everything_else_for_itself() {
        for (pattern, text, expected) in [
            ("repo:acme/shop:ref:refs/heads/main", "repo:acme/shop:ref:refs/heads/main", true),
            ("repo:acme/shop:ref:refs/heads/main", "repo:acme/shop:ref:refs/heads/main2", false),
            ("repo:acme/shop:ref:refs/heads/main", "repo:Acme/shop:ref:refs/heads/main", false),
            ("repo:acme/shop:*", "repo:acme/shop:", true),
            ("repo:acme/shop:*", "repo:acme/shop:environment:prod", true),
            ("repo:acme/shop:*", "repo:acme/shop-evil:ref", false),
            ("repo:acme/shop:*", "xrepo:acme/shop:ref", false),
            ("repo:acme/*:ref:refs/heads/main", "repo:acme/shop:ref:refs/heads/main", true),
            ("repo:acme/*:ref:refs/heads/main", "repo:acme/shop:ref:refs/heads/mainx", false),
            ("*", "", true),
            ("*", "anything", true),
            ("**", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("ab*ba", "aba", false),
            ("*a*b*", "xaxbx", true),
            ("*a*b*", "xbxax", false),
            ("*ab", "abab", true),
            ("a*b*c", "abc", true),
            ("a.c", "abc", false),
            ("a?c", "abc", false),
            ("[ab]", "a", false),
            ("ä*ü", "äöü", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn a_pattern_made_to_be_slow_is_not() {
        let pattern = "a*".repeat(256) + "b";
        assert!(!matches(&pattern, &"a".repeat(1 << 20)));
    }

    #[test]
    fn keys_come_over_tls_or_from_this_machine() {
        for (url, expected) in [
            ("https://token.actions.githubusercontent.com", true),
            ("https://gitlab.example:8443/ci", true),
            ("http://127.0.0.1:8080", true),
            ("http://[::1]:8080/x", true),
            ("http://localhost", true),
            ("http://issuer.example", false),
            ("http://10.0.0.1", false),
            ("http://127.0.0.1.example", false),
            ("http://127.0.0.1:80@issuer.example", false),
            ("https://user:word@issuer.example", false),
            ("https://", false),
            ("https:///path", false),
            ("https://issuer.example/?a", false),
            ("https://issuer.example/#a", false),
            ("http://127.0.0.1\\.issuer.example", false),
            ("https://issuer.example/ ", false),
            ("ftp://127.0.0.1", false),
            ("file:///etc/passwd", false),
            ("", false),
        ] {
            assert_eq!(is_fetchable(url), expected, "{url:?}");
        }
    }

    /// The definition, without any care for time.
    fn slow(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|skip| slow(rest, &text[skip..])),
            Some((c, rest)) => text.first() == Some(c) && slow(rest, &text[1..]),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_quick_matcher_agrees_with_the_definition(pattern in "[ab*é]{0,8}", text in "[abé]{0,10}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(matches(&pattern, &text), slow(&chars(&pattern), &chars(&text)));
        }

        #[test]
        fn no_url_makes_it_panic(url in "(https?://)?.{0,40}") {
            let _ = is_fetchable(&url);
        }
    }
}
