//! Checks a scheduler's plan before anything acts on it.
//!
//! Only this file can make a `VerifiedPlan`, and the allocator takes nothing else. Whether the plan fits in
//! memory is deliberately not checked: such a plan is cut, not faulted.

use std::fmt::Write as _;

use crate::config::Limits;
use crate::ids::{Micros, SequenceId};
use crate::kv::Kv;
use crate::policy::{FaultKind, Plan, PolicyFault, StepView};
use crate::sequence::{SeqIx, Slab};

/// A plan whose ids are known and runnable, whose tokens exist to be computed, and that keeps every limit.
/// Fitting in memory is not part of the promise.
#[derive(Debug, Default)]
pub(crate) struct VerifiedPlan {
    rows: Vec<PlannedRow>,
    preempt: Vec<SeqIx>,
    wake: Micros,
}

/// One row of a verified plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedRow {
    pub ix: SeqIx,
    /// Tokens to compute; 0 if kept logits are used.
    pub tokens: u32,
    /// Whether it waits now.
    pub starts: bool,
    /// Draft tokens that the engine adds.
    pub guesses: u32,
}

impl VerifiedPlan {
    pub fn rows(&self) -> &[PlannedRow] {
        &self.rows
    }

    pub fn preempt(&self) -> &[SeqIx] {
        &self.preempt
    }

    pub fn wake(&self) -> Micros {
        self.wake
    }
}

/// Keeps the buffers of plans, and the check that last named each sequence.
#[derive(Debug, Default)]
pub(crate) struct Verifier {
    plan: VerifiedPlan,
    /// The number of the check that last named a slab index.
    named: Vec<u64>,
    check: u64,
}

impl Verifier {
    /// The last plan that passed.
    pub fn take(&mut self) -> VerifiedPlan {
        std::mem::take(&mut self.plan)
    }

    /// Gives the buffers back.
    pub fn give_back(&mut self, plan: VerifiedPlan) {
        self.plan = plan;
    }

    /// Checks the `plan` of a policy that was shown this view; a plan that passes can be taken.
    pub fn verify(&mut self, plan: &Plan, view: &StepView, slab: &Slab, kv: &Kv) -> Result<(), PolicyFault> {
        self.check += 1;
        self.named.resize(self.named.len().max(slab.capacity()), 0);
        self.plan.rows.clear();
        self.plan.preempt.clear();
        self.plan.wake = plan.wake;
        if plan.run.len() != plan.tokens.len() {
            return Err(invalid(|m| {
                write!(m, "{} ids, but {} token counts", plan.run.len(), plan.tokens.len())
            }));
        }
        for &id in &plan.preempt {
            let ix = self.name(id, slab)?;
            if !slab[ix].is_running() {
                return Err(invalid(|m| write!(m, "sequence {} is to be preempted, but does not run", id.0)));
            }
            self.plan.preempt.push(ix);
        }
        let mut sums = Sums::default();
        for (&id, &tokens) in plan.run.iter().zip(&plan.tokens) {
            let ix = self.name(id, slab)?;
            let sequence = &slab[ix];
            if sequence.is_running() && sequence.is_ending() {
                // It was in the view, because it holds a slot and memory until its last token arrives.
                continue;
            }
            let starts = sequence.is_waiting();
            let remaining = if starts {
                sequence.tokens.len() as u32 - kv.reusable_tokens(sequence)
            } else if sequence.is_running() {
                sequence.remaining()
            } else {
                return Err(invalid(|m| write!(m, "sequence {} can't run: it is held or ended", id.0)));
            };
            check_tokens(id, tokens, remaining)?;
            let prefill = tokens > 0 && (remaining > 1 || sequence.drawn() == 0);
            if prefill {
                check_chunk(id, tokens, view.limits.prefill_chunk)?;
            }
            let row = PlannedRow { ix, tokens, starts, guesses: 0 };
            sums.add(row, prefill);
            self.plan.rows.push(row);
        }
        sums.check(&view.limits, (view.running.len() - self.plan.preempt.len()) as u32)
    }

    fn name(&mut self, id: SequenceId, slab: &Slab) -> Result<SeqIx, PolicyFault> {
        let ix = slab.find(id).ok_or_else(|| invalid(|m| write!(m, "no sequence {} is known", id.0)))?;
        let last = std::mem::replace(&mut self.named[ix.0 as usize], self.check);
        if last == self.check {
            return Err(invalid(|m| write!(m, "sequence {} is named twice", id.0)));
        }
        Ok(ix)
    }
}

fn check_tokens(id: SequenceId, tokens: u32, remaining: u32) -> Result<(), PolicyFault> {
    if tokens > remaining {
        return Err(invalid(|m| {
            write!(m, "sequence {} is given {tokens} tokens, but has {remaining} left", id.0)
        }));
    }
    if tokens == 0 && remaining > 0 {
        return Err(invalid(|m| write!(m, "sequence {} is given no tokens, but has {remaining} left", id.0)));
    }
    Ok(())
}

fn check_chunk(id: SequenceId, tokens: u32, most: u32) -> Result<(), PolicyFault> {
    if tokens > most {
        return Err(invalid(|m| {
            write!(m, "sequence {} is given a chunk of {tokens} tokens, over {most}", id.0)
        }));
    }
    Ok(())
}

/// What a plan adds up to.
#[derive(Default)]
struct Sums {
    tokens: u64,
    prefill_tokens: u64,
    prefills: u32,
    starts: u32,
}

impl Sums {
    fn add(&mut self, row: PlannedRow, prefill: bool) {
        self.tokens += u64::from(row.tokens);
        self.starts += u32::from(row.starts);
        if prefill {
            self.prefills += 1;
            self.prefill_tokens += u64::from(row.tokens);
        }
    }

    fn check(&self, limits: &Limits, running: u32) -> Result<(), PolicyFault> {
        let running = running + self.starts;
        for (what, value, most) in [
            ("tokens", self.tokens, limits.max_batch_tokens),
            ("prompt tokens", self.prefill_tokens, limits.max_prefill_tokens),
            ("prompts", u64::from(self.prefills), limits.max_prefill_sequences),
            ("running sequences", u64::from(running), limits.max_running),
        ] {
            if value > u64::from(most) {
                return Err(invalid(|m| write!(m, "the plan has {value} {what}, over {most}")));
            }
        }
        Ok(())
    }
}

fn invalid(write: impl FnOnce(&mut String) -> std::fmt::Result) -> PolicyFault {
    let mut message = String::new();
    write(&mut message).expect("a string takes everything");
    PolicyFault::new(FaultKind::InvalidDecision, message)
}
