//! A component and the same policy compiled natively decide alike for any input, so what a policy's unit tests show
//! natively also holds for the shipped component.

use infer_core::ids::{Micros, SequenceId, SessionId, TenantId};
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, CacheEvents, Ended, Load, Memory, PrefixCachePolicy, SchedulerPolicy,
};
use infer_policy_sdk::testing::{Rng, for_seeds, hostile_step, random_step};
use infer_policy_sdk::{Admission, Policy, PrefixCache, Scheduler};
use policy_cache_aware::CacheAware;
use policy_continuous::Continuous;
use policy_cost_aware::CostAware;
use policy_deadline::Deadline;
use policy_fair::Fair;
use policy_lru::Lru;
use policy_memory_aware::MemoryAware;
use policy_mlfq::Mlfq;
use policy_priority::Priority;
use policy_s3_fifo::S3Fifo;
use policy_session::Session;
use policy_slo::Slo;
use policy_srpt::Srpt;
use policy_static_batch::StaticBatch;
use policy_tenant_cap::TenantCap;
use policy_tenant_quota::TenantQuota;
use policy_token_bucket::TokenBucket;
use policy_ttl_lru::TtlLru;
use shipped_policies::{Native, Shipped, step_view};

#[test]
fn schedulers_equal_their_native_builds() {
    fn check<P: Policy + Scheduler + Send>(shipped: &Shipped, config: &str) {
        let mut native = Native::<P>::new(config);
        let mut component = shipped.scheduler(P::NAME, config);
        for_seeds(0..400, |rng| {
            let step = if rng.one_in(4) { hostile_step(rng) } else { random_step(rng) };
            let view = step_view(&step);
            assert_eq!(component.schedule(&view), native.schedule(&view), "{} {config}", P::NAME);
        });
    }
    let cache = tempfile::tempdir().unwrap();
    let shipped = Shipped::new(cache.path());
    for config in ["{}", r#"{"watermark": 0.2, "prefix_wait_ms": 0}"#, r#"{"step_target_ms": 20}"#] {
        check::<Continuous>(&shipped, config);
    }
    for config in ["{}", r#"{"batch_size": 3, "wait_ms": 10}"#] {
        check::<StaticBatch>(&shipped, config);
    }
    for config in ["{}", r#"{"patience_ms": 0}"#] {
        check::<CacheAware>(&shipped, config);
        check::<Deadline>(&shipped, config);
        check::<Srpt>(&shipped, config);
    }
    check::<Fair>(&shipped, "{}");
    for config in ["{}", r#"{"aging_ms": 10}"#] {
        check::<Priority>(&shipped, config);
    }
    for config in ["{}", r#"{"quantum": 5, "preempt_for_memory": true}"#] {
        check::<Mlfq>(&shipped, config);
    }
}

