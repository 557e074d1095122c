//! What a fleet says of its routing while nothing moves. Rendered by the router daemon's own library, as it would be.

use std::sync::Arc;
use std::time::Duration;

use scafo_core::record::Replicas;
use scafo_routerd::document::Document;
use scafo_routerd::fleet::Fleet;
use scafo_routerd::render::{Attributes, Format, View};
use scafo_routerd::routes::Catalogue;
use tokio::time::{Instant, sleep};

use super::node::core;
use super::people::publish;
use super::seeds::run;
use super::sim::Sim;
use super::{TTL, come_to_rest, start};
use crate::registry::{NewClaim, Registry};

const NODES: [usize; 3] = [0, 1, 2];
/// Reconcile passes of all nodes together that are looked at.
const PASSES: u64 = 1000;
const APPLICATIONS: u32 = 6;

/// Bytes of every document that a node's last snapshot comes to, with their tags; nothing from a node that is down or new.
fn said(sim: &Sim, machine: usize) -> Option<Vec<(String, Vec<u8>)>> {
    let snapshot = core(sim, machine)?.snapshots.borrow().clone()?;
    let routing = Arc::clone(Catalogue::new(Fleet::parse(&snapshot).unwrap()).routing());
    let (attributes, node) = (Attributes::new(&["web".to_owned()], None), "n1".parse().unwrap());
    let views = [(Format::Generic, None), (Format::Generic, Some(&node)), (Format::Traefik, Some(&node))];
    let written = |(format, prefer)| {
        let view = View { format, prefer, attributes: &attributes };
        (Document::write(&view, &routing, None).unwrap().etag, view.write(&routing))
    };
    Some(views.map(written).into())
}

fn pass(sim: &Sim, machine: usize) -> Option<u64> {
    Some(core(sim, machine)?.worlds.borrow().reconcile.as_ref()?.pass)
}

async fn furnish(sim: &Arc<Sim>) {
    let registry = Registry::new(sim.bucket(3, sim.next_run()), sim.clock(3), "person");
    for index in 0..APPLICATIONS {
        let name = format!("app-{index}").parse().unwrap();
        registry.create_application(&name).await.unwrap();
        let replicas = std::num::NonZeroU32::new(index % 4).map_or(Replicas::All, Replicas::Count);
        registry.set_replicas(&name, replicas).await.unwrap();
        publish(sim, &registry, &name, 1).await.unwrap();
        for host in [format!("{name}.example"), format!("www.{name}.test")] {
            let (host, wildcard) = (host.parse().unwrap(), index == 2);
            let claim = NewClaim { application: name.clone(), host, wildcard, by: "op".to_owned(), names: None };
            registry.claim_domain(&claim, &[]).await.unwrap();
        }
    }
}

#[test]
fn a_thousand_passes_over_a_fleet_that_does_not_change_say_the_same_bytes() {
    run(async {
        let sim = Sim::new(5, NODES.len() + 1, TTL);
        sim.shuffle_listings();
        let _fleet = start(&sim, NODES.len());
        furnish(&sim).await;
        come_to_rest(&sim, &NODES).await.unwrap();
        let expected = until_equal(&sim, None).await;
        assert!(expected[0].1.starts_with(b"{\"v\":1,\"routes\":[{"), "something is routed");

        let (mut passes, mut last) = (0, [0; NODES.len()]);
        let mut restarts = 0;
        while passes < PASSES {
            sleep(Duration::from_secs(1)).await;
            for machine in NODES {
                let now = pass(&sim, machine).unwrap_or(last[machine]);
                passes += now.checked_sub(last[machine]).unwrap_or(now);
                last[machine] = now;
                if let Some(said) = said(&sim, machine) {
                    assert!(said == expected, "node {machine} says something else after {passes} passes");
                }
            }
            // Now and then the daemons of one are started again, sometimes with everything that ran there.
            if passes / 100 > restarts {
                restarts += 1;
                sim.kill(usize::try_from(restarts % 3).unwrap(), Duration::from_secs(1));
                come_to_rest(&sim, &NODES).await.unwrap();
                until_equal(&sim, Some(&expected)).await;
            }
        }
    });
}

/// Waits until all nodes say the same, and that this when it is given.
async fn until_equal(sim: &Sim, expected: Option<&Vec<(String, Vec<u8>)>>) -> Vec<(String, Vec<u8>)> {
    let limit = Instant::now() + Duration::from_secs(120);
    loop {
        let all: Option<Vec<_>> = NODES.iter().map(|machine| said(sim, *machine)).collect();
        if let Some(all) = all
            && all.iter().all(|said| said == expected.unwrap_or(&all[0]))
        {
            return all.into_iter().next().unwrap();
        }
        assert!(Instant::now() < limit, "the nodes say different things");
        sleep(Duration::from_millis(500)).await;
    }
}
