//! Report of a calibration: what a step costs by the profile, how that varies, and how well it fits the measured steps.

use ::csv::Writer;

use super::chart::{Axis, Chart, Mark, Scale, Series};
use super::section::{Figures, Section, page};
use crate::cost::{Cost, Fitted};
use crate::metrics::count;

/// A cost's name in profiles, what it is the price of, and the cost.
type Priced = (&'static str, &'static str, fn(&Cost) -> f64);

/// All but the costs per token computed.
const COSTS: [Priced; 7] = [
    ("step_us", "step", |cost| cost.step_us),
    ("row_us", "sequence", |cost| cost.row_us),
    ("drawing_us", "step that samples", |cost| cost.drawing_us),
    ("drawn_us", "token sampled", |cost| cost.drawn_us),
    ("decode_context_us", "token of context that a decode reads", |cost| cost.decode_context_us),
    ("repeated_context_us", "the same if another decode reads it, too", |cost| cost.repeated_context_us),
    ("chunk_attended_us", "token that a chunk's token attends to", |cost| cost.chunk_attended_us),
];

/// Renders tables for the terminal.
pub fn text(profile: &Fitted) -> String {
    section(profile).text()
}

/// Renders a page: the tables, and the distribution of the variation.
pub fn html(profile: &Fitted) -> String {
    page("infer sim calibrate", &[section(profile)])
}

/// Renders CSV: a row per number of the profile.
pub fn csv(profile: &Fitted) -> String {
    let mut text = Writer::from_writer(Vec::new());
    text.write_record(["profile", "what", "value"]).expect("memory takes it");
    for (what, value) in numbers(profile) {
        let value = value.to_string();
        text.write_record([&profile.name, &what, &value]).expect("memory takes it");
    }
    String::from_utf8(text.into_inner().expect("memory takes it")).expect("all fields are text")
}

/// Costs and fit by their names in the profile; its lists by their positions.
fn numbers(profile: &Fitted) -> Vec<(String, f64)> {
    let Fitted { block_size, total_blocks, cost, fit, .. } = profile;
    let mut numbers = vec![
        ("block_size".to_owned(), f64::from(*block_size)),
        ("total_blocks".to_owned(), f64::from(*total_blocks)),
        ("steps".to_owned(), count(fit.steps)),
        ("error_p50_percent".to_owned(), fit.error_p50_percent),
        ("error_p95_percent".to_owned(), fit.error_p95_percent),
        ("total_percent".to_owned(), fit.total_percent),
    ];
    numbers.extend(COSTS.iter().map(|(name, _, read)| ((*name).to_owned(), read(cost))));
    numbers.extend(cost.tokens.iter().map(|segment| (format!("token_us_from_{}", segment.from), segment.us)));
    numbers.extend(variation(profile).into_iter().map(|(ratio, part)| (format!("spread_{part}"), ratio)));
    numbers
}

fn section(profile: &Fitted) -> Section {
    let Fitted { name, block_size, total_blocks, cost, spread, fit, .. } = profile;
    let mut costs: Vec<_> = COSTS.iter().map(|(_, what, read)| ((*what).to_owned(), read(cost))).collect();
    for segment in &cost.tokens {
        let what = match segment.from > 0.0 {
            true => format!("token computed, beyond the first {}", segment.from),
            false => "token computed".to_owned(),
        };
        costs.push((what, segment.us));
    }
    let errors = [
        ("error of a step's time, median", fit.error_p50_percent),
        ("error of a step's time, 95th percentile", fit.error_p95_percent),
        ("error of the total", fit.total_percent),
    ];
    let errors = errors.map(|(what, error)| (what.to_owned(), error)).to_vec();
    let mut section = Section {
        heading: format!(
            "{name}: fitted to {} steps; {total_blocks} blocks of {block_size} tokens",
            fit.steps
        ),
        notes: Vec::new(),
        tables: vec![
            Figures { title: "fit", unit: "%", digits: 1, rows: errors },
            Figures { title: "costs", unit: "us", digits: 4, rows: costs },
        ],
        charts: Vec::new(),
    };
    if let [fastest, .., slowest] = spread[..] {
        let median = spread[spread.len() / 2];
        let rows = [("fastest step", fastest), ("median", median), ("slowest step", slowest)];
        let rows = rows.map(|(what, ratio)| (what.to_owned(), ratio)).to_vec();
        section.tables.push(Figures { title: "variation", unit: "measured / computed", digits: 2, rows });
        section.charts.push(("Measured over computed time, share of steps", distribution(profile)));
    } else {
        section.notes.push("Steps take the computed time, without variation.".to_owned());
    }
    section
}

