//! What is printed at the end, and what of it is a fault.

use std::collections::BTreeMap;
use std::time::Duration;

use scafo_core::Timestamp;

use crate::allowed::{Reason, reason};
use crate::events::Log;
use crate::load::Answers;
use crate::starts;

/// Descriptors that a daemon may have more at the end than twice those before: connections that are just kept open. One that lost
/// a descriptor with each deploy, request or restart would have hundreds.
const SPARE: usize = 32;

/// Daemons that hold more descriptors than before.
pub(crate) fn grown(before: &BTreeMap<String, usize>, after: &BTreeMap<String, usize>) -> Vec<String> {
    let grown = after.iter().filter_map(|(name, now)| {
        let old = before.get(name).copied().unwrap_or_default();
        (*now > 2 * old + SPARE).then(|| format!("{name} has {now} descriptors, before it had {old}"))
    });
    grown.collect()
}

/// Leases that were lost although the store was there, and starts that the rules do not have.
fn unreasonable(log: &Log) -> Vec<String> {
    let mut faults = Vec::new();
    for lost in log.lost_leases.iter().filter(|lost| !lost.struck) {
        if !log.refusals.explain_loss(lost.earliest, lost.latest) {
            faults.push(format!("app-{} lost its lease although the store was there", lost.application));
        }
    }
    let Some((here, there)) = log.ended else { return faults };
    let moment = |at: Timestamp| here.checked_sub(there.since(at)).unwrap_or(here);
    for (application, lines) in starts::read(&log.node) {
        faults.extend(starts::faults(&application, &lines));
        for (begun, ended) in starts::refused_to_start(&lines) {
            if !log.refusals.within(moment(begun), moment(ended)) {
                faults.push(format!("{application} refused to start at {ended} although the store was there"));
            }
        }
    }
    faults
}

/// Prints the report. What comes back should not be.
pub(crate) fn print(seed: u64, answers: &Answers, log: &Log) -> Vec<String> {
    let mut allowed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut faults: Vec<String> = log.violations.iter().cloned().collect();
    let first = answers.first().map(|(answer, _)| answer.sent);
    let mut failed = 0;
    for (answer, _) in answers.iter().filter(|(_, good)| !good) {
        failed += 1;
        match reason(answer, &log.windows) {
            Some(Reason::Application(_)) => *allowed.entry("its only process was killed or stopped").or_default() += 1,
            Some(Reason::Held) => *allowed.entry("in flight in a killed ingress").or_default() += 1,
            Some(Reason::Down) => *allowed.entry("a supervisor in the foreground was down").or_default() += 1,
            None => {
                let at = first.map_or(Duration::ZERO, |first| answer.sent.duration_since(first));
                let took = answer.ended.duration_since(answer.sent);
                faults
                    .push(format!("app-{} after {at:.1?}, took {took:.1?}: {:?}", answer.application, answer.outcome));
            }
        }
    }
    eprintln!("chaos, seed {seed}: {} requests, {failed} failed", answers.len());
    for (why, count) in allowed {
        eprintln!("  {count:>6} allowed: {why}");
    }
    eprintln!("deploys: {} went through, {} did not", log.deployed, log.not_deployed.len());
    for said in &log.not_deployed {
        let line = said.lines().find(|line| line.contains("error")).unwrap_or(said);
        eprintln!("  {line}");
    }
    eprintln!("recovery:");
    for (what, times) in &log.recoveries {
        let mut times = times.clone();
        times.sort();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64();
        eprintln!("  {what:<44} n {:>3}   median {:>6.2} s   longest {:>6.2} s", times.len(), at(50), at(100));
    }
    eprintln!("left behind: {}", if log.leaks.is_empty() { "nothing".to_owned() } else { log.leaks.join(", ") });
    eprintln!("leases lost: {}", log.lost_leases.len());
    faults.extend(unreasonable(log));
    faults.extend(log.leaks.iter().map(|leak| format!("left behind: {leak}")));
    if !faults.is_empty() {
        let path = std::env::temp_dir().join(format!("scafo-chaos-{seed}.log"));
        let kept = std::fs::write(&path, &log.node);
        eprintln!("the node's log is in {}: {kept:?}; the load began at {}", path.display(), log.begun);
    }
    faults
}
