//! The environment: one table of the variables that a node knows, and the check of all of them before anything else runs.
//!
//! Every command checks, `--version` included, because a supervisor that hands down a wrong variable should hear about it
//! from the first process that it starts. A variable that newer releases have removed is refused even when it is empty.

use std::collections::BTreeMap;

use crate::{Failure, failure::Outcome};

/// The variables of the process, those that are not UTF-8 left out (none that we know may be such).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// What this process was started with.
    #[must_use]
    pub fn of_process() -> Self {
        let utf8 = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self(std::env::vars_os().filter_map(utf8).collect())
    }

    /// The value as it is, empty included.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The value, a blank one counting as none.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).map(str::trim).filter(|value| !value.is_empty())
    }

    /// Whether a variable that [`check`] has seen is `1`.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.get(name) == Some("1")
    }

    /// A number that [`check`] has seen, or `default`.
    #[must_use]
    pub fn number(&self, name: &str, default: u64) -> u64 {
        self.get(name).and_then(|value| value.parse().ok()).unwrap_or(default)
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Which release's outside is imitated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Surface {
    /// Health under `/__celld/health`, a deployment only at start, no `/reload`.
    V0_3,
    /// Health under `/.well-known/celld/health`, deployments taken in place.
    #[default]
    V0_6,
}

impl Surface {
    /// The switch `CELLD_STANDIN_SURFACE`: `0.3` or `0.6`.
    ///
    /// # Errors
    /// Anything else.
    pub fn of(environment: &Environment) -> Outcome<Self> {
        match environment.text("CELLD_STANDIN_SURFACE") {
            None | Some("0.6") => Ok(Self::V0_6),
            Some("0.3") => Ok(Self::V0_3),
            Some(other) => Err(Failure::new(format!("CELLD_STANDIN_SURFACE is {other:?}: write 0.3 or 0.6"))),
        }
    }

    /// The release as it is printed.
    #[must_use]
    pub const fn release(self) -> &'static str {
        match self {
            Self::V0_3 => "0.3.0",
            Self::V0_6 => "0.6.0",
        }
    }

    /// The one path of the public listener that never reaches the Worker.
    #[must_use]
    pub const fn health_path(self) -> &'static str {
        match self {
            Self::V0_3 => "/__celld/health",
            Self::V0_6 => "/.well-known/celld/health",
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    /// Exactly `0` or `1`.
    Flag,
    /// A whole number above 0.
    Count,
    /// A whole number, 0 included (it switches something off).
    CountOrZero,
    /// One of these words.
    Word(&'static [&'static str]),
}

