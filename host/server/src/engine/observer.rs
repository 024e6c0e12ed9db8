//! Publishes what happens in the engine to consoles, the log and the metrics: faults, policy changes, preemptions.
//!
//! Cheap enough for the engine thread: a broadcast that never blocks, and short locks for the history, the quarantine
//! and the names of fault files. Files are written, and looked for, by another thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use infer_api::admin::{AdminEvent, FaultInfo, HistoryEntry};
use infer_core::policy::{Fault, FaultKind, PolicyInfo, PolicyKind};
use infer_core::trial::{CanaryReport, CanaryState, ShadowReport, ShadowState};
use infer_core::{Change, Micros, SequenceId};
use tokio::sync::broadcast;

use super::change::By;
use super::clock::Clock;
use super::lasting::{Lasting, slot_index};
use super::quarantine::Quarantine;
use super::wire;
use crate::faults::FaultRecorder;

/// Events that a slow console may lag behind.
const EVENTS: usize = 1_024;

/// Fans engine events out to consoles and keeps the history of the slots.
#[derive(Debug)]
pub struct Observer {
    clock: Clock,
    events: broadcast::Sender<AdminEvent>,
    lasting: Arc<Lasting>,
    counts: [Counts; 3],
    faults: OnceLock<FaultRecorder>,
}

/// What happened in a slot since the start.
#[derive(Debug, Default)]
struct Counts {
    /// In `FaultKind::ALL` order. Faults of shadows are not counted.
    faults: [AtomicU64; FaultKind::ALL.len()],
    /// In `Change::ALL` order.
    changes: [AtomicU64; Change::ALL.len()],
}

/// A change of a slot's policy, shadow or canary.
#[derive(Debug)]
pub struct Noted<'a> {
    /// When.
    pub at: Micros,
    /// The first step after it.
    pub step: u64,
    /// The policy before it.
    pub from: String,
    /// The policy after it; of a shadow, the shadow.
    pub to: &'a PolicyInfo,
    /// Why it happened.
    pub reason: String,
    /// What happened, as in `HistoryEntry::mode`.
    pub mode: &'a str,
    /// The operator who wanted it.
    pub by: Option<&'a By>,
}

impl Observer {
    /// Returns an observer without subscribers and history.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            events: broadcast::Sender::new(EVENTS),
            lasting: Arc::new(Lasting::new(clock)),
            counts: Default::default(),
            faults: OnceLock::new(),
        }
    }

    /// Subscribes to later events.
    pub fn subscribe(&self) -> broadcast::Receiver<AdminEvent> {
        self.events.subscribe()
    }

    /// Sends an event to all consoles.
    pub fn publish(&self, event: AdminEvent) {
        let _ = self.events.send(event);
    }

    /// Returns what may outlive the process.
    pub fn lasting(&self) -> &Arc<Lasting> {
        &self.lasting
    }

    /// Returns the quarantine.
    pub fn quarantine(&self) -> &Quarantine {
        self.lasting.quarantine()
    }

    /// Writes later faults to disk. Panics if called twice.
    pub fn write_faults(&self, recorder: FaultRecorder) {
        assert!(self.faults.set(recorder).is_ok(), "faults are written to one directory");
    }

    /// Reports a policy's fault.
    pub fn fault(&self, fault: &Fault) {
        if !fault.shadow {
            let faults = &self.counts[slot_index(fault.slot)].faults;
            faults[fault.fault.kind as usize].fetch_add(1, Ordering::Relaxed);
        }
        let path = self.faults.get().and_then(|recorder| recorder.note(fault));
        let info = wire::fault_info(self.clock, fault, path.map(|path| path.display().to_string()));
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
            self.quarantine().add(fault.slot, &culprit.policy, &culprit.reason, fault.at);
        }
        self.publish(AdminEvent::Fault(info));
    }

    /// Returns a fault that was reported before.
    pub fn fault_info(&self, fault: &Fault) -> FaultInfo {
        let path = self.faults.get().and_then(|recorder| recorder.path_of(fault));
        wire::fault_info(self.clock, fault, path.map(|path| path.display().to_string()))
    }

    /// A shadow came or ended; `by` is the operator who wanted it. `note` says why it came without the live policy's state.
    pub fn shadow(
        &self,
        kind: PolicyKind,
        live: String,
        report: &ShadowReport,
        note: Option<&str>,
        step: u64,
        by: Option<&By>,
    ) {
        let (at, reason) = match report.state {
            ShadowState::Watching => {
                let note = note.map(|note| format!("; {note}")).unwrap_or_default();
                (report.since, format!("in shadow{note}"))
            }
            state => (report.ended, format!("in shadow no more, {}: {}", state.name(), report.reason)),
        };
        self.note(kind, Noted { at, step, from: live, to: &report.policy, reason, mode: "shadow", by });
    }

    /// Reports that a canary started, was disturbed, or ended; `by` is the operator who wanted it.
    pub fn canary(&self, report: &CanaryReport, step: u64, at: Micros, by: Option<&By>) {
        let noted = match report.state {
            CanaryState::Promoted => Some((report.ended, "stays")),
            CanaryState::Watching => report.disturbed.map(|_| (at, "disturbed")),
            CanaryState::RolledBack => None,
        };
        if let Some((at, mode)) = noted {
            let (from, reason) = (report.policy.name.clone(), report.reason.clone());
            let by = by.filter(|_| report.state == CanaryState::Promoted);
            self.note(report.kind, Noted { at, step, from, to: &report.policy, reason, mode, by });
        }
        self.publish(AdminEvent::Canary(Box::new(wire::canary_info(self.clock, report))));
    }

    /// Reports that a running request was preempted.
    pub fn preempted(&self, id: SequenceId) {
        self.publish(AdminEvent::Preemption { id: id.0 });
    }

    /// Counts a change of a slot's live policy.
    pub fn count_change(&self, kind: PolicyKind, change: Change) {
        self.counts[slot_index(kind)].changes[change as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often a slot's live policies have failed in this way.
    pub fn faults(&self, kind: PolicyKind, fault: FaultKind) -> u64 {
        self.counts[slot_index(kind)].faults[fault as usize].load(Ordering::Relaxed)
    }

    /// Returns how often a slot's live policy has changed in this way.
    pub fn changes(&self, kind: PolicyKind, change: Change) -> u64 {
        self.counts[slot_index(kind)].changes[change as usize].load(Ordering::Relaxed)
    }

    /// Logs a change of a slot's policy, shadow or canary, and adds it to the history.
    pub fn note(&self, kind: PolicyKind, noted: Noted<'_>) {
        let Noted { at, step, from, to, reason, mode, by } = noted;
        let entry = HistoryEntry {
            at_ms: self.clock.ms(at),
            at_utc: self.clock.utc(at),
            step,
            from,
            to: to.name.clone(),
            sha256: to.digest.clone(),
            config_sha256: to.config_digest.clone(),
            reason,
            mode: mode.to_owned(),
            by: by.map(|by| by.operator.clone()),
            before_restart: false,
        };
        tracing::info!(
            slot = kind.name(),
            from = entry.from,
            to = entry.to,
            sha256 = entry.sha256,
            config_sha256 = entry.config_sha256,
            step = entry.step,
            reason = entry.reason,
            operator = entry.by,
            peer = by.map(|by| by.peer.to_string()),
            "policy {}",
            entry.mode
        );
        self.lasting.add_history(kind, entry);
    }

    /// Returns the history of a slot, oldest first.
    pub fn history(&self, kind: PolicyKind) -> Vec<HistoryEntry> {
        self.lasting.history(kind)
    }
}
