//! What a prefix-cache policy is told: every cached block when it becomes live, in pieces, and all events from then on.

use std::sync::{Arc, Mutex};

use crate::common::scripted::{
    Ask, Bench, PrefixCache, Say, Scheduler, VOCAB, fcfs, prompt, request, scripted, small, trap,
};
use crate::common::{Mirror, RandomPrefixCache, info};
use infer_core::engine::Policies;
use infer_core::policy::{
    AnyPolicy, CacheEventKind, CacheEvents, Ended, FaultKind, Hit, Plan, Policy, PolicyFault, PolicyInfo,
    PolicyKind, PrefixCachePolicy, Retention, StepView,
};
use infer_core::testing::solo;
use infer_core::trial::ShadowState;
use infer_core::{BlockId, EngineConfig, FinishReason, Handover, Micros, SequenceId};

/// The answer of a policy that drops all idle blocks that it knows whenever it is asked for some.
fn drops_all(mirror: &mut Mirror, ask: Ask<'_>) -> Say {
    match ask {
        Ask::Observe(events) => {
            mirror.absorb(events);
            Say::Default
        }
        Ask::Evict(_) => Say::Drop(mirror.idle.iter().copied().map(BlockId).collect()),
        _ => Say::Default,
    }
}

#[test]
fn a_new_policy_receives_every_cached_block_however_it_is_swapped_in() {
    for primed in [false, true] {
        let mut bench = Bench::new(EngineConfig { prompt_cache_entries: 2, total_blocks: 20, ..small() });
        for seed in 1..4 {
            bench.submit(request(prompt(seed, 9), 3));
            bench.run();
        }
        let policy = RandomPrefixCache::new(1, 0);
        let mirror = policy.mirror.clone();
        if primed {
            mirror.lock().unwrap().absorb(&bench.engine.begin_priming());
            for seed in 3..6 {
                bench.submit(request(prompt(seed, 9), 3));
                bench.run();
            }
        }
        bench.engine.swap(AnyPolicy::PrefixCache(Box::new(policy)), bench.now);
        let known = |mirror: &Mutex<Mirror>| mirror.lock().unwrap().idle.len() as u32;
        assert_eq!(known(&mirror), bench.engine.snapshot(bench.now).memory.cached, "primed: {primed}");
        // The previous policy keeps receiving events, and knows them when it comes back.
        bench.engine.swap(AnyPolicy::PrefixCache(Policies::builtin().prefix_cache), bench.now);
        for seed in 6..9 {
            bench.submit(request(prompt(seed, 9), 3));
            bench.run();
        }
        bench.engine.rollback(infer_core::policy::PolicyKind::PrefixCache, bench.now).expect("there is one");
        bench.step();
        assert_eq!(known(&mirror), bench.engine.snapshot(bench.now).memory.cached, "primed: {primed}");
        assert_eq!(bench.faults(), []);
    }
}

#[test]
fn events_of_kinds_a_policy_knows_are_all_there_is() {
    let kinds = Arc::new(Mutex::new(std::collections::BTreeSet::new()));
    let seen = kinds.clone();
    let policies = scripted(move |ask| {
        if let Ask::Observe(events) = ask {
            seen.lock().unwrap().extend(events.kind.iter().copied());
            let lens = [events.block.len(), events.parent.len(), events.depth.len(), events.tenant.len()];
            assert!(lens.iter().all(|&l| l == events.len()) && events.session.len() == events.len());
            assert!(events.at.is_sorted());
        }
        Ok(Say::Default)
    });
    let mut bench = Bench::with(EngineConfig { total_blocks: 10, ..small() }, policies);
    for seed in [1, 1, 2, 3, 4] {
        bench.submit(request(prompt(seed, 13), 3));
        bench.run();
    }
    let all = [CacheEventKind::Stored, CacheEventKind::Reused, CacheEventKind::Idle, CacheEventKind::Dropped];
    assert_eq!(kinds.lock().unwrap().iter().copied().collect::<Vec<_>>(), all.map(|k| k as u8));
}

#[test]
fn a_policy_that_comes_back_during_a_swap_misses_nothing() {
    let first = RandomPrefixCache::new(1, 0);
    let mirror = first.mirror.clone();
    let policies = Policies { prefix_cache: Box::new(first), ..Policies::builtin() };
    let mut bench = Bench::with(EngineConfig { max_strikes: 1, ..small() }, policies);
    let fails = Arc::new(Mutex::new(false));
    let broken = fails.clone();
    let second = PrefixCache(move |ask: Ask<'_>| match ask {
        Ask::Observe(_) if *broken.lock().unwrap() => Err(trap()),
        _ => Ok(Say::Default),
    });
    bench.engine.swap(AnyPolicy::PrefixCache(Box::new(second)), bench.now);
    let id = bench.submit(request(prompt(1, 13), 9));
    bench.step();
    bench.step();
    *fails.lock().unwrap() = true;
    // It fails in the swap's own flush: the second policy is removed, and the first comes back and is
    // replaced.
    bench.engine.finish(id, FinishReason::Cancelled, bench.now);
    bench.engine.swap(AnyPolicy::PrefixCache(Policies::builtin().prefix_cache), bench.now);
    bench
        .engine
        .rollback(infer_core::policy::PolicyKind::PrefixCache, bench.now)
        .expect("the first is there");
    bench.step();
    let cached = bench.engine.snapshot(bench.now).memory.cached;
    assert_eq!((mirror.lock().unwrap().idle.len() as u32, cached), (cached, 4));
}

