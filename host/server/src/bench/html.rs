//! Reports as one self-contained page: per workload a table and charts that show all reports side by side, so that
//! servers are compared under the same load.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use infer_sim::report::chart::{Axis, COLOURS, Chart, Mark, Scale, Series, escape};

use super::Summary;
use super::report::{Report, Sample, WorkloadReport};

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5a6472; --grid: #d9dee4; --page: #fff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa5b1; --grid: #333b45; --page: #14181d; --card: #1c2127; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p, li, figcaption { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--grid); }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 500; }
.wide { overflow-x: auto; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1rem; margin-top: 1rem; }
figure { background: var(--card); border-radius: .5rem; margin: 0; padding: .8rem; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--soft); } .grid { stroke: var(--grid); }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; margin-right: .4rem; vertical-align: -1px; }
";

/// Tenants that are listed for each report.
const TENANTS: usize = 64;

/// One report's results for a workload.
struct Part<'a> {
    colour: usize,
    subject: &'a str,
    report: &'a WorkloadReport,
}

/// Renders the page.
#[must_use]
pub fn html(reports: &[Report]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>infer bench</title><style>{STYLE}</style></head><body>\
         <h1>infer bench</h1><ul>"
    );
    for (nth, report) in reports.iter().enumerate() {
        let load = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), |value| format!("{value:.2}"));
        let _ = write!(
            page,
            "<li>{}{}: {} at {}, seed {}; {}, {} cores, load average {} before and {} after",
            key(nth),
            escape(&report.subject),
            escape(&report.model),
            escape(&report.url),
            report.seed,
            escape(&report.machine.cpu),
            report.machine.cores,
            load(report.machine.load_average_before),
            load(report.load_average_after)
        );
        for line in report.about() {
            let _ = write!(page, "<br>{}", escape(&line));
        }
        page.push_str("</li>");
    }
    page.push_str("</ul>");
    for description in descriptions(reports) {
        let parts: Vec<Part<'_>> = reports
            .iter()
            .enumerate()
            .flat_map(|(colour, report)| {
                let subject = report.subject.as_str();
                report.workloads.iter().map(move |report| Part { colour, subject, report })
            })
            .filter(|part| heading(part.report) == description)
            .collect();
        section(&mut page, &description, &parts);
    }
    goodput(&mut page, reports);
    for (nth, report) in reports.iter().enumerate() {
        for found in &report.sustained {
            let _ = write!(page, "<p>{}{}</p>", key(nth), escape(&found.text()));
        }
    }
    page.push_str("</body></html>\n");
    page
}

fn heading(report: &WorkloadReport) -> String {
    format!("{}: {}", report.name, report.description)
}

/// Headings of the workloads, in the order of their first occurrence.
fn descriptions(reports: &[Report]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for heading in reports.iter().flat_map(|report| report.workloads.iter().map(heading)) {
        if !all.contains(&heading) {
            all.push(heading);
        }
    }
    all
}

fn key(colour: usize) -> String {
    format!("<span class=\"key\" style=\"background:{}\"></span>", COLOURS[colour % COLOURS.len()])
}

