//! A self-contained page: a section with tables and charts for each workload and load, and one for each workload that
//! was run at several loads. Charts by load and of the trade-off show means over the seeds, the others the first seed.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::chart::{Axis, COLOURS, Chart, Mark, Scale, Series, escape};
use super::columns::{Column, Row, TENANT, compared, tables_of};
use super::{BEST, SAME_TRAFFIC, are_compared, conditions, groups, heading, hosts, made_by, notes, seeds};
use crate::compare::Cell;
use crate::metrics::{Outcome, Sample, present};

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5a6472; --grid: #d9dee4; --page: #fff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa5b1; --grid: #333b45; --page: #14181d; --card: #1c2127; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto; max-width: 82rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: .95rem; margin: 0 0 .3rem; }
p, .legend { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--grid); } th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-weight: 500; } td.best { font-weight: 700; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(30rem, 1fr)); gap: 1rem; margin-top: 1rem; }
figure { background: var(--card); border-radius: .5rem; margin: 0; padding: .8rem; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--soft); } .grid { stroke: var(--grid); stroke-width: 1; }
svg.key { width: 1.5rem; height: .7rem; margin: 0 .3rem 0 .9rem; vertical-align: -1px; }
code { overflow-wrap: anywhere; }
.front { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; }
";

/// Value of a sample in a chart over time.
type Read = fn(&Sample) -> u32;
type Rows<'a> = [Row<'a, Outcome>];
type Points = Vec<(f64, f64)>;

/// Renders the page.
pub fn html(cells: &[Cell]) -> String {
    let mut page = String::new();
    let what = "The engine and its policies in virtual time";
    match (&hosts(cells)[..], conditions(cells)) {
        ([], _) => {}
        ([(_, host)], conditions) => {
            let _ = write!(page, "<p>{what}: {}; {conditions}.</p>", escape(host));
        }
        (several, conditions) => {
            let _ = write!(page, "<p>{what}; {conditions}. Hosts, of which {SAME_TRAFFIC}:</p><ul>");
            for (name, host) in several {
                let _ = write!(page, "<li>{}: {}</li>", escape(name), escape(host));
            }
            page.push_str("</ul>");
        }
    }
    if are_compared(cells) {
        let _ = write!(page, "<p>Values in bold are {BEST}.</p>");
    }
    for workload in cells.chunk_by(|a, b| a.subject == b.subject) {
        if groups(workload).count() > 1 {
            by_load(&mut page, workload);
        }
        for group in groups(workload) {
            section(&mut page, group);
        }
    }
    made_by::put(&mut page, cells);
    document("infer sim", &page)
}

/// The whole page, with a title and a body.
pub(super) fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
         <style>{STYLE}</style></head><body><h1>{title}</h1>{body}</body></html>\n"
    )
}

