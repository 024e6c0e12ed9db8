//! The cost of the policy boundary: one `schedule` call, one engine step, one instance. Wasm and native in
//! the same run, from the same policy's source. Numbers and the command are in `../README.md`.

mod native;
#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use infer_core::config::{EngineConfig, Limits};
use infer_core::engine::{Engine, Policies};
use infer_core::event::Event;
use infer_core::executor::StepOutput;
use infer_core::ids::{AdapterId, Micros, SessionId, TenantId};
use infer_core::policy::{
    AdmissionPolicy, AnyPolicy, Memory, PolicyKind, SchedulerPolicy, SequenceColumns, StepView, TenantColumns,
};
use infer_core::request::{Request, SamplingParams};
use infer_wasm::{LoaderConfig, PolicyLoader};
use native::{AdmitAll, Native};
use support::Guest;

/// Running and waiting sequences.
const SHAPES: [(usize, usize); 3] = [(1, 0), (256, 1_000), (1_000, 10_000)];

fn loader() -> PolicyLoader {
    PolicyLoader::new(LoaderConfig::default()).expect("the engine is set up")
}

fn component() -> &'static [u8] {
    infer_bundle::find("scheduler", "continuous").expect("it is shipped").component
}

fn wasm() -> Box<dyn SchedulerPolicy> {
    match loader().load(PolicyKind::Scheduler, component(), "{}") {
        Ok(AnyPolicy::Scheduler(policy)) => policy,
        other => panic!("{other:?}"),
    }
}

/// Every running sequence decodes, the house is full.
fn view(running: usize, waiting: usize) -> StepView {
    let now = 1_000_000_000;
    let columns = |rows: usize, first: u64, held: u32, generated: u32| SequenceColumns {
        id: (first..).take(rows).collect(),
        tenant: vec![0; rows],
        session: vec![0; rows],
        priority: vec![0; rows],
        arrived: (0..rows as u64).collect(),
        deadline: vec![u64::MAX; rows],
        prompt_tokens: vec![500; rows],
        computed_tokens: vec![held; rows],
        pending_tokens: vec![0; rows],
        idle_blocks: vec![0; rows],
        generated_tokens: vec![generated; rows],
        max_new_tokens: vec![256; rows],
        expected_tokens: vec![256; rows],
        blocks: vec![held.div_ceil(16); rows],
        freeable_blocks: vec![held.div_ceil(16); rows],
        preemptions: vec![0; rows],
    };
    StepView {
        now: Micros(now),
        number: 1_000,
        last_step: Micros(20_000),
        last_prefill_tokens: 0,
        last_decodes: running as u32,
        idle_since: Micros::NEVER,
        starvation_bound: Micros(5_000_000),
        limits: limits(running as u32),
        memory: Memory { block_size: 16, total_blocks: 65_536, free_blocks: 16_384, cached_blocks: 1_024 },
        running: columns(running, 1, 520, 21),
        waiting: columns(waiting, 1 + running as u64, 0, 0),
        tenants: TenantColumns {
            id: vec![0],
            weight_permille: vec![1_000],
            running: vec![running as u32],
            waiting: vec![waiting as u32],
            prompt_tokens_served: vec![1_000_000],
            output_tokens_served: vec![1_000_000],
        },
    }
}

fn limits(max_running: u32) -> Limits {
    Limits {
        max_batch_tokens: 8_192,
        max_running,
        prefill_chunk: 512,
        max_prefill_sequences: 8,
        max_prefill_tokens: 8_192,
    }
}

fn schedule(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("schedule");
    for (running, waiting) in SHAPES {
        let shape = format!("{running}+{waiting}");
        let view = view(running, waiting);
        let policies: [(&str, Box<dyn SchedulerPolicy>); 2] =
            [("wasm", wasm()), ("native, columns copied", Box::new(Native::continuous()))];
        for (name, mut policy) in policies {
            let plan = policy.schedule(&view).expect("a plan");
            assert_eq!(plan.run.len(), running, "every running sequence decodes");
            group.bench_function(BenchmarkId::new(name, &shape), |bencher| {
                bencher.iter(|| policy.schedule(black_box(&view)).expect("a plan"));
            });
        }
    }
    group.finish();
}

/// `begin_step` is view, policy, verification and reservation; `finish_step` completes the step.
fn engine_step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine");
    for part in ["begin_step", "whole step"] {
        for name in ["wasm", "native", "built-in"] {
            group.bench_function(BenchmarkId::new(part, name), |bencher| {
                bencher.iter_custom(|iterations| time_steps(name, part == "begin_step", iterations));
            });
        }
    }
    group.finish();
}

const RUNNING: u32 = 256;
const WAITING: u32 = 1_000;
/// Steps for which an engine stays in the same state: sequences end after that many tokens.
const STEPS_PER_ENGINE: u32 = 1_024;

fn time_steps(scheduler: &str, begin_only: bool, iterations: u64) -> Duration {
    let mut timed = Duration::ZERO;
    let mut left = iterations;
    while left > 0 {
        let mut host = FullHouse::new(scheduler);
        for _ in 0..left.min(u64::from(STEPS_PER_ENGINE) - 64) {
            let (begin, finish) = host.step();
            timed += if begin_only { begin } else { begin + finish };
            left -= 1;
        }
    }
    timed
}

/// An engine with 256 decoding sequences and 1,000 that wait for a slot.
struct FullHouse {
    engine: Engine,
    now: u64,
    output: StepOutput,
    events: Vec<Event>,
}

