//! Results of a sweep as tables, CSV, JSON, or a page with charts. Other reports are sections of named figures.

pub mod chart;
mod columns;
mod csv;
mod field;
pub mod fit;
mod html;
mod interval;
mod made_by;
mod section;
mod setup;
mod summary;
mod sustained;
mod table;

pub use csv::csv;
pub use html::html;
pub use made_by::{MadeBy, Slots, Used};
pub use section::{Figures, Section, page};
pub use setup::Setup;
pub use summary::{Summary, summary, summary_csv, summary_json};
pub use sustained::{sustained_csv, sustained_html, sustained_json, sustained_table};
pub use table::table;

use std::collections::BTreeMap;

use crate::compare::Cell;

/// All results as JSON: an array with an object per run.
pub fn json(cells: &[Cell]) -> String {
    serde_json::to_string_pretty(cells).expect("outcomes are JSON")
}

/// Runs under the same workload and load.
fn groups(cells: &[Cell]) -> impl Iterator<Item = &[Cell]> {
    let of = |cell: &Cell| (cell.subject, cell.load, cell.offered_per_second);
    cells.chunk_by(move |a, b| of(a) == of(b))
}

/// The seeds of a group, in the order of its runs.
fn seeds(group: &[Cell]) -> Vec<u64> {
    let first = group.first().map(|cell| cell.entrant);
    group.iter().filter(|cell| Some(cell.entrant) == first).map(|cell| cell.settings.seed).collect()
}

/// Describes how it was run: the seeds, and the targets of goodput.
fn conditions(cells: &[Cell]) -> String {
    let (Some(first), Some(group)) = (cells.first(), groups(cells).next()) else { return String::new() };
    let seeds = of_seeds(&seeds(group), has_rivals(group));
    format!("{seeds}; goodput counts requests {}", first.settings.targets())
}

/// Names the seeds, and what is shown of them.
fn of_seeds(seeds: &[u64], has_rivals: bool) -> String {
    let shown: Vec<String> = seeds.iter().map(u64::to_string).collect();
    match &shown[..] {
        [seed] if has_rivals => format!("seed {seed} (one can't tell which is best)"),
        [seed] => format!("seed {seed}"),
        several => format!("seeds {} (mean ± 95 % confidence interval)", several.join(", ")),
    }
}

/// Whether a group has several contenders.
fn has_rivals(group: &[Cell]) -> bool {
    group.iter().any(|cell| cell.entrant != group[0].entrant)
}

/// Whether contenders are compared: there are several, and several seeds.
fn are_compared(cells: &[Cell]) -> bool {
    groups(cells).next().is_some_and(|group| has_rivals(group) && seeds(group).len() > 1)
}

/// What marks the best of a column means.
const BEST: &str = "better than every rival by the 95 % confidence interval of their differences with equal seeds; \
                    tables `against` show the differences from the first contender";

/// The simulated hosts, with their names if there are several.
fn hosts<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Vec<(&'a str, String)> {
    let mut hosts = BTreeMap::new();
    for cell in cells {
        hosts.entry(cell.host).or_insert_with(|| (cell.host_name.as_str(), cell.settings.host()));
    }
    hosts.into_values().collect()
}

/// What a reader must know about a comparison of hosts.
const SAME_TRAFFIC: &str = "all get the same requests, and loads of workloads are relative to the first";

/// Names the traffic of a group.
fn heading(group: &[Cell]) -> String {
    let first = &group[0];
    let rate = match first.offered_per_second {
        Some(rate) => format!(", {rate:.2} requests/s"),
        None => String::new(),
    };
    let name = format!("{} at load {:.2}{rate}", first.workload, first.load);
    match group.iter().find_map(|cell| cell.outcome.as_ref().ok()) {
        Some(outcome) => format!("{name}: {} requests", outcome.requests),
        None => name,
    }
}

/// What a reader must know about runs that failed, or that a policy left to the built-in.
fn notes(group: &[Cell]) -> Vec<String> {
    let several = seeds(group).len() > 1;
    group.iter().filter_map(|cell| note(cell, several)).collect()
}

