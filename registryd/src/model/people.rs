//! What people do to a fleet meanwhile, with nothing but the registry and a bad network.

use std::sync::Arc;
use std::time::Duration;

use scafo_core::record::Replicas;
use scafo_core::{ApplicationName, DeployId, NodeId, Problem, ProblemCode};
use tokio::time::{Instant, sleep};

use super::sim::Sim;
use crate::registry::{DrainRequest, Intent, NewClaim, Registry};

const APPLICATIONS: [&str; 5] = ["alpha", "beta", "gamma", "delta", "epsilon"];
const HOSTS: [&str; 4] = ["shop.example", "a.shop.example", "www.example", "b.shop.example"];

fn application(sim: &Sim) -> ApplicationName {
    sim.dice().pick(&APPLICATIONS).parse().unwrap()
}

/// One person at work until then, who begins anew when the machine died in the middle of something.
pub(super) async fn live(sim: Arc<Sim>, machine: usize, nodes: usize, until: Instant) {
    while Instant::now() < until {
        sim.until_up(machine).await;
        tokio::select! {
            biased;
            () = sim.machines[machine].killed.notified() => {}
            () = act(Arc::clone(&sim), machine, nodes, until) => {}
        }
    }
}

/// One person at work until then.
pub(super) async fn act(sim: Arc<Sim>, machine: usize, nodes: usize, until: Instant) {
    let registry = Registry::new(sim.bucket(machine, sim.next_run()), sim.clock(machine), format!("person-{machine}"));
    race_for_an_id(&registry, machine).await;
    race_for_neighbours(&sim, &registry, machine).await;
    while Instant::now() < until {
        // It only grows, also over a crash.
        let number = sim.next_run();
        let outcome = one_thing(&sim, &registry, machine, nodes, number).await;
        if let Err(problem) = outcome
            && matches!(problem.code, ProblemCode::Internal | ProblemCode::StoreNonconforming)
        {
            sim.ledger().violated(format!("{:?}: {problem:?}", sim.elapsed()));
        }
        let pause = sim.dice().millis(100, 6_000);
        sleep(pause).await;
    }
}

/// Everybody wants the same id with a key of their own; the checks see to it that it never changes hands.
async fn race_for_an_id(registry: &Registry, machine: usize) {
    let contended = crate::registry::testing::key_of(u8::try_from(machine).unwrap());
    let _ = registry.init_operator(&"contended".parse().unwrap(), &contended, true).await;
}

/// One wants a host with everything below it, the other a host below it: their claims stand under different keys.
async fn race_for_neighbours(sim: &Sim, registry: &Registry, machine: usize) {
    let (name, host, wildcard) =
        if machine.is_multiple_of(2) { ("alpha", "shop.example", true) } else { ("beta", "a.shop.example", false) };
    let name: ApplicationName = name.parse().unwrap();
    let _ = registry.create_application(&name).await;
    sim.ledger().claimed.insert((name.clone(), host.to_owned()));
    let _ = registry.claim_domain(&claim(&name, host, wildcard), &[]).await;
}

async fn one_thing(sim: &Sim, registry: &Registry, machine: usize, nodes: usize, number: u64) -> Result<(), Problem> {
    let name = application(sim);
    let what = sim.dice().below(100);
    match what {
        0..20 => drop(registry.create_application(&name).await?),
        20..35 => publish(sim, registry, &name, number).await?,
        35..45 => {
            let replicas = match sim.dice().below(4) {
                0 => Replicas::All,
                count => Replicas::Count(std::num::NonZeroU32::new(u32::try_from(count).unwrap()).unwrap()),
            };
            registry.set_replicas(&name, replicas).await?;
        }
        45..50 => {
            let region = *sim.dice().pick(&[Some("eu"), Some("us"), Some("mars"), None]);
            let selector = region.map(|region| [("region".to_owned(), region.to_owned())].into());
            registry.set_selector(&name, selector.as_ref()).await?;
        }
        50..55 => {
            let blocked = sim.dice().chance(30);
            registry.set_blocked(&name, blocked).await?;
        }
        55..75 => count(sim, registry, &name, machine, number).await?,
        75..90 => claim_or_release(sim, registry, &name).await?,
        _ => drain_or_not(sim, registry, nodes).await?,
    }
    Ok(())
}

