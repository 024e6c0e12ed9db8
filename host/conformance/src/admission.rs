//! Checks of admission policies alone: measures in range, refusals with a message, and admission on an idle
//! host.

use infer_core::policy::{AdmissionPolicy, AdmissionRequest, Load, Memory, PolicyFault, Pressure, Verdict};
use infer_core::testing::SplitMix;
use infer_core::{Micros, SequenceId, SessionId, TenantId};

use crate::Options;
use crate::run::Run;
use crate::sheet::{Check, Sheet};
use crate::transcript::Exchange;

/// Hosts that a policy meets, each from its start on, and the calls on each of them.
const HOSTS: u64 = 4;
const CONSISTENT: u64 = 100;
const TENANTS: usize = 4;
/// How many of a hundred calls are about a request of several sequences.
const SEVERAL: u64 = 10;
const HOSTILE: u64 = 150;
const IDLE: u64 = 100;

pub(crate) fn judge_views(policy: &mut dyn AdmissionPolicy, options: &Options, sheet: &mut Sheet) {
    let mut rng = SplitMix(options.seed);
    for nth in 0..HOSTS {
        if !is_anew(policy, Check::Views, sheet) {
            return;
        }
        let mut host = BusyHost::new(&mut rng);
        for nth in nth * CONSISTENT..(nth + 1) * CONSISTENT {
            let (request, load) = host.next(&mut rng);
            ask(policy, Check::Views, nth, (&request, &load), sheet);
            match policy.measure(&load) {
                Ok(pressure) => judge_pressure(nth, &pressure, &load, sheet),
                Err(fault) => failed(policy, Check::Views, nth, &fault, &format!("{load:?}"), sheet),
            }
        }
    }
    let loads = HOSTS * CONSISTENT;
    sheet.done(Check::Views, format!("{loads} loads that hosts could have; every measure is in range"));
    for nth in 0..HOSTILE {
        let (request, load) = hostile(&mut rng);
        ask(policy, Check::Hostile, nth, (&request, &load), sheet);
        if let Err(fault) = policy.measure(&load) {
            failed(policy, Check::Hostile, nth, &fault, &format!("{load:?}"), sheet);
        }
    }
    sheet
        .done(Check::Hostile, format!("{HOSTILE} loads of extreme and contradictory numbers, each answered"));
    judge_open_door(policy, options, &mut rng, sheet);
}

/// A policy may keep what it saw of a host whose time goes on, so each host gets a new instance.
fn is_anew(policy: &mut dyn AdmissionPolicy, check: Check, sheet: &mut Sheet) -> bool {
    let restarted = policy.restart();
    if let Err(fault) = &restarted {
        sheet.fail(check, || fault.to_string());
    }
    restarted.is_ok()
}

fn ask(
    policy: &mut dyn AdmissionPolicy,
    check: Check,
    nth: u64,
    (request, load): (&AdmissionRequest, &Load),
    sheet: &mut Sheet,
) {
    match policy.admit(request, load) {
        Ok(verdict) => judge_refusal(&verdict, request, sheet),
        Err(fault) => failed(policy, check, nth, &fault, &format!("{request:?} under {load:?}"), sheet),
    }
}

fn failed(
    policy: &mut dyn AdmissionPolicy,
    check: Check,
    nth: u64,
    fault: &PolicyFault,
    shown: &str,
    sheet: &mut Sheet,
) {
    sheet.fail(check.of_fault(fault.kind), || format!("view {nth}: {fault}; it was shown {shown}"));
    if let Err(fault) = policy.restart() {
        sheet.fail(check, || format!("view {nth}: {fault}"));
    }
}

fn judge_refusal(verdict: &Verdict, request: &AdmissionRequest, sheet: &mut Sheet) {
    if let Verdict::Refuse(refusal) = verdict
        && refusal.message.trim().is_empty()
    {
        sheet.fail(Check::Refusals, || format!("a refusal has no message for the client of {request:?}"));
    }
}

