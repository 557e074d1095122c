//! What a deploy's record keeps of the token that brought it: who signed it, for what, and where the code was built.

use serde_json::{Map, Value, json};

use super::claim::Claims;

/// Claims that say where a deploy came from, as GitHub Actions and GitLab CI name them. Nothing else of a token is kept: it may
/// hold addresses of people.
const KEPT: [&str; 30] = [
    "actor",
    "actor_id",
    "ci_config_ref_uri",
    "ci_config_sha",
    "deployment_tier",
    "environment",
    "event_name",
    "job_id",
    "job_workflow_ref",
    "jti",
    "namespace_id",
    "namespace_path",
    "pipeline_id",
    "pipeline_source",
    "project_id",
    "project_path",
    "ref",
    "ref_protected",
    "ref_type",
    "repository",
    "repository_id",
    "repository_owner",
    "repository_owner_id",
    "repository_visibility",
    "run_attempt",
    "run_id",
    "run_number",
    "runner_environment",
    "sha",
    "workflow_ref",
];
/// Longest value that is kept, in bytes. A longer one is left out whole: half a reference is another reference.
const VALUE_MAX: usize = 512;
/// Longest name of who deployed, in bytes, so that lists of deploys stay readable.
const BY_MAX: usize = 256;

/// The `oidc` member of the records, at most some 24 KiB: thirty claims, issuer, subject and sixteen audiences, all bounded.
pub(super) fn of(claims: &Claims) -> Value {
    let audience = match claims.audiences.as_slice() {
        [one] => json!(one),
        several => json!(several),
    };
    let mut kept = Map::from_iter([
        ("aud".to_owned(), audience),
        ("iss".to_owned(), json!(claims.issuer)),
        ("sub".to_owned(), json!(claims.subject)),
    ]);
    let told = KEPT.iter().filter_map(|name| claims.rest.get(*name).map(|value| (*name, value)));
    kept.extend(told.filter(|(_, value)| is_small(value)).map(|(name, value)| (name.to_owned(), value.clone())));
    Value::Object(kept)
}

fn is_small(value: &Value) -> bool {
    match value {
        Value::String(text) => text.len() <= VALUE_MAX,
        Value::Number(_) | Value::Bool(_) => true,
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

/// The `by` member of the records: `oidc:` and the subject, cut where it is too long.
pub(super) fn by(claims: &Claims) -> String {
    let whole = format!("oidc:{}", claims.subject);
    if whole.len() <= BY_MAX {
        return whole;
    }
    let end = whole.floor_char_boundary(BY_MAX - '…'.len_utf8());
    format!("{}…", &whole[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(subject: &str, rest: Value) -> Claims {
        let Value::Object(rest) = rest else { panic!("claims are an object") };
        Claims { issuer: "https://i".into(), subject: subject.into(), audiences: vec!["scafo".into()], rest }
    }

    #[test]
    fn only_small_claims_about_the_build_are_kept() {
        let told = json!({
            "ref": "refs/heads/main", "run_id": 7, "ref_protected": true, "sha": "x".repeat(513), "actor": null,
            "environment": ["a"], "user_email": "a@b.example", "exp": 1,
        });
        let kept = json!({
            "iss": "https://i", "sub": "s", "aud": "scafo", "ref": "refs/heads/main", "run_id": 7, "ref_protected": true,
        });
        assert_eq!(of(&claims("s", told)), kept);
    }

    #[test]
    fn a_long_subject_is_cut_between_characters() {
        assert_eq!(by(&claims("repo:me/shop", json!({}))), "oidc:repo:me/shop");
        for ascii in 240..260 {
            let by = by(&claims(&("a".repeat(ascii) + &"ä".repeat(40)), json!({})));
            assert!(by.len() <= BY_MAX && by.len() > BY_MAX - 4 && by.ends_with('…'), "{ascii}");
        }
    }

    #[test]
    fn the_list_is_sorted_and_names_nothing_twice() {
        assert!(KEPT.is_sorted_by(|a, b| a < b));
    }
}
