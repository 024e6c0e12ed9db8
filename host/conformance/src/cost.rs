//! What a policy's calls cost: the component beside the host's native built-in of the same kind, called in
//! turns with the same views, so that both meet the same machine.

use std::time::{Duration, Instant};

use infer_core::engine::Policies;
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, AnyPolicy, FaultKind, Load, Memory, Policy, PolicyFault,
    PrefixCachePolicy, SchedulerPolicy,
};
use infer_core::testing::SplitMix;
use infer_core::{Micros, SequenceId, SessionId, TenantId, nearest_rank};
use infer_wasm::{LoadError, LoaderConfig, PolicyLoader};
use serde::Serialize;

use crate::prefix_cache::{hit, idle_cache};
use crate::views::{full_house, step_view};

/// The step time that a call is stated as a share of.
pub const STEP: Duration = Duration::from_millis(5);

/// How long each shape is measured.
const MEASURED: Duration = Duration::from_millis(700);
const MIN_CALLS: usize = 30;
const MAX_CALLS: usize = 20_000;

/// Costs of one call in one situation.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// The function and how much it was shown.
    pub call: String,
    /// Calls of each of the two.
    pub calls: usize,
    /// Of the component, in microseconds of wall time, as all of these.
    pub p50_us: f64,
    /// Of the component, in microseconds.
    pub p99_us: f64,
    /// Of the native built-in, in microseconds.
    pub builtin_p50_us: f64,
    /// Of the native built-in, in microseconds.
    pub builtin_p99_us: f64,
    /// The component's median in percent of a step of 5 ms.
    pub percent_of_step: f64,
    /// Why there are no numbers: it hit a limit of the host.
    pub fault: Option<String>,
}

impl Cost {
    /// It can't make this call within the host's limits.
    fn beyond_limits(call: String, fault: &PolicyFault) -> Self {
        Self {
            call,
            calls: 0,
            p50_us: 0.0,
            p99_us: 0.0,
            builtin_p50_us: 0.0,
            builtin_p99_us: 0.0,
            percent_of_step: 0.0,
            fault: Some(fault.to_string()),
        }
    }
}

/// Why nothing was measured.
#[derive(Debug)]
pub enum CostError {
    /// The component doesn't load.
    Load(LoadError),
    /// It failed while it was measured.
    Fault(PolicyFault),
}

impl std::fmt::Display for CostError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Load(error) => error.fmt(f),
            Self::Fault(fault) => write!(f, "the policy failed while it was measured: {fault}"),
        }
    }
}

impl std::error::Error for CostError {}

/// Measures a component, limited as in a host, with this configuration.
pub fn measure(component: &[u8], config: &str) -> Result<Vec<Cost>, CostError> {
    let loader = PolicyLoader::new(LoaderConfig::default()).map_err(CostError::Load)?;
    let (kind, _) = loader.describe(component).map_err(CostError::Load)?;
    let builtin = Policies::builtin();
    let costs = match loader.load(kind, component, config).map_err(CostError::Load)? {
        AnyPolicy::Scheduler(policy) => scheduler(policy, builtin.scheduler),
        AnyPolicy::Admission(policy) => admission(policy, builtin.admission),
        AnyPolicy::PrefixCache(policy) => prefix_cache(policy, builtin.prefix_cache),
    };
    costs.map_err(CostError::Fault)
}

type Pair<P> = [Box<P>; 2];

fn scheduler(
    policy: Box<dyn SchedulerPolicy>,
    builtin: Box<dyn SchedulerPolicy>,
) -> Result<Vec<Cost>, PolicyFault> {
    let mut pair = [policy, builtin];
    [(1, 0), (256, 1_000), (1_000, 10_000)]
        .into_iter()
        .map(|(running, waiting)| {
            let view = step_view(full_house(running, waiting));
            let call = format!("schedule, {running} running + {waiting} waiting");
            compare(call, &mut pair, |policy| policy.schedule(&view).map(drop))
        })
        .collect()
}

fn admission(
    policy: Box<dyn AdmissionPolicy>,
    builtin: Box<dyn AdmissionPolicy>,
) -> Result<Vec<Cost>, PolicyFault> {
    let mut pair: Pair<dyn AdmissionPolicy> = [policy, builtin];
    let mut costs = Vec::new();
    for (running, waiting) in [(0, 0), (256, 1_000)] {
        let load = busy(running, waiting);
        let request = AdmissionRequest {
            id: SequenceId(1),
            tenant: TenantId(0),
            session: SessionId(0),
            priority: 0,
            arrived: load.now,
            deadline: Micros::NEVER,
            prompt_tokens: 500,
            cached_tokens: 0,
            idle_blocks: 0,
            max_new_tokens: 256,
            expected_tokens: 100,
        };
        let shown = format!("{running} running + {waiting} waiting");
        costs.push(compare(format!("admit, {shown}"), &mut pair, |policy| {
            policy.admit(&request, &load).map(drop)
        })?);
        costs
            .push(compare(format!("measure, {shown}"), &mut pair, |policy| policy.measure(&load).map(drop))?);
    }
    Ok(costs)
}

