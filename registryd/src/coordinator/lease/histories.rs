//! Several machines on one register with lost requests and answers.

use proptest::prelude::*;

use super::*;

const TTL: Duration = Duration::from_secs(15);

struct World {
    lease: Option<Body>,
    writes: u64,
    now: Mono,
}

struct Machine {
    me: NodeId,
    state: State,
    leads: Option<(Fence, Mono)>,
    queue: Vec<Effect>,
}

impl World {
    /// The outcome that the store decides, before any answer is lost.
    fn put(&mut self, me: &NodeId, write: &Write) -> Event {
        if self.lease.as_ref().map(|body| &body.etag) != write.replacing.as_ref() {
            return Event::Refused { nonce: write.nonce.clone() };
        }
        self.writes += 1;
        let etag = ETag::parse(&format!("w{}", self.writes)).unwrap();
        self.lease = Some(Body {
            etag: etag.clone(),
            node: me.clone(),
            fence: write.fence,
            ttl: write.ttl,
            nonce: write.nonce.clone(),
        });
        Event::Written { nonce: write.nonce.clone(), etag }
    }
}

impl Machine {
    fn feed(&mut self, event: Event, world: &World, nonce: u64) {
        let nonce = format!("{}-{nonce}", self.me);
        let inputs = Inputs { now: world.now, me: &self.me, ttl: TTL, floor: Fence(0), nonce: &nonce };
        let (state, effects) = step(self.state.clone(), event, &inputs);
        self.state = state;
        for effect in effects {
            match effect {
                Effect::Lead { fence, lapses } => self.leads = Some((fence, lapses)),
                Effect::StepDown => self.leads = None,
                other @ (Effect::Read | Effect::Write(_)) => self.queue.push(other),
            }
        }
    }

    fn holds(&self, now: Mono) -> bool {
        self.leads.is_some_and(|(_, lapses)| now < lapses)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is lost or late: never two holders at one instant, and the fence of the record never falls.
    #[test]
    fn at_most_one_holder_and_the_fence_never_falls(
        choices in prop::collection::vec((0usize..3, 0u8..8, 0u64..6), 1..400),
    ) {
        let mut world = World { lease: None, writes: 0, now: Mono::at(Duration::ZERO) };
        let mut machines: Vec<Machine> = ["a", "b", "c"]
            .map(|me| Machine { me: me.parse().unwrap(), state: State::Following(None), leads: None, queue: vec![] })
            .into();
        let mut highest = Fence(0);
        for (turn, (who, what, wait)) in choices.into_iter().enumerate() {
            let turn = turn as u64;
            world.now = world.now.after(Duration::from_secs(wait));
            let machine = &mut machines[who];
            if what == 7 && machine.holds(world.now) {
                machine.feed(Event::Resign, &world, turn);
            } else if machine.queue.is_empty() {
                if machine.state.due().is_none_or(|due| due <= world.now) {
                    machine.feed(Event::Due, &world, turn);
                }
            } else {
                match machine.queue.remove(0) {
                    Effect::Write(write) => {
                        let lost = Event::Unknown { nonce: write.nonce.clone() };
                        let outcome = if what == 0 { lost.clone() } else { world.put(&machine.me, &write) };
                        machine.feed(if what == 1 { lost } else { outcome }, &world, turn);
                    }
                    Effect::Read if what == 2 => machine.feed(Event::ReadFailed, &world, turn),
                    Effect::Read => machine.feed(Event::Read(world.lease.clone()), &world, turn),
                    Effect::Lead { .. } | Effect::StepDown => unreachable!("carried out at once"),
                }
            }
            let holders = machines.iter().filter(|machine| machine.holds(world.now)).count();
            prop_assert!(holders <= 1, "{holders} holders at {:?}", world.now);
            let fence = world.lease.as_ref().map_or(Fence(0), |body| body.fence);
            prop_assert!(fence >= highest);
            highest = fence;
        }
    }
}
