//! Whether a policy's answers follow from its calls.
//!
//! The same calls in the same order must get the same answers from any instance: simulations, replays and
//! post-mortems rely on it. An instance with memory is fine, but the report notes that a single view doesn't
//! explain its answer, and what a swap makes it forget. But what it exports it must be able to read.

use infer_core::policy::{AnyPolicy, PolicyKind};

use crate::candidate::Candidate;
use crate::run::Run;
use crate::sheet::{Check, Sheet};
use crate::transcript::Exchange;

/// Calls that are repeated with a fresh instance.
const SAMPLES: usize = 64;

pub(crate) fn judge(candidate: &Candidate, runs: &[Run], sheet: &mut Sheet) {
    let mut repeated = 0;
    for run in runs {
        for transcript in &run.transcripts {
            if let Some((nth, exchange, second)) =
                first_difference(&mut candidate.load(), &transcript.exchanges)
            {
                sheet.fail(Check::Determinism, || {
                    format!(
                        "run `{}`: after the same calls in the same order, another instance answers call {nth}, {}(), \
                         with {second} instead of {}",
                        run.name,
                        exchange.function(),
                        exchange.answer()
                    )
                });
            }
            repeated += transcript.exchanges.len();
        }
    }
    sheet.done(
        Check::Determinism,
        format!("{repeated} calls repeated with a second instance: the same answers"),
    );
    // A prefix-cache policy receives blocks once and has to remember them.
    if candidate.kind != PolicyKind::PrefixCache {
        judge_history(candidate, runs, sheet);
    }
    judge_state(candidate, runs, sheet);
}

/// Position, call with its first answer, and the second answer.
fn first_difference<'a>(
    policy: &mut AnyPolicy,
    exchanges: &'a [Exchange],
) -> Option<(usize, &'a Exchange, String)> {
    exchanges.iter().enumerate().find_map(|(nth, exchange)| {
        let answer = exchange.ask(policy);
        match answer {
            Ok(again) if again == *exchange => None,
            Ok(other) => Some((nth, exchange, other.answer())),
            Err(fault) => Some((nth, exchange, format!("a fault ({fault})"))),
        }
    })
}

fn judge_history(candidate: &Candidate, runs: &[Run], sheet: &mut Sheet) {
    let decisions: Vec<&Exchange> = runs
        .iter()
        .flat_map(Run::exchanges)
        .filter(|exchange| matches!(exchange, Exchange::Schedule(..) | Exchange::Admit(..)))
        .collect();
    let every = decisions.len().div_ceil(SAMPLES).max(1);
    let samples: Vec<_> = decisions.into_iter().step_by(every).collect();
    let mut fresh = candidate.load();
    let forgets = |exchange: &&&Exchange| {
        // It never exported anything, so a restart leaves it without a past.
        let again = fresh.lifecycle().restart().and_then(|()| exchange.ask(&mut fresh));
        again.as_ref() != Ok(**exchange)
    };
    let other = samples.iter().filter(forgets).count();
    if other > 0 {
        sheet.note(
            Check::History,
            format!(
                "it has memory: a fresh instance answers {other} of {} sampled views differently; that is no fault, \
                 `state` tells whether a swap keeps it",
                samples.len()
            ),
        );
    }
    sheet.done(
        Check::History,
        format!("{} sampled views explain its answers without a history", samples.len()),
    );
}

/// The second half of the longest run, answered by an instance that imported the state of the first half.
fn judge_state(candidate: &Candidate, runs: &[Run], sheet: &mut Sheet) {
    let Some(longest) = runs.iter().flat_map(|run| &run.transcripts).max_by_key(|t| t.exchanges.len()) else {
        return;
    };
    let (before, after) = longest.exchanges.split_at(longest.exchanges.len() / 2);
    let mut first = candidate.load();
    if first_difference(&mut first, before).is_some() {
        return; // It isn't deterministic, and was told so.
    }
    let mut second = candidate.load();
    match carry_over(&mut first, &mut second) {
        Err(why) => sheet.fail(Check::State, || why),
        // After a swap it receives the blocks again.
        Ok(bytes) if candidate.kind == PolicyKind::PrefixCache => {
            sheet.done(Check::State, format!("{bytes} bytes carried over in the middle of a run"));
        }
        Ok(bytes) => match first_difference(&mut second, after) {
            Some((nth, exchange, _)) => sheet.note(
                Check::State,
                format!(
                    "a swap makes it forget something: with {bytes} bytes of state carried over, {}() answers \
                     differently {nth} calls later",
                    exchange.function()
                ),
            ),
            None => sheet.done(
                Check::State,
                format!("a swap in the middle of a run, with {bytes} bytes carried over, changes no answer"),
            ),
        },
    }
}