/// Where a contender's point is in a chart, at a load.
type ReadAt = fn(f64, &Row<'_, Outcome>) -> Option<(f64, f64)>;

/// Charts of all contenders by load.
fn by_load(page: &mut String, workload: &[Cell]) {
    let _ = write!(page, "<h2>{} by load</h2>", escape(&workload[0].workload));
    let loads: Vec<(f64, Vec<Row<'_, Outcome>>)> =
        groups(workload).map(|group| (group[0].load, Row::of(group))).collect();
    let contenders = &loads[0].1;
    legend(page, contenders);
    page.push_str("<div class=\"charts\">");
    let over = |x: Axis, y: Axis, read: ReadAt| {
        // Every load has the same contenders in the same order.
        let points = |nth: usize| loads.iter().filter_map(|(load, rows)| read(*load, &rows[nth])).collect();
        Chart { x, y, series: series(contenders, Mark::Line, |nth, _| points(nth)) }
    };
    let load = || Axis { label: "load", scale: Scale::Linear };
    let ms = |label| Axis { label, scale: Scale::Log };
    let rate = |label| Axis { label, scale: Scale::Linear };
    let throughput = over(ms("TTFT p99, ms"), rate("output tokens/s"), |_, row| speed(row));
    figure(page, "Throughput and p99 time to first token", &throughput);
    let goodput = over(load(), rate("goodput, requests/s"), |load, row| {
        Some((load, mean(row, |outcome| Some(outcome.goodput_per_second))?))
    });
    figure(page, "Goodput", &goodput);
    let ttft = over(load(), ms("TTFT p99, ms"), |load, row| {
        Some((load, mean(row, |outcome| present(outcome.ttft_ms.p99))?))
    });
    figure(page, "Time to first token", &ttft);
    let itl = over(load(), ms("ITL p99, ms"), |load, row| {
        Some((load, mean(row, |outcome| present(outcome.itl_ms.p99))?))
    });
    figure(page, "Inter-token latency", &itl);
    page.push_str("</div>");
}

fn section(page: &mut String, group: &[Cell]) {
    let rows = &Row::of(group)[..];
    let _ = write!(page, "<h2>{}</h2>", escape(&heading(group)));
    for note in notes(group) {
        let _ = write!(page, "<p>{}</p>", escape(&note));
    }
    if rows.iter().all(|row| row.results.iter().all(Option::is_none)) {
        return;
    }
    page.push_str("<p>Durations in milliseconds.</p>");
    for shown in tables_of(rows) {
        if let Some(about) = shown.about {
            let _ = write!(page, "<p>{about}</p>");
        }
        table(page, shown.title, shown.columns, rows);
    }
    table(page, "tenants", &TENANT, &Row::of_tenants(group));
    if let [first, _, ..] = seeds(group)[..] {
        let _ = write!(page, "<p>Distributions and charts over time show seed {first}.</p>");
    }
    legend(page, rows);
    page.push_str("<div class=\"charts\">");
    let part = |read: fn(&Outcome) -> &[f64]| distribution(rows, read);
    figure(page, "Time to first token, share of requests", &part(|o| &o.ttft_quantiles_ms));
    figure(page, "Inter-token latency, share of gaps", &part(|o| &o.itl_quantiles_ms));
    figure(page, "Time per output token, share of requests", &part(|o| &o.tpot_quantiles_ms));
    figure(page, "Latency, share of requests", &part(|o| &o.latency_quantiles_ms));
    figure(page, "Trade-off between throughput and p99 time to first token", &trade_off(rows));
    let cut_s = cut(rows);
    let note = if cut_s.is_finite() { format!(", the first {cut_s:.0} s") } else { String::new() };
    let times: [(&str, &'static str, Read); 4] = [
        ("Blocks in use", "blocks", |sample| sample.used),
        ("Cached blocks", "blocks", |sample| sample.cached),
        ("Running requests", "requests", |sample| sample.running),
        ("Waiting requests", "requests", |sample| sample.waiting),
    ];
    for (title, label, read) in times {
        let chart = over_time(rows, cut_s, label, |sample| Some(f64::from(read(sample))));
        figure(page, &format!("{title}{note}"), &chart);
    }
    let samples = rows.iter().filter_map(first).flat_map(|outcome| &outcome.samples);
    let gauges: BTreeSet<&str> =
        samples.flat_map(|sample| sample.gauges.keys().map(String::as_str)).collect();
    for gauge in gauges {
        let chart = over_time(rows, cut_s, "value", |sample| sample.gauges.get(gauge).copied());
        figure(page, &format!("{gauge}{note}"), &chart);
    }
    page.push_str("</div>");
}

pub(super) fn legend<T>(page: &mut String, rows: &[Row<'_, T>]) {
    page.push_str("<p class=\"legend\">");
    for (nth, row) in rows.iter().enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        let dash = if nth < COLOURS.len() { "" } else { " stroke-dasharray=\"5 4\"" };
        let _ = write!(
            page,
            "<svg class=\"key\" viewBox=\"0 0 24 10\"><path d=\"M0 5H24\" stroke=\"{colour}\" stroke-width=\"5\"{dash}/></svg>{}",
            escape(&row.name)
        );
    }
    page.push_str("</p>");
}

/// A table of the columns that say anything, and one of the differences from the first row if they are compared.
pub(super) fn table<T>(page: &mut String, title: &str, columns: &[Column<T>], rows: &[Row<'_, T>]) {
    let telling: Vec<&Column<T>> = columns.iter().filter(|column| column.is_telling(rows)).collect();
    put_table(page, title, &telling, rows, |column, row| {
        let class = if column.is_best(row, rows) { " class=\"best\"" } else { "" };
        format!("<td{class}>{}</td>", column.shown(row))
    });
    let Some((first, others)) = compared(rows) else { return };
    let differing: Vec<&Column<T>> = columns.iter().filter(|column| column.differs(others, first)).collect();
    put_table(page, &format!("against {}", first.name), &differing, others, |column, row| {
        format!("<td>{}</td>", column.shown_difference(row, first))
    });
}

/// A table, unless it has no columns.
fn put_table<T>(
    page: &mut String,
    title: &str,
    columns: &[&Column<T>],
    rows: &[Row<'_, T>],
    field: impl Fn(&Column<T>, &Row<'_, T>) -> String,
) {
    if columns.is_empty() {
        return;
    }
    let _ = write!(page, "<table><tr><th>{}</th>", escape(title));
    for column in columns {
        let _ = write!(page, "<th>{}</th>", column.name);
    }
    page.push_str("</tr>");
    for row in rows {
        let _ = write!(page, "<tr><td>{}</td>", escape(&row.name));
        for &column in columns {
            page.push_str(&field(column, row));
        }
        page.push_str("</tr>");
    }
    page.push_str("</table>");
}

pub(super) fn figure(page: &mut String, title: &str, chart: &Chart) {
    let _ = write!(page, "<figure><h3>{}</h3>{}</figure>", escape(title), chart.svg());
}

/// Mean over the seeds.
fn mean(row: &Row<'_, Outcome>, read: fn(&Outcome) -> Option<f64>) -> Option<f64> {
    row.value(read).map(|value| value.mean)
}

/// TTFT and throughput.
fn speed(row: &Row<'_, Outcome>) -> Option<(f64, f64)> {
    let ttft = mean(row, |outcome| present(outcome.ttft_ms.p99))?;
    Some((ttft, mean(row, |outcome| Some(outcome.output_per_second))?))
}

fn distribution(rows: &Rows<'_>, read: fn(&Outcome) -> &[f64]) -> Chart {
    let points = |outcome: &Outcome| {
        read(outcome).iter().zip(0..).map(|(&ms, percent)| (ms, f64::from(percent))).collect()
    };
    Chart {
        x: Axis { label: "ms", scale: Scale::Log },
        y: Axis { label: "% at most", scale: Scale::Linear },
        series: series(rows, Mark::Line, |_, row| first(row).map(points).unwrap_or_default()),
    }
}

/// The run with the first seed, unless that failed.
pub(super) fn first<'a, T>(row: &Row<'a, T>) -> Option<&'a T> {
    row.results.first().copied().flatten()
}

/// A dot per contender, and the Pareto front of throughput and TTFT.
fn trade_off(rows: &Rows<'_>) -> Chart {
    let all: Points = rows.iter().filter_map(speed).collect();
    let beaten = |(x, y): (f64, f64)| {
        all.iter().any(|&(other_x, other_y)| (other_x < x && other_y >= y) || (other_x <= x && other_y > y))
    };
    let mut front: Points = all.iter().copied().filter(|&point| !beaten(point)).collect();
    front.sort_by(|a, b| a.0.total_cmp(&b.0));
    let name = "Pareto front".to_owned();
    let mut series = series(rows, Mark::Dots, |_, row| speed(row).into_iter().collect());
    series.insert(0, Series { name, colour: 0, mark: Mark::Front, points: front });
    Chart {
        x: Axis { label: "TTFT p99, ms", scale: Scale::Log },
        y: Axis { label: "output tokens/s", scale: Scale::Linear },
        series,
    }
}

/// Seconds after which charts over time are cut: a contender that takes far longer than most would squeeze the others
/// together. Infinite if there is none.
fn cut(rows: &Rows<'_>) -> f64 {
    let end = |outcome: &Outcome| outcome.samples.last().map_or(0.0, |sample| sample.at_s);
    let mut ends: Vec<f64> = rows.iter().filter_map(first).map(end).collect();
    ends.sort_by(f64::total_cmp);
    let (Some(&usual), Some(&last)) = (ends.get(ends.len() / 2), ends.last()) else { return f64::INFINITY };
    if last > 2.5 * usual && usual > 0.0 { 1.5 * usual } else { f64::INFINITY }
}

/// A line per contender. Samples without a value leave a gap, over which the line is straight.
fn over_time(
    rows: &Rows<'_>,
    cut_s: f64,
    label: &'static str,
    read: impl Fn(&Sample) -> Option<f64>,
) -> Chart {
    let points = |outcome: &Outcome| {
        let shown = outcome.samples.iter().take_while(|sample| sample.at_s <= cut_s);
        shown.filter_map(|sample| Some((sample.at_s, read(sample)?))).collect()
    };
    Chart {
        x: Axis { label: "s", scale: Scale::Linear },
        y: Axis { label, scale: Scale::Linear },
        series: series(rows, Mark::Line, |_, row| first(row).map(points).unwrap_or_default()),
    }
}

/// One series per contender; once the palette is exhausted, lines are dashed.
pub(super) fn series<T>(
    rows: &[Row<'_, T>],
    mark: Mark,
    points: impl Fn(usize, &Row<'_, T>) -> Points,
) -> Vec<Series> {
    let of = |(colour, row): (usize, &Row<'_, T>)| {
        let mark = if mark == Mark::Line && colour >= COLOURS.len() { Mark::Dashed } else { mark };
        Series { name: row.name.clone(), colour, mark, points: points(colour, row) }
    };
    rows.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{cell, mixed, on_two_hosts};
    use super::*;

    #[test]
    fn page_loads_nothing_and_escapes_names() {
        let page = html(&mixed());
        for outside in ["http", "src=", "href=", "@import", "url(", "<link", "<script"] {
            assert!(!page.contains(outside), "{outside}: {page}");
        }
        assert!(page.contains("trap: &lt;it fell over&gt;") && !page.contains("<it fell"), "{page}");
        assert!(!page.contains("NaN") && !page.contains("inf "), "{page}");
    }

    #[test]
    fn page_names_conditions_tenants_failed_runs_and_policies() {
        let page = html(&mixed());
        for says in [
            "h100 with a model of shape 8b",
            "seeds 3, 4 (mean ± 95 % confidence interval); goodput counts requests whose first token came within",
            "monday at load 1.00: 8 requests",
            "<td>a, tenant 7 (ChatGPT)</td>",
            "<td>b (built-in 84.1 %)</td>",
            "b, seed 4: policy faults: 3, the first after 3.5 s by scheduler `moody`",
            "the built-in decided 84.1 % of the steps instead",
            "c, seed 3 failed: line 7, column 2",
            "Distributions and charts over time show seed 3.",
            "<h2>What made this</h2>",
        ] {
            assert!(page.contains(says), "{says}: {page}");
        }
        assert_eq!(page.matches("<figure>").count(), 9, "{page}");
    }

    #[test]
    fn page_shows_the_best_and_the_differences_from_the_first_contender() {
        let mut cells = Vec::new();
        for (entrant, rates) in [[10.0, 12.0, 14.0], [30.0, 32.0, 35.0]].into_iter().enumerate() {
            for (seed, output_per_second) in (1..).zip(rates) {
                let outcome = Outcome { finished: 5, output_per_second, ..Outcome::default() };
                let mut cell = cell(0, entrant, outcome);
                (cell.settings.seed, cell.contender) = (seed, format!("<{entrant}>"));
                cells.push(cell);
            }
        }
        let page = html(&cells);
        for says in [
            "<p>Values in bold are better than every rival by the 95 % confidence interval",
            "<td>12 ±5</td>",
            "<td class=\"best\">32 ±6</td>",
            "<table><tr><th>against &lt;0&gt;</th><th>out tok/s</th></tr>\
             <tr><td>&lt;1&gt;</td><td>+20 ±1</td></tr></table>",
        ] {
            assert!(page.contains(says), "{says}: {page}");
        }
        let alone = html(&[cells[0].clone(), cells[3].clone()]);
        assert!(
            alone.contains("seed 1 (one can't tell which is best)") && !alone.contains("against"),
            "{alone}"
        );
        assert!(!alone.contains("class=\"best\""), "{alone}");
    }

    #[test]
    fn each_gauge_has_a_chart_of_the_contenders_that_have_it() {
        let with = |gauge: &str, value: f64| {
            let sample =
                |at_s| Sample { at_s, gauges: [(gauge.to_owned(), value)].into(), ..Sample::default() };
            Outcome { samples: vec![sample(1.0), sample(2.0)], ..Outcome::default() }
        };
        let page = html(&[
            cell(0, 0, with("slo.estimated_ttft_ms", 1_500.0)),
            cell(0, 1, with("mine.debt_tokens", -7.0)),
            cell(0, 2, with("mine.debt_tokens", 3.0)),
        ]);
        for (gauge, lines) in [("slo.estimated_ttft_ms", 1), ("mine.debt_tokens", 2)] {
            let (_, figure) = page.split_once(&format!("<h3>{gauge}</h3>")).expect(gauge);
            let (figure, _) = figure.split_once("</figure>").expect("it ends");
            assert_eq!(figure.matches(" d=\"M").count(), lines, "{figure}");
        }
        assert_eq!(page.matches("<figure>").count(), 11, "{page}");
    }

    #[test]
    fn page_describes_each_host_once() {
        let [mut one, other] = on_two_hosts();
        (one.host_name, one.contender) = ("<l4>".to_owned(), "<l4>".to_owned());
        let page = html(&[one.clone(), other, one]);
        for says in
            ["<li>&lt;l4&gt;: l4 with a model", "<li>h100: h100 with", "monday at load 1.00, 4.50 requests/s"]
        {
            assert_eq!(page.matches(says).count(), 1, "{says}: {page}");
        }
    }

    #[test]
    fn group_without_any_result_has_no_charts() {
        let mut failed = cell(0, 0, Outcome::default());
        failed.outcome = Err("no such trace".to_owned());
        let page = html(&[failed]);
        assert!(page.contains("a failed: no such trace") && !page.contains("<figure>"), "{page}");
    }

    #[test]
    fn no_other_seed_stands_in_for_a_first_one_that_failed() {
        let mut cells: Vec<Cell> = (3..5).map(|_| cell(0, 0, Outcome::default())).collect();
        assert!(first(&Row::of(&cells)[0]).is_some());
        cells[0].outcome = Err("no such trace".to_owned());
        assert!(first(&Row::of(&cells)[0]).is_none());
    }

    #[test]
    fn contender_that_finished_nothing_has_no_time_but_a_goodput() {
        let cells = [cell(0, 0, Outcome { requests: 5, refused: 5, ..Outcome::default() })];
        let row = &Row::of(&cells)[0];
        assert_eq!((speed(row), mean(row, |o| Some(o.goodput_per_second))), (None, Some(0.0)));
    }

    #[test]
    fn charts_by_load_show_the_mean_over_the_seeds() {
        let mut cells = Vec::new();
        for (load, goodputs) in [(1.0, [2.0, 4.0]), (2.0, [5.0, 9.0])] {
            for goodput_per_second in goodputs {
                let mut cell = cell(0, 0, Outcome { finished: 1, goodput_per_second, ..Outcome::default() });
                cell.load = load;
                cells.push(cell);
            }
        }
        let loads: Vec<Vec<Row<'_, Outcome>>> = groups(&cells).map(Row::of).collect();
        let means: Vec<_> = loads.iter().map(|rows| mean(&rows[0], |o| Some(o.goodput_per_second))).collect();
        assert_eq!(means, [Some(3.0), Some(7.0)]);
        let page = html(&cells);
        assert!(page.contains("monday by load") && page.matches("<figure>").count() == 4 + 2 * 9, "{page}");
    }
}
