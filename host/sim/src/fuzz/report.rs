//! What a run reached: a machine that never gets somewhere finds nothing there.

use std::fmt;

use infer_core::request::RefusalReason;
use infer_core::{Change, FinishReason};

/// How often each thing happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct Reached {
    pub requests: u64,
    /// Client requests of several sequences.
    pub groups: u64,
    /// In `RefusalReason::ALL` order.
    pub refused: [u64; RefusalReason::ALL.len()],
    pub started: u64,
    pub tokens: u64,
    pub cached_tokens: u64,
    pub preempted: u64,
    /// Times that a waiting sequence was overtaken for no good reason.
    pub overtaken: u64,
    /// In `FinishReason::ALL` order.
    pub finished: [u64; FinishReason::ALL.len()],
    pub failed: u64,
    /// Clients that were cut off because they read too slowly.
    pub lagging: u64,
    pub device_faults: u64,
    /// Ends that came while a batch was in flight.
    pub ended_in_flight: u64,
    /// Batches that copied a block, or answered from kept logits.
    pub copies: u64,
    pub answered: u64,
    pub cut_rows: u64,
    pub evicted_blocks: u64,
    /// Draft tokens, and those that were right.
    pub guessed: u64,
    pub guessed_right: u64,
    /// Batches made while another was in flight, rows of them whose request had ended by then, and batches
    /// that were lost with the one before.
    pub planned_ahead: u64,
    pub wasted_rows: u64,
    pub lost_behind: u64,
    pub slept: u64,
    pub policy_faults: u64,
    pub starvation_faults: u64,
    /// Changes of policy, in `Change::ALL` order.
    pub changes: [u64; Change::ALL.len()],
    pub shadows: u64,
    /// Admission policies that are lists.
    pub lists: u64,
}

impl Reached {
    /// Name and count of everything: the same names whatever happened.
    pub fn rows(&self) -> Vec<(String, u64)> {
        let mut rows = Vec::new();
        let mut row = |name: &str, count: u64| rows.push((name.to_owned(), count));
        row("requests", self.requests);
        row("requests of several", self.groups);
        for (reason, &count) in RefusalReason::ALL.iter().zip(&self.refused) {
            row(&format!("refused: {}", reason.name()), count);
        }
        row("started", self.started);
        row("tokens", self.tokens);
        row("cached tokens", self.cached_tokens);
        row("preempted", self.preempted);
        row("overtaken", self.overtaken);
        for (reason, &count) in FinishReason::ALL.iter().zip(&self.finished) {
            row(&format!("finished: {}", reason.name()), count);
        }
        row("failed", self.failed);
        row("cut off for lagging", self.lagging);
        row("device faults", self.device_faults);
        row("ended in flight", self.ended_in_flight);
        row("block copies", self.copies);
        row("answered from logits", self.answered);
        row("rows cut", self.cut_rows);
        row("blocks evicted", self.evicted_blocks);
        row("tokens drafted", self.guessed);
        row("tokens accepted", self.guessed_right);
        row("batches planned ahead", self.planned_ahead);
        row("rows of ended requests", self.wasted_rows);
        row("batches lost behind", self.lost_behind);
        row("sleeps", self.slept);
        row("policy faults", self.policy_faults);
        row("starvation faults", self.starvation_faults);
        for (change, &count) in Change::ALL.iter().zip(&self.changes) {
            row(&format!("policy changed: {}", change.name()), count);
        }
        row("shadows", self.shadows);
        row("admission lists", self.lists);
        rows
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.requests, other.requests),
            (&mut self.groups, other.groups),
            (&mut self.started, other.started),
            (&mut self.tokens, other.tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.preempted, other.preempted),
            (&mut self.overtaken, other.overtaken),
            (&mut self.failed, other.failed),
            (&mut self.lagging, other.lagging),
            (&mut self.device_faults, other.device_faults),
            (&mut self.ended_in_flight, other.ended_in_flight),
            (&mut self.copies, other.copies),
            (&mut self.answered, other.answered),
            (&mut self.cut_rows, other.cut_rows),
            (&mut self.evicted_blocks, other.evicted_blocks),
            (&mut self.guessed, other.guessed),
            (&mut self.guessed_right, other.guessed_right),
            (&mut self.planned_ahead, other.planned_ahead),
            (&mut self.wasted_rows, other.wasted_rows),
            (&mut self.lost_behind, other.lost_behind),
            (&mut self.slept, other.slept),
            (&mut self.policy_faults, other.policy_faults),
            (&mut self.starvation_faults, other.starvation_faults),
            (&mut self.shadows, other.shadows),
            (&mut self.lists, other.lists),
        ];
        for (sum, count) in pairs {
            *sum += count;
        }
        let lists = [
            (&mut self.refused[..], &other.refused[..]),
            (&mut self.finished[..], &other.finished[..]),
            (&mut self.changes[..], &other.changes[..]),
        ];
        for (sums, counts) in lists {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.rows() {
            writeln!(f, "  {name:<26} {count:>12}")?;
        }
        Ok(())
    }
}