fn busy(running: u32, waiting: u32) -> Load {
    let used = running * 33;
    Load {
        now: Micros(1_000_000_000),
        memory: Memory {
            block_size: 16,
            total_blocks: used + 20_000,
            free_blocks: 16_000,
            cached_blocks: 4_000,
        },
        max_running: 256,
        running,
        max_waiting: 1_000,
        waiting,
        waiting_tokens: u64::from(waiting) * 756,
        waiting_prompt_tokens: u64::from(waiting) * 500,
        started_prompt_tokens: u64::from(running) * 10,
        expected_output_tokens: u64::from(running + waiting) * 100,
        promised_blocks: running * 16,
        expected_blocks: running * 6,
        tenant_running: running,
        tenant_waiting: waiting,
        tenant_in_flight: running,
        tenant_weight_permille: 1_000,
        ..Load::default()
    }
}

fn prefix_cache(
    policy: Box<dyn PrefixCachePolicy>,
    builtin: Box<dyn PrefixCachePolicy>,
) -> Result<Vec<Cost>, PolicyFault> {
    let mut pair = [policy, builtin];
    let hit = hit(&mut SplitMix(1), 512);
    let mut costs = vec![compare("reuse".to_owned(), &mut pair, |policy| policy.reuse(&hit).map(drop))?];
    for blocks in [16, 256, 2_048] {
        let events = idle_cache(blocks, blocks.min(100));
        let call = format!("observe, {blocks} blocks");
        costs.push(compare(call, &mut pair, |policy| policy.observe(&events).map(drop))?);
        if costs.last().is_some_and(|cost| cost.fault.is_some()) {
            break;
        }
        costs.push(compare(format!("evict 16 of {blocks} blocks"), &mut pair, |policy| {
            policy.evict(Micros(2_000_000), 16).map(drop)
        })?);
    }
    Ok(costs)
}

/// What a call costs, or that it exceeds a host's limit: its author needs to know that along with the other
/// measurements.
fn compare<P: Policy + ?Sized>(
    call: String,
    pair: &mut Pair<P>,
    ask: impl FnMut(&mut P) -> Result<(), PolicyFault>,
) -> Result<Cost, PolicyFault> {
    match in_turns(&call, pair, ask) {
        Err(fault) if fault.kind == FaultKind::Deadline => {
            pair[0].restart()?;
            Ok(Cost::beyond_limits(call, &fault))
        }
        measured => measured,
    }
}

/// Calls both in turns: a few times to warm up, then enough times within the time limit.
fn in_turns<P: ?Sized>(
    call: &str,
    pair: &mut Pair<P>,
    mut ask: impl FnMut(&mut P) -> Result<(), PolicyFault>,
) -> Result<Cost, PolicyFault> {
    let mut taken = [Vec::new(), Vec::new()];
    for _ in 0..MIN_CALLS {
        for policy in pair.iter_mut() {
            ask(policy)?;
        }
    }
    let began = Instant::now();
    while taken[0].len() < MAX_CALLS && (taken[0].len() < MIN_CALLS || began.elapsed() < MEASURED) {
        for (policy, taken) in pair.iter_mut().zip(&mut taken) {
            let before = Instant::now();
            ask(policy)?;
            taken.push(before.elapsed());
        }
    }
    let calls = taken[0].len();
    let [(p50_us, p99_us), (builtin_p50_us, builtin_p99_us)] = taken.map(percentiles);
    let percent_of_step = p50_us * 100.0 / (STEP.as_secs_f64() * 1e6);
    let call = call.to_owned();
    Ok(Cost { call, calls, p50_us, p99_us, builtin_p50_us, builtin_p99_us, percent_of_step, fault: None })
}

/// Median and 99th percentile in microseconds.
fn percentiles(mut taken: Vec<Duration>) -> (f64, f64) {
    taken.sort_unstable();
    let at =
        |percent: usize| nearest_rank(taken.len(), percent).map_or(0.0, |at| taken[at].as_secs_f64() * 1e6);
    (at(50), at(99))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_durations() {
        let durations = (1..=200).rev().map(Duration::from_micros).collect();
        let (p50, p99) = percentiles(durations);
        assert!((p50 - 100.0).abs() < 1e-6 && (p99 - 198.0).abs() < 1e-6, "{p50} {p99}");
    }
}
