//! Taking back claims that no application lists.

use scafo_core::{
    Problem,
    domain::Host,
    key,
    record::{ApplicationRecord, DomainClaim},
};

use super::super::{Intent, Registry, Step, Stored, claims, kind::Record as _};
use super::{NewClaim, absent_is_done, nonce};

/// How a withdrawal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Withdrawal {
    /// The claim, or what was added to it, is given up.
    Done,
    /// The application lists it already, so it never yields.
    Listed,
}

impl Registry {
    /// Takes back a claim of the application that it does not list: a call died between the two. It is made this call's own
    /// first, so that one that is still alive finds out.
    pub(super) async fn withdraw_left_over(
        &self,
        claim: &NewClaim,
        application: &ApplicationRecord,
    ) -> Result<bool, Problem> {
        let there = self.claim(&claim.host).await?.map(|stored| stored.record);
        let left_over = |there: &DomainClaim| {
            let ours = there.application == claim.application && !there.released;
            ours && !claims::lists(application, &claim.host, there.wildcard)
        };
        if !there.as_ref().is_some_and(left_over) {
            return Ok(false);
        }
        let held = self.take(&NewClaim { wildcard: false, ..claim.clone() }).await?;
        Ok(matches!(self.withdraw(claim, &held).await?, Withdrawal::Done))
    }

    /// Takes back a claim that its application does not list, as a call that died leaves one, or a request that the bucket carried
    /// out late. Answers whether it was taken back.
    ///
    /// # Errors
    /// `cas-conflict` where it is being released; store errors; an application that cannot be read may list it.
    pub async fn withdraw_unlisted(&self, claim: &DomainClaim) -> Result<bool, Problem> {
        let DomainClaim { application, host, by, .. } = claim.clone();
        let Some(Stored { record, .. }) = self.application(&application).await? else { return Ok(false) };
        // A deletion removes what is listed, and the sweep what is left after it.
        if record.deleting == Some(true) || record.domains.contains(&host) {
            return Ok(false);
        }
        self.withdraw_left_over(&NewClaim { application, host, wildcard: false, by, names: None }, &record).await
    }

    /// Takes back what [`Registry::take`] wrote, unless the application lists it by now. If not, its record is written anew
    /// first: a listing that a dead call has sent and that is still on its way finds its condition gone.
    pub(super) async fn withdraw(&self, claim: &NewClaim, held: &Stored<DomainClaim>) -> Result<Withdrawal, Problem> {
        let (mut lists_held, mut lists_exact) = (false, false);
        let decide = |there: Option<&Stored<ApplicationRecord>>| {
            let lists = |wildcard| there.is_some_and(|stored| claims::lists(&stored.record, &claim.host, wildcard));
            (lists_held, lists_exact) = (lists(held.record.wildcard), lists(false));
            Ok(match there.map(|stored| stored.record.clone()) {
                Some(mut record) if !lists_held => {
                    record.revise();
                    Step::Write(record)
                }
                Some(_) | None => Step::Keep,
            })
        };
        let key = key::application(&claim.application);
        absent_is_done(self.engine().change(&Intent::new(), &key, None, decide).await)?;
        if lists_held {
            return Ok(Withdrawal::Listed);
        }
        let written = |stored: &Stored<DomainClaim>| stored.etag == held.etag;
        if lists_exact {
            self.narrow(&claim.host, written).await?;
        } else {
            self.give_up(&Intent::new(), &claim.host, written).await?;
        }
        Ok(Withdrawal::Done)
    }

    /// Makes a covering claim exact again: the only way down, for a widening that nobody lists.
    pub(super) async fn narrow(
        &self,
        host: &Host,
        ours: impl Fn(&Stored<DomainClaim>) -> bool + Send + Sync,
    ) -> Result<(), Problem> {
        let nonce = nonce();
        let decide = |there: Option<&Stored<DomainClaim>>| match there {
            Some(stored) if ours(stored) => {
                Ok(Step::Write(DomainClaim { wildcard: false, nonce: Some(nonce.clone()), ..stored.record.clone() }))
            }
            Some(_) | None => Ok(Step::Keep),
        };
        absent_is_done(self.engine().change(&Intent::new(), &key::domain(host), None, decide).await).map(drop)
    }
}
