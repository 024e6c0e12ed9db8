//! The machine of a measurement and its load: a figure means little without both.

use serde::{Deserialize, Serialize};

/// The machine that ran the benchmark.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Name of its processor, or its architecture if the system doesn't report the name.
    pub cpu: String,
    /// Available hardware threads.
    pub cores: usize,
    /// One-minute load average at the start of the measurement.
    pub load_average_before: Option<f64>,
}

impl Machine {
    /// Describes this machine, with its current load average.
    #[must_use]
    pub fn here() -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            cpu: name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            load_average_before: load_average(),
        }
    }
}

/// One-minute load average.
#[must_use]
pub fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}
