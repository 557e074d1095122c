//! Why the process ends, and what a person reads about it.

use std::{
    error::Error,
    fmt::{self, Write as _},
    io,
    process::ExitCode,
};

use nix::errno::Errno;

/// How the process ends. The numbers are celld's, and supervisors act on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Help, version, or a drain that was asked for.
    Clean,
    /// Refused to start, or could not go on.
    Refused,
    /// Lost its lease and fenced itself.
    Fenced,
    /// What a test hook asks for.
    Hooked(u8),
}

impl Exit {
    /// The number that the parent sees.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Refused => 1,
            Self::Fenced => 3,
            Self::Hooked(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// An error for people: what this layer failed to do, and the chain below it.
pub struct Failure {
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What most functions of this crate give back.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure that nothing below explains.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    /// A failure with the error that caused it.
    pub fn because(message: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { message: message.into(), source: Some(source.into()) }
    }

    /// Whether this says nothing about what was asked for, and another try may go well: the bucket gave no answer, or this machine
    /// lacked something for the moment.
    pub(crate) fn may_pass(&self) -> bool {
        let mut below = self.source();
        while let Some(error) = below {
            if let Some(error) = error.downcast_ref::<scafo_store::Error>() {
                // These two are answers, about the object itself.
                return !matches!(
                    error,
                    scafo_store::Error::TooLarge { .. } | scafo_store::Error::Nonconforming { .. }
                );
            }
            if error.downcast_ref::<io::Error>().is_some_and(is_a_lack) {
                return true;
            }
            below = error.source();
        }
        false
    }

    /// The whole chain in one string, parts divided by `: `.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut below = self.source();
        while let Some(error) = below {
            let part = error.to_string();
            // Some libraries print their source themselves.
            if !text.ends_with(&part) {
                // Writing to a string cannot fail.
                let _infallible = write!(text, ": {part}");
            }
            below = error.source();
        }
        text
    }
}

/// Whether the machine has too little of something that comes back by itself: of memory, descriptors or processes. A full disk has to be
/// told to somebody, at once.
fn is_a_lack(error: &io::Error) -> bool {
    const LACKS: [Errno; 4] = [Errno::ENOMEM, Errno::EMFILE, Errno::ENFILE, Errno::EAGAIN];
    error.raw_os_error().is_some_and(|number| LACKS.contains(&Errno::from_raw(number)))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.chain())
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

/// Says what was being done when something failed.
pub(crate) trait Context<T> {
    /// Puts `message` in front of the error.
    fn context(self, message: impl FnOnce() -> String) -> Outcome<T>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> Context<T> for Result<T, E> {
    fn context(self, message: impl FnOnce() -> String) -> Outcome<T> {
        self.map_err(|error| Failure::because(message(), error))
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, message: impl FnOnce() -> String) -> Outcome<T> {
        self.ok_or_else(|| Failure::new(message()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_names_every_layer_once() {
        let inner = Failure::because("open the index", std::io::Error::other("disk on fire"));
        let outer = Failure::because("load the deployment", inner);
        assert_eq!(outer.chain(), "load the deployment: open the index: disk on fire");
    }

    #[test]
    fn only_a_bucket_that_gives_no_answer_leaves_the_question_open() {
        let silent = scafo_store::Error::NoSuchBucket;
        let large = scafo_store::Error::TooLarge { key: "k".into(), size: 2, limit: 1 };
        for (source, open) in [(silent, true), (large, false)] {
            let failure = Failure::because("load the deployment", Failure::because("read the manifest", source));
            assert_eq!(failure.may_pass(), open, "{failure:?}");
        }
        assert!(!Failure::because("start workerd", io::Error::other("no memory")).may_pass());
    }

    #[test]
    fn what_this_machine_lacks_for_the_moment_is_no_fault_of_the_deployment() {
        let of = |errno: Errno| {
            Failure::because("take the deployment", Failure::because("write a module", io::Error::from(errno)))
        };
        for errno in [Errno::ENOMEM, Errno::EMFILE, Errno::ENFILE, Errno::EAGAIN] {
            assert!(of(errno).may_pass(), "{errno:?}");
        }
        for errno in [Errno::ENOSPC, Errno::EDQUOT, Errno::EACCES, Errno::ENOENT, Errno::ENAMETOOLONG] {
            assert!(!of(errno).may_pass(), "{errno:?}");
        }
    }

    #[test]
    fn exit_codes_are_those_of_celld() {
        assert_eq!([Exit::Clean.code(), Exit::Refused.code(), Exit::Fenced.code()], [0, 1, 3]);
    }
}