/// Bytes carried over, or why none can be. Whoever refuses an empty state misses nothing.
fn carry_over(first: &mut AnyPolicy, second: &mut AnyPolicy) -> Result<usize, String> {
    let state =
        first.lifecycle().export_state().map_err(|fault| format!("state could not be exported: {fault}"))?;
    let bytes = state.len();
    match second.lifecycle().import_state(&state) {
        Err(fault) if !fault.is_refusal() => {
            Err(format!("another instance fails over the {bytes} bytes of state that it exported: {fault}"))
        }
        Err(refusal) if bytes > 0 => Err(format!(
            "another instance with the same configuration refuses the {bytes} bytes of state that it exported: {}",
            refusal.message
        )),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use infer_core::Micros;
    use infer_core::policy::{FaultKind, Plan, Policy, PolicyFault, PolicyInfo, SchedulerPolicy, StepView};

    use super::*;
    use crate::views::{full_house, step_view};

    /// Shares a counter with its other instances, which no component can: its answers depend on more than its
    /// calls.
    struct Fickle(Arc<AtomicU64>);

    impl Policy for Fickle {
        fn info(&self) -> Arc<PolicyInfo> {
            Arc::default()
        }
    }

    impl SchedulerPolicy for Fickle {
        fn schedule(&mut self, _step: &StepView) -> Result<Plan, PolicyFault> {
            Ok(Plan { wake: Micros(self.0.fetch_add(1, Ordering::Relaxed)), ..Plan::default() })
        }
    }

    /// Exports these bytes and takes none, with this kind of fault.
    struct Unreading(&'static [u8], FaultKind);

    impl Policy for Unreading {
        fn info(&self) -> Arc<PolicyInfo> {
            Arc::default()
        }

        fn export_state(&mut self) -> Result<Vec<u8>, PolicyFault> {
            Ok(self.0.to_vec())
        }

        fn import_state(&mut self, _state: &[u8]) -> Result<(), PolicyFault> {
            Err(PolicyFault::new(self.1, "not mine"))
        }
    }

    impl SchedulerPolicy for Unreading {
        fn schedule(&mut self, _step: &StepView) -> Result<Plan, PolicyFault> {
            Ok(Plan::default())
        }
    }

    #[test]
    fn a_state_that_its_own_policy_cannot_read_is_found_unless_it_is_empty() {
        const STATE: &[u8] = &[1, 2, 3];
        let refuses = "another instance with the same configuration refuses the 3 bytes of state that it exported: not mine";
        let fails = |bytes| {
            let what = "bytes of state that it exported";
            Err(format!("another instance fails over the {bytes} {what}: trap: not mine"))
        };
        for (state, kind, expected) in [
            (STATE, FaultKind::Setup, Err(refuses.to_owned())),
            (STATE, FaultKind::Trap, fails(3)),
            (&[], FaultKind::Setup, Ok(0)),
            (&[], FaultKind::Trap, fails(0)),
        ] {
            let instance = || AnyPolicy::Scheduler(Box::new(Unreading(state, kind)));
            assert_eq!(carry_over(&mut instance(), &mut instance()), expected, "{state:?}");
        }
    }

    #[test]
    fn an_answer_that_depends_on_more_than_its_calls_is_found() {
        let counter = Arc::new(AtomicU64::new(0));
        let instance = || AnyPolicy::Scheduler(Box::new(Fickle(Arc::clone(&counter))));
        let view = Box::new(step_view(full_house(1, 1)));
        let asked = Exchange::Schedule(view, Plan { wake: Micros(0), ..Plan::default() });
        let exchanges = [asked.clone(), asked];
        let found = first_difference(&mut instance(), &exchanges).map(|(nth, ..)| nth);
        assert_eq!(found, Some(1), "the first call repeats the answer, the second doesn't");
    }
}
