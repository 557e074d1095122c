//! What changes an application: each one request, and one line about what holds now.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use scafo_core::record::{ApplicationRecord, Replicas};
use scafo_core::{ApplicationName, ProblemCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Application;
use super::show::{UNKNOWN, pairs};
use crate::args::{AppArgs, AppDeleteArgs, AppLabelsArgs, AppReplicasArgs, AppSelectorArgs, FleetArgs};
use crate::client::DELETION;
use crate::commands::remote::{Ask, Remote};
use crate::error::{Failure, Outcome};
use crate::output::Output;

/// How long a retired application can be taken back for sure.
const GRACE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// What to do when the key is no admin's.
const ADMINS_ONLY: (ProblemCode, &str) = (ProblemCode::AuthScope, "use an admin's key, or ask an admin of the fleet");

/// A change of one application.
struct Change<'a> {
    name: &'a ApplicationName,
    /// The last part of the path.
    what: &'a str,
    content: Option<Value>,
    otherwise: &'a str,
    hints: &'a [(ProblemCode, &'a str)],
}

impl Change<'_> {
    /// Makes it, and says of the application as it is then what `sentence` makes of it.
    async fn make(
        self,
        target: &FleetArgs,
        output: Output,
        sentence: impl FnOnce(&ApplicationRecord) -> String,
    ) -> Outcome<ApplicationRecord> {
        let remote = Remote::find(target, output).await?;
        let path = format!("/v1/applications/{}/{}", self.name, self.what);
        let ask = Ask { content: self.content, ..Ask::new(Method::POST, path, self.otherwise) };
        let answer: Application = remote.ask(ask.hinting(self.hints)).await?;
        output.data(&answer, || sentence(&answer.application) + "\n")?;
        Ok(answer.application)
    }
}

pub(super) async fn retire(args: AppArgs, output: Output) -> Outcome {
    let change = Change {
        name: &args.name,
        what: "retire",
        content: None,
        otherwise: "the application was not retired",
        hints: &[UNKNOWN],
    };
    let retired = change.make(&args.target, output, |record| {
        let since = record.retired_at.map(|at| format!(" since {at}")).unwrap_or_default();
        format!("{} is retired{since}", record.name)
    });
    if let Some(at) = retired.await?.retired_at {
        let until = at.after(GRACE);
        output.say(&format!("`scafo app unretire {}` takes it back; from {until} on it may be deleted", args.name));
    }
    Ok(())
}

pub(super) async fn unretire(args: AppArgs, output: Output) -> Outcome {
    let change = Change {
        name: &args.name,
        what: "unretire",
        content: None,
        otherwise: "the application was not taken back",
        hints: &[UNKNOWN, (ProblemCode::ReferenceHeld, "its deletion has begun; let that end, then deploy it again")],
    };
    change.make(&args.target, output, |record| format!("{} is not retired", record.name)).await.map(drop)
}

pub(super) async fn block(args: AppArgs, output: Output) -> Outcome {
    let change = Change {
        name: &args.name,
        what: "block",
        content: None,
        otherwise: "the application was not blocked",
        hints: &[UNKNOWN, ADMINS_ONLY],
    };
    change.make(&args.target, output, |record| format!("{} is blocked", record.name)).await?;
    output.say("each node stops serving it with its next pass; its data stays");
    Ok(())
}

pub(super) async fn unblock(args: AppArgs, output: Output) -> Outcome {
    let change = Change {
        name: &args.name,
        what: "unblock",
        content: None,
        otherwise: "the block was not lifted",
        hints: &[UNKNOWN, ADMINS_ONLY],
    };
    change.make(&args.target, output, |record| format!("{} is not blocked", record.name)).await.map(drop)
}

pub(super) async fn selector(args: AppSelectorArgs, output: Output) -> Outcome {
    let selector = if args.any { Value::Null } else { json!(distinct(&args.labels)?) };
    let change = Change {
        name: &args.name,
        what: "selector",
        content: Some(json!({ "selector": selector })),
        otherwise: "the selector was not changed",
        hints: &[UNKNOWN],
    };
    let sentence = |record: &ApplicationRecord| match &record.node_selector {
        Some(labels) => format!("{} is for nodes with {}", record.name, pairs(labels)),
        None => format!("{} is for any node", record.name),
    };
    change.make(&args.target, output, sentence).await.map(drop)
}

pub(super) async fn replicas(args: AppReplicasArgs, output: Output) -> Outcome {
    let change = Change {
        name: &args.name,
        what: "replicas",
        content: Some(json!({ "replicas": args.replicas })),
        otherwise: "the number of nodes was not changed",
        hints: &[UNKNOWN],
    };
    let sentence = |record: &ApplicationRecord| match record.replicas.unwrap_or_default() {
        Replicas::Count(count) if count.get() == 1 => format!("{} is for 1 node", record.name),
        Replicas::Count(count) => format!("{} is for {count} nodes", record.name),
        Replicas::All => format!("{} is for each node that may serve it", record.name),
    };
    change.make(&args.target, output, sentence).await.map(drop)
}

pub(super) async fn labels(args: AppLabelsArgs, output: Output) -> Outcome {
    let change = Change {
        name: &args.name,
        what: "labels",
        content: Some(json!({ "labels": distinct(&args.labels)? })),
        otherwise: "the labels were not changed",
        hints: &[UNKNOWN, ADMINS_ONLY],
    };
    let sentence = |record: &ApplicationRecord| match record.labels.as_ref().filter(|labels| !labels.is_empty()) {
        Some(labels) => format!("{} has the labels {}", record.name, pairs(labels)),
        None => format!("{} has no labels", record.name),
    };
    change.make(&args.target, output, sentence).await.map(drop)
}

/// Of two values for one key it is not known which was meant.
fn distinct(pairs: &[(String, String)]) -> Outcome<BTreeMap<&str, &str>> {
    let mut labels = BTreeMap::new();
    for (key, value) in pairs {
        if labels.insert(key.as_str(), value.as_str()).is_some() {
            return Err(Failure::usage(format!("`{key}` is given twice")).hint("give each key once"));
        }
    }
    Ok(labels)
}

/// Answer of a deletion: the keys that were removed.
#[derive(Debug, Serialize, Deserialize)]
struct Deleted {
    deleted: Vec<String>,
}

pub(super) async fn delete(args: AppDeleteArgs, output: Output) -> Outcome {
    let remote = Remote::find(&args.target, output).await?;
    let force = if args.force { "?force=1" } else { "" };
    let path = format!("/v1/applications/{}{force}", args.name);
    let retire = format!(
        "`scafo app retire {0}` and wait for a week; or delete it now, with everything that it has stored: \
         `scafo app delete {0} --force`",
        args.name
    );
    let hints = [
        UNKNOWN,
        (ProblemCode::ReferenceHeld, retire.as_str()),
        (ProblemCode::Draining, "run it again in a moment, when a node coordinates; it is safe to repeat"),
        (ProblemCode::CapabilityMissing, "ask another node with --url, best the one that coordinates"),
    ];
    let ask = Ask { deadline: DELETION, ..Ask::new(Method::DELETE, path, "the application was not deleted") };
    let answer: Deleted = remote.ask(ask.hinting(&hints)).await?;
    output.data(&answer, || format!("{} is deleted, {} objects\n", args.name, answer.deleted.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_given_twice_is_usage() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(distinct(&[pair("a", "1"), pair("b", "1")]).unwrap().len(), 2);
        assert!(matches!(distinct(&[pair("a", "1"), pair("a", "1")]), Err(Failure::Usage(_))));
    }
}
