//! Metrics of the policy slots: what is live and on trial there, what it costs, publishes and did wrong.

use infer_api::admin::{PolicySlot, State};
use infer_core::Change;
use infer_core::policy::{FaultKind, PolicyKind};
use infer_core::trial::ShadowState;

use crate::engine::Observer;
use crate::metrics::families::{Families, Kind, Labels};

pub(super) fn policies(f: &mut Families, s: &State, observer: &Observer) {
    let each = |value: &dyn Fn(&PolicySlot) -> f64| -> Vec<(Labels, f64)> {
        s.policies.iter().map(|p| (vec![("kind", p.kind.clone())], value(p))).collect()
    };
    let faults = PolicyKind::ALL.into_iter().flat_map(|kind| {
        FaultKind::ALL
            .map(|fault| (of_slot(kind, "reason", fault.name()), observer.faults(kind, fault) as f64))
    });
    f.family("infer_policy_faults", "Faults of a slot's live policies", Kind::Counter, faults.collect());
    let changes = PolicyKind::ALL.into_iter().flat_map(|kind| {
        Change::ALL.map(|how| (of_slot(kind, "change", how.name()), observer.changes(kind, how) as f64))
    });
    f.family("infer_policy_changes", "Changes of a slot's live policy", Kind::Counter, changes.collect());
    let trials = s.policies.iter().flat_map(|p| {
        let watching = p.shadow.as_ref().is_some_and(|shadow| shadow.state == ShadowState::Watching.name());
        [("canary", p.state == "canary"), ("shadow", watching)].map(|(mode, runs)| {
            (vec![("kind", p.kind.clone()), ("mode", mode.to_owned())], f64::from(u8::from(runs)))
        })
    });
    f.family("infer_policy_trial", "1 while a policy is on trial", Kind::Gauge, trials.collect());
    f.gauge(
        "infer_policy_quarantined",
        "Quarantined components, each with a configuration",
        observer.quarantine().count() as f64,
    );
    f.family(
        "infer_policy_fallbacks",
        "Decisions made by the built-in policy instead",
        Kind::Counter,
        each(&|p| p.fallbacks as f64),
    );
    f.family(
        "infer_policy_call_p50_seconds",
        "Median of recent calls",
        Kind::Gauge,
        each(&|p| p.p50_us / 1e6),
    );
    f.family(
        "infer_policy_call_p99_seconds",
        "99th percentile of recent calls",
        Kind::Gauge,
        each(&|p| p.p99_us / 1e6),
    );
    let gauges = s.policies.iter().flat_map(|p| {
        let shadow = p.shadow.as_ref().filter(|shadow| shadow.state == ShadowState::Watching.name());
        let shadow = shadow.into_iter().flat_map(|shadow| &shadow.gauges).map(|gauge| ("shadow", gauge));
        let live = p.gauges.iter().map(|gauge| ("live", gauge));
        live.chain(shadow).map(|(mode, gauge)| {
            let labels = vec![
                ("kind", p.kind.clone()),
                ("name", gauge.policy.clone()),
                ("mode", mode.to_owned()),
                ("gauge", gauge.name.clone()),
            ];
            (labels, gauge.value)
        })
    });
    f.family("infer_policy_gauge", "What a policy publishes about itself", Kind::Gauge, gauges.collect());
    let info = s.policies.iter().map(|p| {
        let labels = vec![
            ("kind", p.kind.clone()),
            ("name", p.name.clone()),
            ("version", p.version.clone()),
            ("sha256", p.sha256.clone()),
            ("state", p.state.clone()),
        ];
        (labels, 1.0)
    });
    f.family("infer_policy_info", "Live policy", Kind::Gauge, info.collect());
}

fn of_slot(kind: PolicyKind, label: &'static str, value: &str) -> Labels {
    vec![("kind", kind.name().to_owned()), (label, value.to_owned())]
}
