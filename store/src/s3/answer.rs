//! What the answer of a store means. Pure: one table for writes, one for everything else.

use scafo_core::Timestamp;

use crate::{Cause, Condition, Error, Put, TITLE_CONDITIONS};

/// What came back that is no success.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// An error answer.
    Answer(Answer),
    /// Nothing that could be read: a timeout, a reset, a body that is not S3's.
    Silence(Cause),
    /// The request could not even be built.
    NeverSent(Cause),
}

/// The parts of an error answer that decide.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// S3's own code, from the body.
    pub(super) code: Option<String>,
    /// `x-amz-bucket-region`.
    pub(super) region: Option<String>,
    /// `Date`.
    pub(super) date: Option<Timestamp>,
    /// For the log.
    pub(super) message: Option<String>,
}

/// Where a call was when it failed, and what this machine's clock said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) operation: &'static str,
    pub(super) key: &'a str,
    pub(super) now: Timestamp,
}

impl Answer {
    fn code(&self) -> &str {
        self.code.as_deref().unwrap_or_default()
    }

    fn label(&self) -> String {
        match &self.code {
            Some(code) => code.clone(),
            None => format!("status {}", self.status),
        }
    }

    fn cause(&self) -> Cause {
        let message = self.message.as_deref().unwrap_or("no message");
        Cause::new(format!("status {}, {}: {message}", self.status, self.label()))
    }

    fn is_busy(&self) -> bool {
        self.status == 429
            || matches!(self.code(), "SlowDown" | "TooManyRequests" | "RequestLimitExceeded" | "Throttling")
            || (self.status == 409 && self.code() == "OperationAborted")
    }

    /// A failure that says nothing about what was done. `RequestTimeout` is a 400: the store lost patience with our body. A 404
    /// without a code is none of S3's.
    fn is_unknown(&self) -> bool {
        (self.status >= 500 && self.status != 501)
            || self.status == 408
            || self.status < 300
            || (self.status == 404 && self.code().is_empty())
            || self.code() == "RequestTimeout"
    }

    /// A 404 in the words of S3: what `operation` was about is not there. Any other one may come from something in front of the
    /// store, whose backend is away for a moment, and tells nothing of it. Only an answer to HEAD cannot have words.
    fn is_missing(&self, operation: &str) -> bool {
        self.status == 404
            && (matches!(self.code(), "NoSuchKey" | "NotFound") || (operation == "head" && self.code().is_empty()))
    }

    /// The region hint of a redirect or of a signature for another region.
    fn names_region(&self) -> bool {
        matches!(self.status, 301 | 302 | 307 | 308)
            || matches!(
                self.code(),
                "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException"
            )
    }

    /// Refusals that have nothing to do with one object.
    fn refusal(&self, at: Context<'_>) -> Error {
        if self.names_region() {
            let in_message = || self.message.as_deref().and_then(expected_region).map(str::to_owned);
            return Error::WrongRegion { region: self.region.clone().or_else(in_message) };
        }
        if self.code() == "RequestTimeTooSkewed" {
            let ahead_s = self.date.map(|date| (at.now.as_millis() - date.as_millis()) / 1000);
            return Error::ClockSkewed { ahead_s };
        }
        if self.code() == "NoSuchBucket" {
            return Error::NoSuchBucket;
        }
        if matches!(self.status, 401 | 403) {
            return Error::Denied { code: self.label() };
        }
        Error::Rejected { operation: at.operation, key: at.key.to_owned(), code: self.label() }
    }
}

/// The outcome of a PUT that did not answer 200.
pub(super) fn of_put(failure: Failure, condition: &Condition, at: Context<'_>) -> Result<Put, Error> {
    let answer = match failure {
        Failure::Silence(cause) => return Ok(Put::Unknown(cause)),
        Failure::NeverSent(cause) => return Err(Error::Misconfigured { cause }),
        Failure::Answer(answer) => answer,
    };
    if answer.is_busy() {
        return Ok(Put::Busy);
    }
    if answer.is_unknown() {
        return Ok(Put::Unknown(answer.cause()));
    }
    match (answer.status, condition) {
        (412, _) => Ok(Put::Refused),
        // `ConditionalRequestConflict`, and any 409 whose code is new to us: reading again is right for all of them.
        (409, _) => Ok(Put::Conflict),
        (404, Condition::Matches(_)) if answer.code() != "NoSuchBucket" => Ok(Put::Gone),
        // A release of a well-known store answers every conditional create this way.
        (404, Condition::Absent) if answer.code() != "NoSuchBucket" => Err(Error::nonconforming(
            TITLE_CONDITIONS,
            format!(
                "creating `{}` was answered with {}: conditional creates are broken in this store",
                at.key,
                answer.label()
            ),
        )),
        (501, Condition::Absent | Condition::Matches(_)) => Err(Error::nonconforming(
            TITLE_CONDITIONS,
            format!("a conditional PUT of `{}` was answered with {}", at.key, answer.label()),
        )),
        _ => Err(answer.refusal(at)),
    }
}

