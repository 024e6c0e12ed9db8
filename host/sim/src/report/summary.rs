//! What the seeds of a comparison tell together, for scripts: a row per contender and quantity, with the mean over the
//! seeds, the difference from the first contender with the same seeds, and what is known of both.

use ::csv::Writer;
use serde::Serialize;

use super::columns::{MORE, Row, TABLES, contenders};
use super::groups;
use super::made_by::{self, MadeBy, Slots};
use crate::compare::Cell;

/// A contender's quantity under a workload and load. Intervals are 95 % confidence intervals; they are `None` if there is
/// one seed, or if the values are equal with all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Name of the workload or trace.
    pub workload: String,
    /// As in [`Cell`].
    pub load: f64,
    /// As in [`Cell`].
    pub contender: String,
    /// Name of the quantity, in the tables if they have it, in its unit.
    pub quantity: &'static str,
    /// `less` or `more`; `None` if neither is better.
    pub better: Option<&'static str>,
    /// Number of runs that have the quantity.
    pub seeds: usize,
    /// Mean over the seeds.
    pub mean: f64,
    /// Lower end of the interval of the mean.
    pub mean_low: Option<f64>,
    /// Upper end of the interval of the mean.
    pub mean_high: Option<f64>,
    /// The first contender.
    pub baseline: String,
    /// Mean difference from the baseline, in pairs of runs with the same seed. `None` for the baseline itself, and if
    /// one of the two lacks the quantity with any of the seeds.
    pub difference: Option<f64>,
    /// Lower end of the interval of the difference.
    pub difference_low: Option<f64>,
    /// Upper end of the interval of the difference.
    pub difference_high: Option<f64>,
    /// Whether its runs all finished requests without a fault of a policy; others are never the best.
    pub competes: bool,
    /// Whether it is better than every rival, by the intervals of the differences.
    pub best: bool,
    /// The program and the command.
    #[serde(flatten)]
    pub made_by: MadeBy,
    /// The contender's policies.
    pub policies: Option<Slots>,
}

/// The text of a column in a row.
type Read = fn(&Summary) -> String;

/// Columns of CSV; those of what made a row follow.
const COLUMNS: [(&str, Read); 15] = [
    ("workload", |s| s.workload.clone()),
    ("load", |s| s.load.to_string()),
    ("contender", |s| s.contender.clone()),
    ("quantity", |s| s.quantity.to_owned()),
    ("better", |s| s.better.unwrap_or_default().to_owned()),
    ("seeds", |s| s.seeds.to_string()),
    ("mean", |s| s.mean.to_string()),
    ("mean_low", |s| known(s.mean_low)),
    ("mean_high", |s| known(s.mean_high)),
    ("baseline", |s| s.baseline.clone()),
    ("difference", |s| known(s.difference)),
    ("difference_low", |s| known(s.difference_low)),
    ("difference_high", |s| known(s.difference_high)),
    ("competes", |s| s.competes.to_string()),
    ("best", |s| s.best.to_string()),
];

