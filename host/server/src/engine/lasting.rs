//! What of the slots may outlive the process: what they go back to, their history, the quarantine, and what their
//! policies exported. And a count of its changes, for whoever saves it (`policy_state`).
//!
//! The engine thread writes here, under short locks; files are deliberately elsewhere.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use infer_api::admin::{HistoryEntry, QuarantineEntry};
use infer_core::engine::Carried;
use infer_core::policy::{PolicyInfo, PolicyKind};
use infer_core::snapshot::SlotSnapshot;
use infer_core::trial::ShadowState;

use super::clock::Clock;
use super::quarantine::Quarantine;
use crate::utc::unix_us;

/// History entries kept per slot.
const HISTORY: usize = 256;

/// The lasting part of the slots.
#[derive(Debug)]
pub struct Lasting {
    quarantine: Quarantine,
    history: Mutex<[VecDeque<HistoryEntry>; 3]>,
    standing: Mutex<[Standing; 3]>,
    changes: Arc<Changes>,
    /// Whether anybody takes what the engine leaves.
    has_heir: AtomicBool,
    left: Mutex<Option<Left>>,
}

/// What the engine left for the next one.
#[derive(Clone, Debug)]
pub struct Left {
    /// How far it had counted, and what its policies exported.
    pub carried: Carried,
    /// When: microseconds since 1970, going by the wall clock.
    pub at_us: u64,
}

/// What a slot runs, apart from what is being tried in it.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// Its policy; while there is a canary, the one before it. `None` while the built-in replaces a removed one.
    pub policy: Option<Arc<PolicyInfo>>,
    /// Name of the canary on trial.
    pub canary: Option<String>,
    /// Name of the running shadow.
    pub shadow: Option<String>,
}

/// Counts changes, and wakes the thread that waits for them.
#[derive(Debug, Default)]
pub struct Changes {
    count: Mutex<Count>,
    wake: Condvar,
}

/// How many changes there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Since the start, but for what the engine left.
    pub changes: u64,
    /// How often it left something.
    pub left: u64,
    /// Whether no more are to come.
    pub closed: bool,
}

impl Lasting {
    /// Nothing yet.
    pub fn new(clock: Clock) -> Self {
        let changes = Arc::<Changes>::default();
        Self {
            quarantine: Quarantine::new(clock, Arc::clone(&changes)),
            history: Mutex::default(),
            standing: Mutex::default(),
            changes,
            has_heir: AtomicBool::new(false),
            left: Mutex::default(),
        }
    }

    /// Returns the quarantine.
    pub fn quarantine(&self) -> &Quarantine {
        &self.quarantine
    }

    /// Returns the count of changes.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Returns the history of a slot, oldest first.
    pub fn history(&self, kind: PolicyKind) -> Vec<HistoryEntry> {
        locked(&self.history)[slot_index(kind)].iter().cloned().collect()
    }

    /// Adds to the history of a slot.
    pub fn add_history(&self, kind: PolicyKind, entry: HistoryEntry) {
        {
            let mut all = locked(&self.history);
            let slot = &mut all[slot_index(kind)];
            if slot.len() == HISTORY {
                slot.pop_front();
            }
            slot.push_back(entry);
        }
        self.changes.note();
    }

    /// Returns what a slot goes back to.
    pub fn standing(&self, kind: PolicyKind) -> Standing {
        locked(&self.standing)[slot_index(kind)].clone()
    }

    /// A slot has changed.
    pub fn stand(&self, kind: PolicyKind, standing: Standing) {
        locked(&self.standing)[slot_index(kind)] = standing;
        self.changes.note();
    }

    /// From now on somebody takes what the engine leaves.
    pub fn inherit(&self) {
        self.has_heir.store(true, Ordering::Release);
    }

    /// Whether anybody takes what the engine leaves.
    pub fn has_heir(&self) -> bool {
        self.has_heir.load(Ordering::Acquire)
    }

    /// Leaves something, in place of what was left before.
    pub fn leave(&self, carried: Carried) {
        *locked(&self.left) = Some(Left { carried, at_us: unix_us() });
        self.changes.note_left();
    }

    /// Takes what was left since the last call.
    pub fn take_left(&self) -> Option<Left> {
        locked(&self.left).take()
    }

    /// Adds what an earlier host saved: its histories, before what happened since, and its quarantine.
    pub fn restore(&self, history: [Vec<HistoryEntry>; 3], quarantine: Vec<QuarantineEntry>) {
        let mut all = locked(&self.history);
        for (kind, earlier) in PolicyKind::ALL.into_iter().zip(history) {
            let slot = &mut all[slot_index(kind)];
            let room = HISTORY.saturating_sub(slot.len());
            earlier.into_iter().rev().take(room).for_each(|entry| slot.push_front(entry));
        }
        drop(all);
        quarantine.into_iter().for_each(|entry| self.quarantine.put_back(entry));
    }
}

impl Standing {
    /// What a slot goes back to, as a snapshot shows it.
    pub fn of(slot: &SlotSnapshot) -> Self {
        let policy = match slot {
            SlotSnapshot { trial: true, previous, .. } => previous.clone(),
            SlotSnapshot { fallback: true, .. } => None,
            SlotSnapshot { policy, .. } => Some(Arc::clone(policy)),
        };
        let shadow = slot.shadow.as_ref().filter(|shadow| shadow.state == ShadowState::Watching);
        Self {
            policy,
            canary: slot.trial.then(|| slot.policy.name.clone()),
            shadow: shadow.map(|shadow| shadow.policy.name.clone()),
        }
    }
}

