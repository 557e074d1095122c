//! Requests without a condition, each tried again while the store gives no clear answer: they may be carried out twice and
//! come to the same.

use bytes::Bytes;
use scafo_core::{Problem, ProblemCode};
use scafo_store::{ListRequest, Listing, Page, Put, PutOptions, Walk};

use super::{Engine, Intent, Stored, engine::Pursuit, kind::Record};

/// Keys of one batch of deletes: what S3 takes.
pub(super) const BATCH: usize = 1000;

/// Makes a request until it has an answer. A macro, because a closure that returns borrowing futures would not be `Send`.
macro_rules! persist {
    ($engine:expr, $intent:expr, $request:expr) => {{
        let intent: &Intent = $intent;
        let mut pursuit: Pursuit<'_> = $engine.pursuit(intent);
        loop {
            pursuit.authorised()?;
            match $request.await {
                Ok(answer) => break Ok::<_, Problem>(answer),
                Err(error) if error.is_transient() => pursuit.wait(|| error.clone().into()).await?,
                Err(error) => break Err(error.into()),
            }
        }
    }};
}

impl Engine {
    /// Everything under `prefix`.
    ///
    /// # Errors
    /// `store-unavailable`, `store-nonconforming`.
    pub async fn list(&self, prefix: &str) -> Result<Listing, Problem> {
        persist!(self, &Intent::new(), self.bucket().list(prefix))
    }

    /// The next page of a walk over everything under `prefix`, tried again while the store gives no answer.
    ///
    /// # Errors
    /// As [`Engine::list`].
    pub async fn page(&self, walk: &mut Walk, prefix: &str) -> Result<Page, Problem> {
        persist!(self, &Intent::new(), walk.next(&**self.bucket(), ListRequest::of(prefix)))
    }

    /// The first keys under `prefix`, at most `limit` of them.
    ///
    /// # Errors
    /// As [`Engine::list`].
    pub async fn first(&self, prefix: &str, limit: u16) -> Result<Vec<String>, Problem> {
        let request = ListRequest { limit, ..ListRequest::of(prefix) };
        let page = persist!(self, &Intent::new(), self.bucket().list_page(request))?;
        Ok(page.entries.into_iter().map(|listed| listed.key).collect())
    }

    /// Whether there is an object.
    ///
    /// # Errors
    /// `store-unavailable`, `store-nonconforming`.
    pub async fn exists(&self, key: &str) -> Result<bool, Problem> {
        Ok(persist!(self, &Intent::new(), self.bucket().head(key))?.is_some())
    }

    /// Removes what is there. Removing nothing succeeds.
    ///
    /// # Errors
    /// `store-unavailable` while it is not known to be gone; `lease-lost`.
    pub async fn delete(&self, intent: &Intent, key: &str) -> Result<(), Problem> {
        persist!(self, intent, self.bucket().delete(key))
    }

    /// Removes a record, and none that takes its place: a delete without an answer is sent again only while `is_it` holds of
    /// what stands there, because the first may have been carried out, and somebody may have made it anew.
    ///
    /// # Errors
    /// As [`Engine::delete`]; `store-nonconforming` for a record that cannot be read.
    pub async fn delete_record<T: Record>(
        &self,
        intent: &Intent,
        key: &str,
        is_it: impl Fn(&Stored<T>) -> bool + Send + Sync,
    ) -> Result<(), Problem> {
        self.delete_while(intent, key, |there| Ok(there?.is_some_and(|stands: Stored<T>| is_it(&stands)))).await
    }

    /// As [`Engine::delete_record`], of a record that cannot be read: what can be read has taken its place.
    ///
    /// # Errors
    /// As [`Engine::delete`].
    pub async fn delete_unreadable<T: Record>(&self, intent: &Intent, key: &str) -> Result<(), Problem> {
        let stands = |there: Result<Option<Stored<T>>, Problem>| match there {
            Err(problem) if problem.code == ProblemCode::StoreNonconforming => Ok(true),
            there => there.map(|_| false),
        };
        self.delete_while(intent, key, stands).await
    }

    /// A delete without an answer is sent again while `again` says so of what is there.
    async fn delete_while<T: Record>(
        &self,
        intent: &Intent,
        key: &str,
        again: impl Fn(Result<Option<Stored<T>>, Problem>) -> Result<bool, Problem> + Send + Sync,
    ) -> Result<(), Problem> {
        let mut pursuit: Pursuit<'_> = self.pursuit(intent);
        loop {
            pursuit.authorised()?;
            match self.bucket().delete(key).await {
                Ok(()) => return Ok(()),
                Err(error) if error.is_transient() => pursuit.wait(|| error.clone().into()).await?,
                Err(error) => return Err(error.into()),
            }
            if !again(self.try_load(key).await)? {
                return Ok(());
            }
        }
    }

    /// Removes all these, in batches.
    ///
    /// # Errors
    /// As [`Engine::delete`]; some may be gone.
    pub async fn delete_many(&self, intent: &Intent, keys: &[String]) -> Result<(), Problem> {
        for batch in keys.chunks(BATCH) {
            persist!(self, intent, self.bucket().delete_many(batch))?;
        }
        Ok(())
    }

    /// Puts a JSON document where no condition protects anything: the last one wins.
    ///
    /// # Errors
    /// `store-unavailable` while it is not known to be there; `lease-lost`.
    pub async fn overwrite(&self, intent: &Intent, key: &str, body: Bytes) -> Result<(), Problem> {
        let mut pursuit: Pursuit<'_> = self.pursuit(intent);
        loop {
            pursuit.authorised()?;
            let options = PutOptions { content_type: Some("application/json".to_owned()), ..PutOptions::default() };
            match self.bucket().put(key, body.clone(), options).await? {
                Put::Written(_) => return Ok(()),
                outcome @ (Put::Busy | Put::Conflict | Put::Unknown(_) | Put::Refused | Put::Gone) => {
                    pursuit.wait(|| not_taken(key, &outcome)).await?;
                }
            }
        }
    }
}

fn not_taken(key: &str, outcome: &Put) -> Problem {
    let detail = format!("the bucket does not say that it has taken `{key}`: it is safe to try again");
    Problem::new(ProblemCode::StoreUnavailable, detail).because(format!("{outcome:?}"))
}
