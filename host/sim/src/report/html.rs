//! A self-contained page: a section with a table and charts for each workload and load, and one for each workload that
//! was run at several loads.

use std::fmt::Write as _;

use super::chart::{Axis, COLOURS, Chart, Mark, Scale, Series, escape};
use super::table::{CACHE, COLUMNS, Column, is_best};
use crate::compare::Cell;
use crate::metrics::Sample;

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
.front { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; }
";

/// Value of a sample in a chart over time.
type Read = fn(&Sample) -> f64;

/// Renders the page. `about` describes what was simulated.
pub fn html(cells: &[Cell], about: &str) -> String {
    let mut page = String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    let _ = write!(
        page,
        "<meta name=\"viewport\" content=\"width=device-width\"><title>infer sim</title><style>{STYLE}</style></head><body>"
    );
    let _ = write!(page, "<h1>infer sim</h1><p>{}</p>", escape(about));
    for workload in cells.chunk_by(|a, b| a.subject == b.subject) {
        let groups = || workload.chunk_by(|a, b| a.load == b.load);
        if groups().count() > 1 {
            loads(&mut page, workload);
        }
        for group in groups() {
            section(&mut page, group);
        }
    }
    page.push_str("</body></html>\n");
    page
}

/// Charts of all contenders by load.
fn loads(page: &mut String, workload: &[Cell]) {
    let _ = write!(page, "<h2>{} by load</h2>", escape(&workload[0].workload));
    let contenders = workload.chunk_by(|a, b| a.load == b.load).next().expect("there is a load");
    legend(page, contenders);
    page.push_str("<div class=\"charts\">");
    let over = |y: Axis, read: fn(&Cell) -> (f64, f64), x: Axis| {
        let of = |cell: &Cell| {
            workload.iter().filter(|other| other.contender == cell.contender).map(read).collect()
        };
        Chart { x, y, series: series(contenders, Mark::Line, of) }
    };
    let load = || Axis { label: "load", scale: Scale::Linear };
    let ms = |label| Axis { label, scale: Scale::Log };
    let rate = |label| Axis { label, scale: Scale::Linear };
    figure(
        page,
        "Throughput and p99 time to first token",
        &over(
            rate("output tokens/s"),
            |c| (c.outcome.ttft_ms.p99, c.outcome.output_per_second),
            ms("TTFT p99, ms"),
        ),
    );
    figure(
        page,
        "Goodput",
        &over(rate("goodput, requests/s"), |c| (c.load, c.outcome.goodput_per_second), load()),
    );
    figure(
        page,
        "Time to first token",
        &over(ms("TTFT p99, ms"), |c| (c.load, c.outcome.ttft_ms.p99), load()),
    );
    figure(page, "Inter-token latency", &over(ms("ITL p99, ms"), |c| (c.load, c.outcome.itl_ms.p99), load()));
    page.push_str("</div>");
}

fn section(page: &mut String, group: &[Cell]) {
    let first = &group[0];
    let _ = write!(page, "<h2>{} at load {:.2}</h2>", escape(&first.workload), first.load);
    let _ = write!(
        page,
        "<p>{} requests, {:.0} s of traffic; durations in milliseconds, the best of each column in bold.</p>",
        first.outcome.requests, first.outcome.seconds
    );
    table(page, group, &COLUMNS);
    if group.iter().any(|cell| cell.outcome.cache.mean_cached.is_some()) {
        page.push_str("<p>Prefix cache; hit rates count prompts with at least one full block:</p>");
        table(page, group, &CACHE);
    }
    legend(page, group);
    page.push_str("<div class=\"charts\">");
    let part = |read: fn(&Cell) -> &[f64]| distribution(group, read);
    figure(page, "Time to first token, share of requests", &part(|c| &c.outcome.ttft_quantiles_ms));
    figure(page, "Inter-token latency, share of gaps", &part(|c| &c.outcome.itl_quantiles_ms));
    figure(page, "Latency, share of requests", &part(|c| &c.outcome.latency_quantiles_ms));
    figure(page, "Trade-off between throughput and p99 time to first token", &trade_off(group));
    let cut_s = cut(group);
    let times: [(&str, &'static str, Read); 4] = [
        ("Blocks in use", "blocks", |sample| f64::from(sample.used)),
        ("Cached blocks", "blocks", |sample| f64::from(sample.cached)),
        ("Running requests", "requests", |sample| f64::from(sample.running)),
        ("Waiting requests", "requests", |sample| f64::from(sample.waiting)),
    ];
    for (title, label, read) in times {
        let note = if cut_s.is_finite() { format!(", the first {cut_s:.0} s") } else { String::new() };
        figure(page, &format!("{title}{note}"), &over_time(group, cut_s, label, read));
    }
    page.push_str("</div>");
}

fn legend(page: &mut String, group: &[Cell]) {
    page.push_str("<p class=\"legend\">");
    for (nth, cell) in group.iter().enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        let dash = if nth < COLOURS.len() { "" } else { " stroke-dasharray=\"5 4\"" };
        let _ = write!(
            page,
            "<svg class=\"key\" viewBox=\"0 0 24 10\"><path d=\"M0 5H24\" stroke=\"{colour}\" stroke-width=\"5\"{dash}/></svg>{}",
            escape(&cell.contender)
        );
    }
    page.push_str("</p>");
}

