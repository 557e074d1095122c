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
use scafo_registryd::observe::read::{Choice, Chosen, Found, Got, InBucket, Source, choose, read};
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
    /// Files of those that were not to be read.
    left_out: usize,
    /// Nodes of which nothing was read, because there are too many.
    nodes_left_out: usize,
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
        let Chosen { keys: mut chosen, nodes_left_out } = choose(&found.keys, args.files, choice);
        reading.nodes_left_out = nodes_left_out + found.nodes_left_out;
        if choice == Choice::Newest {
            chosen.reverse();
        }
        let asked = chosen.len();
        reading.left_out = reading.of.saturating_sub(asked);
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
        if self.left_out > 0 {
            output.say(&format!(
                "{} of {} files were left out; read more with --files, or look less far back with --since",
                self.left_out, self.of
            ));
        }
        if self.nodes_left_out > 0 {
            output.say(&format!(
                "{} nodes were left out; name one with --node, or read more with --files",
                self.nodes_left_out
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::Parser as _;
    use scafo_core::Timestamp;
    use scafo_registryd::observe::file::encode;
    use scafo_registryd::observe::rows::Point;
    use scafo_store::{Bucket, MemoryBucket, PutOptions};

    use super::*;
    use crate::args::{Cli, Command, MetricsArgs};

    const NOW: i64 = 1_800_000_000_000;
    const MINUTE: i64 = 60_000;

    fn args(line: &str) -> MetricsArgs {
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Metrics(args) => args,
            other => panic!("{other:?}"),
        }
    }

    async fn put(memory: &MemoryBucket, key: &str, body: Bytes) {
        memory.put(key, body, PutOptions::default()).await.unwrap();
    }

    /// So many days of three nodes, a file each minute, in which a sum grows by one.
    async fn flushed(days: i64) -> Arc<MemoryBucket> {
        let memory = Arc::new(MemoryBucket::new());
        memory.set_now(Timestamp::from_millis(NOW));
        let nodes: Vec<NodeId> = ["a", "b", "c"].map(|id| id.parse().unwrap()).into();
        let mut body = Bytes::new();
        for minute in (1..=days * 1440).rev() {
            // Older ones are only there.
            if minute <= 1440 {
                let point = Point {
                    at_us: (NOW - minute * MINUTE) * 1000,
                    process: "apiserver".to_owned(),
                    name: "scafo_http_requests_total".to_owned(),
                    kind: "counter".to_owned(),
                    labels: Vec::new(),
                    value: (1440 - minute) as f64,
                };
                body = encode(&nodes[0], &Contents { points: vec![point], spans: Vec::new() }).unwrap();
            }
            for node in &nodes {
                let at = Timestamp::from_millis(NOW - minute * MINUTE);
                put(&memory, &ObservationKey::new(node.clone(), at, 0).unwrap().to_string(), body.clone()).await;
            }
        }
        memory
    }

    #[tokio::test]
    async fn a_day_out_of_a_week_is_read_in_few_requests_and_what_was_left_out_is_said() {
        let memory = flushed(7).await;
        let day = "_scafo/observe/b/2027/01/15/07";
        put(&memory, &format!("{day}/notes.txt"), "mine".into()).await;
        put(&memory, &format!("{day}/{NOW}-1.parquet"), "another hour's".into()).await;
        put(&memory, &format!("{day}/{}-7.parquet", NOW - MINUTE), "damaged".into()).await;
        let source = InBucket(Arc::clone(&memory) as Arc<dyn Bucket>);
        for (line, files, left_out, requests) in [
            ("scafo metrics --since 1d", 600, 3721, 607),
            ("scafo metrics --since 1d --files 30", 30, 4291, 37),
            ("scafo metrics --since 1h", 181, 0, 185),
            ("scafo metrics --since 1d --node c", 600, 840, 603),
        ] {
            let args = args(line);
            let before = memory.requests();
            let mut grown: Vec<f64> = Vec::new();
            let reading = Reading::of(&source, &args.within, Choice::Spread, |_, contents| {
                grown.extend(contents.points.iter().map(|point| point.value));
                true
            });
            let reading = reading.await.unwrap();
            let asked = memory.requests() - before;
            println!("{line}: {asked} requests, {} files of {}", reading.files, reading.of);
            assert!(asked <= requests, "{line}: {asked}");
            assert_eq!(
                (reading.files + reading.damaged(), reading.left_out, reading.cut),
                (files, left_out, false),
                "{line}"
            );
            let (least, most) =
                grown.iter().fold((f64::MAX, 0.0_f64), |(least, most), it| (it.min(least), it.max(most)));
            let whole = if line.contains("1h") { 59.0 } else { 1438.0 };
            assert!(most - least >= whole, "{line}: the first and the last are read: {least} to {most}");
        }
    }

    impl Reading {
        /// Files that were asked for and could not be read.
        fn damaged(&self) -> usize {
            self.unreadable.iter().filter(|it| it.key.parse::<ObservationKey>().is_ok()).count()
        }
    }

    #[tokio::test]
    async fn a_reader_that_has_enough_stops_and_says_that_there_is_more() {
        let memory = flushed(1).await;
        let source = InBucket(Arc::clone(&memory) as Arc<dyn Bucket>);
        let args = args("scafo metrics");
        let before = memory.requests();
        let mut taken = Vec::new();
        let reading = Reading::of(&source, &args.within, Choice::Newest, |key, _| {
            taken.push(key.at());
            taken.len() < 10
        });
        let reading = reading.await.unwrap();
        assert!(reading.cut && reading.files == 10, "{reading:?}");
        assert!(taken.windows(2).all(|pair| pair[0] >= pair[1]), "the newest first: {taken:?}");
        assert!(memory.requests() - before <= 4 + 10 + 16, "no more is asked for than was under way");
    }
}
