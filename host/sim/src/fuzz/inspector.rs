//! Looks at each batch as a device sees it: nothing is computed that the request doesn't contain, nothing is
//! written where another reads, and nothing is read that another tenant wrote.

use infer_core::batch::Row;
use infer_core::testing::ScriptedExecutor;
use infer_core::{Batch, BlockId, Limits, LogitsSlot, SequenceId};

use super::case::Setup;
use super::clients::{Client, Clients, Scope};
use super::ledger::{Ledger, has_row};

use std::collections::BTreeSet;
use std::sync::Arc;

/// The device, and what is known of its memory.
pub(super) struct Inspector {
    pub device: ScriptedExecutor,
    limits: Limits,
    speculate: u32,
    max_samples: usize,
    block_size: u32,
    /// The scope that last wrote to a block.
    writers: Vec<Option<Scope>>,
    /// The prompt whose logits a slot holds.
    logits: Vec<Option<(Scope, Arc<[u32]>)>>,
    /// Sequences for which a backend keeps storage of its own.
    stored: BTreeSet<SequenceId>,
}

/// A row's request as it will be after the batch in flight.
struct Seen<'a> {
    client: &'a Client,
    /// Tokens generated, and in all.
    got: usize,
    len: usize,
    /// The row of that batch that samples the last of them.
    drawn_by: Option<u32>,
}

impl<'a> Seen<'a> {
    fn new(row: &Row, out: Option<&Batch>, clients: &'a Clients) -> Self {
        let client = clients.get(row.sequence).expect("a row's request is alive");
        let draws = |other: &Row| other.sequence == row.sequence && other.sample;
        let drawn_by = out.and_then(|out| out.rows.iter().position(draws)).map(|at| at as u32);
        let ahead = usize::from(drawn_by.is_some());
        Self { client, got: client.got + ahead, len: client.len() + ahead, drawn_by }
    }
}

impl Inspector {
    pub fn new(setup: &Setup) -> Self {
        let (size, total) = (setup.block_size, setup.total_blocks);
        Self {
            device: ScriptedExecutor::new(size, total, setup.prompt_cache_entries, setup.vocab()),
            limits: setup.engine().limits,
            speculate: setup.speculate,
            max_samples: setup.engine().max_samples as usize,
            block_size: size,
            writers: vec![None; total as usize],
            logits: vec![None; setup.prompt_cache_entries as usize],
            stored: BTreeSet::new(),
        }
    }

    /// Checks a batch that the engine has just made, possibly while another is in flight.
    pub fn check(&mut self, batch: &Batch, out: Option<&Batch>, clients: &Clients, ledger: &Ledger) {
        assert!(!batch.rows.is_empty(), "a batch has rows");
        let seen: Vec<Seen> = batch.rows.iter().map(|row| Seen::new(row, out, clients)).collect();
        self.check_sums(batch, &seen);
        for id in &batch.released {
            assert!(self.stored.remove(id), "{id:?} is released, but holds nothing on the device");
        }
        let mut named = BTreeSet::new();
        for (row, seen) in batch.rows.iter().zip(&seen) {
            assert!(named.insert(row.sequence), "{:?} has two rows", row.sequence);
            self.check_row(batch, row, seen);
            self.check_memory(batch, row, seen.client, ledger);
            self.stored.insert(row.sequence);
        }
        for &id in &self.stored {
            let used = clients.get(id).is_some() || out.is_some_and(|out| has_row(out, id));
            assert!(used, "the device isn't told that {id:?} has ended");
        }
        self.check_logits(batch, clients);
    }

