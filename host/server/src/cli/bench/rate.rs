//! The flags of rates: those to measure, and the search for the highest that meets the targets.

use clap::Args;

use crate::bench::{RateSearch, Targets};
use crate::cli::sim::burstiness;

/// Rates that may be asked for, per second.
const RATES: (f64, f64) = (0.001, 100_000.0);
/// How many times slower and faster than its first rate a search goes. Slow ones take long.
const SLOWER: f64 = 16.0;
const FASTER: f64 = 1_024.0;

/// Arguments of an open loop.
#[derive(Args)]
pub struct RateArgs {
    /// Open loop: conversations per second, with random arrivals; several rates are measured in turn. The times of a
    /// trace are scaled so that its requests have this mean rate
    #[arg(long, value_name = "PER_SECOND", value_delimiter = ',', value_parser = rate)]
    pub rate: Vec<f64>,
    /// Burstiness of these arrivals: gaps follow a gamma distribution of this shape, whose coefficient of variation is
    /// 1 / sqrt(shape); 1 is a Poisson process, less is more bursty
    #[arg(long, value_name = "SHAPE", default_value_t = 1.0, value_parser = burstiness)]
    pub burstiness: f64,
    /// Search for the highest rate at which --share percent of the requests meet the targets, from --rate on
    /// [default: from 1]
    #[arg(long)]
    pub find_rate: bool,
    /// Percentage of the requests that must meet the targets for a rate to count as sustained
    #[arg(long, value_name = "PERCENT", default_value_t = 90.0, value_parser = percent, requires = "find_rate")]
    pub share: f64,
    /// Seconds over which the requests arrive at each rate that is tried, ten of them at least
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds, requires = "find_rate")]
    pub probe_seconds: f64,
    /// Goodput target: time to the first token
    #[arg(long, value_name = "MS")]
    pub ttft_target_ms: Option<f64>,
    /// Goodput target: mean time per token after the first
    #[arg(long, value_name = "MS")]
    pub itl_target_ms: Option<f64>,
}

impl RateArgs {
    /// The targets of goodput.
    pub fn targets(&self) -> Targets {
        Targets { ttft_ms: self.ttft_target_ms, itl_ms: self.itl_target_ms }
    }

    /// The search, if one is asked for.
    pub fn search(&self) -> Option<RateSearch> {
        let first = self.rate.first().copied().unwrap_or(1.0);
        self.find_rate.then(|| RateSearch {
            first,
            burstiness: self.burstiness,
            limits: ((first / SLOWER).max(RATES.0), (first * FASTER).min(RATES.1)),
            seconds: self.probe_seconds,
            share: self.share / 100.0,
        })
    }

    /// What is wrong with them, beside a trace or a baseline.
    pub fn fault(&self, has_trace: bool, has_baseline: bool) -> Option<&'static str> {
        if self.burstiness != 1.0 && has_trace {
            Some(
                "--burstiness: the arrivals of a trace are recorded; give a workload, whose arrivals are drawn",
            )
        } else if self.burstiness != 1.0 && self.rate.is_empty() && !self.find_rate {
            Some("--burstiness: only an open loop draws arrivals; add --rate or --find-rate")
        } else if self.rate.len() > 1 && has_trace {
            Some("--rate: a trace is replayed at one rate; replay it once for each")
        } else if !self.find_rate {
            None
        } else if !self.targets().any() {
            Some("--find-rate: needs a target, --ttft-target-ms or --itl-target-ms or both")
        } else if has_trace {
            Some("--find-rate: a trace has times of its own; try several --rate")
        } else if self.rate.len() > 1 {
            Some("--rate: with --find-rate, only the rate to begin with")
        } else if has_baseline {
            Some("--baseline: --find-rate has none; it sends other prompts at each rate")
        } else {
            None
        }
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (RATES.0..=RATES.1).contains(rate));
    rate.ok_or_else(|| format!("expected a number a second from {} to {}", RATES.0, RATES.1))
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| *percent > 0.0 && *percent <= 100.0);
    percent.ok_or_else(|| "expected more than 0 and at most 100 percent".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3_600.0).contains(seconds));
    seconds.ok_or_else(|| "expected from 0.1 to 3600 seconds".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        rates: RateArgs,
    }

    #[test]
    fn burstiness_takes_an_open_loop() {
        for (flags, is_fault) in [
            (&["--burstiness", "0.25"][..], true),
            (&["--burstiness", "1"], false),
            (&[], false),
            (&["--burstiness", "0.25", "--rate", "2,4"], false),
            (&["--burstiness", "0.25", "--find-rate", "--ttft-target-ms", "9"], false),
        ] {
            let Line { rates } = Line::parse_from([&["serve"][..], flags].concat());
            let fault = rates.fault(false, false);
            assert_eq!(fault.is_some_and(|why| why.starts_with("--burstiness: ")), is_fault, "{flags:?}");
            let given = rates.search().map_or(rates.burstiness, |search| search.burstiness);
            assert_eq!(given, rates.burstiness, "{flags:?}");
        }
    }
}
