//! Whether a path is one of the denied ones, however it is spelled.
//!
//! Who reads the path behind us may decode it, collapse slashes or resolve dots, or none of that. So a path counts as
//! denied if any of these readings is.

use scafo_core::routing::is_denied;

/// Is `path` (the raw path of a target) under one of `prefixes` in any reading?
///
/// Readings: percent-decoded until nothing is left to decode, backslashes as slashes, empty segments dropped, and dot
/// segments (RFC 3986 §5.2.4) both resolved and only dropped where they are `.`.
pub(crate) fn is_denied_in_any_spelling(path: &str, prefixes: &[String]) -> bool {
    if prefixes.is_empty() {
        return false;
    }
    let decoded = decoded_fully(path.as_bytes());
    let text = String::from_utf8_lossy(&decoded);
    let mut written: Vec<&str> = Vec::new();
    let mut resolved: Vec<&str> = Vec::new();
    for segment in text.split(['/', '\\']) {
        match segment {
            "" | "." => {}
            ".." => {
                written.push(segment);
                resolved.pop();
            }
            _ => {
                written.push(segment);
                resolved.push(segment);
            }
        }
    }
    [written, resolved].iter().any(|segments| is_denied(&format!("/{}", segments.join("/")), prefixes))
}

/// Decodes escapes (RFC 3986 §2.1), and escapes that decoding has made, in one pass: a byte can only complete an escape
/// whose other bytes stand right before it. What is no escape stays as it is.
fn decoded_fully(path: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    for &byte in path {
        out.push(byte);
        while let [.., b'%', high, low] = out[..] {
            if !high.is_ascii_hexdigit() || !low.is_ascii_hexdigit() {
                break;
            }
            out.truncate(out.len() - 3);
            out.push(hex(high) * 16 + hex(low));
        }
    }
    out
}

/// The value of a hexadecimal digit; of nothing else, as the caller has checked.
fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20).wrapping_sub(b'a').wrapping_add(10),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use scafo_core::routing::DENIED;

    use super::is_denied_in_any_spelling;

    fn denied(path: &str) -> bool {
        is_denied_in_any_spelling(path, &DENIED.map(str::to_owned))
    }

    #[test]
    fn a_denied_path_is_denied_however_it_is_spelled() {
        for path in [
            "/v1/storage",
            "/v1/storage/",
            "/v1/storage/objects/x",
            "/v1//storage",
            "//v1/storage",
            "/v1/./storage",
            "/v1/x/../storage",
            "/v1/storage/../applications",
            "/../v1/storage",
            "/v1/%73torage",
            "/v1/%2573torage",
            "/v1%2Fstorage%2fobjects",
            "/v1/%2e%2e/v1/storage",
            "/v1\\storage",
            "/v1/%5cstorage",
            "/v1/ingress/routes/traefik",
            "/v1/ingress%2Froutes",
        ] {
            assert!(denied(path), "{path}");
        }
    }

    #[test]
    fn a_neighbour_of_a_denied_path_is_not_denied() {
        for path in [
            "/",
            "*",
            "",
            "/v1/storagex",
            "/v1/storag",
            "/v1/ingress",
            "/x/v1/storage",
            "/v1/storage%zz",
            "/v1/stor%61gex",
            "/V1/storage",
        ] {
            assert!(!denied(path), "{path}");
        }
    }

    /// Writes `text` in some other way that means the same: each byte may be escaped, and its `%` again.
    fn spelled(text: &str, choices: &[u8]) -> String {
        let spell = |(byte, choice): (u8, &u8)| match choice % 4 {
            0 => format!("%{byte:02x}"),
            1 => format!("%{byte:02X}"),
            2 => format!("%25{byte:02x}"),
            _ => char::from(byte).to_string(),
        };
        text.bytes().zip(choices.iter().cycle()).map(spell).collect()
    }

    proptest! {
        #[test]
        fn no_spelling_gets_past(
            prefix in prop::sample::select(DENIED.to_vec()),
            separators in prop::collection::vec(prop::sample::select(vec!["/", "//", "\\", "/./", "/x/../", "/a/b/../../"]), 4),
            rest in prop::sample::select(vec!["", "/", "/objects/x", "//"]),
            choices in prop::collection::vec(any::<u8>(), 1..40),
        ) {
            let segments = prefix.split('/').skip(1).zip(&separators);
            let plain: String = segments.map(|(segment, separator)| format!("{separator}{segment}")).collect();
            let path = format!("/{}", spelled(&format!("{}{rest}", &plain[1..]), &choices));
            prop_assert!(denied(&path), "{}", path);
        }

        #[test]
        fn any_path_is_read_without_panic(path in ".{0,200}") {
            denied(&path);
        }
    }

    #[test]
    fn deep_encoding_ends() {
        assert!(denied(&format!("/v1/%{}73torage", "25".repeat(30_000))));
        assert!(denied("/v1/%%373torage") && denied("/v1/%7%33torage"));
    }
}
