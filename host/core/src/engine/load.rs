//! What live sequences still ask of the host, and its load as the admission policy sees it.

use super::Engine;
use super::forecast::{self, Course};
use crate::expectation::Expectation;
use crate::ids::{Micros, TenantId};
use crate::policy::{Load, SequenceColumns};
use crate::rates::Rates;
use crate::request::SequenceState;
use crate::sequence::Sequence;

/// What live sequences still ask of the host, and how fast it serves.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// Most prompt and output tokens that held and waiting requests which never ran may still need.
    pub waiting_tokens: u64,
    /// Their prompts alone.
    pub waiting_prompt_tokens: u64,
    /// Output tokens that all live sequences are still expected to generate.
    pub expected_output_tokens: u64,
    pub rates: Rates,
}

impl Demand {
    /// A new sequence is in the queue.
    pub fn enqueue(&mut self, sequence: &Sequence) {
        self.waiting_tokens += sequence.tokens_ahead();
        self.waiting_prompt_tokens += u64::from(sequence.prompt_len);
        self.expected_output_tokens += sequence.expected_ahead();
    }

    /// More is known of what a held sequence will generate.
    pub fn expect(&mut self, sequence: &mut Sequence, expectation: Expectation) {
        self.expected_output_tokens -= sequence.expected_ahead();
        sequence.expectation = expectation;
        sequence.expected = expectation.at(sequence.generated);
        self.expected_output_tokens += sequence.expected_ahead();
    }

    /// A queued sequence starts or ends, and still has the state that it waited in. A preempted one isn't counted.
    pub fn dequeue(&mut self, sequence: &Sequence) {
        if sequence.state != SequenceState::Preempted {
            self.waiting_tokens -= sequence.tokens_ahead();
            self.waiting_prompt_tokens -= u64::from(sequence.prompt_len);
        }
    }

    /// A sequence ends, wherever it got to.
    pub fn end(&mut self, sequence: &Sequence) {
        self.expected_output_tokens -= sequence.expected_ahead();
    }

    /// A sequence drew a token. If that was the last one expected of it, more of them are expected, and how many in all is
    /// returned.
    pub fn drew(&mut self, sequence: &mut Sequence) -> Option<u32> {
        self.expected_output_tokens -= 1;
        if sequence.generated != sequence.expected {
            return None;
        }
        let longer = sequence.expected_at(sequence.generated);
        self.expected_output_tokens += u64::from(longer - sequence.expected);
        sequence.expected = longer;
        Some(longer)
    }
}

impl Engine {
    /// The load as a request of this tenant meets it.
    pub(super) fn load(&self, tenant_row: u32, now: Micros) -> Load {
        let (prefill, output) = self.demand.rates.per_second(now, self.config.limits.full_prefill());
        let tenants = &self.view.tenants;
        let at = tenant_row as usize;
        let terms = self.tenants.terms(tenant_row);
        let cell = |column: &[u32]| column.get(at).copied().unwrap_or(0);
        let served = |column: &[u64]| column.get(at).copied().unwrap_or(0);
        Load {
            now,
            memory: self.kv.blocks.memory(),
            max_running: self.config.limits.max_running,
            running: self.rows.running.ix.len() as u32,
            admitted: self.rows.unstarted() as u32,
            preempted: self.rows.preempted as u32,
            max_waiting: self.config.max_waiting,
            waiting: self.queued(),
            waiting_tokens: self.demand.waiting_tokens,
            waiting_prompt_tokens: self.demand.waiting_prompt_tokens,
            started_prompt_tokens: self.started_prompt_tokens(),
            expected_output_tokens: self.demand.expected_output_tokens,
            prefill_tokens_per_second: prefill,
            output_tokens_per_second: output,
            promised_blocks: self.promised_blocks(),
            expected_blocks: forecast::peak(self.courses(|rows| &rows.expected_tokens), self.kv.block_size()),
            tenant_running: cell(&tenants.running),
            tenant_waiting: cell(&tenants.waiting),
            tenant_in_flight: self.held.in_sight(tenants, at),
            tenant_weight_permille: cell(&tenants.weight_permille),
            tenant_rate_per_minute: terms.rate_per_minute,
            tenant_burst: terms.burst,
            tenant_prompt_tokens_served: served(&tenants.prompt_tokens_served),
            tenant_output_tokens_served: served(&tenants.output_tokens_served),
        }
    }

    /// Tokens that sequences which have started must still compute before they generate.
    fn started_prompt_tokens(&self) -> u64 {
        let left = |rows: &SequenceColumns, at: usize| {
            let tokens = rows.prompt_tokens[at] + rows.generated_tokens[at];
            // One that generates computes its last token.
            match tokens.saturating_sub(rows.computed_tokens[at]) {
                0 | 1 => 0,
                left => u64::from(left),
            }
        };
        let (running, waiting) = (&self.view.running, &self.view.waiting);
        let prefilling = (0..running.len()).map(|at| left(running, at));
        let preempted = (0..self.rows.preempted).map(|at| left(waiting, at));
        prefilling.chain(preempted).sum()
    }

    /// Blocks that admitted sequences may still allocate at their longest: the growth of running ones, and all
    /// blocks of those that wait for their start.
    fn promised_blocks(&self) -> u32 {
        let size = self.kv.block_size();
        let whole = self.courses(|rows| &rows.max_new_tokens).map(|course| course.whole(size));
        whole.fold(0, u32::saturating_add)
    }

    /// What admitted sequences do if each generates `outputs` tokens in all, and all that wait start now.
    fn courses(&self, outputs: fn(&SequenceColumns) -> &[u32]) -> impl Iterator<Item = Course> {
        let course = move |rows: &SequenceColumns, at: usize| {
            let generated = rows.generated_tokens[at];
            let left = outputs(rows)[at].saturating_sub(generated).max(1);
            Course { tokens: rows.prompt_tokens[at] + generated, left, ..Course::default() }
        };
        let (running, waiting) = (&self.view.running, &self.view.waiting);
        let runs = (0..running.len()).map(move |at| {
            let (held, frees) = (running.blocks[at], running.freeable_blocks[at]);
            Course { held, frees, ..course(running, at) }
        });
        let size = self.kv.block_size();
        let starts = (0..waiting.len()).map(move |at| {
            let (held, taken) = (waiting.computed_tokens[at] / size, waiting.idle_blocks[at]);
            Course { held, taken, ..course(waiting, at) }
        });
        runs.chain(starts)
    }

    /// The load, for no tenant in particular.
    pub(super) fn total_load(&mut self, now: Micros) -> Load {
        let row = self.tenants.row(&mut self.view.tenants, TenantId(0));
        self.load(row, now)
    }
}
