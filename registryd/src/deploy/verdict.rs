//! When a published deploy counts as served. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use scafo_core::record::{Adoption, ApplicationRecord, PlacementRecord, ProcessState};
use scafo_core::{DeployId, DeploymentVersion, NodeId, Problem, ProblemCode};

use crate::node::world::NodeView;
use crate::registry::Mono;

/// How long a placed node may take to report on a deploy. Beyond it the caller is better served by the node's name than by
/// waiting: a healthy adoption takes seconds.
pub(crate) const REPORT: Duration = Duration::from_secs(90);

/// What is waited for, and since when.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) version: DeploymentVersion,
    /// When the application's record named it.
    pub(crate) since: Mono,
    /// When the deploy as a whole runs out of time.
    pub(crate) deadline: Mono,
    /// Since when each placed node has been waited for.
    pub(crate) asked: BTreeMap<NodeId, Mono>,
}

/// The fleet as the last pass saw it, as far as one application is concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) me: &'a NodeId,
    pub(crate) application: Option<&'a ApplicationRecord>,
    pub(crate) placement: Option<&'a PlacementRecord>,
    pub(crate) nodes: &'a BTreeMap<NodeId, NodeView>,
    /// The coordinator's lease life.
    pub(crate) ttl: Duration,
}

/// What to do.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Look again when something moved, at `at` at the latest. `remote`: on another node's word.
    Wait { at: Mono, remote: bool },
    /// It is. `note` says what is special about it.
    Served { note: Option<String> },
    /// It never will be.
    Failed(Problem),
    /// Another version was published since, or the scene is older than the publication: to be confirmed against the
    /// record itself with [`still_ours`].
    MovedOn,
}

/// Looks once.
pub(crate) fn look(waiting: &mut Waiting, scene: &Scene<'_>, now: Mono) -> Verdict {
    let named = match still_ours(&waiting.version, scene.application) {
        Ok(Some(named)) => named,
        Ok(None) => {
            let note = "published; the application does not serve now (blocked or retired), so nothing was started";
            return Verdict::Served { note: Some(note.to_owned()) };
        }
        Err(_) => return Verdict::MovedOn,
    };
    let Some(placement) = scene.placement else { return unplaced(waiting, now) };
    if placement.nodes.is_empty() {
        let until = waiting.since.after(scene.ttl * 2);
        if now < until {
            return Verdict::Wait { at: until, remote: false };
        }
        let note = "published; no node can run it now, see `scafo status`, and it starts as soon as one can";
        return Verdict::Served { note: Some(note.to_owned()) };
    }
    on_nodes(waiting, scene, &named, &placement.nodes, now)
}

/// The deploy that nodes report on: ours, or a later one of the same version. `None` for an application that may not serve.
///
/// # Errors
/// `cas-conflict` when something else is published, or the application is gone.
pub(crate) fn still_ours(
    version: &DeploymentVersion,
    application: Option<&ApplicationRecord>,
) -> Result<Option<DeployId>, Problem> {
    let Some(application) = application.filter(|application| application.deleting != Some(true)) else {
        return Err(Problem::new(
            ProblemCode::CasConflict,
            "the application was deleted while this deploy was under way",
        ));
    };
    let published = application.deployment.as_ref();
    let Some(published) = published.filter(|published| published.version == *version) else {
        let newer =
            published.map_or_else(|| "nothing".to_owned(), |published| format!("deploy `{}`", published.deploy));
        return Err(Problem::new(
            ProblemCode::CasConflict,
            format!(
                "{newer} was published after this deploy and replaced it; nothing is lost, deploy again to go back"
            ),
        ));
    };
    Ok(application.may_serve().then(|| published.deploy.clone()))
}

fn unplaced(waiting: &Waiting, now: Mono) -> Verdict {
    if now < waiting.deadline {
        return Verdict::Wait { at: waiting.deadline, remote: true };
    }
    Verdict::Failed(Problem::new(
        ProblemCode::DeployTimeout,
        "published, but nobody coordinates: the application was given no node; see `scafo status` on each node",
    ))
}

