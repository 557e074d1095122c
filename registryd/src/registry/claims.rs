//! Who may claim which host. Pure.
//!
//! A host belongs to whoever claimed it first. A claim may also cover the single label below its host (`wildcard`); then the
//! hosts there belong to the *family* of the holder: the holder itself and every application named `<holder>-…`, because an
//! operator may claim with subdomains only where their key reaches `<holder>-*`. The rule is the same from both sides and in
//! either order: an exact host one label below a covering base stands only if its holder is of the family of the base's
//! holder. The family is always the base's: read the other way round, somebody whose key reaches `my` alone could take hosts
//! below the base of `my-app`, a stranger.

use std::collections::BTreeSet;

use scafo_core::{
    ApplicationName, Problem, ProblemCode,
    domain::{Host, platform_host},
    record::{ApplicationRecord, DomainClaim},
    scope::ApplicationScope,
};

/// The most hosts of one application.
pub const DOMAINS_MAX: usize = 64;

/// Whether `member` may hold hosts below a base that `holder` claimed with its subdomains.
fn family(holder: &ApplicationName, member: &ApplicationName) -> bool {
    member == holder || member.as_str().strip_prefix(holder.as_str()).is_some_and(|rest| rest.starts_with('-'))
}

/// The first of `others` that forbids `name` to hold `host`, covering or not, beside it. Claims on `host` itself are not
/// looked at: its key tells whose it is.
pub(super) fn conflict<'a>(
    name: &ApplicationName,
    host: &Host,
    wildcard: bool,
    others: impl IntoIterator<Item = &'a DomainClaim>,
) -> Option<&'a DomainClaim> {
    let base = host.parent();
    others.into_iter().filter(|other| !other.released).find(|other| {
        let above = other.wildcard && base.as_ref() == Some(&other.host) && !family(&other.application, name);
        let below = wildcard && other.host.parent().as_ref() == Some(host) && !family(name, &other.application);
        above || below
    })
}

/// The refusal for a host that `holder` keeps from the caller, who learns the holder's name only if their key reaches it.
pub(super) fn held(host: &Host, holder: &ApplicationName, names: Option<&ApplicationScope>) -> Problem {
    let holder = match names {
        Some(scope) if scope.reaches(holder) => format!("application `{holder}`"),
        Some(_) | None => "another application of this installation".to_owned(),
    };
    Problem::new(ProblemCode::ReferenceHeld, format!("`{host}` is held by {holder}, which has to release it first"))
}

/// Hosts at and below the platform domains are rendered from application names and never claimed.
pub(super) fn off_platform(host: &Host, domains: &BTreeSet<Host>) -> Result<(), Problem> {
    match domains.iter().find(|domain| host.is_under(domain.as_str())) {
        None => Ok(()),
        Some(domain) => {
            let detail = format!(
                "`{host}` belongs to the platform domain `{domain}`, where every host comes from an application's name: claim a host elsewhere"
            );
            Err(Problem::new(ProblemCode::InvalidInput, detail))
        }
    }
}

/// Where an application answers under the platform domains, sorted.
pub(super) fn platform_hosts(name: &ApplicationName, domains: &BTreeSet<Host>) -> Vec<String> {
    domains.iter().map(|domain| platform_host(name, domain)).collect()
}

/// Whether the application lists the host, with its subdomains if that is asked.
pub(super) fn lists(application: &ApplicationRecord, host: &Host, wildcard: bool) -> bool {
    application.domains.contains(host) && (!wildcard || application.wildcard_domains.contains(host))
}

/// Lists a claimed host.
pub(super) fn list(application: &mut ApplicationRecord, host: &Host, wildcard: bool) -> Result<(), Problem> {
    may_list(application, host)?;
    insert(&mut application.domains, host);
    if wildcard {
        insert(&mut application.wildcard_domains, host);
    }
    Ok(())
}

/// Whether the application could list the host now.
pub(super) fn may_list(application: &ApplicationRecord, host: &Host) -> Result<(), Problem> {
    let name = &application.name;
    if application.blocked {
        let detail = format!("an admin has blocked `{name}`: it claims no hosts until it is unblocked");
        return Err(Problem::new(ProblemCode::ApplicationBlocked, detail));
    }
    if !application.domains.contains(host) && application.domains.len() >= DOMAINS_MAX {
        let detail = format!("`{name}` holds {DOMAINS_MAX} domains already, which is the most: release one first");
        return Err(Problem::new(ProblemCode::InvalidInput, detail));
    }
    Ok(())
}

