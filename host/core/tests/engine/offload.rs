//! The second level of the prefix cache: what is evicted for room comes back, and nothing else does.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use crate::common::RandomPrefixCache;
use crate::common::scripted::{Ask, Say, Scheduler, VOCAB, fcfs, prompt, request, scripted, small};
use infer_core::engine::Policies;
use infer_core::offload::Offloading;
use infer_core::policy::{CacheEventKind, Retention, StepView};
use infer_core::snapshot::Counters;
use infer_core::testing::{self, ScriptedExecutor, SplitMix, TestSlots, solo};
use infer_core::{
    AdapterId, Batch, BlockId, DeviceFault, DeviceFaultKind, Engine, EngineConfig, Event, Executor,
    FinishReason, Micros, OffloadCopy, Request, SequenceId, StepOutput, TenantId,
};

/// A host with a second level, and its clock.
struct Tiered {
    engine: Engine,
    executor: Offloading<ScriptedExecutor, TestSlots>,
    now: Micros,
    events: Vec<Event>,
}

/// Room for one conversation of eight blocks and a half.
fn tiny(offload_slots: u32) -> EngineConfig {
    EngineConfig { total_blocks: 12, prompt_cache_entries: 0, offload_slots, ..small() }
}

fn executor(config: &EngineConfig) -> ScriptedExecutor {
    ScriptedExecutor::new(config.block_size, config.total_blocks, config.prompt_cache_entries, VOCAB)
}

impl Tiered {
    fn new(config: EngineConfig) -> Self {
        Self::with(config, Policies::builtin())
    }

    fn with(config: EngineConfig, policies: Policies) -> Self {
        let store = TestSlots::new(config.offload_slots);
        let executor = Offloading::new(Box::new(executor(&config)), store);
        Self { engine: Engine::new(config, policies), executor, now: Micros(1), events: Vec::new() }
    }

    fn submit(&mut self, request: Request) -> SequenceId {
        self.engine.submit(request, self.now).expect("the request is taken")
    }

    fn run(&mut self) {
        let events = testing::run(&mut self.engine, &mut self.executor, &mut self.now, 5_000);
        self.events.extend(events);
        self.engine.check_invariants();
    }

    /// Runs a request alone, and checks its tokens.
    fn ask(&mut self, request: Request) -> SequenceId {
        let alone = solo(&request, VOCAB);
        let id = self.submit(request);
        self.run();
        assert_eq!(self.tokens(id), alone, "{id:?}");
        id
    }

    /// Makes steps, in each of which `running` has a row, until `waiting` has one, and then the rest. Returns how many blocks
    /// came back in each after the first.
    fn steps_until(&mut self, mut batch: Batch, running: SequenceId, waiting: SequenceId) -> Vec<usize> {
        let has = |batch: &Batch, id| batch.rows.iter().any(|row| row.sequence == id);
        let mut pieces = Vec::new();
        while !has(&batch, waiting) {
            self.compute(batch);
            batch = self.engine.begin_step(self.now).expect("one of them runs");
            assert!(has(&batch, running), "nothing holds it up");
            pieces.push(coming(&batch).len());
        }
        self.compute(batch);
        self.run();
        pieces
    }

    fn compute(&mut self, batch: Batch) {
        let mut output = StepOutput::default();
        self.executor.execute(&batch, &mut output).expect("the device is sound");
        self.now = self.now.plus(Micros(1_000));
        self.engine.finish_step(batch, Ok(&output), self.now);
    }

    fn tokens(&self, of: SequenceId) -> Vec<u32> {
        let token = |event: &Event| match event {
            Event::Token { id, token, .. } if *id == of => Some(*token),
            _ => None,
        };
        self.events.iter().filter_map(token).collect()
    }

    /// Tokens that a sequence found when it first started.
    fn cached(&self, of: SequenceId) -> u32 {
        let started = |event: &Event| match event {
            Event::Started { id, cached_tokens, .. } if *id == of => Some(*cached_tokens),
            _ => None,
        };
        self.events.iter().find_map(started).expect("it started")
    }