impl FullHouse {
    fn new(scheduler: &str) -> Self {
        let builtin = Policies::builtin();
        let scheduler: Box<dyn SchedulerPolicy> = match scheduler {
            "wasm" => wasm(),
            "native" => Box::new(Native::continuous()),
            _ => builtin.scheduler,
        };
        let admission: Box<dyn AdmissionPolicy> = Box::new(AdmitAll);
        let config = EngineConfig {
            limits: limits(RUNNING),
            total_blocks: RUNNING * (STEPS_PER_ENGINE / 16 + 8),
            max_waiting: RUNNING + WAITING,
            ..EngineConfig::default()
        };
        let engine =
            Engine::new(config, Policies { scheduler, admission, prefix_cache: builtin.prefix_cache });
        let mut host = Self { engine, now: 1, output: StepOutput::default(), events: Vec::new() };
        for n in 0..RUNNING + WAITING {
            host.engine.submit(request(n), Micros(host.now)).expect("there is room");
        }
        // Until every sequence that may run decodes.
        while host.step_rows() < RUNNING as usize {
            host.step();
        }
        host
    }

    fn step_rows(&self) -> usize {
        self.output.sampled.iter().flatten().count()
    }

    fn step(&mut self) -> (Duration, Duration) {
        self.now += 20_000;
        let began = Instant::now();
        let batch = self.engine.begin_step(Micros(self.now)).expect("there is work");
        let begin = began.elapsed();
        self.output.sampled.clear();
        self.output.sampled.extend(batch.rows.iter().map(|row| row.sample.then_some(7)));
        let began = Instant::now();
        self.engine.finish_step(batch, Ok(&self.output), Micros(self.now + 10_000));
        let finish = began.elapsed();
        self.events.clear();
        self.engine.drain_events(&mut self.events);
        (begin, finish)
    }
}

fn request(n: u32) -> Request {
    Request {
        tenant: TenantId(0),
        session: SessionId(0),
        cache_salt: 0,
        adapter: AdapterId::NONE,
        priority: 0,
        deadline: Micros::NEVER,
        // No two share a prefix.
        prompt: (0..32).map(|at| n * 32 + at).collect::<Vec<u32>>().into(),
        max_new_tokens: STEPS_PER_ENGINE,
        expected_output: None,
        min_new_tokens: 0,
        stop_tokens: Arc::from([]),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
    }
}

/// What a policy pays for gauges: a guest that answers at once, and sets one so many times before.
fn gauges(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("gauges of a call");
    let view = view(1, 0);
    for gauges in [0, 1, 16] {
        let set = "(call $gauge (i32.const 800) (i32.const 4) (f64.const 1.5))";
        let schedule = set.repeat(gauges) + "(i32.const 1024)";
        let guest = Guest { schedule, ..Guest::default() }.component();
        let mut policy = support::scheduler(&loader(), &guest).expect("it loads");
        group.bench_with_input(BenchmarkId::from_parameter(gauges), &view, |bencher, view| {
            bencher.iter(|| black_box(policy.schedule(view).expect("an empty plan")));
        });
    }
    group.finish();
}

/// Making an instance and asking it once, with each of wasmtime's allocators; and what a load costs.
fn instantiate(criterion: &mut Criterion) {
    use wasmtime::component::{Component, Linker};
    use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Store};

    let mut group = criterion.benchmark_group("instance");
    let mut pool = PoolingAllocationConfig::new();
    pool.max_memory_size(64 << 20).total_memories(16).total_tables(64).total_core_instances(64);
    for (name, strategy) in [
        ("on demand", InstanceAllocationStrategy::OnDemand),
        ("pooling", InstanceAllocationStrategy::Pooling(pool)),
    ] {
        let mut config = Config::new();
        config.concurrency_support(false).allocation_strategy(strategy);
        config.gc_support(false).wasm_gc(false).wasm_function_references(false).wasm_exceptions(false);
        let engine = Engine::new(&config).expect("an engine");
        let component = Component::from_binary(&engine, component()).expect("it compiles");
        let mut linker = Linker::<()>::new(&engine);
        linker.define_unknown_imports_as_traps(&component).expect("it only imports functions");
        let template = linker.instantiate_pre(&component).expect("it links");
        let lifecycle =
            component.get_export_index(None, "infer:policy/lifecycle@0.1.0").expect("it exports it");
        let export = component.get_export_index(Some(&lifecycle), "configure").expect("it exports it");
        group.bench_function(BenchmarkId::new("instantiate and configure", name), |bencher| {
            bencher.iter(|| {
                let mut store = Store::new(&engine, ());
                let instance = template.instantiate(&mut store).expect("an instance");
                let configure = instance
                    .get_typed_func::<(&str,), (Result<(), String>,)>(&mut store, export)
                    .expect("its type");
                configure.call(&mut store, ("{}",)).expect("no trap")
            });
        });
    }
    let home = tempfile::tempdir().expect("a directory");
    for (name, cache_dir) in [("compiled", None), ("from the cache", Some(home.path().join("policies")))] {
        let loader =
            PolicyLoader::new(LoaderConfig { cache_dir, ..LoaderConfig::default() }).expect("an engine");
        group.bench_function(BenchmarkId::new("load with self-test", name), |bencher| {
            bencher.iter(|| loader.load(PolicyKind::Scheduler, component(), "{}").expect("a policy"));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50).measurement_time(Duration::from_secs(4));
    targets = schedule, engine_step, gauges, instantiate
}
criterion_main!(benches);
