//! Tables with one line per run, grouped by workload and load; the best of each group is marked.

use std::fmt::Write as _;

use crate::compare::Cell;

/// A column of the text and HTML tables.
pub(super) struct Column {
    pub name: &'static str,
    digits: usize,
    /// `None` for the mean of no values.
    read: fn(&Cell) -> Option<f64>,
    better: Better,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
    Neither,
}

pub(super) const COLUMNS: [Column; 13] = [
    column("out tok/s", 0, |c| Some(c.outcome.output_per_second), Better::More),
    column("TTFT mean", 0, |c| Some(c.outcome.ttft_ms.mean), Better::Less),
    column("p50", 0, |c| Some(c.outcome.ttft_ms.p50), Better::Less),
    column("p99", 0, |c| Some(c.outcome.ttft_ms.p99), Better::Less),
    column("ITL p50", 1, |c| Some(c.outcome.itl_ms.p50), Better::Less),
    column("p99", 1, |c| Some(c.outcome.itl_ms.p99), Better::Less),
    column("latency mean", 0, |c| Some(c.outcome.latency_ms.mean), Better::Less),
    column("in time %", 1, |c| Some(100.0 * c.outcome.in_time), Better::More),
    column("goodput/s", 2, |c| Some(c.outcome.goodput_per_second), Better::More),
    column("hits %", 1, |c| Some(100.0 * c.outcome.cache.hit_rate), Better::More),
    column("prefilled %", 1, |c| Some(100.0 * c.outcome.cache.prefilled_ratio), Better::Less),
    column("refused", 0, |c| Some(crate::metrics::count(c.outcome.refused)), Better::Neither),
    column("preempted", 0, |c| Some(crate::metrics::count(c.outcome.preemptions)), Better::Neither),
];

/// Columns about the prefix cache.
pub(super) const CACHE: [Column; 7] = [
    column("hits %", 1, |c| Some(100.0 * c.outcome.cache.hit_rate), Better::More),
    column("conversational %", 1, |c| Some(100.0 * c.outcome.cache.conversational_rate), Better::More),
    column("cross-request %", 1, |c| Some(100.0 * c.outcome.cache.cross_request_rate), Better::More),
    column("cached tokens per hit", 0, |c| c.outcome.cache.mean_cached, Better::More),
    column("prefilled tokens", 0, |c| c.outcome.cache.mean_prefilled, Better::Less),
    column("TTFT mean, hits", 0, |c| c.outcome.cache.hit_ttft_ms, Better::Less),
    column("TTFT mean, misses", 0, |c| c.outcome.cache.miss_ttft_ms, Better::Less),
];

const fn column(name: &'static str, digits: usize, read: fn(&Cell) -> Option<f64>, better: Better) -> Column {
    Column { name, digits, read, better }
}

impl Column {
    /// The text of the column in a cell's row.
    pub fn shown(&self, cell: &Cell) -> String {
        number((self.read)(cell), self.digits)
    }
}

/// Formats a number, or `-` for `None`.
fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// Renders a table for the terminal; durations are in milliseconds.
pub fn table(cells: &[Cell]) -> String {
    let names = cells.iter().map(|cell| cell.contender.chars().count()).max().unwrap_or(0).max(8);
    let mut text = String::new();
    for group in cells.chunk_by(|a, b| a.subject == b.subject && a.load == b.load) {
        let first = &group[0];
        let _ = writeln!(
            text,
            "{} at load {:.2}: {} requests, {:.0} s of traffic",
            first.workload, first.load, first.outcome.requests, first.outcome.seconds
        );
        let _ = write!(text, "  {:names$}", "");
        let widths: Vec<usize> = COLUMNS.iter().map(|column| column.name.len().max(7) + 1).collect();
        for (column, width) in COLUMNS.iter().zip(&widths) {
            let _ = write!(text, " {:>width$}", column.name);
        }
        text.push('\n');
        for cell in group {
            let _ = write!(text, "  {:names$}", cell.contender);
            for (column, width) in COLUMNS.iter().zip(&widths) {
                let mark = if is_best(column, cell, group) { "*" } else { "" };
                let shown = format!("{}{mark:1}", column.shown(cell));
                let _ = write!(text, " {shown:>width$}");
            }
            if cell.outcome.policy_faults > 0 {
                let _ = write!(text, "  {} policy faults", cell.outcome.policy_faults);
            }
            text.push('\n');
            prefixes(&mut text, cell);
            tenants(&mut text, cell);
        }
        text.push('\n');
    }
    text
}

