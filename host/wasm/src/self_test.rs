//! Calls that a new policy must handle before it may decide anything, on an instance that is then discarded.
//!
//! Ordinary views must get a valid answer; hostile ones (nothing at all, every number at its largest) any
//! answer. A policy that traps, spins or breaks a rule here would do so live.

use infer_core::config::Limits;
use infer_core::ids::{BlockId, Micros, SequenceId, SessionId, TenantId};
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, CacheEvents, Ended, FaultKind, Hit, Load, Memory, Plan, PolicyFault,
    PrefixCachePolicy, SchedulerPolicy, SequenceColumns, StepView, TenantColumns,
};

use crate::bindings::{admission, prefix_cache, scheduler};
use crate::instance::Instance;

type Failure = (&'static str, PolicyFault);

const MEMORY: Memory = Memory { block_size: 16, total_blocks: 1_024, free_blocks: 512, cached_blocks: 128 };
const LIMITS: Limits = Limits {
    max_batch_tokens: 2_048,
    max_running: 32,
    prefill_chunk: 512,
    max_prefill_sequences: 8,
    max_prefill_tokens: 4_096,
};
const EXHAUSTED: Memory = Memory { block_size: 16, total_blocks: 1_024, free_blocks: 0, cached_blocks: 0 };
const LARGEST: Memory =
    Memory { block_size: u32::MAX, total_blocks: u32::MAX, free_blocks: u32::MAX, cached_blocks: u32::MAX };
const NOTHING: Limits = Limits {
    max_batch_tokens: 0,
    max_running: 0,
    prefill_chunk: 0,
    max_prefill_sequences: 0,
    max_prefill_tokens: 0,
};

pub(crate) fn scheduler(policy: &mut Instance<scheduler::SchedulerPolicy>) -> Result<(), Failure> {
    let sane = [
        ("nothing to do", view(0, 0)),
        ("one running", view(1, 0)),
        ("one waiting", view(0, 1)),
        ("a few of each", view(4, 6)),
        ("a long queue", view(32, 1_000)),
        ("no memory left", StepView { memory: EXHAUSTED, ..view(4, 6) }),
    ];
    for (name, view) in &sane {
        let plan = policy.schedule(view).map_err(|fault| (*name, fault))?;
        check_plan(&plan, view)
            .map_err(|message| (*name, PolicyFault::new(FaultKind::InvalidDecision, message)))?;
    }
    let hostile = [
        ("limits of zero", StepView { limits: NOTHING, ..view(4, 6) }),
        ("largest numbers", StepView { memory: LARGEST, ..with_columns(largest(4, 1), largest(6, 5)) }),
        ("all zero", with_columns(zeros(4, 1), zeros(6, 5))),
    ];
    for (name, view) in &hostile {
        policy.schedule(view).map_err(|fault| (*name, fault))?;
    }
    Ok(())
}

pub(crate) fn admission(policy: &mut Instance<admission::AdmissionPolicy>) -> Result<(), Failure> {
    let request = AdmissionRequest {
        id: SequenceId(1),
        tenant: TenantId(0),
        session: SessionId(0),
        priority: 0,
        arrived: Micros(1_000),
        deadline: Micros::NEVER,
        prompt_tokens: 100,
        cached_tokens: 32,
        idle_blocks: 1,
        max_new_tokens: 64,
        expected_tokens: 40,
    };
    let load = Load {
        now: Micros(1_000_000),
        memory: MEMORY,
        max_running: 32,
        max_waiting: 1_000,
        tenant_weight_permille: 1_000,
        ..Load::default()
    };
    let largest_request = AdmissionRequest {
        prompt_tokens: u32::MAX,
        cached_tokens: u32::MAX,
        idle_blocks: u32::MAX,
        max_new_tokens: u32::MAX,
        expected_tokens: u32::MAX,
        priority: i32::MIN,
        deadline: Micros::ZERO,
        ..request
    };
    let busy = Load {
        memory: LARGEST,
        running: u32::MAX,
        admitted: u32::MAX,
        preempted: u32::MAX,
        waiting: u32::MAX,
        waiting_tokens: u64::MAX,
        waiting_prompt_tokens: u64::MAX,
        started_prompt_tokens: u64::MAX,
        expected_output_tokens: u64::MAX,
        promised_blocks: u32::MAX,
        expected_blocks: u32::MAX,
        prefill_tokens_per_second: u32::MAX,
        output_tokens_per_second: u32::MAX,
        ..load
    };
    let cases = [
        ("an idle host", request, load),
        ("no memory left", request, Load { memory: EXHAUSTED, running: 32, ..load }),
        ("largest request", largest_request, load),
        ("largest numbers", largest_request, busy),
    ];
    for (name, request, load) in &cases {
        policy.admit(request, load).map_err(|fault| (*name, fault))?;
        policy.measure(load).map_err(|fault| (*name, fault))?;
    }
    Ok(())
}

pub(crate) fn prefix_cache(policy: &mut Instance<prefix_cache::PrefixCachePolicy>) -> Result<(), Failure> {
    const BLOCKS: u32 = 8;
    let now = Micros(1_000_000);
    let lies = |message: String| PolicyFault::new(FaultKind::InvalidDecision, message);
    let named = |blocks: Vec<BlockId>| match blocks.iter().find(|block| block.0 >= BLOCKS) {
        Some(block) => Err(lies(format!("it named block {}, which no event mentioned", block.0))),
        None => Ok(()),
    };

    policy.observe(&CacheEvents::default()).map_err(|fault| ("no events", fault))?;
    for kind in [0, 2] {
        policy.observe(&events(BLOCKS, kind)).and_then(named).map_err(|fault| ("one prefix", fault))?;
    }
    let hit = Hit {
        now,
        id: SequenceId(1),
        tenant: TenantId(0),
        session: SessionId(0),
        prompt_tokens: 100,
        cached_tokens: 96,
        same_session: false,
    };
    let reused = policy.reuse(&hit).map_err(|fault| ("a hit", fault))?;
    if reused > hit.cached_tokens {
        return Err(("a hit", lies(format!("it reuses {reused} of {} cached tokens", hit.cached_tokens))));
    }
    let ended = Ended {
        now,
        id: SequenceId(1),
        tenant: TenantId(0),
        session: SessionId(0),
        prompt_tokens: 100,
        generated_tokens: 28,
        reused_tokens: 96,
        memory: MEMORY,
    };
    policy.retain(&ended).map_err(|fault| ("an ended sequence", fault))?;
    for (name, need) in [("evict nothing", 0), ("evict one", 1), ("evict more than there is", 1_000)] {
        policy.evict(now, need).and_then(named).map_err(|fault| (name, fault))?;
    }

    let hit = Hit { prompt_tokens: u32::MAX, cached_tokens: u32::MAX, ..hit };
    policy.reuse(&hit).map_err(|fault| ("largest hit", fault))?;
    let ended = Ended { prompt_tokens: u32::MAX, generated_tokens: u32::MAX, memory: LARGEST, ..ended };
    policy.retain(&ended).map_err(|fault| ("largest ended sequence", fault))?;
    for (name, kind) in
        [("dropped twice", 3), ("dropped twice", 3), ("reused though gone", 1), ("unknown events", 255)]
    {
        policy.observe(&events(BLOCKS, kind)).map_err(|fault| (name, fault))?;
    }
    Ok(())
}

/// The rules that a plan must keep in any state of the engine: `wit/scheduler.wit`, `plan`.
fn check_plan(plan: &Plan, view: &StepView) -> Result<(), String> {
    if plan.run.len() != plan.tokens.len() {
        return Err(format!(
            "it runs {} sequences and gives {} token counts",
            plan.run.len(),
            plan.tokens.len()
        ));
    }
    if plan.run.len() > view.limits.max_running as usize {
        return Err(format!("it runs {} sequences of at most {}", plan.run.len(), view.limits.max_running));
    }
    let tokens: u64 = plan.tokens.iter().copied().map(u64::from).sum();
    if tokens > u64::from(view.limits.max_batch_tokens) {
        return Err(format!("it computes {tokens} tokens of at most {}", view.limits.max_batch_tokens));
    }
    let mut named: Vec<u64> = plan.run.iter().chain(&plan.preempt).map(|id| id.0).collect();
    named.sort_unstable();
    if let Some(pair) = named.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("it names sequence {} twice", pair[0]));
    }
    let (running, waiting) = (&view.running.id, &view.waiting.id);
    if let Some(id) = plan.run.iter().find(|id| !running.contains(&id.0) && !waiting.contains(&id.0)) {
        return Err(format!("it runs sequence {}, which is not in the view", id.0));
    }
    if let Some(id) = plan.preempt.iter().find(|id| !running.contains(&id.0)) {
        return Err(format!("it preempts sequence {}, which is not running", id.0));
    }
    Ok(())
}

