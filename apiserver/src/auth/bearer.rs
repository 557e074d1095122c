//! The `Authorization` header (RFC 6750 §2.1, RFC 9110 §11.1).

use http::HeaderMap;
use http::header::AUTHORIZATION;

/// The token of the one `Authorization: Bearer` header. The scheme's case does not matter and one or more spaces follow it.
pub(super) fn token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    if values.next().is_some() {
        return None;
    }
    let (scheme, rest) = value.split_once(' ')?;
    let token = rest.trim_matches(' ');
    let shaped = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case("bearer") && shaped).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&'static str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        token(&headers).map(ToOwned::to_owned)
    }

    #[test]
    fn the_scheme_is_read_in_any_case_and_with_more_than_one_space() {
        for good in ["Bearer abc", "bearer abc", "BEARER abc", "Bearer   abc"] {
            assert_eq!(read(&[good]).as_deref(), Some("abc"), "{good}");
        }
    }

    #[test]
    fn anything_else_is_no_token() {
        for bad in [&[][..], &["Bearer"], &["Bearer "], &["Basic abc"], &["Bearerabc"], &["Bearer a b"], &["abc"]] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        assert_eq!(read(&["Bearer abc", "Bearer abc"]), None);
    }
}
