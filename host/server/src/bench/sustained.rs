//! The highest rate that a server sustains: requests arrive faster and faster, until too few of them meet the targets.

use infer_sim::Bracket;
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::report::{Targets, WorkloadReport};
use super::workload::{Arrival, Workload};
use super::{BenchError, Plan};

/// A search ends when the rate that is not sustained is at most this much higher than the one that is: two runs at the
/// same rate differ by about as much.
const CLOSE: f64 = 1.05;
/// The fewest conversations of a run, whatever its rate.
const FEWEST: usize = 10;

/// A search for the highest rate of each workload.
#[derive(Clone, Copy, Debug)]
pub struct RateSearch {
    /// Rate to begin with, in conversations per second.
    pub first: f64,
    /// Burstiness of arrivals, see [`Arrival::open`].
    pub burstiness: f64,
    /// Rates at which to give up.
    pub limits: (f64, f64),
    /// Seconds over which the conversations of a run arrive, if they are not too few.
    pub seconds: f64,
    /// Fraction of the requests that must meet the targets for a rate to be sustained.
    pub share: f64,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sustained {
    /// Name of the workload.
    pub workload: String,
    /// As in [`RateSearch`].
    pub share: f64,
    /// The targets.
    pub targets: Targets,
    /// The highest rate that was sustained, in conversations per second; `None` if not even the lowest was.
    pub rate: Option<f64>,
    /// Fraction of the requests at that rate that met the targets.
    pub share_there: Option<f64>,
    /// The lowest rate that was not sustained; `None` if even the highest was.
    pub beyond: Option<f64>,
    /// What most of the requests missed there that missed the targets: `TTFT`, `ITL`, or `an answer`.
    pub limited_by: Option<String>,
}

impl RateSearch {
    /// Runs a workload at one rate after the other. Returns what it found, and the runs from the lowest rate to the
    /// highest.
    pub(super) async fn run(
        &self,
        client: &Client,
        workload: &Workload,
        plan: &Plan,
    ) -> Result<(Sustained, Vec<WorkloadReport>), BenchError> {
        let mut bracket = Bracket { sustained: None, beyond: None, limits: self.limits, close: CLOSE };
        let mut runs: Vec<(f64, WorkloadReport)> = Vec::new();
        let mut next = Some(self.first);
        while let Some(rate) = next {
            let workload = self.at(rate, workload, plan.seed, runs.len());
            let report = super::served(client, &workload, plan).await?;
            let share = share_of(&report);
            eprintln!("{}: {:.1}% met the targets at {rate} per second", report.name, share * 100.0);
            bracket.saw(rate, share >= self.share);
            runs.push((rate, report));
            next = bracket.next().map(rounded);
        }
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let at = |rate: Option<f64>| runs.iter().find(|run| Some(run.0) == rate).map(|run| &run.1);
        let found = Sustained {
            workload: workload.name.to_owned(),
            share: self.share,
            targets: plan.targets,
            rate: bracket.sustained,
            share_there: at(bracket.sustained).map(share_of),
            beyond: bracket.beyond,
            limited_by: at(bracket.beyond)
                .and_then(|report| plan.targets.limit(&report.samples))
                .map(str::to_owned),
        };
        Ok((found, runs.into_iter().map(|run| run.1).collect()))
    }

    /// The workload with as many conversations as arrive at this rate, whose prompts differ from those of other rounds.
    fn at(&self, rate: f64, workload: &Workload, seed: u64, round: usize) -> Workload {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is positive")]
        let conversations = ((rate * self.seconds).ceil() as usize).max(FEWEST);
        workload.of(seed, conversations).retold(seed, round).arriving(Arrival::open(rate, self.burstiness))
    }
}

impl Sustained {
    /// The result in a sentence.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { workload, share, targets, rate, share_there, beyond, limited_by } = self;
        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        let targets = targets.text();
        let limit = limited_by
            .as_ref()
            .map_or_else(String::new, |limit| format!(", where most others missed {limit}"));
        match (rate, share_there, beyond) {
            (Some(rate), Some(met), Some(beyond)) => format!(
                "{workload} sustains {rate} per second: {} within {targets} (asked: {}); not {beyond}{limit}",
                percent(*met),
                percent(*share)
            ),
            (Some(rate), Some(met), None) => format!(
                "{workload} sustains {rate} per second, the highest rate that was tried: {} within {targets}",
                percent(*met)
            ),
            (_, _, beyond) => format!(
                "{workload} doesn't sustain {} per second, the lowest rate that was tried: fewer than {} within {targets}{limit}",
                beyond.unwrap_or_default(),
                percent(*share)
            ),
        }
    }
}

fn share_of(report: &WorkloadReport) -> f64 {
    report.goodput.map_or(0.0, |goodput| goodput.share)
}

/// To three digits, which name a rate well enough.
fn rounded(rate: f64) -> f64 {
    let unit = 10f64.powi(rate.log10().floor() as i32 - 2);
    // Parsed, so that it is the nearest number to what is shown.
    format!("{:.6}", (rate / unit).round() * unit).parse().unwrap_or(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_has_the_conversations_of_its_time_and_its_own_prompts() {
        let search =
            RateSearch { first: 1.0, burstiness: 1.0, limits: (0.1, 100.0), seconds: 30.0, share: 0.9 };
        let talk = Workload::conversations(7, 256);
        let bursts = RateSearch { burstiness: 0.25, ..search }.at(2.5, &talk, 7, 0);
        assert_eq!((bursts.jobs.len(), bursts.arrival), (375, Arrival::open(2.5, 0.25)));
        let runs = [(2.5, 0), (2.5, 1), (0.1, 2)].map(|(rate, round)| search.at(rate, &talk, 7, round));
        let sizes = runs.each_ref().map(|run| (run.jobs.len(), run.turns, run.arrival));
        let five = Arrival::Poisson(2.5);
        assert_eq!(sizes, [(375, 5, five), (375, 5, five), (50, 5, Arrival::Poisson(0.1))]);
        assert!(runs[0].jobs.iter().zip(&runs[1].jobs).all(|(a, b)| a.prompt[..16] != b.prompt[..16]));
    }

    #[test]
    fn rates_have_three_digits() {
        for (rate, shown) in [(1.414_9, "1.41"), (0.012_345_6, "0.0123"), (17_782.794, "17800"), (2.0, "2")] {
            assert_eq!(rounded(rate).to_string(), shown);
        }
    }

    #[test]
    fn result_says_what_was_found_and_what_limits_it() {
        let found = Sustained {
            workload: "W2".to_owned(),
            share: 0.9,
            targets: Targets { ttft_ms: Some(500.0), itl_ms: Some(50.0) },
            rate: Some(3.36),
            share_there: Some(0.921),
            beyond: Some(3.5),
            limited_by: Some("TTFT".to_owned()),
        };
        assert_eq!(
            found.text(),
            "W2 sustains 3.36 per second: 92.1% within TTFT 500 ms and ITL 50 ms (asked: 90.0%); not 3.5, where most \
             others missed TTFT"
        );
        let always = Sustained { beyond: None, limited_by: None, ..found.clone() };
        assert!(
            always.text().contains("3.36 per second, the highest rate that was tried: 92.1%"),
            "{}",
            always.text()
        );
        let never = Sustained { rate: None, share_there: None, ..found };
        assert!(never.text().contains("doesn't sustain 3.5 per second, the lowest rate"), "{}", never.text());
    }
}
