//! Several machines on one register with lost requests and answers, restarts, and a record that is lost or comes back from an
//! old copy. No daemon, no runtime: a history takes a millisecond, so there can be many.

use std::collections::BTreeMap;

use super::*;
use crate::model::seeds::{Dice, first_failure, for_each_seed};

const TTL: Duration = Duration::from_secs(15);
const SEEDS: u64 = 10_000;
const TURNS: u64 = 800;
const MACHINES: usize = 3;

/// What a history leaves out, to see whether that is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Omits {
    Nothing,
    /// The look after the write of the new fence.
    TheLook,
    /// The write before the look.
    TheWrite,
}

struct World {
    lease: Option<Body>,
    /// Every body that has landed.
    copies: Vec<Body>,
    /// The fence in each node's record; its disk says the same.
    records: Vec<Fence>,
    /// Who has acted under a fence: a machine and its run.
    acted: BTreeMap<Fence, (usize, u64)>,
    writes: u64,
    now: Mono,
    tampered: Option<Mono>,
    omits: Omits,
}

struct Machine {
    index: usize,
    run: u64,
    me: NodeId,
    state: State,
    leads: Option<(Fence, Mono)>,
    todo: Vec<Todo>,
}

/// One request, or one that is made of several.
enum Todo {
    Read,
    Write(Write),
    /// Reads the records from this one on; the highest fence so far.
    Survey(usize, Fence),
    Stand(Fence),
    /// Reads the others' records from this one on.
    Look(Fence, usize),
    /// Reads the lease.
    Own(Fence),
}

impl World {
    /// The outcome that the store decides, before any answer is lost.
    fn put(&mut self, me: &NodeId, write: &Write) -> Event {
        if self.lease.as_ref().map(|body| &body.etag) != write.replacing.as_ref() {
            return Event::Refused { nonce: write.nonce.clone() };
        }
        self.writes += 1;
        let etag = ETag::parse(&format!("w{}", self.writes)).unwrap();
        let body = Body {
            etag: etag.clone(),
            node: me.clone(),
            fence: write.fence,
            ttl: write.ttl,
            nonce: write.nonce.clone(),
        };
        self.lease = Some(body.clone());
        self.copies.push(body);
        Event::Written { nonce: write.nonce.clone(), etag }
    }

    fn lose_the_record(&mut self, dice: &mut Dice) {
        self.lease = (dice.chance(60) && !self.copies.is_empty()).then(|| dice.pick(&self.copies).clone());
        self.tampered = Some(self.now);
    }
}

impl Machine {
    fn feed(&mut self, event: Event, world: &World, nonce: u64) {
        let nonce = format!("{}-{nonce}", self.me);
        let inputs = Inputs { now: world.now, me: &self.me, ttl: TTL, nonce: &nonce };
        let (state, effects) = step(self.state.clone(), event, &inputs);
        self.state = state;
        for effect in effects {
            match effect {
                Effect::Lead { fence, lapses } => self.leads = Some((fence, lapses)),
                Effect::StepDown => {
                    self.leads = None;
                    self.todo.retain(|todo| !matches!(todo, Todo::Stand(_) | Todo::Look(..) | Todo::Own(_)));
                }
                Effect::Read => self.todo.push(Todo::Read),
                Effect::Write(write) => self.todo.push(Todo::Write(write)),
                Effect::Survey => self.todo.push(Todo::Survey(0, Fence(0))),
                Effect::Prove(fence) => self.todo.push(Todo::Stand(fence)),
            }
        }
    }

    /// Dies and comes back; what it had on its way is lost.
    fn restart(&mut self) {
        self.run += 1;
        self.state = State::Following(None);
        self.leads = None;
        self.todo.clear();
    }

    fn holds(&self, now: Mono) -> bool {
        self.leads.is_some_and(|(_, lapses)| now < lapses)
    }

