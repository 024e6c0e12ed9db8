//! Publishes what happens in the engine to consoles and the log: faults, policy changes, preemptions.
//!
//! Cheap enough for the engine thread: a broadcast that never blocks, and a short lock for the history.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock};

use infer_api::admin::{AdminEvent, FaultInfo, HistoryEntry};
use infer_core::policy::{Fault, PolicyKind};
use infer_core::trial::{CanaryReport, CanaryState, ShadowReport, ShadowState};
use infer_core::{Micros, SequenceId};
use tokio::sync::broadcast;

use super::quarantine::Quarantine;
use super::wire;
use crate::faults::FaultRecorder;

/// History entries kept per slot.
const HISTORY: usize = 256;
/// Events that a slow console may lag behind.
const EVENTS: usize = 1_024;

/// Fans engine events out to consoles and keeps the history of the slots.
#[derive(Debug)]
pub struct Observer {
    events: broadcast::Sender<AdminEvent>,
    history: Mutex<[VecDeque<HistoryEntry>; 3]>,
    quarantine: Quarantine,
    faults: OnceLock<FaultRecorder>,
}

impl Default for Observer {
    fn default() -> Self {
        Self {
            events: broadcast::Sender::new(EVENTS),
            history: Mutex::default(),
            quarantine: Quarantine::default(),
            faults: OnceLock::new(),
        }
    }
}

impl Observer {
    /// Subscribes to later events.
    pub fn subscribe(&self) -> broadcast::Receiver<AdminEvent> {
        self.events.subscribe()
    }

    /// Sends an event to all consoles.
    pub fn publish(&self, event: AdminEvent) {
        let _ = self.events.send(event);
    }

    /// Returns the quarantine.
    pub fn quarantine(&self) -> &Quarantine {
        &self.quarantine
    }

    /// Writes later faults to disk. Panics if called twice.
    pub fn write_faults(&self, recorder: FaultRecorder) {
        assert!(self.faults.set(recorder).is_ok(), "faults are written to one directory");
    }

    /// Reports a policy's fault.
    pub fn fault(&self, fault: &Fault) {
        let path = self.faults.get().and_then(|recorder| recorder.note(fault));
        let info = wire::fault_info(fault, path.map(|path| path.display().to_string()));
        tracing::warn!(
            slot = fault.slot.name(),
            policy = info.policy,
            sha256 = info.sha256,
            reason = info.reason,
            step = info.step,
            removed = info.removed,
            shadow = info.shadow,
            replay = info.artifact,
            "policy fault: {}",
            info.message
        );
        for culprit in &fault.culprits {
            self.quarantine.add(fault.slot, &culprit.policy, &culprit.reason, fault.at);
        }
        self.publish(AdminEvent::Fault(info));
    }

    /// Returns a fault that was reported before.
    pub fn fault_info(&self, fault: &Fault) -> FaultInfo {
        let path = self.faults.get().and_then(|recorder| recorder.path_of(fault));
        wire::fault_info(fault, path.map(|path| path.display().to_string()))
    }

    /// A shadow came or ended.
    pub fn shadow(&self, kind: PolicyKind, live: String, report: &ShadowReport, step: u64) {
        let (at, reason) = match report.state {
            ShadowState::Watching => (report.since, "in shadow".to_owned()),
            state => (report.ended, format!("in shadow no more, {}: {}", state.name(), report.reason)),
        };
        self.note(
            kind,
            HistoryEntry {
                at_ms: at.0 / 1_000,
                step,
                from: live,
                to: report.policy.name.clone(),
                sha256: report.policy.digest.clone(),
                reason,
                mode: "shadow".to_owned(),
            },
        );
    }

    /// Reports that a canary started, was disturbed, or ended.
    pub fn canary(&self, report: &CanaryReport, step: u64, at: Micros) {
        let noted = match report.state {
            CanaryState::Promoted => Some((report.ended, "stays")),
            CanaryState::Watching => report.disturbed.map(|_| (at, "disturbed")),
            CanaryState::RolledBack => None,
        };
        if let Some((at, mode)) = noted {
            let name = report.policy.name.clone();
            let (sha256, reason) = (report.policy.digest.clone(), report.reason.clone());
            let (at_ms, mode) = (at.0 / 1_000, mode.to_owned());
            let entry = HistoryEntry { at_ms, step, from: name.clone(), to: name, sha256, reason, mode };
            self.note(report.kind, entry);
        }
        self.publish(AdminEvent::Canary(Box::new(wire::canary_info(report))));
    }

    /// Reports that a running request was preempted.
    pub fn preempted(&self, id: SequenceId) {
        self.publish(AdminEvent::Preemption { id: id.0 });
    }

    /// Logs a change of a slot's policy, shadow or canary, and adds it to the history.
    pub fn note(&self, kind: PolicyKind, entry: HistoryEntry) {
        tracing::info!(
            slot = kind.name(),
            from = entry.from,
            to = entry.to,
            sha256 = entry.sha256,
            step = entry.step,
            reason = entry.reason,
            "policy {}",
            entry.mode
        );
        let mut all = self.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let slot = &mut all[slot_index(kind)];
        if slot.len() == HISTORY {
            slot.pop_front();
        }
        slot.push_back(entry);
    }

    /// Returns the history of a slot, oldest first.
    pub fn history(&self, kind: PolicyKind) -> Vec<HistoryEntry> {
        let all = self.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all[slot_index(kind)].iter().cloned().collect()
    }
}

/// Returns the position of a kind in `PolicyKind::ALL`.
fn slot_index(kind: PolicyKind) -> usize {
    PolicyKind::ALL.iter().position(|&k| k == kind).expect("ALL holds every kind")
}
