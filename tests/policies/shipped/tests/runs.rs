//! Random runs of the engine with the shipped components: small pools, shared and repeated prompts, scheduler swaps.
//! No stream may differ from the same request run alone, no policy may fault, and no plan may promise memory that
//! isn't there.

use infer_core::engine::Policies;
use infer_core::policy::AnyPolicy;
use infer_core::testing::{self, ScriptedExecutor, SplitMix, solo};
use infer_core::{Engine, EngineConfig, Event, Limits, Micros, Request, SequenceId, SessionId, TenantId};
use shipped_policies::Shipped;

const VOCAB: u32 = 50;
const SCHEDULERS: [&str; 8] =
    ["continuous", "static-batch", "cache-aware", "deadline", "fair", "mlfq", "priority", "srpt"];

#[test]
fn streams_equal_solo_runs_under_each_scheduler_and_across_swaps() {
    let cache = tempfile::tempdir().unwrap();
    let shipped = Shipped::new(cache.path());
    for seed in 0..120 {
        let guard = Announce(seed);
        run(&shipped, SplitMix(seed), seed as usize % (SCHEDULERS.len() + 1));
        std::mem::forget(guard);
    }
}

/// `mode` is an index into `SCHEDULERS`, or its length to swap through all of them.
fn run(shipped: &Shipped, mut rng: SplitMix, mode: usize) {
    const PREFIX_CACHES: [&str; 6] = ["lru", "cost-aware", "s3-fifo", "session", "tenant-quota", "ttl-lru"];
    let prefix_cache = |rng: &mut SplitMix| {
        shipped.prefix_cache(PREFIX_CACHES[rng.below(PREFIX_CACHES.len() as u64) as usize], "{}")
    };
    let config = random_config(&mut rng);
    let policies = Policies {
        scheduler: shipped.scheduler(SCHEDULERS[mode % SCHEDULERS.len()], "{}"),
        admission: shipped.admission("memory-aware", "{}"),
        prefix_cache: prefix_cache(&mut rng),
    };
    let mut executor =
        ScriptedExecutor::new(config.block_size, config.total_blocks, config.prompt_cache_entries, VOCAB);
    let mut requests = random_requests(&mut rng, config.max_seq_len).into_iter().peekable();
    let mut engine = Engine::new(config, policies);
    let (mut now, mut events, mut submitted) = (Micros::ZERO, Vec::new(), Vec::new());
    let mut swaps = 0;
    for turn in 0.. {
        assert!(turn < 20_000, "it hangs: {:?}", engine.snapshot(now).queue);
        if requests.peek().is_none() && !engine.has_work() {
            break;
        }
        let arriving = if rng.chance(20) { rng.between(1, 6) } else { 0 };
        for request in requests.by_ref().take(arriving as usize) {
            let id = engine.submit(request.clone(), now).expect("it fits the pool");
            submitted.push((id, request));
        }
        if mode == SCHEDULERS.len() && rng.chance(5) {
            swaps += 1;
            engine.swap(
                AnyPolicy::Scheduler(shipped.scheduler(SCHEDULERS[swaps % SCHEDULERS.len()], "{}")),
                now,
            );
        }
        if mode == 2 && rng.chance(5) {
            engine.swap(AnyPolicy::PrefixCache(prefix_cache(&mut rng)), now);
        }
        if !testing::step(&mut engine, &mut executor, &mut now, Micros(1_000)) {
            let soon = now.plus(Micros(1_000));
            now = engine.next_wake().map_or(soon, |wake| wake.clamp(now.plus(Micros(1)), soon));
        }
        engine.drain_events(&mut events);
    }
    check(&submitted, &events);
    assert_eq!(engine.snapshot(now).counters.cut_rows, 0, "every planned row fits");
}

fn check(submitted: &[(SequenceId, Request)], events: &[Event]) {
    for event in events {
        if let Event::PolicyFault(fault) = event {
            panic!("{} faulted: {}", fault.policy.name, fault.fault);
        }
    }
    for (id, request) in submitted {
        let tokens: Vec<u32> = events
            .iter()
            .filter_map(|event| match event {
                Event::Token { id: of, token, .. } if of == id => Some(*token),
                _ => None,
            })
            .collect();
        assert_eq!(tokens, solo(request, VOCAB), "{id:?}");
    }
}

fn random_config(rng: &mut SplitMix) -> EngineConfig {
    let mut number = |low, high| rng.between(low, high) as u32;
    let limits = Limits {
        max_batch_tokens: number(8, 96),
        max_running: number(1, 8),
        prefill_chunk: number(1, 32),
        max_prefill_sequences: number(1, 8),
        max_prefill_tokens: number(4, 96),
    };
    let (block_size, total_blocks) = (number(1, 8), number(32, 120));
    EngineConfig {
        limits,
        block_size,
        total_blocks,
        max_seq_len: 128.min(block_size * total_blocks),
        prompt_cache_entries: number(0, 4),
        ..EngineConfig::default()
    }
}

/// Prompts with shared prefixes, some of them repeated; several tenants, priorities and deadlines.
fn random_requests(rng: &mut SplitMix, max_seq_len: u32) -> Vec<Request> {
    let half = u64::from(max_seq_len / 2);
    let mut requests: Vec<Request> = Vec::new();
    for _ in 0..rng.between(1, 30) {
        let length = rng.between(1, half) as u32;
        let (family, alike, own) =
            (rng.below(3) as u32, rng.between(0, u64::from(length)) as u32, rng.below(1_000) as u32);
        let fresh =
            (0..length).map(|i| if i < alike { family * 31 + i * 7 } else { own + i * 11 } % VOCAB).collect();
        let prompt: Vec<u32> = match requests.get(rng.below(requests.len() as u64) as usize) {
            Some(earlier) if rng.chance(20) => earlier.prompt.to_vec(),
            _ => fresh,
        };
        let mut request = testing::request(prompt, rng.between(1, half) as u32);
        request.session = SessionId(rng.below(4));
        request.tenant = TenantId(rng.below(3) as u32);
        request.priority = rng.below(3) as i32;
        if rng.chance(50) {
            request.deadline = Micros(rng.below(500_000));
        }
        requests.push(request);
    }
    requests
}

/// Prints the seed when it is dropped by a panic; forgotten otherwise.
struct Announce(u64);

impl Drop for Announce {
    fn drop(&mut self) {
        eprintln!("failed with seed {}", self.0);
    }
}
