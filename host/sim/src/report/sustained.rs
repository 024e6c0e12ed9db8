//! The loads that policies sustain as tables, CSV, JSON, or a page with charts: a group for each workload.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ::csv::Writer;

use super::chart::{Axis, Chart, Mark, Scale, escape};
use super::columns::{Row, SUSTAINED};
use super::field::{known, milli, percentile, share};
use super::table::write_table;
use super::{BEST, SAME_TRAFFIC, hosts, html, made_by, note, of_seeds};
use crate::compare::Cell;
use crate::metrics::Outcome;
use crate::search::{Found, Probe};

/// Searches with the same workload.
fn groups(all: &[Found]) -> impl Iterator<Item = &[Found]> {
    all.chunk_by(|a, b| a.any().subject == b.any().subject)
}

/// The seeds of a group, in the order of its searches.
fn seeds(group: &[Found]) -> Vec<u64> {
    let own = group.iter().map(Found::any).filter(|cell| cell.entrant == group[0].any().entrant);
    own.map(|cell| cell.settings.seed).collect()
}

/// Whether a group has several contenders.
fn has_rivals(group: &[Found]) -> bool {
    group.iter().any(|found| found.any().entrant != group[0].any().entrant)
}

/// Whether contenders are compared: there are several, and several seeds.
fn are_compared(all: &[Found]) -> bool {
    groups(all).next().is_some_and(|group| has_rivals(group) && seeds(group).len() > 1)
}

/// What the figures are.
fn conditions(all: &[Found], share: f64) -> String {
    let (Some(first), Some(group)) = (all.first(), groups(all).next()) else { return String::new() };
    // As it was given: 99.9 % isn't 100 %.
    let percent = (1e5 * share).round() / 1e3;
    format!(
        "{}; the highest load at which {percent} % of the requests meet the targets, which are those {}",
        of_seeds(&seeds(group), has_rivals(group)),
        first.any().settings.targets()
    )
}

/// Names the traffic of a group.
fn heading(group: &[Found]) -> String {
    let cells = group.iter().map(Found::any);
    let requests = cells.clone().find_map(|cell| cell.outcome.as_ref().ok()).map(|outcome| outcome.requests);
    let name = &group[0].any().workload;
    requests.map_or_else(|| name.clone(), |requests| format!("{name}: {requests} requests"))
}

/// What a reader must know about the searches of a group: what limits each, and what went wrong.
fn notes(group: &[Found]) -> Vec<String> {
    let seeds = seeds(group).len();
    let several = seeds > 1;
    // Each limit's contenders, in their order, with the number of their searches that it ends.
    let mut limits: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    let mut notes = Vec::new();
    for found in group {
        let cell = found.any();
        let seed = if several { format!(" (seed {})", cell.settings.seed) } else { String::new() };
        let who = format!("{}{seed}", cell.contender);
        let limit = found.limit().unwrap_or("nothing");
        match (&found.sustained, &found.beyond) {
            (Some(_), Some(_)) => {
                let limited = limits.entry(limit).or_default();
                match limited.last_mut() {
                    Some((last, searches)) if *last == cell.contender => *searches += 1,
                    _ => limited.push((&cell.contender, 1)),
                }
            }
            (Some(_), None) => {
                let requests = found.outcome().map_or(0, |outcome| outcome.requests);
                notes.push(format!(
                    "{who} sustains every load up to {:.2}, as far as {requests} requests can tell",
                    cell.load
                ));
            }
            (None, Some(_)) => {
                notes.push(format!("{who} sustains no load, not even {:.4}; {limit} limits it", cell.load));
            }
            (None, None) => {}
        }
        let runs = [&found.failed, &found.sustained, &found.beyond];
        notes.extend(runs.into_iter().flatten().find_map(|cell| note(cell, several)));
    }
    let limited = limits.into_iter().map(|(limit, contenders)| {
        let who = contenders.into_iter().map(|(who, searches)| match searches == seeds {
            true => who.to_owned(),
            false => format!("{who} ({searches} of {seeds} seeds)"),
        });
        format!("limited by {limit}: {}", who.collect::<Vec<_>>().join(", "))
    });
    limited.chain(notes).collect()
}