/// An ordinary step: running sequences decode, every second one of the last still prefills.
fn view(running: u32, waiting: u32) -> StepView {
    let mut view = with_columns(zeros(running, 1), zeros(waiting, 1 + u64::from(running)));
    for row in 0..running as usize {
        let prefilling = row % 4 == 3;
        view.running.prompt_tokens[row] = 100;
        view.running.computed_tokens[row] = if prefilling { 48 } else { 109 };
        view.running.generated_tokens[row] = if prefilling { 0 } else { 10 };
        view.running.max_new_tokens[row] = 64;
        view.running.expected_tokens[row] = 40;
        view.running.blocks[row] = 7;
        view.running.freeable_blocks[row] = 7;
        view.running.deadline[row] = u64::MAX;
    }
    for row in 0..waiting as usize {
        view.waiting.prompt_tokens[row] = 20 + 7 * row as u32 % 900;
        view.waiting.max_new_tokens[row] = 64;
        view.waiting.expected_tokens[row] = 40;
        view.waiting.deadline[row] = u64::MAX;
        view.waiting.arrived[row] = 1_000 + row as u64;
    }
    view.idle_since = if running > 0 { Micros::NEVER } else { Micros(900_000) };
    view
}

fn with_columns(running: SequenceColumns, waiting: SequenceColumns) -> StepView {
    let tenants = TenantColumns {
        id: vec![0],
        weight_permille: vec![1_000],
        running: vec![running.id.len() as u32],
        waiting: vec![waiting.id.len() as u32],
        prompt_tokens_served: vec![0],
        output_tokens_served: vec![0],
    };
    StepView {
        now: Micros(1_000_000),
        number: 1,
        last_step: Micros(20_000),
        last_prefill_tokens: 48,
        last_decodes: 3,
        idle_since: Micros::NEVER,
        starvation_bound: Micros(5_000_000),
        limits: LIMITS,
        memory: MEMORY,
        running,
        waiting,
        tenants,
    }
}