    fn check_sums(&self, batch: &Batch, seen: &[Seen<'_>]) {
        let limits = &self.limits;
        let prefills = batch.rows.iter().zip(seen).filter(|(row, seen)| {
            let remaining = seen.len as u32 - (row.context_len - row.token_len);
            row.token_len > 0 && (remaining > 1 || seen.got == 0)
        });
        let (mut count, mut tokens) = (0, 0);
        for (row, _) in prefills {
            count += 1;
            tokens += row.token_len;
            assert!(row.token_len <= limits.prefill_chunk, "a chunk of {} tokens", row.token_len);
        }
        assert!(count <= limits.max_prefill_sequences, "{count} prompts in a batch");
        assert!(tokens <= limits.max_prefill_tokens, "{tokens} prompt tokens in a batch");
        assert!(batch.tokens.len() <= limits.max_batch_tokens as usize, "{} tokens", batch.tokens.len());
        assert!(batch.rows.len() <= limits.max_running as usize, "{} rows", batch.rows.len());
        let samples: usize = batch.rows.iter().map(|row| 1 + row.guesses as usize).sum();
        assert!(samples <= self.max_samples, "{samples} samples");
    }

    fn check_row(&self, batch: &Batch, row: &Row, seen: &Seen<'_>) {
        let id = row.sequence;
        let &Seen { client, got, len, drawn_by } = seen;
        let guesses = batch.row_guesses(row);
        let to = row.context_len as usize - guesses.len();
        let from = (row.context_len - row.token_len) as usize;
        assert!(to <= len, "{id:?} computes beyond its end");
        assert_eq!(row.input_from, drawn_by, "the row whose token {id:?} computes");
        if drawn_by.is_some() {
            assert!(from + 1 == len && to == len, "{id:?} computes more than what is being drawn");
            assert!((got as u32) < client.request.max_new_tokens, "{id:?} continues after its last token");
            assert!(!client.request.sampling.needs_host(), "{id:?} continues from what the host samples");
        } else {
            assert_eq!(batch.row_tokens(row)[..to - from], client.truth[from..to], "input of {id:?}");
        }
        if !guesses.is_empty() {
            self.check_guesses(row, guesses, client);
        }
        assert_eq!(row.sample, to == len, "whether {id:?} draws");
        assert_eq!(row.generated as usize, got, "tokens drawn of {id:?}");
        assert_eq!(row.sampling, client.request.sampling, "sampling of {id:?}");
        let sampling = &client.request.sampling;
        let asks = got == 0 && sampling.prompt_logprobs().is_some();
        let history = if asks || (row.sample && sampling.needs_history()) { len } else { 0 };
        assert_eq!(batch.row_history(row), &client.truth[..history], "history of {id:?}");
        let early = row.sample && (got as u32) < client.request.min_new_tokens;
        let forbidden: &[u32] = if early { &client.request.stop_tokens } else { &[] };
        assert_eq!(batch.row_forbidden(row), forbidden, "forbidden tokens of {id:?}");
        if row.logits_from.is_some() {
            assert!(row.token_len == 0 && got == 0 && row.sample, "{id:?} is answered by logits");
        }
    }

    /// Draft tokens occurred before, aren't too many, and can be told from sampled ones.
    fn check_guesses(&self, row: &Row, guesses: &[u32], client: &Client) {
        let id = row.sequence;
        assert!(
            row.sample && row.token_len == row.guesses + 1,
            "{id:?} has draft tokens, but does not decode"
        );
        let left = client.request.max_new_tokens - client.got as u32;
        assert!(row.guesses <= self.speculate && row.guesses < left, "{id:?}: {} guesses", row.guesses);
        let known = &client.truth[..client.len()];
        assert!(
            guesses.iter().all(|guess| known.contains(guess)),
            "{id:?} has a draft token that never occurred"
        );
        let sampling = &client.request.sampling;
        let looks_back = sampling.needs_history() || sampling.extras.is_some();
        assert!(
            !looks_back,
            "{id:?} has draft tokens, but its sampling depends on more than preceding tokens"
        );
        assert!(
            client.got as u32 >= client.request.min_new_tokens,
            "{id:?} has draft tokens, but may not end yet"
        );
    }

    fn check_memory(&mut self, batch: &Batch, row: &Row, client: &Client, ledger: &Ledger) {
        let id = row.sequence;
        let table = batch.table(row);
        assert_eq!(table, ledger.table(id), "block table of {id:?}");
        assert!(table.len() as u32 * self.block_size >= row.context_len, "{id:?} has too few blocks");
        let first = (row.context_len - row.token_len) / self.block_size;
        let written = table.iter().skip(first as usize).take(if row.token_len > 0 { usize::MAX } else { 0 });
        for &block in written {
            assert_eq!(ledger.references(block), 1, "{id:?} writes to {block:?}, which others hold");
            self.writers[block.0 as usize] = Some(client.scope());
        }
        for copy in batch.copies.iter().filter(|copy| table.contains(&copy.to)) {
            assert_eq!(ledger.references(copy.to), 1, "a copy goes to {:?}, which others hold", copy.to);
            assert_eq!(self.writer(copy.from), Some(client.scope()), "{id:?} copies what others wrote");
            self.writers[copy.to.0 as usize] = Some(client.scope());
        }
        for &block in table.iter().take(row.context_len.div_ceil(self.block_size) as usize) {
            assert_eq!(
                self.writer(block),
                Some(client.scope()),
                "{id:?} reads what others wrote in {block:?}"
            );
        }
    }

    fn writer(&self, block: BlockId) -> Option<Scope> {
        self.writers[block.0 as usize]
    }

    fn check_logits(&mut self, batch: &Batch, clients: &Clients) {
        let place = |slot: LogitsSlot| slot.0 as usize;
        for row in &batch.rows {
            let client = clients.get(row.sequence).expect("a row's request is alive");
            if let Some(slot) = row.logits_from {
                let kept = self.logits[place(slot)].as_ref();
                let same = kept.is_some_and(|(scope, prompt)| {
                    *scope == client.scope() && **prompt == *client.request.prompt
                });
                assert!(same, "{:?} is answered by the logits of another prompt", row.sequence);
            }
        }
        for row in &batch.rows {
            if let Some(slot) = row.logits_to {
                let client = clients.get(row.sequence).expect("a row's request is alive");
                let read = batch.rows.iter().any(|other| other.logits_from == Some(slot));
                assert!(!read, "{slot:?} is read and written in one batch");
                self.logits[place(slot)] = Some((client.scope(), Arc::clone(&client.request.prompt)));
            }
        }
    }

    /// The batch was lost: what it was to write is garbage.
    pub fn lost(&mut self, batch: &Batch) {
        for slot in batch.rows.iter().filter_map(|row| row.logits_to) {
            self.logits[slot.0 as usize] = None;
        }
    }
}
