//! Taking operator keys away, never the last one.
//!
//! Two admins who revoke each other write under different keys and cannot exclude each other. So a revocation first marks
//! its target, then lists again, and goes on only if a key stays that nobody has marked: of two marks the later one sees the
//! earlier. A mark is a set with one entry for each revocation under way, each of which removes its own entry and no other:
//! otherwise a second revocation of the same key could, in giving up, hide that the first goes on.
//!
//! A revocation that died leaves its entry. Such a key works on and does not count as one that stays; whoever wants to be rid
//! of it revokes it, and whoever wants to keep it rotates it.

use scafo_core::{
    OperatorId, Problem, ProblemCode, key,
    record::{OperatorRecord, Role},
};
use serde_json::Value;

use super::{Cache, Granter, Intent, NewOperator, Registration, Registry, Stored};

impl Registry {
    /// Registers an operator key on behalf of `granter`. Safe to repeat, so that an interrupted rotation can go on.
    ///
    /// # Errors
    /// As [`Granter::grant`]; `reference-held` if the id is taken; store errors.
    pub async fn register_operator(&self, granter: &Granter, asked: Registration) -> Result<OperatorRecord, Problem> {
        let new: NewOperator = granter.grant(asked)?;
        self.add_operator(&new).await
    }

    /// The operator keys that `granter` may see, in the order of their ids. One that cannot be read is left out.
    ///
    /// # Errors
    /// Store errors.
    pub async fn operators(&self, granter: &Granter) -> Result<Vec<OperatorRecord>, Problem> {
        Ok(self.all_operators().await?.into_iter().filter(|record| granter.sees(record)).collect())
    }

    /// Takes a key away. The id stays reserved.
    ///
    /// # Errors
    /// As [`Granter::may_revoke`]; `not-found`; `reference-held` for the last key or the last admin key; store errors, after
    /// which it is safe to run again.
    pub async fn revoke_operator(&self, granter: &Granter, id: &OperatorId) -> Result<(), Problem> {
        granter.may_revoke(id)?;
        // The same mark when the call comes again, so that none is left of the try that was cut off.
        let mine = self.operation.clone().unwrap_or_else(|| format!("{:016x}", rand::random::<u64>()));
        let key = key::operator(id.as_str());
        let marked = self
            .engine()
            .update(&Intent::new(), &key, |record: &mut OperatorRecord| {
                let mut marks = marks(record);
                if !marks.contains(&mine) {
                    marks.push(mine.clone());
                }
                record.revoking = Some(Value::from(marks));
                Ok(())
            })
            .await
            .map_err(|problem| absent(problem, id))?;
        let allowed = match self.all_operators().await {
            Ok(others) => stays(&marked.stored.record, &others),
            Err(problem) => Err(problem),
        };
        match allowed {
            Ok(()) => {
                let is_it = |stands: &Stored<OperatorRecord>| stands.continues(&marked.stored);
                self.engine().delete_record(&Intent::new(), &key, is_it).await
            }
            Err(refused) => {
                self.unmark(&key, &mine).await?;
                Err(refused)
            }
        }
    }

    async fn unmark(&self, key: &str, mine: &str) -> Result<(), Problem> {
        let unmarked = self
            .engine()
            .update(&Intent::new(), key, |record: &mut OperatorRecord| {
                let mut marks = marks(record);
                marks.retain(|mark| mark != mine);
                record.revoking = (!marks.is_empty()).then(|| Value::from(marks));
                Ok(())
            })
            .await;
        match unmarked {
            Err(problem) if problem.code != ProblemCode::NotFound => Err(problem),
            // Another revocation has gone through.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn all_operators(&self) -> Result<Vec<OperatorRecord>, Problem> {
        let mut cache: Cache<OperatorRecord> = Cache::default();
        cache.refresh_patiently(self.engine()).await?;
        let mut operators: Vec<_> = cache.iter().map(|stored| stored.record.clone()).collect();
        operators.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(operators)
    }
}

/// Who is taking the key away. What is no list is one mark of somebody whom this build does not know.
fn marks(record: &OperatorRecord) -> Vec<String> {
    match &record.revoking {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(marks)) => {
            marks.iter().map(|mark| mark.as_str().map_or_else(|| mark.to_string(), str::to_owned)).collect()
        }
        Some(other) => vec![other.to_string()],
    }
}

