//! Tables for the terminal, grouped by workload and load; the best of each group is marked. With several seeds, each is
//! followed by one of the differences from the first contender.

use std::fmt::Write as _;

use super::columns::{Column, Row, TENANT, compared, tables_of};
use super::{BEST, SAME_TRAFFIC, are_compared, conditions, groups, heading, hosts, notes};
use crate::compare::Cell;

/// Columns of a terminal. A table that is wider goes on below.
const WIDTH: usize = 120;

/// Renders tables for the terminal; durations are in milliseconds. Columns that tell nothing are left out.
pub fn table(cells: &[Cell]) -> String {
    let mut text = match &hosts(cells)[..] {
        [] => return String::new(),
        [(_, host)] => format!("simulated host: {host}\n"),
        several => {
            let each = several.iter().map(|(name, host)| format!("  {name}: {host}\n"));
            format!("simulated hosts; {SAME_TRAFFIC}:\n{}", each.collect::<String>())
        }
    };
    text += &(conditions(cells) + "; durations are in ms where no unit is named\n");
    if are_compared(cells) {
        let _ = writeln!(text, "`*` is {BEST}");
    }
    for group in groups(cells) {
        let _ = writeln!(text, "\n{}", heading(group));
        let rows = Row::of(group);
        for shown in tables_of(&rows) {
            write_table(&mut text, shown.title, shown.columns, &rows);
        }
        write_table(&mut text, "tenants", &TENANT, &Row::of_tenants(group));
        for note in notes(group) {
            let _ = writeln!(text, "  {note}");
        }
    }
    text
}

