//! Writing JSON text by hand: a document has few shapes and many hosts.

/// Appends `text` as it stands inside a JSON string (RFC 8259 §7).
pub(super) fn text(out: &mut Vec<u8>, text: &str) {
    let plain = |byte: &u8| *byte >= b' ' && *byte != b'"' && *byte != b'\\';
    if text.as_bytes().iter().all(plain) {
        out.extend_from_slice(text.as_bytes());
    } else {
        let quoted = string(text);
        out.extend_from_slice(&quoted.as_bytes()[1..quoted.len() - 1]);
    }
}

/// `text` as a JSON string, quotes included.
pub(super) fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Appends a port.
pub(super) fn port(out: &mut Vec<u8>, port: u16) {
    let mut digits = [0; 5];
    let (mut rest, mut from) = (port, digits.len());
    loop {
        from -= 1;
        digits[from] = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[from..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_and_any_text_reads_back() {
        for number in [0, 1, 9, 10, 80, 7400, 10_000, u16::MAX] {
            let mut out = Vec::new();
            port(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
        }
        for given in ["", "shop.example", "a\"b", "a\\b", "\u{0}\n", "ä"] {
            let mut out = b"\"".to_vec();
            text(&mut out, given);
            out.push(b'"');
            assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), given);
        }
    }
}
