//! A component decides what the same policy decides as plain Rust, for any view: what its unit tests
//! prove natively holds for what is shipped.

use infer_core::ids::{Micros, SequenceId, SessionId, TenantId};
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, CacheEvents, Load, Memory, PrefixCachePolicy, SchedulerPolicy,
};
use infer_policy_sdk::testing::{Rng, for_seeds, hostile_step, random_step};
use infer_policy_sdk::{Policy, Scheduler};
use policy_cache_aware::CacheAware;
use policy_continuous::Continuous;
use policy_deadline::Deadline;
use policy_fair::Fair;
use policy_lru::Lru;
use policy_memory_aware::MemoryAware;
use policy_priority::Priority;
use policy_srpt::Srpt;
use policy_static_batch::StaticBatch;
use shipped_policies::{Native, Shipped, step_view};

#[test]
fn schedulers_plan_alike() {
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
}

#[test]
fn admission_decides_alike() {
    let cache = tempfile::tempdir().unwrap();
    let config = r#"{"reserve": 0.2, "backpressure_at": 0.5}"#;
    let mut native = Native::<MemoryAware>::new(config);
    let mut component = Shipped::new(cache.path()).admission("memory-aware", config);
    for_seeds(0..1_000, |rng| {
        let (request, load) = random_request(rng);
        assert_eq!(component.admit(&request, &load), native.admit(&request, &load));
        assert_eq!(component.measure(&load), native.measure(&load));
    });
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
        memory,
        running: number(2),
        waiting: number(10),
        max_waiting: number(10),
        promised_blocks: number(40),
        ..Load::default()
    };
    let request = AdmissionRequest {
        id: SequenceId(1),
        tenant: TenantId(0),
        session: SessionId(0),
        priority: 0,
        arrived: Micros(0),
        deadline: Micros::NEVER,
        prompt_tokens: number(2_000),
        cached_tokens: number(500),
        max_new_tokens: number(2_000),
        expected_tokens: number(2_000),
    };
    (request, load)
}

#[test]
fn prefix_caches_evict_alike() {
    let cache = tempfile::tempdir().unwrap();
    let mut native = Native::<Lru>::new("{}");
    let mut component = Shipped::new(cache.path()).prefix_cache("lru", "{}");
    for_seeds(0..300, |rng| {
        let events = random_events(rng);
        assert_eq!(component.observe(&events), native.observe(&events));
        let need = rng.between(0, 20);
        assert_eq!(component.evict(Micros(1), need), native.evict(Micros(1), need));
    });
}

/// Chains and single blocks, and now and then a number that no pool has.
fn random_events(rng: &mut Rng) -> CacheEvents {
    let mut events = CacheEvents::default();
    let mut parent = u32::MAX;
    for depth in 0..rng.between(0, 12) {
        let block = if rng.one_in(40) { u32::MAX - 1 } else { rng.between(0, 80) };
        events.at.push(u64::from(rng.between(0, 1)));
        events.kind.push(u8::try_from(rng.between(0, 4)).unwrap());
        events.block.push(block);
        events.parent.push(if rng.one_in(3) { u32::MAX } else { parent });
        events.depth.push(depth);
        events.tenant.push(0);
        events.session.push(0);
        parent = block;
    }
    events
}