    /// One request of the first thing to do, and its answer. `luck`: 0 loses the request, 1 the answer.
    fn work(&mut self, world: &mut World, luck: u64, turn: u64) {
        let lost = luck < 2;
        match self.todo.remove(0) {
            Todo::Write(write) => {
                let unknown = Event::Unknown { nonce: write.nonce.clone() };
                let outcome = if luck == 0 { unknown.clone() } else { world.put(&self.me, &write) };
                self.feed(if luck == 1 { unknown } else { outcome }, world, turn);
            }
            Todo::Read if lost => self.feed(Event::ReadFailed, world, turn),
            Todo::Read => self.feed(Event::Read(world.lease.clone()), world, turn),
            Todo::Survey(..) if lost => self.feed(Event::SurveyFailed, world, turn),
            Todo::Survey(from, floor) if from < MACHINES => {
                self.todo.insert(0, Todo::Survey(from + 1, floor.max(world.records[from])));
            }
            Todo::Survey(_, floor) => self.feed(Event::Surveyed(floor), world, turn),
            Todo::Stand(fence) if luck == 0 => self.todo.push(Todo::Stand(fence)),
            Todo::Stand(fence) => {
                if world.omits != Omits::TheWrite {
                    let mine = &mut world.records[self.index];
                    *mine = fence.max(*mine);
                }
                self.todo.push(if luck == 1 { Todo::Stand(fence) } else { Todo::Look(fence, 0) });
            }
            Todo::Look(fence, from) if lost => self.todo.push(Todo::Look(fence, from)),
            Todo::Look(fence, from) if from < MACHINES && world.omits != Omits::TheLook => {
                if from != self.index && world.records[from] >= fence {
                    self.feed(Event::Overtaken(fence), world, turn);
                } else {
                    self.todo.push(Todo::Look(fence, from + 1));
                }
            }
            Todo::Look(fence, _) => self.todo.push(Todo::Own(fence)),
            Todo::Own(fence) if lost => self.todo.push(Todo::Own(fence)),
            Todo::Own(fence) => {
                let own = world.lease.as_ref().is_some_and(|body| body.node == self.me && body.fence == fence);
                self.feed(if own { Event::Proven(fence) } else { Event::Overtaken(fence) }, world, turn);
            }
        }
    }
}

fn check(world: &mut World, machines: &[Machine]) -> Result<(), String> {
    let now = world.now;
    let holders: Vec<&Machine> = machines.iter().filter(|machine| machine.holds(now)).collect();
    for holder in &holders {
        let (fence, _) = holder.leads.unwrap();
        let run = (holder.index, holder.run);
        let first = *world.acted.entry(fence).or_insert(run);
        if first != run {
            return Err(format!("{now:?}: {run:?} acts under fence {} of {first:?}", fence.0));
        }
    }
    // Who holds the lease when its record is lost may not know for what is left of its life.
    let blinded = world.tampered.is_some_and(|at| now < at.after(TTL));
    if holders.len() > 1 && !blinded {
        return Err(format!("{now:?}: {} holders at once", holders.len()));
    }
    let highest = world.copies.iter().map(|body| body.fence).max().unwrap_or_default();
    let fence = world.lease.as_ref().map_or(Fence(0), |body| body.fence);
    if world.tampered.is_none() && fence < highest {
        return Err(format!("{now:?}: the fence fell from {} to {}", highest.0, fence.0));
    }
    Ok(())
}

fn history(seed: u64, omits: Omits) -> Result<(), String> {
    let mut dice = Dice::new(seed);
    // Half of the histories never lose the record, and keep the stricter rules.
    let tampers = seed % 2 == 1;
    let (now, records) = (Mono::at(Duration::ZERO), vec![Fence(0); MACHINES]);
    let acted = BTreeMap::new();
    let mut world = World { lease: None, copies: vec![], records, acted, writes: 0, now, tampered: None, omits };
    let machine = |index| Machine {
        index,
        run: 0,
        me: format!("n{index}").parse().unwrap(),
        state: State::Following(None),
        leads: None,
        todo: vec![],
    };
    let mut machines: Vec<Machine> = (0..MACHINES).map(machine).collect();
    for turn in 0..TURNS {
        let longest = if dice.chance(15) { 6_000 } else { 300 };
        world.now = world.now.after(dice.millis(0, longest));
        let who = usize::try_from(dice.below(MACHINES as u64)).unwrap();
        let machine = &mut machines[who];
        match dice.below(100) {
            0..2 => machine.restart(),
            2..4 if machine.holds(world.now) => machine.feed(Event::Resign, &world, turn),
            4 if tampers => world.lose_the_record(&mut dice),
            _ if machine.todo.is_empty() => {
                if machine.state.due().is_none_or(|due| due <= world.now) {
                    machine.feed(Event::Due, &world, turn);
                }
            }
            _ => machine.work(&mut world, dice.below(20), turn),
        }
        check(&mut world, &machines)?;
    }
    if world.acted.is_empty() && !tampers { Err("nothing happened".to_owned()) } else { Ok(()) }
}

#[test]
fn never_two_holders_act_under_one_fence_also_when_the_record_is_lost_or_comes_back_from_a_copy() {
    for_each_seed(SEEDS, |seed| history(seed, Omits::Nothing));
}

/// Each gate of a claim is there for something.
#[test]
fn a_claim_without_one_of_its_gates_is_caught() {
    for omits in [Omits::TheLook, Omits::TheWrite] {
        let caught = first_failure(0..SEEDS, |seed| history(seed, omits)).map(|(_, why)| why);
        assert!(caught.as_ref().is_some_and(|why| why.contains("acts under fence")), "{omits:?}: {caught:?}");
    }
}