/// The policy on trial fails right before it would be asked which blocks to drop.
#[test]
fn a_policy_that_comes_back_is_asked_for_no_block_before_it_has_what_it_missed() {
    let mirror = Arc::new(Mutex::new(Mirror::default()));
    let known = mirror.clone();
    let policies = scripted(move |ask| Ok(drops_all(&mut known.lock().unwrap(), ask)));
    let config = EngineConfig { total_blocks: 13, prompt_cache_entries: 0, ..small() };
    let mut bench = Bench::with(config, policies);
    for seed in [1, 3, 5] {
        bench.submit(request(prompt(seed, 13), 3));
        bench.run();
    }
    let fails = Arc::new(Mutex::new(false));
    let broken = fails.clone();
    let canary = PrefixCache(move |ask: Ask<'_>| match ask {
        Ask::Observe(_) if *broken.lock().unwrap() => Err(trap()),
        _ => Ok(Say::Default),
    });
    let canary = AnyPolicy::PrefixCache(Box::new(canary));
    bench.engine.canary(canary, Micros(10_000_000), bench.now).expect("no other slot is on trial");
    // Both take blocks that were idle when the first policy was replaced.
    bench.submit(request(prompt(1, 13), 10));
    bench.step();
    bench.step();
    *fails.lock().unwrap() = true;
    let evicting = request(prompt(3, 29), 2);
    let id = bench.submit(evicting.clone());
    bench.step();
    assert_eq!(bench.faults(), [FaultKind::Trap], "the canary's");
    assert!(bench.engine.snapshot(bench.now).counters.evicted_blocks > 0, "room was made in that step");
    bench.run();
    bench.step();
    assert_eq!(bench.faults(), [FaultKind::Trap], "and no other");
    assert_eq!(bench.tokens(id), solo(&evicting, VOCAB));
    let cached = bench.engine.snapshot(bench.now).memory.cached;
    assert_eq!(mirror.lock().unwrap().idle.len() as u32, cached);
}

/// Three long prompts' blocks, of one token each.
fn large_cache(policies: Policies) -> Bench {
    let config =
        EngineConfig { block_size: 1, total_blocks: 20_000, max_seq_len: 5_000, ..EngineConfig::default() };
    let mut bench = Bench::with(config, policies);
    for seed in 1..=3 {
        bench.submit(request(prompt(seed, 4_000), 1));
    }
    bench.run();
    bench
}

/// Sending a policy without a past a large pool in one step would delay every stream.
#[test]
fn a_large_cache_is_sent_in_pieces_one_per_step() {
    for restarted in [false, true] {
        let told = Arc::new(Mutex::new(Vec::new()));
        let (seen, fails) = (told.clone(), Arc::new(Mutex::new(false)));
        let (broken, mut afresh) = (fails.clone(), !restarted);
        let policy = PrefixCache(move |ask: Ask<'_>| match ask {
            _ if std::mem::take(&mut *broken.lock().unwrap()) => {
                afresh = true;
                Err(trap())
            }
            Ask::Observe(events) => {
                seen.lock().unwrap().push(events.len());
                // Before it has received everything, it may name wrong blocks through no fault of its own.
                let names = if afresh && events.len() == 2_048 { vec![BlockId(19_999)] } else { Vec::new() };
                Ok(Say::Drop(names))
            }
            _ => Ok(Say::Default),
        });
        let mut bench = match restarted {
            true => large_cache(Policies { prefix_cache: Box::new(policy), ..Policies::builtin() }),
            false => {
                let mut bench = large_cache(Policies::builtin());
                bench.engine.swap(AnyPolicy::PrefixCache(Box::new(policy)), bench.now);
                bench
            }
        };
        if restarted {
            told.lock().unwrap().clear();
            *fails.lock().unwrap() = true;
            bench.submit(request(prompt(1, 2), 1));
        }
        let cached = bench.engine.snapshot(bench.now).memory.cached as usize;
        assert!(cached >= 12_000);
        let sum = |told: &Vec<usize>| told.iter().sum::<usize>();
        while sum(&told.lock().unwrap()) < cached {
            let before = told.lock().unwrap().len();
            bench.step();
            let told = told.lock().unwrap();
            assert!(told.len() > before, "{} of {cached}", sum(&told));
            assert!(told.len() <= before + 3 && told.iter().all(|&rows| rows <= 2_048), "{told:?}");
            assert!(
                bench.engine.next_wake().is_some() || sum(&told) >= cached,
                "it continues without a call"
            );
        }
        assert_eq!(bench.faults().len(), usize::from(restarted), "{:?}", bench.faults());
    }
}

