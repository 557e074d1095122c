//! Writing JSON text by hand: a document has few shapes and many hosts, and nearly all that it names is made of characters that
//! stand in JSON as they are.

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
    fn every_port_reads_back() {
        for number in [0, 1, 9, 10, 80, 7400, 10_000, u16::MAX] {
            let mut out = Vec::new();
            port(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
        }
    }
}
