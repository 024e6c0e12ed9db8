//! Properties of any prefix-cache policy, at random: the rules of the interface on plays that a host could
//! see, and an answer to events that no host should send.

use std::collections::BTreeSet;

use super::{CacheHost, NONE, Started, Turn};
use crate::testing::{Rng, for_seeds};
use crate::{BlockId, Ended, Event, EventKind, Events, Hit, Micros, PrefixCache, SessionId, TenantId};

/// Plays random requests and sends hostile events. Panics unless the policy keeps the rules of the interface,
/// names as many blocks as needed, survives swaps, decides alike for equal events, and answers any event.
pub fn check_prefix_cache<P: PrefixCache>(make: impl Fn() -> P) {
    for_seeds(0..150, |rng| play_at_random(rng, &make));
    for_seeds(0..150, |rng| {
        let mut twins = [make(), make()];
        for _ in 0..rng.between(1, 20) {
            let events = hostile_events(rng);
            let [one, other] = twins.each_mut().map(|policy| policy.observe(&events));
            assert_eq!(one, other, "equal events, different answers");
            let (now, need) = (Micros(rng.next_u64() >> rng.between(0, 63)), rng.between(0, 40));
            let need = if rng.one_in(8) { u32::MAX } else { need };
            let [one, other] = twins.each_mut().map(|policy| policy.evict(now, need));
            assert_eq!(one, other, "equal calls, different answers");
            let distinct: BTreeSet<_> = one.iter().collect();
            assert_eq!(distinct.len(), one.len(), "a block is named twice");
            let hit = Hit { cached_tokens: need, prompt_tokens: rng.between(0, 9), ..Hit::default() };
            assert!(twins[0].reuse(&hit) <= need);
            let ended = Ended { now, prompt_tokens: u32::MAX, generated_tokens: need, ..Ended::default() };
            twins[0].retain(&ended);
            twins[1].reuse(&hit);
            twins[1].retain(&ended);
        }
    });
}

fn play_at_random<P: PrefixCache>(rng: &mut Rng, make: &impl Fn() -> P) {
    let total = rng.between(8, 48);
    let mut host = CacheHost::new(make(), *[1, 4, 16].get(rng.between(0, 2) as usize).unwrap_or(&16), total);
    let mut running: Vec<Started> = Vec::new();
    for _ in 0..rng.between(10, 150) {
        match rng.between(0, 9) {
            0 => host.wait(Micros(u64::from(rng.between(0, 400)) * 1_000_000)),
            1 if rng.one_in(3) => host.swap(make()),
            1..=6 => running.extend(host.start(&random_turn(rng, total / 2))),
            _ => {}
        }
        if running.len() > 3 || (!running.is_empty() && rng.one_in(2)) {
            let place = rng.between(0, running.len() as u32 - 1) as usize;
            host.end(running.swap_remove(place));
        }
        host.check();
    }
    running.into_iter().for_each(|started| host.end(started));
    host.make_room(total);
    host.check();
    assert_eq!((host.memory().free_blocks, host.shortfalls()), (total, 0), "it named what was needed");
}

/// Chains that branch off each other.
fn random_turn(rng: &mut Rng, longest: u32) -> Turn {
    let prompt = (0..rng.between(1, longest)).map(|_| u64::from(rng.one_in(9))).collect();
    Turn {
        prompt,
        tenant: TenantId(rng.between(0, 2)),
        session: SessionId(u64::from(rng.between(0, 4))),
        kind: "any",
    }
}

/// Events that contradict each other and any pool.
fn hostile_events(rng: &mut Rng) -> Events {
    let mut events = Events::default();
    events.memory.total_blocks = rng.between(0, 1) * u32::MAX;
    events.memory.block_size = rng.between(0, 1) * u32::MAX;
    for _ in 0..rng.between(0, 30) {
        let mut number = || if rng.one_in(12) { NONE - rng.between(0, 1) } else { rng.between(0, 20) };
        let (block, parent, depth, tenant) = (number(), number(), number(), number());
        events.push(Event {
            at: Micros(rng.next_u64() >> rng.between(0, 63)),
            kind: EventKind::Idle,
            block: BlockId(block),
            parent: Some(BlockId(parent)),
            depth,
            tenant: TenantId(tenant),
            session: SessionId(rng.next_u64() >> rng.between(60, 63)),
        });
        let kind = [0, 1, 2, 2, 2, 2, 3, 4, u8::MAX][rng.between(0, 8) as usize];
        *events.kind.last_mut().expect("it was pushed") = kind;
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IdleTree, NoConfig, Policy};

    /// What is idle, by number; in `mode` lies something that no policy may do.
    #[derive(Default)]
    struct Wrong {
        mode: &'static str,
        idle: IdleTree<u32>,
        used: BTreeSet<BlockId>,
        turns: u32,
    }

    impl Policy for Wrong {
        type Config = NoConfig;
        const NAME: &'static str = "wrong";
        const VERSION: &'static str = "0.1.0";
        const DESCRIPTION: &'static str = "Breaks one rule.";

        fn new(_config: NoConfig) -> Result<Self, String> {
            Ok(Self::default())
        }
    }

    impl PrefixCache for Wrong {
        fn reuse(&mut self, hit: &Hit) -> u32 {
            hit.cached_tokens.saturating_add(u32::from(self.mode == "greedy"))
        }

        fn observe(&mut self, events: &Events) -> Vec<BlockId> {
            for event in events.iter() {
                self.turns += 1;
                if event.kind == EventKind::Idle {
                    self.used.remove(&event.block);
                    self.idle.insert(event.block, event.parent, self.turns);
                } else {
                    self.used.insert(event.block);
                    self.idle.remove(event.block);
                }
            }
            if self.mode == "hasty" { self.used.first().copied().into_iter().collect() } else { Vec::new() }
        }

        fn evict(&mut self, _now: Micros, need: u32) -> Vec<BlockId> {
            let mut names: Vec<BlockId> =
                self.idle.order().take(need as usize).map(|(_, block)| block).collect();
            match self.mode {
                "roots first" => names.reverse(),
                "twice" => names.extend_from_within(..names.len().min(1)),
                "lazy" => names.truncate(names.len().saturating_sub(1)),
                _ => {}
            }
            names
        }
    }

    fn wrong(mode: &'static str) {
        check_prefix_cache(|| Wrong { mode, ..Wrong::default() });
    }

    #[test]
    fn a_policy_that_keeps_the_rules_passes() {
        wrong("");
    }

    #[test]
    #[should_panic(expected = "are cached")]
    fn reusing_what_is_not_cached_is_found() {
        wrong("greedy");
    }

    #[test]
    #[should_panic(expected = "isn't idle")]
    fn naming_what_is_in_use_is_found() {
        wrong("hasty");
    }

    #[test]
    #[should_panic(expected = "before a block that follows it")]
    fn naming_roots_first_is_found() {
        wrong("roots first");
    }

    #[test]
    #[should_panic(expected = "is named twice")]
    fn naming_twice_is_found() {
        wrong("twice");
    }

    #[test]
    #[should_panic(expected = "it named what was needed")]
    fn naming_too_few_is_found() {
        wrong("lazy");
    }
}
