//! Converts the engine's reports on policies to the admin plane's types, with times since the host's start.

use infer_api::admin::{CallCost, CanaryInfo, DivergenceInfo, FaultInfo, GaugeInfo, ShadowInfo, WindowInfo};
use infer_core::Micros;
use infer_core::policy::{CallStats, Fault, Gauge};
use infer_core::trial::{CanaryReport, DivergenceKind, ShadowReport, WindowStats};

use super::clock::Clock;

/// Converts a fault. `artifact` is the path of its fault file.
pub fn fault_info(clock: Clock, fault: &Fault, artifact: Option<String>) -> FaultInfo {
    FaultInfo {
        policy: fault.policy.name.clone(),
        sha256: fault.policy.digest.clone(),
        reason: fault.fault.kind.name().to_owned(),
        message: fault.fault.message.clone(),
        step: fault.step,
        at_ms: clock.ms(fault.at),
        removed: fault.removed,
        shadow: fault.shadow,
        artifact,
    }
}

/// Converts a shadow's report. `tag` is its policy's.
pub fn shadow_info(clock: Clock, report: &ShadowReport, tag: String, fault: Option<FaultInfo>) -> ShadowInfo {
    let divergences = DivergenceKind::ALL.iter().zip(report.divergences).filter(|&(_, count)| count > 0);
    let examples = report.examples.iter().map(|example| DivergenceInfo {
        kind: example.kind.name().to_owned(),
        step: example.step,
        at_ms: clock.ms(example.at),
        live: example.live.clone(),
        shadow: example.shadow.clone(),
    });
    ShadowInfo {
        policy: report.policy.name.clone(),
        version: report.policy.version.clone(),
        sha256: report.policy.digest.clone(),
        tag,
        state: report.state.name().to_owned(),
        reason: report.reason.clone(),
        since_ms: clock.ms(report.since),
        ended_ms: ended(clock, report.ended),
        questions: report.questions,
        agreements: report.agreements,
        divergences: divergences.map(|(kind, count)| (kind.name().to_owned(), count)).collect(),
        examples: examples.collect(),
        fault,
        cost: cost(&report.stats),
        live_cost: cost(&report.live_stats),
        gauges: gauges(&report.gauges),
    }
}

/// Converts what a policy publishes about itself.
pub fn gauges(gauges: &[Gauge]) -> Vec<GaugeInfo> {
    let info = |Gauge { policy, name, value }: &Gauge| GaugeInfo {
        policy: policy.clone(),
        name: name.clone(),
        value: *value,
    };
    gauges.iter().map(info).collect()
}

/// Converts a canary's report.
pub fn canary_info(clock: Clock, report: &CanaryReport) -> CanaryInfo {
    CanaryInfo {
        kind: report.kind.name().to_owned(),
        policy: report.policy.name.clone(),
        sha256: report.policy.digest.clone(),
        previous: report.previous.name.clone(),
        state: report.state.name().to_owned(),
        reason: report.reason.clone(),
        since_ms: clock.ms(report.since),
        ended_ms: ended(clock, report.ended),
        window_s: seconds(report.window),
        longest_s: seconds(report.longest),
        watched_s: seconds(report.watched),
        before: window(&report.before),
        after: window(&report.after),
    }
}

fn window(stats: &WindowStats) -> WindowInfo {
    let ms = |time: Micros| time.0 as f64 / 1e3;
    WindowInfo {
        busy_s: seconds(stats.busy),
        requests_per_second: stats.requests_per_second,
        prompt_tokens_per_second: stats.prompt_tokens_per_second,
        tokens_per_second: stats.tokens_per_second,
        itl_p50_ms: ms(stats.itl_p50),
        itl_p95_ms: ms(stats.itl_p95),
        ttft_p50_ms: ms(stats.ttft_p50),
        refused: stats.refused,
    }
}

fn cost(stats: &CallStats) -> CallCost {
    CallCost { calls: stats.calls, p50_us: stats.p50_us, p99_us: stats.p99_us }
}

fn ended(clock: Clock, at: Micros) -> Option<u64> {
    (at != Micros::NEVER).then(|| clock.ms(at))
}

fn seconds(time: Micros) -> f64 {
    time.0 as f64 / 1e6
}
