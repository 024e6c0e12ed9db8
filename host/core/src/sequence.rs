//! One request's life inside the engine, and the slab that holds all of them.

use std::ops::{Index, IndexMut};

use crate::detmap::DetMap;
use crate::expectation::Expectation;
use crate::ids::{BlockId, LogitsSlot, SequenceId};
use crate::request::{Request, SequenceState, Usage};
use crate::watchdog::Mark;

/// Index of a sequence in the slab. Reused; `SequenceId` is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SeqIx(pub u32);

/// What the cache has for a waiting sequence.
#[derive(Debug, Default)]
pub(crate) struct HitState {
    /// Cached blocks that its tokens start with.
    pub chain: Vec<BlockId>,
    /// The kept logits of exactly its prompt.
    pub full: Option<LogitsSlot>,
    /// Leading tokens that are cached or being computed now.
    pub pending: u32,
    /// Longest hit that the policy was called for, and its answer.
    pub asked: u32,
    pub answer: u32,
    /// Kept logits are of no use to it: there was no memory for the copy they need.
    pub no_full: bool,
    /// Its watch fired; it is in the list of hits to reexamine.
    pub stale: bool,
    /// It became shorter; it is in the list of rows to correct.
    pub shrunk: bool,
    /// Hash it watches; 0 for none.
    pub watched_hash: u64,
    /// It watches the end of its hit.
    pub watching: bool,
}

/// Everything the engine knows about one request. What every step touches comes first and shares cache lines:
/// at 256 running sequences that dominates a step's cost.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Sequence {
    /// Prompt, then output.
    pub tokens: Vec<u32>,
    pub table: Vec<BlockId>,
    pub prompt_len: u32,
    pub generated: u32,
    /// Leading tokens whose keys and values the pool holds for it.
    pub computed: u32,
    /// Leading blocks of `table` that the content index knows.
    pub committed: u32,
    /// Its row in the running columns, while it runs.
    pub row: u32,
    /// The most that `computed` ever was.
    pub furthest: u32,
    /// Its row in the tenant columns.
    pub tenant_row: u32,
    /// The slot for its prompt's logits, while the batch that fills it is in flight.
    pub logits_to: Option<LogitsSlot>,
    /// The slot whose kept logits it samples from, while the batch that reads them is in flight.
    pub logits_from: Option<LogitsSlot>,
    /// How many tokens may be drafted for it next: more while drafts are right.
    pub guesses: u32,
    /// When it last drew a token, as `perf::Recorder` counts.
    pub drawn_at: u32,
    pub id: SequenceId,
    /// When a plan last named it.
    pub planned: Mark,
    pub state: SequenceState,
    /// Batches in flight with a row of it, and its row in the last one.
    pub out: u32,
    pub out_row: u32,
    /// Tokens that they compute, and that they sample.
    pub computing: u32,
    pub drawing: u32,
    /// Its whole prompt is announced as being computed.
    pub pending_prompt: bool,
    /// So are the hashes `committed .. pending_end`.
    pub pending_end: u32,
    /// Its prompt has moved to `tokens`.
    pub request: Request,
    /// The first of its blocks that its session computed, in this turn or another; the largest number if there is none so
    /// far. Its hash stands for the turn until that is over.
    pub own: u32,
    /// Chain hash of each full block of `tokens`, as far as known; empty without prefix caching.
    pub hashes: Vec<u64>,
    /// Identifies the whole prompt in the prompt cache; 0 without one.
    pub prompt_key: u64,
    /// Tokens reused from the cache when it last started.
    pub reused: u32,
    /// How many tokens it will probably generate in all.
    pub expected: u32,
    /// Where that comes from.
    pub expectation: Expectation,
    /// Blocks it holds if it runs to its last token.
    pub max_blocks: u32,
    /// What the cache has for it, while it waits.
    pub hit: HitState,
    /// When a later one of its tenant was first started before it.
    pub overtaken: Option<Mark>,
    /// The same for another tenant's, while none of its own tenant ran.
    pub passed: Option<Mark>,
    /// Since when its prefix is coming back from the second level of the cache, piece by piece.
    pub arriving: Option<Mark>,
    /// The id under which admission is asked about it: that of the first sequence of its client request.
    pub asked_as: SequenceId,
    pub usage: Usage,
}

