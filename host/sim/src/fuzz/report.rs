//! What a run reached: a machine that never gets somewhere finds nothing there.

use std::fmt;

/// How often each thing happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by what they count")]
pub struct Reached {
    pub requests: u64,
    /// In the order of `RefusalReason`.
    pub refused: [u64; 7],
    pub started: u64,
    pub tokens: u64,
    pub cached_tokens: u64,
    pub preempted: u64,
    /// By end token, stop string, length, cancellation.
    pub finished: [u64; 4],
    pub failed: u64,
    /// Clients that were cut off because they read too slowly.
    pub lagging: u64,
    pub device_faults: u64,
    /// Ends that came while a batch was out.
    pub ended_in_flight: u64,
    /// Batches that copied a block, or answered from kept logits.
    pub copies: u64,
    pub answered: u64,
    pub cut_rows: u64,
    pub evicted_blocks: u64,
    /// Tokens guessed ahead, and those that were right.
    pub guessed: u64,
    pub guessed_right: u64,
    /// Batches made while another one was out, rows of them whose request had ended by then, and those that were
    /// lost with the one before.
    pub planned_ahead: u64,
    pub wasted_rows: u64,
    pub lost_behind: u64,
    pub slept: u64,
    pub policy_faults: u64,
    pub starvation_faults: u64,
    /// Changes of policy: swap, canary, promotion, rollback, fault, verdict.
    pub changes: [u64; 6],
    pub shadows: u64,
}

impl Reached {
    /// Name and count of everything.
    pub fn rows(&self) -> Vec<(String, u64)> {
        let mut rows = Vec::new();
        let mut row = |name: &str, count: u64| rows.push((name.to_owned(), count));
        row("requests", self.requests);
        let reasons = ["queue full", "memory", "rate", "too long", "backpressure", "other", "draining"];
        for (reason, &count) in reasons.iter().zip(&self.refused) {
            // No policy of the machine's own names a rate.
            if *reason != "rate" || count > 0 {
                row(&format!("refused: {reason}"), count);
            }
        }
        row("started", self.started);
        row("tokens", self.tokens);
        row("cached tokens", self.cached_tokens);
        row("preempted", self.preempted);
        for (how, &count) in ["end token", "stop string", "length", "cancelled"].iter().zip(&self.finished) {
            row(&format!("finished: {how}"), count);
        }
        row("failed", self.failed);
        row("cut off for lagging", self.lagging);
        row("device faults", self.device_faults);
        row("ended in flight", self.ended_in_flight);
        row("block copies", self.copies);
        row("answered from logits", self.answered);
        row("rows cut", self.cut_rows);
        row("blocks evicted", self.evicted_blocks);
        row("tokens guessed", self.guessed);
        row("tokens guessed right", self.guessed_right);
        row("batches planned ahead", self.planned_ahead);
        row("rows of ended requests", self.wasted_rows);
        row("batches lost behind", self.lost_behind);
        row("sleeps", self.slept);
        row("policy faults", self.policy_faults);
        row("starvation faults", self.starvation_faults);
        let changes = ["swap", "canary", "promotion", "rollback", "fault", "verdict"];
        for (how, &count) in changes.iter().zip(&self.changes) {
            row(&format!("policy changed: {how}"), count);
        }
        row("shadows", self.shadows);
        rows
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.requests, other.requests),
            (&mut self.started, other.started),
            (&mut self.tokens, other.tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.preempted, other.preempted),
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
