//! Trust policies: whose workload tokens may deploy an application, which need not exist yet.

use scafo_core::{
    ApplicationName, Problem, ProblemCode, key,
    record::{Rest, TrustPolicy, TrustRule, V1},
    trust::is_fetchable,
};

use super::{Intent, Registry, Step, Stored};

/// Rules of one policy. A token is matched against each, and an application has one or two issuers.
const RULES_MAX: usize = 32;
/// Subject patterns of one rule.
const SUBJECTS_MAX: usize = 64;
/// Characters of an issuer, an audience or a pattern; the longest subjects that CI systems issue have some 300.
const TEXT_MAX: usize = 512;

impl Registry {
    /// Puts one rule in the place of the one with the same issuer and audience, or beside the others.
    ///
    /// # Errors
    /// `invalid-input` for a rule that no token can match, and for too many; store errors.
    pub async fn set_trust(&self, name: &ApplicationName, rule: &TrustRule) -> Result<TrustPolicy, Problem> {
        sound(rule)?;
        let decide = |there: Option<&Stored<TrustPolicy>>| {
            let mut policy = there.map_or_else(
                || TrustPolicy { v: V1, application: name.clone(), rules: Vec::new(), rest: Rest::new() },
                |stored| stored.record.clone(),
            );
            let full = policy.rules.len() >= RULES_MAX;
            match policy.rules.iter_mut().find(|old| old.issuer == rule.issuer && old.audience == rule.audience) {
                Some(old) => old.subjects.clone_from(&rule.subjects),
                None if !full => policy.rules.push(rule.clone()),
                None => {
                    let detail = format!("`{name}` has {RULES_MAX} trust rules already, which is the most");
                    return Err(Problem::new(ProblemCode::InvalidInput, detail));
                }
            }
            Ok(Step::Write(policy))
        };
        let changed = self.engine().change(&self.intent(), &key::trust(name), None, decide).await?;
        Ok(changed.stored.record)
    }

    /// Removes the rules of one issuer, or the whole policy. Answers whether there was anything to remove.
    ///
    /// # Errors
    /// Store errors.
    pub async fn remove_trust(&self, name: &ApplicationName, issuer: Option<&str>) -> Result<bool, Problem> {
        let there = match self.trust(name).await {
            // What cannot be read can be removed all the same.
            Err(problem) if problem.code == ProblemCode::StoreNonconforming && issuer.is_none() => {
                self.engine().delete_unreadable::<TrustPolicy>(&Intent::new(), &key::trust(name)).await?;
                return Ok(true);
            }
            there => there?,
        };
        let Some(stored) = there else { return Ok(false) };
        let Some(issuer) = issuer else {
            let is_it = |stands: &Stored<TrustPolicy>| stands.continues(&stored);
            self.engine().delete_record(&Intent::new(), &key::trust(name), is_it).await?;
            return Ok(true);
        };
        if stored.record.rules.iter().all(|rule| rule.issuer != issuer) {
            return Ok(false);
        }
        // A policy without rules admits nobody, as none does.
        let drop = |policy: &mut TrustPolicy| {
            policy.rules.retain(|rule| rule.issuer != issuer);
            Ok(())
        };
        match self.engine().update(&self.intent(), &key::trust(name), drop).await {
            Err(problem) if problem.code == ProblemCode::NotFound => Ok(true),
            changed => changed.map(|_| true),
        }
    }
}

