//! The calls a shadow gets beside the live policy, and how their answers compare.
//!
//! Short comparisons are in the prefix cache's file; the longer ones are here.

use super::Engine;
use super::cache::only_idle;
use crate::guard::Compared;
use crate::ids::{BlockId, Micros, SequenceId};
use crate::policy::{AdmissionRequest, CacheEvents, FaultView, Load, Verdict};
use crate::sequence::Slab;
use crate::trial::DivergenceKind;
use crate::verify::VerifiedPlan;

/// Differences listed in an example.
const SHOWN: usize = 4;

impl Engine {
    /// The scheduler's shadow plans the step that `live` is for; the plan is checked and compared.
    pub(super) fn shadow_schedule(&mut self, live: &VerifiedPlan, now: Micros) {
        if !self.policies.scheduler.has_shadow() {
            return;
        }
        let mut cx = self.outbox.context(self.view.number, now);
        let (view, verifier) = (&self.view, &mut self.step.shadow_verifier);
        let (slab, kv) = (&self.slab, &self.kv);
        self.policies.scheduler.ask_shadow(
            &mut cx,
            |p| {
                verifier.verify(&p.schedule(view)?, view, slab, kv)?;
                let plan = verifier.take();
                let compared = compare(live, &plan, slab);
                verifier.give_back(plan);
                Ok(compared)
            },
            || FaultView::Schedule(Box::new(view.clone())),
        );
    }

    pub(super) fn shadow_admit(
        &mut self,
        request: &AdmissionRequest,
        load: &Load,
        live: &Verdict,
        now: Micros,
    ) {
        let mut cx = self.outbox.context(self.view.number, now);
        self.policies.admission.ask_shadow(
            &mut cx,
            |p| {
                let [live, shadow] = [live, &p.admit(request, load)?].map(verdict_name);
                let words = |verdict: &&str| format!("{verdict} request {}", request.id.0);
                Ok(Compared::of(DivergenceKind::Verdict, &live, &shadow, words))
            },
            || FaultView::Admit(*request, *load),
        );
    }

    /// `live` is what the live policy drops, if it received the same events.
    pub(super) fn shadow_observe(&mut self, events: &CacheEvents, live: Option<&Vec<BlockId>>, now: Micros) {
        if events.is_empty() {
            return;
        }
        let events = CacheEvents { memory: self.kv.blocks.memory(), ..events.clone() };
        let mut cx = self.outbox.context(self.view.number, now);
        let blocks = &self.kv.blocks;
        self.policies.prefix.ask_shadow(
            &mut cx,
            |p| {
                let names = p.observe_all(&events).and_then(|names| only_idle(blocks, names))?;
                let Some(live) = live.filter(|live| !(live.is_empty() && names.is_empty())) else {
                    return Ok(Compared::Told);
                };
                Ok(Compared::of(DivergenceKind::Drop, live, &names, |names| block_names("drops", names)))
            },
            || FaultView::Observe(Box::new(events.clone())),
        );
    }
}

fn verdict_name(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Admit => "admits",
        Verdict::Wait => "holds",
        Verdict::WaitTenant => "holds the tenant of",
        Verdict::Refuse(_) => "refuses",
    }
}

/// Blocks in a sentence.
pub(super) fn block_names(verb: &str, names: &[BlockId]) -> String {
    list(verb, "no block", names.iter().map(|b| b.0.to_string()).collect())
}

/// Compares which sequences two plans run, with how many tokens, and which they preempt. Their order, which
/// matters only if memory is short, is not compared.
fn compare(live: &VerifiedPlan, shadow: &VerifiedPlan, slab: &Slab) -> Compared {
    let rows = [live, shadow].map(|plan| {
        let mut rows: Vec<_> = plan.rows().iter().map(|row| (slab[row.ix].id, row.tokens)).collect();
        rows.sort_unstable();
        rows
    });
    let ids = rows.each_ref().map(|rows| rows.iter().map(|&(id, _)| id).collect::<Vec<_>>());
    let preempted = [live, shadow].map(|plan| {
        let mut ids: Vec<_> = plan.preempt().iter().map(|&ix| slab[ix].id).collect();
        ids.sort_unstable();
        ids
    });
    if ids[0] != ids[1] {
        let words = |own: &[SequenceId], other: &[SequenceId]| names("also runs", own, other);
        return differ(DivergenceKind::Run, &ids, words);
    }
    if rows[0] != rows[1] {
        let words = |own: &[(SequenceId, u32)], other: &[(SequenceId, u32)]| {
            let others = own.iter().filter(|row| !other.contains(row));
            list("gives", "nothing else", others.map(|(id, n)| format!("{} {n} tokens", id.0)).collect())
        };
        return differ(DivergenceKind::Tokens, &rows, words);
    }
    if preempted[0] != preempted[1] {
        let words = |own: &[SequenceId], other: &[SequenceId]| names("also preempts", own, other);
        return differ(DivergenceKind::Preempt, &preempted, words);
    }
    Compared::Same
}

fn differ<T>(kind: DivergenceKind, sides: &[Vec<T>; 2], words: impl Fn(&[T], &[T]) -> String) -> Compared {
    let [live, shadow] = sides;
    Compared::Differs { kind, live: words(live, shadow), shadow: words(shadow, live) }
}

/// Ids that only one side names.
fn names(verb: &str, own: &[SequenceId], other: &[SequenceId]) -> String {
    let others = own.iter().filter(|id| other.binary_search(id).is_err());
    list(verb, "nothing else", others.map(|id| id.0.to_string()).collect())
}

fn list(verb: &str, nothing: &str, mut items: Vec<String>) -> String {
    if items.is_empty() {
        return format!("{verb} {nothing}");
    }
    let more = items.len().saturating_sub(SHOWN);
    items.truncate(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{verb} {}{more}", items.join(", "))
}
