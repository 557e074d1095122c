//! What the answers to one logical write add up to. Pure: outcomes in, the next step out.
//!
//! Every try of a write carries the same write id and the same condition. A try without an answer may have landed, and may
//! land later; from then on a refusal proves nothing, and only our id on the object proves that we wrote it. Its absence
//! proves nothing either: ours may have landed and been overwritten.

use scafo_store::{Cause, Condition, ETag, Put};

/// One logical write on its way.
#[derive(Debug)]
pub(super) struct Settling<'a> {
    condition: &'a Condition,
    write_id: &'a str,
    /// A try went without an answer.
    doubt: Option<Cause>,
    /// The store has said that the condition does not hold.
    refused: bool,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It is written.
    Written(ETag),
    /// The condition does not hold; certainly nothing of ours was written, unless in doubt.
    Moved {
        /// Whether an earlier try may have landed and been overwritten.
        doubtful: bool,
    },
    /// Look what is there.
    ReadBack,
    /// Try again with the same condition, after a wait.
    Again,
}

/// What a read found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) etag: &'a ETag,
    pub(super) write_id: Option<&'a str>,
}

impl<'a> Settling<'a> {
    pub(super) const fn new(condition: &'a Condition, write_id: &'a str) -> Self {
        Self { condition, write_id, doubt: None, refused: false }
    }

    /// Why it is in doubt, if it is.
    pub(super) const fn doubt(&self) -> Option<&Cause> {
        self.doubt.as_ref()
    }

    pub(super) fn put(&mut self, put: Put) -> Next {
        match put {
            Put::Written(etag) => Next::Written(etag),
            Put::Unknown(cause) => {
                self.doubt = Some(cause);
                Next::Again
            }
            Put::Busy => Next::Again,
            Put::Conflict => Next::ReadBack,
            Put::Refused if self.doubt.is_some() => {
                self.refused = true;
                Next::ReadBack
            }
            // Nothing is there to carry our id.
            Put::Refused | Put::Gone => Next::Moved { doubtful: self.doubt.is_some() },
        }
    }

    pub(super) fn read_back(&self, found: Option<Found<'_>>) -> Next {
        if let Some(found) = found
            && found.write_id == Some(self.write_id)
        {
            return Next::Written(found.etag.clone());
        }
        let holds = match (self.condition, found) {
            (Condition::None, _) | (Condition::Absent, None) => true,
            (Condition::Matches(etag), Some(found)) => found.etag == etag,
            (Condition::Absent, Some(_)) | (Condition::Matches(_), None) => false,
        };
        // What stood there when we were refused and is gone now may have been ours: creating it again is no retry.
        if holds && !(self.refused && found.is_none()) {
            Next::Again
        } else {
            Next::Moved { doubtful: self.doubt.is_some() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(text: &str) -> ETag {
        ETag::parse(text).unwrap()
    }

    /// The steps that a row of answers leads to: `W`ritten, `R`efused, `G`one, `C`onflict, `B`usy, `U`nknown; and what a
    /// read finds: `-` nothing, `o` the body we wanted to replace, `m` ours, `f` a foreign one.
    fn steps(condition: &Condition, answers: &str) -> String {
        let mut settling = Settling::new(condition, "mine");
        let (old, new) = (tag("old"), tag("new"));
        let steps = answers.chars().map(|answer| {
            let next = match answer {
                'W' => settling.put(Put::Written(new.clone())),
                'R' => settling.put(Put::Refused),
                'G' => settling.put(Put::Gone),
                'C' => settling.put(Put::Conflict),
                'B' => settling.put(Put::Busy),
                'U' => settling.put(Put::Unknown(Cause::new("reset"))),
                '-' => settling.read_back(None),
                'o' => settling.read_back(Some(Found { etag: &old, write_id: Some("theirs") })),
                'm' => settling.read_back(Some(Found { etag: &new, write_id: Some("mine") })),
                'f' => settling.read_back(Some(Found { etag: &new, write_id: Some("theirs") })),
                other => panic!("{other}"),
            };
            match next {
                Next::Written(_) => "written",
                Next::Moved { doubtful: false } => "moved",
                Next::Moved { doubtful: true } => "moved?",
                Next::ReadBack => "read",
                Next::Again => "again",
            }
        });
        steps.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn answers_to_a_create_add_up() {
        for (answers, want) in [
            ("W", "written"),
            ("R", "moved"),
            // A 409 is never "exists".
            ("C-", "read again"),
            ("C-W", "read again written"),
            ("Cf", "read moved"),
            ("BBW", "again again written"),
            ("UW", "again written"),
            ("URm", "again read written"),
            ("URf", "again read moved?"),
            // Gone in between: ours, landed and deleted, or somebody else's.
            ("UR-", "again read moved?"),
            ("UC-W", "again read again written"),
            ("UBRm", "again again read written"),
            ("UCm", "again read written"),
            ("UCf", "again read moved?"),
        ] {
            assert_eq!(steps(&Condition::Absent, answers), want, "{answers}");
        }
    }

    #[test]
    fn answers_to_an_update_add_up() {
        for (answers, want) in [
            ("W", "written"),
            ("R", "moved"),
            ("G", "moved"),
            ("Co", "read again"),
            ("Cf", "read moved"),
            ("C-", "read moved"),
            ("UW", "again written"),
            ("URm", "again read written"),
            ("URf", "again read moved?"),
            ("UR-", "again read moved?"),
            ("UG", "again moved?"),
            ("BR", "again moved"),
        ] {
            assert_eq!(steps(&Condition::Matches(tag("old")), answers), want, "{answers}");
        }
    }
}
