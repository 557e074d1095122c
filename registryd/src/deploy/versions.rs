//! Which versions of celld may serve one application at a time (celld contract, section 5). Pure.

use scafo_core::record::{NodeRecord, ProcessState};
use scafo_core::{ApplicationName, NodeId, Problem, ProblemCode};

/// The pairs that upstream declares as rolling upgrades. The last one holds for durability `bucket`, which is what scafo
/// starts its processes with.
const ROLLING: [(&str, &str); 3] = [("0.2.1", "0.3.0"), ("0.4.0", "0.4.1"), ("0.5.1", "0.6.0")];

/// Versions are spelled as `celld --version` does, with or without the program's name. The development stand-in has another
/// name, and never serves beside a real celld.
fn may_meet(a: &str, b: &str) -> bool {
    let (program_a, a) = split(a);
    let (program_b, b) = split(b);
    program_a == program_b && (a == b || ROLLING.iter().any(|pair| *pair == (a, b) || *pair == (b, a)))
}

fn split(line: &str) -> (&str, &str) {
    line.split_once(' ').unwrap_or(("celld", line))
}

/// Refuses a deploy by a node with runtime `ours` while a living node serves the application on a version that may not meet
/// it. A node that crash-loops on it counts: it would serve if it could.
///
/// # Errors
/// `version-skew` naming every such node.
pub(crate) fn check<'a>(
    application: &ApplicationName,
    me: &NodeId,
    ours: &str,
    living: impl Iterator<Item = &'a NodeRecord>,
) -> Result<(), Problem> {
    let mut strangers: Vec<String> = Vec::new();
    for node in living.filter(|node| node.id != *me) {
        let serving = node.serving.iter().find(|serving| serving.application == *application);
        let Some(serving) = serving.filter(|serving| counts(serving.state)) else { continue };
        let Some(theirs) = serving.celld_version.as_deref() else { continue };
        if !may_meet(ours, theirs) {
            strangers.push(format!("`{}` ({theirs})", node.id));
        }
    }
    if strangers.is_empty() {
        return Ok(());
    }
    let pairs: Vec<String> = ROLLING.iter().map(|(from, to)| format!("{from} with {to}")).collect();
    Err(Problem::new(
        ProblemCode::VersionSkew,
        format!(
            "node `{me}` has runtime version {ours}, but `{application}` is served on another version by {}; stop it there first, or \
             deploy through a node with that version. Only these versions may serve together: {}",
            strangers.join(", "),
            pairs.join(", ")
        ),
    ))
}

const fn counts(state: ProcessState) -> bool {
    match state {
        ProcessState::Starting | ProcessState::Ready | ProcessState::Unhealthy | ProcessState::CrashLooping => true,
        ProcessState::Stopping | ProcessState::BackingOff => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_versions_and_declared_pairs_may_meet() {
        for (a, b, may) in [
            ("0.6.0", "0.6.0", true),
            ("0.5.1", "0.6.0", true),
            ("0.6.0", "0.5.1", true),
            ("0.4.0", "0.4.1", true),
            ("0.3.0", "0.4.0", false),
            ("0.4.1", "0.5.1", false),
            ("0.6.0", "0.6.1", false),
            ("celld 0.5.1", "0.6.0", true),
            ("celld-workerd 0.6.0", "celld-workerd 0.6.0", true),
            ("celld-workerd 0.6.0", "celld 0.6.0", false),
        ] {
            assert_eq!(may_meet(a, b), may, "{a} {b}");
        }
    }
}