/// Adds a line about the prefix cache if there were any hits.
fn prefixes(text: &mut String, cell: &Cell) {
    let cache = &cell.outcome.cache;
    if cache.mean_cached.is_none() {
        return;
    }
    let _ = writeln!(
        text,
        "      prefixes: hits {:.1} % conversational, {:.1} % cross-request; {} cached tokens per hit, {} prefilled per \
         request; TTFT mean {} for hits, {} for misses",
        100.0 * cache.conversational_rate,
        100.0 * cache.cross_request_rate,
        number(cache.mean_cached, 0),
        number(cache.mean_prefilled, 0),
        number(cache.hit_ttft_ms, 0),
        number(cache.miss_ttft_ms, 0)
    );
}

/// Adds a line per tenant if there are several.
fn tenants(text: &mut String, cell: &Cell) {
    let outcome = &cell.outcome;
    if outcome.tenants.len() < 2 {
        return;
    }
    for tenant in &outcome.tenants {
        let _ = writeln!(
            text,
            "      tenant {}: {} finished, {} tokens, TTFT mean {:.0} p99 {:.0}, {:.0} % of its prompts cached",
            tenant.tenant,
            tenant.finished,
            tenant.tokens,
            tenant.ttft_ms.mean,
            tenant.ttft_ms.p99,
            100.0 * tenant.cached_ratio
        );
    }
    let _ = writeln!(text, "      largest difference in service while both wait: {:.0}", outcome.service_gap);
}

/// Whether a cell is the best of its group. Cells that finished no request, or have no value in this column, don't
/// compete.
pub(super) fn is_best(column: &Column, cell: &Cell, group: &[Cell]) -> bool {
    let Some(own) = (column.read)(cell) else { return false };
    let rivals = || group.iter().filter(|other| other.outcome.finished > 0).filter_map(column.read);
    let beats = |other| match column.better {
        Better::Less => own <= other,
        Better::More => own >= other,
        Better::Neither => false,
    };
    let differs = rivals().any(|other| other != own);
    cell.outcome.finished > 0 && differs && rivals().all(beats)
}

/// Renders CSV with more columns than the tables. Durations are in milliseconds; the mean of no values is empty.
pub fn csv(cells: &[Cell]) -> String {
    let mut text = String::from(
        "workload,load,contender,requests,finished,refused,failed,seconds,output_tokens_per_second,goodput_per_second,\
         ttft_mean,ttft_p50,ttft_p95,ttft_p99,itl_p50,itl_p95,itl_p99,latency_mean,latency_p50,latency_p99,\
         in_time,hit_rate,conversational_rate,cross_request_rate,mean_cached,mean_prefilled,prefilled_ratio,\
         ttft_hit_mean,ttft_miss_mean,preemptions,service_gap,policy_faults,fingerprint\n",
    );
    let mean = |value: Option<f64>, digits| value.map_or_else(String::new, |_| number(value, digits));
    for cell in cells {
        let o = &cell.outcome;
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},\
             {:.5},{:.5},{:.5},{:.5},{},{},{:.5},{},{},{},{:.1},{},{}",
            field(&cell.workload),
            cell.load,
            field(&cell.contender),
            o.requests,
            o.finished,
            o.refused,
            o.failed,
            o.seconds,
            o.output_per_second,
            o.goodput_per_second,
            o.ttft_ms.mean,
            o.ttft_ms.p50,
            o.ttft_ms.p95,
            o.ttft_ms.p99,
            o.itl_ms.p50,
            o.itl_ms.p95,
            o.itl_ms.p99,
            o.latency_ms.mean,
            o.latency_ms.p50,
            o.latency_ms.p99,
            o.in_time,
            o.cache.hit_rate,
            o.cache.conversational_rate,
            o.cache.cross_request_rate,
            mean(o.cache.mean_cached, 1),
            mean(o.cache.mean_prefilled, 1),
            o.cache.prefilled_ratio,
            mean(o.cache.hit_ttft_ms, 3),
            mean(o.cache.miss_ttft_ms, 3),
            o.preemptions,
            o.service_gap,
            o.policy_faults,
            o.fingerprint,
        );
    }
    text
}

