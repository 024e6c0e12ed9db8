//! The first half of a step: words for the device, launches and recordings.
#![allow(unsafe_code, reason = "launches and copies; see the SAFETY lines")]

use infer_core::{Batch, LogitsSlot, Row};
use infer_kernels::cuda::{AdapterRows, CudaError, CudaErrorKind, Device, Graph, SampleParams, sample};

use super::adapters;
use super::drawing::{self, Lists};
use super::executor::{DeviceExecutor, Pending, Recorded, words_mut};
use super::plan::{self, Plan, Tiles};
use crate::rows::{embedding, samples};

impl DeviceExecutor {
    pub(super) fn start(&mut self, batch: &Batch) -> Result<Pending, CudaError> {
        let layout = self.decoder.buffers.layout;
        let mut first = 0;
        plan::copy_runs(batch, layout.max_copies, |pairs| {
            if first + pairs.len() > layout.max_copies {
                // Wait before overwriting words that the device may not have read yet.
                self.decoder.device.wait()?;
                first = 0;
            }
            let words = words_mut(self.decoder.buffers.staged().step.bytes_mut());
            let at = layout.copies + 2 * first;
            words[at..].iter_mut().zip(pairs.as_flattened()).for_each(|(to, block)| *to = *block);
            self.send(at..at + 2 * pairs.len())?;
            self.decoder.copy(first, pairs.len())?;
            first += pairs.len();
            Ok(())
        })?;
        let recordable = !batch.rows.is_empty() && batch.rows.iter().all(is_recordable);
        let padded = recordable.then(|| plan::bucket(batch.tokens.len() as u32, self.options.max_rows));
        // Cutting a context to fill the device changes the order of its sums.
        let alone = self.options.deterministic;
        let (shape, multiprocessors) =
            (self.decoder.shape(), self.decoder.device.properties().multiprocessors);
        let tiles = self.decoder.buffers.prefill.map(|most| {
            let form = plan::form(shape, most, multiprocessors, batch);
            Tiles { form, tokens: form.tokens(shape), alone }
        });
        let mut follows = 0;
        let draws = &self.draws;
        let drawn_at = |row: &Row| Some(draws[row.input_from? as usize]);
        let buffers = &mut self.decoder.buffers;
        let words = words_mut(buffers.staging[buffers.turn].step.bytes_mut());
        for (token, drawn) in batch.rows.iter().filter_map(|row| Some((row.token_start, drawn_at(row)?))) {
            words[layout.follows + follows..][..2].copy_from_slice(&[token, drawn]);
            follows += 2;
        }
        let mut plan = plan::write(words, &layout, batch, tiles, padded);
        let listing = (&mut self.places, &self.decoder.adapters);
        plan.adapted = adapters::list(words, &layout, listing, batch, padded);
        let mut pending = self.spare.pop().unwrap_or_default().reused(plan);
        let mut lists = Lists::new(&layout);
        let (mut computed_row, mut kept_row) = (0, plan.logits as usize);
        for (index, row) in batch.rows.iter().enumerate() {
            let from_kept = row.logits_from.is_some();
            if !(from_kept || plan::wants_logits(row)) {
                continue;
            }
            // Kept logits come after the computed ones.
            let next = if from_kept { &mut kept_row } else { &mut computed_row };
            let logits = *next;
            *next += 1 + row.guesses as usize;
            match row.logits_from {
                Some(slot) if !self.kept[slot.0 as usize] => {
                    pending.lost.push(index);
                    continue;
                }
                Some(slot) => pending.from_kept.push((slot, logits)),
                None => {}
            }
            if let Some(slot) = row.logits_to {
                pending.to_kept.push((slot, logits));
            }
            if !samples(row) {
                continue;
            }
            for nth in 0..=row.guesses {
                let at = [pending.draws.len(), logits + nth as usize];
                if drawing::on_device(row)
                    && drawing::write(words, &layout, &mut lists, batch, (row, nth), at)
                {
                    pending.draws.push((index, nth));
                } else {
                    pending.host_draws.push(((index, nth), at[1]));
                }
            }
        }
        let draws = padded.map_or(pending.draws.len(), |padded| padded as usize);
        (pending.draws.len()..draws).for_each(|index| drawing::write_nothing(words, &layout, index));
        self.send(0..layout.copies)?;
        if let Some(AdapterRows { rows, tiles }) = plan.adapted {
            self.send(layout.places..layout.places + rows as usize)?;
            self.send(layout.place_tiles..layout.place_tiles + 4 * tiles as usize)?;
        }
        if follows > 0 {
            self.send(layout.follows..layout.follows + follows)?;
            self.decoder.follow(follows as u32 / 2)?;
        }
        self.send(layout.blocks..layout.blocks + plan.blocks)?;
        self.send(layout.lists..layout.lists + lists.used())?;
        if !batch.tokens.is_empty() {
            self.forward_passes += 1;
        }
        // Every token of a recordable decode is sampled on the device, unless its lists did not fit.
        match padded {
            Some(size) if pending.host_draws.is_empty() => self.decode(size, &plan)?,
            _ => self.launch(batch, &pending, draws as u32)?,
        }
        let drawn = self.decoder.buffers.drawn.at();
        let staged = self.decoder.buffers.staged();
        // SAFETY: the pinned memory lives as long as the executor and is read after a wait.
        unsafe { self.decoder.device.copy_out(drawn, staged.drawn.bytes_mut()) }?;
        staged.done.set()?;
        Ok(pending)
    }

