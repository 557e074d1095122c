//! Which IP addresses are those of a network of one's own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether strangers cannot reach such an address: loopback, RFC 1918, RFC 6598 (100.64/10), link-local (RFC 3927, RFC 4291) and unique
/// local (RFC 4193). The addresses of the documentation are public ones. celld draws the same line for `--advertise`.
pub fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_private_v4(ip),
        IpAddr::V6(ip) => is_private_v6(ip),
    }
}

fn is_private_v4(ip: Ipv4Addr) -> bool {
    let [first, second, ..] = ip.octets();
    ip.is_private() || ip.is_loopback() || ip.is_link_local() || (first == 100 && (64..128).contains(&second))
}

fn is_private_v6(ip: Ipv6Addr) -> bool {
    let first = ip.segments()[0];
    ip.is_loopback() || (first & 0xffc0) == 0xfe80 || (first & 0xfe00) == 0xfc00
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strangers_cannot_reach_is_private_and_nothing_else() {
        for private in [
            "127.0.0.9",
            "10.83.0.1",
            "172.31.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "169.254.1.1",
            "::1",
            "fd00::1",
            "fc00::1",
            "fe80::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in [
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "172.32.0.1",
            "203.0.113.7",
            "255.255.255.255",
            "0.0.0.0",
            "::",
            "2001:db8::1",
            "fec0::1",
            "::ffff:8.8.8.8",
        ] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }
}
