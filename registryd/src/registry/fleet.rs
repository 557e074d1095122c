//! What concerns the fleet as a whole: the deploy freeze; and reading trust policies and domain claims.

use scafo_core::{
    ApplicationName, Problem, ProblemCode,
    domain::Host,
    key,
    record::{DomainClaim, FreezeRecord, Rest, TrustPolicy, V1},
};

use super::{Intent, Registry, Stored};

/// Characters of a freeze's reason: it is printed inside every refusal.
const REASON_CHARS_MAX: usize = 200;

/// Why deploys are frozen: one line of 1 to 200 characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason(String);

impl Reason {
    /// Trims; an empty text is no reason.
    ///
    /// # Errors
    /// `invalid-input` for more than 200 characters, or more than one line.
    pub fn parse(text: &str) -> Result<Option<Self>, Problem> {
        let trimmed = text.trim();
        if trimmed.chars().any(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')) {
            let detail = "`reason` is one line without control characters";
            return Err(Problem::new(ProblemCode::InvalidInput, detail));
        }
        let length = trimmed.chars().count();
        if length > REASON_CHARS_MAX {
            let detail = format!("`reason` has {length} characters, and at most {REASON_CHARS_MAX} are printed");
            return Err(Problem::new(ProblemCode::InvalidInput, detail));
        }
        Ok((!trimmed.is_empty()).then(|| Self(trimmed.to_owned())))
    }
}

/// How a freeze ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frozen {
    /// The freeze that stands.
    pub freeze: FreezeRecord,
    /// Whether it is this one.
    pub created: bool,
}

impl Registry {
    /// Freezes deploys. Freezing twice is one freeze: the first one's stamp and reason stay.
    ///
    /// # Errors
    /// Store errors.
    pub async fn freeze(&self, by: &str, reason: Option<Reason>) -> Result<Frozen, Problem> {
        let reason = reason.map(|Reason(text)| text);
        let freeze =
            FreezeRecord { v: V1, frozen_at: self.clock().wall(), by: by.to_owned(), reason, rest: Rest::new() };
        let changed = self.engine().create(&self.intent(), &freeze).await?;
        // The write id alone tells whose it is: a freeze is created and deleted, never overwritten.
        Ok(Frozen { freeze: changed.stored.record, created: changed.written })
    }

    /// Lifts the freeze. Answers whether there was one.
    ///
    /// # Errors
    /// Store errors.
    pub async fn unfreeze(&self) -> Result<bool, Problem> {
        let there: Option<Stored<FreezeRecord>> = match self.frozen().await {
            // One that this build cannot read stands in the way all the same, and lifting it needs no reading.
            Err(problem) if problem.code == ProblemCode::StoreNonconforming => {
                self.engine().delete_unreadable::<FreezeRecord>(&Intent::new(), key::FREEZE).await?;
                return Ok(true);
            }
            other => other?,
        };
        let Some(freeze) = there else { return Ok(false) };
        let is_it = |stands: &Stored<FreezeRecord>| stands.write_id == freeze.write_id && stands.etag == freeze.etag;
        self.engine().delete_record(&Intent::new(), key::FREEZE, is_it).await?;
        Ok(true)
    }

    /// The freeze, if deploys are frozen.
    ///
    /// # Errors
    /// Store errors. A freeze that cannot be read is an error, not the absence of one.
    pub async fn frozen(&self) -> Result<Option<Stored<FreezeRecord>>, Problem> {
        self.engine().try_load(key::FREEZE).await
    }

    /// The trust policy of an application, which need not exist yet.
    ///
    /// # Errors
    /// Store errors.
    pub async fn trust(&self, name: &ApplicationName) -> Result<Option<Stored<TrustPolicy>>, Problem> {
        self.engine().try_load(&key::trust(name)).await
    }

    /// The claim on a host, if somebody holds it.
    ///
    /// # Errors
    /// Store errors.
    pub async fn claim(&self, host: &Host) -> Result<Option<Stored<DomainClaim>>, Problem> {
        let there: Option<Stored<DomainClaim>> = self.engine().try_load(&key::domain(host)).await?;
        Ok(there.filter(|stored| !stored.record.released))
    }
}

#[cfg(test)]
mod tests {
    use scafo_core::{ProblemCode, key};
    use scafo_store::Fault;

    use super::Reason;
    use crate::registry::testing::World;

    #[test]
    fn a_reason_is_one_line_of_at_most_two_hundred_characters() {
        let parse = |text: &str| Reason::parse(text).map(|reason| reason.map(|Reason(text)| text));
        let long = "é".repeat(200);
        for (text, want) in [
            ("", None),
            (" \t ", None),
            ("\n", None),
            (" a b\n", Some("a b")),
            ("🧊", Some("🧊")),
            (&long, Some(long.as_str())),
        ] {
            assert_eq!(parse(text).unwrap().as_deref(), want, "{text:?}");
        }
        for bad in ["a\nb", "a\r\nb", "\u{1b}[31m", "a\u{0}b", "a\u{85}b", "a\u{2028}b", &"é".repeat(201)] {
            assert_eq!(parse(bad).unwrap_err().code, ProblemCode::InvalidInput, "{bad:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn freezing_twice_is_one_freeze() {
        let world = World::new();
        let first = world.registry.freeze("op-1", Reason::parse(" release ").unwrap()).await.unwrap();
        assert!(first.created);
        let second = world.registry.freeze("op-2", None).await.unwrap();
        assert!(!second.created);
        assert_eq!(second.freeze, first.freeze);
        assert!(world.registry.unfreeze().await.unwrap());
        assert!(!world.registry.unfreeze().await.unwrap());
        assert!(world.registry.frozen().await.unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_equal_freezes_with_lost_answers_exactly_one_is_created() {
        for faults in [[Fault::LoseAnswer; 2], [Fault::LoseRequest; 2], [Fault::Conflict; 2]] {
            let world = World::new();
            let other = world.sibling();
            world.memory.fail_next_puts(key::FREEZE, faults);
            other.memory.fail_next_puts(key::FREEZE, faults);
            let (a, b) = tokio::join!(world.registry.freeze("op", None), other.registry.freeze("op", None));
            let (a, b) = (a.unwrap(), b.unwrap());
            assert_eq!(u8::from(a.created) + u8::from(b.created), 1, "{faults:?}");
            assert_eq!(a.freeze, b.freeze);
        }
    }
}
