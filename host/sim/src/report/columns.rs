//! Columns of the text and HTML tables. A row is a contender with its results, one per seed, or a named figure.
//!
//! All contenders get the same requests with a seed, so their runs with it are a pair: what differs between two is
//! estimated from the differences within the pairs, which vary far less than the runs of each.

use std::collections::BTreeMap;

use super::interval::Estimate;
use crate::compare::Cell;
use crate::metrics::{Outcome, TenantOutcome, count, present};
use crate::search::Found;

/// A quantity in a table.
pub(super) struct Column<T> {
    pub name: &'static str,
    digits: usize,
    /// `None` if there is no such value, such as the mean of nothing.
    read: fn(&T) -> Option<f64>,
    better: Better,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
    Neither,
}

/// A contender with its results under one workload and load.
pub(super) struct Row<'a, T> {
    pub name: String,
    /// The seeds of the results; none for rows that aren't compared with each other.
    pub seeds: Vec<u64>,
    /// One per seed; `None` if the run failed.
    pub results: Vec<Option<&'a T>>,
    /// Whether it may be the best of a column.
    pub competes: bool,
}

pub(super) const SPEED: [Column<Outcome>; 9] = [
    column("run s", 1, |o| Some(o.seconds), Better::Neither),
    column("out tok/s", 0, |o| Some(o.output_per_second), Better::More),
    column("goodput/s", 2, |o| Some(o.goodput_per_second), Better::More),
    column("in time %", 1, |o| percent(o.in_time), Better::More),
    column("queue mean", 0, |o| present(o.queue_ms.mean), Better::Less),
    column("ttft mean", 0, |o| present(o.ttft_ms.mean), Better::Less),
    column("ttft p50", 0, |o| present(o.ttft_ms.p50), Better::Less),
    column("ttft p95", 0, |o| present(o.ttft_ms.p95), Better::Less),
    column("ttft p99", 0, |o| present(o.ttft_ms.p99), Better::Less),
];

pub(super) const LATENCY: [Column<Outcome>; 7] = [
    column("itl p50", 1, |o| present(o.itl_ms.p50), Better::Less),
    column("itl p95", 1, |o| present(o.itl_ms.p95), Better::Less),
    column("itl p99", 1, |o| present(o.itl_ms.p99), Better::Less),
    column("latency mean", 0, |o| present(o.latency_ms.mean), Better::Less),
    column("latency p50", 0, |o| present(o.latency_ms.p50), Better::Less),
    column("latency p95", 0, |o| present(o.latency_ms.p95), Better::Less),
    column("latency p99", 0, |o| present(o.latency_ms.p99), Better::Less),
];

/// Memory, and how evenly it was shared.
pub(super) const MEMORY: [Column<Outcome>; 13] = [
    column("used %", 1, |o| percent(Some(o.pool.used_mean)), Better::Neither),
    column("used peak %", 1, |o| percent(Some(o.pool.used_peak)), Better::Neither),
    column("cached %", 1, |o| percent(Some(o.pool.cached_mean)), Better::Neither),
    column("cached peak %", 1, |o| percent(Some(o.pool.cached_peak)), Better::Neither),
    column("prefilled %", 1, |o| percent(o.cache.prefilled_ratio), Better::Less),
    column("evicted", 0, |o| Some(count(o.evicted_blocks)), Better::Neither),
    column("came back", 0, |o| Some(count(o.onloaded_blocks)), Better::Neither),
    column("preempted", 0, |o| Some(count(o.preemptions)), Better::Neither),
    column("refused", 0, |o| Some(count(o.refused)), Better::Neither),
    column("failed", 0, |o| Some(count(o.failed)), Better::Neither),
    column("service gap", 0, |o| Some(o.service_gap), Better::Less),
    column("jain service", 3, |o| o.fairness.service, Better::More),
    column("jain latency", 3, |o| o.fairness.latency, Better::More),
];