/// What both surfaces know. Variables of free text (bucket, addresses, paths) are checked where they are read.
const KNOWN: &[(&str, Kind)] = &[
    ("CELLD_ACTIVATIONS", Kind::Count),
    ("CELLD_ADMISSION_WAIT_MS", Kind::CountOrZero),
    ("CELLD_ALARM_RESIDENT_MS", Kind::CountOrZero),
    ("CELLD_ASSET_CACHE_BYTES", Kind::CountOrZero),
    ("CELLD_CLOUD", Kind::Flag),
    ("CELLD_DEPLOY_MAX_AGE_S", Kind::Count),
    ("CELLD_DEPLOY_POLL_S", Kind::Count),
    ("CELLD_DURABILITY", Kind::Word(&["fleet", "bucket"])),
    ("CELLD_FETCH_TIMEOUT_S", Kind::Count),
    ("CELLD_HANDLER_BUDGET_S", Kind::Count),
    ("CELLD_IDLE_EVICT_S", Kind::Count),
    ("CELLD_LOCAL_CACHE_MAX_BYTES", Kind::CountOrZero),
    ("CELLD_MAX_CELL_REQUESTS", Kind::Count),
    ("CELLD_MAX_OUTBOUND_WEBSOCKETS", Kind::Count),
    ("CELLD_MAX_REQUESTS", Kind::Count),
    ("CELLD_MAX_REQUEST_BODY_BYTES", Kind::Count),
    ("CELLD_MAX_RESIDENT_CELLS", Kind::CountOrZero),
    ("CELLD_MAX_RSS_MB", Kind::CountOrZero),
    ("CELLD_MAX_STATELESS_ISOLATES", Kind::Count),
    ("CELLD_OPERATION_DEADLINE_MS", Kind::Count),
    ("CELLD_PLACEMENT_WEIGHT", Kind::Count),
    ("CELLD_PRESSURE_OWNERSHIP", Kind::Word(&["release", "sticky"])),
    ("CELLD_READY_FLEET_GATE_MS", Kind::CountOrZero),
    ("CELLD_REBALANCE_INTERVAL_MS", Kind::Count),
    ("CELLD_RECOVERY_RETRIES", Kind::Count),
    ("CELLD_RECOVERY_RETRY_MS", Kind::Count),
    ("CELLD_RELEASES", Kind::Count),
    ("CELLD_SHUTDOWN_TOTAL_MS", Kind::Count),
    ("CELLD_TOKIO_THREADS", Kind::Count),
    ("CELLD_TRUST_FORWARDED_HEADERS", Kind::Flag),
    ("CELLD_TTL_MS", Kind::Count),
    ("CELLD_UNSAFE_PUBLIC_ADVERTISE", Kind::Flag),
    ("CELLD_V8_HEAP_LIMIT_MB", Kind::Count),
    ("CELLD_WAKER_TICK_MS", Kind::Count),
];

/// What only the 0.3 surface knows.
const KNOWN_0_3: &[(&str, Kind)] = &[
    ("CELLD_EVICTIONS", Kind::Count),
    ("CELLD_LOG_BUNDLE", Kind::Flag),
    ("CELLD_OUTPUT_GATE", Kind::Flag),
    ("CELLD_SHUTDOWN_DRAIN_MS", Kind::Count),
    ("CELLD_STORAGE_PROBE", Kind::Flag),
];

/// What the 0.6 surface refuses, whatever the value.
const REFUSED_0_6: &[&str] = &[
    "CELLD_AI_BINDING",
    "CELLD_AI_URL",
    "CELLD_CLOUD_RESTART_ON_DEPLOY",
    "CELLD_DRAIN_TOKEN_WAIT_MS",
    "CELLD_EVICTIONS",
    "CELLD_LOG_BUNDLE",
    "CELLD_LOG_CAPTURE_WORKERS",
    "CELLD_LOG_GROUP_COMMIT_MS",
    "CELLD_MAX_LOADED_WORKERS",
    "CELLD_OTEL_SINK",
    "CELLD_OUTPUT_GATE",
    "CELLD_PACED_HANDOFF",
    "CELLD_PRESENCE_SHADOW",
    "CELLD_QUEUE_PRODUCER_GROUP_MS",
    "CELLD_REBALANCE_BATCH_CELLS",
    "CELLD_SHUTDOWN_DRAIN_MS",
    "CELLD_STORAGE_PROBE",
    "CELLD_VARS_FILE",
    "CELLD_WORKER_LOADER",
];

/// Values of Worker variables per node: gone since 0.5.
const REFUSED_PREFIX_0_6: &str = "CELLD_VAR_";

/// Checks every variable that this surface knows, and refuses those that it has removed.
///
/// # Errors
/// The first variable, by name, that does not parse or is no longer accepted.
pub fn check(environment: &Environment, surface: Surface) -> Outcome<()> {
    for (name, value) in &environment.0 {
        if surface == Surface::V0_6 && (REFUSED_0_6.contains(&name.as_str()) || name.starts_with(REFUSED_PREFIX_0_6)) {
            return Err(Failure::new(format!("{name} was removed and is no longer accepted: unset it")));
        }
        let older: &[(&str, Kind)] = if surface == Surface::V0_3 { KNOWN_0_3 } else { &[] };
        if let Some((_, kind)) = KNOWN.iter().chain(older).find(|(known, _)| known == name) {
            check_value(name, value, *kind)?;
        }
    }
    Ok(())
}

