//! What contenders get: synthetic or recorded traffic, and how fast.

use std::sync::OnceLock;

use crate::run::Settings;
use crate::trace::{Reader, recorded_rate};
use crate::workload::{Capacity, Workload};

/// Opens a trace at its start.
pub type Open<'a> = Box<dyn Fn() -> Result<Reader<'a>, String> + Sync + 'a>;

/// How fast requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// A fraction of the first host's capacity; of a trace, the factor by which it is replayed faster than recorded.
    Load(f64),
    /// Requests per second; of a trace, those of its recorded times, scaled by the factor that gives them this rate.
    Rate(f64),
}

/// Traffic for the contenders.
pub enum Subject<'a> {
    /// Synthetic traffic, once at each pace.
    Made {
        /// Its requests.
        workload: Workload,
        /// How fast they arrive.
        paces: Vec<Pace>,
    },
    /// Recorded traffic, once at each pace.
    Recorded {
        /// How fast it is replayed.
        paces: Vec<Pace>,
        /// Name in reports.
        name: String,
        /// Maximum number of requests.
        requests: u64,
        /// Whether requests come as fast as earlier ones are answered, whatever their recorded times.
        closed_loop: bool,
        /// Opens the trace, once per run, and once more if its rate is asked for.
        open: Open<'a>,
    },
}

impl Subject<'_> {
    /// Name in reports.
    pub fn name(&self) -> &str {
        match self {
            Self::Made { workload, .. } => &workload.name,
            Self::Recorded { name, .. } => name,
        }
    }

    /// Number of requests, if known in advance.
    pub(super) fn requests(&self) -> Option<u64> {
        match self {
            Self::Made { workload, .. } => Some(workload.requests),
            Self::Recorded { .. } => None,
        }
    }

    /// That of its arrivals, if it is known.
    pub(super) fn burstiness(&self) -> Option<f64> {
        match self {
            Self::Made { workload, .. } => workload.burstiness(),
            Self::Recorded { .. } => None,
        }
    }

    /// The requests per second of a trace at a load; `None` of a workload, and of a trace that has no rate.
    pub(crate) fn recorded_at(&self, load: f64, full: &Full) -> Option<f64> {
        match self {
            Self::Recorded { requests, open, closed_loop: false, .. } => {
                full.recorded(*requests, open).as_ref().ok().map(|recorded| load * recorded)
            }
            Self::Recorded { .. } | Self::Made { .. } => None,
        }
    }

    /// How fast it arrives, in each of a contender's runs with a seed.
    pub(crate) fn paces(&self) -> Vec<Pace> {
        match self {
            Self::Made { paces, .. } | Self::Recorded { paces, .. } => paces.clone(),
        }
    }
}

impl std::fmt::Debug for Subject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Subject").field(&self.name()).finish()
    }
}

/// What a load of 1 of a subject is, found out by the first run that needs it.
#[derive(Debug, Default)]
pub(crate) struct Full {
    /// Of a workload, on the first host.
    capacity: OnceLock<Capacity>,
    /// Of a trace, in requests per second, or why it has no rate.
    recorded: OnceLock<Result<f64, String>>,
}

impl Full {
    /// That of a workload on the first host, whose settings these are.
    pub fn capacity(&self, workload: &Workload, settings: &Settings) -> &Capacity {
        self.capacity.get_or_init(|| Capacity::of(workload, settings))
    }

    /// The load at which a trace is replayed.
    pub fn load(&self, pace: Pace, requests: u64, open: &Open<'_>) -> Result<f64, String> {
        let rate = match pace {
            Pace::Load(load) => return Ok(load),
            Pace::Rate(rate) => rate,
        };
        self.recorded(requests, open).clone().map(|recorded| rate / recorded)
    }

    /// That of a trace.
    fn recorded(&self, requests: u64, open: &Open<'_>) -> &Result<f64, String> {
        let read = || recorded_rate(open()?, requests).map_err(|error| error.to_string());
        self.recorded.get_or_init(read)
    }
}
