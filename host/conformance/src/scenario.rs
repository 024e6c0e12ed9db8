//! The loads that a policy decides in: arrivals in virtual time, cancellations, and a host of some size.
//! Each follows from a seed.

use std::sync::Arc;

use infer_core::testing::{self, SplitMix, solo};
use infer_core::{EngineConfig, Limits, Micros, Request, SessionId, TenantId};

/// Tokens that prompts and the scripted model sample from.
pub(crate) const VOCAB: u32 = 50;

/// One load.
pub(crate) struct Scenario {
    pub name: &'static str,
    pub config: EngineConfig,
    /// How long a step takes.
    pub step: Micros,
    /// In order of arrival.
    pub arrivals: Vec<(Micros, Request)>,
    /// How many in a hundred are cancelled some time after they arrived.
    pub cancelled_percent: u64,
    /// Steps after which the policy replaces the built-in; it is live from the start if `None`.
    pub live_after: Option<u64>,
    /// Steps after which a fresh instance of the policy replaces the live one and imports its state.
    pub swap_every: Option<u64>,
    /// Decides the cancellations.
    pub rng: SplitMix,
}

/// All of them.
pub(crate) fn all(seed: u64) -> Vec<Scenario> {
    let make: [fn(&mut SplitMix) -> Scenario; 11] = [
        mixed,
        tiny_pool,
        burst,
        tenants,
        conversations,
        cancellations,
        overload,
        takeover,
        one_at_a_time,
        random_limits,
        random_limits,
    ];
    let mut seeds = SplitMix(seed);
    make.iter()
        .map(|make| {
            let mut rng = SplitMix(seeds.next_u64());
            let mut scenario = make(&mut rng);
            scenario.arrivals.sort_by_key(|(at, _)| *at);
            scenario.rng = rng;
            scenario
        })
        .collect()
}

fn mixed(rng: &mut SplitMix) -> Scenario {
    let requests = (0..120).map(|_| (millis(rng.below(6_000)), request(rng, 300, 60))).collect();
    scenario("mixed load", host(256), requests)
}

fn tiny_pool(rng: &mut SplitMix) -> Scenario {
    let config = EngineConfig { block_size: 4, ..host(40) };
    let config = EngineConfig { limits: Limits { max_running: 8, ..config.limits }, ..config };
    let requests = (0..60).map(|_| (millis(rng.below(2_000)), request(rng, 60, 60))).collect();
    Scenario { swap_every: Some(97), ..scenario("tiny pool", config, requests) }
}

fn burst(rng: &mut SplitMix) -> Scenario {
    let at = [0, 500, 3_000];
    let requests = (0..240).map(|nth| (millis(at[nth % 3]), request(rng, 120, 12))).collect();
    scenario("bursts", host(256), requests)
}

fn tenants(rng: &mut SplitMix) -> Scenario {
    let requests = (0..150)
        .map(|nth| {
            let at = rng.below(6_000);
            let mut request = request(rng, 200, 40);
            // One of them asks for as much as all others together.
            request.tenant = TenantId(if nth % 2 == 0 { 1 } else { rng.between(2, 5) as u32 });
            request.priority = rng.between(0, 2) as i32 - 1;
            if rng.chance(30) {
                request.deadline = millis(at + rng.between(50, 2_000));
            }
            (millis(at), request)
        })
        .collect();
    scenario("tenants, priorities, deadlines", host(200), requests)
}

/// Each turn's prompt is the conversation so far and something new.
fn conversations(rng: &mut SplitMix) -> Scenario {
    let mut requests = Vec::new();
    let system: Vec<u32> = tokens(rng, 64).collect();
    for session in 1..=16 {
        let (mut said, mut at) = (system.clone(), rng.below(2_000));
        for _ in 0..4 {
            let news = rng.between(5, 60);
            said.extend(tokens(rng, news));
            let mut request = testing::request(said.clone(), rng.between(5, 30) as u32);
            request.session = SessionId(session);
            said.extend(solo(&request, VOCAB));
            requests.push((millis(at), request));
            at += rng.between(500, 2_500);
        }
    }
    Scenario { swap_every: Some(150), ..scenario("conversations", host(96), requests) }
}