fn check_value(name: &str, value: &str, kind: Kind) -> Outcome<()> {
    let wanted = match kind {
        Kind::Flag if matches!(value, "0" | "1") => return Ok(()),
        Kind::Count if value.parse::<u64>().is_ok_and(|number| number > 0) => return Ok(()),
        Kind::CountOrZero if value.parse::<u64>().is_ok() => return Ok(()),
        Kind::Word(words) if words.contains(&value) => return Ok(()),
        Kind::Flag => "0 or 1".to_owned(),
        Kind::Count => "a whole number above 0".to_owned(),
        Kind::CountOrZero => "a whole number".to_owned(),
        Kind::Word(words) => words.join(" or "),
    };
    Err(Failure::new(format!("{name} is {value:?}: it must be {wanted}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(surface: Surface, name: &str, value: &str) -> bool {
        check(&Environment::from_iter([(name, value)]), surface).is_ok()
    }

    #[test]
    fn flags_are_exactly_zero_or_one() {
        for (value, accepted) in [("0", true), ("1", true), ("", false), ("true", false), ("01", false), (" 1", false)]
        {
            assert_eq!(checked(Surface::V0_6, "CELLD_TRUST_FORWARDED_HEADERS", value), accepted, "{value:?}");
        }
    }

    #[test]
    fn numbers_must_parse_and_only_the_listed_ones_may_be_zero() {
        for (name, value, accepted) in [
            ("CELLD_TTL_MS", "10000", true),
            ("CELLD_TTL_MS", "0", false),
            ("CELLD_TTL_MS", "", false),
            ("CELLD_TTL_MS", "10s", false),
            ("CELLD_TTL_MS", "-1", false),
            ("CELLD_MAX_RSS_MB", "0", true),
            ("CELLD_MAX_RSS_MB", "", false),
            ("CELLD_MAX_RESIDENT_CELLS", "0", true),
            ("CELLD_ADMISSION_WAIT_MS", "0", true),
            ("CELLD_TOKIO_THREADS", "0", false),
            ("CELLD_DURABILITY", "bucket", true),
            ("CELLD_DURABILITY", "disk", false),
        ] {
            assert_eq!(checked(Surface::V0_6, name, value), accepted, "{name}={value:?}");
        }
    }

    #[test]
    fn removed_variables_are_refused_even_when_empty() {
        for name in REFUSED_0_6.iter().chain(&["CELLD_VAR_GREETING", "CELLD_VAR_"]) {
            assert!(!checked(Surface::V0_6, name, ""), "{name}");
            assert!(!checked(Surface::V0_6, name, "1"), "{name}");
        }
        assert!(checked(Surface::V0_3, "CELLD_SHUTDOWN_DRAIN_MS", "25000"));
        assert!(checked(Surface::V0_3, "CELLD_VAR_GREETING", "hi"));
        assert!(!checked(Surface::V0_3, "CELLD_EVICTIONS", "many"));
    }

    #[test]
    fn unknown_variables_are_ignored() {
        assert!(checked(Surface::V0_6, "CELLD_SOMETHING_NEW", "x"));
        assert!(checked(Surface::V0_6, "PATH", ""));
    }

    #[test]
    fn the_surface_is_the_newer_one_unless_switched() {
        assert_eq!(Surface::of(&Environment::default()).unwrap(), Surface::V0_6);
        let old = Environment::from_iter([("CELLD_STANDIN_SURFACE", "0.3")]);
        assert_eq!(Surface::of(&old).unwrap(), Surface::V0_3);
        assert!(Surface::of(&Environment::from_iter([("CELLD_STANDIN_SURFACE", "0.4")])).is_err());
    }
}
