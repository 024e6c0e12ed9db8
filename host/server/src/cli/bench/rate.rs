//! The flags of rates: those to measure, and the search for the highest that meets the targets.

use clap::Args;

use crate::bench::{RateSearch, Targets};

/// Rates that may be asked for, per second.
const RATES: (f64, f64) = (0.001, 100_000.0);
/// How many times slower and faster than its first rate a search goes. Slow ones take long.
const SLOWER: f64 = 16.0;
const FASTER: f64 = 1_024.0;

/// Arguments of an open loop.
#[derive(Args)]
pub struct RateArgs {
    /// Open loop: conversations per second, with Poisson arrivals; several rates are measured in turn
    #[arg(long, value_name = "PER_SECOND", value_delimiter = ',', value_parser = rate)]
    pub rate: Vec<f64>,
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
            limits: ((first / SLOWER).max(RATES.0), (first * FASTER).min(RATES.1)),
            seconds: self.probe_seconds,
            share: self.share / 100.0,
        })
    }

    /// What is wrong with a search, beside a trace or a baseline.
    pub fn fault(&self, has_trace: bool, has_baseline: bool) -> Option<&'static str> {
        if !self.find_rate {
            None
        } else if !self.targets().any() {
            Some("--find-rate: needs a target, --ttft-target-ms or --itl-target-ms or both")
        } else if has_trace {
            Some("--find-rate: a trace has times of its own; try several --speed")
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
