//! What the supervisor counts: its daemons, and what the kernel says of every process of the node.

use std::future::{Ready, ready};
use std::sync::{Arc, OnceLock};

use scafo_telemetry::metrics::{Kind, Metrics, Samples, Unit, read};

use crate::celld::Fleet;
use crate::daemon::Handles;
use crate::spawn::proc::{self, Usage};

type Label = (&'static str, String);

/// Gives the text of this moment. Processes of applications are bounded by the ports that the node has for them.
pub(crate) fn collect(
    daemons: Arc<OnceLock<Handles>>,
    fleet: Arc<Fleet>,
) -> impl Fn() -> Ready<String> + Send + Sync + 'static {
    let metrics = Metrics::new("supervisor", |registry| {
        let known = Arc::clone(&daemons);
        let starts = ("process_starts", "How often a daemon was started", None);
        read(registry, Kind::Counter, starts, move || known.get().map_or_else(Samples::new, starts_of));
        let processes = move || processes(daemons.get(), &fleet);
        let resident = processes.clone();
        let memory = ("process_memory", "Memory in use, by process", Some(Unit::Bytes));
        read(registry, Kind::Gauge, memory, move || usage(resident(), |usage| usage.resident_bytes as f64));
        let cpu = ("process_cpu", "Processor time used, by process", Some(Unit::Seconds));
        read(registry, Kind::Counter, cpu, move || usage(processes(), |usage| usage.cpu_seconds));
    });
    move || ready(metrics.text())
}

fn starts_of(daemons: &Handles) -> Samples {
    daemons.starts().map(|(name, starts)| (vec![("process", name.short().to_owned())], starts as f64)).collect()
}

/// Every process of the node with its labels.
fn processes(daemons: Option<&Handles>, fleet: &Fleet) -> Vec<(Vec<Label>, u32)> {
    let label = |name: &str| vec![("process", name.to_owned())];
    let mut all = vec![(label("supervisor"), std::process::id())];
    let running = daemons.into_iter().flat_map(Handles::pids);
    all.extend(running.map(|(name, pid)| (label(name.short()), pid)));
    for status in fleet.watch().borrow().values() {
        if let Some(pid) = status.pid {
            let application = ("application", status.application.to_string());
            all.push(([label("application"), vec![application]].concat(), pid));
        }
    }
    all
}

/// Of those that have not ended meanwhile.
fn usage(processes: Vec<(Vec<Label>, u32)>, of: fn(&Usage) -> f64) -> Samples {
    processes.into_iter().filter_map(|(labels, pid)| Some((labels, of(&proc::usage(pid)?)))).collect()
}