fn judge_pressure(nth: u64, pressure: &Pressure, load: &Load, sheet: &mut Sheet) {
    let total = load.memory.total_blocks;
    for (what, blocks) in [("reserved", pressure.reserved_blocks), ("available", pressure.available_blocks)] {
        if blocks > total {
            sheet.fail(Check::Views, || {
                format!(
                    "view {nth}: measure() reports {blocks} {what} blocks of {total}; it was shown {load:?}"
                )
            });
        }
    }
}

/// With the configuration that every policy must accept, whatever fits the pool is admitted if nothing else
/// is on the host.
fn judge_open_door(
    policy: &mut dyn AdmissionPolicy,
    options: &Options,
    rng: &mut SplitMix,
    sheet: &mut Sheet,
) {
    let is_default = options.config.split_whitespace().collect::<String>() == "{}";
    let mut outside = 0;
    for nth in 0..IDLE {
        if !is_anew(policy, Check::OpenDoor, sheet) {
            return;
        }
        let total_blocks = rng.between(8, 4_096) as u32;
        let memory = Memory { block_size: 16, total_blocks, free_blocks: total_blocks, cached_blocks: 0 };
        let load = Load { memory, waiting: rng.below(2) as u32, ..quiet(memory) };
        // Up to half of the pool each, and some that need all of it.
        let half =
            if nth % 10 == 0 { total_blocks * 8 } else { rng.between(1, u64::from(total_blocks) * 8) as u32 };
        let request = AdmissionRequest {
            prompt_tokens: half,
            cached_tokens: 0,
            idle_blocks: 0,
            max_new_tokens: half,
            expected_tokens: half.div_ceil(2),
            ..request(rng, memory)
        };
        match policy.admit(&request, &load) {
            Ok(Verdict::Admit) => {}
            Ok(verdict) => {
                outside += 1;
                if is_default {
                    sheet.fail(Check::OpenDoor, || {
                        format!(
                            "configured with {{}} it returns {verdict:?} for a request of {half} + {half} tokens \
                             on an idle host of {total_blocks} blocks of 16; it must be admitted"
                        )
                    });
                }
            }
            Err(fault) => failed(policy, Check::OpenDoor, nth, &fault, &format!("{request:?}"), sheet),
        }
    }
    if outside > 0 {
        sheet.note(
            Check::OpenDoor,
            format!(
                "{outside} of {IDLE} requests that fit the pool are not admitted with this configuration"
            ),
        );
    }
    sheet.done(Check::OpenDoor, format!("{IDLE} requests that fit the pool, all admitted"));
}

pub(crate) fn judge_runs(runs: &[Run], sheet: &mut Sheet) {
    let (mut admitted, mut waits, mut refused) = (0u64, 0u64, 0u64);
    for exchange in runs.iter().flat_map(Run::exchanges) {
        let Exchange::Admit(request, _, verdict) = exchange else { continue };
        judge_refusal(verdict, request, sheet);
        match verdict {
            Verdict::Admit => admitted += 1,
            Verdict::Wait | Verdict::WaitTenant => waits += 1,
            Verdict::Refuse(_) => refused += 1,
        }
    }
    sheet.done(
        Check::Refusals,
        format!(
            "{} calls in all runs: {admitted} admitted, {waits} held, {refused} refused with a message",
            admitted + waits + refused
        ),
    );
}

/// A host with nothing to do.
fn quiet(memory: Memory) -> Load {
    Load {
        now: Micros(1_000_000),
        memory,
        max_running: 32,
        max_waiting: 1_000,
        tenant_weight_permille: 1_000,
        ..Load::default()
    }
}

/// A host whose numbers agree with each other and with its earlier ones.
struct BusyHost {
    now: Micros,
    block_size: u32,
    total_blocks: u32,
    /// Prompt and output tokens that each tenant was served.
    served: [[u64; 2]; TENANTS],
}