/// Quotes a field according to RFC 4180; configurations and paths may contain quotes and commas.
fn field(text: &str) -> String {
    if text.contains(['"', ',', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Outcome;

    fn cell(subject: usize, contender: &str, finished: u64, output_per_second: f64) -> Cell {
        let outcome = Outcome { finished, output_per_second, ..Outcome::default() };
        let (workload, contender) = ("monday".to_owned(), contender.to_owned());
        Cell { subject, workload, load: 1.0, contender, outcome }
    }

    #[test]
    fn texts_with_quotes_and_commas_stay_one_field() {
        assert_eq!(field("srpt"), "srpt");
        assert_eq!(field(r#"a={"b": 1, "c": 2}"#), r#""a={""b"": 1, ""c"": 2}""#);

        let cell = Cell { workload: "of monday, all.jsonl".to_owned(), ..cell(0, "srpt", 0, 0.0) };
        let text = csv(&[cell]);
        let row = text.lines().nth(1).expect("a cell is a line");
        assert!(row.starts_with(r#""of monday, all.jsonl",1,srpt,"#), "{row}");
    }

    #[test]
    fn subjects_with_equal_names_are_grouped_separately() {
        let cells = [cell(0, "a", 5, 1.0), cell(0, "b", 5, 2.0), cell(1, "a", 5, 4.0), cell(1, "b", 5, 3.0)];
        let text = table(&cells);
        assert_eq!(text.matches("monday at load 1.00").count(), 2, "{text}");
        assert!(text.contains("2*") && text.contains("4*"), "the best of each: {text}");
    }

    #[test]
    fn cell_without_finished_requests_is_never_best() {
        let mut cells = [cell(0, "all", 5, 1.0), cell(0, "none", 0, 0.0), cell(0, "some", 3, 2.0)];
        for (cell, ttft_ms) in cells.iter_mut().zip([20.0, 0.0, 30.0]) {
            cell.outcome.ttft_ms.mean = ttft_ms;
        }
        let best = |name: &str| -> Vec<bool> {
            let column = COLUMNS.iter().find(|column| column.name == name).expect("a column");
            cells.iter().map(|cell| is_best(column, cell, &cells)).collect()
        };
        assert_eq!(best("TTFT mean"), [true, false, false]);
        assert_eq!(best("out tok/s"), [false, false, true]);
        assert_eq!(best("latency mean"), [false; 3], "they don't differ");
    }

    #[test]
    fn cell_without_hits_is_not_best_at_hits() {
        let mut cells = [cell(0, "slow", 5, 1.0), cell(0, "none", 5, 1.0), cell(0, "quick", 5, 1.0)];
        for (cell, ttft_ms) in cells.iter_mut().zip([Some(160.0), None, Some(40.0)]) {
            cell.outcome.cache.hit_ttft_ms = ttft_ms;
            cell.outcome.cache.mean_cached = ttft_ms;
        }
        let column = CACHE.iter().find(|column| column.name == "TTFT mean, hits").expect("a column");
        let best =
            |group: &[Cell]| -> Vec<bool> { group.iter().map(|cell| is_best(column, cell, group)).collect() };
        assert_eq!(best(&cells), [false, false, true]);
        assert_eq!(best(&cells[..2]), [false, false], "there is nothing to compare with");
        assert_eq!(cells.each_ref().map(|cell| column.shown(cell)), ["160", "-", "40"]);
        assert!(table(&cells).contains("TTFT mean 160 for hits, - for misses"), "{}", table(&cells));
        let text = csv(&cells);
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let head = lines.next().expect("a head");
        let at = head.iter().position(|&name| name == "ttft_hit_mean").expect("a column");
        assert_eq!(lines.map(|line| line[at]).collect::<Vec<_>>(), ["160.000", "", "40.000"]);
    }
}