#[test]
fn admission_policies_equal_their_native_builds() {
    fn check<P: Policy + Admission + Send>(shipped: &Shipped, config: &str) {
        let mut native = Native::<P>::new(config);
        let mut component = shipped.admission(P::NAME, config);
        for_seeds(0..1_000, |rng| {
            let (request, load) = random_request(rng);
            let (ours, theirs) = (native.admit(&request, &load), component.admit(&request, &load));
            assert_eq!(theirs, ours, "{} {config}", P::NAME);
            assert_eq!(component.measure(&load), native.measure(&load), "{} {config}", P::NAME);
        });
    }
    let cache = tempfile::tempdir().unwrap();
    let shipped = Shipped::new(cache.path());
    check::<MemoryAware>(&shipped, r#"{"reserve": 0.2, "backpressure_at": 0.5, "margin": 1.3}"#);
    check::<MemoryAware>(&shipped, r#"{"outputs": "longest"}"#);
    check::<Slo>(&shipped, r#"{"default_ttft_ms": 900, "slack": 1.3}"#);
    check::<TenantCap>(&shipped, r#"{"max_in_flight": 2, "max_held": 4}"#);
    check::<TokenBucket>(&shipped, r#"{"tokens_per_minute": 100000, "burst": 5000}"#);
}

fn random_request(rng: &mut Rng) -> (AdmissionRequest, Load) {
    let mut number = |likely| if rng.one_in(10) { u32::MAX } else { rng.between(0, likely) };
    let memory = Memory {
        block_size: number(32),
        total_blocks: number(200),
        free_blocks: number(200),
        cached_blocks: number(50),
    };
    let load = Load {
        now: Micros(u64::from(number(60_000_000))),
        memory,
        max_running: number(4),
        waiting_prompt_tokens: u64::from(number(3_000)),
        started_prompt_tokens: u64::from(number(3_000)),
        expected_output_tokens: u64::from(number(3_000)),
        prefill_tokens_per_second: number(5_000),
        output_tokens_per_second: number(500),
        tenant_rate_per_minute: number(1).saturating_mul(50_000),
        tenant_burst: number(4_000),
        tenant_running: number(3),
        tenant_waiting: number(3),
        tenant_in_flight: number(6),
        tenant_output_tokens_served: u64::from(number(9_000)),
        running: number(2),
        admitted: number(2),
        preempted: number(2),
        waiting: number(10),
        max_waiting: number(10),
        promised_blocks: number(40),
        expected_blocks: number(40),
        ..Load::default()
    };
    let request = AdmissionRequest {
        id: SequenceId(u64::from(number(2_000))),
        tenant: TenantId(number(3)),
        session: SessionId(0),
        priority: 0,
        arrived: Micros(u64::from(number(60_000_000))),
        deadline: if number(1) == 0 { Micros::NEVER } else { Micros(u64::from(number(60_000_000))) },
        prompt_tokens: number(2_000),
        cached_tokens: number(500),
        idle_blocks: number(30),
        max_new_tokens: number(2_000),
        expected_tokens: number(2_000),
    };
    (request, load)
}

#[test]
fn prefix_caches_equal_their_native_builds() {
    fn check<P: Policy + PrefixCache + Send>(shipped: &Shipped, config: &str) {
        let mut native = Native::<P>::new(config);
        let mut component = shipped.prefix_cache(P::NAME, config);
        for_seeds(0..300, |rng| {
            let events = random_events(rng);
            assert_eq!(component.observe(&events), native.observe(&events), "{} {config}", P::NAME);
            let (now, need) = (Micros(u64::from(rng.between(0, 1_000_000_000))), rng.between(0, 20));
            assert_eq!(component.evict(now, need), native.evict(now, need), "{} {config}", P::NAME);
            let ended = ended(rng, now);
            assert_eq!(component.retain(&ended), native.retain(&ended), "{} {config}", P::NAME);
        });
    }
    let cache = tempfile::tempdir().unwrap();
    let shipped = Shipped::new(cache.path());
    check::<Lru>(&shipped, "{}");
    check::<TtlLru>(&shipped, r#"{"max_entries": 5}"#);
    check::<Session>(&shipped, r#"{"budget": 0.3}"#);
    check::<S3Fifo>(&shipped, "{}");
    check::<CostAware>(&shipped, r#"{"attention_tokens": 100}"#);
    check::<TenantQuota>(&shipped, r#"{"slack": 0.1}"#);
}

fn ended(rng: &mut Rng, now: Micros) -> Ended {
    Ended {
        now,
        id: SequenceId(1),
        tenant: TenantId(rng.between(0, 3)),
        session: SessionId(u64::from(rng.between(0, 4))),
        prompt_tokens: rng.between(0, u32::MAX),
        generated_tokens: rng.between(0, u32::MAX),
        reused_tokens: 0,
        memory: Memory::default(),
    }
}

/// Chains and single blocks, and occasionally a block number outside the pool.
fn random_events(rng: &mut Rng) -> CacheEvents {
    let memory = Memory { block_size: 16, total_blocks: 100, ..Memory::default() };
    let mut events = CacheEvents { memory, ..CacheEvents::default() };
    let (mut parent, now) = (u32::MAX, u64::from(rng.between(0, 1_000_000_000)));
    for depth in 0..rng.between(0, 12) {
        let block = if rng.one_in(40) { u32::MAX - 1 } else { rng.between(0, 80) };
        events.at.push(now + u64::from(rng.between(0, 1)));
        events.kind.push(u8::try_from(rng.between(0, 4)).unwrap());
        events.block.push(block);
        events.parent.push(if rng.one_in(3) { u32::MAX } else { parent });
        events.depth.push(depth);
        events.tenant.push(rng.between(0, 3));
        events.session.push(u64::from(rng.between(0, 4)));
        parent = block;
    }
    events
}
