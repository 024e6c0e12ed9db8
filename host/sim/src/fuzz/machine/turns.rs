//! A turn of the driver: a batch is made, computed and given back, or nothing can run and time passes.

use infer_core::batch::Row;
use infer_core::{Batch, SequenceId};

use super::Machine;
use crate::fuzz::overtaking::Made;

/// What a row must result in, if its request is still alive.
struct Due {
    id: SequenceId,
    /// Tokens that its client has.
    tokens: usize,
    guessed: bool,
}

impl Machine<'_> {
    pub(super) fn step(&mut self, us: u32) {
        if !self.begin() {
            let wake = self.engine.next_wake();
            let until = self.patience.sleeps(self.clock, wake, self.engine.has_work());
            self.pass(until.since(self.now).0);
            self.clients.reached.slept += 1;
            return;
        }
        // A driver that plans ahead makes the next batch while this one is computed.
        self.begin();
        self.end(us);
    }

    /// Makes a batch if none is in flight, or if one is and the host plans ahead. True if any is in flight.
    pub(super) fn begin(&mut self) -> bool {
        if self.out.len() <= usize::from(self.setup.plan_ahead) {
            self.make();
        }
        !self.out.is_empty()
    }

    fn make(&mut self) {
        self.clients.read(self.batches);
        let now = self.tell();
        let batch = self.engine.begin_step(now);
        self.drain();
        let Some(batch) = batch else { return };
        self.batches += 1;
        self.ledger.update(&self.engine, &self.clients, &self.out);
        assert!(!self.lost, "a batch is made behind one that is lost");
        self.inspector.check(&batch, self.out.back(), &self.clients, &self.ledger);
        let overtaken = self.patience.begins(&Made {
            batch: &batch,
            engine: &self.engine,
            ledger: &self.ledger,
            clients: &self.clients,
            now: self.clock,
            aided: self.aided,
        });
        self.clients.reached.overtaken += overtaken;
        self.ledger.remember(&self.clients);
        self.clients.begins(&batch);
        self.clients.reached.copies += u64::from(!batch.copies.is_empty());
        self.clients.reached.answered +=
            batch.rows.iter().filter(|row| row.logits_from.is_some()).count() as u64;
        self.clients.reached.planned_ahead += self.out.len() as u64;
        self.out.push_back(batch);
    }

    /// Computes everything in flight.
    pub(super) fn end_all(&mut self, us: u32) {
        while !self.out.is_empty() {
            self.end(us);
        }
    }

    /// The device computes the oldest batch in flight, if there is one.
    pub(super) fn end(&mut self, us: u32) {
        let Some(batch) = self.out.pop_front() else { return };
        let failed = self.compute(&batch);
        let due: Vec<Due> = batch.rows.iter().filter_map(|row| self.due(&batch, row)).collect();
        let ended = |row: &&Row| row.input_from.is_some() && self.clients.get(row.sequence).is_none();
        self.clients.reached.wasted_rows += batch.rows.iter().filter(ended).count() as u64;
        self.pass(us.into());
        let now = self.tell();
        let result = failed.map_or(Ok(&self.output), Err);
        self.engine.finish_step(batch, result, now);
        self.drain();
        for Due { id, tokens, guessed } in due {
            let Some(client) = self.clients.get(id) else { continue };
            assert_eq!(client.doomed, None, "{id:?} lives on though it was to fail");
            assert_eq!(client.got, tokens, "tokens of {id:?} after a batch");
            if guessed {
                // All but its last token is in memory, and draft tokens keep no blocks from one step to the
                // next.
                let needed = (client.len() - 1).div_ceil(self.setup.block_size as usize);
                let held = self.engine.tables().find(|(of, _)| *of == id).map_or(0, |(_, table)| table.len());
                assert_eq!(held, needed, "blocks of {id:?} after draft tokens");
            }
        }
    }

    /// A token if the row samples, and another for each draft token that was right.
    fn due(&self, batch: &Batch, row: &Row) -> Option<Due> {
        let failed = self.nothing_came;
        let client = self.clients.get(row.sequence)?;
        let drawn = usize::from(row.sample && !failed);
        let drawn_after =
            self.output.after_guesses.iter().filter(|(of, _)| batch.rows[*of].sequence == row.sequence);
        let answers = drawn_after.take_while(|(_, token)| !failed && token.is_some()).count();
        let guesses = batch.row_guesses(row).iter().zip(&client.truth[client.len()..]);
        let right = guesses.take(answers).take_while(|(guess, token)| guess == token).count();
        Some(Due { id: row.sequence, tokens: client.got + drawn + right, guessed: row.guesses > 0 })
    }
}
