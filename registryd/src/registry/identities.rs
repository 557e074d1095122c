//! Identity reservations: whose key an id is, for ever. Nodes and operators share one keyspace.

use scafo_core::{
    Problem, ProblemCode,
    record::{IdentityKind, IdentityReservation, Rest, V1},
    token::PublicKey,
};

use super::{Intent, Registry};

impl Registry {
    /// Claims `id` for `public_key`. Claiming again what is ours already succeeds.
    pub(super) async fn reserve(&self, id: &str, kind: IdentityKind, public_key: &PublicKey) -> Result<(), Problem> {
        let reservation = IdentityReservation {
            v: V1,
            id: id.to_owned(),
            kind,
            public_key: public_key.clone(),
            reserved_at: self.clock().wall(),
            rest: Rest::new(),
        };
        let there = self.engine().create(&Intent::new(), &reservation).await?.stored.record;
        if there.kind == kind && there.public_key == *public_key {
            return Ok(());
        }
        let holder = match there.kind {
            IdentityKind::Node => "a node",
            IdentityKind::Operator => "an operator key",
        };
        let detail = format!("the id `{id}` belongs to {holder} with another key, for ever: choose another id");
        Err(Problem::new(ProblemCode::ReferenceHeld, detail))
    }
}