fn on_nodes(waiting: &mut Waiting, scene: &Scene<'_>, named: &DeployId, placed: &[NodeId], now: Mono) -> Verdict {
    waiting.asked.retain(|id, _| placed.contains(id));
    let mut missing = false;
    let mut remote = false;
    let mut adopted = 0_u32;
    let mut next = waiting.deadline;
    for id in placed {
        let node = scene.nodes.get(id).filter(|node| node.live && !node.record.leaving && !node.record.draining);
        let Some(node) = node else { continue };
        let since = waiting.since;
        let asked = *waiting.asked.entry(id.clone()).or_insert_with(|| now.max(since));
        let application = named.application();
        let serving = node.record.serving.iter().find(|serving| serving.application == application);
        let about = serving.filter(|serving| serving.deploy.as_ref() == Some(named));
        match about.map(|serving| (serving.adoption, serving.state)) {
            Some((Some(Adoption::Adopted), ProcessState::Ready)) => {
                adopted += 1;
                continue;
            }
            Some((Some(Adoption::Failed), _)) => {
                let error = about.and_then(|serving| serving.error.as_deref()).unwrap_or("no reason given");
                let serves = about.is_some_and(|serving| serving.state == ProcessState::Ready);
                return Verdict::Failed(not_adopted(id, serves, error));
            }
            _ => {}
        }
        let until = asked.after(REPORT).min(waiting.deadline);
        if now >= until {
            return Verdict::Failed(silent(id, serving.map(|serving| serving.state)));
        }
        missing = true;
        remote |= id != scene.me;
        next = next.min(until);
    }
    if adopted > 0 && !missing {
        return Verdict::Served { note: None };
    }
    if now >= waiting.deadline {
        return Verdict::Failed(Problem::new(
            ProblemCode::DeployTimeout,
            "published, but none of the nodes that it is placed on answers; see `scafo status`",
        ));
    }
    Verdict::Wait { at: next, remote: remote || !missing }
}

fn not_adopted(node: &NodeId, serves: bool, error: &str) -> Problem {
    let now = if serves { "and keeps serving the old one" } else { "and serves nothing" };
    Problem::new(
        ProblemCode::PublishFailed,
        format!(
            "node `{node}` could not load the new code {now}. It stays published, so a process that starts anew fails on it: \
             deploy a working version.\n{error}"
        ),
    )
}