impl BusyHost {
    fn new(rng: &mut SplitMix) -> Self {
        Self {
            now: Micros(1_000_000),
            block_size: *[1, 4, 16, 32].get(rng.below(4) as usize).unwrap_or(&16),
            total_blocks: rng.between(8, 4_096) as u32,
            served: [(); TENANTS].map(|()| [rng.below(1_000_000), rng.below(1_000_000)]),
        }
    }

    /// Some time later.
    fn next(&mut self, rng: &mut SplitMix) -> (AdmissionRequest, Load) {
        self.now = self.now.plus(Micros(rng.below(200_000)));
        let free_blocks = rng.below(u64::from(self.total_blocks) + 1) as u32;
        let cached_blocks = rng.below(u64::from(self.total_blocks - free_blocks) + 1) as u32;
        let (block_size, total_blocks) = (self.block_size, self.total_blocks);
        let memory = Memory { block_size, total_blocks, free_blocks, cached_blocks };
        let request = request(rng, memory);
        let arrived = Micros(self.now.0 - rng.below(1_000_000));
        let deadline = match request.deadline {
            Micros::NEVER => Micros::NEVER,
            of_the_first_second => arrived.plus(of_the_first_second),
        };
        let served = &mut self.served[request.tenant.0 as usize];
        served.iter_mut().for_each(|tokens| *tokens += rng.below(10_000));
        let load = Load { now: self.now, ..busy(rng, memory, *served) };
        let request = AdmissionRequest { arrived, deadline, ..request };
        let mut dice = SplitMix(!self.now.0);
        if dice.chance(SEVERAL) { as_a_whole(&mut dice, request, load) } else { (request, load) }
    }
}

/// The first call about a client request of several sequences like this one, on this host.
fn as_a_whole(dice: &mut SplitMix, request: AdmissionRequest, load: Load) -> (AdmissionRequest, Load) {
    let count = dice.between(2, 8) as u32;
    let all = |tokens: u32| tokens.saturating_mul(count);
    let request = AdmissionRequest {
        arrived: load.now,
        prompt_tokens: all(request.prompt_tokens),
        max_new_tokens: all(request.max_new_tokens),
        expected_tokens: all(request.expected_tokens),
        ..request
    };
    let blocks =
        request.prompt_tokens.saturating_add(request.max_new_tokens).div_ceil(load.memory.block_size);
    let more = (blocks + load.promised_blocks + load.memory.total_blocks).saturating_mul(10);
    let memory = Memory {
        total_blocks: load.memory.total_blocks + more,
        free_blocks: load.memory.free_blocks + more,
        ..load.memory
    };
    let load = Load {
        memory,
        max_waiting: load.max_waiting + count,
        waiting: load.waiting + count - 1,
        expected_output_tokens: load.expected_output_tokens + u64::from(request.expected_tokens),
        ..load
    };
    (request, load)
}

fn busy(rng: &mut SplitMix, memory: Memory, [prompts_served, outputs_served]: [u64; 2]) -> Load {
    let (running, waiting) = (rng.between(0, 32) as u32, rng.between(0, 1_000) as u32);
    let admitted = rng.below(u64::from(waiting) + 1) as u32;
    let prompts = u64::from(waiting) * rng.between(1, 500);
    let limited = rng.chance(30);
    let preempted = rng.below(4) as u32;
    let tenant_running = rng.below(u64::from(running) + 1) as u32;
    let tenant_waiting = rng.below(u64::from(waiting + preempted) + 1) as u32;
    let promised_blocks = rng.below(u64::from(memory.total_blocks) * 2) as u32;
    Load {
        running,
        admitted,
        preempted,
        waiting,
        waiting_tokens: prompts * 2,
        waiting_prompt_tokens: prompts,
        started_prompt_tokens: rng.below(4_000),
        expected_output_tokens: u64::from(running + waiting) * rng.between(1, 100),
        prefill_tokens_per_second: rng.below(20_000) as u32,
        output_tokens_per_second: rng.below(2_000) as u32,
        promised_blocks,
        expected_blocks: rng.below(u64::from(promised_blocks) + 1) as u32,
        tenant_running,
        tenant_waiting,
        tenant_in_flight: tenant_running + tenant_waiting.min(admitted + preempted),
        tenant_rate_per_minute: if limited { rng.between(100, 100_000) as u32 } else { 0 },
        tenant_burst: if limited { rng.between(10, 10_000) as u32 } else { 0 },
        tenant_prompt_tokens_served: prompts_served,
        tenant_output_tokens_served: outputs_served,
        ..quiet(memory)
    }
}