    fn counters(&mut self) -> Counters {
        self.engine.snapshot(self.now).counters
    }

    fn used_slots(&self) -> u32 {
        self.engine.offload().used
    }
}

/// A turn that leaves seven full blocks.
fn turn(seed: u32) -> Request {
    request(prompt(seed, 29), 3)
}

/// The next turn of its conversation.
fn next_turn(seed: u32) -> Request {
    let mut text = prompt(seed, 29);
    text.extend(solo(&turn(seed), VOCAB));
    text.extend(prompt(40, 4));
    request(text, 3)
}

#[test]
fn a_conversation_that_was_evicted_comes_back() {
    for (slots, found) in [(0, 16), (2, 20), (16, 28)] {
        let mut host = Tiered::new(tiny(slots));
        host.ask(turn(1));
        host.ask(turn(2));
        let id = host.ask(next_turn(1));
        assert_eq!(host.cached(id), found, "{slots} slots");
        assert_eq!(host.counters().onloaded_blocks * 4, u64::from(found - 16));
        assert!(host.counters().evicted_blocks > 3);
    }
}

#[test]
fn conversations_that_take_turns_are_never_computed_again() {
    let mut host = Tiered::new(tiny(64));
    for seed in 1..5 {
        host.ask(turn(seed));
    }
    let computed = host.executor.inner.computed;
    for seed in 1..5 {
        let id = host.ask(next_turn(seed));
        assert_eq!(host.cached(id), 28, "{seed}");
    }
    // Eight tokens of each prompt are new, and two of the three generated ones are computed.
    assert_eq!(host.executor.inner.computed - computed, 4 * (8 + 2));
    let copied = host.counters().offloaded_blocks;
    for seed in 1..5 {
        host.ask(next_turn(seed));
    }
    let again = host.counters().offloaded_blocks - copied;
    assert!(again <= 12, "what came back has its slot still: {again}");
}

#[test]
fn the_tenants_salts_and_adapters_of_the_second_level_stay_apart() {
    let of = |(tenant, salt, adapter), request| Request {
        tenant: TenantId(tenant),
        cache_salt: salt,
        adapter: AdapterId(adapter),
        ..request
    };
    let own = (1, 5, 3);
    for other in [(2, 5, 3), (1, 0, 3), (1, 5, 0), (1, 5, 2), (0, 0, 0)] {
        let mut host = Tiered::new(tiny(64));
        for seed in 1..4 {
            host.ask(of(own, turn(seed)));
        }
        let id = host.ask(of(other, next_turn(1)));
        assert_eq!(host.cached(id), 0, "tenant, salt, adapter: {other:?}");
        let id = host.ask(of(own, next_turn(1)));
        assert_eq!(host.cached(id), 28, "its own");
    }
}

#[test]
fn an_emptied_cache_has_no_second_level_either() {
    let mut host = Tiered::new(tiny(16));
    host.ask(turn(1));
    host.ask(turn(2));
    let (cached, used) = (host.engine.memory().cached, host.used_slots());
    assert!(used > 0);
    let emptied = host.engine.empty_cache(host.now);
    assert_eq!((emptied.cached, emptied.offloaded), (cached, used), "both levels are counted");
    assert_eq!(host.used_slots(), 0);
    let id = host.ask(next_turn(1));
    assert_eq!(host.cached(id), 0);
}

#[test]
fn what_a_policy_forgets_is_not_evicted() {
    let policies = scripted(|ask| {
        Ok(match ask {
            Ask::Retain(_) => Say::Retain(Retention { keep_tokens: 0, ttl: Micros(0) }),
            _ => Say::Default,
        })
    });
    let mut host = Tiered::with(tiny(16), policies);
    host.ask(turn(1));
    host.ask(turn(2));
    assert_eq!((host.used_slots(), host.engine.memory().cached), (0, 0));
}

