//! Plays seed after seed on several threads. The report depends on the arguments alone: seeds are counted in
//! their order, whichever finishes first.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::generate::generate;
use super::machine::{Checks, Outcome, Outsider, Violation, play};
use super::report::Reached;

/// What to play.
pub struct Hunt<'a> {
    /// The first seed.
    pub seed: u64,
    /// At most this many seeds.
    pub seeds: u64,
    /// Until this many steps are done.
    pub steps: u64,
    /// Operations of a case.
    pub ops: usize,
    /// Cases at a time.
    pub threads: usize,
    /// Policies from outside.
    pub outsiders: Vec<Outsider<'a>>,
    /// What is checked.
    pub checks: Checks,
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Seeds played without a violation.
    pub seeds: u64,
    /// Their steps: operations, and turns after them until no request was alive.
    pub steps: u64,
    /// Their batches.
    pub batches: u64,
    /// What happened in them.
    pub reached: Reached,
    /// Depends on everything that happened in them.
    pub fingerprint: u64,
    /// The first seed with a violation, which ends the hunt.
    pub violation: Option<(u64, Violation)>,
}

#[derive(Default)]
struct Books {
    summary: Summary,
    /// Finished seeds that wait for one before them.
    ahead: BTreeMap<u64, Result<Outcome, Violation>>,
    /// The seed that is counted next.
    next: u64,
}

impl Hunt<'_> {
    /// Plays until a bound is reached or a violation is found. `progress` is called after each seed.
    pub fn run(&self, progress: impl Fn(&Summary) + Sync) -> Summary {
        let next = AtomicU64::new(0);
        let over = AtomicBool::new(self.seeds == 0 || self.steps == 0);
        let books = Mutex::new(Books::default());
        let names: Vec<String> = self.outsiders.iter().map(|outsider| outsider.name.clone()).collect();
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        if at >= self.seeds {
                            return;
                        }
                        let case = generate(self.seed.wrapping_add(at), self.ops, &names);
                        let outcome = play(&case, &self.outsiders, self.checks);
                        let mut books = books.lock().expect("no thread panics while it holds the lock");
                        books.ahead.insert(at, outcome);
                        if self.settle(&mut books) {
                            over.store(true, Ordering::Relaxed);
                        }
                        progress(&books.summary);
                    }
                });
            }
        });
        books.into_inner().expect("no thread panics while it holds the lock").summary
    }

    /// Counts the seeds that are due. True if the hunt is over.
    fn settle(&self, books: &mut Books) -> bool {
        let Books { summary, ahead, next } = books;
        while summary.violation.is_none()
            && summary.steps < self.steps
            && let Some(outcome) = ahead.remove(next)
        {
            let seed = self.seed.wrapping_add(*next);
            *next += 1;
            match outcome {
                Err(violation) => summary.violation = Some((seed, violation)),
                Ok(outcome) => {
                    summary.seeds += 1;
                    summary.steps += outcome.steps;
                    summary.batches += outcome.batches;
                    summary.fingerprint = summary.fingerprint.rotate_left(5) ^ outcome.fingerprint;
                    summary.reached.add(&outcome.reached);
                }
            }
        }
        summary.violation.is_some() || summary.steps >= self.steps
    }
}