/// Whether enough stays without `target`.
fn stays(target: &OperatorRecord, all: &[OperatorRecord]) -> Result<(), Problem> {
    let id = &target.id;
    let mut staying = all.iter().filter(|record| record.id != *id && marks(record).is_empty());
    let (what, enough) = match target.role {
        Role::Admin => ("admin key", staying.any(|record| record.role == Role::Admin)),
        Role::Operator => ("trusted operator key", staying.next().is_some()),
    };
    if enough {
        return Ok(());
    }
    let detail = format!("`{id}` is the last {what} that is not being revoked: register another one first");
    Err(Problem::new(ProblemCode::ReferenceHeld, detail))
}

fn absent(problem: Problem, id: &OperatorId) -> Problem {
    if problem.code == ProblemCode::NotFound {
        return Problem::new(ProblemCode::NotFound, format!("there is no operator key `{id}`"));
    }
    problem
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scafo_core::scope::ApplicationScope;
    use scafo_store::{Bucket as _, Fault, Operation};

    use super::*;
    use crate::registry::testing::{World, key_of};

    fn id(text: &str) -> OperatorId {
        text.parse().unwrap()
    }

    async fn add(world: &World, name: &str, secret: u8, role: Role) -> Granter {
        let new = NewOperator {
            id: id(name),
            public_key: key_of(secret),
            role,
            applications: ApplicationScope::all(),
            supersedes: None,
            created_by: None,
        };
        Granter::Operator(Box::new(world.registry.add_operator(&new).await.unwrap()))
    }

    async fn admins(world: &World) -> usize {
        let all = world.registry.all_operators().await.unwrap();
        all.iter().filter(|record| record.role == Role::Admin).count()
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_keys_stay() {
        let world = World::new();
        let registry = &world.registry;
        let local = Granter::Local("root".to_owned());
        let admin = add(&world, "admin", 1, Role::Admin).await;
        let refused = registry.revoke_operator(&local, &id("admin")).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::ReferenceHeld);
        let record = registry.operator(&id("admin")).await.unwrap().unwrap().record;
        assert_eq!(record.revoking, None, "a refused revocation leaves no mark");
        add(&world, "plain", 2, Role::Operator).await;
        let refused = registry.revoke_operator(&local, &id("admin")).await.unwrap_err();
        assert!(refused.detail.contains("last admin key"), "{refused}");
        registry.revoke_operator(&admin, &id("plain")).await.unwrap();
        let missing = registry.revoke_operator(&admin, &id("plain")).await.unwrap_err();
        assert_eq!(missing.code, ProblemCode::NotFound);
    }

    #[tokio::test(start_paused = true)]
    async fn an_interrupted_rotation_can_be_repeated_to_its_end() {
        let world = World::new();
        let registry = &world.registry;
        let old = add(&world, "old", 1, Role::Admin).await;
        let asked = Registration {
            id: id("new"),
            public_key: key_of(2),
            role: None,
            supersedes: Some(id("old")),
            applications: None,
        };
        let first = registry.register_operator(&old, asked.clone()).await.unwrap();
        assert_eq!(registry.register_operator(&old, asked).await.unwrap(), first);
        assert_eq!((first.role, first.created_by.as_deref()), (Role::Admin, Some("old")));
        registry.revoke_operator(&Granter::Operator(Box::new(first)), &id("old")).await.unwrap();
        assert_eq!(registry.operator_ids().await.unwrap(), [id("new")]);
        // The id stays taken.
        let other = Registration {
            id: id("old"),
            public_key: key_of(3),
            role: None,
            supersedes: None,
            applications: Some(ApplicationScope::all()),
        };
        let refused = registry.register_operator(&Granter::Local("root".to_owned()), other).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::ReferenceHeld);
    }

    #[tokio::test(start_paused = true)]
    async fn admins_who_revoke_each_other_leave_one() {
        for seed in 0..200_u64 {
            let world = World::new();
            let sides = [add(&world, "a", 1, Role::Admin).await, add(&world, "b", 2, Role::Admin).await];
            let (one, two, three) = (world.sibling(), world.sibling(), world.sibling());
            for (side, salt) in [(&one, 1), (&two, 2), (&three, 3)] {
                let mut state = seed * 31 + salt;
                side.memory.plan(move |_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    match (state >> 33) % 12 {
                        0 => Some(Fault::LoseRequest),
                        1 => Some(Fault::LoseAnswer),
                        2 => Some(Fault::Busy),
                        _ => None,
                    }
                });
            }
            let local = Granter::Local("root".to_owned());
            let (a, b) = (id("a"), id("b"));
            // A third one revokes the same key as the first and may give up in between.
            let _ = tokio::join!(
                one.registry.revoke_operator(&sides[0], &b),
                two.registry.revoke_operator(&sides[1], &a),
                three.registry.revoke_operator(&local, &b)
            );
            assert!(admins(&world).await >= 1, "seed {seed}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_revocation_that_cannot_see_the_other_keys_leaves_no_mark() {
        let world = World::new();
        let admin = add(&world, "a", 1, Role::Admin).await;
        add(&world, "b", 2, Role::Admin).await;
        let listed = |operation: Operation<'_>| matches!(operation, Operation::List(_));
        // The third of the keys is there and cannot be read.
        let read = |operation: Operation<'_>| matches!(operation, Operation::Get("_scafo/operators/a.json"));
        for silent in [listed as fn(Operation<'_>) -> bool, read] {
            world.memory.plan(move |operation| silent(operation).then_some(Fault::LoseRequest));
            let refused = world.registry.revoke_operator(&admin, &id("b")).await.unwrap_err();
            assert_eq!(refused.code, ProblemCode::StoreUnavailable);
            world.memory.plan(|_| None);
            assert_eq!(world.registry.operator(&id("b")).await.unwrap().unwrap().record.revoking, None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_registered_again_while_it_is_revoked_stays() {
        let world = World::new();
        let admin = add(&world, "a", 1, Role::Admin).await;
        add(&world, "b", 2, Role::Operator).await;
        let (other, id, mut lost) = (world.sibling(), id("b"), false);
        world.memory.plan(move |operation| {
            let first =
                operation == Operation::Delete("_scafo/operators/b.json") && !std::mem::replace(&mut lost, true);
            first.then_some(Fault::LoseAnswer)
        });
        let again = async {
            while other.registry.operator(&id).await.unwrap().is_some() {
                other.registry.clock().sleep(Duration::from_millis(1)).await;
            }
            add(&other, "b", 2, Role::Operator).await;
        };
        let (revoked, ()) = tokio::join!(world.registry.revoke_operator(&admin, &id), again);
        revoked.unwrap();
        assert!(other.registry.operator(&id).await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_revocation_is_ended_by_the_next() {
        let world = World::new();
        let admin = add(&world, "a", 1, Role::Admin).await;
        add(&world, "b", 2, Role::Admin).await;
        let key = key::operator("b");
        let marked = world.memory.get(&key).await.unwrap().unwrap();
        let body = String::from_utf8(marked.body.to_vec()).unwrap().replacen("{", "{\"revoking\": [\"dead\"],", 1);
        crate::registry::testing::put_raw(&world.memory, &key, &body).await;
        // A marked key does not count as one that stays.
        let refused = world.registry.revoke_operator(&Granter::Local(String::new()), &id("a")).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::ReferenceHeld);
        world.registry.revoke_operator(&admin, &id("b")).await.unwrap();
        assert_eq!(world.registry.operator_ids().await.unwrap(), [id("a")]);
    }
}