#[test]
fn a_retention_ends_in_the_second_level() {
    let policies = scripted(|ask| {
        Ok(match ask {
            Ask::Retain(_) => Say::Retain(Retention { keep_tokens: u32::MAX, ttl: Micros(500_000) }),
            _ => Say::Default,
        })
    });
    let mut host = Tiered::with(tiny(16), policies);
    host.ask(turn(1));
    host.ask(turn(2));
    assert!(host.used_slots() > 0);
    while host.engine.memory().cached > 0 || host.used_slots() > 0 {
        host.now = host.engine.next_wake().expect("a retention ends");
        assert!(host.now < Micros(2_000_000), "all of them are over");
        assert!(host.engine.begin_step(host.now).is_none());
    }
    let id = host.ask(next_turn(1));
    assert_eq!(host.cached(id), 0);
}

/// Blocks that come back with a batch.
fn coming(batch: &Batch) -> Vec<BlockId> {
    let block = |copy: &OffloadCopy| match *copy {
        OffloadCopy::In { block, .. } => Some(block),
        OffloadCopy::Out { .. } => None,
    };
    batch.offload.iter().filter_map(block).collect()
}

#[test]
fn a_prefix_comes_back_in_pieces_while_others_run() {
    let config = EngineConfig { total_blocks: 20, offload_step_blocks: 2, ..tiny(32) };
    let mut host = Tiered::new(config);
    for seed in 1..5 {
        host.ask(turn(seed));
    }
    let running = host.submit(request(prompt(5, 4), 20));
    let batch = host.engine.begin_step(host.now).expect("it starts");
    let waiting = host.submit(next_turn(1));
    let pieces = host.steps_until(batch, running, waiting);
    assert_eq!(pieces, [2, 2, 2, 1]);
    assert_eq!(host.cached(waiting), 28);
    assert_eq!(host.tokens(waiting), solo(&next_turn(1), VOCAB));
    assert_eq!(host.tokens(running), solo(&request(prompt(5, 4), 20), VOCAB));
}

#[test]
fn nothing_but_the_first_prefix_comes_back_at_once_on_an_idle_host() {
    let config = EngineConfig { total_blocks: 24, offload_step_blocks: 2, ..tiny(64) };
    let mut host = Tiered::new(config);
    for seed in 1..6 {
        host.ask(turn(seed));
    }
    let both = [1, 2].map(|seed| host.submit(next_turn(seed)));
    let batch = host.engine.begin_step(host.now).expect("one of them starts");
    assert_eq!(batch.rows.iter().map(|row| row.sequence).collect::<Vec<_>>(), both[..1]);
    assert_eq!(coming(&batch).len(), 7);
    host.compute(batch);
    let batch = host.engine.begin_step(host.now).expect("it goes on");
    assert_eq!(coming(&batch).len(), 2);
    host.compute(batch);
    host.run();
    for (id, seed) in both.into_iter().zip(1..) {
        assert_eq!(host.tokens(id), solo(&next_turn(seed), VOCAB));
    }
}

#[test]
fn a_prefix_is_waited_for_while_others_start() {
    // Starts what it can, and then nothing else runs in that step.
    let schedule = |step: &StepView| {
        let mut plan = fcfs(step);
        let starts = |id: &SequenceId| step.waiting.id.contains(&id.0);
        if plan.run.iter().any(starts) {
            let rows = std::mem::take(&mut plan.run).into_iter().zip(std::mem::take(&mut plan.tokens));
            (plan.run, plan.tokens) = rows.filter(|(id, _)| starts(id)).unzip();
        }
        Ok(plan)
    };
    let scheduler = Box::new(Scheduler("starts first", schedule));
    let config = EngineConfig { total_blocks: 20, offload_step_blocks: 2, ..tiny(32) };
    let mut host = Tiered::with(config, Policies { scheduler, ..Policies::builtin() });
    for seed in 1..5 {
        host.ask(turn(seed));
    }
    host.submit(request(prompt(5, 4), 20));
    let mut batch = host.engine.begin_step(host.now).expect("it starts");
    let waiting = host.submit(next_turn(1));
    let finish = |host: &mut Tiered, batch: Batch| {
        host.compute(batch);
    };
    for seed in 6.. {
        finish(&mut host, batch);
        host.submit(request(prompt(seed, 4), 1));
        batch = host.engine.begin_step(host.now).expect("one of them starts");
        if batch.rows.iter().any(|row| row.sequence == waiting) {
            break;
        }
    }
    finish(&mut host, batch);
    host.run();
    assert_eq!(host.cached(waiting), 28);
}

