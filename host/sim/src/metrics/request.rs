//! What became of a single request.

use infer_core::event::PrefixEvent;
use infer_core::ids::Micros;
use infer_core::request::Usage;
use serde::Serialize;

use super::{count, in_time, millis, time_per_output_token};

/// A request that has ended. Durations are in milliseconds of virtual time from its arrival.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestOutcome {
    /// Number in the order of arrival, from 1.
    pub request: u64,
    /// Its tenant.
    pub tenant: u32,
    /// Its conversation; `None` for a single request.
    pub conversation: Option<u64>,
    /// Time of arrival in seconds.
    pub arrived_s: f64,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// What the prompt found in the cache; `None` if it never started.
    pub event: Option<&'static str>,
    /// Prompt tokens found in the cache when it first started.
    pub cached_tokens: u32,
    /// Tokens computed for its prompt and, after preemptions, for its output again.
    pub prefilled_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// Time until it first ran; `None` if it never did.
    pub queue_ms: Option<f64>,
    /// Time until its first token; `None` if there was none.
    pub ttft_ms: Option<f64>,
    /// Time until it ended.
    pub latency_ms: f64,
    /// Times that it was preempted.
    pub preemptions: u32,
    /// How it ended.
    pub ending: Ending,
    /// Tokens of the prompt behind the conversation so far: all that a client sends if the host keeps the history.
    pub new_tokens: u32,
    /// Larger is more urgent.
    pub priority: i32,
    /// Most output tokens that its client asked for.
    pub max_tokens: u32,
    /// Time from its arrival within which the first token was due; `None` for no deadline.
    pub deadline_ms: Option<f64>,
    /// Whether the first token came by then; `None` without a deadline.
    pub in_time: Option<bool>,
    /// Index of its stream in the workload; `None` in a trace.
    pub stream: Option<u32>,
    /// Time between two of its tokens than which at most one in a hundred was longer; `None` with fewer than two.
    pub itl_p99_ms: Option<f64>,
    /// The longest time between two of its tokens.
    pub itl_max_ms: Option<f64>,
    /// Its time per output token, see `Outcome::tpot_ms`; `None` unless it finished with at least two.
    pub tpot_ms: Option<f64>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ending {
    /// With its whole output.
    Finished,
    /// In an error.
    Failed,
    /// It was not let in.
    Refused,
}

/// Follows a run. A closure follows the number of requests that have ended.
pub trait Watch {
    /// `ended` requests have ended so far.
    fn progress(&mut self, ended: u64);

    /// A request has ended.
    fn request(&mut self, _request: &RequestOutcome) {}
}

impl<F: FnMut(u64)> Watch for F {
    fn progress(&mut self, ended: u64) {
        self(ended);
    }
}

/// What is known of a request when it arrives, and what its prompt found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub request: u64,
    pub tenant: u32,
    pub conversation: Option<u64>,
    pub arrived: Micros,
    pub prompt_tokens: u32,
    pub new_tokens: u32,
    pub event: Option<PrefixEvent>,
    pub priority: i32,
    pub max_tokens: u32,
    pub deadline: Micros,
    pub stream: Option<u32>,
}