/// The prefix cache.
pub(super) const CACHE: [Column<Outcome>; 9] = [
    column("hits %", 1, |o| percent(Some(o.cache.hit_rate)), Better::More),
    column("conversational %", 1, |o| percent(Some(o.cache.conversational_rate)), Better::More),
    column("cross-request %", 1, |o| percent(Some(o.cache.cross_request_rate)), Better::More),
    column("full %", 1, |o| percent(Some(o.cache.full_rate)), Better::Neither),
    column("diverged %", 1, |o| percent(Some(o.cache.diverged_rate)), Better::Neither),
    column("cached tokens", 0, |o| o.cache.mean_cached, Better::More),
    column("prefilled tokens", 0, |o| o.cache.mean_prefilled, Better::Less),
    column("ttft hits", 0, |o| o.cache.hit_ttft_ms, Better::Less),
    column("ttft misses", 0, |o| o.cache.miss_ttft_ms, Better::Less),
];

/// The highest load that was sustained.
pub(super) const SUSTAINED: [Column<Found>; 8] = [
    column("requests/s", 2, |f| f.sustained.as_ref()?.offered_per_second, Better::More),
    column("load", 2, |f| Some(f.sustained.as_ref()?.load), Better::More),
    column("out tok/s", 0, |f| Some(f.outcome()?.output_per_second), Better::More),
    column("in targets %", 1, |f| percent(Some(f.outcome()?.targets.share())), Better::Neither),
    column("ttft p50", 0, |f| present(f.outcome()?.ttft_ms.p50), Better::Neither),
    column("ttft p99", 0, |f| present(f.outcome()?.ttft_ms.p99), Better::Neither),
    column("itl p50", 1, |f| present(f.outcome()?.itl_ms.p50), Better::Neither),
    column("itl p99", 1, |f| present(f.outcome()?.itl_ms.p99), Better::Neither),
];

/// One tenant's part of a run.
pub(super) const TENANT: [Column<TenantOutcome>; 17] = [
    column("finished", 0, |t| Some(count(t.finished)), Better::Neither),
    column("refused", 0, |t| Some(count(t.refused)), Better::Neither),
    column("out tok/s", 0, |t| Some(t.output_per_second), Better::Neither),
    column("ttft mean", 0, |t| present(t.ttft_ms.mean), Better::Neither),
    column("ttft p50", 0, |t| present(t.ttft_ms.p50), Better::Neither),
    column("ttft p95", 0, |t| present(t.ttft_ms.p95), Better::Neither),
    column("ttft p99", 0, |t| present(t.ttft_ms.p99), Better::Neither),
    column("cached %", 1, |t| percent(t.cached_ratio), Better::Neither),
    column("goodput/s", 2, |t| Some(t.goodput_per_second), Better::Neither),
    column("in targets %", 1, |t| percent(Some(t.goodput_share)), Better::Neither),
    column("in time %", 1, |t| percent(t.in_time), Better::Neither),
    column("queue mean", 0, |t| present(t.queue_ms.mean), Better::Neither),
    column("itl p50", 1, |t| present(t.itl_ms.p50), Better::Neither),
    column("itl p99", 1, |t| present(t.itl_ms.p99), Better::Neither),
    column("latency mean", 0, |t| present(t.latency_ms.mean), Better::Neither),
    column("latency p99", 0, |t| present(t.latency_ms.p99), Better::Neither),
    column("preempted", 0, |t| Some(count(t.preemptions)), Better::Neither),
];

const fn column<T>(
    name: &'static str,
    digits: usize,
    read: fn(&T) -> Option<f64>,
    better: Better,
) -> Column<T> {
    Column { name, digits, read, better }
}

fn percent(share: Option<f64>) -> Option<f64> {
    share.map(|share| 100.0 * share)
}

impl<T> Column<T> {
    /// Its value in a row.
    pub fn value(&self, row: &Row<'_, T>) -> Option<Estimate> {
        row.value(self.read)
    }

    /// The number of a row's results that have it.
    pub fn values(&self, row: &Row<'_, T>) -> usize {
        row.results.iter().flatten().filter(|result| (self.read)(result).is_some()).count()
    }

