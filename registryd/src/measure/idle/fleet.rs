//! What is in the bucket before the nodes of a scene start: applications that were published long ago, each with one host, one
//! deploy and its place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use scafo_core::key;
use scafo_core::record::{
    ApplicationRecord, DeployRecord, DeployState, DomainClaim, Fence, Published, Replicas, Rest, V1,
};
use scafo_core::settings::RegistrydSettings;
use scafo_core::{ApplicationName, DeployId, Timestamp};
use scafo_store::{Bucket as _, PutOptions};

use super::stage::Stage;
use super::{INSTALLATION, Scene, VERSION};
use crate::bootstrap::record;
use crate::coordinator::places::{Past, Terms, plan};
use crate::node::world::{NodeView, Shown, World};
use crate::registry::Mono;

fn name(index: usize) -> Result<ApplicationName, String> {
    format!("app-{index}").parse().map_err(|error| format!("{error:?}"))
}

/// Puts a fleet in the bucket that has been at rest for long.
pub(super) async fn furnish(stage: &Stage, scene: &Scene) -> Result<(), String> {
    let wall = stage.wall();
    let version = VERSION.parse().map_err(|error| format!("{error:?}"))?;
    let first = scene.settings.first().ok_or("a fleet has a node")?;
    let nowhere = BTreeMap::from([("simulated".to_owned(), "nowhere".to_owned())]);
    let mut applications = BTreeMap::new();
    for index in 0..scene.applications {
        let name = name(index)?;
        let host: scafo_core::domain::Host = format!("{name}.example").parse().map_err(|error| format!("{error:?}"))?;
        let deploy = DeployId::new(&name, index as u64);
        stage.put(&claim(&name, &host, wall)).await?;
        stage.put(&deployed(&name, &deploy, first, wall)).await?;
        let deployment = key::deployment(&name, &version);
        let put = stage.memory.put(&deployment, Bytes::from_static(b"{}"), PutOptions::default()).await;
        put.map_err(|error| error.to_string())?;
        let application = ApplicationRecord {
            v: V1,
            name: name.clone(),
            created_at: wall,
            replicas: Some(Replicas::Count(std::num::NonZeroU32::MIN)),
            node_selector: (index >= scene.running).then(|| nowhere.clone()),
            labels: None,
            blocked: false,
            retired_at: None,
            deleting: None,
            domains: vec![host],
            wildcard_domains: Vec::new(),
            deployment: Some(Published { version: version.clone(), deploy, rest: Rest::new() }),
            rest: Rest::new(),
        };
        stage.put(&application).await?;
        applications.insert(name, Arc::new(application));
    }
    for planned in placed(applications, &scene.settings, wall) {
        stage.put(&planned).await?;
    }
    Ok(())
}

/// Where a coordinator puts them.
fn placed(
    applications: BTreeMap<ApplicationName, Arc<ApplicationRecord>>,
    settings: &[RegistrydSettings],
    wall: Timestamp,
) -> Vec<scafo_core::record::PlacementRecord> {
    let view = |settings: &RegistrydSettings| {
        let record = record(settings, wall);
        (record.id.clone(), NodeView { record: Arc::new(record), live: true })
    };
    let shown = Shown { applications: Arc::new(applications), ..Shown::default() };
    let nodes = Arc::new(settings.iter().map(view).collect());
    let world = World { content: 1, shown, nodes, ..World::unseen() };
    let terms = Terms { now: Mono::at(Duration::ZERO), wall, hold: Duration::ZERO, fence: Fence(1) };
    plan(&world, &terms, &mut Past::default()).0.into_iter().map(|planned| planned.record).collect()
}

fn claim(application: &ApplicationName, host: &scafo_core::domain::Host, wall: Timestamp) -> DomainClaim {
    DomainClaim {
        v: V1,
        host: host.clone(),
        application: application.clone(),
        wildcard: false,
        claimed_at: wall,
        by: INSTALLATION.to_owned(),
        nonce: None,
        released: false,
        rest: Rest::new(),
    }
}

fn deployed(
    application: &ApplicationName,
    id: &DeployId,
    settings: &RegistrydSettings,
    wall: Timestamp,
) -> DeployRecord {
    DeployRecord {
        v: V1,
        id: id.clone(),
        application: application.clone(),
        state: DeployState::Deployed,
        node: settings.node.id.clone(),
        by: INSTALLATION.to_owned(),
        accepted_at: wall,
        application_since: Some(wall),
        admitted: Some(true),
        moved_at: wall,
        finished_at: Some(wall),
        deployment: VERSION.parse().ok(),
        code: None,
        detail: None,
        source: None,
        oidc: None,
        artifact: None,
        celld_version: None,
        rest: Rest::new(),
    }
}
