//! Cost of a scheduler call as a component and as the same Rust compiled natively, alternating.
//!
//! `cargo bench --workspace --all-features --bench cost`. Two cases per size: a full batch, in which no sequence can
//! start, and one with sixteen free slots, which makes the scheduler sort its queue. The component's time includes
//! copying the view into its memory; the native policy gets a view that is already in its own types.

use std::hint::black_box;
use std::time::{Duration, Instant};

use infer_core::policy::{AnyPolicy, PolicyKind, SchedulerPolicy};
use infer_policy_sdk::{
    Limits, Memory, Micros, Policy, Row, Scheduler, Sequences, Step, Tenant, TenantId, Tenants, parse_config,
};
use infer_wasm::{LoaderConfig, PolicyLoader};
use shipped_policies::step_view;

/// Duration and minimum number of calls per pair.
const MEASURED: Duration = Duration::from_millis(600);
const MIN_CALLS: usize = 50;
/// Step duration that the last column relates a call to, in microseconds.
const STEP_US: f64 = 5_000.0;

fn main() {
    let loader = PolicyLoader::new(LoaderConfig::default()).expect("a loader");
    println!("| scheduler | running + waiting | free slots | Wasm p50 | p99 | native p50 | p99 | of 5 ms |");
    println!("|---|---|---|---|---|---|---|---|");
    scheduler::<policy_continuous::Continuous>(&loader);
    scheduler::<policy_static_batch::StaticBatch>(&loader);
    scheduler::<policy_priority::Priority>(&loader);
    scheduler::<policy_srpt::Srpt>(&loader);
    scheduler::<policy_mlfq::Mlfq>(&loader);
    scheduler::<policy_fair::Fair>(&loader);
    scheduler::<policy_deadline::Deadline>(&loader);
    scheduler::<policy_cache_aware::CacheAware>(&loader);
}

fn scheduler<P: Policy + Scheduler>(loader: &PolicyLoader) {
    let component = infer_bundle::find("scheduler", P::NAME).expect("it is shipped").component;
    for (running, waiting) in [(1, 0), (256, 1_000), (1_000, 10_000)] {
        for slots in [0, 16] {
            if (waiting, slots) == (0, 16) {
                continue;
            }
            let Ok(AnyPolicy::Scheduler(mut wasm)) = loader.load(PolicyKind::Scheduler, component, "{}")
            else {
                panic!("{} loads", P::NAME)
            };
            let mut native = P::new(parse_config("{}").expect("the defaults")).expect("the defaults");
            let step = step(running, waiting, slots);
            let view = step_view(&step);
            let [wasm, native] = in_turns(
                || drop(black_box(schedule(wasm.as_mut(), &view))),
                || drop(black_box(native.schedule(black_box(&step)))),
            );
            println!(
                "| {} | {running} + {waiting} | {slots} | {:.1} us | {:.1} | {:.1} us | {:.1} | {:.2} % |",
                P::NAME,
                wasm.0,
                wasm.1,
                native.0,
                native.1,
                100.0 * wasm.0 / STEP_US
            );
        }
    }
}

fn schedule(
    policy: &mut dyn SchedulerPolicy,
    view: &infer_core::policy::StepView,
) -> infer_core::policy::Plan {
    policy.schedule(view).expect("a plan")
}

/// Median and 99th percentile of each, in microseconds.
fn in_turns(mut first: impl FnMut(), mut second: impl FnMut()) -> [(f64, f64); 2] {
    let mut taken = [Vec::new(), Vec::new()];
    let began = Instant::now();
    while taken[0].len() < MIN_CALLS || began.elapsed() < MEASURED {
        for (times, call) in taken.iter_mut().zip([&mut first as &mut dyn FnMut(), &mut second]) {
            let before = Instant::now();
            call();
            times.push(before.elapsed());
        }
    }
    taken.map(|mut times| {
        times.drain(..times.len() / 10);
        times.sort_unstable();
        let at =
            |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64() * 1e6;
        (at(50), at(99))
    })
}

/// All running sequences decode; the queue has two tenants, several priorities and lengths.
fn step(running: u32, waiting: u32, slots: u32) -> Step {
    let rows = |count: u32, first: u64, computed_tokens: u32, generated_tokens: u32| -> Sequences {
        (0..count)
            .map(|row| Row {
                id: first + u64::from(row),
                tenant: row % 2,
                priority: (row % 3) as i32,
                arrived: 900_000_000 + u64::from(row),
                deadline: 1_000_000_000 + u64::from(row * 7_919 % 1_000) * 1_000,
                prompt_tokens: 500 + row * 31 % 400,
                computed_tokens: if computed_tokens > 0 { 500 + row * 31 % 400 + 20 } else { row % 20 * 16 },
                generated_tokens,
                max_new_tokens: 256,
                expected_tokens: 30 + row * 17 % 200,
                blocks: computed_tokens.div_ceil(16),
                freeable_blocks: computed_tokens.div_ceil(16),
                ..Row::default()
            })
            .collect()
    };
    let mut tenants = Tenants::default();
    for id in 0..2 {
        tenants.push(Tenant {
            id: TenantId(id),
            weight_permille: 1_000,
            running: running / 2,
            waiting: waiting / 2,
            prompt_tokens_served: 1_000_000,
            output_tokens_served: 200_000,
        });
    }
    let held = 960_u32.div_ceil(16);
    Step {
        now: Micros(1_000_000_000),
        number: 1_000,
        last_step: Micros(5_000),
        last_decodes: running,
        idle_since: Micros::NEVER,
        starvation_bound: Micros::from_millis(5_000),
        limits: Limits {
            max_batch_tokens: 8_192,
            max_running: running + slots,
            prefill_chunk: 512,
            max_prefill_sequences: 16,
            max_prefill_tokens: 8_192,
        },
        memory: Memory {
            block_size: 16,
            total_blocks: running * held + 20_000,
            free_blocks: 16_000,
            cached_blocks: 4_000,
        },
        running: rows(running, 1, 960, 21),
        waiting: rows(waiting, 1 + u64::from(running), 0, 0),
        tenants,
        ..Step::default()
    }
}