/// As a deploy does at its end.
pub(super) async fn publish(
    sim: &Sim,
    registry: &Registry,
    name: &ApplicationName,
    number: u64,
) -> Result<(), Problem> {
    let version: scafo_core::DeploymentVersion = format!("v{}", number % 3).parse()?;
    let deploy = DeployId::new(name, sim.dice().next());
    registry
        .update_application(&Intent::new(), name, |record| {
            let rest = scafo_core::record::Rest::new();
            record.deployment =
                Some(scafo_core::record::Published { version: version.clone(), deploy: deploy.clone(), rest });
            Ok(())
        })
        .await
        .map(drop)
}

/// A label that only grows: what was acknowledged is there at the end, or more.
async fn count(
    sim: &Sim,
    registry: &Registry,
    name: &ApplicationName,
    machine: usize,
    number: u64,
) -> Result<(), Problem> {
    registry
        .update_application(&Intent::new(), name, |record| {
            record.labels.get_or_insert_default().insert(format!("w{machine}"), number.to_string());
            Ok(())
        })
        .await?;
    sim.ledger().acknowledged.insert((name.clone(), machine), number);
    Ok(())
}

async fn claim_or_release(sim: &Sim, registry: &Registry, name: &ApplicationName) -> Result<(), Problem> {
    let host = *sim.dice().pick(&HOSTS);
    let claims = sim.dice().chance(70);
    let wildcard = sim.dice().chance(30);
    sim.ledger().claimed.insert((name.clone(), host.to_owned()));
    if claims {
        registry.claim_domain(&claim(name, host, wildcard), &[]).await.map(drop)
    } else {
        registry.release_domain(name, &host.parse()?, &[]).await.map(drop)
    }
}

fn claim(name: &ApplicationName, host: &str, wildcard: bool) -> NewClaim {
    NewClaim { application: name.clone(), host: host.parse().unwrap(), wildcard, by: "op".to_owned(), names: None }
}

async fn drain_or_not(sim: &Sim, registry: &Registry, nodes: usize) -> Result<(), Problem> {
    let node = usize::try_from(sim.dice().below(nodes as u64)).unwrap();
    let id: NodeId = sim.machines[node].id.parse()?;
    let drains = sim.dice().chance(50);
    let force = sim.dice().chance(30);
    if drains {
        let request = DrainRequest { by: "op".to_owned(), timeout: Duration::from_secs(60), force };
        registry.drain_node(&id, &request).await.map(drop)
    } else {
        registry.undrain_node(&id).await.map(drop)
    }
}

/// In good weather again, everything that was left half done is done once more: that repairs it.
pub(super) async fn settle(sim: &Arc<Sim>, machine: usize, nodes: usize) -> Result<(), String> {
    let registry = Registry::new(sim.bucket(machine, sim.next_run()), sim.clock(machine), "settler");
    let told = |problem: Problem| format!("settling: {problem:?}");
    // What was still on the wire has landed by then.
    sleep(Duration::from_secs(90)).await;
    for name in APPLICATIONS {
        let name: ApplicationName = name.parse().unwrap();
        registry.create_application(&name).await.map_err(told)?;
        // A blocked one claims nothing.
        registry.set_blocked(&name, false).await.map_err(told)?;
    }
    for node in 0..nodes {
        let id: NodeId = sim.machines[node].id.parse().unwrap();
        match registry.undrain_node(&id).await {
            Err(problem) if problem.code != ProblemCode::NotFound => return Err(told(problem)),
            Ok(_) | Err(_) => {}
        }
    }
    let claimed = sim.ledger().claimed.clone();
    for (name, host) in claimed {
        let claim = claim(&name, &host, false);
        let mut claimed = registry.claim_domain(&claim, &[]).await;
        if matches!(&claimed, Err(problem) if problem.code == ProblemCode::CasConflict) {
            // Another one's claim was withdrawn a moment ago, for good in two minutes: so the answer says.
            sleep(Duration::from_mins(2)).await;
            claimed = registry.claim_domain(&claim, &[]).await;
        }
        match claimed {
            Ok(_) => {}
            Err(problem) if problem.code == ProblemCode::ReferenceHeld => {}
            Err(problem) => return Err(told(problem)),
        }
    }
    registry.flush_hints(Duration::from_secs(30)).await.map_err(told)?;
    Ok(())
}
