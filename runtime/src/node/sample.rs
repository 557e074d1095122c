//! What this process and its workerd take from the machine.

use std::sync::Arc;

use super::gate::Gate;
use crate::lease::Load;

/// Measures for `/state` and for the lease.
#[derive(Clone)]
pub(super) struct Sampler {
    gate: Option<Arc<Gate>>,
}

impl Sampler {
    pub(super) fn new(gate: Option<Arc<Gate>>) -> Self {
        Self { gate }
    }

    /// Resident memory of both processes, in bytes.
    pub(super) fn rss_bytes(&self) -> u64 {
        let workerd = self.gate.as_ref().and_then(|gate| gate.current()).map(|current| current.workerd.pid.to_string());
        resident("self") + workerd.map_or(0, |pid| resident(&pid))
    }

    /// WebSockets that are open.
    pub(super) fn websockets(&self) -> u64 {
        let current = self.gate.as_ref().and_then(|gate| gate.current());
        current.map_or(0, |current| current.tunnels.open() as u64)
    }

    /// The load as the lease has it.
    pub(super) fn load(&self) -> Load {
        let rss_bytes = self.rss_bytes();
        let (soft, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap_or_default();
        Load {
            sampled_ms: u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default(),
            host_websockets: self.websockets(),
            rss_bytes,
            in_use_bytes: rss_bytes,
            open_fds: std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64),
            fd_limit: soft,
            ..Load::default()
        }
    }
}

/// `VmRSS` of a process, 0 if it is gone.
fn resident(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_resident_memory_and_a_missing_one_none() {
        assert!(resident("self") > 1 << 20);
        assert_eq!(resident("0"), 0);
    }
}
