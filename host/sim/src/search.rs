//! The highest load that policies sustain: requests arrive faster and faster, until too few of them meet the latency
//! targets. DistServe (Zhong et al. 2024, section 2.2) calls the rate at that point the goodput of a system.
//!
//! A search runs one load after the other. It doubles or halves the load until it has one that is sustained and one
//! that is not, and then halves the distance between the two, on a logarithmic scale.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde::Serialize;

use crate::compare::{Cell, Full, Pace, Planned, Progress, Sweep, in_parallel};
use crate::metrics::Outcome;

/// A search ends when the load that is not sustained is at most this much higher than the one that is.
const CLOSE: f64 = 1.02;
/// Loads at which a search gives up, as multiples of the one it began with.
const REACH: f64 = 64.0;

/// What is known of where the highest load is that is sustained.
#[derive(Clone, Copy, Debug)]
pub struct Bracket {
    /// The highest load so far that was sustained.
    pub sustained: Option<f64>,
    /// The lowest load so far that was not.
    pub beyond: Option<f64>,
    /// Loads at which the search gives up.
    pub limits: (f64, f64),
    /// It ends when `beyond` is at most this many times `sustained`; more than 1.
    pub close: f64,
}

impl Bracket {
    /// Takes note of a load that was run.
    pub fn saw(&mut self, load: f64, sustained: bool) {
        *(if sustained { &mut self.sustained } else { &mut self.beyond }) = Some(load);
    }

    /// The load to run next, once one was run: twice or half the last until there is one of both kinds, then one between
    /// them. `None` at the end.
    pub fn next(&self) -> Option<f64> {
        let (least, most) = self.limits;
        match (self.sustained, self.beyond) {
            (Some(low), Some(high)) => (high > self.close * low).then(|| (low * high).sqrt()),
            (Some(low), None) => (low < most).then(|| (2.0 * low).min(most)),
            (None, Some(high)) => (high > least).then(|| (high / 2.0).max(least)),
            (None, None) => None,
        }
    }
}

/// Searches to make: one for every contender on every host with every subject and every seed.
pub struct Search<'a> {
    /// What is run. A search begins at the first pace or load of its subject.
    pub sweep: Sweep<'a>,
    /// Fraction of the requests that must meet the targets for a load to be sustained.
    pub share: f64,
}

/// The result of a search.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The run at the highest load that was sustained; `None` if not even the lowest was.
    pub sustained: Option<Cell>,
    /// The run at the lowest load that was not sustained; `None` if even the highest was.
    pub beyond: Option<Cell>,
    /// The run that could not be made, which ended the search; the others are then `None`.
    pub failed: Option<Cell>,
    /// All loads that were run, from low to high.
    pub probes: Vec<Probe>,
}

/// A load, and how many requests met the targets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Probe {
    /// As in [`Cell`].
    pub load: f64,
    /// As in [`Cell`].
    pub offered_per_second: Option<f64>,
    /// Fraction of the requests that met the targets.
    pub share: f64,
}

impl Found {
    /// A run of the search, which names its subject, host and contender.
    ///
    /// # Panics
    /// Never for the result of a search, which runs at least one load.
    pub fn any(&self) -> &Cell {
        let runs = [&self.failed, &self.sustained, &self.beyond];
        runs.into_iter().flatten().next().expect("at least one load was run")
    }

    /// The result of the run at the highest load that was sustained.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.sustained.as_ref()?.outcome.as_ref().ok()
    }

    /// What keeps the load from being higher: what most of the requests missed that missed the targets beyond it.
    pub fn limit(&self) -> Option<&'static str> {
        self.beyond.as_ref()?.outcome.as_ref().ok()?.targets.limit()
    }
}

