//! Plays seed after seed on several threads. The report depends on the arguments alone: seeds are counted in
//! their order, whichever finishes first. A clock only serves to name a seed that hangs.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::generate::generate;
use super::machine::{Checks, Outcome, Outsider, Violation, play};
use super::report::Reached;

/// Seeds that may be begun from the first one on that is not finished. The results of those behind it are kept.
const LEAD: u64 = 256;
/// A seed takes milliseconds: one that takes longer than this hangs.
const LATE: Duration = Duration::from_secs(30);
/// How often the hunt looks for such seeds.
const LOOK: Duration = Duration::from_secs(1);

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
    /// For `progress` only: a seed that has been played for half a minute. It may never end, and then the hunt
    /// doesn't either: nothing can stop it.
    pub late: Option<u64>,
}

#[derive(Default)]
struct Books {
    summary: Summary,
    /// Finished seeds that wait for one before them.
    ahead: BTreeMap<u64, Result<Outcome, Violation>>,
    /// Seeds that are being played, and since when.
    playing: BTreeMap<u64, Instant>,
    /// The seed that is counted next, and the one that is begun next.
    next: u64,
    begun: u64,
    /// No more seeds are begun.
    over: bool,
    /// Threads at work.
    workers: usize,
}

impl Books {
    /// The first seed that has been played for too long, counted from the hunt's first.
    fn late(&self) -> Option<u64> {
        self.playing.iter().find(|(_, since)| since.elapsed() >= LATE).map(|(&at, _)| at)
    }
}

/// What the threads of a hunt share.
struct Desk {
    books: Mutex<Books>,
    /// Seeds were counted, or the hunt is over.
    settled: Condvar,
    /// A thread has left.
    left: Condvar,
}

impl Desk {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread at work. It leaves even in a panic, so that nobody waits for it.
struct Worker<'a>(&'a Desk);

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        let mut books = self.0.books();
        books.workers -= 1;
        books.over |= std::thread::panicking();
        drop(books);
        self.0.settled.notify_all();
        self.0.left.notify_all();
    }
}

impl Hunt<'_> {
    /// Plays until a bound is reached or a violation is found. `progress` is called after each seed, and every
    /// second while one hangs.
    pub fn run(&self, progress: impl Fn(&Summary) + Sync) -> Summary {
        let workers = self.threads.max(1);
        let over = self.seeds == 0 || self.steps == 0;
        let desk = Desk {
            books: Mutex::new(Books { over, workers, ..Books::default() }),
            settled: Condvar::new(),
            left: Condvar::new(),
        };
        let names: Vec<String> = self.outsiders.iter().map(|outsider| outsider.name.clone()).collect();
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| self.work(&desk, &names, &progress));
            }
            self.watch(&desk, &progress);
        });
        let books = desk.books.into_inner().unwrap_or_else(PoisonError::into_inner);
        Summary { late: None, ..books.summary }
    }

    fn work(&self, desk: &Desk, names: &[String], progress: &impl Fn(&Summary)) {
        let _worker = Worker(desk);
        while let Some(at) = self.begin(desk) {
            let outcome = self.play(self.seed.wrapping_add(at), names);
            let mut books = desk.books();
            books.playing.remove(&at);
            books.ahead.insert(at, outcome);
            if self.settle(&mut books) {
                books.over = true;
            }
            progress(&books.summary);
            desk.settled.notify_all();
        }
    }

    /// The next seed, counted from the first; waits while too many behind an unfinished one have begun. `None`
    /// if the hunt is over.
    fn begin(&self, desk: &Desk) -> Option<u64> {
        let mut books = desk.books();
        while !books.over && books.begun - books.next >= LEAD {
            books = desk.settled.wait(books).unwrap_or_else(PoisonError::into_inner);
        }
        if books.over || books.begun >= self.seeds {
            return None;
        }
        let at = books.begun;
        books.begun += 1;
        books.playing.insert(at, Instant::now());
        Some(at)
    }

    /// Plays a seed on a thread that is named after it: if its stack overflows, which ends the process, the
    /// message names the thread.
    fn play(&self, seed: u64, names: &[String]) -> Result<Outcome, Violation> {
        std::thread::scope(|scope| {
            let case = || play(&generate(seed, self.ops, names), &self.outsiders, self.checks);
            let thread = std::thread::Builder::new().name(format!("seed {seed}"));
            let thread = thread.spawn_scoped(scope, case).expect("the system has room for a thread");
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Reports seeds that hang, until all threads have left.
    fn watch(&self, desk: &Desk, progress: &impl Fn(&Summary)) {
        let mut books = desk.books();
        while books.workers > 0 {
            books = desk.left.wait_timeout(books, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            let late = books.late().map(|at| self.seed.wrapping_add(at));
            books.summary.late = late;
            if late.is_some() {
                progress(&books.summary);
            }
        }
    }

    /// Counts the seeds that are due. True if the hunt is over.
    fn settle(&self, books: &mut Books) -> bool {
        let Books { summary, ahead, next, .. } = books;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_that_hangs_is_late() {
        let mut books = Books::default();
        assert_eq!(books.late(), None);
        let now = Instant::now();
        let before = now.checked_sub(LATE).expect("the clock is old enough");
        books.playing = BTreeMap::from([(3, now), (4, before)]);
        assert_eq!(books.late(), Some(4));
    }
}
