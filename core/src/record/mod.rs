//! The records in the bucket. What is serialised here is a promise to every other version of scafo.
//!
//! Every record has `v: 1`; another version does not decode. Every record keeps the members that it does not know in
//! `rest`, so that a mutation by an older node loses nothing that a newer one wrote.

mod application;
mod deploy;
mod fleet;
mod identity;
mod node;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use application::{
    ApplicationRecord, DomainClaim, PlacementRecord, Published, Replicas, TrustPolicy, TrustRule, UnplacedReason,
};
pub use deploy::{Artifact, DeployRecord, DeployState, DeploymentRecord, Source};
pub use fleet::{ChangeHint, CoordinatorLease, Fence, FreezeRecord, RegistryMeta};
pub use identity::{IdentityKind, IdentityReservation, OperatorRecord, Role};
pub use node::{Adoption, Drain, DrainState, NodeRecord, ProcessState, Serving};

/// Members of a record that this build does not know.
pub type Rest = Map<String, Value>;

/// The record version that this build reads and writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct V1;

impl TryFrom<u64> for V1 {
    type Error = String;

    fn try_from(version: u64) -> Result<Self, String> {
        if version == 1 { Ok(Self) } else { Err(format!("record version {version}, this build reads 1")) }
    }
}

impl From<V1> for u64 {
    fn from(_: V1) -> Self {
        1
    }
}

/// Spells a record as the bucket holds it: JSON with an indent of two spaces.
pub fn to_bytes<T: Serialize>(record: &T) -> Vec<u8> {
    serde_json::to_vec_pretty(record).expect("records hold nothing that JSON cannot: keys are strings")
}

#[cfg(test)]
mod tests {
    use super::*;

    const APPLICATION: &str = r#"{
  "v": 1,
  "name": "shop",
  "createdAt": "2026-04-01T12:30:00.000Z",
  "replicas": 2,
  "blocked": true,
  "domains": ["shop.example"],
  "wildcardDomains": [],
  "deployment": { "version": "0123456789abcdef", "deploy": "shop.0123456789abcdef", "later": 1 },
  "added by a later version": { "kept": [1, 2] }
}"#;

    #[test]
    fn a_record_keeps_what_it_does_not_know() {
        let record: ApplicationRecord = serde_json::from_str(APPLICATION).unwrap();
        let before: Value = serde_json::from_str(APPLICATION).unwrap();
        let after: Value = serde_json::from_slice(&to_bytes(&record)).unwrap();
        assert_eq!(before, after);
    }

    #[test]
    fn a_record_of_another_version_does_not_decode() {
        let other = APPLICATION.replace("\"v\": 1", "\"v\": 2");
        let error = serde_json::from_str::<ApplicationRecord>(&other).unwrap_err().to_string();
        assert!(error.contains("record version 2"), "{error}");
    }

    #[test]
    fn records_are_indented_by_two_spaces() {
        let record: ApplicationRecord = serde_json::from_str(APPLICATION).unwrap();
        assert!(String::from_utf8(to_bytes(&record)).unwrap().starts_with("{\n  \"v\": 1,\n  \"name\": \"shop\""));
    }

    #[test]
    fn a_number_that_is_not_ours_comes_back_as_the_same_number() {
        for number in [
            "0.1",
            "5e-324",
            "2.2250738585072011e-308",
            "1.7976931348623157e308",
            "123456.78901234567",
            "8.41245779563529e-5",
            "9007199254740993",
            "18446744073709551615",
            "-9223372036854775808",
        ] {
            let text = APPLICATION.replace("\"later\": 1", &format!("\"later\": {number}"));
            let record: ApplicationRecord = serde_json::from_str(&text).unwrap();
            let written: serde_json::Value = serde_json::from_slice(&to_bytes(&record)).unwrap();
            let later = &written["deployment"]["later"];
            let same = match number.parse::<i128>() {
                Ok(integer) => later.to_string().parse() == Ok(integer),
                Err(_) => later.as_f64().map(f64::to_bits) == number.parse().ok().map(f64::to_bits),
            };
            assert!(same, "{number} became {later}");
        }
    }
}
