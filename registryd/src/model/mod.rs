//! Whole nodes, simulated: every part of the daemon but its sockets, on virtual time, against a store that never lies behind a
//! network that does everything else. Nodes crash between any two writes, stand still for longer than a lease, are cut off,
//! and have clocks that are an hour apart; people change their minds meanwhile.
//!
//! One seed decides a whole history, see [`seeds`].

mod checks;
mod keeper;
mod node;
mod people;
mod quick;
mod scenes;
pub(crate) mod seeds;
mod sim;
mod stable;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use self::checks::{REST, at_rest, claims_are_mirrored, judged, moment, nothing_acknowledged_is_lost, placements};
use self::node::keep_alive;
use self::seeds::{Rule, breaking, first_failure, for_each_seed, run};
use self::sim::{Sim, Weather};

/// Histories in one run of the tests.
const SEEDS: u64 = 80;
const NODES: usize = 3;
const PEOPLE: usize = 2;
/// How long a history is bad.
const CHAOS: Duration = Duration::from_secs(180);
const TTL: Duration = Duration::from_secs(15);

#[test]
fn no_history_breaks_a_rule_and_every_fleet_comes_to_rest() {
    for_each_seed(SEEDS, whole);
}

fn whole(seed: u64) -> Result<(), String> {
    run(async move {
        let sim = Sim::new(seed, NODES + PEOPLE, TTL);
        judged(&sim, history(&sim).await)
    })
}

#[test]
fn placements_that_move_more_than_the_lost_share_are_found_out() {
    let caught = first_failure(0..SEEDS, |seed| breaking(Rule::ScoresAreIndependent, || whole(seed)));
    assert!(caught.as_ref().is_some_and(|(_, why)| why.contains("although only")), "{caught:?}");
}

async fn history(sim: &Arc<Sim>) -> Result<(), String> {
    let mut fleet = start(sim, NODES);
    let mut people = JoinSet::new();
    let until = Instant::now() + CHAOS;
    for person in 0..PEOPLE {
        people.spawn(people::act(Arc::clone(sim), NODES + person, NODES, until));
    }
    let mut trouble = JoinSet::new();
    trouble.spawn(make_trouble(Arc::clone(sim), NODES, until));
    while let Some(ended) = trouble.join_next().await {
        ended.map_err(|error| error.to_string())?;
    }
    sim.heal();
    while let Some(ended) = people.join_next().await {
        ended.map_err(|error| error.to_string())?;
    }
    people::settle(sim, NODES, NODES).await?;
    let all: Vec<usize> = (0..NODES).collect();
    come_to_rest(sim, &all).await?;
    nothing_acknowledged_is_lost(sim).await?;
    claims_are_mirrored(sim).await?;
    if sim.ledger().terms == 0 || sim.ledger().placements == 0 {
        return Err("nothing happened".to_owned());
    }
    lose_one(sim, &mut fleet).await
}

/// A node that is gone for good gives its share away, and nothing else moves.
async fn lose_one(sim: &Arc<Sim>, fleet: &mut [JoinSet<()>]) -> Result<(), String> {
    let lost = NODES - 1;
    let before = placements(sim).await;
    fleet[lost].shutdown().await;
    *sim.machines[lost].life.lock().unwrap() = None;
    let left: Vec<usize> = (0..lost).collect();
    come_to_rest(sim, &left).await?;
    let id = &sim.machines[lost].id;
    for (name, now) in placements(sim).await {
        let was = before.get(&name).cloned().unwrap_or_default();
        let kept = was.iter().filter(|node| node.as_str() != id).all(|node| now.contains(node));
        let moved = was != now;
        if !kept || (moved && !was.iter().any(|node| node.as_str() == id)) {
            return Err(format!("{name} moved from {was:?} to {now:?} although only {id} went"));
        }
    }
    Ok(())
}

fn start(sim: &Arc<Sim>, nodes: usize) -> Vec<JoinSet<()>> {
    let alive = |machine| {
        let mut life = JoinSet::new();
        life.spawn(keep_alive(Arc::clone(sim), machine));
        life
    };
    (0..nodes).map(alive).collect()
}

async fn come_to_rest(sim: &Sim, nodes: &[usize]) -> Result<(), String> {
    let limit = Instant::now() + REST;
    loop {
        moment(sim);
        let Err(why) = at_rest(sim, nodes).await else { return Ok(()) };
        if Instant::now() >= limit {
            return Err(format!("{:?}: no rest: {why}", sim.elapsed()));
        }
        sleep(Duration::from_secs(2)).await;
    }
}

/// Crashes, pauses, partitions and weather.
async fn make_trouble(sim: Arc<Sim>, nodes: usize, until: Instant) {
    while Instant::now() < until {
        let machine = usize::try_from(sim.dice().below(nodes as u64)).unwrap();
        let what = sim.dice().below(100);
        let short = sim.dice().millis(100, 40_000);
        let long = sim.dice().millis(1_000, 100_000);
        match what {
            0..15 => sim.kill(machine, short),
            15..35 => {
                let steps = sim.dice().below(60);
                sim.crash_after(machine, steps);
            }
            35..50 => sim.pause(machine, short),
            50..60 => sim.cut_off(machine, long),
            60..88 => {
                let weather = [
                    Weather::CALM,
                    Weather { faults: 5, slow: 5 },
                    Weather { faults: 30, slow: 10 },
                    Weather { faults: 0, slow: 60 },
                ];
                let weather = *sim.dice().pick(&weather);
                sim.set_weather(weather);
            }
            _ if sim.loses_the_lease => sim.lose_the_lease().await,
            _ => {}
        }
        moment(&sim);
        let pause = sim.dice().millis(1_000, 15_000);
        sleep(pause).await;
    }
}
