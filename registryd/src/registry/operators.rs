//! Operator keys.

use scafo_core::{
    OperatorId, Problem, ProblemCode,
    key::{self, prefix},
    record::{IdentityKind, OperatorRecord, Rest, Role, V1},
    scope::ApplicationScope,
    token::PublicKey,
};

use super::{Changed, Intent, Kind, Registry, Stored};

/// An operator key to register.
#[derive(Debug, Clone)]
pub struct NewOperator {
    /// Its id, reserved for ever.
    pub id: OperatorId,
    /// The key.
    pub public_key: PublicKey,
    /// Its tier.
    pub role: Role,
    /// What it reaches.
    pub applications: ApplicationScope,
    /// The key that it replaces.
    pub supersedes: Option<OperatorId>,
    /// Who registers it; nobody for the first.
    pub created_by: Option<String>,
}

impl Registry {
    /// Makes the first admin, who reaches everything. Refused where there is an operator already, unless `force`. Safe to
    /// repeat with the same key.
    ///
    /// # Errors
    /// `reference-held` if there is another operator, or the id is taken; store errors.
    pub async fn init_operator(
        &self,
        id: &OperatorId,
        public_key: &PublicKey,
        force: bool,
    ) -> Result<OperatorRecord, Problem> {
        if !force {
            self.no_other_operator(id).await?;
        }
        let first = NewOperator {
            id: id.clone(),
            public_key: public_key.clone(),
            role: Role::Admin,
            applications: ApplicationScope::all(),
            supersedes: None,
            created_by: None,
        };
        let made = self.create_operator(&first).await?;
        // Two first admins stand under different keys and cannot see each other before they wrote. Both may withdraw; the id
        // stays reserved for the same key, so that the command can be run again. An admin of an earlier call stays.
        if !force
            && made.written
            && let Err(held) = self.no_other_operator(id).await
        {
            self.engine().delete(&Intent::new(), &key::operator(id.as_str())).await?;
            return Err(held);
        }
        Ok(made.stored.record)
    }

    /// Registers an operator key. Registering the same again answers the record that stands.
    ///
    /// # Errors
    /// `reference-held` if the id is a node's, another key's, or registered with another role or reach; store errors.
    pub async fn add_operator(&self, new: &NewOperator) -> Result<OperatorRecord, Problem> {
        self.create_operator(new).await.map(|made| made.stored.record)
    }

    async fn create_operator(&self, new: &NewOperator) -> Result<Changed<OperatorRecord>, Problem> {
        let id = &new.id;
        self.reserve(id.as_str(), IdentityKind::Operator, &new.public_key).await?;
        let record = OperatorRecord {
            v: V1,
            id: id.clone(),
            public_key: new.public_key.clone(),
            role: new.role,
            applications: new.applications.clone(),
            supersedes: new.supersedes.clone(),
            created_at: self.clock().wall(),
            created_by: new.created_by.clone(),
            revoking: None,
            rest: Rest::new(),
        };
        let made = self.engine().create(&self.intent(), &record).await?;
        let there = &made.stored.record;
        let same = there.public_key == record.public_key
            && there.role == record.role
            && there.applications == record.applications
            && there.supersedes == record.supersedes;
        if same {
            return Ok(made);
        }
        let detail = format!("an operator `{id}` is registered already, with another role or reach");
        Err(Problem::new(ProblemCode::ReferenceHeld, detail))
    }

    /// The operator's record, if there is one.
    ///
    /// # Errors
    /// Store errors.
    pub async fn operator(&self, id: &OperatorId) -> Result<Option<Stored<OperatorRecord>>, Problem> {
        self.engine().try_load(&key::operator(id.as_str())).await
    }

    /// Ids of all operators that have a record, readable or not.
    ///
    /// # Errors
    /// Store errors.
    pub async fn operator_ids(&self) -> Result<Vec<OperatorId>, Problem> {
        let listing = self.engine().list(prefix::OPERATORS).await?;
        let keys = listing.entries.iter().filter(|listed| OperatorRecord::is_key(&listed.key));
        Ok(keys.filter_map(|listed| key::name_of(&listed.key, prefix::OPERATORS)?.parse().ok()).collect())
    }

    async fn no_other_operator(&self, id: &OperatorId) -> Result<(), Problem> {
        let others = self.operator_ids().await?.into_iter().filter(|other| other != id).count();
        if others == 0 {
            return Ok(());
        }
        let detail = format!(
            "this fleet has {others} operator key(s) already: an admin adds another with `scafo operator add`, or use `--force`"
        );
        Err(Problem::new(ProblemCode::ReferenceHeld, detail))
    }
}

#[cfg(test)]
mod tests {
    use scafo_store::{Bucket as _, Fault, Operation};

    use super::*;
    use crate::registry::testing::{World, key_of};

    fn id(text: &str) -> OperatorId {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_admin_is_made_once_and_the_call_is_safe_to_repeat() {
        let world = World::new();
        let registry = &world.registry;
        let first = registry.init_operator(&id("a"), &key_of(1), false).await.unwrap();
        assert_eq!(first.role, Role::Admin);
        assert_eq!(registry.init_operator(&id("a"), &key_of(1), false).await.unwrap(), first);
        let refused = registry.init_operator(&id("b"), &key_of(2), false).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::ReferenceHeld);
        registry.init_operator(&id("b"), &key_of(2), true).await.unwrap();
        assert_eq!(registry.operator_ids().await.unwrap(), [id("a"), id("b")]);
    }

    #[tokio::test(start_paused = true)]
    async fn two_first_admins_at_once_are_at_most_one() {
        let world = World::new();
        let other = world.sibling();
        let (ids, keys) = ([id("a"), id("b")], [key_of(1), key_of(2)]);
        let (a, b) = tokio::join!(
            world.registry.init_operator(&ids[0], &keys[0], false),
            other.registry.init_operator(&ids[1], &keys[1], false)
        );
        let won = usize::from(a.is_ok()) + usize::from(b.is_ok());
        assert_eq!(world.registry.operator_ids().await.unwrap().len(), won);
        assert!(won <= 1);
    }

    #[tokio::test(start_paused = true)]
    async fn making_the_first_admin_again_leaves_him_whoever_comes_meanwhile() {
        let world = World::new();
        let first = world.registry.init_operator(&id("a"), &key_of(1), false).await.unwrap();
        // Another operator, whose record arrives between the two looks of the second call.
        let other = world.sibling();
        other.memory.fail_next_puts("_scafo/operators/b.json", [Fault::HoldBack]);
        let second = OperatorRecord { id: id("b"), public_key: key_of(2), ..first.clone() };
        let body = scafo_core::record::to_bytes(&second);
        other.memory.put("_scafo/operators/b.json", body.into(), Default::default()).await.unwrap();
        let mut looks = 0;
        world.memory.plan(move |operation| {
            looks += u32::from(operation == Operation::List(prefix::OPERATORS));
            if looks == 2 {
                other.memory.release_held();
            }
            None
        });
        let again = world.registry.init_operator(&id("a"), &key_of(1), false).await;
        assert_eq!(world.registry.operator_ids().await.unwrap(), [id("a"), id("b")]);
        assert_eq!(again.unwrap(), first);
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_id_is_one_key_for_ever() {
        let world = World::new();
        world.registry.init_operator(&id("a"), &key_of(1), false).await.unwrap();
        let refused = world.registry.init_operator(&id("a"), &key_of(2), false).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::ReferenceHeld);
    }
}
