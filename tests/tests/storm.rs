//! A thousand swaps across all slots, a tenth of them to misbehaving policies, under a mixed load on the real model:
//! no token, request or block is lost. A binary of its own, because it watches the memory of its process.

use infer_core::policy::{AnyPolicy, PolicyKind};
use infer_core::testing::SplitMix;
use infer_core::{EngineConfig, Request, SequenceId, SessionId, TenantId, config::Limits, engine::Policies};
use infer_tests::{Driver, Ended, bundled, faulty, request, tokenizer};

const SWAPS: u32 = 1_000;
const REQUESTS: usize = 500;
const LIVE_AT_ONCE: usize = 16;
/// Calls after which a policy misbehaves: more than the self-test makes before a policy goes live.
const CALLS_BEFORE_FAULT: u32 = 16;
/// Steps for which a misbehaving policy stays live, so that it gets to its fault.
const STEPS_OF_FAULTY: u32 = 40;

/// Short and long prompts of three tenants, some with a common prefix, some in conversations.
fn requests() -> Vec<Request> {
    let tokenizer = tokenizer();
    let shared = "What is a prefix cache? How does continuous batching work? Why is decode bound by memory? ";
    let mut random = SplitMix(42);
    (0..REQUESTS)
        .map(|at| {
            let own = format!("{at}: {}", &shared[random.below(40) as usize..]);
            let text =
                if random.chance(60) { shared.repeat(1 + random.below(4) as usize) + &own } else { own };
            let prompt = tokenizer.encode(&text, true).expect("encodes");
            Request {
                tenant: TenantId(random.below(3) as u32),
                session: SessionId(if random.chance(30) { 1 + random.below(5) } else { 0 }),
                priority: random.below(3) as i32,
                ..request(prompt, random.between(30, 130) as u32)
            }
        })
        .collect()
}

fn config() -> EngineConfig {
    let limits = Limits { max_running: 8, prefill_chunk: 64, ..EngineConfig::default().limits };
    EngineConfig { limits, total_blocks: 160, max_seq_len: 1_024, ..EngineConfig::default() }
}

/// Runs all requests, `LIVE_AT_ONCE` at a time; calls `each` before every step.
fn play(mut each: impl FnMut(&mut Driver)) -> (Driver, Vec<SequenceId>) {
    let mut driver = Driver::new(config(), Policies::builtin());
    let mut ids = Vec::new();
    let mut next = requests().into_iter();
    loop {
        while ids.len() - driver.ended.len() < LIVE_AT_ONCE
            && let Some(request) = next.next()
        {
            ids.push(driver.submit(request).expect("every policy admits on its defaults"));
        }
        each(&mut driver);
        if !driver.step() && ids.len() == REQUESTS && driver.ended.len() == REQUESTS {
            return (driver, ids);
        }
    }
}

/// The policy of the `nth` swap: a shipped one, or every tenth time one that soon misbehaves.
fn policy(nth: u32, random: &mut SplitMix) -> AnyPolicy {
    let kind = PolicyKind::ALL[nth as usize % 3];
    if nth % 10 == 9 {
        let faults: &[&str] = match kind {
            PolicyKind::Scheduler => {
                &["trap", "unknown-id", "duplicate", "over-budget", "unequal-columns", "memory"]
            }
            PolicyKind::Admission | PolicyKind::PrefixCache => &["trap"],
        };
        let fault = faults[random.below(faults.len() as u64) as usize];
        return faulty(kind, &format!(r#"{{"fault": "{fault}", "after": {CALLS_BEFORE_FAULT}}}"#));
    }
    let of_kind: Vec<_> = infer_bundle::POLICIES.iter().filter(|p| p.kind == kind.name()).collect();
    let name = of_kind[random.below(of_kind.len() as u64) as usize].name;
    bundled(kind, name, "{}")
}

#[test]
fn thousand_swaps_lose_no_token_request_or_block() {
    let (plain, plain_ids) = play(|_| {});
    let (mut swaps, mut stays, mut random) = (0, 0, SplitMix(7));
    let mut resident = Vec::new();
    let (stormy, ids) = play(|driver| {
        if stays == 0 && swaps < SWAPS {
            let report = driver.engine.swap(policy(swaps, &mut random), driver.now);
            drop(report.retired);
            drop(driver.engine.take_retired());
            swaps += 1;
            stays = if swaps % 10 == 0 { STEPS_OF_FAULTY } else { 0 };
            if swaps % 100 == 0 {
                resident.push(resident_mib());
            }
        }
        stays = stays.saturating_sub(1);
        driver.engine.check_invariants();
    });
    assert!(swaps >= SWAPS, "only {swaps} swaps fitted in");
    assert_eq!(plain_ids.len(), ids.len());
    for (at, (before, after)) in plain_ids.iter().zip(&ids).enumerate() {
        assert_eq!(plain.tokens[before], stormy.tokens[after], "request {at}");
        assert!(
            matches!(stormy.ended[after].0, Ended::Finished(_)),
            "request {at}: {:?}",
            stormy.ended[after]
        );
    }
    let faults = stormy.faults();
    assert!(faults.len() >= 20, "misbehaving policies reached their faults: {faults:?}");
    let mut stormy = stormy;
    let snapshot = stormy.engine.snapshot(stormy.now).memory;
    assert_eq!((snapshot.used, snapshot.free + snapshot.cached), (0, snapshot.total));
    // A swap leaks nothing. The first few hundred swaps only fill caches and allocators.
    if let (Some(Some(early)), Some(Some(late))) = (resident.get(2), resident.last()) {
        assert!(late < &(early + 64), "memory grew from {early} to {late} MiB");
    }
}

/// Resident memory of this process in MiB, if the system reports it.
fn resident_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib / 1_024)
}