    /// Whether less or more of it is better.
    pub fn better(&self) -> Option<&'static str> {
        match self.better {
            Better::Less => Some("less"),
            Better::More => Some("more"),
            Better::Neither => None,
        }
    }

    /// Whether it says anything: a row has a value that isn't zero. Where more is better, zero is a result, too.
    pub fn is_telling(&self, rows: &[Row<'_, T>]) -> bool {
        let tells = |value: Estimate| value.mean != 0.0 || self.better == Better::More;
        rows.iter().any(|row| self.value(row).is_some_and(tells))
    }

    /// Whether any row differs from one of them.
    pub fn differs(&self, rows: &[Row<'_, T>], from: &Row<'_, T>) -> bool {
        rows.iter().any(|row| self.difference(row, from).is_some_and(|difference| !difference.is_zero()))
    }

    /// How much more a row has than another one, with the same seeds.
    pub fn difference(&self, row: &Row<'_, T>, from: &Row<'_, T>) -> Option<Estimate> {
        row.difference(from, self.read)
    }

    /// The text of the column in a row.
    pub fn shown(&self, row: &Row<'_, T>) -> String {
        self.text(self.value(row))
    }

    /// The text of a row's difference from another one.
    pub fn shown_difference(&self, row: &Row<'_, T>, from: &Row<'_, T>) -> String {
        let difference = self.difference(row, from);
        let sign = if difference.is_some_and(|difference| difference.mean > 0.0) { "+" } else { "" };
        format!("{sign}{}", self.text(difference))
    }

    fn text(&self, estimate: Option<Estimate>) -> String {
        let digits = self.digits;
        match estimate {
            Some(Estimate { mean, margin: Some(margin) }) => format!("{mean:.digits$} ±{margin:.digits$}"),
            Some(Estimate { mean, margin: None }) => format!("{mean:.digits$}"),
            None => "-".to_owned(),
        }
    }

    /// Whether a row is the best: the 95 % confidence interval of its difference from each rival is on the better side
    /// of zero, or the two are equal with every seed, and not all are. So one seed shows no best. Rows without a value
    /// don't compete, and one that can't be compared with a rival isn't the best.
    pub fn is_best(&self, row: &Row<'_, T>, rows: &[Row<'_, T>]) -> bool {
        if !row.competes || self.value(row).is_none() {
            return false;
        }
        let mut differs = false;
        for rival in rows.iter().filter(|rival| rival.competes && self.value(rival).is_some()) {
            let lead = match self.better {
                Better::Less => self.difference(rival, row),
                Better::More => self.difference(row, rival),
                Better::Neither => None,
            };
            match lead {
                Some(lead) if lead.is_positive() => differs = true,
                Some(lead) if lead.is_zero() => {}
                _ => return false,
            }
        }
        differs
    }
}

impl<T> Row<'_, T> {
    /// What `read` finds in the results.
    pub fn value(&self, read: fn(&T) -> Option<f64>) -> Option<Estimate> {
        Estimate::of(&self.results.iter().flatten().filter_map(|result| read(result)).collect::<Vec<_>>())
    }

    /// By how much `read` finds more than in another row, in pairs with the same seed. `None` unless both have the same
    /// seeds, and a value with each.
    fn difference(&self, from: &Self, read: fn(&T) -> Option<f64>) -> Option<Estimate> {
        if self.seeds.is_empty() || self.seeds != from.seeds {
            return None;
        }
        let pairs = self.results.iter().zip(&from.results);
        let differences = pairs.map(|(own, other)| Some(read((*own)?)? - read((*other)?)?));
        Estimate::of(&differences.collect::<Option<Vec<f64>>>()?)
    }
}

/// The first row, from which the differences of the others are shown, and these; only if they have several seeds.
pub(super) fn compared<'r, 'a, T>(rows: &'r [Row<'a, T>]) -> Option<(&'r Row<'a, T>, &'r [Row<'a, T>])> {
    rows.split_first().filter(|(first, others)| first.seeds.len() > 1 && !others.is_empty())
}

impl Column<f64> {
    /// The column of named figures, of which none is better.
    pub fn figures(unit: &'static str, digits: usize) -> Self {
        column(unit, digits, |figure: &f64| Some(*figure), Better::Neither)
    }
}

impl<'a> Row<'a, f64> {
    /// The row of a named figure.
    pub fn of_figure(name: &str, figure: &'a f64) -> Self {
        Self { name: name.to_owned(), seeds: Vec::new(), results: vec![Some(figure)], competes: false }
    }
}

