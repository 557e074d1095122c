//! What this node tells the fleet about its processes. Pure.

use std::collections::BTreeMap;

use scafo_core::ApplicationName;
use scafo_core::record::{NodeRecord, ProcessState, Rest, Serving};
use scafo_core::view::ProcessStatus;

use super::adoption::Report;
use super::desired::Wanted;

/// Whether a document that is made from this record offers the node's process of an application.
pub(crate) fn names(record: &NodeRecord, application: &ApplicationName) -> bool {
    let offered = |it: &Serving| it.application == *application && it.state == ProcessState::Ready;
    !record.draining && record.serving.iter().any(offered)
}

/// Whether `next` offers less than `before`.
pub(crate) fn withdraws(before: &NodeRecord, next: &NodeRecord) -> bool {
    before.serving.iter().any(|it| names(before, &it.application) && !names(next, &it.application))
}

/// The `serving` array, sorted by application. A process that is not placed here (any more) is shown as `stopping` whatever
/// it does: that is what takes it out of every routing document while it lives on for the hold.
pub(crate) fn fold(
    statuses: &[ProcessStatus],
    wanted: &BTreeMap<ApplicationName, Wanted>,
    reports: &BTreeMap<ApplicationName, Report>,
) -> Vec<Serving> {
    let mut serving: Vec<Serving> = statuses
        .iter()
        .map(|status| {
            let report = reports.get(&status.application);
            let state = match wanted.get(&status.application) {
                Some(Wanted::Placed) => status.state,
                Some(Wanted::Leaving { .. }) | None => ProcessState::Stopping,
            };
            // A reload answers before the next look at the process does; after that what is seen counts, not what was said.
            let (told, seen) = (report.and_then(|report| report.serves.clone()), status.deployment.clone());
            let deployment = if report.is_some_and(|report| report.unseen) { told.or(seen) } else { seen.or(told) };
            Serving {
                application: status.application.clone(),
                port: status.port,
                deployment,
                deploy: report.map(|report| report.deploy.clone()),
                adoption: report.and_then(|report| report.adoption),
                error: report.and_then(|report| report.error.clone()),
                state,
                celld_version: status.celld_version.clone(),
                since: status.since,
                rest: Rest::new(),
            }
        })
        .collect();
    serving.sort_by(|a, b| a.application.cmp(&b.application));
    serving
}

#[cfg(test)]
mod tests {
    use scafo_core::record::Adoption;
    use scafo_core::{DeployId, Timestamp};

    use super::*;
    use crate::registry::Mono;

    fn status(name: &str, state: ProcessState) -> ProcessStatus {
        ProcessStatus {
            application: name.parse().unwrap(),
            state,
            since: Timestamp::from_millis(7),
            pid: Some(1),
            port: 24000,
            internal_port: 24001,
            deployment: Some("v1".parse().unwrap()),
            celld_version: Some("0.6.0".into()),
            restarts: 0,
            started_at: None,
            last_exit: None,
            adopted: false,
        }
    }

    #[test]
    fn a_held_process_is_shown_as_stopping_and_so_leaves_every_document() {
        let statuses = ["c", "b", "a"].map(|name| status(name, ProcessState::Ready));
        let until = Some(Mono::at(std::time::Duration::from_secs(1)));
        let wanted = [("a".parse().unwrap(), Wanted::Placed), ("b".parse().unwrap(), Wanted::Leaving { until })].into();
        let states: Vec<_> = fold(&statuses, &wanted, &BTreeMap::new())
            .into_iter()
            .map(|serving| (serving.application.to_string(), serving.state))
            .collect();
        let expected = [
            ("a".to_owned(), ProcessState::Ready),
            ("b".to_owned(), ProcessState::Stopping),
            ("c".to_owned(), ProcessState::Stopping),
        ];
        assert_eq!(states, expected);
    }

    #[test]
    fn what_a_reload_answered_is_told_until_the_process_was_looked_at_and_then_what_is_seen() {
        let shop: ApplicationName = "shop".parse().unwrap();
        for (unseen, expected) in [(true, "v2"), (false, "v1")] {
            let report = Report {
                deploy: DeployId::new(&shop, 1),
                adoption: Some(Adoption::Adopted),
                error: None,
                serves: Some("v2".parse().unwrap()),
                unseen,
            };
            let serving = fold(
                &[status("shop", ProcessState::Ready)],
                &[(shop.clone(), Wanted::Placed)].into(),
                &[(shop.clone(), report)].into(),
            );
            assert_eq!(serving[0].deployment.as_ref().map(ToString::to_string).as_deref(), Some(expected));
            assert_eq!(serving[0].adoption, Some(Adoption::Adopted));
        }
    }
}