    /// Runs a decode of a recordable size: the first time kernel by kernel, then recorded, then repeated.
    fn decode(&mut self, size: u32, plan: &Plan) -> Result<(), CudaError> {
        let run = |this: &Self| {
            let settled = this.decoder.forward(plan)?;
            this.decoder.logits(plan.logits, settled)?;
            this.draw(size)
        };
        if !self.options.graphs {
            return run(self);
        }
        let key = (size, plan.adapted.is_some());
        match self.graphs.get(&key) {
            None => {
                run(self)?;
                self.graphs.insert(key, Recorded::Warm);
                return Ok(());
            }
            Some(Recorded::Refused) => return run(self),
            Some(Recorded::Graph(_)) => {}
            Some(Recorded::Warm) => match record(self.decoder.device.as_ref(), || run(self)) {
                Ok(graph) => {
                    self.graphs.insert(key, Recorded::Graph(graph));
                }
                Err(error) => {
                    tracing::warn!("decodes of {size} sequences can't be recorded: {error}");
                    self.graphs.insert(key, Recorded::Refused);
                    return run(self);
                }
            },
        }
        if let Some(Recorded::Graph(graph)) = self.graphs.get(&key) {
            self.graph_launches += 1;
            // SAFETY: it refers to the executor's memory, which outlives it.
            unsafe { graph.launch() }?;
        }
        Ok(())
    }

    /// Runs any other step.
    fn launch(&mut self, batch: &Batch, pending: &Pending, draws: u32) -> Result<(), CudaError> {
        let plan = &pending.plan;
        if !batch.tokens.is_empty() {
            let mut settled = self.decoder.forward(plan)?;
            let asked =
                batch.rows.iter().any(|row| row.generated == 0 && row.sampling.prompt_logprobs().is_some());
            // Both read hidden states once the step is done.
            if !settled && (asked || embedding(batch).next().is_some()) {
                self.decoder.settle(plan)?;
                settled = true;
            }
            if plan.logits > 0 {
                self.decoder.logits(plan.logits, settled)?;
            }
        }
        for (slot, index) in &pending.to_kept {
            self.copy_logits(self.kept_at(*slot), self.logits_at(*index))?;
            self.kept[slot.0 as usize] = true;
        }
        for (slot, index) in &pending.from_kept {
            self.copy_logits(self.logits_at(*index), self.kept_at(*slot))?;
        }
        self.draw(draws)
    }

    fn copy_logits(&self, to: u64, from: u64) -> Result<(), CudaError> {
        // SAFETY: slots were checked, and there is a row of logits for each sample of the batch.
        unsafe { self.decoder.device.copy(to, from, self.row_bytes()) }
    }

    pub(super) fn logits_at(&self, row: usize) -> u64 {
        self.decoder.buffers.logits.at() + (row * self.row_bytes()) as u64
    }

    pub(super) fn kept_at(&self, slot: LogitsSlot) -> u64 {
        self.decoder.buffers.kept.at() + (slot.0 as usize * self.row_bytes()) as u64
    }

    fn draw(&self, count: u32) -> Result<(), CudaError> {
        if count == 0 {
            return Ok(());
        }
        let buffers = &self.decoder.buffers;
        let params = SampleParams {
            logits: buffers.logits.at(),
            rows: self.decoder.word(buffers.layout.rows),
            tokens: self.decoder.word(buffers.layout.lists),
            seen: buffers.seen.at(),
            out: buffers.drawn.at(),
            vocab: self.decoder.config.vocab as u32,
            soft_cap: self.decoder.config.logit_soft_cap.unwrap_or(0.0),
        };
        // SAFETY: buffers have room for `max_rows` samples, and lists lie in the step's words.
        unsafe { sample(self.decoder.device.as_ref(), &params, count) }
    }

    /// Copies words of the step to the device.
    pub(super) fn send(&self, span: std::ops::Range<usize>) -> Result<(), CudaError> {
        if span.is_empty() {
            return Ok(());
        }
        let buffers = &self.decoder.buffers;
        let bytes = &buffers.staging[buffers.turn].step.bytes()[4 * span.start..4 * span.end];
        buffers.step.write(4 * span.start, bytes)
    }

    pub(super) fn row_bytes(&self) -> usize {
        4 * self.decoder.config.vocab
    }
}

/// Whether a row is nothing but tokens that the device samples after.
fn is_recordable(row: &Row) -> bool {
    let no_slots = row.logits_to.is_none() && row.logits_from.is_none();
    let no_questions = row.generated > 0 || row.sampling.prompt_logprobs().is_none();
    plan::is_decode(row) && samples(row) && no_slots && no_questions && drawing::on_device(row)
}

/// Records `launches`; without early launches if the device can't record those.
fn record(
    device: &dyn Device,
    launches: impl Fn() -> Result<(), CudaError>,
) -> Result<Box<dyn Graph>, CudaError> {
    let attempt = |early| {
        device.begin_recording(early)?;
        let launched = launches();
        // Even after a failure, or the device would stay in recording mode.
        let graph = device.end_recording();
        launched.and(graph)
    };
    attempt(true).or_else(|error| {
        if !device.properties().early || error.kind == CudaErrorKind::Lost {
            return Err(error);
        }
        let graph = attempt(false)?;
        tracing::warn!("a decode could only be recorded without early launches: {error}");
        Ok(graph)
    })
}