/// What a failed read, listing or delete means: `Ok(())` for "there is no such object".
pub(super) fn of_other(failure: Failure, at: Context<'_>) -> Result<(), Error> {
    let unavailable = |cause| Error::Unavailable { operation: at.operation, key: at.key.to_owned(), cause };
    let answer = match failure {
        Failure::Silence(cause) => return Err(unavailable(cause)),
        Failure::NeverSent(cause) => return Err(Error::Misconfigured { cause }),
        Failure::Answer(answer) => answer,
    };
    if answer.is_busy() {
        return Err(Error::Busy { operation: at.operation, key: at.key.to_owned() });
    }
    if answer.is_missing(at.operation) {
        return Ok(());
    }
    // A read in conflict is worth another try like one without an answer.
    if answer.is_unknown() || answer.status == 409 {
        return Err(unavailable(answer.cause()));
    }
    Err(answer.refusal(at))
}

/// The region in "… is wrong; expecting 'eu-west-1'", which some refusals carry nowhere else.
fn expected_region(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("expecting '")?;
    rest.split_once('\'').map(|(region, _)| region)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ETag;

    fn at(now_ms: i64) -> Context<'static> {
        Context { operation: "put", key: "k", now: Timestamp::from_millis(now_ms) }
    }

    fn put(status: u16, code: &str, condition: &Condition) -> String {
        let answer = Answer { status, code: (!code.is_empty()).then(|| code.to_owned()), ..Answer::default() };
        match of_put(Failure::Answer(answer), condition, at(0)) {
            Ok(Put::Unknown(_)) => "Unknown".to_owned(),
            Ok(put) => format!("{put:?}"),
            Err(Error::Nonconforming { title, .. }) => title.to_owned(),
            Err(error) => format!("{error:?}").split([' ', '{']).next().unwrap_or_default().to_owned(),
        }
    }

    #[test]
    fn every_answer_to_a_conditional_put_has_one_meaning() {
        let matches = Condition::Matches(ETag::parse("e").unwrap());
        let rows: &[(u16, &str, &str, &str)] = &[
            // status, code, meaning for If-Match, meaning for If-None-Match
            (412, "PreconditionFailed", "Refused", "Refused"),
            (412, "", "Refused", "Refused"),
            (409, "ConditionalRequestConflict", "Conflict", "Conflict"),
            (409, "OperationAborted", "Busy", "Busy"),
            (409, "SomethingNew", "Conflict", "Conflict"),
            (429, "", "Busy", "Busy"),
            (503, "SlowDown", "Busy", "Busy"),
            (503, "ServiceUnavailable", "Unknown", "Unknown"),
            (500, "InternalError", "Unknown", "Unknown"),
            (502, "", "Unknown", "Unknown"),
            (504, "", "Unknown", "Unknown"),
            (400, "RequestTimeout", "Unknown", "Unknown"),
            (408, "", "Unknown", "Unknown"),
            (404, "NoSuchKey", "Gone", TITLE_CONDITIONS),
            (404, "NotFound", "Gone", TITLE_CONDITIONS),
            (404, "", "Unknown", "Unknown"),
            (404, "NoSuchBucket", "NoSuchBucket", "NoSuchBucket"),
            (501, "NotImplemented", TITLE_CONDITIONS, TITLE_CONDITIONS),
            (403, "AccessDenied", "Denied", "Denied"),
            (403, "RequestTimeTooSkewed", "ClockSkewed", "ClockSkewed"),
            (301, "PermanentRedirect", "WrongRegion", "WrongRegion"),
            (400, "AuthorizationHeaderMalformed", "WrongRegion", "WrongRegion"),
            (400, "InvalidArgument", "Rejected", "Rejected"),
        ];
        for (status, code, on_match, on_absent) in rows {
            assert_eq!(put(*status, code, &matches), *on_match, "{status} {code} on If-Match");
            assert_eq!(put(*status, code, &Condition::Absent), *on_absent, "{status} {code} on If-None-Match");
        }
    }

    #[test]
    fn silence_after_a_write_is_unknown_and_after_a_read_is_unavailable() {
        let silence = || Failure::Silence(Cause::new("reset"));
        assert_eq!(of_put(silence(), &Condition::Absent, at(0)), Ok(Put::Unknown(Cause::new("reset"))));
        assert!(matches!(of_other(silence(), at(0)), Err(error) if error.is_transient()));
    }

    #[test]
    fn a_skewed_clock_is_named_with_its_distance() {
        let answer = Answer {
            status: 403,
            code: Some("RequestTimeTooSkewed".to_owned()),
            date: Some(Timestamp::from_millis(0)),
            ..Answer::default()
        };
        let error = of_other(Failure::Answer(answer), at(1_200_000)).unwrap_err();
        assert_eq!(error, Error::ClockSkewed { ahead_s: Some(1200) });
        assert!(error.to_string().contains("clock") && error.to_string().contains("1200 s"), "{error}");
    }

    #[test]
    fn a_missing_object_is_no_failure_but_a_missing_bucket_is() {
        let missing = |code: &str| Answer { status: 404, code: Some(code.to_owned()), ..Answer::default() };
        assert_eq!(of_other(Failure::Answer(missing("NoSuchKey")), at(0)), Ok(()));
        assert_eq!(of_other(Failure::Answer(missing("NoSuchBucket")), at(0)), Err(Error::NoSuchBucket));
    }

    #[test]
    fn a_404_that_is_not_in_the_words_of_s3_says_nothing_of_an_object() {
        for operation in ["get", "list", "delete", "head"] {
            let page = Answer { status: 404, ..Answer::default() };
            let outcome = of_other(Failure::Answer(page), Context { operation, ..at(0) });
            let is_transient = outcome.as_ref().is_err_and(Error::is_transient);
            assert!(if operation == "head" { outcome.is_ok() } else { is_transient }, "{operation}");
        }
    }
}