impl Changes {
    /// Something has changed.
    pub fn note(&self) {
        locked(&self.count).changes += 1;
        self.wake.notify_all();
    }

    /// The engine has left something.
    pub fn note_left(&self) {
        locked(&self.count).left += 1;
        self.wake.notify_all();
    }

    /// Nothing that is to be saved changes any more.
    pub fn close(&self) {
        locked(&self.count).closed = true;
        self.wake.notify_all();
    }

    /// Returns the count.
    pub fn count(&self) -> Count {
        *locked(&self.count)
    }

    /// Blocks until there were more changes than `seen`, until nothing changes any more, or for at most so long.
    pub fn wait(&self, seen: Count, patience: Option<Duration>) -> Count {
        let nothing_new = |count: &mut Count| *count == seen && !count.closed;
        let count = locked(&self.count);
        *match patience {
            None => self.wake.wait_while(count, nothing_new).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                let waited = self.wake.wait_timeout_while(count, time, nothing_new);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the position of a kind in `PolicyKind::ALL`.
pub(super) fn slot_index(kind: PolicyKind) -> usize {
    PolicyKind::ALL.iter().position(|&k| k == kind).expect("ALL holds every kind")
}

#[cfg(test)]
mod tests {
    use infer_core::engine::Numbers;

    use super::*;

    fn entry(to: &str) -> HistoryEntry {
        HistoryEntry { to: to.to_owned(), ..HistoryEntry::default() }
    }

    #[test]
    fn what_an_earlier_host_did_comes_before_what_happened_since() {
        const KIND: PolicyKind = PolicyKind::Admission;
        let lasting = Lasting::new(Clock::start());
        lasting.add_history(KIND, entry("since"));
        let history = [Vec::new(), vec![entry("first"), entry("second")], Vec::new()];
        let quarantined = |name: &str| QuarantineEntry {
            sha256: name.to_owned(),
            name: name.to_owned(),
            ..QuarantineEntry::default()
        };
        lasting.restore(history, vec![quarantined("a"), quarantined("b")]);
        let names: Vec<String> = lasting.history(KIND).into_iter().map(|entry| entry.to).collect();
        assert_eq!(names, ["first", "second", "since"]);
        assert_eq!(lasting.history(PolicyKind::Scheduler), []);
        assert_eq!(lasting.quarantine().list(), [quarantined("a"), quarantined("b")]);
    }

    #[test]
    fn old_entries_make_room_for_new_ones() {
        const KIND: PolicyKind = PolicyKind::Scheduler;
        let lasting = Lasting::new(Clock::start());
        for at in 0..HISTORY + 2 {
            lasting.add_history(KIND, entry(&at.to_string()));
        }
        lasting.restore([vec![entry("earlier")], Vec::new(), Vec::new()], Vec::new());
        let history = lasting.history(KIND);
        assert_eq!((history.len(), &*history[0].to), (HISTORY, "2"));
    }

    #[test]
    fn every_change_is_counted_and_ends_a_wait() {
        let lasting = Lasting::new(Clock::start());
        let policy = PolicyInfo { digest: "d".to_owned(), ..PolicyInfo::default() };
        let quarantine = lasting.quarantine();
        let mut seen = lasting.changes().count();
        let mut changed = |what: &str| {
            let now = lasting.changes().wait(seen, Some(Duration::ZERO));
            assert!(now.changes > seen.changes && !now.closed, "{what}");
            seen = now;
        };
        quarantine.add(PolicyKind::Scheduler, &policy, "trap", infer_core::Micros(1));
        changed("a quarantine");
        let entry_of = quarantine.pardon(&policy).unwrap();
        changed("a pardon");
        quarantine.put_back(entry_of);
        changed("a pardon taken back");
        quarantine.lift("d");
        changed("an end of a quarantine");
        lasting.add_history(PolicyKind::Scheduler, entry("x"));
        changed("a change");
        lasting.stand(PolicyKind::Scheduler, Standing::default());
        changed("another policy");
        assert!(!quarantine.lift("d") && quarantine.pardon(&policy).is_none());
        assert_eq!(lasting.changes().wait(seen, Some(Duration::ZERO)), seen);
        lasting.changes().close();
        assert!(lasting.changes().wait(seen, None).closed);
    }

    #[test]
    fn what_the_engine_leaves_is_there_until_it_is_taken_or_replaced() {
        let lasting = Lasting::new(Clock::start());
        assert!(!lasting.has_heir());
        lasting.inherit();
        assert!(lasting.has_heir() && lasting.take_left().is_none());
        let seen = lasting.changes().count();
        for next_id in [2, 3] {
            let numbers = Numbers { next_id, ..Numbers::default() };
            lasting.leave(Carried { numbers, states: Vec::new() });
        }
        let now = lasting.changes().wait(seen, None);
        assert_eq!((now.left, now.changes), (seen.left + 2, seen.changes));
        let left = lasting.take_left().unwrap();
        assert!(left.carried.numbers.next_id == 3 && left.at_us > 0);
        assert!(lasting.take_left().is_none());
    }
}