#[test]
fn the_first_of_many_that_wait_for_a_prefix_starts_with_it() {
    let mut host = Tiered::new(EngineConfig { max_waiting: 400, ..tiny(16) });
    host.ask(turn(1));
    host.ask(turn(2));
    let ids: Vec<_> = (0..300).map(|_| host.submit(next_turn(1))).collect();
    let batch = host.engine.begin_step(host.now).expect("it starts");
    assert_eq!(coming(&batch).len(), 3);
    host.engine.drain_events(&mut host.events);
    assert_eq!(host.cached(ids[0]), 28);
}

#[test]
fn a_prefix_that_takes_too_long_to_come_back_is_not_waited_for() {
    let long = |seed| request(prompt(seed, 61), 3);
    let starvation_bound = Micros(5_000);
    let config = EngineConfig { total_blocks: 32, offload_step_blocks: 1, starvation_bound, ..tiny(64) };
    let mut host = Tiered::new(config);
    for seed in 1..5 {
        host.ask(long(seed));
    }
    let running = host.submit(request(prompt(5, 4), 30));
    let batch = host.engine.begin_step(host.now).expect("it starts");
    let next_turn = request([prompt(1, 61), prompt(40, 4)].concat(), 3);
    let waiting = host.submit(next_turn.clone());
    let pieces = host.steps_until(batch, running, waiting);
    // More than the bound has passed, and more steps than the watchdog wants to have seen.
    assert_eq!(pieces.iter().sum::<usize>(), 9, "of fifteen");
    assert_eq!(host.cached(waiting), 36);
    assert_eq!(host.tokens(waiting), solo(&next_turn, VOCAB));
}

#[test]
fn what_came_back_is_not_used_later_than_what_it_follows() {
    // Cached blocks and what they follow as a policy that evicts the least recently used knows them, those first.
    let order = Arc::new(Mutex::new(Vec::<(u32, u32)>::new()));
    let book = Arc::clone(&order);
    let policies = scripted(move |ask| {
        if let Ask::Observe(events) = ask {
            let mut order = book.lock().unwrap();
            for at in 0..events.len() {
                order.retain(|&(block, _)| block != events.block[at]);
                if events.kind[at] == CacheEventKind::Idle as u8 {
                    order.push((events.block[at], events.parent[at]));
                }
            }
        }
        Ok(Say::Default)
    });
    let config = EngineConfig { total_blocks: 20, offload_step_blocks: 2, ..tiny(32) };
    let mut host = Tiered::with(config, policies);
    for seed in 1..5 {
        host.ask(turn(seed));
    }
    host.submit(request(prompt(5, 4), 20));
    let mut batch = host.engine.begin_step(host.now).expect("it starts");
    let waiting = host.submit(next_turn(1));
    let mut came = 0;
    for _ in 0..3 {
        came += coming(&batch).len();
        host.compute(batch);
        batch = host.engine.begin_step(host.now).expect("one of them runs");
    }
    assert_eq!(came, 4, "in two pieces");
    // It is given up before all of its prefix is there.
    assert!(host.engine.finish(waiting, FinishReason::Cancelled, host.now));
    host.compute(batch);
    host.run();
    let order = order.lock().unwrap();
    assert_eq!(order.len() as u32, host.engine.memory().cached);
    for (at, (_, parent)) in order.iter().enumerate() {
        assert!(order[..at].iter().all(|(before, _)| before != parent), "{order:?}");
    }
    let list = host.engine.cached_blocks(host.now);
    assert_eq!(list.len(), order.len());
    for (at, block) in list.iter().enumerate() {
        assert!(block.parent.is_none_or(|parent| parent < at), "{at}: {block:?}");
    }
}