#[test]
fn a_previous_policy_that_fails_can_still_come_back() {
    let mirror = Arc::new(Mutex::new(Mirror::default()));
    let (known, fails) = (mirror.clone(), Arc::new(Mutex::new(false)));
    let broken = fails.clone();
    let policies = scripted(move |ask| match ask {
        Ask::Observe(_) if std::mem::take(&mut *broken.lock().unwrap()) => {
            *known.lock().unwrap() = Mirror::default();
            Err(trap())
        }
        Ask::Observe(events) => {
            known.lock().unwrap().absorb(events);
            Ok(Say::Default)
        }
        _ => Ok(Say::Default),
    });
    let mut bench = Bench::with(small(), policies);
    bench.engine.swap(AnyPolicy::PrefixCache(Policies::builtin().prefix_cache), bench.now);
    *fails.lock().unwrap() = true;
    for turn in 0..400 {
        bench.submit(request(prompt(turn % 40, 40), 1));
        bench.run();
    }
    assert!(!*fails.lock().unwrap(), "it received the events and failed");
    assert_eq!(bench.faults(), [], "it isn't live");
    bench.engine.rollback(PolicyKind::PrefixCache, bench.now).expect("it is still there");
    bench.step();
    let cached = bench.engine.snapshot(bench.now).memory.cached;
    assert_eq!(mirror.lock().unwrap().idle.len() as u32, cached, "it was restarted");
    assert_eq!(bench.faults(), []);
}

/// A cache that receives events, and takes its time over hits.
struct SlowCache(RandomPrefixCache, Micros);

impl Policy for SlowCache {
    fn info(&self) -> Arc<PolicyInfo> {
        info("slow-cache")
    }

    fn spent(&self) -> Micros {
        self.1
    }
}

impl PrefixCachePolicy for SlowCache {
    fn reuse(&mut self, hit: &Hit) -> Result<u32, PolicyFault> {
        self.1 = self.1.plus(Micros(60_000));
        self.0.reuse(hit)
    }

    fn retain(&mut self, ended: &Ended) -> Result<Retention, PolicyFault> {
        self.0.retain(ended)
    }