impl Sequence {
    /// Leading tokens whose keys and values the pool holds once the batches in flight are back.
    pub fn reached(&self) -> u32 {
        self.computed + self.computing
    }

    /// Tokens that it has generated then.
    pub fn drawn(&self) -> u32 {
        self.generated + self.drawing
    }

    /// Tokens still to compute then before the next one can be sampled.
    pub fn remaining(&self) -> u32 {
        self.tokens.len() as u32 + self.drawing - self.reached()
    }

    /// Tokens of its prompt, or of what a preemption cost, that are being computed.
    pub fn prefilling(&self) -> u32 {
        if self.state == SequenceState::Prefill { self.computing } else { 0 }
    }

    /// Its last token is being sampled: there is nothing left to plan.
    pub fn is_ending(&self) -> bool {
        self.drawn() == self.request.max_new_tokens
    }

    pub fn is_running(&self) -> bool {
        matches!(self.state, SequenceState::Prefill | SequenceState::Decode)
    }

    /// Visible to the scheduler, not running.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, SequenceState::Waiting | SequenceState::Preempted)
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.state, SequenceState::Finished | SequenceState::Failed)
    }

    /// Expected output length, given `generated` tokens so far.
    pub fn expected_at(&self, generated: u32) -> u32 {
        match generated < self.expected {
            true => self.expected,
            false => self.expectation.at(generated),
        }
    }

    /// Output tokens that it will probably still generate.
    pub fn expected_ahead(&self) -> u64 {
        u64::from(self.expected - self.generated)
    }

    /// Prompt and output tokens that it may still need.
    pub fn tokens_ahead(&self) -> u64 {
        u64::from(self.prompt_len) + u64::from(self.request.max_new_tokens)
    }
}

/// All sequences, by index and by id.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    places: Vec<Option<Sequence>>,
    free: Vec<u32>,
    by_id: DetMap<SequenceId, SeqIx>,
}

impl Slab {
    pub fn insert(&mut self, sequence: Sequence) -> SeqIx {
        let id = sequence.id;
        let ix = match self.free.pop() {
            Some(at) => {
                self.places[at as usize] = Some(sequence);
                SeqIx(at)
            }
            None => {
                self.places.push(Some(sequence));
                SeqIx(self.places.len() as u32 - 1)
            }
        };
        self.by_id.insert(id, ix);
        ix
    }

    pub fn remove(&mut self, ix: SeqIx) -> Sequence {
        let sequence = self.places[ix.0 as usize].take().expect("the sequence lives");
        self.free.push(ix.0);
        self.by_id.remove(&sequence.id);
        sequence
    }

    pub fn get_mut(&mut self, ix: SeqIx) -> Option<&mut Sequence> {
        self.places.get_mut(ix.0 as usize)?.as_mut()
    }

    pub fn find(&self, id: SequenceId) -> Option<SeqIx> {
        self.by_id.get(&id).copied()
    }

    /// Indexes ever used: an upper bound of every `SeqIx`.
    pub fn capacity(&self) -> usize {
        self.places.len()
    }

    /// Every sequence, in slab order.
    pub fn iter(&self) -> impl Iterator<Item = (SeqIx, &Sequence)> {
        self.places.iter().enumerate().filter_map(|(at, s)| Some((SeqIx(at as u32), s.as_ref()?)))
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }
}

impl Index<SeqIx> for Slab {
    type Output = Sequence;

    fn index(&self, ix: SeqIx) -> &Sequence {
        self.places[ix.0 as usize].as_ref().expect("the sequence lives")
    }
}

impl IndexMut<SeqIx> for Slab {
    fn index_mut(&mut self, ix: SeqIx) -> &mut Sequence {
        self.places[ix.0 as usize].as_mut().expect("the sequence lives")
    }
}