/// Drops a host.
pub(super) fn unlist(application: &mut ApplicationRecord, host: &Host) {
    application.domains.retain(|listed| listed != host);
    application.wildcard_domains.retain(|listed| listed != host);
}

fn insert(hosts: &mut Vec<Host>, host: &Host) {
    if !hosts.contains(host) {
        hosts.push(host.clone());
    }
}

#[cfg(test)]
mod tests {
    use scafo_core::{
        Timestamp,
        record::{Rest, V1},
    };

    use super::*;

    fn claim(text: &str) -> DomainClaim {
        let (application, host) = text.split_once(' ').unwrap();
        let (host, wildcard) = host.strip_prefix("*.").map_or((host, false), |base| (base, true));
        DomainClaim {
            v: V1,
            host: host.parse().unwrap(),
            application: application.parse().unwrap(),
            wildcard,
            claimed_at: Timestamp::from_millis(0),
            by: "op".to_owned(),
            nonce: None,
            released: false,
            rest: Rest::new(),
        }
    }

    #[test]
    fn claims_one_label_apart_conflict_unless_they_are_of_the_bases_family() {
        for (wanted, there, conflicts) in [
            // An exact host below a covering base.
            ("other x.shop.example", "shop *.shop.example", true),
            ("shop x.shop.example", "shop *.shop.example", false),
            ("shop-pr1 x.shop.example", "shop *.shop.example", false),
            ("shop2 x.shop.example", "shop *.shop.example", true),
            ("shop x.shop.example", "shop-pr1 *.shop.example", true),
            // The base does not cover, or lies elsewhere.
            ("other x.shop.example", "shop shop.example", false),
            ("other a.b.shop.example", "shop *.shop.example", false),
            ("other x.shop2.example", "shop *.shop.example", false),
            // A covering claim above an exact host, in the other order with the same outcome.
            ("shop *.shop.example", "other x.shop.example", true),
            ("shop *.shop.example", "shop x.shop.example", false),
            ("shop *.shop.example", "shop-pr1 x.shop.example", false),
            ("shop *.shop.example", "shop2 x.shop.example", true),
            ("shop-pr1 *.shop.example", "shop x.shop.example", true),
            ("shop *.shop.example", "other a.b.shop.example", false),
            ("shop shop.example", "other x.shop.example", false),
            // Covering at both ends: each holds its own host exactly too.
            ("shop *.shop.example", "other *.x.shop.example", true),
            ("other *.x.shop.example", "shop *.shop.example", true),
        ] {
            let want = claim(wanted);
            let other = claim(there);
            let found = conflict(&want.application, &want.host, want.wildcard, [&other]);
            assert_eq!(found.is_some(), conflicts, "{wanted} beside {there}");
            let gone = DomainClaim { released: true, ..other };
            assert!(conflict(&want.application, &want.host, want.wildcard, [&gone]).is_none());
        }
    }

    #[test]
    fn a_refusal_names_the_holder_only_to_whom_may_know_it() {
        let host: Host = "shop.example".parse().unwrap();
        let holder: ApplicationName = "secret".parse().unwrap();
        let reaches = ApplicationScope::try_from(vec!["secret".to_owned()]).unwrap();
        let elsewhere = ApplicationScope::try_from(vec!["shop-*".to_owned()]).unwrap();
        assert!(held(&host, &holder, Some(&reaches)).detail.contains("`secret`"));
        for names in [Some(&elsewhere), None] {
            let detail = held(&host, &holder, names).detail;
            assert!(!detail.contains("secret") && detail.contains("another application of this installation"));
        }
    }

    #[test]
    fn hosts_of_a_platform_domain_are_not_for_claiming() {
        let domains: BTreeSet<Host> = ["apps.example".parse().unwrap()].into();
        for (host, free) in
            [("apps.example", false), ("x.apps.example", false), ("a.b.apps.example", false), ("myapps.example", true)]
        {
            assert_eq!(off_platform(&host.parse().unwrap(), &domains).is_ok(), free, "{host}");
        }
        assert_eq!(platform_hosts(&"shop".parse().unwrap(), &domains), ["shop.apps.example"]);
    }
}