/// Quantiles of measured over computed time, and the percentages of steps that take at most as long.
fn variation(profile: &Fitted) -> Vec<(f64, f64)> {
    let last = count(profile.spread.len() as u64) - 1.0;
    profile.spread.iter().zip(0..).map(|(&ratio, nth)| (ratio, 100.0 * f64::from(nth) / last)).collect()
}

fn distribution(profile: &Fitted) -> Chart {
    let (name, points) = (profile.name.clone(), variation(profile));
    Chart {
        x: Axis { label: "measured / computed", scale: Scale::Log },
        y: Axis { label: "% at most", scale: Scale::Linear },
        series: vec![Series { name, colour: 0, mark: Mark::Line, points }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(spread: &str) -> Fitted {
        let text = format!(
            r#"{{"format": 3, "name": "demo, <mine>", "block_size": 16, "total_blocks": 99, "spread": {spread},
                "cost": {{"step_us": 150, "row_us": 20.5, "drawing_us": 30, "drawn_us": 4, "decode_context_us": 0.01,
                          "repeated_context_us": 0.005, "chunk_attended_us": 0.0021,
                          "tokens": [{{"from": 0, "us": 40}}, {{"from": 3, "us": 0.5}}]}},
                "fit": {{"steps": 4000, "error_p50_percent": 2.1, "error_p95_percent": 7.8, "total_percent": -0.3}}}}"#
        );
        Fitted::from_json(&text).expect("a profile")
    }

    #[test]
    fn tables_show_fit_costs_and_variation() {
        let expected = "demo, <mine>: fitted to 4000 steps; 99 blocks of 16 tokens

  fit                                          %
  error of a step's time, median            2.1
  error of a step's time, 95th percentile   7.8
  error of the total                       -0.3

  costs                                            us
  step                                      150.0000
  sequence                                   20.5000
  step that samples                          30.0000
  token sampled                               4.0000
  token of context that a decode reads        0.0100
  the same if another decode reads it, too    0.0050
  token that a chunk's token attends to       0.0021
  token computed                             40.0000
  token computed, beyond the first 3          0.5000

  variation     measured / computed
  fastest step                0.90
  median                      1.00
  slowest step                1.40
";
        assert_eq!(text(&profile("[0.9, 1.0, 1.4]")), expected);
    }

    #[test]
    fn csv_has_every_number_of_the_profile() {
        let expected = "profile,what,value
\"demo, <mine>\",block_size,16
\"demo, <mine>\",total_blocks,99
\"demo, <mine>\",steps,4000
\"demo, <mine>\",error_p50_percent,2.1
\"demo, <mine>\",error_p95_percent,7.8
\"demo, <mine>\",total_percent,-0.3
\"demo, <mine>\",step_us,150
\"demo, <mine>\",row_us,20.5
\"demo, <mine>\",drawing_us,30
\"demo, <mine>\",drawn_us,4
\"demo, <mine>\",decode_context_us,0.01
\"demo, <mine>\",repeated_context_us,0.005
\"demo, <mine>\",chunk_attended_us,0.0021
\"demo, <mine>\",token_us_from_0,40
\"demo, <mine>\",token_us_from_3,0.5
\"demo, <mine>\",spread_0,0.9
\"demo, <mine>\",spread_50,1
\"demo, <mine>\",spread_100,1.4
";
        assert_eq!(csv(&profile("[0.9, 1.0, 1.4]")), expected);
    }

    #[test]
    fn page_draws_the_variation_and_a_steady_profile_has_none() {
        let page = html(&profile("[0.9, 1.0, 1.4]"));
        for says in [
            "<h1>infer sim calibrate</h1><h2>demo, &lt;mine&gt;: fitted to 4000 steps",
            "<td>error of the total</td><td>-0.3</td>",
            "<td>token computed, beyond the first 3</td><td>0.5000</td>",
            "<figure><h3>Measured over computed time, share of steps</h3>",
        ] {
            assert!(page.contains(says), "{says}: {page}");
        }
        let steady = html(&profile("[]"));
        let says = "<p>Steps take the computed time, without variation.</p>";
        assert!(steady.contains(says) && !steady.contains("<figure>"), "{steady}");
        assert!(!csv(&profile("[]")).contains("spread"));
    }
}
