//! Recorded decisions can be repeated exactly.

use std::collections::BTreeSet;
use std::sync::Arc;

use infer_core::engine::{Decision, Policies};
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, AnyPolicy, CacheEventKind, CacheEvents, Ended, FaultKind, Hit, Load,
    Plan, Policy, PolicyFault, PolicyInfo, PolicyKind, PrefixCachePolicy, Pressure, Retention,
    SchedulerPolicy, StepView, Verdict,
};
use infer_core::testing::{self, ScriptedExecutor, SplitMix};
use infer_core::{BlockId, Engine, EngineConfig, Micros, SequenceId};

/// For any slot. Its answers depend on all earlier calls and events, and some of them are faults.
struct Moody {
    info: Arc<PolicyInfo>,
    dice: SplitMix,
    idle: BTreeSet<u32>,
}

impl Moody {
    fn new(name: &str) -> Self {
        let info = Arc::new(PolicyInfo { name: name.to_owned(), ..PolicyInfo::default() });
        // With this seed no fault comes first after importing a state: that one would recur for ever.
        Self { info, dice: SplitMix(9), idle: BTreeSet::new() }
    }

    fn any(kind: PolicyKind, name: &str) -> AnyPolicy {
        match kind {
            PolicyKind::Scheduler => AnyPolicy::Scheduler(Box::new(Self::new(name))),
            PolicyKind::Admission => AnyPolicy::Admission(Box::new(Self::new(name))),
            PolicyKind::PrefixCache => AnyPolicy::PrefixCache(Box::new(Self::new(name))),
        }
    }

    fn mood(&mut self) -> Result<(), PolicyFault> {
        if self.dice.chance(4) { Err(PolicyFault::new(FaultKind::Trap, "not today")) } else { Ok(()) }
    }

    fn some_idle(&mut self, most: u64) -> Vec<BlockId> {
        let most = self.dice.below(most + 1) as usize;
        self.idle.iter().rev().take(most).map(|&block| BlockId(block)).collect()
    }
}

impl Policy for Moody {
    fn info(&self) -> Arc<PolicyInfo> {
        Arc::clone(&self.info)
    }

    fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
        // From the very state in which it failed it would fail for ever.
        self.dice.next_u64();
        Ok(self.dice.0.to_le_bytes().to_vec())
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), PolicyFault> {
        self.dice.0 = u64::from_le_bytes(state.try_into().expect("what it exported"));
        Ok(())
    }

    fn restart(&mut self) -> Result<(), PolicyFault> {
        self.idle.clear();
        Ok(())
    }
}

impl SchedulerPolicy for Moody {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        self.mood()?;
        let mut plan = Plan { wake: Micros::NEVER, ..Plan::default() };
        for at in 0..step.running.len() {
            if self.dice.chance(80) {
                plan.run.push(SequenceId(step.running.id[at]));
                plan.tokens.push(1);
            }
        }
        if let Some(&id) = step.waiting.id.first().filter(|_| step.running.len() < 3) {
            plan.run.push(SequenceId(id));
            plan.tokens.push(self.dice.between(1, 3) as u32);
        }
        Ok(plan)
    }
}

impl AdmissionPolicy for Moody {
    fn admit(&mut self, _: &AdmissionRequest, _: &Load) -> Result<Verdict, PolicyFault> {
        self.mood()?;
        Ok(if self.dice.chance(70) { Verdict::Admit } else { Verdict::Wait })
    }

    fn measure(&mut self, _: &Load) -> Result<Pressure, PolicyFault> {
        self.mood()?;
        Ok(Pressure { level_permille: self.dice.below(1_001) as u32, ..Pressure::default() })
    }
}

impl PrefixCachePolicy for Moody {
    fn reuse(&mut self, hit: &Hit) -> Result<u32, PolicyFault> {
        self.mood()?;
        Ok(self.dice.below(u64::from(hit.cached_tokens) + 1) as u32)
    }

    fn retain(&mut self, ended: &Ended) -> Result<Retention, PolicyFault> {
        self.mood()?;
        Ok(Retention { keep_tokens: ended.prompt_tokens, ttl: Micros(self.dice.below(90_000)) })
    }

