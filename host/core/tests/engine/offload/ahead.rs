//! Copies of batches that are planned while others are computed, in seeded random runs.

use std::collections::{BTreeMap, VecDeque};

use infer_core::engine::Policies;
use infer_core::offload::Offloading;
use infer_core::testing::{ScriptedExecutor, SplitMix, TestSlots, solo};
use infer_core::{
    Batch, BlockId, DeviceFault, Engine, EngineConfig, Event, Executor, Micros, OffloadCopy, SequenceId,
    StepOutput,
};

use super::{executor, fault, tiny};
use crate::common::RandomPrefixCache;
use crate::common::scripted::{VOCAB, prompt, request};

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
