//! What schedulers are shown of hits: prefixes that are being computed, and blocks that a start takes or a preemption
//! frees.

use std::sync::{Arc, Mutex};

use infer_core::PrefixEvent;

use crate::common::scripted::{Bench, fcfs, prompt, request, small, started};

#[test]
fn requests_that_arrive_together_see_what_is_being_computed() {
    let shared = prompt(1, 16);
    let with = |seed| shared.iter().copied().chain(prompt(seed, 6)).collect::<Vec<_>>();
    let views = Arc::new(Mutex::new(Vec::new()));
    let seen = views.clone();
    // Starts one at a time, and none that waits for a prefix being computed.
    let mut bench = Bench::scheduled(small(), move |step| {
        let rows = &step.waiting;
        seen.lock().unwrap().push((rows.computed_tokens.clone(), rows.pending_tokens.clone()));
        let mut plan = fcfs(step);
        let keep: Vec<bool> =
            plan.run
                .iter()
                .map(|id| {
                    rows.id.iter().position(|i| *i == id.0).is_none_or(|at| {
                        rows.pending_tokens[at] == 0 && (at == 0 || !step.running.is_empty())
                    })
                })
                .collect();
        let mut kept = keep.iter();
        plan.run.retain(|_| *kept.next().unwrap());
        let mut kept = keep.iter();
        plan.tokens.retain(|_| *kept.next().unwrap());
        Ok(plan)
    });
    let first = bench.submit(request(with(2), 4));
    let second = bench.submit(request(with(3), 4));
    let same = bench.submit(request(with(2), 4));
    bench.run();
    let views = views.lock().unwrap();
    assert_eq!(views[0], (vec![0, 0, 0], vec![0, 0, 0]));
    assert_eq!(
        views[1],
        (vec![16, 16], vec![0, 22]),
        "one block of sixteen is there, the whole prompt will be"
    );
    assert_eq!(started(&bench, first), (PrefixEvent::MissFull, 0, 22));
    assert_eq!(started(&bench, second), (PrefixEvent::CrossRequestHit, 16, 6));
    assert_eq!(started(&bench, same), (PrefixEvent::FullHitNoPrefillNeeded, 22, 0));
}

#[test]
fn the_view_shows_what_starting_takes_and_preempting_frees() {
    let views = Arc::new(Mutex::new(Vec::new()));
    let seen = views.clone();
    let mut bench = Bench::scheduled(small(), move |step| {
        let (r, w) = (&step.running, &step.waiting);
        seen.lock().unwrap().push((r.blocks.clone(), r.freeable_blocks.clone(), w.idle_blocks.clone()));
        Ok(fcfs(step))
    });
    bench.submit(request(prompt(1, 13), 3));
    bench.run();
    views.lock().unwrap().clear();
    let longer: Vec<u32> = prompt(1, 12).into_iter().chain(prompt(2, 3)).collect();
    bench.submit(request(longer.clone(), 8));
    bench.step();
    let other: Vec<u32> = longer[..12].iter().copied().chain(prompt(3, 3)).collect();
    bench.submit(request(other, 8));
    bench.step();
    bench.step();
    let views = views.lock().unwrap();
    assert_eq!(views[0], (vec![], vec![], vec![3]), "three cached blocks without users");
    assert_eq!(views[1], (vec![4], vec![4], vec![0]), "now they have one");
    assert_eq!(views[2], (vec![4, 4], vec![1, 1], vec![]), "three are shared");
}