impl<'a> Row<'a, Outcome> {
    /// The rows of a group: all runs of a workload at a load. A contender competes if all its runs finished requests
    /// and none was left to the built-in.
    pub fn of(group: &'a [Cell]) -> Vec<Self> {
        let row = |cells: &'a [Cell]| {
            let results: Vec<Option<&Outcome>> =
                cells.iter().map(|cell| cell.outcome.as_ref().ok()).collect();
            let is_fair = |outcome: &Outcome| outcome.finished > 0 && outcome.policy_faults == 0;
            let competes = results.iter().all(|outcome| outcome.is_some_and(is_fair));
            let seeds = cells.iter().map(|cell| cell.settings.seed).collect();
            Self {
                name: marked(&cells[0].contender, results.iter().copied().flatten()),
                seeds,
                results,
                competes,
            }
        };
        contenders(group).map(row).collect()
    }
}

impl<'a> Row<'a, Found> {
    /// A row per contender. It competes if all its searches found a load, at which no decision was left to the built-in.
    pub fn of_searches(group: &'a [Found]) -> Vec<Self> {
        let row = |searches: &'a [Found]| {
            let is_fair = |found: &Found| found.outcome().is_some_and(|outcome| outcome.policy_faults == 0);
            Self {
                name: marked(&searches[0].any().contender, searches.iter().filter_map(Found::outcome)),
                seeds: searches.iter().map(|found| found.any().settings.seed).collect(),
                results: searches.iter().map(Some).collect(),
                competes: searches.iter().all(is_fair),
            }
        };
        group.chunk_by(|a, b| a.any().entrant == b.any().entrant).map(row).collect()
    }
}

impl<'a> Row<'a, TenantOutcome> {
    /// A row per contender and tenant, if there are several tenants. None competes: tenants differ in what they ask.
    pub fn of_tenants(group: &'a [Cell]) -> Vec<Self> {
        let mut rows = Vec::new();
        for cells in contenders(group) {
            let mut tenants: BTreeMap<u32, Vec<Option<&TenantOutcome>>> = BTreeMap::new();
            for tenant in cells.iter().filter_map(|cell| cell.outcome.as_ref().ok()).flat_map(|o| &o.tenants)
            {
                tenants.entry(tenant.tenant).or_default().push(Some(tenant));
            }
            if tenants.len() > 1 {
                let row = |(tenant, results): (u32, Vec<Option<&'a TenantOutcome>>)| {
                    let named = results.iter().flatten().find_map(|one| one.name.as_deref());
                    let named = named.map_or_else(String::new, |name| format!(" ({name})"));
                    let name = format!("{}, tenant {tenant}{named}", cells[0].contender);
                    Self { name, seeds: Vec::new(), results, competes: false }
                };
                rows.extend(tenants.into_iter().map(row));
            }
        }
        rows
    }
}

/// A contender's name with a mark if policies failed in any of its runs: the share of the steps that the built-in decided,
/// mean over the runs.
fn marked<'a>(name: &str, outcomes: impl Iterator<Item = &'a Outcome> + Clone) -> String {
    if outcomes.clone().all(|outcome| outcome.policy_faults == 0) {
        return name.to_owned();
    }
    let shares: Vec<f64> = outcomes.map(|outcome| outcome.builtin_share).collect();
    let percent = Estimate::of(&shares).map_or(0.0, |share| 100.0 * share.mean);
    match percent < 0.1 {
        true => format!("{name} (built-in <0.1 %)"),
        false => format!("{name} (built-in {percent:.1} %)"),
    }
}

/// The runs of each contender of a group.
pub(super) fn contenders(group: &[Cell]) -> impl Iterator<Item = &[Cell]> {
    group.chunk_by(|a, b| a.entrant == b.entrant)
}

#[cfg(test)]
mod tests {
    use super::super::tests::cell;
    use super::*;
    use crate::metrics::FirstFault;