fn cancellations(rng: &mut SplitMix) -> Scenario {
    let requests = (0..120).map(|_| (millis(rng.below(4_000)), request(rng, 200, 60))).collect();
    Scenario { cancelled_percent: 40, ..scenario("cancellations", host(128), requests) }
}

/// More arrives than the host can do, for several starvation bounds.
fn overload(rng: &mut SplitMix) -> Scenario {
    let config = host(160);
    let config = EngineConfig { limits: Limits { max_running: 8, ..config.limits }, ..config };
    let requests = (0..420)
        .map(|_| {
            let longest = if rng.chance(15) { 400 } else { 40 };
            (millis(rng.below(18_000)), request(rng, longest, 30))
        })
        .collect();
    Scenario { step: millis(25), ..scenario("overload", config, requests) }
}

/// The policy becomes live while every slot is taken, and outputs outlast the starvation bound several times.
fn takeover(rng: &mut SplitMix) -> Scenario {
    let requests = (0..40)
        .map(|nth| {
            let long =
                testing::request(tokens(rng, 40).collect::<Arc<[u32]>>(), rng.between(300, 600) as u32);
            (millis(nth * 100), long)
        })
        .collect();
    Scenario { step: millis(50), live_after: Some(60), ..scenario("takeover", host(1_024), requests) }
}

fn one_at_a_time(rng: &mut SplitMix) -> Scenario {
    let limits = Limits {
        max_batch_tokens: 7,
        max_running: 1,
        prefill_chunk: 5,
        max_prefill_sequences: 1,
        max_prefill_tokens: 6,
    };
    let requests = (0..25).map(|_| (millis(rng.below(500)), request(rng, 40, 12))).collect();
    scenario("one at a time", EngineConfig { limits, ..host(24) }, requests)
}

fn random_limits(rng: &mut SplitMix) -> Scenario {
    let mut number = |low, high| rng.between(low, high) as u32;
    let limits = Limits {
        max_batch_tokens: number(4, 96),
        max_running: number(1, 12),
        prefill_chunk: number(1, 48),
        max_prefill_sequences: number(1, 6),
        max_prefill_tokens: number(4, 96),
    };
    let (block_size, total_blocks) = (number(1, 8), number(40, 160));
    let config =
        EngineConfig { limits, block_size, prompt_cache_entries: number(0, 4), ..host(total_blocks) };
    let longest = u64::from(config.block_size * total_blocks / 4).min(100);
    let requests = (0..60).map(|_| (millis(rng.below(1_500)), request(rng, longest, longest))).collect();
    Scenario { cancelled_percent: 10, swap_every: Some(61), ..scenario("random limits", config, requests) }
}

fn scenario(name: &'static str, config: EngineConfig, arrivals: Vec<(Micros, Request)>) -> Scenario {
    Scenario {
        name,
        config: EngineConfig {
            max_seq_len: config.max_seq_len.min(config.block_size * config.total_blocks),
            ..config
        },
        step: millis(10),
        arrivals,
        cancelled_percent: 0,
        live_after: None,
        swap_every: None,
        rng: SplitMix(0),
    }
}

fn host(total_blocks: u32) -> EngineConfig {
    let limits = Limits {
        max_batch_tokens: 512,
        max_running: 16,
        prefill_chunk: 128,
        max_prefill_sequences: 4,
        max_prefill_tokens: 512,
    };
    EngineConfig { limits, total_blocks, max_seq_len: 1_024, ..EngineConfig::default() }
}

/// Half of the prompts share their beginning with others.
fn request(rng: &mut SplitMix, longest_prompt: u64, longest_output: u64) -> Request {
    let length = rng.between(1, longest_prompt);
    let alike = if rng.chance(50) { rng.between(0, length) } else { 0 };
    let family = rng.below(3) as u32;
    let shared = (0..alike as u32).map(|nth| (family * 31 + nth * 7) % VOCAB);
    let prompt: Arc<[u32]> = shared.chain(tokens(rng, length - alike)).collect();
    testing::request(prompt, rng.between(1, longest_output) as u32)
}

fn tokens(rng: &mut SplitMix, count: u64) -> impl Iterator<Item = u32> + use<> {
    let mut own = SplitMix(rng.next_u64());
    (0..count).map(move |_| own.below(u64::from(VOCAB)) as u32)
}

fn millis(millis: u64) -> Micros {
    Micros(millis * 1_000)
}
