//! `scafo metrics` and `scafo traces`: the observations, read from the bucket within bounds. What was left out, and why, is said.

mod metrics;
mod traces;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use scafo_core::observation::ObservationKey;
use scafo_core::{NodeId, Problem, ProblemCode};
use scafo_proto::chunk::Assembly;
use scafo_proto::observe::observations_client::ObservationsClient;
use scafo_proto::observe::{ListObservationsRequest, MetricsChunk, ReadObservationRequest};
use scafo_proto::status::to_status;
use scafo_proto::transport::within;
use scafo_registryd::observe::read::{Choice, Found, Got, InBucket, Source, choose, read};
use scafo_registryd::observe::rows::Contents;
use serde::Serialize;
use tonic::{Status, Streaming};

use crate::args::WithinArgs;
use crate::commands::local::{Place, Registry, decode};
use crate::error::{Failure, Outcome};
use crate::output::{Output, clean};

pub(super) use metrics::metrics;
pub(super) use traces::traces;

/// Files that are named for what is wrong with them.
const NAMED_MAX: usize = 10;

/// The observations behind the admin socket of a node.
struct AtNode(Registry);

#[async_trait]
impl Source for AtNode {
    async fn find(&self, node: Option<&NodeId>, within_: Duration) -> Result<Found, Problem> {
        let node = node.map(ToString::to_string).unwrap_or_default();
        let within_ms = u64::try_from(within_.as_millis()).unwrap_or(u64::MAX);
        let request = ListObservationsRequest { node, within_ms };
        let answer = self.0.call(|channel, left| {
            let request = within(left, request.clone());
            async move { whole(ObservationsClient::new(channel).list_observations(request).await?.into_inner()).await }
        });
        decode(&answer.await?)
    }

    async fn get(&self, key: &ObservationKey) -> Result<Option<Bytes>, Problem> {
        let request = ReadObservationRequest { key: key.to_string() };
        let answer = self.0.call(|channel, left| {
            let request = within(left, request.clone());
            async move { whole(ObservationsClient::new(channel).read_observation(request).await?.into_inner()).await }
        });
        match answer.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(problem) if problem.code == ProblemCode::NotFound => Ok(None),
            Err(problem) => Err(problem),
        }
    }
}

async fn whole(mut pieces: Streaming<MetricsChunk>) -> Result<Bytes, Status> {
    let mut assembly = Assembly::default();
    while let Some(piece) = pieces.message().await? {
        assembly.push(&piece.data).map_err(|problem| to_status(&problem))?;
    }
    Ok(assembly.take())
}

/// Where observations are read: of a node on this machine, or the bucket that is named.
async fn source(args: &WithinArgs, output: Output) -> Outcome<Box<dyn Source>> {
    Ok(match Place::find(&args.registry, output).await? {
        Place::Node(registry) => Box::new(AtNode(registry)),
        Place::Bucket(direct) => Box::new(InBucket(direct.registry().bucket().clone())),
    })
}

/// What was read, and what was not.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Reading {
    /// Files that were read.
    files: usize,
    /// Files that there are within the time.
    of: usize,
    /// Whether there are more files, or rows in those that were read, than are looked at.
    cut: bool,
    /// Objects that should be observations and are none.
    unreadable: Vec<Unreadable>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Unreadable {
    key: String,
    reason: String,
}

impl Reading {
    /// Reads what `args` ask for, in order of time or, of [`Choice::Newest`], the newest first. `take` says whether it wants more.
    ///
    /// # Errors
    /// When the bucket cannot be read.
    async fn of(
        source: &dyn Source,
        args: &WithinArgs,
        choice: Choice,
        mut take: impl FnMut(&ObservationKey, Contents) -> bool,
    ) -> Result<Self, Problem> {
        let found = source.find(args.node.as_ref(), args.since).await?;
        let mut reading = Self { of: found.keys.len(), cut: found.cut, ..Self::default() };
        reading.unreadable.extend(found.odd.into_iter().map(|(key, reason)| Unreadable { key, reason }));
        let mut chosen = choose(&found.keys, args.files, choice);
        if choice == Choice::Newest {
            chosen.reverse();
        }
        let asked = chosen.len();
        let mut handled = 0;
        let handle = |key: &ObservationKey, got: Got| {
            handled += 1;
            match got {
                Got::Contents(contents) => {
                    reading.files += 1;
                    let more = take(key, contents);
                    reading.cut |= !more && handled < asked;
                    return more;
                }
                // It was removed meanwhile, as it was to be.
                Got::Gone => reading.of = reading.of.saturating_sub(1),
                Got::Unreadable(reason) => reading.unreadable.push(Unreadable { key: key.to_string(), reason }),
            }
            true
        };
        read(source, chosen, handle).await?;
        Ok(reading)
    }

    /// Says what the answer is not made of.
    fn tell(&self, output: Output) {
        for Unreadable { key, reason } in self.unreadable.iter().take(NAMED_MAX) {
            output.warn(&format!("{} is left out: {}", clean(key), clean(reason)));
        }
        let more = self.unreadable.len().saturating_sub(NAMED_MAX);
        if more > 0 {
            output.warn(&format!("{more} more objects are no observations, and are left out"));
        }
        let left = self.of.saturating_sub(self.files + self.unreadable.len());
        if left > 0 {
            output.say(&format!(
                "{} of {} files were read; read more with --files, or look less far back with --since",
                self.files, self.of
            ));
        }
        if self.cut {
            output.say("there is more than is looked at; narrow it with --node, --since or --files");
        }
    }
}

fn unreadable(problem: &Problem) -> Failure {
    Failure::refused("cannot read the observations", problem)
}

/// What to say when there is nothing.
fn nothing(reading: &Reading, output: Output) {
    if reading.of == 0 {
        output.say(
            "no observations were found: nodes write them once a minute unless `observe.flush` says otherwise; 0 switches them off",
        );
    }
}
