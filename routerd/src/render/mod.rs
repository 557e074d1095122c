//! Rendering, pure: routing becomes the generic document, or what one kind of ingress reads natively.
//!
//! A document is a sequence of parts, most of them one for each block of hosts. Written one after the other they are the
//! document; each depends on its own block only, so that it can be kept as long as that is the same one.

mod check;
mod generic;
mod json;
mod traefik;

use std::sync::Arc;

use scafo_core::id::NodeId;

pub use self::check::Invalid;
pub use self::traefik::Attributes;
use crate::fleet::Place;
use crate::routes::{Block, Routing};

#[cfg(test)]
mod plain;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

/// What a document can be rendered as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// The fleet's own document.
    Generic,
    /// Dynamic configuration of Traefik v3, for its http provider.
    Traefik,
}

impl Format {
    /// The native formats, as they are named in the API.
    pub const NATIVE: [Self; 1] = [Self::Traefik];

    /// The name; empty for the generic document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Generic => "",
            Self::Traefik => "traefik",
        }
    }

    /// The format with this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Generic, Self::Traefik].into_iter().find(|format| format.as_str() == name)
    }
}

/// One way to look at a routing.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// In which format.
    pub format: Format,
    /// Whose upstreams stand first; `None` for the fleet's own order.
    pub prefer: Option<&'a NodeId>,
    /// What routers of Traefik carry beside their rule.
    pub attributes: &'a Attributes,
}

/// One part of a document.
pub(crate) enum Part<'a> {
    /// Written already.
    Text(Vec<u8>),
    /// The part of one block.
    Of(What, &'a Arc<Block>),
}

/// Which part a block has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct What {
    list: List,
    /// Whether it begins the list, where no comma stands before it.
    pub(crate) first: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum List {
    Routes,
    Routers,
    Services,
}

impl View<'_> {
    /// The document.
    pub fn write(&self, routing: &Routing) -> Vec<u8> {
        let mut out = Vec::new();
        for part in self.parts(routing) {
            match part {
                Part::Text(text) => out.extend_from_slice(&text),
                Part::Of(what, block) => self.write_part(&mut out, what, block),
            }
        }
        out
    }

    /// The parts in their order.
    pub(crate) fn parts<'r>(&self, routing: &'r Routing) -> Vec<Part<'r>> {
        let mut parts = Vec::with_capacity(2 * routing.blocks.len() + 3);
        let mut text = |write: &mut dyn FnMut(&mut Vec<u8>), list: Option<List>| {
            let mut out = Vec::new();
            write(&mut out);
            parts.push(Part::Text(out));
            let blocks = routing.blocks.iter().enumerate().filter(|_| list.is_some());
            let of = |(index, block)| Part::Of(What { list: list.unwrap_or(List::Routes), first: index == 0 }, block);
            parts.extend(blocks.map(of));
        };
        match self.format {
            Format::Generic => {
                text(&mut |out| out.extend_from_slice(generic::HEAD.as_bytes()), Some(List::Routes));
                text(&mut |out| generic::tail(out, routing, self.prefer), None);
            }
            Format::Traefik if routing.blocks.is_empty() && routing.api.is_none() => {
                text(&mut |out| out.extend_from_slice(traefik::NOTHING.as_bytes()), None);
            }
            Format::Traefik => {
                text(&mut |out| out.extend_from_slice(traefik::HEAD.as_bytes()), Some(List::Routers));
                text(&mut |out| traefik::between(out, routing, self.attributes), Some(List::Services));
                text(&mut |out| traefik::tail(out, routing, self.prefer), None);
            }
        }
        parts
    }

    /// Appends the part of a block.
    pub(crate) fn write_part(&self, out: &mut Vec<u8>, what: What, block: &Block) {
        match what.list {
            List::Routes => generic::block(out, block, what.first, self.prefer),
            List::Routers => traefik::routers(out, block, what.first, self.attributes),
            List::Services => traefik::services(out, block, what.first, self.prefer),
        }
    }
}

/// The upstreams of the preferred node first, the rest in its order.
fn ordered<'a>(places: &'a [Place], preferred: Option<&NodeId>) -> impl Iterator<Item = &'a Place> {
    let is_preferred = move |place: &&Place| Some(&place.machine.id) == preferred;
    places.iter().filter(is_preferred).chain(places.iter().filter(move |place| !is_preferred(place)))
}
