//! What a step costs the host, without the device: `begin_step` (view, scheduler, verify, reserve, batch),
//! the same while a batch is in flight, and `finish_step` (advance, commit, events), with the native
//! built-ins, and the scheduler alone. `cargo bench -p infer-core`.
#![allow(
    clippy::disallowed_methods,
    missing_docs,
    reason = "a benchmark reads the clock; criterion's macros"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use infer_core::builtin::FirstComeFirstServed;
use infer_core::engine::Policies;
use infer_core::policy::{Plan, Policy, PolicyFault, PolicyInfo, SchedulerPolicy, StepView};
use infer_core::testing::{LoadShape, SteadyLoad};

const SHAPES: [(&str, LoadShape); 2] = [
    ("256+1000", LoadShape::REFERENCE),
    ("32+100", LoadShape { running: 32, waiting: 100, prompt_tokens: 512, steps: 512 }),
];

/// Runs `steps` steps and measures `part` of each. The median counts, so that a step in which the machine was
/// interrupted doesn't.
fn measure(shape: LoadShape, steps: u64, part: impl Fn(&mut SteadyLoad) -> Duration) -> Duration {
    let mut load = SteadyLoad::new(shape, Policies::builtin());
    let mut all = Vec::with_capacity(steps as usize);
    for _ in 0..steps {
        if load.is_used_up() {
            load = SteadyLoad::new(shape, Policies::builtin());
        }
        all.push(part(&mut load));
    }
    all.sort_unstable();
    all[all.len() / 2] * steps as u32
}

fn begin(load: &mut SteadyLoad) -> Duration {
    let start = Instant::now();
    let batch = black_box(load.begin());
    let took = start.elapsed();
    load.answer(&batch);
    load.finish(batch);
    took
}

/// `begin_step` while a batch is in flight.
fn begin_behind(load: &mut SteadyLoad) -> Duration {
    let out = load.begin();
    let start = Instant::now();
    let batch = black_box(load.begin());
    let took = start.elapsed();
    for batch in [out, batch] {
        load.answer(&batch);
        load.finish(batch);
    }
    took
}

fn finish(load: &mut SteadyLoad) -> Duration {
    let batch = load.begin();
    load.answer(&batch);
    let start = Instant::now();
    load.finish(batch);
    start.elapsed()
}

/// Keeps the last view, so that the scheduler can be measured alone on it.
struct Recorder(FirstComeFirstServed, std::sync::mpsc::Sender<StepView>);

impl Policy for Recorder {
    fn info(&self) -> std::sync::Arc<PolicyInfo> {
        self.0.info()
    }
}

impl SchedulerPolicy for Recorder {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        // The other end of the channel may be gone.
        let _ = self.1.send(step.clone());
        self.0.schedule(step)
    }
}

fn steps(c: &mut Criterion) {
    for (name, shape) in SHAPES {
        let mut group = c.benchmark_group(name);
        group.bench_function("begin_step", |b| b.iter_custom(|steps| measure(shape, steps, begin)));
        group.bench_function("begin_step behind another", |b| {
            b.iter_custom(|steps| measure(shape, steps, begin_behind));
        });
        group.bench_function("finish_step", |b| b.iter_custom(|steps| measure(shape, steps, finish)));
        let (sender, views) = std::sync::mpsc::channel();
        let scheduler = Box::new(Recorder(FirstComeFirstServed::default(), sender));
        let mut load = SteadyLoad::new(shape, Policies { scheduler, ..Policies::builtin() });
        let _ = load.begin();
        let view = views.try_iter().last().expect("a step was planned");
        let mut policy = FirstComeFirstServed::default();
        group.bench_function("scheduler alone", |b| b.iter(|| policy.schedule(black_box(&view))));
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3)).sample_size(30);
    targets = steps
}
criterion_main!(benches);