/// Renders tables for the terminal; durations are in milliseconds.
pub fn sustained_table(all: &[Found], share: f64) -> String {
    let mut text = match &hosts(all.iter().map(Found::any))[..] {
        [] => return String::new(),
        [(_, host)] => format!("simulated host: {host}\n"),
        several => {
            let each = several.iter().map(|(name, host)| format!("  {name}: {host}\n"));
            format!("simulated hosts; {SAME_TRAFFIC}:\n{}", each.collect::<String>())
        }
    };
    text += &(conditions(all, share) + "\n");
    if are_compared(all) {
        let _ = writeln!(text, "`*` is {BEST}");
    }
    for group in groups(all) {
        let _ = writeln!(text, "\n{}", heading(group));
        write_table(&mut text, "sustained", &SUSTAINED, &Row::of_searches(group));
        for note in notes(group) {
            let _ = writeln!(text, "  {note}");
        }
    }
    text
}

/// All results as JSON: an array with an object per search.
pub fn sustained_json(all: &[Found]) -> String {
    serde_json::to_string_pretty(all).expect("outcomes are JSON")
}

/// Renders a page that loads nothing from elsewhere.
pub fn sustained_html(all: &[Found], share: f64) -> String {
    let mut body = format!("<p>{}.</p><ul>", escape(&conditions(all, share)));
    for (name, host) in hosts(all.iter().map(Found::any)) {
        let name = if name.is_empty() { String::new() } else { format!("{}: ", escape(name)) };
        let _ = write!(body, "<li>{name}{}</li>", escape(&host));
    }
    body.push_str("</ul>");
    if are_compared(all) {
        let _ = write!(body, "<p>Values in bold are {BEST}.</p>");
    }
    for group in groups(all) {
        let rows = Row::of_searches(group);
        let _ = write!(body, "<h2>{}</h2>", escape(&heading(group)));
        for note in notes(group) {
            let _ = write!(body, "<p>{}</p>", escape(&note));
        }
        html::table(&mut body, "sustained", &SUSTAINED, &rows);
        html::legend(&mut body, &rows);
        body.push_str("<div class=\"charts\">");
        html::figure(&mut body, "Requests that met the targets, by load", &by_load(&rows));
        body.push_str("</div>");
    }
    made_by::put(&mut body, all.iter().map(Found::any));
    html::document("infer sim capacity", &body)
}

