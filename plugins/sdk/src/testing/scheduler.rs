//! Requirements of every scheduler, whatever its idea.

use super::{Host, Rng, Spec, check_fit, check_plan, for_seeds, hostile_step, random_spec, random_step};
use crate::{Limits, Micros, Scheduler, Step};

/// Panics unless any scenario ends with no sequence left behind, any view gives a plan that keeps the rules
/// and fits, equal views give equal plans, a hostile view gets an answer, and state is imported or refused.
pub fn check_scheduler<S: Scheduler>(scheduler: impl Fn() -> S) {
    for_seeds(0..300, |rng| run_scenario(rng, &mut scheduler()));
    let mut twins = [scheduler(), scheduler()];
    let mut decide = |step: &Step| {
        let [plan, other] = twins.each_mut().map(|twin| twin.schedule(step));
        assert_eq!(plan, other, "alike views, different plans");
        plan
    };
    for_seeds(0..3_000, |rng| {
        let step = random_step(rng);
        let plan = decide(&step);
        check_plan(&step, &plan).unwrap();
        // A last sequence runs even if memory seems too small for it.
        if step.running.len() - plan.preempt.len() != 1 {
            check_fit(&step, &plan).unwrap();
        }
    });
    for_seeds(0..2_000, |rng| {
        let plan = decide(&hostile_step(rng));
        assert_eq!(plan.run.len(), plan.tokens.len());
    });
    let state = twins[0].export_state();
    scheduler().import_state(&state).expect("a policy imports its own state");
    for_seeds(0..300, |rng| {
        let garbage: Vec<u8> = (0..rng.between(1, 200)).map(|_| rng.next_u64() as u8).collect();
        let mut cold = scheduler();
        if cold.import_state(&garbage).is_ok() {
            run_scenario(rng, &mut cold);
        }
    });
}

/// Arrivals, lengths, pools and limits of any kind, under a watchdog of little patience.
fn run_scenario(rng: &mut Rng, scheduler: &mut impl Scheduler) {
    let block_size = rng.between(1, 16);
    let blocks = rng.between(6, 60);
    let limits = Limits {
        max_batch_tokens: rng.between(4, 128),
        max_running: rng.between(1, 8),
        prefill_chunk: rng.between(1, 64),
        max_prefill_sequences: rng.between(1, 8),
        max_prefill_tokens: rng.between(1, 128),
    };
    let mut specs: Vec<Spec> =
        (0..rng.between(1, 24)).map(|_| random_spec(rng, block_size * blocks)).collect();
    // As on a host, later arrivals have larger ids.
    specs.sort_by_key(|spec| spec.arrived);
    let mut host = Host::new(limits, block_size, blocks);
    host.starvation_bound = Micros::from_millis(u64::from(rng.between(30, 300)));
    let bound = host.starvation_bound;
    let report = host.run(scheduler, &specs).unwrap();
    assert_eq!(report.finished.len(), specs.len());
    assert_eq!(report.cut, 0, "what is planned fits");
    assert_eq!(report.longest_pause, 0, "a running sequence holds blocks and stands still");
    let longest = report.longest_overtaken;
    assert!(longest <= bound, "a sequence is overtaken for {longest:?}, the bound is {bound:?}");
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{NoConfig, Plan, Planner, Policy, Starts};

    /// First come, first served; `mode` adds something that no scheduler may do.
    #[derive(Default)]
    struct Wrong {
        mode: &'static str,
        nth: u32,
        starts: Starts,
    }

    impl Policy for Wrong {
        type Config = NoConfig;
        const NAME: &'static str = "wrong";
        const VERSION: &'static str = "0.1.0";
        const DESCRIPTION: &'static str = "Breaks one rule.";

        fn new(_config: NoConfig) -> Result<Self, String> {
            Ok(Self::default())
        }

        fn export_state(&mut self) -> Vec<u8> {
            if self.mode == "refuses its own state" { vec![1] } else { Vec::new() }
        }
    }

    impl Scheduler for Wrong {
        fn schedule(&mut self, step: &Step) -> Plan {
            let mut planner = Planner::new(step);
            if planner.go_on() == 0 {
                let mut order: Vec<_> = step.waiting.iter().collect();
                if self.mode == "latest first" {
                    order.sort_by_key(|waiting| u32::MAX - waiting.preemptions());
                    let first = order.iter().take_while(|waiting| waiting.preemptions() > 0).count();
                    order[first..].reverse();
                }
                self.starts.start(order, step, &mut planner);
            }
            let mut plan = planner.finish();
            let last_runs = plan.run.last().is_some_and(|id| step.running.id.contains(&id.0));
            match self.mode {
                "idle" => plan = Plan::default(),
                "greedy" if !plan.tokens.is_empty() => plan.tokens[0] += 1,
                "forgetful" if plan.run.len() > 1 && last_runs => {
                    plan.run.pop();
                    plan.tokens.pop();
                }
                "uneven" => plan.tokens.truncate(1),
                "moody" => {
                    let later = Micros::from_millis(1_000 * u64::from(self.nth));
                    plan.wake = plan.wake.min(step.now.plus(later));
                }
                "hoards" => plan = start_without_counting_blocks(step, plan),
                _ => {}
            }
            plan
        }
    }

    fn start_without_counting_blocks(step: &Step, plan: Plan) -> Plan {
        let mut rich = step.clone();
        rich.memory.free_blocks += 1_000;
        let mut planner = Planner::new(&rich);
        // If memory is short without more starts, a sequence that counts is preempted.
        if !plan.preempt.is_empty() {
            return plan;
        }
        planner.go_on();
        for waiting in rich.waiting.iter() {
            if planner.start(waiting, u32::MAX).is_err() {
                break;
            }
        }
        planner.finish()
    }

    fn wrong(mode: &'static str) {
        let made = Cell::new(0);
        check_scheduler(|| {
            made.set(made.get() + 1);
            Wrong { mode, nth: made.get(), starts: Starts::default() }
        });
    }

    #[test]
    fn a_policy_that_keeps_the_rules_passes() {
        wrong("");
    }

    #[test]
    #[should_panic(expected = "nothing runs and nothing will")]
    fn doing_nothing_is_found() {
        wrong("idle");
    }

    #[test]
    #[should_panic(expected = " tokens")]
    fn computing_more_than_there_is_is_found() {
        wrong("greedy");
    }

    #[test]
    #[should_panic(expected = "token counts")]
    fn uneven_columns_are_found() {
        wrong("uneven");
    }

    #[test]
    #[should_panic(expected = "stands still")]
    fn leaving_a_running_one_out_is_found() {
        wrong("forgetful");
    }

    #[test]
    #[should_panic(expected = "a sequence is overtaken")]
    fn overtaking_for_ever_is_found() {
        wrong("latest first");
    }

    #[test]
    #[should_panic(expected = "what is planned fits")]
    fn planning_beyond_memory_is_found() {
        wrong("hoards");
    }

    #[test]
    #[should_panic(expected = "alike views")]
    fn unequal_answers_to_equal_calls_are_found() {
        wrong("moody");
    }

    #[test]
    #[should_panic(expected = "imports its own state")]
    fn refusing_its_own_state_is_found() {
        wrong("refuses its own state");
    }
}
