//! Which operator keys a caller may register, see and revoke. Pure; the caller's record is the one that stands at that
//! moment.

use scafo_core::{
    OperatorId, Problem, ProblemCode,
    record::{OperatorRecord, Role},
    scope::ApplicationScope,
    token::PublicKey,
};

use super::NewOperator;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Granter {
    /// The holder of an operator key.
    Operator(Box<OperatorRecord>),
    /// The machine's own user, or whoever has the bucket's credentials: may do what an admin may.
    Local(String),
}

/// What is asked for; the rest follows from who asks.
#[derive(Debug, Clone)]
pub struct Registration {
    /// Id of the key.
    pub id: OperatorId,
    /// The key.
    pub public_key: PublicKey,
    /// Its tier. None: the lowest for a fresh key, the caller's for a replacement.
    pub role: Option<Role>,
    /// The key that it replaces.
    pub supersedes: Option<OperatorId>,
    /// What it reaches. None: what the caller's reaches.
    pub applications: Option<ApplicationScope>,
}

impl Granter {
    /// How records and events name the caller.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Operator(record) => record.id.as_str(),
            Self::Local(name) => name,
        }
    }

    fn role(&self) -> Role {
        match self {
            Self::Operator(record) => record.role,
            Self::Local(_) => Role::Admin,
        }
    }

    fn id(&self) -> Option<&OperatorId> {
        match self {
            Self::Operator(record) => Some(&record.id),
            Self::Local(_) => None,
        }
    }

    fn is_admin(&self) -> bool {
        self.role() == Role::Admin
    }

    /// Whether the caller's own reach takes in all of `scope`.
    fn covers(&self, scope: &ApplicationScope) -> bool {
        match self {
            Self::Operator(record) => record.applications.covers(scope),
            Self::Local(_) => true,
        }
    }

    fn applications(&self) -> ApplicationScope {
        match self {
            Self::Operator(record) => record.applications.clone(),
            Self::Local(_) => ApplicationScope::all(),
        }
    }

    /// The key to register, if the caller may.
    ///
    /// # Errors
    /// `invalid-input` for a fresh key without a scope and for a key that replaces itself; `auth-scope` for replacing a key
    /// that is not the caller's, and for more than the caller has.
    pub fn grant(&self, asked: Registration) -> Result<NewOperator, Problem> {
        let Registration { id, public_key, role, supersedes, applications } = asked;
        if let Some(old) = &supersedes {
            if Some(old) != self.id() {
                return Err(out_of_scope("a key may replace only the key that registers it"));
            }
            if *old == id {
                let detail = "a key cannot replace itself: give the new key an id of its own";
                return Err(Problem::new(ProblemCode::InvalidInput, detail));
            }
        }
        let fresh = supersedes.is_none();
        let role = role.unwrap_or(if fresh { Role::Operator } else { self.role() });
        let applications = match applications {
            Some(scope) => scope,
            None if !fresh => self.applications(),
            None => {
                let detail = "a fresh key needs `applications`: names, prefixes like `shop-*`, or `*` alone";
                return Err(Problem::new(ProblemCode::InvalidInput, detail));
            }
        };
        if role == Role::Admin && !self.is_admin() {
            return Err(out_of_scope("only an admin key registers an admin key"));
        }
        if fresh && applications.is_all() && !self.is_admin() {
            return Err(out_of_scope("only an admin key hands out `*`"));
        }
        if !self.covers(&applications) {
            return Err(out_of_scope("the new key would reach applications that yours does not"));
        }
        Ok(NewOperator { id, public_key, role, applications, supersedes, created_by: Some(self.name().to_owned()) })
    }

    /// Whether the caller may see a key: an admin all, anybody else one step of its own rotation.
    #[must_use]
    pub fn sees(&self, other: &OperatorRecord) -> bool {
        match self {
            Self::Operator(own) => {
                self.is_admin()
                    || other.id == own.id
                    || own.supersedes.as_ref() == Some(&other.id)
                    || other.supersedes.as_ref() == Some(&own.id)
            }
            Self::Local(_) => true,
        }
    }

    /// Whether the answer to a listing is narrowed for the caller.
    #[must_use]
    pub fn is_narrowed(&self) -> bool {
        !self.is_admin()
    }

    /// Whether the caller may revoke `id`, as far as that needs no look at other records.
    ///
    /// # Errors
    /// `invalid-input` for its own key; `auth-scope` for another than the one that it replaced, unless it is an admin's.
    pub fn may_revoke(&self, id: &OperatorId) -> Result<(), Problem> {
        if self.id() == Some(id) {
            let detail = "a key cannot revoke itself: rotate it, then revoke it with the new one";
            return Err(Problem::new(ProblemCode::InvalidInput, detail));
        }
        let replaced = match self {
            Self::Operator(own) => own.supersedes.as_ref() == Some(id),
            Self::Local(_) => false,
        };
        if self.is_admin() || replaced {
            return Ok(());
        }
        Err(out_of_scope("this key may revoke only the key that it was registered to replace"))
    }
}

fn out_of_scope(detail: &str) -> Problem {
    Problem::new(ProblemCode::AuthScope, detail)
}