/// The share of requests that met the targets at all loads that were run with the first seed, up to twice the highest
/// that any contender sustains: a search may begin far beyond.
fn by_load(rows: &[Row<'_, Found>]) -> Chart {
    let all: Vec<&Found> = rows.iter().filter_map(html::first).collect();
    let highest =
        all.iter().filter_map(|found| found.sustained.as_ref()).map(|cell| cell.load).fold(0.0, f64::max);
    let is_near = |probe: &&Probe| highest == 0.0 || probe.load <= 2.0 * highest;
    let points = |found: &Found| {
        found.probes.iter().filter(is_near).map(|probe| (probe.load, 100.0 * probe.share)).collect()
    };
    Chart {
        x: Axis { label: "load", scale: Scale::Linear },
        y: Axis { label: "% of requests", scale: Scale::Linear },
        series: html::series(rows, Mark::Line, |_, row| html::first(row).map(points).unwrap_or_default()),
    }
}

/// The text of a column in a search's row.
type Read = fn(&Found) -> String;

/// Names are part of the interface: new columns come last, before those of what made a run.
const COLUMNS: [(&str, Read); 25] = [
    ("workload", |f| f.any().workload.clone()),
    ("contender", |f| f.any().contender.clone()),
    ("seed", |f| f.any().settings.seed.to_string()),
    ("requests_per_second", |f| known(f.sustained.as_ref().and_then(|cell| cell.offered_per_second), 3)),
    ("load", |f| known(f.sustained.as_ref().map(|cell| cell.load), 4)),
    ("output_tokens_per_second", |f| there(f, |o| milli(o.output_per_second))),
    ("share", |f| there(f, |o| share(o.targets.share()))),
    ("ttft_p50", |f| there(f, |o| percentile(o.ttft_ms.p50))),
    ("ttft_p99", |f| there(f, |o| percentile(o.ttft_ms.p99))),
    ("itl_p50", |f| there(f, |o| percentile(o.itl_ms.p50))),
    ("itl_p99", |f| there(f, |o| percentile(o.itl_ms.p99))),
    ("limited_by", |f| f.limit().unwrap_or_default().to_owned()),
    ("beyond_load", |f| known(f.beyond.as_ref().map(|cell| cell.load), 4)),
    ("runs", |f| f.probes.len().to_string()),
    ("device", |f| f.any().settings.device.clone()),
    ("model", |f| f.any().settings.model.clone().unwrap_or_default()),
    ("blocks", |f| f.any().settings.blocks.to_string()),
    ("slo_ttft_ms", |f| f.any().settings.slo.ttft_ms.to_string()),
    ("slo_itl_ms", |f| f.any().settings.slo.itl_ms.to_string()),
    ("error", |f| f.any().outcome.as_ref().err().cloned().unwrap_or_default()),
    ("policy_faults", |f| there(f, |o| o.policy_faults.to_string())),
    ("builtin_share", |f| there(f, |o| share(o.builtin_share))),
    ("tpot_p50", |f| there(f, |o| percentile(o.tpot_ms.p50))),
    ("tpot_p99", |f| there(f, |o| percentile(o.tpot_ms.p99))),
    ("burstiness", |f| f.any().burstiness.map_or_else(String::new, |burstiness| burstiness.to_string())),
];

/// Renders CSV with a row per search. Durations are in milliseconds; what has no value is empty.
pub fn sustained_csv(all: &[Found]) -> String {
    let mut text = Writer::from_writer(Vec::new());
    let names = COLUMNS.map(|(name, _)| name);
    text.write_record(names.iter().chain(&made_by::COLUMNS)).expect("memory takes it");
    for found in all {
        let Cell { made_by, policies, .. } = found.any();
        let made_by = made_by::fields(made_by, policies.as_ref());
        text.write_record(COLUMNS.map(|(_, read)| read(found)).iter().chain(&made_by))
            .expect("memory takes it");
    }
    String::from_utf8(text.into_inner().expect("memory takes it")).expect("all fields are text")
}

/// A field about the run at the highest load that was sustained.
fn there(found: &Found, read: fn(&Outcome) -> String) -> String {
    found.outcome().map_or_else(String::new, read)
}

#[cfg(test)]
mod tests {
    use super::super::tests::cell;
    use super::*;
    use crate::metrics::{Attainment, FirstFault};

    /// A run of the contender with this index at a load, with a seed, of which so many percent met the targets.
    fn run(entrant: usize, seed: u64, load: f64, met: u64) -> crate::Cell {
        let targets = Attainment { met, late: 100 - met, ..Attainment::default() };
        let mut cell = cell(0, entrant, Outcome { requests: 100, targets, ..Outcome::default() });
        (cell.load, cell.offered_per_second, cell.settings.seed) = (load, Some(10.0 * load), seed);
        cell
    }

    fn found(low: Option<crate::Cell>, high: Option<crate::Cell>) -> Found {
        let probe = |cell: &crate::Cell| Probe {
            load: cell.load,
            offered_per_second: cell.offered_per_second,
            share: cell.outcome.as_ref().map_or(0.0, |outcome| outcome.targets.share()),
        };
        let probes = [&low, &high].into_iter().flatten().map(probe).collect();
        Found { sustained: low, beyond: high, failed: None, probes }
    }

    /// Two contenders that both sustain something, one that sustains nothing, and one that failed.
    fn all() -> Vec<Found> {
        let mut all = Vec::new();
        for (entrant, edges) in [[1.0, 1.2], [2.0, 2.3]].into_iter().enumerate() {
            for (seed, low) in [3, 4].into_iter().zip(edges) {
                let high = low + 0.01;
                all.push(found(Some(run(entrant, seed, low, 95)), Some(run(entrant, seed, high, 80))));
            }
        }
        if let Some(Ok(outcome)) = all[3].beyond.as_mut().map(|cell| &mut cell.outcome) {
            outcome.targets = Attainment { met: 80, slow: 20, ..Attainment::default() };
        }
        for seed in [3, 4] {
            let mut never = run(2, seed, 0.003, 7);
            if let Ok(outcome) = &mut never.outcome {
                let (kind, policy, message) = ("scheduler", "moody".to_owned(), "trap".to_owned());
                outcome.fault = Some(FirstFault { kind, policy, message, at_s: 3.5 });
                outcome.policy_faults = 2;
            }
            all.push(found(None, Some(never)));
        }
        for seed in [3, 4] {
            let mut failed = run(3, seed, 0.8, 0);
            failed.outcome = Err("no such trace".to_owned());
            all.push(Found { failed: Some(failed), ..found(None, None) });
        }
        all
    }

    #[test]
    fn table_marks_the_best_and_names_limits_and_failures() {
        let text = sustained_table(&all(), 0.9);
        for says in [
            "seeds 3, 4 (mean ± 95 % confidence interval); the highest load at which 90 % of the requests meet the targets, \
             which are those whose first token came within 2000 ms, then 50 ms per token\n",
            "\nmonday: 100 requests\n",
            "\n`*` is better than every rival by the 95 % confidence interval",
            " 21.50 ±19.06*",
            "\n  against a    requests/s",
            " +10.50 ±6.35 ",
            "  limited by ITL: b (1 of 2 seeds)\n  limited by TTFT: a, b (1 of 2 seeds)\n",
            "  c (seed 3) sustains no load, not even 0.0030; TTFT limits it\n",
            "  c, seed 4: policy faults: 2, the first after 3.5 s by scheduler `moody` (trap);",
            "  d, seed 3 failed: no such trace\n",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
        let row =
            text.lines().find(|line| line.starts_with("  c ")).expect("a row of the one without a load");
        assert!(row.split_whitespace().skip(1).all(|value| value == "-"), "{row}");
        for (share, says) in
            [(0.999, " which 99.9 % of"), (0.925, " which 92.5 % of"), (0.07, " which 7 % of")]
        {
            assert!(sustained_table(&all(), share).contains(says), "{says}");
        }
        let always = found(Some(run(0, 1, 204.8, 100)), None);
        assert!(
            sustained_table(&[always], 0.9)
                .contains("  a sustains every load up to 204.80, as far as 100 requests can tell\n")
        );
    }

    #[test]
    fn csv_has_a_row_per_search() {
        let text = sustained_csv(&all());
        let rows: Vec<std::collections::BTreeMap<String, String>> =
            ::csv::Reader::from_reader(text.as_bytes())
                .deserialize()
                .map(|row| row.expect("a row"))
                .collect();
        let of = |name: &str| rows.iter().map(|row| row[name].as_str()).collect::<Vec<_>>();
        assert_eq!(of("contender"), ["a", "a", "b", "b", "c", "c", "d", "d"]);
        assert_eq!(of("seed"), ["3", "4", "3", "4", "3", "4", "3", "4"]);
        let rates = ["10.000", "12.000", "20.000", "23.000", "", "", "", ""];
        assert_eq!(of("requests_per_second"), rates);
        assert_eq!(of("limited_by"), ["TTFT", "TTFT", "TTFT", "ITL", "TTFT", "TTFT", "", ""]);
        assert_eq!(of("beyond_load")[4..], ["0.0030", "0.0030", "", ""]);
        assert_eq!(of("error")[6..], ["no such trace", "no such trace"]);
        assert_eq!(of("policy_faults")[..6], ["0", "0", "0", "0", "", ""], "of what is sustained");
        assert_eq!((&rows[0]["builtin_share"][..], &rows[7]["builtin_share"][..]), ("0.00000", ""));
        assert_eq!((&rows[0]["share"][..], &rows[0]["runs"][..]), ("0.95000", "2"));
        assert!(
            ["version", "args", "scheduler", "prefix_cache_config"]
                .iter()
                .all(|name| rows[0].contains_key(*name))
        );
    }

    #[test]
    fn page_has_a_chart_of_what_was_run_near_the_edge() {
        let page = sustained_html(&all(), 0.9);
        for says in [
            "<h1>infer sim capacity</h1>",
            "<h2>monday: 100 requests</h2>",
            "d, seed 3 failed: no such trace",
            "<h2>What made this</h2>",
        ] {
            assert!(page.contains(says), "{says}: {page}");
        }
        assert_eq!(page.matches("<figure>").count(), 1, "{page}");
        assert!(!page.contains("NaN") && !page.contains("http"), "{page}");
        let mut far = all();
        far[0].probes.push(Probe { load: 900.0, offered_per_second: None, share: 0.0 });
        assert_eq!(sustained_html(&far, 0.9), page, "what is far beyond all edges is not drawn");
    }

    #[test]
    fn json_has_every_run_of_a_search() {
        let rows: serde_json::Value = serde_json::from_str(&sustained_json(&all())).expect("JSON");
        assert_eq!(rows[0]["sustained"]["targets"]["met"], 95);
        assert_eq!(rows[0]["probes"][1]["share"], 0.8);
        assert!(rows[4]["sustained"].is_null() && rows[4]["beyond"]["targets"]["late"] == 93);
        assert_eq!(rows[6]["failed"]["error"], "no such trace");
    }
}
