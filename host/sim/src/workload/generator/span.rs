//! Which part of the traffic is reported on.

use std::collections::BTreeMap;

use super::super::source::{Source, us};
use super::super::{Capacity, Workload};

/// Order of arrivals, which doesn't depend on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub at_us: u64,
    pub stream: usize,
    pub begin: u64,
}

/// What begins in this part of the traffic is reported on, to its end. A host that has just begun has fewer conversations
/// than the load means, so others begin before, and go on beginning until those of the report have ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub from_us: u64,
    pub last: Rank,
    /// Requests of the last.
    pub last_asks: usize,
    pub until_us: u64,
}

impl Span {
    /// `requests` requests of what begins from `longest_us` on.
    pub fn new(mut sources: Vec<Source>, requests: u64, longest_us: u64) -> Self {
        let (mut ahead, streams) = (BTreeMap::new(), sources.len());
        let mut next = |ahead: &mut BTreeMap<Rank, usize>, stream: usize, number: u64| {
            let begin = sources[stream].begin();
            ahead.insert(Rank { at_us: begin.at_us, stream, begin: number }, begin.asks.len());
        };
        (0..streams).for_each(|stream| next(&mut ahead, stream, 0));
        let mut left = requests.max(1);
        loop {
            let (last, asks) = ahead.pop_first().expect("streams don't end");
            let counted = if last.at_us < longest_us { 0 } else { asks as u64 };
            if counted >= left {
                let last_asks = usize::try_from(left).expect("at most its requests");
                return Self { from_us: longest_us, last, last_asks, until_us: last.at_us + longest_us };
            }
            left -= counted;
            next(&mut ahead, last.stream, last.begin + 1);
        }
    }
}

/// How long the longest conversations last on a busy device, but at most a multiple of the run.
pub(super) fn longest_us(workload: &Workload, capacity: &Capacity, run_s: f64) -> u64 {
    const MOST_RUNS: f64 = 4.0;
    let lasts_s = workload.streams.iter().zip(&capacity.streams).map(|(stream, pace)| {
        let answer_s = stream.output.mean() * pace.step_us / 1e6;
        stream.text.lasts_s(answer_s)
    });
    us(lasts_s.fold(0.0, f64::max).min(MOST_RUNS * run_s) * 1e6)
}
