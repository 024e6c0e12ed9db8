//! What every scheduler has to stand, whatever its idea.

use super::{Host, Rng, Spec, check_fit, check_plan, for_seeds, hostile_step, random_spec, random_step};
use crate::{Limits, Micros, Scheduler};

/// Panics unless any scenario comes to its end with nobody left behind, any view gives a plan that
/// keeps the rules and fits, a hostile view gets an answer, and state is taken back or refused.
pub fn check_scheduler<S: Scheduler>(scheduler: impl Fn() -> S) {
    for_seeds(0..300, |rng| run_scenario(rng, &mut scheduler()));
    let mut seasoned = scheduler();
    for_seeds(0..3_000, |rng| {
        let step = random_step(rng);
        let plan = seasoned.schedule(&step);
        check_plan(&step, &plan).unwrap();
        // The last one that is left runs even where memory says that it can't.
        if step.running.len() - plan.preempt.len() != 1 {
            check_fit(&step, &plan).unwrap();
        }
    });
    for_seeds(0..2_000, |rng| {
        let plan = seasoned.schedule(&hostile_step(rng));
        assert_eq!(plan.run.len(), plan.tokens.len());
    });
    let state = seasoned.export_state();
    scheduler().import_state(&state).expect("a policy takes its own state");
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
    // As with a host, who arrives later has a larger id.
    specs.sort_by_key(|spec| spec.arrived);
    let mut host = Host::new(limits, block_size, blocks);
    host.starvation_bound = Micros::from_millis(u64::from(rng.between(30, 300)));
    let bound = host.starvation_bound;
    let report = host.run(scheduler, &specs).unwrap();
    assert_eq!(report.finished.len(), specs.len());
    assert_eq!(report.cut, 0, "what is planned fits");
    assert_eq!(report.longest_pause, 0, "nobody holds blocks and stands still");
    assert!(report.longest_overtaken <= bound, "{:?} of {bound:?}", report.longest_overtaken);
}
