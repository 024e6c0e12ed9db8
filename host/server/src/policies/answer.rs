//! What a change of a slot answers, and what is done with the policy that had to go.

use infer_api::admin::{AdminEvent, SwapAnswer};
use infer_core::Handover;
use infer_core::policy::PolicyInfo;
use infer_core::snapshot::SlotSnapshot;

use super::{PolicyManager, drop_elsewhere, tag};
use crate::engine::{SwapMode, Swapped};

impl PolicyManager {
    /// Puts the retired policy away, tells the consoles, and says what changed. `to` came in.
    pub(super) fn finish(&self, swapped: Swapped, mode: &str, to: &PolicyInfo) -> SwapAnswer {
        let Swapped { report, pause } = swapped;
        let answer = SwapAnswer {
            kind: report.kind.name().to_owned(),
            from: report.from,
            to: report.to,
            at_step: report.at_step,
            pause_us: pause.as_nanos() as f64 / 1_000.0,
            state: report.state.name().to_owned(),
            state_note: report.state_note,
            mode: mode.to_owned(),
            sha256: to.digest.clone(),
            config_sha256: to.config_digest.clone(),
            tag: tag(to),
            unchanged: false,
            not_saved: None,
            canary: None,
        };
        if let Some(note) = &answer.state_note {
            let (slot, policy) = (&answer.kind, &answer.to);
            tracing::warn!(
                slot,
                policy,
                sha256 = answer.sha256,
                state = answer.state,
                "policy state: {note}"
            );
        }
        if let Some(retired) = report.retired {
            // Rollbacks don't lead to a policy that was rolled back from, nor to a shadow, which was never live.
            if !["rollback", "shadow"].contains(&mode) {
                self.keep_earlier(report.kind, &retired.info());
            }
            drop_elsewhere(retired);
        }
        if mode != "shadow" {
            self.engine.observer().publish(AdminEvent::Swap(answer.clone()));
        }
        answer
    }
}

/// The response to a swap to what is live already.
pub(super) fn unchanged(slot: &SlotSnapshot, step: u64) -> SwapAnswer {
    let live = &slot.policy;
    SwapAnswer {
        kind: slot.kind.name().to_owned(),
        from: live.name.clone(),
        to: live.name.clone(),
        at_step: step,
        pause_us: 0.0,
        state: Handover::Kept.name().to_owned(),
        state_note: None,
        mode: mode_name(SwapMode::Now).to_owned(),
        sha256: live.digest.clone(),
        config_sha256: live.config_digest.clone(),
        tag: tag(live),
        unchanged: true,
        not_saved: None,
        canary: None,
    }
}

pub(super) fn mode_name(mode: SwapMode) -> &'static str {
    match mode {
        SwapMode::Now => "now",
        SwapMode::Shadow => "shadow",
        SwapMode::Canary(_) => "canary",
    }
}
