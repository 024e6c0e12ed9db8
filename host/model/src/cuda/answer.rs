//! The second half of a step: sampled tokens, rows sampled on the host, log-probabilities of prompts, and vectors.
#![allow(unsafe_code, reason = "copies; see the SAFETY lines")]

use infer_core::{Batch, StepOutput};
use infer_kernels::cuda::CudaError;

use super::drawing;
use super::executor::{DeviceExecutor, Pending, words, words_mut};
use crate::rows::{Asking, asking, embedding, is_usable};
use crate::sampler::logprobs;

impl DeviceExecutor {
    pub(super) fn finish(
        &mut self,
        batch: &Batch,
        pending: &Pending,
        output: &mut StepOutput,
    ) -> Result<Vec<usize>, CudaError> {
        let staged = &self.decoder.buffers.staging[pending.turn];
        staged.done.wait()?;
        let mut lost = pending.lost.clone();
        let drawn = words(staged.drawn.bytes());
        for (&(index, nth), token) in pending.draws.iter().zip(drawn) {
            match drawing::drawn(*token) {
                // A draft token that leads to broken logits counts as rejected.
                token if nth > 0 => output.after_guesses.push((index, token)),
                None => lost.push(index),
                token => output.sampled[index] = token,
            }
        }
        for (sampled, logits_row) in &pending.host_draws {
            self.fetch(self.logits_at(*logits_row))?;
            self.drawing.draw(batch, *sampled, &mut self.scratch, output, &mut lost);
        }
        self.judge_prompts(batch, pending, output)?;
        self.embed(batch, output)?;
        Ok(lost)
    }

    /// Reports the vectors of rows that embed, from hidden states still on the device. One that isn't finite is left out, which
    /// fails only its request.
    fn embed(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), CudaError> {
        let due: Vec<(usize, u32)> = embedding(batch).collect();
        if due.is_empty() {
            return Ok(());
        }
        let layout = self.decoder.buffers.layout;
        let words = words_mut(self.decoder.buffers.staged().step.bytes_mut());
        for (to, (_, token)) in words[layout.select..].iter_mut().zip(&due) {
            *to = *token;
        }
        self.send(layout.select..layout.select + due.len())?;
        self.decoder.vectors(due.len() as u32)?;
        let (ty, hidden) = (self.decoder.ty, self.decoder.config.hidden);
        let bytes = hidden * ty.bytes();
        for (row, (index, _)) in due.into_iter().enumerate() {
            let from = self.decoder.buffers.normed.at() + (row * bytes) as u64;
            let host = self.decoder.buffers.host_logits.bytes_mut();
            // SAFETY: `from` is a row of normed numbers; the pinned memory lives as long as the executor, and the wait follows.
            unsafe { self.decoder.device.copy_out(from, &mut host[..bytes]) }?;
            self.decoder.device.wait()?;
            let vector = ty.read(&self.decoder.buffers.host_logits.bytes()[..bytes]);
            if is_usable(&vector) {
                output.embeddings.push((index, vector));
            }
        }
        Ok(())
    }

    /// Computes log-probabilities of prompt tokens for rows that request them, from hidden states still on the device.
    fn judge_prompts(
        &mut self,
        batch: &Batch,
        pending: &Pending,
        output: &mut StepOutput,
    ) -> Result<(), CudaError> {
        for Asking { index, row, prompt, first, positions, count } in asking(batch) {
            let mut judged = Vec::with_capacity(positions.len());
            for start in positions.clone().step_by(self.options.max_rows as usize) {
                let some = start..positions.end.min(start + self.options.max_rows as usize);
                let layout = self.decoder.buffers.layout;
                let words = words_mut(self.decoder.buffers.staged().step.bytes_mut());
                for (to, at) in words[layout.select..].iter_mut().zip(some.clone()) {
                    *to = row.token_start + (at - first) as u32;
                }
                self.send(layout.select..layout.select + some.len())?;
                self.decoder.logits(some.len() as u32, pending.plan.tokens > 0)?;
                for (i, at) in some.enumerate() {
                    self.fetch(self.decoder.buffers.logits.at() + (i * self.row_bytes()) as u64)?;
                    judged.push(logprobs(&self.scratch, prompt[at + 1], count));
                }
            }
            output.prompt_logprobs.push((index, judged));
        }
        Ok(())
    }

    /// Copies a row of logits to `scratch`, capped if the model does so.
    pub(super) fn fetch(&mut self, from: u64) -> Result<(), CudaError> {
        let host = self.decoder.buffers.host_logits.bytes_mut();
        let bytes = 4 * self.decoder.config.vocab;
        // SAFETY: `from` is a row of logits; the pinned memory lives as long as the executor, and the wait follows.
        unsafe { self.decoder.device.copy_out(from, &mut host[..bytes]) }?;
        self.decoder.device.wait()?;
        let numbers = words(self.decoder.buffers.host_logits.bytes()).iter().take(bytes / 4);
        self.scratch.clear();
        self.scratch.extend(numbers.map(|bits| f32::from_bits(*bits)));
        if let Some(cap) = self.decoder.config.logit_soft_cap {
            self.scratch.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
        Ok(())
    }
}