fn table(page: &mut String, group: &[Cell], columns: &[Column]) {
    page.push_str("<table><tr><th>policies</th>");
    for column in columns {
        let _ = write!(page, "<th>{}</th>", column.name);
    }
    page.push_str("</tr>");
    for cell in group {
        let _ = write!(page, "<tr><td>{}</td>", escape(&cell.contender));
        for column in columns {
            let class = if is_best(column, cell, group) { " class=\"best\"" } else { "" };
            let _ = write!(page, "<td{class}>{}</td>", column.shown(cell));
        }
        page.push_str("</tr>");
    }
    page.push_str("</table>");
}

fn figure(page: &mut String, title: &str, chart: &Chart) {
    let _ = write!(page, "<figure><h3>{}</h3>{}</figure>", escape(title), chart.svg());
}

fn distribution(group: &[Cell], read: fn(&Cell) -> &[f64]) -> Chart {
    let points =
        |cell: &Cell| read(cell).iter().zip(0..).map(|(&ms, percent)| (ms, f64::from(percent))).collect();
    Chart {
        x: Axis { label: "ms", scale: Scale::Log },
        y: Axis { label: "% at most", scale: Scale::Linear },
        series: series(group, Mark::Line, points),
    }
}

/// A dot per contender, and the Pareto front of throughput and TTFT.
fn trade_off(group: &[Cell]) -> Chart {
    let at = |cell: &Cell| (cell.outcome.ttft_ms.p99, cell.outcome.output_per_second);
    let finished = |cell: &&Cell| cell.outcome.finished > 0;
    let all: Vec<(f64, f64)> = group.iter().filter(finished).map(at).collect();
    let beaten = |(x, y): (f64, f64)| {
        all.iter().any(|&(other_x, other_y)| (other_x < x && other_y >= y) || (other_x <= x && other_y > y))
    };
    let mut front: Vec<(f64, f64)> = all.iter().copied().filter(|&point| !beaten(point)).collect();
    front.sort_by(|a, b| a.0.total_cmp(&b.0));
    let name = "Pareto front".to_owned();
    let mut series =
        series(group, Mark::Dots, |cell| Some(cell).filter(finished).map(at).into_iter().collect());
    series.insert(0, Series { name, colour: 0, mark: Mark::Front, points: front });
    Chart {
        x: Axis { label: "TTFT p99, ms", scale: Scale::Log },
        y: Axis { label: "output tokens/s", scale: Scale::Linear },
        series,
    }
}

/// Seconds after which charts over time are cut: a contender that takes far longer than most would squeeze the others
/// together. Infinite if there is none.
fn cut(group: &[Cell]) -> f64 {
    let end = |cell: &Cell| cell.outcome.samples.last().map_or(0.0, |sample| sample.at_s);
    let mut ends: Vec<f64> = group.iter().map(end).collect();
    ends.sort_by(f64::total_cmp);
    let (usual, last) = (ends[ends.len() / 2], ends[ends.len() - 1]);
    if last > 2.5 * usual && usual > 0.0 { 1.5 * usual } else { f64::INFINITY }
}

fn over_time(group: &[Cell], cut_s: f64, label: &'static str, read: Read) -> Chart {
    let points = |cell: &Cell| {
        let shown = cell.outcome.samples.iter().take_while(|sample| sample.at_s <= cut_s);
        shown.map(|sample| (sample.at_s, read(sample))).collect()
    };
    Chart {
        x: Axis { label: "s", scale: Scale::Linear },
        y: Axis { label, scale: Scale::Linear },
        series: series(group, Mark::Line, points),
    }
}

/// One series per contender; once the palette is exhausted, lines are dashed.
fn series(group: &[Cell], mark: Mark, points: impl Fn(&Cell) -> Vec<(f64, f64)>) -> Vec<Series> {
    let of = |(colour, cell): (usize, &Cell)| {
        let mark = if mark == Mark::Line && colour >= COLOURS.len() { Mark::Dashed } else { mark };
        Series { name: cell.contender.clone(), colour, mark, points: points(cell) }
    };
    group.iter().enumerate().map(of).collect()
}
