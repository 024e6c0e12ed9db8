//! The shipped components, as the host loads them: under the live limits but that of time, through the engine's traits. How
//! long a call takes is for fuel to tell (`infer-conformance`).

use crate::support::{fuel_loader, loader, patient, view};
use infer_bundle::{Bundled, POLICIES};
use infer_core::ids::{BlockId, Micros, SequenceId, SessionId, TenantId};
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, AnyPolicy, CacheEvents, FaultKind, Load, Memory, PolicyInfo,
    PolicyKind, PrefixCachePolicy, SchedulerPolicy, Verdict,
};
use infer_core::request::RefusalReason;
use infer_wasm::{LoadError, LoaderConfig, PolicyLoader};

fn kind(policy: &Bundled) -> PolicyKind {
    PolicyKind::ALL.into_iter().find(|kind| kind.name() == policy.kind).expect("a known kind")
}

fn live() -> PolicyLoader {
    loader(patient())
}

fn load(name: &str, config: &str) -> Result<AnyPolicy, LoadError> {
    let policy = POLICIES.iter().find(|policy| policy.name == name).expect("it is shipped");
    live().load(kind(policy), policy.component, config)
}

fn scheduler(name: &str) -> Box<dyn SchedulerPolicy> {
    match load(name, "{}") {
        Ok(AnyPolicy::Scheduler(policy)) => policy,
        other => panic!("{name}: {other:?}"),
    }
}

fn memory_aware() -> Box<dyn AdmissionPolicy> {
    match load("memory-aware", "{}") {
        Ok(AnyPolicy::Admission(policy)) => policy,
        other => panic!("{other:?}"),
    }
}

