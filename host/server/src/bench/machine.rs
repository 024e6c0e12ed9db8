//! On what was measured, and how busy it was: a figure without both means little.

use serde::{Deserialize, Serialize};

/// The machine that ran the generator.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Its processor's name, where the system tells.
    pub cpu: String,
    /// Threads that run at once.
    pub cores: usize,
    /// Load average of the last minute when the measurement began.
    pub load_average_before: Option<f64>,
}

impl Machine {
    /// This one, now.
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

/// Load average of the last minute.
#[must_use]
pub fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}