/// Rows with nothing but ids.
fn zeros(rows: u32, first_id: u64) -> SequenceColumns {
    columns(rows, first_id, 0, 0, 0)
}

fn largest(rows: u32, first_id: u64) -> SequenceColumns {
    columns(rows, u64::MAX - 100 + first_id, u32::MAX, u64::MAX, i32::MIN)
}

fn columns(rows: u32, first_id: u64, narrow: u32, wide: u64, priority: i32) -> SequenceColumns {
    let rows = rows as usize;
    let narrow = || vec![narrow; rows];
    let wide = || vec![wide; rows];
    SequenceColumns {
        id: (first_id..).take(rows).collect(),
        tenant: narrow(),
        session: wide(),
        priority: vec![priority; rows],
        arrived: wide(),
        deadline: wide(),
        prompt_tokens: narrow(),
        computed_tokens: narrow(),
        pending_tokens: narrow(),
        idle_blocks: narrow(),
        generated_tokens: narrow(),
        max_new_tokens: narrow(),
        expected_tokens: narrow(),
        blocks: narrow(),
        freeable_blocks: narrow(),
        preemptions: narrow(),
    }
}

/// The same event for each block of one prefix.
fn events(blocks: u32, kind: u8) -> CacheEvents {
    let rows = blocks as usize;
    CacheEvents {
        memory: MEMORY,
        at: vec![900_000; rows],
        kind: vec![kind; rows],
        block: (0..blocks).collect(),
        parent: (0..blocks).map(|block| block.checked_sub(1).unwrap_or(u32::MAX)).collect(),
        depth: (0..blocks).collect(),
        tenant: vec![0; rows],
        session: vec![0; rows],
    }
}
