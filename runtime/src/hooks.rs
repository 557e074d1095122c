//! Test hooks: misbehaviour on demand, so that a supervisor's handling of it can be tested without waiting for it.
//!
//! A real celld ignores these variables. All are off by default.

use std::time::Duration;

use crate::{Failure, environment::Environment, failure::Outcome};

/// What the environment asks a node to do wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hooks {
    /// Other live stand-ins of the fleet are no reason to stop.
    pub multi: bool,
    /// Health stays 503 for this long after the start, or for ever.
    pub ready_delay: Option<Duration>,
    /// Health stays 503.
    pub never_ready: bool,
    /// Leave after this time, with this code.
    pub exit_after: Option<(Duration, u8)>,
    /// Begin the drain and never end it.
    pub ignore_sigterm: bool,
    /// Lose the lease after this time.
    pub drop_lease_after: Option<Duration>,
    /// The next adoption fails with this text.
    pub fail_adoption: Option<String>,
    /// Eat something without end.
    pub hog: Option<Hog>,
}

/// What to eat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hog {
    /// Memory, 16 MiB at a time.
    Memory,
    /// Processes that sleep.
    Tasks,
    /// Standard output.
    Log,
}

/// How `deploy` ends, if not well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeployHook {
    /// As if another deploy had moved the pointer.
    LostRace,
    /// The pointer is written and the answer is lost.
    Ambiguous,
    /// Never.
    Hang,
}

impl Hooks {
    pub(crate) fn of(environment: &Environment) -> Outcome<Self> {
        let millis = |name: &str| number(environment, name).map(|found| found.map(Duration::from_millis));
        let code = match number(environment, "CELLD_STANDIN_EXIT_CODE")? {
            None => 1,
            Some(code) => u8::try_from(code)
                .map_err(|_| Failure::new("CELLD_STANDIN_EXIT_CODE is above 255, which no exit code can be"))?,
        };
        let hog = match environment.text("CELLD_STANDIN_HOG") {
            None => None,
            Some("memory") => Some(Hog::Memory),
            Some("tasks") => Some(Hog::Tasks),
            Some("log") => Some(Hog::Log),
            Some(other) => {
                return Err(Failure::new(format!("CELLD_STANDIN_HOG is {other:?}: write memory, tasks or log")));
            }
        };
        Ok(Self {
            multi: environment.flag("CELLD_STANDIN_MULTI"),
            ready_delay: millis("CELLD_STANDIN_READY_DELAY_MS")?,
            never_ready: environment.flag("CELLD_STANDIN_NEVER_READY"),
            exit_after: millis("CELLD_STANDIN_EXIT_AFTER_MS")?.map(|after| (after, code)),
            ignore_sigterm: environment.flag("CELLD_STANDIN_IGNORE_SIGTERM"),
            drop_lease_after: millis("CELLD_STANDIN_DROP_LEASE_AFTER_MS")?,
            fail_adoption: environment.text("CELLD_STANDIN_FAIL_ADOPTION").map(str::to_owned),
            hog,
        })
    }
}

impl DeployHook {
    pub(crate) fn of(environment: &Environment) -> Outcome<Option<Self>> {
        match environment.text("CELLD_STANDIN_DEPLOY") {
            None => Ok(None),
            Some("lost-race") => Ok(Some(Self::LostRace)),
            Some("ambiguous") => Ok(Some(Self::Ambiguous)),
            Some("hang") => Ok(Some(Self::Hang)),
            Some(other) => {
                Err(Failure::new(format!("CELLD_STANDIN_DEPLOY is {other:?}: write lost-race, ambiguous or hang")))
            }
        }
    }
}

fn number(environment: &Environment, name: &str) -> Outcome<Option<u64>> {
    let Some(text) = environment.text(name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| Failure::new(format!("{name} is {text:?}: it must be a whole number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hook_is_off_by_default() {
        assert_eq!(Hooks::of(&Environment::default()).unwrap(), Hooks::default());
        assert_eq!(DeployHook::of(&Environment::default()).unwrap(), None);
    }

    #[test]
    fn a_hook_that_does_not_parse_is_refused() {
        for (name, value) in
            [("CELLD_STANDIN_HOG", "cpu"), ("CELLD_STANDIN_EXIT_CODE", "256"), ("CELLD_STANDIN_READY_DELAY_MS", "soon")]
        {
            assert!(Hooks::of(&Environment::from_iter([(name, value)])).is_err(), "{name}");
        }
        assert!(DeployHook::of(&Environment::from_iter([("CELLD_STANDIN_DEPLOY", "fail")])).is_err());
    }

    #[test]
    fn an_exit_has_a_time_and_a_code() {
        let environment =
            Environment::from_iter([("CELLD_STANDIN_EXIT_AFTER_MS", "250"), ("CELLD_STANDIN_EXIT_CODE", "134")]);
        assert_eq!(Hooks::of(&environment).unwrap().exit_after, Some((Duration::from_millis(250), 134)));
    }
}
