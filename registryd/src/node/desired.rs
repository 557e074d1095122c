//! Which processes this node shall run. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use scafo_core::ApplicationName;

use crate::registry::Mono;

/// Why a process shall run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The placement names this node.
    Placed,
    /// It did; the process has left the routing documents and lives on until every ingress has seen that.
    Leaving {
        /// When it is stopped.
        until: Mono,
    },
}

/// What a pass knows of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It may serve; `here` when the placement in force names this node.
    Serves {
        /// Whether it is placed here.
        here: bool,
    },
    /// Blocked, retired or being deleted.
    Stopped,
    /// Its record, or its placement's, cannot be read: what runs goes on, nothing is begun.
    Unreadable,
}

/// The processes of this pass. What ran in the last one (`was`) and is placed no longer is held for `hold`, except that
/// block, retire and delete stop at once.
pub(crate) fn desired(
    standings: &BTreeMap<ApplicationName, Standing>,
    was: &BTreeMap<ApplicationName, Wanted>,
    now: Mono,
    hold: Duration,
) -> BTreeMap<ApplicationName, Wanted> {
    let names: BTreeSet<&ApplicationName> = standings.keys().chain(was.keys()).collect();
    let decide = |name: &ApplicationName| {
        let before = was.get(name).copied();
        match standings.get(name)? {
            Standing::Serves { here: true } => Some(Wanted::Placed),
            Standing::Serves { here: false } => match before? {
                Wanted::Placed => Some(Wanted::Leaving { until: now.after(hold) }),
                leaving @ Wanted::Leaving { until } => (until > now).then_some(leaving),
            },
            Standing::Unreadable => before,
            Standing::Stopped => None,
        }
    };
    names.into_iter().filter_map(|name| Some((name.clone(), decide(name)?))).collect()
}

/// When the next hold ends.
pub(crate) fn next_end(desired: &BTreeMap<ApplicationName, Wanted>) -> Option<Mono> {
    let ends = desired.values().filter_map(|wanted| match wanted {
        Wanted::Placed => None,
        Wanted::Leaving { until } => Some(*until),
    });
    ends.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_secs(35);

    fn s(seconds: u64) -> Mono {
        Mono::at(Duration::from_secs(seconds))
    }

    fn one(was: Option<Wanted>, standing: Option<Standing>, at: u64) -> Option<Wanted> {
        let name: ApplicationName = "shop".parse().unwrap();
        let was = was.map(|wanted| (name.clone(), wanted)).into_iter().collect();
        let standings = standing.map(|standing| (name.clone(), standing)).into_iter().collect();
        desired(&standings, &was, s(at), HOLD).remove(&name)
    }

    #[test]
    fn each_standing_has_its_consequence() {
        let leaving = |until| Some(Wanted::Leaving { until: s(until) });
        let here = Some(Standing::Serves { here: true });
        let elsewhere = Some(Standing::Serves { here: false });
        let (unreadable, stopped) = (Some(Standing::Unreadable), Some(Standing::Stopped));
        let placed = Some(Wanted::Placed);
        for (row, (was, standing, at, expected)) in [
            (None, here, 0, placed),
            (None, elsewhere, 0, None),
            (placed, here, 0, placed),
            // Held, and no longer than once.
            (placed, elsewhere, 10, leaving(45)),
            (leaving(45), elsewhere, 44, leaving(45)),
            (leaving(45), elsewhere, 45, None),
            (leaving(45), here, 44, placed),
            // Block, retire and delete do not wait.
            (placed, stopped, 10, None),
            (leaving(45), stopped, 10, None),
            (placed, None, 10, None),
            // A record that cannot be read starts and stops nothing.
            (None, unreadable, 10, None),
            (placed, unreadable, 10, placed),
            (leaving(45), unreadable, 50, leaving(45)),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(one(was, standing, at), expected, "row {row}");
        }
    }

    #[test]
    fn the_next_pass_is_due_when_the_first_hold_ends() {
        let names: [ApplicationName; 3] = ["a", "b", "c"].map(|name| name.parse().unwrap());
        let [a, b, c] = names;
        let desired =
            [(a, Wanted::Placed), (b, Wanted::Leaving { until: s(9) }), (c, Wanted::Leaving { until: s(7) })].into();
        assert_eq!(next_end(&desired), Some(s(7)));
        assert_eq!(next_end(&BTreeMap::new()), None);
    }
}