fn lru() -> Box<dyn PrefixCachePolicy> {
    match load("lru", "{}") {
        Ok(AnyPolicy::PrefixCache(policy)) => policy,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_describes_itself_as_the_bundle_does_and_passes_every_check() {
    let loader = live();
    for policy in POLICIES {
        let (found, info) = loader.describe(policy.component).expect(policy.name);
        assert_eq!((found, info.name.as_str()), (kind(policy), policy.name));
        assert_eq!(info.digest, policy.sha256, "{}", policy.name);
        assert!(!info.version.is_empty() && !info.description.is_empty(), "{info:?}");
        let loaded = loader.load(found, policy.component, "{}").expect(policy.name);
        let configured = PolicyInfo { config: "{}".to_owned(), ..info };
        assert_eq!((loaded.kind(), &*loaded.info()), (found, &configured));
    }
}

#[test]
fn no_policy_is_accepted_in_another_slot() {
    let loader = live();
    for policy in POLICIES {
        for other in PolicyKind::ALL.into_iter().filter(|other| *other != kind(policy)) {
            let refused = loader.load(other, policy.component, "{}").expect_err(policy.name);
            assert_eq!(refused.check(), "world", "{} for {other}: {refused}", policy.name);
        }
    }
}

#[test]
fn a_bad_configuration_is_refused_with_the_policys_message() {
    for (name, config, word) in [
        ("continuous", r#"{"watermark": 2}"#, "watermark"),
        ("continuous", r#"{"watermrk": 0.1}"#, "watermrk"),
        ("static-batch", r#"{"batch_size": 0}"#, "batch_size"),
        ("memory-aware", r#"{"reserve": 2}"#, "reserve"),
        ("lru", "not json", ""),
    ] {
        match load(name, config) {
            Err(LoadError::Configure(refusal)) => {
                assert!(refusal.contains(word), "{name} {config}: {refusal}");
            }
            other => panic!("{name} {config}: {other:?}"),
        }
    }
}

#[test]
fn none_fits_in_a_single_page_of_memory() {
    let tiny = loader(LoaderConfig { max_memory_bytes: 64 << 10, ..patient() });
    for policy in POLICIES {
        match tiny.load(kind(policy), policy.component, "{}") {
            Err(LoadError::Instantiate(fault)) => assert_eq!(fault.kind, FaultKind::Memory, "{fault}"),
            other => panic!("{}: {other:?}", policy.name),
        }
    }
}

#[test]
fn schedulers_plan_running_sequences_before_and_after_a_restart() {
    for name in ["continuous", "static-batch"] {
        let mut policy = scheduler(name);
        let mut view = view(1, 3, 2);
        // Three decodes.
        view.running.prompt_tokens = vec![32; 3];
        view.running.computed_tokens = vec![35; 3];
        view.running.generated_tokens = vec![4; 3];
        view.running.max_new_tokens = vec![64; 3];
        view.running.blocks = vec![3; 3];
        let plan = policy.schedule(&view).expect("a plan");
        assert_eq!(
            plan.run[..3],
            view.running.id[..3].iter().copied().map(SequenceId).collect::<Vec<_>>(),
            "{name}"
        );
        assert_eq!(plan.tokens[..3], [1, 1, 1], "{name}");

        let state = policy.export_state().expect("some state, or none");
        policy.import_state(&state).expect("what it exported");
        policy.restart().expect("a fresh instance");
        assert_eq!(policy.schedule(&view).as_ref(), Ok(&plan), "{name}");
        assert_eq!(policy.stats().calls, 2, "{name}");
    }
}

#[test]
fn memory_aware_admits_what_fits_and_refuses_what_never_can() {
    let mut policy = memory_aware();
    let load = Load {
        now: Micros(1_000_000),
        memory: Memory { block_size: 16, total_blocks: 100, free_blocks: 100, cached_blocks: 0 },
        max_running: 8,
        max_waiting: 10,
        ..Load::default()
    };
    let request = AdmissionRequest {
        id: SequenceId(1),
        tenant: TenantId(0),
        session: SessionId(0),
        priority: 0,
        arrived: Micros(0),
        deadline: Micros::NEVER,
        prompt_tokens: 100,
        cached_tokens: 0,
        idle_blocks: 0,
        max_new_tokens: 60,
        expected_tokens: 60,
    };
    assert_eq!(policy.admit(&request, &load), Ok(Verdict::Admit));
    let busy = Load { running: 1, promised_blocks: 95, expected_blocks: 76, ..load };
    assert_eq!(policy.admit(&request, &busy), Ok(Verdict::Wait));
    match policy.admit(&AdmissionRequest { max_new_tokens: 10_000, ..request }, &load) {
        Ok(Verdict::Refuse(refusal)) => {
            assert_eq!(refusal.reason, RefusalReason::Memory);
            assert!(refusal.message.contains("blocks"), "{}", refusal.message);
        }
        other => panic!("{other:?}"),
    }
    let pressure = policy.measure(&busy).expect("a measure");
    assert_eq!((pressure.level_permille, pressure.backpressure, pressure.reserved_blocks), (1_000, true, 10));
}

#[test]
fn lru_names_the_leaves_that_were_idle_longest() {
    let mut policy = lru();
    let idle = |at: u64, first: u32| CacheEvents {
        memory: Memory::default(),
        at: vec![at; 2],
        kind: vec![2; 2],
        block: vec![first, first + 1],
        parent: vec![u32::MAX, first],
        depth: vec![0, 1],
        tenant: vec![0; 2],
        session: vec![0; 2],
    };
    assert_eq!(policy.observe(&idle(10, 4)), Ok(vec![]));
    assert_eq!(policy.observe(&idle(20, 8)), Ok(vec![]));
    let blocks = |ids: &[u32]| Ok(ids.iter().copied().map(BlockId).collect::<Vec<_>>());
    assert_eq!(policy.evict(Micros(30), 3), blocks(&[5, 4, 9]));
    policy.restart().expect("a fresh instance");
    assert_eq!(policy.evict(Micros(30), 3), blocks(&[]), "it knows nothing until it is told again");
}

/// A search of all tenants for each block would take several times the fuel.
#[test]
fn tenant_quota_names_many_blocks_among_many_tenants_within_a_call() {
    const TENANTS: u32 = 1_000;
    let component = infer_bundle::find("prefix-cache", "tenant-quota").expect("it is shipped").component;
    let mut policy = match fuel_loader().load(PolicyKind::PrefixCache, component, r#"{"slack": 1}"#) {
        Ok(AnyPolicy::PrefixCache(policy)) => policy,
        other => panic!("{other:?}"),
    };
    for first in (0..2 * TENANTS).step_by(100) {
        let block: Vec<u32> = (first..first + 100).collect();
        let rows = block.len();
        let events = CacheEvents {
            memory: Memory::default(),
            at: vec![0; rows],
            kind: vec![2; rows],
            parent: vec![u32::MAX; rows],
            depth: vec![0; rows],
            tenant: block.iter().map(|block| block % TENANTS).collect(),
            session: vec![0; rows],
            block,
        };
        assert_eq!(policy.observe(&events), Ok(vec![]));
    }
    assert_eq!(policy.evict(Micros(1), 128), Ok((0..128).map(BlockId).collect()));
}
