//! What the engine thread tells consoles and the log as it happens: faults, changes of policy, preemptions.
//!
//! Everything here is rare or cheap: a broadcast that never waits, and a short lock for the history.

use std::collections::VecDeque;
use std::sync::Mutex;

use infer_api::admin::{AdminEvent, FaultInfo, HistoryEntry};
use infer_core::SequenceId;
use infer_core::policy::{Fault, PolicyInfo, PolicyKind};
use tokio::sync::broadcast;

/// Entries kept per slot.
const HISTORY: usize = 256;
/// Events that a slow console may lag behind.
const EVENTS: usize = 1_024;

/// Fans engine events out to consoles and keeps the history of the slots.
#[derive(Debug)]
pub struct Observer {
    events: broadcast::Sender<AdminEvent>,
    history: Mutex<[VecDeque<HistoryEntry>; 3]>,
}

impl Default for Observer {
    fn default() -> Self {
        Self { events: broadcast::Sender::new(EVENTS), history: Mutex::default() }
    }
}

impl Observer {
    /// A subscription from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<AdminEvent> {
        self.events.subscribe()
    }

    /// Tells the consoles; nobody listening is fine.
    pub fn publish(&self, event: AdminEvent) {
        let _ = self.events.send(event);
    }

    /// A policy misbehaved.
    pub fn fault(&self, fault: &Fault) {
        let info = fault_info(fault);
        tracing::warn!(
            slot = fault.slot.name(),
            policy = info.policy,
            sha256 = info.sha256,
            reason = info.reason,
            step = info.step,
            removed = info.removed,
            "policy fault: {}",
            info.message
        );
        self.publish(AdminEvent::Fault(info));
    }

    /// A running request gave its blocks back.
    pub fn preempted(&self, id: SequenceId) {
        self.publish(AdminEvent::Preemption { id: id.0 });
    }

    /// A slot's policy changed.
    pub fn changed(&self, kind: PolicyKind, entry: HistoryEntry) {
        tracing::info!(
            slot = kind.name(),
            from = entry.from,
            to = entry.to,
            sha256 = entry.sha256,
            step = entry.step,
            reason = entry.reason,
            "policy in force"
        );
        let mut all = self.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let slot = &mut all[slot_index(kind)];
        if slot.len() == HISTORY {
            slot.pop_front();
        }
        slot.push_back(entry);
    }

    /// The history of a slot, oldest first.
    pub fn history(&self, kind: PolicyKind) -> Vec<HistoryEntry> {
        let all = self.history.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        all[slot_index(kind)].iter().cloned().collect()
    }
}

/// Position of a kind in `PolicyKind::ALL`.
pub fn slot_index(kind: PolicyKind) -> usize {
    PolicyKind::ALL.iter().position(|&k| k == kind).expect("ALL holds every kind")
}

/// A fault as consoles show it.
pub fn fault_info(fault: &Fault) -> FaultInfo {
    let PolicyInfo { name, digest, .. } = &*fault.policy;
    FaultInfo {
        policy: name.clone(),
        sha256: digest.clone(),
        reason: fault.fault.kind.name().to_owned(),
        message: fault.fault.message.clone(),
        step: fault.step,
        at_ms: fault.at.0 / 1_000,
        removed: fault.removed,
    }
}
