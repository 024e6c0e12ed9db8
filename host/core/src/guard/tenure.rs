//! A policy in a slot, with the copy of its state that a restart begins from.

use crate::event::Handover;
use crate::ids::Micros;
use crate::policy::{Policy, PolicyFault};

pub(super) struct Tenure<P: ?Sized> {
    pub policy: Box<P>,
    pub since: Micros,
    /// Its faults while it was live. Like the count of its calls, it outlasts restarts and times as the previous policy.
    pub faults: u64,
    /// A fault left it in an unknown state: `resume` comes before its next call.
    pub broken: bool,
    /// What it last exported or imported: the only copy, from which a restarted instance begins.
    pub state: Vec<u8>,
    /// Exports that failed since one succeeded.
    pub failed_exports: u32,
}

impl<P: Policy + ?Sized> Tenure<P> {
    pub fn new(policy: Box<P>, since: Micros) -> Self {
        Self { policy, since, faults: 0, broken: false, state: Vec::new(), failed_exports: 0 }
    }

    /// Keeps a copy of its state. An error leaves it broken, with the copy that it had.
    pub fn export(&mut self) -> Result<(), PolicyFault> {
        match self.policy.export_state() {
            Ok(state) => {
                (self.state, self.failed_exports) = (state, 0);
                Ok(())
            }
            Err(fault) => {
                (self.broken, self.failed_exports) = (true, self.failed_exports + 1);
                Err(fault)
            }
        }
    }

    /// Imports a state and keeps a copy of the result: its earlier copy is older, and `state` may be a part of a
    /// list's. An error says why it can't read it.
    pub fn import(&mut self, state: Vec<u8>) -> Result<(), PolicyFault> {
        if self.broken {
            // `resume` imports it.
            self.state = state;
            return Ok(());
        }
        self.policy.import_state(&state).inspect_err(|fault| self.broken = !fault.is_refusal())?;
        self.state = state;
        // An error leaves it broken, with the state that it was given.
        let _ = self.export();
        Ok(())
    }

    /// What it has if it takes over nothing. Once a fault has left it broken, that is what it is restarted from.
    pub fn own_state(&self) -> Handover {
        if self.broken && self.state.is_empty() { Handover::Cold } else { Handover::Kept }
    }

    /// Restarts it from its kept state. One that can't read its state, or fails over it, starts cold, which is no
    /// fault; in a list only the member that failed does.
    pub fn resume(&mut self) -> Result<(), PolicyFault> {
        self.policy.restart()?;
        if self.state.is_empty() {
            return Ok(());
        }
        match self.policy.import_state(&self.state) {
            Err(fault) if !fault.is_refusal() => {}
            _ => return Ok(()),
        }
        self.policy.restart()?;
        // Nothing is left of the state that it failed over; the other members of a list have imported theirs.
        self.state.clear();
        let _ = self.export();
        Ok(())
    }
}