/// Adds a table of the columns that say anything, and one of the differences from the first row if they are compared.
pub(super) fn write_table<T>(text: &mut String, title: &str, columns: &[Column<T>], rows: &[Row<'_, T>]) {
    let telling = columns.iter().filter(|column| column.is_telling(rows));
    write_columns(text, &names(title, rows), &telling.map(|column| lines(column, rows)).collect::<Vec<_>>());
    let Some((first, others)) = compared(rows) else { return };
    let differing = columns.iter().filter(|column| column.differs(others, first));
    let lines = differing.map(|column| {
        let shown = others.iter().map(|row| column.shown_difference(row, first));
        std::iter::once(column.name.to_owned()).chain(shown).collect::<Vec<String>>()
    });
    let title = format!("against {}", first.name);
    write_columns(text, &names(&title, others), &lines.collect::<Vec<_>>());
}

/// The first column: the title and the names of the rows.
fn names<T>(title: &str, rows: &[Row<'_, T>]) -> Vec<String> {
    std::iter::once(title.to_owned()).chain(rows.iter().map(|row| row.name.clone())).collect()
}

/// Adds columns beside the names. What is too wide goes on below.
fn write_columns(text: &mut String, names: &[String], columns: &[Vec<String>]) {
    let beside = 2 + width(names);
    let mut left = columns;
    while !left.is_empty() {
        let mut end = beside;
        let fits = |column: &&Vec<String>| {
            end += 2 + width(column);
            end <= WIDTH
        };
        let (shown, rest) = left.split_at(left.iter().take_while(fits).count().max(1));
        for (nth, name) in names.iter().enumerate() {
            let mut line = format!("  {name:0$}", width(names));
            for column in shown {
                let _ = write!(line, "  {:>1$}", column[nth], width(column));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        left = rest;
    }
}

/// The heading of a column and its value in each row, with a mark at the best.
fn lines<T>(column: &Column<T>, rows: &[Row<'_, T>]) -> Vec<String> {
    let value = |row| format!("{}{}", column.shown(row), if column.is_best(row, rows) { '*' } else { ' ' });
    std::iter::once(column.name.to_owned()).chain(rows.iter().map(value)).collect()
}

fn width(lines: &[String]) -> usize {
    lines.iter().map(|line| line.chars().count()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cell, mixed, on_two_hosts};
    use super::*;
    use crate::metrics::{Durations, Outcome, PoolOutcome};

    fn outcome(output_per_second: f64) -> Outcome {
        Outcome { requests: 5, finished: 5, output_per_second, ..Outcome::default() }
    }

    #[test]
    fn subjects_with_equal_names_are_grouped_separately() {
        let cells = [(0, 0, 1.0), (0, 1, 2.0), (1, 0, 4.0), (1, 1, 3.0)].map(|(at, of, rate)| {
            [1_u32, 2].map(|seed| {
                let mut cell = cell(at, of, outcome(rate * (1.0 + 0.001 * f64::from(seed))));
                cell.settings.seed = u64::from(seed);
                cell
            })
        });
        let text = table(cells.as_flattened());
        assert_eq!(text.matches("monday at load 1.00: 5 requests").count(), 2, "{text}");
        assert!(text.contains(" 2 ±0*") && text.contains(" 4 ±0*"), "the best of each: {text}");
    }

    #[test]
    fn columns_without_anything_to_tell_are_left_out() {
        let mut busy = outcome(7.0);
        (busy.seconds, busy.refused) = (12.3, 2);
        let text = table(&[cell(0, 0, outcome(7.0)), cell(0, 1, busy)]);
        for (heading, is_there) in
            [("run s", true), ("refused", true), ("in time %", false), ("evicted", false), ("hits %", false)]
        {
            assert_eq!(text.contains(heading), is_there, "{heading}: {text}");
        }
        assert!(!text.contains("tenant"), "{text}");
    }

    #[test]
    fn score_of_zero_is_shown() {
        let mut late = outcome(7.0);
        late.in_time = Some(0.0);
        let text = table(&[cell(0, 0, late.clone()), cell(0, 1, late)]);
        assert!(text.contains("goodput/s") && text.contains("in time %"), "{text}");
    }

    #[test]
    fn lines_fit_into_a_terminal() {
        let durations = Durations {
            mean: 12_345.6,
            p50: 1_234.5,
            p90: 12_345.6,
            p95: 23_456.7,
            p99: 34_567.8,
            p999: 45_678.9,
            max: 99_999.9,
            min: 1.2,
        };
        let full = Outcome {
            seconds: 1_234.5,
            goodput_per_second: 12.34,
            in_time: Some(0.987),
            ttft_ms: durations,
            itl_ms: durations,
            tpot_ms: durations,
            latency_ms: durations,
            pool: PoolOutcome { used_mean: 0.5, used_peak: 1.0, cached_mean: 0.5, cached_peak: 1.0 },
            preemptions: 1_234,
            evicted_blocks: 123_456,
            refused: 12,
            failed: 1,
            service_gap: 572_512.0,
            ..outcome(12_345.6)
        };
        let varied =
            |seed: u32| Outcome { output_per_second: 12_340.6 + 6.0 * f64::from(seed), ..full.clone() };
        let mut cells = Vec::new();
        for entrant in 0..2 {
            for seed in 1..4 {
                let mut cell = cell(0, entrant, varied(seed));
                cell.contender = format!("cache-aware-{entrant}");
                cell.settings.seed = u64::from(seed);
                cells.push(cell);
            }
        }
        let text = table(&cells);
        for line in text.lines().skip_while(|line| !line.starts_with("monday")) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        for heading in ["latency p99.9", "service gap", "ttft p99.9", "itl p95", "tpot p95", "evicted"] {
            assert_eq!(text.matches(heading).count(), 1, "{heading}: {text}");
        }
        assert!(text.contains("\nseeds 1, 2, 3 (mean") && text.contains(" 12353 ±15"), "{text}");
    }

    #[test]
    fn hosts_are_described_and_compared() {
        let text = table(&on_two_hosts());
        let head = "simulated hosts; all get the same requests, and loads of workloads are relative to the first:\n  \
                    l4: l4 with a model of shape 8b, at most ";
        assert!(text.starts_with(head) && text.contains("\n  h100: h100 with "), "{text}");
        assert!(text.contains("\nmonday at load 1.00, 4.50 requests/s: 5 requests\n"), "{text}");
        assert!(text.contains("\nseed 1 (one can't tell which is best); goodput"), "{text}");
        let seeds = on_two_hosts().map(|cell| {
            [(1, 1.0), (2, 1.01)].map(|(seed, times)| {
                let mut cell = cell.clone();
                cell.settings.seed = seed;
                cell.outcome.iter_mut().for_each(|outcome| outcome.output_per_second *= times);
                cell
            })
        });
        let text = table(seeds.as_flattened());
        assert!(text.contains(" 9 ±1*") && text.contains("against l4  out tok/s"), "they compete: {text}");
    }

    #[test]
    fn differences_from_the_first_contender_follow_each_table() {
        let mut cells = Vec::new();
        for (entrant, rates) in
            [[10.0, 12.0, 14.0], [30.0, 22.0, 23.0], [10.0, 12.0, 14.0]].into_iter().enumerate()
        {
            for (seed, rate) in (1..).zip(rates) {
                let mut cell = cell(0, entrant, outcome(rate));
                cell.settings.seed = seed;
                cells.push(cell);
            }
        }
        let text = table(&cells);
        let differences = "
  against a  out tok/s
  b            +13 ±15
  c                  0
";
        assert!(text.contains(differences) && text.contains("12 ±5"), "{text}");
        assert!(text.contains("\n`*` is better than every rival by the 95 % confidence interval"), "{text}");
        assert!(!table(&cells[..3]).contains("against"), "a single contender");
        assert!(!table(&mixed()).contains("\n  against a  "), "a failed one, and one that did the same");
    }

    #[test]
    fn each_run_shows_its_own_duration() {
        let [quick, slow] = [3.0, 40.0].map(|seconds| Outcome { seconds, ..outcome(1.0) });
        let text = table(&[cell(0, 0, quick), cell(0, 1, slow)]);
        assert!(text.contains(" 3.0") && text.contains(" 40.0"), "{text}");
    }

    #[test]
    fn failed_runs_and_failed_policies_are_named() {
        let text = table(&mixed());
        for says in [
            "seeds 3, 4 (mean ± 95 % confidence interval); goodput counts requests whose first token came within",
            "; durations are in ms where no unit is named\n",
            "monday at load 1.00: 8 requests",
            "a, tenant 7 (ChatGPT)",
            "jain service",
            "\n  b (built-in 84.1 %)  ",
            "b, seed 3: policy faults: 3, the first after 3.5 s by scheduler `moody` (trap: <it fell over>);",
            "; the built-in decided 84.1 % of the steps instead",
            "c, seed 4 failed: line 7, column 2: \"<\"",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
    }
}