/// What a reader must know about a run; with its seed if there are several.
fn note(cell: &Cell, several: bool) -> Option<String> {
    let seed = if several { format!(", seed {}", cell.settings.seed) } else { String::new() };
    let who = format!("{}{seed}", cell.contender);
    let outcome = match &cell.outcome {
        Ok(outcome) => outcome,
        Err(error) => return Some(format!("{who} failed: {error}")),
    };
    let fault = outcome.fault.as_ref()?;
    Some(format!(
        "{who}: policy faults: {}, the first after {:.1} s by {} `{}` ({}); the built-in decided {:.1} % of the steps \
         instead",
        outcome.policy_faults,
        fault.at_s,
        fault.kind,
        fault.policy,
        fault.message,
        100.0 * outcome.builtin_share
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use infer_core::config::EngineConfig;
    use infer_core::event::PrefixEvent;
    use infer_core::ids::Micros;

    use super::*;
    use crate::cost::Profile;
    use crate::metrics::{Attainment, Durations, Fairness, FirstFault, Outcome, Slo, TenantOutcome};
    use crate::predictions::Predictions;
    use crate::run::Settings;

    /// A run of the contender with this index.
    pub(crate) fn cell(subject: usize, entrant: usize, outcome: Outcome) -> Cell {
        let settings = Settings {
            engine: EngineConfig::default(),
            profile: Profile::named("h100", "8b").expect("a known profile"),
            host: Micros::ZERO,
            load: 1.0,
            slo: Slo::default(),
            seed: 1,
            tenants: Vec::new(),
            predictions: Predictions::Learned,
        };
        Cell {
            subject,
            host: 0,
            entrant,
            workload: "monday".to_owned(),
            load: 1.0,
            offered_per_second: None,
            burstiness: None,
            host_name: String::new(),
            contender: ["a", "b", "c", "d"][entrant].to_owned(),
            settings: Setup::of(&settings),
            made_by: MadeBy::default(),
            policies: None,
            outcome: Ok(outcome),
        }
    }

    /// A contender that ran well with two tenants, one that was left to the built-in, and one that failed; each with
    /// two seeds.
    pub(super) fn mixed() -> Vec<Cell> {
        let tenant = |tenant| TenantOutcome {
            tenant,
            requests: 4,
            finished: 3,
            refused: 1,
            failed: 0,
            tokens: 900,
            output_per_second: 12.5,
            ttft_ms: Durations { mean: 70.0, ..Durations::default() },
            cached_ratio: Some(0.25),
            name: (tenant == 7).then(|| "ChatGPT".to_owned()),
            latency_ms: Durations { mean: 900.5, ..Durations::default() },
            itl_ms: Durations { p99: 12.35, ..Durations::default() },
            targets: Attainment { met: 1, late: 2, slow: 0, unserved: 1 },
            goodput_share: 0.25,
            in_time: Some(0.5),
            preemptions: 2,
            service: 640.0,
            ..TenantOutcome::default()
        };
        let fairness = Fairness { service: Some(0.91), ..Fairness::default() };
        let tenants = vec![tenant(1), tenant(7)];
        let well = Outcome { requests: 8, finished: 8, tenants, fairness, ..Outcome::default() };
        let fault = FirstFault {
            kind: "scheduler",
            policy: "moody".to_owned(),
            message: "trap: <it fell over>".to_owned(),
            at_s: 3.5,
        };
        let left = Outcome {
            requests: 8,
            finished: 8,
            policy_faults: 3,
            fault: Some(fault),
            builtin_share: 0.841,
            ..Outcome::default()
        };
        let mut cells = Vec::new();
        for (entrant, outcome) in
            [Ok(well), Ok(left), Err("line 7, column 2: \"<\"".to_owned())].into_iter().enumerate()
        {
            for seed in [3, 4] {
                let mut cell = cell(0, entrant, Outcome::default());
                cell.outcome = outcome.clone();
                cell.settings.seed = seed;
                cells.push(cell);
            }
        }
        cells
    }

    /// Runs of a contender on two hosts.
    pub(super) fn on_two_hosts() -> [Cell; 2] {
        [("l4", 3.0), ("h100", 9.0)].map(|(name, output_per_second)| {
            let outcome = Outcome { requests: 5, finished: 5, output_per_second, ..Outcome::default() };
            let host = usize::from(name == "h100");
            let mut cell = cell(0, host, outcome);
            (cell.host, cell.host_name, cell.contender) = (host, name.to_owned(), name.to_owned());
            (cell.settings.device, cell.offered_per_second) = (name.to_owned(), Some(4.5));
            cell
        })
    }

    #[test]
    fn json_names_events_settings_and_errors() {
        let rows: serde_json::Value = serde_json::from_str(&json(&mixed())).expect("JSON");
        let settings = &rows[1]["settings"];
        assert_eq!((&settings["device"], &settings["model"]), (&"h100".into(), &"8b".into()));
        assert_eq!((&settings["seed"], &settings["block_size"]), (&4.into(), &16.into()));
        assert_eq!((&settings["blocks"], &settings["slo"]["itl_ms"]), (&1_024.into(), &50.0.into()));
        let events = rows[0]["cache"]["events"].as_object().expect("an object");
        assert!(PrefixEvent::ALL.iter().all(|event| events[event.name()] == 0), "{events:?}");
        assert!(rows[0]["in_time"].is_null() && rows[0]["fault"].is_null() && rows[0]["error"].is_null());
        assert!(rows[0]["itl_ms"]["p99"].is_null() && rows[0]["tenants"][0]["ttft_ms"]["p50"].is_null());
        assert_eq!(
            (&rows[0]["tenants"][0]["ttft_ms"]["mean"], &rows[0]["pool"]["used_mean"]),
            (&70.0.into(), &0.0.into())
        );
        assert_eq!(rows[2]["fault"]["policy"], "moody");
        assert_eq!((&rows[2]["fault"]["at_s"], &rows[2]["builtin_share"]), (&3.5.into(), &0.841.into()));
        assert_eq!(
            (&rows[5]["contender"], &rows[5]["error"]),
            (&"c".into(), &"line 7, column 2: \"<\"".into())
        );
        assert!(rows[5].get("requests").is_none(), "{}", rows[5]);
    }
}