fn fault(rows: Option<Vec<usize>>) -> DeviceFault {
    DeviceFault { kind: DeviceFaultKind::Failed, message: "it failed".to_owned(), rows }
}

#[test]
fn a_lost_batch_takes_its_copies_along() {
    for rows in [Some(Vec::new()), None] {
        let mut host = Tiered::new(tiny(16));
        host.ask(turn(1));
        host.ask(turn(2));
        let id = host.submit(next_turn(1));
        let batch = host.engine.begin_step(host.now).expect("it starts");
        assert_eq!(coming(&batch).len(), 3);
        assert!(batch.offload.iter().any(|copy| matches!(copy, OffloadCopy::Out { .. })));
        // Nothing is copied, and whoever reads what should have been gets other tokens.
        host.engine.finish_step(batch, Err(fault(rows.clone())), host.now);
        host.engine.check_invariants();
        host.run();
        if rows.is_some() {
            assert_eq!(host.tokens(id), solo(&next_turn(1), VOCAB));
        }
        host.ask(next_turn(1));
        host.ask(next_turn(2));
        assert_eq!(host.counters().device_faults, 1);
    }
}

#[test]
fn a_second_level_that_fails_is_not_used_any_more() {
    let mut host = Tiered::new(tiny(16));
    host.ask(turn(1));
    host.ask(turn(2));
    host.executor.store.broken = true;
    for seed in [1, 2, 3, 1] {
        host.ask(next_turn(seed));
    }
    assert!(host.executor.store.slots.is_empty(), "its place is given back");
    let snapshot = host.engine.snapshot(host.now);
    assert_eq!((snapshot.offload.total, snapshot.offload.used), (0, 0));
    assert_eq!((snapshot.counters.offload_failures, snapshot.counters.device_faults), (1, 0));
    assert_eq!(snapshot.counters.failed, 0);
}

/// A device that computes batches after they are submitted, and copies no blocks meanwhile.
struct Device {
    inner: ScriptedExecutor,
    pending: u32,
}

impl Executor for Device {
    fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        assert_eq!(self.pending, 0, "batches are computed in order");
        self.inner.execute(batch, output)
    }

    fn submit(&mut self, _batch: &Batch) -> Result<bool, DeviceFault> {
        self.pending += 1;
        Ok(true)
    }

    fn plans_ahead(&self) -> bool {
        true
    }

    fn collect(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        self.pending -= 1;
        self.inner.execute(batch, output)
    }

    fn block_bytes(&self) -> usize {
        self.inner.block_bytes()
    }

    fn read_block(&mut self, block: BlockId, bytes: &mut [u8]) -> Result<(), DeviceFault> {
        assert_eq!(self.pending, 0, "a batch is in flight");
        self.inner.read_block(block, bytes)
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) -> Result<(), DeviceFault> {
        assert_eq!(self.pending, 0, "a batch is in flight");
        self.inner.write_block(block, bytes)
    }
}

/// A driver that has two batches out where it can.
struct Ahead {
    engine: Engine,
    executor: Offloading<Device, TestSlots>,
    now: Micros,
    out: VecDeque<(Batch, bool)>,
    /// Batches with copies that were made behind another.
    behind: u32,
}

impl Ahead {
    fn begin(&mut self) -> bool {
        let Some(batch) = self.engine.begin_step(self.now) else { return false };
        self.behind += u32::from(!self.out.is_empty() && !batch.offload.is_empty());
        let submitted = self.executor.submit(&batch).expect("copies don't fail here");
        self.out.push_back((batch, submitted));
        true
    }

