//! What a report of `infer bench serve` says about the settings and the policies that were measured.

use std::collections::BTreeMap;

use super::Failure;
use crate::bench::SlotPolicy;
use crate::config::{SETTINGS, Setting, Settings, parse};
use crate::serve::RunningServer;

/// Settings that reports leave out: those that don't apply to a server in this process, and the seed, which they name
/// elsewhere.
const LEFT_OUT: [&str; 11] = [
    "host",
    "port",
    "admin",
    "tls-cert",
    "tls-key",
    "api-keys",
    "operators",
    "policy-state",
    "sse-dialect",
    "generation-config",
    "seed",
];

/// Flags whose values the subject or the description of a workload shows anyway.
const SHOWN: [&str; 12] = [
    "model",
    "threads",
    "scheduler",
    "workload",
    "rate",
    "ttft-target-ms",
    "itl-target-ms",
    "repeat",
    "requests",
    "concurrency",
    "shared-prefix",
    "baseline",
];

/// The host's settings that are not their defaults, if they apply.
pub fn of_host(
    settings: &Settings,
    applies: impl Fn(&Setting) -> bool,
) -> impl Iterator<Item = (&'static str, &str)> {
    SETTINGS
        .iter()
        .filter(move |setting| applies(setting) && !LEFT_OUT.contains(&setting.key))
        .filter_map(move |setting| Some((setting, settings.get(setting.key)?.1)))
        .filter(|(setting, value)| !is_default(setting, value))
        .map(|(setting, value)| (setting.key, value))
}

/// The settings that nothing else shows, for the end of a subject.
pub fn unseen(settings: &BTreeMap<String, String>) -> String {
    let unseen = settings.iter().filter(|(key, _)| !SHOWN.contains(&key.as_str()));
    unseen.map(|(key, value)| format!(", {key} {value}")).collect::<Vec<_>>().concat()
}

/// The live policies of a server by slot.
pub async fn live_policies(server: &RunningServer) -> Result<BTreeMap<String, SlotPolicy>, Failure> {
    let report = server.engine().report().await.map_err(Failure::failed)?;
    let slots = report.snapshot.policies.iter();
    Ok(slots.map(|slot| (slot.kind.name().to_owned(), SlotPolicy::from(&*slot.policy))).collect())
}

/// Whether a value means what is meant without it.
fn is_default(setting: &Setting, value: &str) -> bool {
    match setting.switch {
        true => parse::switch(value) == parse::switch(setting.default),
        false => !setting.worded && value.trim() == setting.default,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_ends_with_the_settings_that_nothing_else_shows() {
        let settings = [("kv-cache", "contiguous"), ("requests", "4"), ("speculate", "8"), ("threads", "2")];
        let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(unseen(&settings), ", kv-cache contiguous, speculate 8");
    }

    #[test]
    fn settings_left_out_exist() {
        for key in LEFT_OUT {
            assert!(SETTINGS.iter().any(|setting| setting.key == key), "{key}");
        }
    }
}