fn known(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Summarizes a comparison: by workload, load, contender and quantity, in the order of the tables; what these don't have
/// comes last. Quantities without a value are left out.
pub fn summary(cells: &[Cell]) -> Vec<Summary> {
    groups(cells).flat_map(of_group).collect()
}

fn of_group(group: &[Cell]) -> Vec<Summary> {
    let rows = Row::of(group);
    let firsts: Vec<&Cell> = contenders(group).map(|cells| &cells[0]).collect();
    let mut all = Vec::new();
    for (row, cell) in rows.iter().zip(&firsts) {
        for column in TABLES.iter().flat_map(|table| table.columns).chain(&MORE) {
            let Some(value) = column.value(row) else { continue };
            let difference = column.difference(row, &rows[0]).filter(|_| cell.entrant != firsts[0].entrant);
            let [mean, apart] =
                [Some(value), difference].map(|estimate| estimate.and_then(|it| it.interval()));
            all.push(Summary {
                workload: group[0].workload.clone(),
                load: group[0].load,
                contender: cell.contender.clone(),
                quantity: column.name,
                better: column.better(),
                seeds: column.values(row),
                mean: value.mean,
                mean_low: mean.map(|(low, _)| low),
                mean_high: mean.map(|(_, high)| high),
                baseline: firsts[0].contender.clone(),
                difference: difference.map(|difference| difference.mean),
                difference_low: apart.map(|(low, _)| low),
                difference_high: apart.map(|(_, high)| high),
                competes: row.competes,
                best: column.is_best(row, &rows),
                made_by: cell.made_by.clone(),
                policies: cell.policies.clone(),
            });
        }
    }
    all
}

/// The summary as JSON: an array with an object per contender and quantity.
pub fn summary_json(cells: &[Cell]) -> String {
    serde_json::to_string_pretty(&summary(cells)).expect("numbers are JSON")
}

/// The summary as CSV. What has no value is empty.
pub fn summary_csv(cells: &[Cell]) -> String {
    let mut text = Writer::from_writer(Vec::new());
    let names = COLUMNS.map(|(name, _)| name);
    text.write_record(names.iter().chain(&made_by::COLUMNS)).expect("memory takes it");
    for row in summary(cells) {
        let made_by = made_by::fields(&row.made_by, row.policies.as_ref());
        text.write_record(COLUMNS.map(|(_, read)| read(&row)).iter().chain(&made_by))
            .expect("memory takes it");
    }
    String::from_utf8(text.into_inner().expect("memory takes it")).expect("all fields are text")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cell, mixed};
    use super::*;
    use crate::metrics::Outcome;

    /// Two contenders with three seeds.
    fn cells() -> Vec<Cell> {
        let mut cells = Vec::new();
        for (entrant, rates) in [[10.0, 12.0, 14.0], [30.0, 32.0, 35.0]].into_iter().enumerate() {
            for (seed, output_per_second) in (1..).zip(rates) {
                let outcome = Outcome { finished: 5, output_per_second, ..Outcome::default() };
                let mut cell = cell(0, entrant, outcome);
                cell.settings.seed = seed;
                cells.push(cell);
            }
        }
        cells
    }

    #[test]
    fn rows_have_means_and_differences_with_their_intervals() {
        let all = summary(&cells());
        let [first, other] = ["a", "b"].map(|contender| {
            let is_rate = |row: &&Summary| row.contender == contender && row.quantity == "out tok/s";
            all.iter().find(is_rate).expect("a row")
        });
        assert_eq!((first.seeds, first.mean, first.difference, first.best), (3, 12.0, None, false));
        assert_eq!((&other.baseline[..], other.better, other.best), ("a", Some("more"), true));
        for (computed, expected) in [
            (first.mean_low, 7.031_7),
            (first.mean_high, 16.968_3),
            (other.difference, 20.333_3),
            (other.difference_low, 18.899_1),
            (other.difference_high, 21.767_6),
        ] {
            assert!(computed.is_some_and(|computed| (computed - expected).abs() < 0.000_1), "{computed:?}");
        }
        assert!(all.iter().all(|row| row.quantity != "ttft mean"), "nothing has no row");
    }

    #[test]
    fn percentiles_that_no_table_has_come_last() {
        let mut cells = cells();
        for cell in &mut cells {
            let outcome = cell.outcome.as_mut().expect("it ran");
            (outcome.tpot_ms.p50, outcome.tpot_ms.p90, outcome.ttft_ms.p90) = (20.0, 31.0, 900.0);
        }
        let all = summary(&cells);
        let of = |contender: &str| {
            let own = all.iter().filter(|row| row.contender == contender && row.mean > 15.0);
            own.map(|row| (row.quantity, row.mean)).collect::<Vec<_>>()
        };
        assert_eq!(of("a"), [("tpot p50", 20.0), ("ttft p90", 900.0), ("tpot p90", 31.0)]);
    }

    #[test]
    fn csv_and_json_have_the_same_rows() {
        let text = summary_csv(&cells());
        let head = "workload,load,contender,quantity,better,seeds,mean,mean_low,mean_high,baseline,difference,\
                    difference_low,difference_high,competes,best,version,args,";
        assert!(text.starts_with(head), "{text}");
        assert!(text.contains("\nmonday,1,a,out tok/s,more,3,12,7.03"), "{text}");
        assert!(text.contains("\nmonday,1,b,run s,,3,0,,,a,0,,,true,false,"), "{text}");
        let rows: Vec<serde_json::Value> = serde_json::from_str(&summary_json(&cells())).expect("JSON");
        assert_eq!(rows.len() + 1, text.lines().count());
        assert!(rows[0]["better"].is_null() && rows[1]["better"] == "more", "{rows:?}");
    }

    #[test]
    fn contenders_that_failed_or_were_left_to_the_built_in_do_not_compete() {
        let all = summary(&mixed());
        assert!(all.iter().all(|row| row.competes == (row.contender == "a")), "{all:?}");
        assert!(all.iter().all(|row| row.contender != "c" && !row.best), "it has no values: {all:?}");
    }
}
