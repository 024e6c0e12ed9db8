//! What a scenario asks of the host in miniature, and what came of it.

use crate::{Micros, SequenceId};

/// A request of a scenario.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spec {
    /// When it arrives.
    pub arrived: Micros,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Tokens after which it really ends: from 1 to `max_new_tokens`.
    pub output_tokens: u32,
    /// Tokens after which it would have to.
    pub max_new_tokens: u32,
    /// Output tokens that the host expects when it arrives. By default the mean of its tenant's requests that have ended
    /// (of all tenants' for the tenant's first), and `max_new_tokens` before any has. As on a real host, it is at most
    /// `max_new_tokens` and doubles whenever the output reaches it.
    pub expected_tokens: Option<u32>,
    /// A prefix that it shares: which one, and how many of its prompt tokens.
    pub shared: Option<(u64, u32)>,
    /// Its tenant.
    pub tenant: u32,
    /// Larger is more urgent.
    pub priority: i32,
    /// When its first token is due, if that was promised.
    pub deadline: Option<Micros>,
    /// The conversation it continues; 0 for none.
    pub session: u64,
}

/// How a sequence fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Which one; the scenario's first request is 1.
    pub id: SequenceId,
    /// When it arrived.
    pub arrived: Micros,
    /// When it first computed.
    pub started: Micros,
    /// When its first token was ready.
    pub first_token: Micros,
    /// When its last token was ready.
    pub ended: Micros,
    /// How often it was preempted.
    pub preemptions: u32,
}

impl Finished {
    /// Time to first token.
    pub fn ttft(&self) -> Micros {
        self.first_token.since(self.arrived)
    }

    /// Time from its arrival to its last token.
    pub fn latency(&self) -> Micros {
        self.ended.since(self.arrived)
    }
}

/// The result of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Sequences in the order in which they ended.
    pub finished: Vec<Finished>,
    /// Steps that computed something.
    pub steps: u64,
    /// Tokens computed.
    pub tokens: u64,
    /// Sequences that gave their blocks back before their end.
    pub preemptions: u64,
    /// Sequences of plans that did not fit in memory.
    pub cut: u64,
    /// Most steps in a row in which a running sequence stood still.
    pub longest_pause: u64,
    /// The longest time that a waiting sequence was overtaken, as the watchdog counts it: from the first time
    /// that a later one of its tenant, no more urgent, started before it to the last. Other tenants'
    /// sequences count while none of its own tenant runs.
    pub longest_overtaken: Micros,
}

impl Report {
    /// How sequence `id` fared. Panics if it didn't end.
    pub fn of(&self, id: u64) -> Finished {
        *self.finished.iter().find(|end| end.id.0 == id).expect("it has ended")
    }

    /// A mean over sequences, in milliseconds: `report.mean_ms(1..=8, Finished::ttft)`.
    pub fn mean_ms(&self, ids: impl IntoIterator<Item = u64>, of: impl Fn(&Finished) -> Micros) -> u64 {
        let times: Vec<u64> = ids.into_iter().map(|id| of(&self.of(id)).0).collect();
        times.iter().sum::<u64>() / 1_000 / times.len() as u64
    }
}
