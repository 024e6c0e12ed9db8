//! What a report says was given, and what it is about.

use std::collections::BTreeMap;

use clap::{Args as _, FromArgMatches as _, ValueEnum};

use super::ServeArgs;
use crate::cli::Failure;
use crate::cli::bench::rate::RateArgs;
use crate::cli::bench::report;
use crate::cli::bench::trace::TraceArgs;
use crate::config::{Config, Setting, Settings};

impl ServeArgs {
    /// Flags of the load, and settings of what computes in this process, that are not their defaults.
    pub(super) fn given(&self, settings: &Settings) -> Result<BTreeMap<String, String>, Failure> {
        let load = self.load().into_iter().zip(Self::usual()?.load());
        let load = load.filter(|(given, usual)| given != usual);
        let applies = |setting: &Setting| match self.url {
            None => true,
            // Only the baseline computes here.
            Some(_) => self.wants_baseline() && setting.generate,
        };
        let settings = report::of_host(settings, applies).map(|(key, value)| (key, value.to_owned()));
        let given = load.map(|(given, _)| given).chain(settings);
        Ok(given.map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// Names what is measured, with these settings.
    pub(super) fn subject(&self, config: &Config, settings: &BTreeMap<String, String>) -> String {
        match (&self.label, &self.url) {
            (Some(label), _) => label.clone(),
            // The settings are those of the load and of the baseline.
            (None, Some(_)) => "remote server".to_owned(),
            (None, None) => format!(
                "{} served in this process, {} threads, scheduler {}{}",
                config.model,
                config.threads,
                config.scheduler.name,
                report::unseen(settings)
            ),
        }
    }

    /// The flags that describe the load, as text; those without a value are empty.
    fn load(&self) -> [(&'static str, String); 22] {
        // No `..`, so that a new flag isn't forgotten.
        let Self {
            url: _,
            trust: _,
            dialect,
            api,
            lengths,
            workload,
            rates:
                RateArgs { rate, burstiness, find_rate, share, probe_seconds, ttft_target_ms, itl_target_ms },
            repeat,
            requests,
            concurrency,
            shared_prefix,
            trace: TraceArgs { trace, speed, first, closed_loop },
            vocab_size,
            baseline,
            served_model,
            api_key: _,
            format: _,
            out: _,
            label: _,
            flags: _,
        } = self;
        [
            ("dialect", name(dialect)),
            ("api", name(api)),
            ("lengths", name(lengths)),
            ("workload", workload.iter().map(name).collect::<Vec<_>>().join(",")),
            ("rate", rate.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
            ("burstiness", burstiness.to_string()),
            ("find-rate", text(find_rate.then_some("yes"))),
            ("share", share.to_string()),
            ("probe-seconds", probe_seconds.to_string()),
            ("ttft-target-ms", text(*ttft_target_ms)),
            ("itl-target-ms", text(*itl_target_ms)),
            ("repeat", repeat.to_string()),
            ("requests", requests.to_string()),
            ("concurrency", concurrency.to_string()),
            ("shared-prefix", shared_prefix.to_string()),
            ("trace", text(trace.as_ref().map(|path| path.display()))),
            ("speed", speed.to_string()),
            ("first", text(*first)),
            ("closed-loop", text(closed_loop.then_some("yes"))),
            ("vocab-size", text(*vocab_size)),
            ("baseline", baseline.as_ref().map(name).unwrap_or_default()),
            ("served-model", served_model.clone().unwrap_or_default()),
        ]
    }

    /// The arguments of a command line without flags.
    fn usual() -> Result<Self, Failure> {
        let command = Self::augment_args(clap::Command::new("serve"));
        let matches = command.try_get_matches_from(["serve"]).map_err(Failure::failed)?;
        Self::from_arg_matches(&matches).map_err(Failure::failed)
    }
}

fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn text<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}