#[cfg(test)]
mod tests {
    use ProblemCode::{AuthScope, InvalidInput};
    use scafo_core::{
        Timestamp,
        record::{Rest, V1},
    };

    use super::*;
    use crate::registry::testing::key_of;

    fn scope(text: &str) -> ApplicationScope {
        ApplicationScope::try_from(text.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap()
    }

    fn operator(id: &str, role: Role, reach: &str, supersedes: Option<&str>) -> OperatorRecord {
        OperatorRecord {
            v: V1,
            id: id.parse().unwrap(),
            public_key: key_of(1),
            role,
            applications: scope(reach),
            supersedes: supersedes.map(|id| id.parse().unwrap()),
            created_at: Timestamp::from_millis(0),
            created_by: None,
            revoking: None,
            rest: Rest::new(),
        }
    }

    fn granter(role: Role, reach: &str) -> Granter {
        Granter::Operator(Box::new(operator("me", role, reach, None)))
    }

    #[test]
    fn a_key_grants_no_more_than_it_has() {
        let (admin, plain, wide) =
            (granter(Role::Admin, "*"), granter(Role::Operator, "shop shop-*"), granter(Role::Operator, "*"));
        let local = Granter::Local("root".to_owned());
        let (a, o) = (Some(Role::Admin), Some(Role::Operator));
        for (number, (caller, role, supersedes, reach, want)) in [
            (&admin, a, None, Some("*"), Ok((Role::Admin, "*"))),
            (&admin, None, None, Some("shop"), Ok((Role::Operator, "shop"))),
            (&admin, None, None, Some("*"), Ok((Role::Operator, "*"))),
            (&admin, None, None, None, Err(InvalidInput)),
            (&admin, None, Some("me"), None, Ok((Role::Admin, "*"))),
            (&admin, o, Some("me"), Some("shop"), Ok((Role::Operator, "shop"))),
            (&admin, None, Some("other"), None, Err(AuthScope)),
            (&plain, None, None, Some("shop-a"), Ok((Role::Operator, "shop-a"))),
            (&plain, None, None, Some("shop-*"), Ok((Role::Operator, "shop-*"))),
            (&plain, None, None, Some("shop*"), Err(AuthScope)),
            (&plain, None, None, Some("team"), Err(AuthScope)),
            (&plain, None, None, Some("*"), Err(AuthScope)),
            (&plain, a, None, Some("shop"), Err(AuthScope)),
            (&plain, None, None, None, Err(InvalidInput)),
            (&plain, None, Some("me"), None, Ok((Role::Operator, "shop shop-*"))),
            (&plain, None, Some("me"), Some("*"), Err(AuthScope)),
            (&plain, a, Some("me"), None, Err(AuthScope)),
            (&plain, None, Some("other"), Some("shop"), Err(AuthScope)),
            (&wide, None, Some("me"), Some("*"), Ok((Role::Operator, "*"))),
            (&wide, None, None, Some("*"), Err(AuthScope)),
            (&wide, None, None, Some("shop"), Ok((Role::Operator, "shop"))),
            (&local, a, None, Some("*"), Ok((Role::Admin, "*"))),
            (&local, None, None, None, Err(InvalidInput)),
            (&local, None, Some("me"), Some("*"), Err(AuthScope)),
        ]
        .into_iter()
        .enumerate()
        {
            let asked = Registration {
                id: "new".parse().unwrap(),
                public_key: key_of(2),
                role,
                supersedes: supersedes.map(|id: &str| id.parse().unwrap()),
                applications: reach.map(scope),
            };
            let granted = caller.grant(asked).map(|new| (new.role, new.applications)).map_err(|problem| problem.code);
            assert_eq!(granted, want.map(|(role, reach)| (role, scope(reach))), "row {number}");
        }
    }

    #[test]
    fn a_key_cannot_replace_itself() {
        let asked = Registration {
            id: "me".parse().unwrap(),
            public_key: key_of(1),
            role: None,
            supersedes: Some("me".parse().unwrap()),
            applications: None,
        };
        assert_eq!(granter(Role::Admin, "*").grant(asked).unwrap_err().code, InvalidInput);
    }

    #[test]
    fn a_key_sees_and_revokes_along_its_own_rotation_only() {
        let me = Granter::Operator(Box::new(operator("me", Role::Operator, "*", Some("old"))));
        let admin = granter(Role::Admin, "*");
        for (other, supersedes, seen, revoked) in [
            ("me", Some("old"), true, Err(InvalidInput)),
            ("old", None, true, Ok(())),
            ("next", Some("me"), true, Err(AuthScope)),
            ("older", None, false, Err(AuthScope)),
            ("stranger", Some("old"), false, Err(AuthScope)),
        ] {
            let other = operator(other, Role::Operator, "shop", supersedes);
            assert_eq!(me.sees(&other), seen, "{}", other.id);
            assert_eq!(me.may_revoke(&other.id).map_err(|problem| problem.code), revoked, "{}", other.id);
            assert!(admin.sees(&other));
        }
        assert!(admin.may_revoke(&"old".parse().unwrap()).is_ok());
        assert!(me.is_narrowed() && !admin.is_narrowed() && !Granter::Local(String::new()).is_narrowed());
    }
}
