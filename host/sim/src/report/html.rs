//! One page that needs nothing else: a section for each workload and load, with the table and four charts.

use std::fmt::Write as _;

use super::chart::{Axis, COLOURS, Chart, Mark, Scale, Series, escape};
use super::table::{COLUMNS, is_best};
use crate::compare::Cell;
use crate::metrics::Sample;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5a6472; --grid: #d9dee4; --page: #fff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa5b1; --grid: #333b45; --page: #14181d; --card: #1c2127; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: .95rem; margin: 0 0 .3rem; }
p, .legend { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--grid); } th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-weight: 500; } td.best { font-weight: 700; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1rem; margin-top: 1rem; }
figure { background: var(--card); border-radius: .5rem; margin: 0; padding: .8rem; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--soft); } .grid { stroke: var(--grid); stroke-width: 1; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; margin: 0 .3rem 0 .9rem; vertical-align: -1px; }
";

/// The whole sweep. `about` says what was simulated and how, for the head of the page.
pub fn html(cells: &[Cell], about: &str) -> String {
    let mut page = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    let _ = write!(
        page,
        "<meta name=\"viewport\" content=\"width=device-width\"><title>infer sim</title><style>{STYLE}</style></head><body>"
    );
    let _ = write!(page, "<h1>infer sim</h1><p>{}</p>", escape(about));
    for group in cells.chunk_by(|a, b| a.workload == b.workload && a.load == b.load) {
        section(&mut page, group);
    }
    page.push_str("</body></html>\n");
    page
}

fn section(page: &mut String, group: &[Cell]) {
    let first = &group[0];
    let _ = write!(page, "<h2>{} at load {:.2}</h2>", escape(&first.workload), first.load);
    let _ = write!(
        page,
        "<p>{} requests, {:.0} s of traffic; durations are milliseconds, the best of a column is bold.</p>",
        first.outcome.requests, first.outcome.seconds
    );
    table(page, group);
    page.push_str("<p class=\"legend\">");
    for (nth, cell) in group.iter().enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        let _ = write!(
            page,
            "<span class=\"key\" style=\"background:{colour}\"></span>{}",
            escape(&cell.contender)
        );
    }
    page.push_str("</p><div class=\"charts\">");
    figure(
        page,
        "Time to the first token: part of the requests that had theirs by then",
        &distribution(group),
    );
    figure(page, "Throughput against the time that the slowest hundredth waited", &trade_off(group));
    figure(page, "Blocks in use", &over_time(group, "blocks", |sample| f64::from(sample.used)));
    figure(page, "Requests that wait", &over_time(group, "requests", |sample| f64::from(sample.waiting)));
    page.push_str("</div>");
}

fn table(page: &mut String, group: &[Cell]) {
    page.push_str("<table><tr><th>policies</th>");
    for column in &COLUMNS {
        let _ = write!(page, "<th>{}</th>", column.name);
    }
    page.push_str("</tr>");
    for cell in group {
        let _ = write!(page, "<tr><td>{}</td>", escape(&cell.contender));
        for column in &COLUMNS {
            let class = if is_best(column, cell, group) { " class=\"best\"" } else { "" };
            let _ = write!(page, "<td{class}>{:.*}</td>", column.digits, (column.read)(cell));
        }
        page.push_str("</tr>");
    }
    page.push_str("</table>");
}

fn figure(page: &mut String, title: &str, chart: &Chart) {
    let _ = write!(page, "<figure><h3>{title}</h3>{}</figure>", chart.svg());
}

fn distribution(group: &[Cell]) -> Chart {
    let points = |cell: &Cell| {
        let quantiles = cell.outcome.ttft_quantiles_ms.iter();
        quantiles.zip(0..).map(|(&ms, percent)| (ms, f64::from(percent))).collect()
    };
    Chart {
        x: Axis { label: "ms", scale: Scale::Log },
        y: Axis { label: "% of requests", scale: Scale::Linear },
        series: series(group, Mark::Line, points),
    }
}

fn trade_off(group: &[Cell]) -> Chart {
    Chart {
        x: Axis { label: "TTFT p99, ms", scale: Scale::Log },
        y: Axis { label: "output tokens/s", scale: Scale::Linear },
        series: series(group, Mark::Dots, |cell| {
            vec![(cell.outcome.ttft_ms.p99, cell.outcome.output_per_second)]
        }),
    }
}

fn over_time(group: &[Cell], label: &'static str, read: fn(&Sample) -> f64) -> Chart {
    Chart {
        x: Axis { label: "s", scale: Scale::Linear },
        y: Axis { label, scale: Scale::Linear },
        series: series(group, Mark::Line, |cell| {
            cell.outcome.samples.iter().map(|sample| (sample.at_s, read(sample))).collect()
        }),
    }
}

/// One series per contender; beyond the palette lines are dashed.
fn series(group: &[Cell], mark: Mark, points: impl Fn(&Cell) -> Vec<(f64, f64)>) -> Vec<Series> {
    let of = |(colour, cell): (usize, &Cell)| {
        let mark = if mark == Mark::Line && colour >= COLOURS.len() { Mark::Dashed } else { mark };
        Series { name: cell.contender.clone(), colour, mark, points: points(cell) }
    };
    group.iter().enumerate().map(of).collect()
}
