//! What columns show of runs, and which of them is marked.

use super::super::tests::cell;
use super::tables::{CACHE, LATENCY, SPEED};
use super::*;
use crate::compare::Cell;
use crate::metrics::{FirstFault, Outcome};

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
            let mut cell = cell(0, entrant, Outcome { finished: 5, output_per_second, ..Outcome::default() });
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
    let cells = seeded(&[&|times| outcome(5, times, 20.0 * times), &|_| outcome(0, 0.0, 0.0), &|times| {
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