fn request(rng: &mut SplitMix, memory: Memory) -> AdmissionRequest {
    let most = u64::from(memory.total_blocks) * u64::from(memory.block_size);
    let prompt_tokens = rng.between(1, most) as u32;
    let max_new_tokens = rng.between(1, most) as u32;
    let cached_tokens = rng.below(u64::from(prompt_tokens) + 1) as u32;
    let cached_blocks = cached_tokens / memory.block_size;
    AdmissionRequest {
        id: SequenceId(rng.between(1, 1_000_000)),
        tenant: TenantId(rng.below(TENANTS as u64) as u32),
        session: SessionId(rng.below(10)),
        priority: rng.below(3) as i32 - 1,
        arrived: Micros(rng.below(1_000_000)),
        deadline: if rng.chance(30) { Micros(rng.between(1_000_000, 5_000_000)) } else { Micros::NEVER },
        prompt_tokens,
        cached_tokens,
        idle_blocks: rng.below(u64::from(cached_blocks.min(memory.cached_blocks)) + 1) as u32,
        max_new_tokens,
        expected_tokens: rng.between(1, u64::from(max_new_tokens)) as u32,
    }
}

/// Numbers that no host should have.
fn hostile(rng: &mut SplitMix) -> (AdmissionRequest, Load) {
    let narrow = |rng: &mut SplitMix| [0, 1, 16, u32::MAX / 2, u32::MAX][rng.below(5) as usize];
    let wide = |rng: &mut SplitMix| [0, 1, u64::from(u32::MAX), u64::MAX][rng.below(4) as usize];
    let load = Load {
        now: Micros(wide(rng)),
        memory: Memory {
            block_size: narrow(rng),
            total_blocks: narrow(rng),
            free_blocks: narrow(rng),
            cached_blocks: narrow(rng),
        },
        max_running: narrow(rng),
        running: narrow(rng),
        admitted: narrow(rng),
        preempted: narrow(rng),
        max_waiting: narrow(rng),
        waiting: narrow(rng),
        waiting_tokens: wide(rng),
        waiting_prompt_tokens: wide(rng),
        started_prompt_tokens: wide(rng),
        expected_output_tokens: wide(rng),
        prefill_tokens_per_second: narrow(rng),
        output_tokens_per_second: narrow(rng),
        promised_blocks: narrow(rng),
        expected_blocks: narrow(rng),
        tenant_running: narrow(rng),
        tenant_waiting: narrow(rng),
        tenant_in_flight: narrow(rng),
        tenant_weight_permille: narrow(rng),
        tenant_rate_per_minute: narrow(rng),
        tenant_burst: narrow(rng),
        tenant_prompt_tokens_served: wide(rng),
        tenant_output_tokens_served: wide(rng),
    };
    let request = AdmissionRequest {
        id: SequenceId(wide(rng)),
        tenant: TenantId(narrow(rng)),
        session: SessionId(wide(rng)),
        priority: if rng.chance(50) { i32::MIN } else { i32::MAX },
        arrived: Micros(wide(rng)),
        deadline: Micros(wide(rng)),
        prompt_tokens: narrow(rng),
        cached_tokens: narrow(rng),
        idle_blocks: narrow(rng),
        max_new_tokens: narrow(rng),
        expected_tokens: narrow(rng),
    };
    (request, load)
}