    fn end(&mut self, lost: Option<DeviceFault>) {
        let (batch, submitted) = self.out.pop_front().expect("a batch is out");
        if let Some(fault) = lost {
            self.executor.inner.inner.fail_next(fault);
        }
        let mut output = StepOutput::default();
        let result = match submitted {
            true => self.executor.collect(&batch, &mut output),
            false => self.executor.execute(&batch, &mut output),
        };
        if result.is_err() {
            self.garble(&batch);
        }
        self.now = self.now.plus(Micros(1_000));
        self.engine.finish_step(batch, result.map(|()| &output), self.now);
        self.engine.check_invariants();
    }

    /// The copies of a lost batch were not made.
    fn garble(&mut self, batch: &Batch) {
        let garbage = vec![7; self.executor.block_bytes()];
        for copy in &batch.offload {
            match *copy {
                OffloadCopy::Out { slot, .. } => {
                    self.executor.store.slots[slot.0 as usize] = Some(garbage.clone());
                }
                OffloadCopy::In { block, .. } => {
                    self.executor.inner.inner.write_block(block, &garbage).expect("memory");
                }
            }
        }
    }
}

/// Returns the batches with copies that were made behind another.
fn play_ahead(seed: u64) -> u32 {
    let mut rng = SplitMix(seed);
    let config = EngineConfig {
        total_blocks: 12 + rng.below(8) as u32,
        offload_step_blocks: rng.between(1, 4) as u32,
        plan_ahead: true,
        ..tiny(rng.between(1, 24) as u32)
    };
    let store = TestSlots::new(config.offload_slots);
    let device = Box::new(Device { inner: executor(&config), pending: 0 });
    let prefix_cache = Box::new(RandomPrefixCache::new(rng.next_u64(), 0));
    let engine = Engine::new(config, Policies { prefix_cache, ..Policies::builtin() });
    let executor = Offloading::new(device, store);
    let mut host = Ahead { engine, executor, now: Micros(1), out: VecDeque::new(), behind: 0 };
    let mut requests = BTreeMap::new();
    let mut tokens: BTreeMap<SequenceId, Vec<u32>> = BTreeMap::new();
    let mut failed = Vec::new();
    for turn in 0..400 {
        if turn < 300 && rng.chance(20) {
            // Outputs are part of later prompts, so one stream may compute what another one waits for.
            let family = request(prompt(rng.below(5) as u32, 17), 8);
            let mut text = family.prompt.to_vec();
            text.extend_from_slice(&solo(&family, VOCAB)[..rng.below(9) as usize]);
            let request = request(text, rng.between(1, 9) as u32);
            if let Ok(id) = host.engine.submit(request.clone(), host.now) {
                requests.insert(id, request);
            }
        }
        while host.out.len() < 2 && host.out.iter().all(|(_, submitted)| *submitted) && host.begin() {}
        if host.out.is_empty() {
            host.now = host.engine.next_wake().unwrap_or(host.now).max(host.now.plus(Micros(100)));
            continue;
        }
        let rows = rng.chance(70).then(|| vec![rng.below(3) as usize]);
        host.end(rng.chance(5).then(|| fault(rows)));
        let mut events = Vec::new();
        host.engine.drain_events(&mut events);
        for event in events {
            match event {
                Event::Token { id, token, .. } => tokens.entry(id).or_default().push(token),
                Event::Failed { id, .. } => failed.push(id),
                _ => {}
            }
        }
    }
    for (id, request) in &requests {
        let alone = solo(request, VOCAB);
        let told = tokens.remove(id).unwrap_or_default();
        assert!(alone.starts_with(&told), "{id:?} {told:?} {alone:?}");
        assert!(told == alone || failed.contains(id) || host.engine.has_work(), "{id:?} has ended");
    }
    host.behind
}

#[test]
fn copies_planned_ahead_keep_every_stream() {
    let mut behind = 0;
    for seed in 0..300 {
        println!("seed {seed}");
        behind += play_ahead(seed);
    }
    assert!(behind > 100, "{behind}");
}
