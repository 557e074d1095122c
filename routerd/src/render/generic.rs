//! The generic document.

use scafo_core::id::NodeId;
use scafo_core::routing::DENIED;

use super::{json, ordered};
use crate::fleet::Place;
use crate::routes::{Api, Block, Routing};

/// What stands before the first host.
pub(super) const HEAD: &str = r#"{"v":1,"routes":["#;

/// The hosts of a block; `first` is the first block of the document.
pub(super) fn block(out: &mut Vec<u8>, block: &Block, first: bool, preferred: Option<&NodeId>) {
    for (index, entry) in block.entries.iter().enumerate() {
        let comma: &[u8] = if first && index == 0 { b"" } else { b"," };
        out.extend_from_slice(comma);
        out.extend_from_slice(br#"{"host":""#);
        out.extend_from_slice(entry.host.as_bytes());
        out.extend_from_slice(br#"","application":""#);
        out.extend_from_slice(entry.served.name.as_bytes());
        out.extend_from_slice(br#"","upstreams":"#);
        upstreams(out, &entry.served.upstreams, preferred);
        out.push(b'}');
    }
}

/// What stands behind the last host.
pub(super) fn tail(out: &mut Vec<u8>, routing: &Routing, preferred: Option<&NodeId>) {
    out.push(b']');
    if let Some(Api { hosts, upstreams: places }) = &routing.api {
        out.extend_from_slice(br#","api":{"hosts":"#);
        strings(out, hosts.iter().map(String::as_str));
        out.extend_from_slice(br#","upstreams":"#);
        upstreams(out, places, preferred);
        out.extend_from_slice(br#","denied":"#);
        strings(out, DENIED.into_iter());
        out.push(b'}');
    }
    out.push(b'}');
}

fn upstreams(out: &mut Vec<u8>, places: &[Place], preferred: Option<&NodeId>) {
    out.push(b'[');
    for (index, place) in ordered(places, preferred).enumerate() {
        let open: &[u8] = if index == 0 { br#"{"node":""# } else { br#",{"node":""# };
        out.extend_from_slice(open);
        out.extend_from_slice(place.machine.id.as_str().as_bytes());
        out.extend_from_slice(br#"","address":""#);
        out.extend_from_slice(place.machine.host.as_bytes());
        out.push(b':');
        json::port(out, place.port);
        out.extend_from_slice(br#""}"#);
    }
    out.push(b']');
}

fn strings<'a>(out: &mut Vec<u8>, strings: impl Iterator<Item = &'a str>) {
    out.push(b'[');
    for (index, text) in strings.enumerate() {
        out.extend_from_slice(if index == 0 { b"\"" } else { b",\"" });
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    }
    out.push(b']');
}
