//! Checks of schedulers alone: plans that keep the rules, and no idling without a reason.

use infer_core::Micros;
use infer_core::policy::{PolicyFault, SchedulerPolicy, StepView};
use infer_policy_sdk::testing::{Rng, check_fit, check_plan, hostile_step};

use crate::run::{Run, scene};
use crate::sheet::{Check, Sheet};
use crate::transcript::Exchange;
use crate::views::{consistent, full_house, sdk_plan, step_view};

const CONSISTENT: u64 = 300;
const HOSTILE: u64 = 150;
/// Running and waiting sequences of busy hosts, small and large.
const FULL_HOUSES: [(u32, u32); 4] = [(1, 0), (32, 1_000), (256, 1_000), (1_000, 10_000)];

pub(crate) fn judge_views(policy: &mut dyn SchedulerPolicy, seed: u64, sheet: &mut Sheet) {
    let mut cut = 0u64;
    let steps = (0..CONSISTENT).map(|nth| (nth, consistent(&mut Rng::new(seed.wrapping_add(nth)))));
    let houses = FULL_HOUSES.iter().zip(CONSISTENT..).map(|(&(r, w), nth)| (nth, full_house(r, w)));
    for (nth, step) in steps.chain(houses) {
        let view = step_view(step.clone());
        match policy.schedule(&view) {
            Ok(plan) => {
                let plan = sdk_plan(&plan);
                cut += u64::from(check_fit(&step, &plan).is_err());
                if let Err(rule) = check_plan(&step, &plan) {
                    sheet.fail(Check::Views, || format!("view {nth}: {rule}; it was shown {}", scene(&view)));
                }
            }
            Err(fault) => failed(policy, Check::Views, (nth, &view), &fault, sheet),
        }
    }
    let views = CONSISTENT + FULL_HOUSES.len() as u64;
    let fits = if cut == 0 {
        "all fit in memory".to_owned()
    } else {
        format!("{cut} do not fit in memory and would be cut")
    };
    sheet.done(
        Check::Views,
        format!("{views} views that a host could show, each plan keeps the rules; {fits}"),
    );

    for nth in 0..HOSTILE {
        let view = step_view(hostile_step(&mut Rng::new(seed.wrapping_add(nth))));
        if let Err(fault) = policy.schedule(&view) {
            failed(policy, Check::Hostile, (nth, &view), &fault, sheet);
        }
    }
    sheet
        .done(Check::Hostile, format!("{HOSTILE} views of extreme and contradictory numbers, each answered"));
}

fn failed(
    policy: &mut dyn SchedulerPolicy,
    check: Check,
    (nth, view): (u64, &StepView),
    fault: &PolicyFault,
    sheet: &mut Sheet,
) {
    sheet.fail(check.of_fault(fault.kind), || format!("view {nth}: {fault}; it was shown {}", scene(view)));
    if let Err(fault) = policy.restart() {
        sheet.fail(check, || format!("view {nth}: {fault}"));
    }
}

/// Time in which nothing ran although something would have fitted.
#[derive(Default)]
struct Idling {
    since: Option<Micros>,
    longest: Micros,
    total: Micros,
}

impl Idling {
    fn idle(&mut self, now: Micros) {
        self.since.get_or_insert(now);
    }

    fn busy(&mut self, now: Micros) {
        if let Some(since) = self.since.take() {
            let lasted = Micros(now.since(since).0);
            self.longest = self.longest.max(lasted);
            self.total = Micros(self.total.0 + lasted.0);
        }
    }
}

pub(crate) fn judge_runs(runs: &[Run], sheet: &mut Sheet) {
    let mut idling = Idling::default();
    for run in runs {
        for transcript in &run.transcripts {
            for exchange in &transcript.exchanges {
                let Exchange::Schedule(view, plan) = exchange else { continue };
                let rests = plan.run.is_empty() && plan.preempt.is_empty() && something_fits(view);
                if !rests {
                    idling.busy(view.now);
                    continue;
                }
                idling.idle(view.now);
                if plan.wake == Micros::NEVER {
                    sheet.fail(Check::Idle, || {
                        format!(
                            "run `{}`, step {}: nothing runs although something fits, and no wake is \
                             promised: a host might never call again; it was shown {}",
                            run.name,
                            view.number,
                            scene(view)
                        )
                    });
                }
            }
            idling.since = None;
        }
    }
    let lasted: u64 = runs.iter().map(|run| run.lasted.0).sum();
    if idling.longest > Micros::ZERO {
        sheet.note(
            Check::Idle,
            format!(
                "waits although something fits: at most {} ms in a row, {:.1}% of the time, always with a wake",
                idling.longest.0 / 1_000,
                idling.total.0 as f64 * 100.0 / lasted.max(1) as f64
            ),
        );
    }
    let cut: u64 = runs.iter().map(|run| run.cut_rows).sum();
    let cut = if cut == 0 { String::new() } else { format!("; {cut} planned rows did not fit in memory") };
    sheet.done(Check::Idle, format!("something always ran if something fitted{cut}"));
}

/// Whether the next token of a running sequence, or the whole input of a waiting one, fits in memory.
fn something_fits(view: &StepView) -> bool {
    let size = view.memory.block_size.max(1);
    let available = view.memory.free_blocks.saturating_add(view.memory.cached_blocks);
    let (running, waiting) = (&view.running, &view.waiting);
    let grows = |row: usize| {
        (running.computed_tokens[row] + 1).div_ceil(size).saturating_sub(running.blocks[row]) <= available
    };
    let starts = |row: usize| {
        let known = waiting.prompt_tokens[row] + waiting.generated_tokens[row];
        known.div_ceil(size) - waiting.computed_tokens[row] / size + waiting.idle_blocks[row] <= available
    };
    let place = running.len() < view.limits.max_running as usize;
    (0..running.len()).any(grows) || (place && (0..waiting.len()).any(starts))
}