    fn named(columns: &'static [Column<Outcome>], name: &str) -> &'static Column<Outcome> {
        columns.iter().find(|column| column.name == name).expect("a column")
    }

    fn best(column: &Column<Outcome>, group: &[Cell]) -> Vec<bool> {
        let rows = Row::of(group);
        rows.iter().map(|row| column.is_best(row, &rows)).collect()
    }

    /// Three runs of each contender, by what it does when everything takes so many times as long.
    fn seeded(contenders: &[&dyn Fn(f64) -> Outcome]) -> Vec<Cell> {
        let mut cells = Vec::new();
        for (entrant, outcome) in contenders.iter().enumerate() {
            for (seed, times) in [(1, 1.0), (2, 1.1), (3, 1.2)] {
                let mut cell = cell(0, entrant, outcome(times));
                cell.settings.seed = seed;
                cells.push(cell);
            }
        }
        cells
    }

    /// Runs of contenders, each with an output rate per seed.
    fn rates(contenders: &[&[f64]]) -> Vec<Cell> {
        let mut cells = Vec::new();
        for (entrant, rates) in contenders.iter().enumerate() {
            for (seed, &output_per_second) in (1..).zip(*rates) {
                let mut cell =
                    cell(0, entrant, Outcome { finished: 5, output_per_second, ..Outcome::default() });
                cell.settings.seed = seed;
                cells.push(cell);
            }
        }
        cells
    }

    #[test]
    fn cell_without_finished_requests_is_never_best() {
        let outcome = |finished, output_per_second, ttft_ms| {
            let mut outcome = Outcome { finished, output_per_second, ..Outcome::default() };
            outcome.ttft_ms.mean = ttft_ms;
            outcome
        };
        let cells =
            seeded(&[&|times| outcome(5, times, 20.0 * times), &|_| outcome(0, 0.0, 0.0), &|times| {
                outcome(3, 2.0 * times, 30.0 * times)
            }]);
        assert_eq!(best(named(&SPEED, "ttft mean"), &cells), [true, false, false]);
        assert_eq!(best(named(&SPEED, "out tok/s"), &cells), [false, false, true]);
        assert_eq!(best(named(&LATENCY, "latency mean"), &cells), [false; 3], "nobody has one");
        let nothing = &Row::of(&cells)[1];
        assert_eq!(named(&SPEED, "ttft mean").shown(nothing), "-", "it is not instant");
    }

    #[test]
    fn cell_without_hits_is_not_best_at_hits() {
        let outcome = |ttft_ms| {
            let mut outcome = Outcome { finished: 5, ..Outcome::default() };
            outcome.cache.hit_ttft_ms = ttft_ms;
            outcome
        };
        let mut cells = seeded(&[&|times| outcome(Some(160.0 * times)), &|_| outcome(None), &|times| {
            outcome(Some(40.0 * times))
        }]);
        let column = named(&CACHE, "ttft hits");
        assert_eq!(best(column, &cells), [false, false, true]);
        assert_eq!(best(column, &cells[..6]), [false, false], "there is nothing to compare with");
        let shown: Vec<String> = Row::of(&cells).iter().map(|row| column.shown(row)).collect();
        assert_eq!(shown, ["176 ±40", "-", "44 ±10"]);
        cells[0].outcome = Ok(outcome(None));
        assert_eq!(best(column, &cells), [false; 3], "with one seed, there is nothing to compare");
    }

    #[test]
    fn contender_whose_policy_or_run_failed_is_never_best() {
        let column = named(&SPEED, "out tok/s");
        let mut cells = rates(&[&[1.0, 1.1], &[3.0, 3.3], &[2.0, 2.2]]);
        assert_eq!(best(column, &cells), [false, true, false]);
        let fault = FirstFault {
            kind: "scheduler",
            policy: "moody".to_owned(),
            message: "trap: it fell over".to_owned(),
            at_s: 2.0,
        };
        let outcome = cells[3].outcome.as_mut().expect("it ran");
        (outcome.policy_faults, outcome.fault) = (1, Some(fault));
        outcome.builtin_share = 0.98;
        assert_eq!(best(column, &cells), [false, false, true], "with one of two seeds, the built-in decided");
        let names = |cells: &[Cell]| Row::of(cells).into_iter().map(|row| row.name).collect::<Vec<_>>();
        assert_eq!(names(&cells), ["a", "b (built-in 49.0 %)", "c"]);
        cells[3].outcome.as_mut().expect("it ran").builtin_share = 0.000_2;
        assert_eq!(names(&cells)[1], "b (built-in <0.1 %)");
        cells[5].outcome = Err("the trace ends in the middle".to_owned());
        assert_eq!(best(column, &cells), [false; 3], "one is left");
    }

    #[test]
    fn best_is_better_in_pairs_however_much_the_seeds_differ() {
        let column = named(&SPEED, "out tok/s");
        let seeds = [10.0, 22.0, 14.0, 90.0, 41.0];
        let ahead = |by: [f64; 5]| -> Vec<f64> { seeds.iter().zip(by).map(|(rate, by)| rate + by).collect() };
        for (by, marks) in [
            ([1.0, 1.1, 1.2, 1.3, 1.0], [false, true]),
            ([-1.0, -1.1, -1.2, -1.3, -1.0], [true, false]),
            ([1.0, 1.1, -1.2, 1.3, 1.0], [false, false]),
            ([0.1, 8.0, 0.1, 0.2, 0.1], [false, false]),
            ([0.0; 5], [false, false]),
        ] {
            let cells = rates(&[&seeds, &ahead(by)]);
            assert_eq!(best(column, &cells), marks, "{by:?}");
        }
        let tied = rates(&[&seeds, &seeds, &ahead([-1.0, -1.1, -1.2, -1.3, -1.0])]);
        assert_eq!(best(column, &tied), [true, true, false], "both are the best");
    }

    #[test]
    fn what_tells_nothing_about_the_spread_marks_no_best() {
        let column = named(&SPEED, "out tok/s");
        assert_eq!(best(column, &rates(&[&[12.0], &[19.0]])), [false, false], "a single seed");
        let trace = rates(&[&[12.0; 4], &[19.0; 4]]);
        assert_eq!(best(column, &trace), [false, false], "runs that are the same with every seed");
        let rows = Row::of(&trace);
        assert_eq!(
            (column.shown(&rows[0]), column.shown_difference(&rows[1], &rows[0])),
            ("12".into(), "+7".into())
        );
    }

    #[test]
    fn only_runs_with_the_same_seeds_are_compared() {
        let column = named(&SPEED, "out tok/s");
        let mut cells = rates(&[&[1.0, 1.1, 1.2], &[3.0, 3.3, 3.6]]);
        assert_eq!(best(column, &cells), [false, true]);
        cells[5].settings.seed = 9;
        assert_eq!(best(column, &cells), [false, false]);
        let rows = Row::of(&cells);
        assert_eq!(column.shown_difference(&rows[1], &rows[0]), "-");
        cells[5].settings.seed = 3;
        cells[4].outcome = Err("the trace ends in the middle".to_owned());
        let rows = Row::of(&cells);
        assert_eq!(column.shown_difference(&rows[1], &rows[0]), "-");
    }

    #[test]
    fn intervals_are_those_of_the_mean_and_of_the_paired_difference() {
        let column = named(&SPEED, "out tok/s");
        let cells = rates(&[&[10.0, 12.0, 14.0], &[30.0, 22.0, 23.0]]);
        let rows = Row::of(&cells);
        let (first, others) = compared(&rows).expect("there are several seeds");
        assert_eq!(column.shown(first), "12 ±5");
        // 20, 10 and 9: mean 13, standard deviation 6.08.
        assert_eq!(column.shown_difference(&others[0], first), "+13 ±15");
        assert_eq!(column.shown_difference(first, &others[0]), "-13 ±15");
        assert!(column.differs(others, first) && !SPEED[0].differs(others, first));
        assert!(compared(&rows[..1]).is_none() && compared(&Row::of(&rates(&[&[1.0], &[2.0]]))).is_none());
    }

    #[test]
    fn contenders_with_equal_names_stay_apart() {
        let mut cells = rates(&[&[1.0, 2.0, 3.0], &[4.0, 4.0, 4.0]]);
        cells.iter_mut().for_each(|cell| cell.contender = "srpt".to_owned());
        let shown: Vec<String> = Row::of(&cells).iter().map(|row| SPEED[1].shown(row)).collect();
        assert_eq!(shown, ["2 ±2", "4"]);
    }
}