    fn observe(&mut self, events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault> {
        self.0.observe(events)
    }

    fn evict(&mut self, now: Micros, need: u32) -> Result<Vec<BlockId>, PolicyFault> {
        self.0.evict(now, need)
    }
}

#[test]
fn events_beyond_the_step_budget_are_sent_in_the_next_step() {
    let cache = RandomPrefixCache::new(1, 0);
    let mirror = cache.mirror.clone();
    let policies = Policies { prefix_cache: Box::new(SlowCache(cache, Micros::ZERO)), ..Policies::builtin() };
    let mut bench = Bench::with(EngineConfig { max_strikes: 99, total_blocks: 20, ..small() }, policies);
    for turn in 0..30 {
        for seed in 0..4 {
            bench.submit(request(prompt((turn + seed) % 5, 9 + seed), 2));
        }
        bench.run();
    }
    assert!(bench.faults().len() > 5 && bench.faults().iter().all(|kind| *kind == FaultKind::StepBudget));
    bench.step();
    let cached = bench.engine.snapshot(bench.now).memory.cached;
    assert_eq!(mirror.lock().unwrap().idle.len() as u32, cached);
}

#[test]
fn a_shadow_is_not_compared_on_events_that_the_live_policy_receives_later() {
    let mut mirror = Mirror::default();
    let shadow = PrefixCache(move |ask: Ask<'_>| Ok(drops_all(&mut mirror, ask)));
    // The sequences that run, a chunk each; all if none is named.
    let only = Arc::new(Mutex::new(Vec::new()));
    let named = only.clone();
    let scheduler = Scheduler("by name", move |step: &StepView| {
        let run: Vec<SequenceId> = named.lock().unwrap().clone();
        let tokens = vec![16; run.len()];
        Ok(if run.is_empty() { fcfs(step) } else { Plan { run, tokens, ..Plan::default() } })
    });
    let live = SlowCache(RandomPrefixCache::new(1, 0), Micros::ZERO);
    let policies =
        Policies { scheduler: Box::new(scheduler), prefix_cache: Box::new(live), ..Policies::builtin() };
    let mut bench = Bench::with(EngineConfig { max_strikes: 99, total_blocks: 24, ..small() }, policies);
    bench.engine.shadow(AnyPolicy::PrefixCache(Box::new(shadow)), bench.now);
    for (seed, len) in [(1, 13), (2, 41)] {
        bench.submit(request(prompt(seed, len), 3));
        bench.run();
    }
    // While the first computes, two that share its prompt find more at each step, which takes a step's time.
    // In that step another one takes idle blocks, and needs more than are free.
    let [computes, ..] = [(); 3].map(|()| bench.submit(request(prompt(3, 48), 2)));
    let takes = bench.submit(request([prompt(1, 12), prompt(4, 20)].concat(), 2));
    *only.lock().unwrap() = vec![computes];
    bench.step();
    let evicted = bench.engine.snapshot(bench.now).counters.evicted_blocks;
    assert_eq!((bench.faults(), evicted), (vec![], 0));
    *only.lock().unwrap() = vec![computes, takes];
    bench.step();
    let evicted = bench.engine.snapshot(bench.now).counters.evicted_blocks;
    assert_eq!((bench.faults(), evicted > 0), (vec![FaultKind::StepBudget], true));
    only.lock().unwrap().clear();
    bench.run();
    let shadow = bench.engine.snapshot(bench.now).policies[2].shadow.clone().expect("there was one");
    assert_eq!((shadow.state, &*shadow.reason), (ShadowState::Watching, ""));
}

/// A cache that fails when it imports a state, as an instance that traps does.
struct Fragile(RandomPrefixCache, bool);

impl Fragile {
    fn alive(&mut self) -> Result<&mut RandomPrefixCache, PolicyFault> {
        if self.1 { Err(trap()) } else { Ok(&mut self.0) }
    }
}

impl Policy for Fragile {
    fn info(&self) -> Arc<PolicyInfo> {
        info("fragile")
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        self.alive().map(|_| vec![1])
    }

    fn import_state(&mut self, _state: &[u8]) -> Result<(), PolicyFault> {
        self.1 = true;
        self.alive().map(|_| ())
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        self.1 = false;
        self.0.restart()
    }
}

impl PrefixCachePolicy for Fragile {
    fn reuse(&mut self, hit: &Hit) -> Result<u32, PolicyFault> {
        self.alive()?.reuse(hit)
    }

    fn retain(&mut self, ended: &Ended) -> Result<Retention, PolicyFault> {
        self.alive()?.retain(ended)
    }

    fn observe(&mut self, events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault> {
        self.alive()?.observe(events)
    }

    fn evict(&mut self, now: Micros, need: u32) -> Result<Vec<BlockId>, PolicyFault> {
        self.alive()?.evict(now, need)
    }
}

#[test]
fn policy_failing_on_import_is_primed_again() {
    for primed in [false, true] {
        for shadow in [false, true] {
            let mut bench = Bench::new(EngineConfig { prompt_cache_entries: 2, total_blocks: 40, ..small() });
            let serve = |bench: &mut Bench, seeds: std::ops::Range<u32>| {
                for seed in seeds {
                    bench.submit(request(prompt(seed, 9), 3));
                    bench.run();
                }
            };
            let fragile = |seed| {
                let cache = RandomPrefixCache::new(seed, 0);
                (cache.mirror.clone(), AnyPolicy::PrefixCache(Box::new(Fragile(cache, false))))
            };
            let knows_all = |bench: &mut Bench, mirror: &Mutex<Mirror>, what: &str| {
                let cached = bench.engine.snapshot(bench.now).memory.cached;
                let known = mirror.lock().unwrap().idle.len() as u32;
                assert!(known == cached && cached > 0, "{what}: {known} of {cached}, {primed} {shadow}");
            };
            let (first, policy) = fragile(1);
            bench.engine.swap(policy, bench.now);
            serve(&mut bench, 1..4);
            let (second, policy) = fragile(2);
            if primed {
                second.lock().unwrap().absorb(&bench.engine.begin_priming());
                serve(&mut bench, 4..6);
            }
            let report = match shadow {
                true => bench.engine.shadow(policy, bench.now),
                false => bench.engine.swap(policy, bench.now),
            };
            assert_eq!(report.state, Handover::Cold);
            knows_all(&mut bench, &second, "the new policy");
            serve(&mut bench, 6..8);
            if !shadow {
                bench.engine.rollback(PolicyKind::PrefixCache, bench.now).expect("the first");
                knows_all(&mut bench, &first, "the one that comes back");
            }
            // The next one receives everything, whatever the one before it received.
            let third = RandomPrefixCache::new(3, 0);
            let known = third.mirror.clone();
            bench.engine.swap(AnyPolicy::PrefixCache(Box::new(third)), bench.now);
            knows_all(&mut bench, &known, "the next one");
            assert_eq!(bench.faults(), []);
        }
    }
}
