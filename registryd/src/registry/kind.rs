//! What every kind of record has: a name for messages, a key, and for most a prefix to list.

use scafo_core::{
    ApplicationName, DeployId, DeploymentVersion, NodeId, OperatorId,
    domain::Host,
    key::{self, prefix},
    record::{
        ApplicationRecord, ChangeHint, CoordinatorLease, DeployRecord, DeploymentRecord, DomainClaim, FreezeRecord,
        IdentityReservation, NodeRecord, OperatorRecord, PlacementRecord, RegistryMeta, Rest, TrustPolicy,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// A record of the registry.
pub trait Record: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    /// What messages call it.
    const NAME: &'static str;

    /// Where it stands.
    fn key(&self) -> String;

    /// Makes the body differ from every body that stood before, where its members may come back to what they were: equal
    /// bytes have equal tags, and a write that is late would take the old body, come back, for the one that it was to replace.
    /// Called for each body that replaces another one.
    fn revise(&mut self) {}
}

/// Member of a record that counts its bodies.
const REVISION: &str = "revision";

fn count_up(rest: &mut Rest) {
    let next = rest.get(REVISION).and_then(Value::as_u64).unwrap_or_default() + 1;
    rest.insert(REVISION.to_owned(), next.into());
}

/// A kind that is listed.
pub trait Kind: Record {
    /// What all its keys start with, trailing separator included.
    const PREFIX: &'static str;

    /// Whether `key` names a record of the kind. What does not is skipped, not read: it is nothing of scafo's.
    fn is_key(key: &str) -> bool;
}

macro_rules! record {
    ($type:ty, $name:literal, |$record:ident| $key:expr $(, revised by $revise:expr)?) => {
        impl Record for $type {
            const NAME: &'static str = $name;

            fn key(&self) -> String {
                let $record = self;
                $key
            }

            $(fn revise(&mut self) {
                $revise(&mut self.rest);
            })?
        }
    };
}

macro_rules! kind {
    ($type:ty, $prefix:expr, $id:ty) => {
        impl Kind for $type {
            const PREFIX: &'static str = $prefix;

            fn is_key(key: &str) -> bool {
                key::name_of(key, $prefix).is_some_and(|name| name.parse::<$id>().is_ok())
            }
        }
    };
}

record!(RegistryMeta, "installation", |_meta| key::META.to_owned());
record!(FreezeRecord, "freeze", |_freeze| key::FREEZE.to_owned());
record!(ChangeHint, "change hint", |_hint| key::CHANGES.to_owned());
record!(CoordinatorLease, "coordinator lease", |_lease| key::LEASE.to_owned());
record!(NodeRecord, "node", |node| key::node(node.id.as_str()));
record!(IdentityReservation, "identity", |identity| key::identity(&identity.id));
record!(OperatorRecord, "operator", |operator| key::operator(operator.id.as_str()));
record!(ApplicationRecord, "application", |application| key::application(&application.name), revised by count_up);
record!(PlacementRecord, "placement", |placement| key::placement(&placement.application));
record!(TrustPolicy, "trust policy", |trust| key::trust(&trust.application), revised by count_up);
record!(DomainClaim, "domain claim", |claim| key::domain(&claim.host));
record!(DeploymentRecord, "deployment", |deployment| key::deployment(&deployment.application, &deployment.version));
// Filed under the application that its id names, so that a record that names another one is found out.
record!(DeployRecord, "deploy", |deploy| format!("{}{}.json", key::deploys(&deploy.application), deploy.id));

kind!(NodeRecord, prefix::NODES, NodeId);
kind!(OperatorRecord, prefix::OPERATORS, OperatorId);
kind!(IdentityReservation, prefix::IDENTITIES, NodeId);
kind!(ApplicationRecord, prefix::APPLICATIONS, ApplicationName);
kind!(PlacementRecord, prefix::PLACEMENT, ApplicationName);
kind!(TrustPolicy, prefix::TRUST, ApplicationName);
kind!(DomainClaim, prefix::DOMAINS, Host);

impl Kind for DeployRecord {
    const PREFIX: &'static str = prefix::DEPLOYS;

    fn is_key(key: &str) -> bool {
        let id = key.rsplit('/').next().and_then(|name| name.strip_suffix(".json"));
        id.and_then(|id| id.parse::<DeployId>().ok()).is_some_and(|id| key::deploy(&id) == key)
    }
}

impl Kind for DeploymentRecord {
    const PREFIX: &'static str = prefix::DEPLOYMENTS;

    fn is_key(key: &str) -> bool {
        let Some((name, version)) = key.strip_prefix(Self::PREFIX).and_then(|rest| rest.split_once('/')) else {
            return false;
        };
        name.parse::<ApplicationName>().is_ok()
            && version.strip_suffix(".json").is_some_and(|version| version.parse::<DeploymentVersion>().is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_ids_are_no_keys() {
        assert!(ApplicationRecord::is_key("_scafo/applications/shop.json"));
        for stray in ["", "shop", "Shop.json", "ü %.json", "a/b.json", ".json", "\u{1}.json", "shop.json.bak"] {
            assert!(!ApplicationRecord::is_key(&format!("_scafo/applications/{stray}")), "{stray:?}");
        }
        assert!(DeployRecord::is_key("_scafo/deploys/shop/shop.0123456789abcdef.json"));
        for stray in ["shop/other.0123456789abcdef.json", "shop.0123456789abcdef.json", "shop/shop.json", "shop/"] {
            assert!(!DeployRecord::is_key(&format!("_scafo/deploys/{stray}")), "{stray:?}");
        }
        assert!(DeploymentRecord::is_key("_scafo/deployments/shop/0123456789abcdef.json"));
        assert!(!DeploymentRecord::is_key("_scafo/deployments/shop/a/b.json"));
        assert!(DomainClaim::is_key("_scafo/domains/shop.example.json"));
    }
}
