//! Steps, what must hold after each of them, and what at the end.

use infer_core::engine::Policies;
use infer_core::policy::AnyPolicy;
use infer_core::testing::{solo, solo_embedding};
use infer_core::{Batch, DeviceFault, Event, Executor, FinishReason, Micros, StepOutput};

use crate::{End, World};

impl World {
    pub fn steps(&mut self, count: usize) {
        let mut behind = None;
        for nth in 1..=count {
            let Some(batch) = behind.take().or_else(|| self.engine.begin_step(self.now)) else {
                let wake = self.engine.next_wake().unwrap_or(self.now);
                self.now = self.now.plus(Micros(100)).max(wake.min(self.now.plus(Micros(60_000))));
                self.check();
                continue;
            };
            if self.rng.chance(4) {
                self.cancel_someone();
            }
            if self.rng.chance(3) {
                self.submit();
            }
            // A driver that plans ahead makes the next batch while this one is computed; none is left in flight.
            if self.engine.plans_ahead() && nth < count {
                behind = self.engine.begin_step(self.now);
            }
            let mut output = StepOutput::default();
            let result = self.execute(&batch, &mut output);
            self.now = self.now.plus(Micros(self.rng.between(1, 2_000)));
            self.engine.finish_step(batch, result.map(|()| &output), self.now);
            self.check();
        }
    }

    /// A batch that is lost may not have made its copies.
    fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        if self.faults > 0 {
            self.faults -= 1;
            if self.coin.chance(50) {
                let lost = Batch { offload: Vec::new(), ..batch.clone() };
                return self.executor.inner.execute(&lost, output);
            }
        }
        self.executor.execute(batch, output)
    }

    fn check(&mut self) {
        self.engine.check_invariants();
        self.take_events();
    }

    pub fn take_events(&mut self) {
        let mut events = Vec::new();
        self.engine.drain_events(&mut events);
        for event in events {
            self.log.push_str(&format!("{event:?}\n"));
            let (id, end) = match event {
                Event::Token { id, token, .. } => {
                    let stream = self.streams.get_mut(&id).unwrap();
                    assert!(stream.end.is_none(), "{id:?} goes on after its end");
                    stream.tokens.push(token);
                    continue;
                }
                Event::Embedding { id, vector } => {
                    let stream = self.streams.get_mut(&id).unwrap();
                    assert!(stream.end.is_none() && stream.vector.replace(vector).is_none(), "{id:?} twice");
                    continue;
                }
                Event::Finished { id, reason, usage } => {
                    assert_eq!(usage.generated_tokens as usize, self.streams[&id].tokens.len());
                    (id, End::Finished(reason))
                }
                Event::Failed { id, .. } => (id, End::Failed),
                Event::Refused { id, .. } => (id, End::Refused),
                _ => continue,
            };
            let stream = self.streams.get_mut(&id).unwrap();
            assert!(stream.end.replace(end).is_none(), "{id:?} ends once");
        }
    }

    /// All policies behave from now on: every live sequence must end.
    pub fn finish(&mut self) {
        let builtin = Policies::builtin();
        self.engine.swap(AnyPolicy::Scheduler(builtin.scheduler), self.now);
        self.engine.swap(AnyPolicy::Admission(builtin.admission), self.now);
        for _ in 0..5_000 {
            if !self.engine.has_work() {
                break;
            }
            self.steps(1);
        }
        self.steps(2);
        assert!(!self.engine.has_work(), "something hangs: {:?}", self.engine.snapshot(self.now).requests);
        let mut ends = [0; 3];
        for (id, stream) in &self.streams {
            let request = &self.requests[id];
            let embeds = request.sampling.embeds();
            let alone = if embeds { Vec::new() } else { solo(request, self.vocab) };
            match stream.end.as_ref().expect("every request ends") {
                End::Finished(FinishReason::Length | FinishReason::Eos) => {
                    assert!(!embeds && stream.tokens == alone, "{id:?} {:?} {alone:?}", stream.tokens);
                    ends[0] += 1;
                }
                End::Finished(FinishReason::Stop) => {
                    assert!(embeds, "{id:?}: no driver stops any");
                    assert_eq!(stream.vector, Some(solo_embedding(&request.prompt)), "{id:?}");
                    ends[0] += 1;
                }
                End::Finished(FinishReason::Cancelled) => ends[0] += 1,
                End::Failed => ends[1] += 1,
                End::Refused => ends[2] += 1,
            }
            assert!(alone.starts_with(&stream.tokens), "{id:?} {:?} {alone:?}", stream.tokens);
        }
        assert_eq!(ends.iter().sum::<u64>() + self.refused_at_once, self.submitted, "no request is lost");
        let counters = self.engine.snapshot(self.now).counters;
        assert_eq!(counters.finished.iter().sum::<u64>(), ends[0]);
        assert_eq!(counters.failed, ends[1]);
        assert_eq!(counters.refused.iter().sum::<u64>(), ends[2] + self.refused_at_once);
    }
}
