//! Policies for tests: random ones that keep the rules or break them, and a strict observer.
#![allow(dead_code, reason = "each test binary uses its part of this")]

pub mod scripted;
pub mod site;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, CacheEventKind, CacheEvents, Ended, FaultKind, Hit, Load, Plan,
    Policy, PolicyFault, PolicyInfo, PrefixCachePolicy, Pressure, Retention, SchedulerPolicy,
    SequenceColumns, StepView, Verdict,
};
use infer_core::request::RefusalReason;
use infer_core::testing::SplitMix;
use infer_core::{BlockId, Micros, Refusal, SequenceId};

/// Info with a name and nothing else.
pub fn info(name: &str) -> Arc<PolicyInfo> {
    Arc::new(PolicyInfo { name: name.into(), ..PolicyInfo::default() })
}

fn trap() -> PolicyFault {
    PolicyFault::new(FaultKind::Trap, "it fell over")
}

/// Random plans: mostly within the rules, breaking them in `evil` percent of the steps.
pub struct RandomScheduler {
    pub rng: SplitMix,
    pub evil: u64,
}

impl Policy for RandomScheduler {
    fn info(&self) -> Arc<PolicyInfo> {
        info("random-scheduler")
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        Ok(self.rng.0.to_le_bytes().to_vec())
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        if self.rng.chance(self.evil) { Err(trap()) } else { Ok(()) }
    }
}

impl SchedulerPolicy for RandomScheduler {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        let mut plan = self.lawful(step);
        if self.rng.chance(self.evil) {
            match self.rng.below(7) {
                0 => return Err(trap()),
                1 => plan.run.push(SequenceId(1 << 40)),
                2 => plan.tokens.push(1),
                3 => {
                    plan.run.extend_from_within(..plan.run.len().min(1));
                    plan.tokens.extend_from_within(..plan.tokens.len().min(1));
                }
                4 => plan.tokens.iter_mut().for_each(|t| *t += 1),
                5 => plan.preempt.extend(step.waiting.id.first().map(|&id| SequenceId(id))),
                _ => plan.tokens.iter_mut().for_each(|t| *t = 0),
            }
        }
        Ok(plan)
    }
}

impl RandomScheduler {
    fn lawful(&mut self, step: &StepView) -> Plan {
        let mut plan = Plan { wake: Micros(step.now.0 + self.rng.below(3_000)), ..Plan::default() };
        if self.rng.chance(5) {
            return plan;
        }
        let mut tokens = step.limits.max_batch_tokens;
        let mut prefills = (step.limits.max_prefill_sequences, step.limits.max_prefill_tokens);
        let mut running = step.running.len() as u32;
        for (rows, starts) in [(&step.running, false), (&step.waiting, true)] {
            for at in self.order(rows) {
                let remaining = rows.prompt_tokens[at] + rows.generated_tokens[at] - rows.computed_tokens[at];
                let id = SequenceId(rows.id[at]);
                if !starts && self.rng.chance(4) {
                    plan.preempt.push(id);
                    running -= 1;
                    continue;
                }
                if self.rng.chance(if starts { 40 } else { 10 })
                    || (starts && running >= step.limits.max_running)
                {
                    continue;
                }
                let prefill = remaining > 1 || (remaining == 1 && rows.generated_tokens[at] == 0);
                let mut grant = remaining.min(tokens);
                if prefill {
                    grant = grant.min(step.limits.prefill_chunk).min(prefills.1);
                    if prefills.0 == 0 {
                        continue;
                    }
                    grant =
                        if self.rng.chance(50) { grant } else { grant.min(self.rng.between(1, 9) as u32) };
                }
                if grant == 0 && remaining > 0 {
                    continue;
                }
                tokens -= grant;
                if prefill {
                    prefills.0 -= 1;
                    prefills.1 -= grant;
                }
                running += u32::from(starts);
                plan.run.push(id);
                plan.tokens.push(grant);
            }
        }
        plan
    }

    fn order(&mut self, rows: &SequenceColumns) -> Vec<usize> {
        let mut order: Vec<usize> = (0..rows.id.len()).collect();
        if self.rng.chance(30) {
            for at in (1..order.len()).rev() {
                order.swap(at, self.rng.below(at as u64 + 1) as usize);
            }
        }
        order
    }
}

/// Admits, holds, refuses and faults at random.
pub struct RandomAdmission {
    pub rng: SplitMix,
    pub evil: u64,
}

impl Policy for RandomAdmission {
    fn info(&self) -> Arc<PolicyInfo> {
        info("random-admission")
    }
}