fn section(page: &mut String, description: &str, parts: &[Part<'_>]) {
    let _ = write!(page, "<h2>{}</h2>", escape(description));
    table(page, parts);
    for part in parts {
        for (error, count) in &part.report.errors {
            let _ = write!(page, "<p>{}{count} failed: {}</p>", key(part.colour), escape(error));
        }
    }
    for part in parts {
        if let Some([hits, misses]) = part.report.ttft_by_cache() {
            let (key, hits, misses) = (key(part.colour), middle(&hits), middle(&misses));
            let _ = write!(page, "<p>{key}TTFT of hits: {hits}; of misses: {misses}</p>");
        }
    }
    for part in parts {
        tenants(page, part);
    }
    page.push_str("<div class=\"charts\">");
    let share = |values: &dyn Fn(&Sample) -> Vec<f64>| -> Vec<Series> {
        parts.iter().map(|part| line(part, distribution(part, values))).collect()
    };
    figure(
        page,
        "Share of requests by time to first token",
        "ms",
        Scale::Log,
        "share",
        share(&|s| vec![s.ttft_ms]),
    );
    figure(
        page,
        "Share of tokens by time since the previous one",
        "ms",
        Scale::Log,
        "share",
        share(&|s| s.itl_ms.clone()),
    );
    figure(page, "Share of requests by latency", "ms", Scale::Log, "share", share(&|s| vec![s.latency_ms]));
    let flow = parts.iter().map(|part| line(part, throughput(&part.report.samples))).collect();
    figure(page, "Output tokens per second over time", "s", Scale::Linear, "tokens/s", flow);
    page.push_str("</div>");
    for part in parts {
        timeline(page, part);
    }
}

fn table(page: &mut String, parts: &[Part<'_>]) {
    page.push_str(
        "<div class=\"wide\"><table><tr><th>server<th>completed<th>failed<th>output tok/s<th>prompt tok/s\
         <th>cached tokens<th>TTFT p50<th>p95<th>p99<th>ITL p50<th>p95<th>p99<th>latency p50<th>p95<th>p99<th>good/s\
         <th>in process<th>overhead</tr>",
    );
    for Part { colour, subject, report } in parts {
        let failed: usize = report.errors.values().sum();
        let good = report.goodput.map_or_else(|| "-".to_owned(), |g| format!("{:.2}", g.requests_per_s));
        let local = report.in_process.as_ref();
        let ratio = local.and_then(|c| c.throughput_ratio);
        let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x"));
        let overhead = local.and_then(|c| c.overhead_percent);
        let overhead = overhead.map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.1} %"));
        let _ = write!(
            page,
            "<tr><td>{}{}<td>{}<td>{failed}<td>{:.1}<td>{:.1}<td>{}{}{}{}<td>{good}<td>{ratio}<td>{overhead}</tr>",
            key(*colour),
            escape(subject),
            report.completed,
            report.output_tokens_per_s,
            report.prompt_tokens as f64 / report.wall_s.max(1e-9),
            report.cached_tokens,
            percentiles(&report.ttft_ms),
            percentiles(&report.itl_ms),
            percentiles(&report.latency_ms)
        );
    }
    page.push_str(
        "</table></div><p>Times in milliseconds. `in process`: throughput relative to the same prompts run one after \
         the other without a server. `overhead`: what serving adds to their mean latency, if requests run one at a \
         time.</p>",
    );
}

/// Tabulates the times to the first token by tenant, if there are several.
fn tenants(page: &mut String, part: &Part<'_>) {
    let all = part.report.ttft_by_tenant();
    if all.is_empty() {
        return;
    }
    let _ = write!(
        page,
        "<div class=\"wide\"><table><tr><th>{}TTFT by tenant, {}<th>requests<th>p50<th>p95<th>p99</tr>",
        key(part.colour),
        escape(part.subject)
    );
    for (tenant, times) in all.iter().take(TENANTS) {
        let (count, percentiles) = (times.count, percentiles(times));
        let _ = write!(page, "<tr><td>{}<td>{count}{percentiles}</tr>", escape(tenant));
    }
    page.push_str("</table></div>");
    if all.len() > TENANTS {
        let _ = write!(page, "<p>{} more tenants are in the JSON report.</p>", all.len() - TENANTS);
    }
}

fn middle(summary: &Summary) -> String {
    format!("p50 {:.2}, p95 {:.2} ({} requests)", summary.p50, summary.p95, summary.count)
}

fn percentiles(summary: &Summary) -> String {
    format!("<td>{:.2}<td>{:.2}<td>{:.2}", summary.p50, summary.p95, summary.p99)
}

fn figure(
    page: &mut String,
    title: &str,
    x: &'static str,
    scale: Scale,
    y: &'static str,
    series: Vec<Series>,
) {
    let chart = Chart { x: Axis { label: x, scale }, y: Axis { label: y, scale: Scale::Linear }, series };
    let _ = write!(page, "<figure><figcaption>{title}</figcaption>{}</figure>", chart.svg());
}

fn line(part: &Part<'_>, points: Vec<(f64, f64)>) -> Series {
    Series { name: part.subject.to_owned(), colour: part.colour, mark: Mark::Line, points }
}

/// Cumulative distribution of the values, thinned to what a chart can show.
fn distribution(part: &Part<'_>, values: &dyn Fn(&Sample) -> Vec<f64>) -> Vec<(f64, f64)> {
    const POINTS: usize = 400;
    let completed = part.report.samples.iter().filter(|sample| sample.error.is_none());
    let mut all: Vec<f64> = completed.flat_map(values).map(|ms| ms.max(0.01)).collect();
    all.sort_by(f64::total_cmp);
    let count = all.len();
    let every = count.div_ceil(POINTS).max(1);
    let kept = all.into_iter().enumerate().filter(|(at, _)| at % every == 0 || at + 1 == count);
    kept.map(|(at, value)| (value, (at + 1) as f64 / count as f64)).collect()
}

/// Tokens per second in equal slices of time.
fn throughput(samples: &[Sample]) -> Vec<(f64, f64)> {
    const SLICES: usize = 60;
    let end = samples.iter().map(|s| s.sent_ms + s.latency_ms).fold(1.0, f64::max);
    let slice_ms = end / SLICES as f64;
    let mut counts = [0.0; SLICES];
    for sample in samples.iter().filter(|sample| sample.error.is_none()) {
        // A chunk may hold several tokens; reports of earlier versions lack the token count.
        let chunks = sample.itl_ms.len() + 1;
        let of_each = match sample.completion_tokens {
            0 => 1.0,
            tokens => f64::from(tokens) / chunks as f64,
        };
        let mut at = sample.sent_ms + sample.ttft_ms;
        for gap in std::iter::once(0.0).chain(sample.itl_ms.iter().copied()) {
            at += gap;
            counts[((at / slice_ms) as usize).min(SLICES - 1)] += of_each;
        }
    }
    let point = |(nth, &count): (usize, &f64)| ((nth as f64 + 0.5) * slice_ms / 1e3, count / slice_ms * 1e3);
    counts.iter().enumerate().map(point).collect()
}

/// Draws each request as a bar: light until its first token, dark until its end.
fn timeline(page: &mut String, part: &Part<'_>) {
    const WIDTH: f64 = 1_120.0;
    const ROWS: usize = 400;
    let samples = &part.report.samples;
    let shown = &samples[..samples.len().min(ROWS)];
    let row = if shown.len() > 80 { 3.0 } else { 8.0 };
    let end = shown.iter().map(|s| s.sent_ms + s.latency_ms).fold(1.0, f64::max);
    let x = |ms: f64| ms / end * WIDTH;
    let colour = COLOURS[part.colour % COLOURS.len()];
    let height = shown.len() as f64 * row + 20.0;
    let _ = write!(
        page,
        "<figure><figcaption>{}Requests of {} over {:.1} s: light until the first token; hollow if failed\
         </figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">",
        key(part.colour),
        escape(part.subject),
        end / 1e3
    );
    for (nth, sample) in shown.iter().enumerate() {
        let (y, tall) = (nth as f64 * row, row - 1.0);
        if sample.error.is_some() {
            let at = x(sample.sent_ms);
            let _ = write!(
                page,
                "<rect x=\"{at:.1}\" y=\"{y}\" width=\"6\" height=\"{tall}\" fill=\"none\" stroke=\"{colour}\"/>"
            );
            continue;
        }
        let (from, first) = (x(sample.sent_ms), x(sample.sent_ms + sample.ttft_ms));
        let to = x(sample.sent_ms + sample.latency_ms);
        let _ = write!(
            page,
            "<rect x=\"{from:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{tall}\" fill=\"{colour}\" opacity=\".35\"/>\
             <rect x=\"{first:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{tall}\" fill=\"{colour}\"/>",
            (first - from).max(0.3),
            (to - first).max(0.3)
        );
    }
    page.push_str("</svg></figure>");
}

/// Charts goodput over the offered rate, one chart per workload, for reports with several rates.
fn goodput(page: &mut String, reports: &[Report]) {
    let mut charts: BTreeMap<&str, Vec<Series>> = BTreeMap::new();
    for (colour, report) in reports.iter().enumerate() {
        for (workload, mut points) in rates(report) {
            if points.len() > 1 {
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                let name = report.subject.clone();
                charts.entry(workload).or_default().push(Series { name, colour, mark: Mark::Line, points });
            }
        }
    }
    if charts.is_empty() {
        return;
    }
    page.push_str("<h2>Goodput</h2><div class=\"charts\">");
    for (workload, series) in charts {
        let title = format!("{}: good requests per second by offered rate", escape(workload));
        figure(page, &title, "conversations/s", Scale::Linear, "good/s", series);
    }
    page.push_str("</div>");
}

/// Offered rates with their good requests per second, by workload.
fn rates(report: &Report) -> BTreeMap<&str, Vec<(f64, f64)>> {
    let mut rates: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for workload in &report.workloads {
        if let (Some(rate), Some(good)) = (workload.arrival.per_second(), workload.goodput) {
            rates.entry(&workload.name).or_default().push((rate, good.requests_per_s));
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::super::load::Served;
    use super::super::{Api, Arrival, Comparison, Dialect, Machine, Targets, Workload};
    use super::*;

    /// A report with four requests at each rate, all answered immediately.
    fn swept(subject: &str, rates: &[f64]) -> Report {
        let targets = Targets { ttft_ms: Some(1.0), itl_ms: None };
        let at = |&rate: &f64| {
            let workload = Workload::mixed(1, 4, 1, 0, 64).arriving(Arrival::Poisson(rate));
            let outcomes = vec![Ok(super::super::client::Timing::default()); 4];
            let served = Served {
                outcomes,
                sent_ms: vec![0.0; 4],
                tenants: Vec::new(),
                late_ms: 0.0,
                wall_s: 4.0 / rate,
            };
            WorkloadReport::new(workload.about(), &served, targets, None)
        };
        Report {
            subject: subject.to_owned(),
            version: String::new(),
            settings: BTreeMap::new(),
            policies: BTreeMap::new(),
            policies_after: BTreeMap::new(),
            url: String::new(),
            dialect: Dialect::Named,
            api: Api::Completions,
            model: String::new(),
            seed: 1,
            machine: Machine::here(),
            load_average_after: None,
            workloads: rates.iter().map(at).collect(),
            sustained: Vec::new(),
        }
    }

    #[test]
    fn table_has_three_percentiles_of_each_metric_and_the_overhead() {
        let summary =
            |p50: f64| Summary { count: 9, mean: p50, p50, p95: p50 + 1.0, p99: p50 + 2.0, max: 99.0 };
        let mut measured = swept("measured", &[2.0]);
        let part = &mut measured.workloads[0];
        (part.ttft_ms, part.itl_ms, part.latency_ms) = (summary(10.0), summary(20.0), summary(30.0));
        part.in_process = Some(Comparison {
            wall_s: 1.0,
            output_tokens_per_s: 1.0,
            ttft_ms: summary(1.0),
            latency_ms: summary(1.0),
            throughput_ratio: Some(0.9),
            overhead_percent: Some(-4.26),
            identical: None,
        });
        let page = html(&[measured, swept("alone", &[2.0])]);
        let names = ["TTFT", "ITL", "latency"].map(|name| format!("<th>{name} p50<th>p95<th>p99"));
        assert!(page.contains(&names.concat()), "{page}");
        let times = "<td>10.00<td>11.00<td>12.00<td>20.00<td>21.00<td>22.00<td>30.00<td>31.00<td>32.00<td>";
        assert!(page.contains(times), "{page}");
        assert!(page.contains("<td>0.90x<td>-4.3 %</tr>") && page.contains("<td>-<td>-</tr>"), "{page}");
        let columns = |row: &str, cell: &str| row.split("</tr>").next().unwrap().matches(cell).count();
        let rows: Vec<&str> = page.split("<tr>").collect();
        assert_eq!((columns(rows[1], "<th>"), columns(rows[2], "<td>")), (18, 18), "{page}");
    }

    #[test]
    fn hits_and_misses_of_the_prefix_cache_are_told_apart() {
        let mut report = swept("cached", &[2.0]);
        let samples = &mut report.workloads[0].samples;
        let answers = [(0, 8.0), (16, 2.0), (32, 3.0), (0, 9.0)];
        for (sample, (cached_tokens, ttft_ms)) in samples.iter_mut().zip(answers) {
            *sample = Sample { prompt_tokens: 40, cached_tokens, ttft_ms, ..Sample::default() };
        }
        let page = html(&[report, swept("uncounted", &[2.0])]);
        let said = "TTFT of hits: p50 2.00, p95 3.00 (2 requests); of misses: p50 8.00, p95 9.00 (2";
        assert_eq!((page.matches(said).count(), page.matches("TTFT of hits").count()), (1, 1), "{page}");
    }

    #[test]
    fn tenants_have_a_row_each_up_to_a_bound() {
        let mut report = swept("traced", &[2.0]);
        let sample = |tenant: String, ttft_ms| Sample { tenant, ttft_ms, ..Sample::default() };
        let named = |number: usize, ttft_ms| sample(format!("tenant-{number}"), ttft_ms);
        report.workloads[0].samples = vec![named(11, 8.0), named(2, 1.5), named(11, 9.0), named(2, 1.5)];
        let mut crowd = swept("crowd", &[2.0]);
        crowd.workloads[0].samples = (0..70).map(|number| named(number, 1.0)).collect();
        let page = html(&[report, swept("one tenant", &[2.0]), crowd]);
        let rows = "<th>requests<th>p50<th>p95<th>p99</tr><tr><td>tenant-2<td>2<td>1.50<td>1.50<td>1.50</tr>\
                    <tr><td>tenant-11<td>2<td>8.00<td>9.00<td>9.00</tr></table>";
        assert!(page.contains(&format!("TTFT by tenant, traced{rows}")), "{page}");
        assert_eq!(page.matches("TTFT by tenant").count(), 2, "{page}");
        assert_eq!(page.matches("<tr><td>tenant-").count(), 2 + 64, "{page}");
        assert!(page.contains("<p>6 more tenants are in the JSON report.</p>"), "{page}");
    }

    #[test]
    fn goodput_line_has_its_reports_colour_and_sorted_rates() {
        let mut page = String::new();
        // The first report has a single rate, which makes no line.
        goodput(&mut page, &[swept("one rate", &[2.0]), swept("peer", &[8.0, 2.0, 4.0])]);
        assert_eq!(page.matches("<path").count(), 1, "{page}");
        let (before, after) = page.split_once("<path d=\"").unwrap();
        assert!(before.contains("W2: good requests"), "{page}");
        assert!(after.contains(COLOURS[1]) && after.contains("<title>peer"), "{page}");
        let xs: Vec<f64> = after.split('"').next().unwrap()[1..]
            .split('L')
            .map(|point| point.split(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(xs.len() == 3 && xs.is_sorted(), "{xs:?}");
    }

    #[test]
    fn throughput_over_time_counts_tokens_not_chunks() {
        let sample = |completion_tokens| Sample {
            itl_ms: vec![10.0; 4],
            completion_tokens,
            latency_ms: 60.0,
            ..Sample::default()
        };
        for (completion_tokens, tokens) in [(5, 5.0), (40, 40.0), (0, 5.0)] {
            let points = throughput(&[sample(completion_tokens)]);
            let slice_s = points[1].0 - points[0].0;
            let sum: f64 = points.iter().map(|point| point.1 * slice_s).sum();
            assert!((sum - tokens).abs() < 1e-9, "{completion_tokens} tokens: {sum}");
        }
    }
}
