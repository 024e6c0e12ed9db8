//! Columns of the text and HTML tables. A row is a contender with its results, one per seed, or a named figure.

use std::collections::BTreeMap;

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
    /// One per seed; `None` if the run failed.
    pub results: Vec<Option<&'a T>>,
    /// Whether it may be the best of a column.
    pub competes: bool,
}

/// The mean over the seeds and, if there are several, the standard deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Value {
    pub mean: f64,
    pub deviation: Option<f64>,
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
pub(super) const MEMORY: [Column<Outcome>; 11] = [
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
pub(super) const TENANT: [Column<TenantOutcome>; 8] = [
    column("finished", 0, |t| Some(count(t.finished)), Better::Neither),
    column("refused", 0, |t| Some(count(t.refused)), Better::Neither),
    column("out tok/s", 0, |t| Some(t.output_per_second), Better::Neither),
    column("ttft mean", 0, |t| present(t.ttft_ms.mean), Better::Neither),
    column("ttft p50", 0, |t| present(t.ttft_ms.p50), Better::Neither),
    column("ttft p95", 0, |t| present(t.ttft_ms.p95), Better::Neither),
    column("ttft p99", 0, |t| present(t.ttft_ms.p99), Better::Neither),
    column("cached %", 1, |t| percent(t.cached_ratio), Better::Neither),
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
    pub fn value(&self, row: &Row<'_, T>) -> Option<Value> {
        row.value(self.read)
    }

    /// Whether it says anything: a row has a value that isn't zero. Where more is better, zero is a result, too.
    pub fn is_telling(&self, rows: &[Row<'_, T>]) -> bool {
        let tells = |value: Value| value.mean != 0.0 || self.better == Better::More;
        rows.iter().any(|row| self.value(row).is_some_and(tells))
    }

    /// The text of the column in a row.
    pub fn shown(&self, row: &Row<'_, T>) -> String {
        let digits = self.digits;
        match self.value(row) {
            Some(Value { mean, deviation: Some(deviation) }) => {
                format!("{mean:.digits$} ±{deviation:.digits$}")
            }
            Some(Value { mean, deviation: None }) => format!("{mean:.digits$}"),
            None => "-".to_owned(),
        }
    }

    /// Whether a row is the best: its mean beats that of every rival by more than the larger of the two standard
    /// deviations, or equals it, and not all are equal. Rows without a value don't compete.
    pub fn is_best(&self, row: &Row<'_, T>, rows: &[Row<'_, T>]) -> bool {
        let Some(own) = self.value(row).filter(|_| row.competes) else { return false };
        let rivals = rows.iter().filter(|rival| rival.competes).filter_map(|rival| self.value(rival));
        let mut differs = false;
        for rival in rivals.filter(|rival| rival.mean != own.mean) {
            let lead = match self.better {
                Better::Less => rival.mean - own.mean,
                Better::More => own.mean - rival.mean,
                Better::Neither => return false,
            };
            if lead <= own.deviation.unwrap_or(0.0).max(rival.deviation.unwrap_or(0.0)) {
                return false;
            }
            differs = true;
        }
        differs
    }
}

impl Value {
    /// `None` for no values. The deviation is that of a sample.
    fn of(values: &[f64]) -> Option<Self> {
        let number = count(values.len() as u64);
        let mean = values.iter().sum::<f64>() / number;
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        let deviation = (values.len() > 1).then(|| (squares / (number - 1.0)).sqrt());
        (!values.is_empty()).then_some(Self { mean, deviation })
    }
}

impl<T> Row<'_, T> {
    /// What `read` finds in the results.
    pub fn value(&self, read: fn(&T) -> Option<f64>) -> Option<Value> {
        Value::of(&self.results.iter().flatten().filter_map(|result| read(result)).collect::<Vec<_>>())
    }
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
        Self { name: name.to_owned(), results: vec![Some(figure)], competes: false }
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
            Self { name: cells[0].contender.clone(), results, competes }
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
                name: searches[0].any().contender.clone(),
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
                let name = |tenant: u32| format!("{}, tenant {tenant}", cells[0].contender);
                let row = |(tenant, results)| Self { name: name(tenant), results, competes: false };
                rows.extend(tenants.into_iter().map(row));
            }
        }
        rows
    }
}

/// The runs of each contender of a group.
fn contenders(group: &[Cell]) -> impl Iterator<Item = &[Cell]> {
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
        let outcomes = [outcome(5, 1.0, 20.0), outcome(0, 0.0, 0.0), outcome(3, 2.0, 30.0)];
        let cells: Vec<Cell> =
            outcomes.into_iter().zip(0..).map(|(o, entrant)| cell(0, entrant, o)).collect();
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
        let outcomes = [Some(160.0), None, Some(40.0)].map(outcome);
        let cells: Vec<Cell> =
            outcomes.into_iter().zip(0..).map(|(o, entrant)| cell(0, entrant, o)).collect();
        let column = named(&CACHE, "ttft hits");
        assert_eq!(best(column, &cells), [false, false, true]);
        assert_eq!(best(column, &cells[..2]), [false, false], "there is nothing to compare with");
        let shown: Vec<String> = Row::of(&cells).iter().map(|row| column.shown(row)).collect();
        assert_eq!(shown, ["160", "-", "40"]);
    }

    #[test]
    fn contender_whose_policy_or_run_failed_is_never_best() {
        let column = named(&SPEED, "out tok/s");
        let mut cells = rates(&[&[1.0, 1.0], &[3.0, 3.0], &[2.0, 2.0]]);
        assert_eq!(best(column, &cells), [false, true, false]);
        let fault = FirstFault {
            kind: "scheduler",
            policy: "moody".to_owned(),
            message: "trap: it fell over".to_owned(),
            at_s: 2.0,
        };
        let outcome = cells[3].outcome.as_mut().expect("it ran");
        (outcome.policy_faults, outcome.fault) = (1, Some(fault));
        assert_eq!(best(column, &cells), [false, false, true], "with one of two seeds, the built-in decided");
        cells[5].outcome = Err("the trace ends in the middle".to_owned());
        assert_eq!(best(column, &cells), [false; 3], "one is left");
    }

    #[test]
    fn difference_within_the_deviation_is_not_marked() {
        let column = named(&SPEED, "out tok/s");
        for (compared, marks) in [
            ([&[10.0, 12.0, 14.0][..], &[13.0, 13.0, 13.0]], [false, false]),
            ([&[10.0, 12.0, 14.0], &[15.0, 15.0, 15.0]], [false, true]),
            ([&[12.0, 12.0, 12.0], &[12.0, 12.0, 12.0]], [false, false]),
            ([&[12.0], &[12.1]], [false, true]),
        ] {
            let cells = rates(&compared);
            assert_eq!(best(column, &cells), marks, "{compared:?}");
        }
        let cells = rates(&[&[10.0, 12.0, 14.0]]);
        assert_eq!(column.shown(&Row::of(&cells)[0]), "12 ±2");
        let tied = rates(&[&[5.0, 5.0], &[5.0, 5.0], &[4.0, 4.0]]);
        assert_eq!(best(column, &tied), [true, true, false], "both are the best");
    }

    #[test]
    fn contenders_with_equal_names_stay_apart() {
        let mut cells = rates(&[&[1.0, 2.0], &[4.0, 4.0]]);
        cells.iter_mut().for_each(|cell| cell.contender = "srpt".to_owned());
        let shown: Vec<String> = Row::of(&cells).iter().map(|row| SPEED[1].shown(row)).collect();
        assert_eq!(shown, ["2 ±1", "4 ±0"]);
    }
}
