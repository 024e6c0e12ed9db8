//! Rows: what is compared, and how it is named.

use std::collections::BTreeMap;

use super::super::interval::Estimate;
use crate::compare::Cell;
use crate::metrics::{Outcome, TenantOutcome};
use crate::search::Found;

/// A contender with its results under one workload and load.
pub(in crate::report) struct Row<'a, T> {
    pub name: String,
    /// The seeds of the results; none for rows that aren't compared with each other.
    pub seeds: Vec<u64>,
    /// One per seed; `None` if the run failed.
    pub results: Vec<Option<&'a T>>,
    /// Whether it may be the best of a column.
    pub competes: bool,
}

impl<T> Row<'_, T> {
    /// What `read` finds in the results.
    pub fn value(&self, read: fn(&T) -> Option<f64>) -> Option<Estimate> {
        Estimate::of(&self.results.iter().flatten().filter_map(|result| read(result)).collect::<Vec<_>>())
    }

    /// By how much `read` finds more than in another row, in pairs with the same seed. `None` unless both have the same
    /// seeds, and a value with each.
    pub fn difference(&self, from: &Self, read: fn(&T) -> Option<f64>) -> Option<Estimate> {
        if self.seeds.is_empty() || self.seeds != from.seeds {
            return None;
        }
        let pairs = self.results.iter().zip(&from.results);
        let differences = pairs.map(|(own, other)| Some(read((*own)?)? - read((*other)?)?));
        Estimate::of(&differences.collect::<Option<Vec<f64>>>()?)
    }
}

/// The first row, from which the differences of the others are shown, and these; only if they have several seeds.
pub(in crate::report) fn compared<'r, 'a, T>(
    rows: &'r [Row<'a, T>],
) -> Option<(&'r Row<'a, T>, &'r [Row<'a, T>])> {
    rows.split_first().filter(|(first, others)| first.seeds.len() > 1 && !others.is_empty())
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
pub(in crate::report) fn contenders(group: &[Cell]) -> impl Iterator<Item = &[Cell]> {
    group.chunk_by(|a, b| a.entrant == b.entrant)
}
