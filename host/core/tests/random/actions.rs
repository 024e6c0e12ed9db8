//! What happens to the engine between steps, and while a batch is out.

use std::sync::Arc;

use infer_core::engine::Policies;
use infer_core::policy::{AnyPolicy, PolicyKind};
use infer_core::testing::{self, SplitMix};
use infer_core::{
    AdapterId, DeviceFault, DeviceFaultKind, FinishReason, Micros, Request, SamplingExtras, SamplingParams,
    SequenceId, SessionId, TenantId,
};

use crate::common::{RandomAdmission, RandomPrefixCache, RandomScheduler};
use crate::{Stream, VOCAB, World};

impl World {
    pub fn act(&mut self) {
        match self.rng.below(100) {
            0..35 => self.submit(),
            35..40 => self.cancel_someone(),
            40..44 => self.fault(),
            44..50 => self.swap_something(),
            50 => {
                self.engine.clear_queue("the operator cleared the queue", self.now);
            }
            51 => {
                self.engine.empty_cache(self.now);
                let snapshot = self.engine.snapshot(self.now);
                assert_eq!((snapshot.memory.cached, snapshot.offload.used), (0, 0));
            }
            52..54 => {
                let snapshot = self.engine.snapshot(self.now);
                let memory = snapshot.memory;
                assert_eq!(memory.free + memory.cached + memory.used, memory.total);
                assert_eq!(self.engine.blocks().len(), memory.total as usize);
            }
            55 => self.end_trial(),
            54 => self.now = self.now.plus(Micros(self.rng.below(500_000))),
            _ => self.steps(3),
        }
    }

    pub fn submit(&mut self) {
        let request = self.request();
        self.submitted += 1;
        match self.engine.submit(request.clone(), self.now) {
            Ok(id) => {
                self.requests.insert(id, request);
                self.streams.insert(id, Stream::default());
            }
            Err(refusal) => {
                assert!(refusal.message.len() <= 256 && !refusal.message.is_empty());
                self.refused_at_once += 1;
            }
        }
    }

    /// Prompts repeat, share prefixes, and continue earlier streams.
    fn request(&mut self) -> Request {
        let rng = &mut self.rng;
        let session = if rng.chance(30) { rng.between(1, 3) } else { 0 };
        let mut prompt: Vec<u32> = Vec::new();
        if session > 0 && rng.chance(80) {
            let last = self.requests.iter().rev().find(|(_, r)| r.session == SessionId(session));
            if let Some((id, last)) = last {
                prompt.extend_from_slice(&last.prompt);
                prompt.extend_from_slice(&self.streams[id].tokens);
            }
        } else if rng.chance(60) {
            let family = rng.below(3) as u32;
            prompt.extend((0..rng.between(1, 30) as u32).map(|i| (family * 5 + i * 3) % VOCAB));
        }
        for _ in 0..rng.below(if prompt.is_empty() { 20 } else { 6 }) {
            prompt.push(rng.below(u64::from(VOCAB)) as u32);
        }
        if prompt.is_empty() {
            prompt.push(1);
        }
        if rng.chance(25)
            && let Some(earlier) = self.requests.values().nth_back(rng.below(4) as usize)
        {
            prompt = earlier.prompt.to_vec();
        }
        prompt.truncate(self.max_seq_len as usize + 2);
        let mut request = testing::request(prompt, rng.between(1, 14) as u32);
        request.session = SessionId(session);
        request.tenant = TenantId(rng.below(3) as u32 / 2);
        request.cache_salt = rng.below(8) / 7;
        request.adapter = AdapterId(self.submitted as u32 % 5 / 3);
        request.priority = rng.below(3) as i32 - 1;
        request.expected_output = (self.submitted % 3 == 1).then_some(self.submitted as u32 % 17);
        if rng.chance(40) {
            request.stop_tokens = Arc::from([3, 7]);
            request.min_new_tokens = rng.below(4) as u32;
        }
        if rng.chance(20) {
            request.sampling =
                SamplingParams { repetition_penalty: 1.5, seed: rng.next_u64(), ..Default::default() };
        }
        if rng.chance(15) {
            let extras = SamplingExtras { embed: true, ..SamplingExtras::default() };
            request.sampling = SamplingParams { extras: Some(Arc::new(extras)), ..Default::default() };
            request.max_new_tokens = 1;
            request.adapter = AdapterId::NONE;
        }
        request
    }

    pub fn cancel_someone(&mut self) {
        self.take_events();
        let alive: Vec<SequenceId> =
            self.streams.iter().filter(|(_, s)| s.end.is_none()).map(|(&id, _)| id).collect();
        if !alive.is_empty() {
            let id = alive[self.rng.below(alive.len() as u64) as usize];
            if id.0.is_multiple_of(3) {
                assert!(self.engine.expire(id, "overdue".to_owned(), self.now));
            } else {
                assert!(self.engine.finish(id, FinishReason::Cancelled, self.now));
            }
            assert!(!self.engine.finish(id, FinishReason::Cancelled, self.now), "it has ended");
        }
    }

    fn swap_something(&mut self) {
        let seed = self.rng.next_u64();
        let evil = self.rng.below(10);
        let policy = match self.rng.below(8) {
            0 => AnyPolicy::Scheduler(Box::new(RandomScheduler { rng: SplitMix(seed), evil })),
            1 => AnyPolicy::Scheduler(Policies::builtin().scheduler),
            2 => AnyPolicy::Admission(Box::new(RandomAdmission { rng: SplitMix(seed), evil })),
            3 => AnyPolicy::PrefixCache(Box::new(RandomPrefixCache::new(seed, evil))),
            4 => {
                let policy = RandomPrefixCache::new(seed, evil);
                policy.mirror.lock().unwrap().absorb(&self.engine.begin_priming());
                self.steps(3);
                AnyPolicy::PrefixCache(Box::new(policy))
            }
            n => {
                self.engine.rollback(PolicyKind::ALL[n as usize - 5], self.now);
                return;
            }
        };
        match self.rng.below(6) {
            0 => drop(self.engine.canary(policy, Micros(self.rng.between(1, 4) * 500_000), self.now)),
            1 => drop(self.engine.shadow(policy, self.now)),
            _ => drop(self.engine.swap(policy, self.now)),
        }
    }

    fn end_trial(&mut self) {
        let kind = PolicyKind::ALL[self.rng.below(3) as usize];
        if self.rng.chance(50) {
            self.engine.promote(kind, self.now);
        } else {
            self.engine.stop_shadow(kind, self.now);
        }
    }

    fn fault(&mut self) {
        let rows = self.rng.chance(50).then(|| vec![self.rng.below(3) as usize, self.rng.below(3) as usize]);
        self.faults += 1;
        self.executor.store.broken |= self.coin.chance(5);
        self.executor.inner.fail_next(DeviceFault {
            kind: DeviceFaultKind::OutOfMemory,
            message: "the device is out of memory".into(),
            rows,
        });
    }
}
