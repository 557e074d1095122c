//! This boot of the machine, for what must not outlive it, and the clock that runs from its beginning.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Which boot of the machine it is. Two that are equal are the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot(String);

impl Boot {
    /// Where the kernel says it; who is confined has to be able to read this.
    pub const FILE: &str = "/proc/sys/kernel/random/boot_id";
    /// Bytes of [`Boot::as_str`]: a UUID as text.
    pub const LEN: usize = 36;

    /// The one that this process runs in.
    ///
    /// # Errors
    /// Where the kernel does not say which boot this is.
    pub fn current() -> io::Result<Self> {
        let text = fs::read_to_string(Self::FILE)?;
        Self::named(text.trim()).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the boot has no proper id"))
    }

    /// One that was written down; `None` for what no boot is called.
    pub fn named(id: &str) -> Option<Self> {
        let plain = id.len() == Self::LEN && id.bytes().all(|byte| byte.is_ascii_graphic());
        plain.then(|| Self(id.to_owned()))
    }

    /// Its id: [`Boot::LEN`] printable characters without a space.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// How long this boot lasts already. Unlike the time of day nobody sets this clock, and it goes on while the machine sleeps.
    pub fn uptime() -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        // Neither is negative on a clock that begins at zero.
        Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), u32::try_from(time.tv_nsec).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_knows_its_boot_and_its_clock_goes_on() {
        assert_eq!(Boot::current().unwrap(), Boot::current().unwrap());
        let before = Boot::uptime();
        assert!(before > Duration::ZERO && Boot::uptime() >= before);
    }

    #[test]
    fn a_boot_is_called_by_a_uuid_and_by_nothing_else() {
        let id = "0c4a3a5e-6f3d-4f0e-9a51-1d2c3b4a5968";
        assert_eq!(Boot::named(id).unwrap().as_str(), id);
        for id in ["", "another boot", &id[1..], &format!("{id}\n"), &id.replace('-', " "), &id.replace('a', "ä")] {
            assert_eq!(Boot::named(id), None, "{id:?}");
        }
    }
}
