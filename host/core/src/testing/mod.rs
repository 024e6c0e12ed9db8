//! What tests and benchmarks of every crate drive an engine with: an executor that needs no model,
//! a small generator of random numbers, and policies that note what they are shown.
//!
//! Part of the library and not behind `cfg(test)`, because other crates' tests use it too.

mod executor;
mod expectations;
mod load;
mod random;
mod slots;

pub use executor::{ScriptedExecutor, solo, solo_embedding};
pub use expectations::Expectations;
pub use load::{LoadShape, SteadyLoad};
pub use random::SplitMix;
pub use slots::TestSlots;

use std::sync::Arc;

use crate::engine::Engine;
use crate::event::Event;
use crate::executor::{Executor, StepOutput};
use crate::ids::{AdapterId, Micros, SessionId, TenantId};
use crate::request::{Request, SamplingParams};

/// A greedy request with nothing special about it.
pub fn request(prompt: impl Into<Arc<[u32]>>, max_new_tokens: u32) -> Request {
    Request {
        tenant: TenantId(0),
        session: SessionId(0),
        cache_salt: 0,
        adapter: AdapterId::NONE,
        priority: 0,
        deadline: Micros::NEVER,
        prompt: prompt.into(),
        max_new_tokens,
        expected_output: None,
        min_new_tokens: 0,
        stop_tokens: Arc::from([]),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
    }
}

/// Runs one step that takes `step` of time. False if nothing could run.
pub fn step(engine: &mut Engine, executor: &mut impl Executor, now: &mut Micros, step: Micros) -> bool {
    let Some(batch) = engine.begin_step(*now) else { return false };
    let mut output = StepOutput::default();
    let result = executor.execute(&batch, &mut output);
    *now = now.plus(step);
    engine.finish_step(batch, result.map(|()| &output), *now);
    true
}

/// Runs until no sequence is alive, jumping to the next wake if nothing can run. Panics after `max_steps`,
/// because something hangs. Returns the events.
pub fn run(
    engine: &mut Engine,
    executor: &mut impl Executor,
    now: &mut Micros,
    max_steps: usize,
) -> Vec<Event> {
    let mut events = Vec::new();
    for _ in 0..max_steps {
        if !engine.has_work() {
            engine.drain_events(&mut events);
            return events;
        }
        if !step(engine, executor, now, Micros(1_000)) {
            *now = engine.next_wake().unwrap_or(*now).max(now.plus(Micros(1)));
        }
        engine.drain_events(&mut events);
    }
    panic!("work is left after {max_steps} steps: {:?}", engine.snapshot(*now).queue);
}
