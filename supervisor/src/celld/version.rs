//! Which celld an executable is: its version line decides the environment that it gets and the rules that it follows.

use std::fmt;

/// A celld's version. Releases before 0.4 are refused when one is parsed: they read a deployment only when they start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    text: String,
    /// Major and minor, as far as rules depend on them.
    release: (u64, u64),
    standin: bool,
}

/// The oldest release that takes deployments in place.
const OLDEST: (u64, u64) = (0, 4);
/// The release that the stand-in imitates.
const STANDIN: (u64, u64) = (0, 6);

/// Why an executable cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("it printed no version line")]
    NoLine,
    #[error("it is celld {0}, and scafo needs 0.4 or newer")]
    TooOld(String),
}

impl Version {
    /// Finds the version line in what `celld --version` printed. A warning of its log may stand before it.
    pub(crate) fn of_output(output: &str) -> Result<Self, Unusable> {
        output.lines().find_map(Self::of_line).ok_or(Unusable::NoLine)?
    }

    fn of_line(line: &str) -> Option<Result<Self, Unusable>> {
        let (standin, rest) = match line.strip_prefix("celld-workerd ") {
            Some(rest) => (true, rest),
            None => (false, line.strip_prefix("celld ")?),
        };
        let text = rest.split_whitespace().next()?;
        let mut numbers = text.splitn(3, '.');
        let major: u64 = numbers.next()?.parse().ok()?;
        let minor: u64 = numbers.next()?.parse().ok()?;
        if !numbers.next()?.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let release = if standin { STANDIN } else { (major, minor) };
        if release < OLDEST {
            return Some(Err(Unusable::TooOld(text.to_owned())));
        }
        Some(Ok(Self { text: text.to_owned(), release, standin }))
    }

    /// Whether it is the development stand-in.
    pub(crate) const fn is_standin(&self) -> bool {
        self.standin
    }

    /// Whether it is this release or a newer one.
    pub(crate) fn at_least(&self, major: u64, minor: u64) -> bool {
        self.release >= (major, minor)
    }

    /// The route that says whether it is ready; the same for every release that is admitted.
    pub(crate) const fn health_path() -> &'static str {
        "/.well-known/celld/health"
    }
}

impl fmt::Display for Version {
    /// As it goes into records: the number, and the stand-in's name in front of its own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.standin { write!(f, "celld-workerd {}", self.text) } else { f.write_str(&self.text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_line_is_found_wherever_it_stands() {
        let version = Version::of_output("WARN something\ncelld 0.6.1-rc.1 (debug)\n").unwrap();
        assert_eq!(version.to_string(), "0.6.1-rc.1");
        assert!(version.at_least(0, 6) && !version.at_least(0, 7) && !version.is_standin());
        assert!(Version::of_output("celld 1.0.0").unwrap().at_least(0, 7));
    }

    #[test]
    fn the_standin_counts_as_the_release_that_it_imitates() {
        let version = Version::of_output("celld-workerd 0.1.0\n").unwrap();
        assert_eq!(version.to_string(), "celld-workerd 0.1.0");
        assert!(version.is_standin() && version.at_least(0, 6) && !version.at_least(0, 7));
    }

    #[test]
    fn what_is_too_old_or_no_celld_is_refused() {
        assert_eq!(Version::of_output("celld 0.3.9\n"), Err(Unusable::TooOld("0.3.9".to_owned())));
        for other in ["", "celld", "celld x.y.z", "celld 1.2", "xcelld 1.2.3", "workerd 2026-01-01", "celld 1.2.x"] {
            assert_eq!(Version::of_output(other), Err(Unusable::NoLine), "{other}");
        }
    }
}