impl Search<'_> {
    /// Makes all searches; the results are ordered by subject, then host, then contender, then seed. One whose contender
    /// can't be created, or whose trace can't be replayed, fails and leaves the others alone. Calls `progress`
    /// regularly, with searches in place of runs.
    pub fn run(&self, progress: impl Fn(Progress) + Sync) -> Vec<Found> {
        let sweep = &self.sweep;
        let mut plan = Vec::new();
        for (subject, traffic) in sweep.subjects.iter().enumerate() {
            let Some(&pace) = traffic.paces().first() else { continue };
            for entrant in 0..sweep.entrants() {
                plan.extend(sweep.seeds.iter().map(|&seed| Planned { subject, pace, entrant, seed }));
            }
        }
        let full: Vec<Full> = sweep.subjects.iter().map(|_| Full::default()).collect();
        let (done, ended) = (AtomicUsize::new(0), AtomicU64::new(0));
        let report = |more: u64, done_more: usize| {
            let requests = (ended.fetch_add(more, Ordering::Relaxed) + more, None);
            let done = done.fetch_add(done_more, Ordering::Relaxed) + done_more;
            progress(Progress { runs: (done, plan.len()), requests });
        };
        in_parallel(sweep.threads, plan.len(), |at| {
            let planned = plan[at];
            let (subject, full) = (&sweep.subjects[planned.subject], &full[planned.subject]);
            let run = |pace| {
                let planned = Planned { pace, ..planned };
                let mut cell = sweep.watched(at, planned, full, &|more| report(more, 0), &());
                if cell.outcome.is_ok() && cell.offered_per_second.is_none() {
                    // A load of a trace is a factor, which says nothing without the rate that it was recorded at.
                    cell.offered_per_second = subject.recorded_at(cell.load, full);
                }
                cell
            };
            let found = self.search(planned.pace, run);
            report(0, 1);
            found
        })
    }

    /// Searches from `pace` on.
    fn search(&self, mut pace: Pace, run: impl Fn(Pace) -> Cell) -> Found {
        let mut found = Found { sustained: None, beyond: None, failed: None, probes: Vec::new() };
        let mut bracket: Option<Bracket> = None;
        loop {
            let cell = run(pace);
            let Ok(outcome) = &cell.outcome else {
                return Found { sustained: None, beyond: None, failed: Some(cell), ..found };
            };
            let share = outcome.targets.share();
            found.probes.push(Probe { load: cell.load, offered_per_second: cell.offered_per_second, share });
            let sustained = share >= self.share;
            let limits = (cell.load / REACH, cell.load * REACH);
            let bracket =
                bracket.get_or_insert(Bracket { sustained: None, beyond: None, limits, close: CLOSE });
            bracket.saw(cell.load, sustained);
            *(if sustained { &mut found.sustained } else { &mut found.beyond }) = Some(cell);
            let Some(load) = bracket.next() else { break };
            pace = Pace::Load(load);
        }
        found.probes.sort_by(|a, b| a.load.total_cmp(&b.load));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Attainment;
    use crate::report::MadeBy;
    use crate::report::tests::cell;

    /// Searches where the share of requests that meet the targets is `of` the load.
    fn found(goal: f64, of: impl Fn(f64) -> f64) -> Found {
        let sweep = Sweep {
            hosts: Vec::new(),
            contenders: Vec::new(),
            subjects: Vec::new(),
            seeds: Vec::new(),
            threads: 1,
            made_by: MadeBy::default(),
        };
        Search { sweep, share: goal }.search(Pace::Load(0.8), |pace| {
            let Pace::Load(load) = pace else { panic!("it began with a load") };
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of 10,000")]
            let met = (of(load) * 10_000.0) as u64;
            let targets = Attainment { met, slow: 10_000 - met, ..Attainment::default() };
            let mut cell = cell(0, 0, Outcome { requests: 10_000, targets, ..Outcome::default() });
            cell.load = load;
            cell
        })
    }

    #[test]
    fn finds_the_edge_wherever_it_is() {
        for edge in [0.02, 0.3, 0.8, 0.9, 1.0, 3.7, 40.0] {
            let found = found(0.9, |load| if load <= edge { 0.95 } else { 0.5 });
            let (low, high) = (found.sustained.as_ref().unwrap().load, found.beyond.as_ref().unwrap().load);
            assert!(low <= edge && edge < high && high <= CLOSE * low, "{edge}: {low} {high}");
            assert!(found.probes.len() < 20, "{edge}: {:?}", found.probes);
            assert!(found.probes.is_sorted_by(|a, b| a.load < b.load), "{:?}", found.probes);
            assert_eq!(found.limit(), Some("ITL"));
        }
    }

    #[test]
    fn gives_up_where_nothing_or_everything_is_sustained() {
        let never = found(0.9, |_| 0.89);
        assert!(never.sustained.is_none() && never.beyond.is_some(), "{:?}", never.probes);
        let always = found(0.9, |_| 0.9);
        assert!(always.beyond.is_none() && always.limit().is_none(), "{:?}", always.probes);
        assert!(always.sustained.as_ref().is_some_and(|cell| cell.load >= 50.0), "{:?}", always.probes);
    }
}