impl Known {
    /// The request at its end, `now`; without `usage` if it never started. `gaps` are the microseconds between its
    /// tokens; their order is lost.
    pub fn outcome(
        self,
        ending: Ending,
        usage: Option<&Usage>,
        gaps: &mut [u32],
        now: Micros,
    ) -> RequestOutcome {
        let Self { request, tenant, conversation, arrived, prompt_tokens, new_tokens, event, .. } = self;
        let Self { priority, max_tokens, deadline, stream, .. } = self;
        let after = |at: Micros| (at != Micros::NEVER).then(|| millis(at.since(arrived)));
        let gap = |us: u32| millis(Micros(u64::from(us)));
        let itl_max_ms = gaps.iter().max().map(|&us| gap(us));
        let rank = (99 * gaps.len()).div_ceil(100);
        let itl_p99_ms = rank.checked_sub(1).map(|rank| gap(*gaps.select_nth_unstable(rank).1));
        let refused = (deadline != Micros::NEVER).then_some(false);
        let finished = usage.filter(|_| ending == Ending::Finished);
        RequestOutcome {
            request,
            tenant,
            conversation,
            arrived_s: count(arrived.0) / 1e6,
            prompt_tokens,
            event: event.map(PrefixEvent::name),
            cached_tokens: usage.map_or(0, |usage| usage.cached_tokens),
            prefilled_tokens: usage.map_or(0, |usage| usage.prefilled_tokens),
            output_tokens: usage.map_or(0, |usage| usage.generated_tokens),
            queue_ms: usage.and_then(|usage| after(usage.started)),
            ttft_ms: usage.and_then(|usage| after(usage.first_token)),
            latency_ms: millis(now.since(arrived)),
            preemptions: usage.map_or(0, |usage| usage.preemptions),
            ending,
            new_tokens,
            priority,
            max_tokens,
            deadline_ms: after(deadline),
            in_time: usage.map_or(refused, |usage| in_time(usage, deadline)),
            stream,
            itl_p99_ms,
            itl_max_ms,
            tpot_ms: finished.and_then(time_per_output_token).map(millis),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: Known = Known {
        request: 1,
        tenant: 0,
        conversation: None,
        arrived: Micros(1_000),
        prompt_tokens: 9,
        new_tokens: 9,
        event: None,
        priority: 0,
        max_tokens: 64,
        deadline: Micros(51_000),
        stream: None,
    };

    #[test]
    fn gaps_are_summed_up_by_rank() {
        let of = |mut gaps: Vec<u32>| {
            let row = KNOWN.outcome(Ending::Finished, Some(&Usage::default()), &mut gaps, Micros(9_000));
            (row.itl_p99_ms, row.itl_max_ms)
        };
        assert_eq!(of(Vec::new()), (None, None));
        assert_eq!(of(vec![7_000]), (Some(7.0), Some(7.0)));
        let hundred =
            |longest: [u32; 2]| -> Vec<u32> { (1..=98).rev().map(|n| 10 * n).chain(longest).collect() };
        assert_eq!(of(hundred([5_500, 80_000])), (Some(5.5), Some(80.0)));
        assert_eq!(of(vec![u32::MAX, 1_000]), (Some(4_294_967.295), Some(4_294_967.295)));
    }

    #[test]
    fn time_per_output_token_takes_two_tokens_and_an_end() {
        let of = |ending, generated_tokens| {
            let (first_token, ended) = (Micros(21_000), Micros(41_001));
            let usage = Usage { generated_tokens, first_token, ended, ..Usage::default() };
            KNOWN.outcome(ending, Some(&usage), &mut [], ended).tpot_ms
        };
        let by_tokens = [0, 1, 2, 3, 5].map(|tokens| of(Ending::Finished, tokens));
        assert_eq!(by_tokens, [None, None, Some(20.001), Some(10.001), Some(5.0)]);
        assert_eq!(of(Ending::Failed, 5), None);
        assert_eq!(KNOWN.outcome(Ending::Refused, None, &mut [], Micros(9_000)).tpot_ms, None);
    }

    #[test]
    fn deadline_counts_from_the_arrival_and_is_missed_by_a_request_that_is_refused() {
        let of = |deadline, usage: Option<Usage>| {
            let known = Known { deadline, ..KNOWN };
            let row = known.outcome(Ending::Failed, usage.as_ref(), &mut [], Micros(90_000));
            (row.deadline_ms, row.in_time)
        };
        let first = |us| Some(Usage { first_token: Micros(us), ..Usage::default() });
        assert_eq!(of(KNOWN.deadline, first(51_000)), (Some(50.0), Some(true)));
        assert_eq!(of(KNOWN.deadline, first(51_001)), (Some(50.0), Some(false)));
        assert_eq!(of(KNOWN.deadline, None), (Some(50.0), Some(false)));
        assert_eq!(of(Micros::NEVER, first(5)), (None, None));
        assert_eq!(of(Micros::NEVER, None), (None, None));
    }
}