    fn observe(&mut self, events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault> {
        for (&kind, &block) in events.kind.iter().zip(&events.block) {
            if kind == CacheEventKind::Idle as u8 {
                self.idle.insert(block);
            } else {
                self.idle.remove(&block);
            }
        }
        self.mood()?;
        Ok(if self.dice.chance(5) { self.some_idle(2) } else { Vec::new() })
    }

    fn evict(&mut self, _: Micros, need: u32) -> Result<Vec<BlockId>, PolicyFault> {
        self.mood()?;
        Ok(self.some_idle(u64::from(need) + 1))
    }
}

/// Four rounds of requests; recording begins at the second, and another policy is swapped in at the third.
fn record(kind: PolicyKind) -> Vec<Decision> {
    let config = EngineConfig {
        total_blocks: 24,
        block_size: 2,
        max_seq_len: 40,
        max_strikes: 1_000,
        prompt_cache_entries: 0,
        ..EngineConfig::default()
    };
    let mut policies = Policies::builtin();
    match Moody::any(kind, "first") {
        AnyPolicy::Scheduler(policy) => policies.scheduler = policy,
        AnyPolicy::Admission(policy) => policies.admission = policy,
        AnyPolicy::PrefixCache(policy) => policies.prefix_cache = policy,
    }
    let mut engine = Engine::new(config, policies);
    let mut device = ScriptedExecutor::new(2, 24, 0, 5);
    let (mut now, mut decisions, mut events) = (Micros(1), Vec::new(), Vec::new());
    for round in 0..4_u32 {
        match round {
            1 => engine.record_decisions(true),
            2 => {
                let mut policy = Moody::any(kind, "second");
                if let AnyPolicy::PrefixCache(policy) = &mut policy {
                    let cached = engine.begin_priming();
                    policy.observe_all(&cached).expect("it is in the mood");
                }
                engine.swap(policy, now);
            }
            _ => {}
        }
        for nth in 0..24_u32 {
            let prompt: Vec<u32> = (0..4 + nth % 3).map(|at| (nth / 2 + at) % 5).collect();
            engine.submit(testing::request(prompt, 3 + nth % 5), now).expect("room");
            for _ in 0..3 {
                testing::step(&mut engine, &mut device, &mut now, Micros(1_000));
            }
            engine.snapshot(now);
            engine.drain_events(&mut events);
            decisions.extend(engine.take_decisions());
        }
        testing::run(&mut engine, &mut device, &mut now, 2_000);
        decisions.extend(engine.take_decisions());
    }
    decisions
}

#[test]
fn every_decision_can_be_had_again() {
    for kind in PolicyKind::ALL {
        let mut asked: [Option<(String, AnyPolicy)>; 3] = [None, None, None];
        let mut counts = std::collections::BTreeMap::<String, u32>::new();
        for (at, decision) in record(kind).into_iter().enumerate() {
            let name = decision.policy.name.clone();
            let slot = &mut asked[decision.kind as usize];
            let same = slot.as_ref().is_some_and(|(who, _)| *who == name);
            // The built-in answers after a fault in between; it has no state.
            if !same || decision.state.is_some() {
                assert!(decision.state.is_some() || name.starts_with("builtin"), "decision {at} of {name}");
                let mut policy = if name.starts_with("builtin") {
                    builtin(decision.kind)
                } else {
                    Moody::any(decision.kind, &name)
                };
                if let (AnyPolicy::PrefixCache(policy), Some(knew)) = (&mut policy, &decision.knew) {
                    // It may answer with a fault, but it knows the events it received.
                    let _ = policy.observe_all(knew);
                }
                if let Some(state) = decision.state.as_ref().filter(|state| !state.is_empty()) {
                    import(&mut policy, state);
                }
                *slot = Some((name.clone(), policy));
            }
            let (_, policy) = slot.as_mut().expect("it was just made");
            let again = decision.question.put_to(policy).expect("a question of its kind");
            assert_eq!(again.as_ref(), Ok(&decision.answer), "{kind} {name}, decision {at}");
            if decision.kind == kind {
                *counts.entry(name).or_default() += 1;
            }
        }
        assert_eq!(counts.len(), 3, "both policies answered, and the built-in for them: {counts:?}");
        assert!(counts.values().all(|&count| count > 3), "{kind}: {counts:?}");
    }
}

#[test]
fn decisions_that_are_not_fetched_are_bounded_and_still_distinguishable() {
    let mut engine = Engine::new(EngineConfig::default(), Policies::builtin());
    engine.record_decisions(true);
    for at in 0..20_000 {
        engine.snapshot(Micros(at));
    }
    let kept = engine.take_decisions();
    assert!(kept.len() > 1_000 && kept.len() < 20_000, "{}", kept.len());
    engine.snapshot(Micros(30_000));
    let next = engine.take_decisions();
    assert!(next[0].state.is_some(), "decisions before it are missing, so it carries the state");
    engine.record_decisions(false);
    engine.snapshot(Micros(40_000));
    assert!(engine.take_decisions().is_empty());
}

fn builtin(kind: PolicyKind) -> AnyPolicy {
    let Policies { scheduler, admission, prefix_cache } = Policies::builtin();
    match kind {
        PolicyKind::Scheduler => AnyPolicy::Scheduler(scheduler),
        PolicyKind::Admission => AnyPolicy::Admission(admission),
        PolicyKind::PrefixCache => AnyPolicy::PrefixCache(prefix_cache),
    }
}

fn import(policy: &mut AnyPolicy, state: &[u8]) {
    let taken = match policy {
        AnyPolicy::Scheduler(policy) => policy.import_state(state),
        AnyPolicy::Admission(policy) => policy.import_state(state),
        AnyPolicy::PrefixCache(policy) => policy.import_state(state),
    };
    taken.expect("its own state");
}
