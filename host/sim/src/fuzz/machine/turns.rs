//! A turn of the driver: a batch is made, computed and given back, or nothing can run and time passes.

use infer_core::batch::Row;
use infer_core::{Batch, SequenceId};

use super::Machine;

/// What a row must have come to, if its request is alive then.
struct Due {
    id: SequenceId,
    /// Tokens that its client has.
    tokens: usize,
    guessed: bool,
}

impl Machine<'_> {
    pub(super) fn step(&mut self, us: u32) {
        if self.out.is_none() && !self.begin() {
            let wake = self.engine.next_wake();
            let until = self.patience.sleeps(self.clock, wake, self.engine.has_work());
            self.pass(until.since(self.now).0);
            self.clients.reached.slept += 1;
            return;
        }
        self.end(us);
    }

    /// Makes a batch, if none is out. True where one is out.
    pub(super) fn begin(&mut self) -> bool {
        if self.out.is_some() {
            return true;
        }
        self.clients.read(self.batches);
        let now = self.tell();
        let batch = self.engine.begin_step(now);
        self.drain();
        let Some(batch) = batch else { return false };
        self.batches += 1;
        self.ledger.update(&self.engine, &self.clients, false);
        self.inspector.check(&batch, &self.clients, &self.ledger);
        self.patience.begins(&batch, &self.ledger, self.clock, self.aided);
        self.ledger.remember(&self.clients);
        self.clients.reached.copies += u64::from(!batch.copies.is_empty());
        self.clients.reached.answered +=
            batch.rows.iter().filter(|row| row.logits_from.is_some()).count() as u64;
        self.out = Some(batch);
        true
    }

    /// The device computes the batch that is out, if there is one.
    pub(super) fn end(&mut self, us: u32) {
        let Some(batch) = self.out.take() else { return };
        let failed = self.compute(&batch);
        let due: Vec<Due> =
            batch.rows.iter().filter_map(|row| self.due(&batch, row, failed.is_some())).collect();
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
                // All but its last token stands in memory, and guesses take no room from one step to the next.
                let needed = (client.len() - 1).div_ceil(self.setup.block_size as usize);
                let held = self.engine.tables().find(|(of, _)| *of == id).map_or(0, |(_, table)| table.len());
                assert_eq!(held, needed, "blocks of {id:?} after guesses");
            }
        }
    }

    /// A token where one is drawn, and another for each guess that was right.
    fn due(&self, batch: &Batch, row: &Row, failed: bool) -> Option<Due> {
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