impl AdmissionPolicy for RandomAdmission {
    fn admit(&mut self, request: &AdmissionRequest, load: &Load) -> Result<Verdict, PolicyFault> {
        assert!(request.cached_tokens <= request.prompt_tokens);
        assert!(load.memory.free_blocks + load.memory.cached_blocks <= load.memory.total_blocks);
        assert!(load.expected_blocks <= load.promised_blocks);
        if self.rng.chance(self.evil) {
            return Err(trap());
        }
        Ok(match self.rng.below(10) {
            0..7 => Verdict::Admit,
            7..9 => Verdict::Wait,
            _ => Verdict::Refuse(Refusal {
                reason: RefusalReason::Backpressure,
                message: "ü".repeat(300),
                retry_after_ms: 5,
            }),
        })
    }

    fn measure(&mut self, _load: &Load) -> Result<Pressure, PolicyFault> {
        if self.rng.chance(self.evil) { Err(trap()) } else { Ok(Pressure::default()) }
    }
}

/// What a strict observer of cache events has seen.
#[derive(Debug, Default)]
pub struct Mirror {
    /// Known blocks and their parents.
    pub known: BTreeMap<u32, u32>,
    /// Those that are idle.
    pub idle: BTreeSet<u32>,
    /// Events seen.
    pub events: u64,
}

impl Mirror {
    pub fn absorb(&mut self, events: &CacheEvents) {
        self.events += events.len() as u64;
        for at in 0..events.len() {
            let (block, parent) = (events.block[at], events.parent[at]);
            match events.kind[at] {
                k if k == CacheEventKind::Stored as u8 => {
                    assert!(self.known.insert(block, parent).is_none(), "block {block} is stored twice");
                }
                k if k == CacheEventKind::Reused as u8 => {
                    self.known.entry(block).or_insert(parent);
                    self.idle.remove(&block);
                }
                k if k == CacheEventKind::Idle as u8 => {
                    self.known.entry(block).or_insert(parent);
                    self.idle.insert(block);
                }
                k if k == CacheEventKind::Dropped as u8 => {
                    self.known.remove(&block);
                    self.idle.remove(&block);
                    assert!(
                        !self.known.values().any(|&p| p == block),
                        "block {block} goes before what follows it"
                    );
                }
                k => panic!("kind {k}"),
            }
        }
    }
}

/// Reuses, retains and evicts at random from the events it received; breaks the rules now and then.
pub struct RandomPrefixCache {
    pub rng: SplitMix,
    pub evil: u64,
    pub mirror: Arc<Mutex<Mirror>>,
}

impl RandomPrefixCache {
    pub fn new(seed: u64, evil: u64) -> Self {
        Self { rng: SplitMix(seed), evil, mirror: Arc::default() }
    }

    fn some_idle(&mut self, most: usize) -> Vec<BlockId> {
        let mirror = self.mirror.lock().unwrap();
        let skip = self.rng.below(3) as usize;
        let mut names: Vec<_> = mirror.idle.iter().skip(skip).take(most).map(|&b| BlockId(b)).collect();
        if self.rng.chance(50) {
            names.reverse();
        }
        names
    }
}

impl Policy for RandomPrefixCache {
    fn info(&self) -> Arc<PolicyInfo> {
        info("random-prefix-cache")
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        *self.mirror.lock().unwrap() = Mirror::default();
        Ok(())
    }
}

impl PrefixCachePolicy for RandomPrefixCache {
    fn reuse(&mut self, hit: &Hit) -> Result<u32, PolicyFault> {
        if self.rng.chance(self.evil) {
            return if self.rng.chance(50) { Err(trap()) } else { Ok(hit.cached_tokens + 1) };
        }
        Ok(if self.rng.chance(70) {
            hit.cached_tokens
        } else {
            self.rng.below(u64::from(hit.cached_tokens)) as u32
        })
    }

    fn retain(&mut self, ended: &Ended) -> Result<Retention, PolicyFault> {
        if self.rng.chance(self.evil) {
            return Err(trap());
        }
        let all = ended.prompt_tokens + ended.generated_tokens;
        let keep = if self.rng.chance(60) { u64::from(all) } else { self.rng.below(u64::from(all) + 5) };
        let ttl = if self.rng.chance(30) { self.rng.below(50_000) } else { 0 };
        Ok(Retention { keep_tokens: keep as u32, ttl: Micros(ttl) })
    }

    fn observe(&mut self, events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault> {
        self.mirror.lock().unwrap().absorb(events);
        if self.rng.chance(self.evil) {
            return if self.rng.chance(50) {
                Err(trap())
            } else {
                Ok(vec![BlockId(self.rng.below(99) as u32)])
            };
        }
        Ok(if self.rng.chance(3) { self.some_idle(2) } else { Vec::new() })
    }

    fn evict(&mut self, _now: Micros, need: u32) -> Result<Vec<BlockId>, PolicyFault> {
        if self.rng.chance(self.evil) {
            return if self.rng.chance(50) { Err(trap()) } else { Ok(vec![BlockId(u32::MAX)]) };
        }
        let most = self.rng.below(u64::from(need) * 2 + 1) as usize;
        Ok(self.some_idle(most))
    }
}
