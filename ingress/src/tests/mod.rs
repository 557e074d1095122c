//! The daemon as a whole, over loopback: nodes that serve documents, applications behind it, clients in front.

mod keeping;
mod polling;
mod proxying;
mod stage;
