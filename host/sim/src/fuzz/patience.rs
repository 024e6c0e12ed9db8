//! How long anything may be kept waiting: the engine promises to wake in time, to stall no longer than its
//! bound, and to leave no running sequence out, nor let a waiting one be overtaken (`overtaking`), for longer.
//! And it blames no scheduler for what another one did.

use std::collections::BTreeMap;

use infer_core::policy::{FaultKind, PolicyKind};
use infer_core::{Event, Micros, SequenceId};

use super::case::Setup;
use super::overtaking::{Made, Overtaking};

/// A scheduler's promised wake is accepted if it is within this many bounds.
const LONGEST_PROMISE: u64 = 12;
/// The longest time between two calls about a held request, or after a due wake.
const SLACK_US: u64 = 60_000;
/// A held request on an idle host can outwait the live admission policy and the previous one, and then two
/// schedulers may stall in turn; each takes up to one promise.
const PROMISES_IN_A_ROW: u64 = 4;
/// Bounds of time that a running sequence may be left out for: the engine looks only now and then, and also
/// wants some batches to be computed.
const LEFT_OUT: u64 = 3;
/// The largest part of a bound that a gap between batches counts for, however far the clock jumped.
const LARGEST_GAP: u64 = 4;

pub(super) struct Patience {
    bound: Micros,
    /// Time slept since a batch ran or an operation came.
    slept_us: u64,
    /// Time that passed between batches.
    spent_us: u64,
    /// The value of that when each running sequence last had a row.
    rows: BTreeMap<SequenceId, u64>,
    last: Micros,
    /// When the live scheduler became live, or was last blamed.
    clean: Micros,
    overtaking: Overtaking,
}

impl Patience {
    pub fn new(setup: &Setup) -> Self {
        Self {
            bound: Micros(setup.starvation_bound_us),
            slept_us: 0,
            spent_us: 0,
            rows: BTreeMap::new(),
            last: Micros::ZERO,
            clean: Micros::ZERO,
            overtaking: Overtaking::new(setup),
        }
    }

    /// An operation came: all waiting times restart.
    pub fn disturbed(&mut self) {
        self.slept_us = 0;
    }

    /// Nothing can run now, and the driver sleeps. Returns until when.
    pub fn sleeps(&mut self, now: Micros, wake: Option<Micros>, has_work: bool) -> Micros {
        let Some(wake) = wake else {
            assert!(!has_work, "there is work, but the engine never wakes");
            return now.plus(Micros(1_000));
        };
        assert!(wake > now, "a wake in the past keeps the driver spinning");
        if has_work {
            let longest = self.bound.0 * LONGEST_PROMISE + SLACK_US;
            let us = wake.since(now).0;
            assert!(us <= longest, "there is work, and the wake is {us} us away, over {longest}");
            self.slept_us += us;
            let longest = longest * PROMISES_IN_A_ROW;
            let us = self.slept_us;
            assert!(us <= longest, "nothing ran for {us} us though there is work, over {longest}");
        }
        wake
    }

    /// A policy that left a sequence out or let it be overtaken was removed or replaced: its record is cleared.
    pub fn hear(&mut self, event: &Event) {
        match event {
            Event::Started { id, .. } => self.overtaking.starts(*id),
            Event::PolicyChanged { kind: PolicyKind::Scheduler, at, .. } => self.forgive(*at),
            Event::PolicyFault(fault)
                if fault.slot == PolicyKind::Scheduler && fault.fault.kind == FaultKind::Starvation =>
            {
                let (us, reproach) = (fault.at.since(self.clean).0, &fault.fault.message);
                assert!(us >= self.bound.0, "after {us} us a scheduler is reproached: {reproach}");
                self.forgive(fault.at);
            }
            _ => {}
        }
    }

    fn forgive(&mut self, at: Micros) {
        self.clean = at;
        let spent = self.spent_us;
        self.rows.values_mut().for_each(|mark| *mark = spent);
        self.overtaking.forgive();
    }

    /// A batch was made. Returns how many waiting sequences it overtook.
    pub fn begins(&mut self, made: &Made<'_>) -> u64 {
        self.slept_us = 0;
        let before = self.spent_us;
        self.spent_us += made.now.since(self.last).0.min(self.bound.0 / LARGEST_GAP);
        self.last = made.now;
        for row in &made.batch.rows {
            self.rows.insert(row.sequence, self.spent_us);
        }
        // A sequence without blocks has ended or waits again.
        self.rows.retain(|&id, _| !made.ledger.table(id).is_empty());
        let overtaken = self.overtaking.begins(made, self.spent_us);
        if made.aided {
            return overtaken;
        }
        for (id, mark) in &self.rows {
            let us = before.saturating_sub(*mark);
            let longest = LEFT_OUT * self.bound.0;
            assert!(us <= longest, "{id:?} runs and had no row for {us} us, over {longest}");
        }
        overtaken
    }
}