fn silent(node: &NodeId, state: Option<ProcessState>) -> Problem {
    let seen = match state {
        None => "runs no process of it",
        Some(ProcessState::Starting) => "has a process of it that is still starting",
        Some(ProcessState::Ready) => "has a process of it that does not take the new code",
        Some(ProcessState::Unhealthy) => "has a process of it that does not answer its health checks",
        Some(ProcessState::Stopping) => "is stopping its process of it",
        Some(ProcessState::BackingOff) => "has a process of it that ended and waits to be started again",
        Some(ProcessState::CrashLooping) => "has a process of it that ends again and again",
    };
    Problem::new(
        ProblemCode::DeployTimeout,
        format!("published, but node `{node}` {seen}; look at `scafo status` and the application's log there"),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use scafo_core::Timestamp;
    use scafo_core::record::{Fence, NodeRecord, Published, Serving, V1};

    use super::*;

    fn s(seconds: u64) -> Mono {
        Mono::at(Duration::from_secs(seconds))
    }

    fn id(random: u64) -> DeployId {
        DeployId::new(&"shop".parse().unwrap(), random)
    }

    struct Stage {
        me: NodeId,
        application: Option<ApplicationRecord>,
        placement: Option<PlacementRecord>,
        nodes: BTreeMap<NodeId, NodeView>,
        waiting: Waiting,
    }

    fn stage(placed: Option<&[&str]>) -> Stage {
        let application: ApplicationRecord = serde_json::from_value(serde_json::json!({
            "v": 1, "name": "shop", "createdAt": "2026-01-01T00:00:00.000Z"
        }))
        .unwrap();
        let placement = placed.map(|nodes| PlacementRecord {
            v: V1,
            application: "shop".parse().unwrap(),
            nodes: nodes.iter().map(|node| node.parse().unwrap()).collect(),
            wanted: 1,
            reason: None,
            fence: Fence(1),
            updated_at: Timestamp::from_millis(0),
            rest: Default::default(),
        });
        let version: DeploymentVersion = "v1".parse().unwrap();
        let waiting = Waiting { version, since: s(0), deadline: s(600), asked: BTreeMap::new() };
        let mut stage = Stage {
            me: "a".parse().unwrap(),
            application: Some(application),
            placement,
            nodes: BTreeMap::new(),
            waiting,
        };
        stage.publish(1, "v1");
        stage
    }

    impl Stage {
        fn publish(&mut self, random: u64, version: &str) {
            let version = version.parse().unwrap();
            let published = Published { version, deploy: id(random), rest: Default::default() };
            self.application.as_mut().unwrap().deployment = Some(published);
        }

        fn node(&mut self, node: &str, live: bool, serving: Option<(u64, Option<Adoption>, ProcessState)>) {
            let mut record: NodeRecord = serde_json::from_value(serde_json::json!({
                "v": 1, "id": node, "address": "127.0.0.1", "api": "127.0.0.1:1", "apiPublic": true, "version": "0",
                "startedAt": "2026-01-01T00:00:00.000Z", "heartbeatAt": "2026-01-01T00:00:00.000Z",
                "publicKey": { "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" }
            }))
            .unwrap();
            record.serving = serving
                .map(|(deploy, adoption, state)| Serving {
                    application: "shop".parse().unwrap(),
                    port: 1,
                    deployment: None,
                    deploy: Some(id(deploy)),
                    adoption,
                    error: Some("boom".into()),
                    state,
                    celld_version: None,
                    since: Timestamp::from_millis(0),
                    rest: Default::default(),
                })
                .into_iter()
                .collect();
            self.nodes.insert(record.id.clone(), NodeView { record: Arc::new(record), live });
        }

        fn look(&mut self, at: u64) -> String {
            let scene = Scene {
                me: &self.me,
                application: self.application.as_ref(),
                placement: self.placement.as_ref(),
                nodes: &self.nodes,
                ttl: Duration::from_secs(15),
            };
            match look(&mut self.waiting, &scene, s(at)) {
                Verdict::Wait { remote, .. } => format!("wait{}", if remote { " remote" } else { "" }),
                Verdict::Served { note } => format!("served{}", if note.is_some() { " with a note" } else { "" }),
                Verdict::Failed(problem) => format!("{} {}", problem.code, problem.detail),
                Verdict::MovedOn => {
                    let problem = still_ours(&self.waiting.version, self.application.as_ref()).unwrap_err();
                    format!("moved on: {} {}", problem.code, problem.detail)
                }
            }
        }
    }

    const READY: ProcessState = ProcessState::Ready;
    const ADOPTED: Option<Adoption> = Some(Adoption::Adopted);

    #[test]
    fn served_means_that_every_living_placed_node_is_ready_with_it() {
        let mut stage = stage(Some(&["a", "b", "c", "d"]));
        stage.node("a", true, Some((1, ADOPTED, READY)));
        stage.node("b", true, Some((1, None, READY)));
        stage.node("c", false, None);
        assert_eq!(stage.look(1), "wait remote");
        stage.node("b", true, Some((1, ADOPTED, ProcessState::Unhealthy)));
        assert_eq!(stage.look(2), "wait remote");
        stage.node("b", true, Some((1, ADOPTED, READY)));
        assert_eq!(stage.look(3), "served");
    }

    #[test]
    fn an_adoption_of_an_older_deploy_is_none() {
        let mut stage = stage(Some(&["a"]));
        stage.publish(2, "v1");
        stage.node("a", true, Some((1, ADOPTED, READY)));
        assert_eq!(stage.look(1), "wait");
        // A later deploy of the same version counts as ours.
        stage.node("a", true, Some((2, ADOPTED, READY)));
        assert_eq!(stage.look(2), "served");
    }

    #[test]
    fn a_failed_adoption_fails_with_the_runtimes_words() {
        let mut stage = stage(Some(&["a"]));
        stage.node("a", true, Some((1, Some(Adoption::Failed), READY)));
        let verdict = stage.look(1);
        assert!(verdict.starts_with("publish-failed") && verdict.ends_with("\nboom"), "{verdict}");
    }

    #[test]
    fn another_version_published_since_is_a_conflict_naming_it() {
        let mut stage = stage(Some(&["a"]));
        stage.publish(2, "v2");
        let verdict = stage.look(1);
        assert!(verdict.starts_with("moved on: cas-conflict") && verdict.contains(id(2).as_str()), "{verdict}");
        stage.application = None;
        assert!(stage.look(1).starts_with("moved on: cas-conflict"));
    }

    #[test]
    fn a_node_that_does_not_report_in_time_is_named() {
        let mut stage = stage(Some(&["a"]));
        stage.node("a", true, Some((1, None, ProcessState::CrashLooping)));
        assert_eq!(stage.look(5), "wait");
        assert_eq!(stage.look(94), "wait");
        let verdict = stage.look(95);
        assert!(verdict.starts_with("deploy-timeout") && verdict.contains("`a`"), "{verdict}");
    }

    #[test]
    fn what_cannot_be_placed_is_deployed_on_publication_and_says_so() {
        let mut stage = stage(Some(&[]));
        assert_eq!(stage.look(29), "wait");
        assert_eq!(stage.look(30), "served with a note");
    }

    #[test]
    fn without_a_coordinator_it_times_out_and_says_so() {
        let mut stage = stage(None);
        assert_eq!(stage.look(599), "wait remote");
        let verdict = stage.look(600);
        assert!(verdict.starts_with("deploy-timeout") && verdict.contains("coordinates"), "{verdict}");
    }

    #[test]
    fn a_retired_or_blocked_application_is_published_and_not_waited_for() {
        let mut stage = stage(Some(&["a"]));
        stage.application.as_mut().unwrap().retired_at = Some(Timestamp::from_millis(0));
        assert_eq!(stage.look(0), "served with a note");
    }
}