/// Refuses a rule that could admit nobody or that no token can match.
fn sound(rule: &TrustRule) -> Result<(), Problem> {
    let TrustRule { issuer, audience, subjects, rest: _ } = rule;
    let refuse = |detail: String| Err(Problem::new(ProblemCode::InvalidInput, detail));
    let plain =
        |text: &str| !text.is_empty() && text.chars().count() <= TEXT_MAX && !text.chars().any(char::is_control);
    if !plain(issuer) || !is_fetchable(issuer) {
        let shape = "`issuer` is the https URL that tokens name as `iss`, without credentials, query and fragment";
        return refuse(shape.to_owned());
    }
    if !plain(audience) {
        return refuse(format!("`audience` is one line of 1 to {TEXT_MAX} characters"));
    }
    if subjects.is_empty() || subjects.len() > SUBJECTS_MAX {
        return refuse(format!("a trust rule has 1 to {SUBJECTS_MAX} subjects"));
    }
    if let Some(subject) = subjects.iter().find(|subject| !plain(subject)) {
        return refuse(format!(
            "a subject is one line of 1 to {TEXT_MAX} characters, and one of them is {subject:.80?}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scafo_store::{Fault, Operation};

    use super::*;
    use crate::registry::testing::{World, put_raw};

    fn rule(issuer: &str, subjects: &[&str]) -> TrustRule {
        TrustRule {
            issuer: issuer.to_owned(),
            audience: "scafo".to_owned(),
            subjects: subjects.iter().map(ToString::to_string).collect(),
            rest: Rest::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rule_takes_the_place_of_the_one_of_its_issuer() {
        let world = World::new();
        let registry = &world.registry;
        let shop = "shop".parse().unwrap();
        registry.set_trust(&shop, &rule("https://a.example", &["repo:x:*"])).await.unwrap();
        registry.set_trust(&shop, &rule("https://b.example", &["repo:y:*"])).await.unwrap();
        let policy = registry.set_trust(&shop, &rule("https://a.example", &["repo:z:*"])).await.unwrap();
        assert_eq!(policy.rules, [rule("https://a.example", &["repo:z:*"]), rule("https://b.example", &["repo:y:*"])]);
        assert!(registry.remove_trust(&shop, Some("https://a.example")).await.unwrap());
        assert!(!registry.remove_trust(&shop, Some("https://a.example")).await.unwrap());
        assert_eq!(registry.trust(&shop).await.unwrap().unwrap().record.rules.len(), 1);
        assert!(registry.remove_trust(&shop, None).await.unwrap());
        assert!(!registry.remove_trust(&shop, None).await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_policy_that_cannot_be_read_can_be_removed() {
        let world = World::new();
        let shop = "shop".parse().unwrap();
        put_raw(&world.memory, "_scafo/trust/shop.json", "<html>").await;
        let refused = world.registry.set_trust(&shop, &rule("https://a.example", &["x"])).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::StoreNonconforming);
        assert!(world.registry.remove_trust(&shop, None).await.unwrap());
        world.registry.set_trust(&shop, &rule("https://a.example", &["x"])).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_policy_made_anew_while_the_last_one_is_removed_stays() {
        for unreadable in [false, true] {
            let world = World::new();
            let (other, shop, key) = (world.sibling(), "shop".parse().unwrap(), "_scafo/trust/shop.json");
            world.registry.set_trust(&shop, &rule("https://a.example", &["x"])).await.unwrap();
            if unreadable {
                put_raw(&world.memory, key, "<html>").await;
            }
            let mut lost = false;
            world.memory.plan(move |operation| {
                (operation == Operation::Delete(key) && !std::mem::replace(&mut lost, true))
                    .then_some(Fault::LoseAnswer)
            });
            let anew = async {
                while !other.memory.keys(key).is_empty() {
                    other.registry.clock().sleep(Duration::from_millis(1)).await;
                }
                other.registry.set_trust(&shop, &rule("https://b.example", &["y"])).await.unwrap()
            };
            let (removed, anew) = tokio::join!(world.registry.remove_trust(&shop, None), anew);
            assert!(removed.unwrap());
            assert_eq!(other.registry.trust(&shop).await.unwrap().unwrap().record, anew, "{unreadable}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rule_set_anew_while_the_last_one_is_removed_stays() {
        let world = World::new();
        let (other, shop, issuer) = (world.sibling(), "shop".parse().unwrap(), "https://a.example");
        for subject in ["x", "y"] {
            let rule = TrustRule { audience: subject.to_owned(), ..rule(issuer, &[subject]) };
            world.registry.set_trust(&shop, &rule).await.unwrap();
        }
        let lost = [Fault::LoseAnswer, Fault::LoseRequest, Fault::LoseRequest, Fault::LoseRequest];
        world.memory.fail_next_puts("_scafo/trust/shop.json", lost);
        let anew = async {
            while !other.registry.trust(&shop).await.unwrap().unwrap().record.rules.is_empty() {
                other.registry.clock().sleep(Duration::from_millis(1)).await;
            }
            other.registry.set_trust(&shop, &rule(issuer, &["z"])).await.unwrap();
        };
        let (removed, ()) = tokio::join!(world.registry.remove_trust(&shop, Some(issuer)), anew);
        assert!(removed.unwrap());
        assert_eq!(other.registry.trust(&shop).await.unwrap().unwrap().record.rules, [rule(issuer, &["z"])]);
    }

    #[test]
    fn only_sound_rules_are_taken() {
        for good in [
            "https://token.actions.githubusercontent.com",
            "http://127.0.0.1:4000/x",
            "http://[::1]:9",
            "http://localhost",
        ] {
            assert!(sound(&rule(good, &["repo:me/shop:*"])).is_ok(), "{good}");
        }
        for bad in [
            "",
            "https://",
            "http://issuer.example",
            "ftp://x",
            "https://x?y",
            "https://x#y",
            "https://x y",
            "http://127.0.0.1.evil.example",
            "http://127.0.0.1:80@evil.example",
        ] {
            assert!(sound(&rule(bad, &["repo:me/shop:*"])).is_err(), "{bad}");
        }
        let long = "x".repeat(TEXT_MAX + 1);
        for bad in [&[][..], &[""], &["a\nb"], &[long.as_str()]] {
            assert!(sound(&rule("https://a.example", bad)).is_err(), "{bad:?}");
        }
        assert!(sound(&TrustRule { audience: String::new(), ..rule("https://a.example", &["x"]) }).is_err());
    }
}
