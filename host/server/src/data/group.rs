//! All sequences of one request: each prompt's choices, read in turn so that none of them starves.
//!
//! Dropping the group drops its runs, so a client that goes away frees all of them, whatever each was
//! doing; so does the first failure, because a request that failed in part failed. Either way the request is
//! accounted for once.

use std::future::poll_fn;
use std::task::Poll;

use infer_api::usage::{Timings, Usage};
use infer_core::FinishReason;

use super::account::{Account, Close};
use super::outcome::Outcome;
use super::run::{Run, Step};
use crate::http::ApiError;

/// The runs of one request, choice by choice.
pub struct Group {
    runs: Vec<Option<Run>>,
    /// Choices of each prompt.
    n: usize,
    /// Where the next look begins.
    next: usize,
    alive: usize,
    outcomes: Vec<Option<Outcome>>,
    /// Of all prompts.
    prompt_tokens: u32,
    /// Until the end is entered.
    account: Option<Account>,
}

/// What an answer says of all choices at its end.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Why each ended.
    pub reasons: Vec<FinishReason>,
    /// Each prompt once, every output.
    pub usage: Usage,
    /// From the first to start to the last to end; work and memory of all.
    pub timings: Timings,
}

impl Group {
    /// Of at least one run; `n` for each prompt.
    pub fn new(runs: Vec<Run>, n: usize, account: Account) -> Self {
        let alive = runs.len();
        Self {
            outcomes: vec![None; alive],
            prompt_tokens: runs.iter().step_by(n).map(Run::prompt_tokens).sum(),
            runs: runs.into_iter().map(Some).collect(),
            n,
            next: 0,
            alive,
            account: Some(account),
        }
    }

    /// Choices in all.
    pub fn choices(&self) -> usize {
        self.runs.len()
    }

    /// Whether every choice has ended.
    pub fn is_done(&self) -> bool {
        self.alive == 0
    }

    /// What happens next, and to which choice. Not to be asked once all have ended.
    pub async fn next(&mut self) -> (usize, Step) {
        let (at, step) = poll_fn(|cx| {
            for turn in 0..self.runs.len() {
                let at = (self.next + turn) % self.runs.len();
                let Some(run) = &mut self.runs[at] else { continue };
                if let Poll::Ready(step) = run.poll(cx) {
                    return Poll::Ready((at, step));
                }
            }
            Poll::Pending
        })
        .await;
        self.note(at, &step);
        (at, step)
    }

    /// What has happened already, without waiting.
    pub fn try_next(&mut self) -> Option<(usize, Step)> {
        for turn in 0..self.runs.len() {
            let at = (self.next + turn) % self.runs.len();
            if let Some(step) = self.runs[at].as_mut().and_then(Run::try_next) {
                self.note(at, &step);
                return Some((at, step));
            }
        }
        None
    }

    fn note(&mut self, at: usize, step: &Step) {
        self.next = (at + 1) % self.runs.len();
        if let Step::End(outcome) = step {
            self.runs[at] = None;
            self.alive -= 1;
            self.outcomes[at] = Some((**outcome).clone());
            match &outcome.error {
                Some(error) if outcome.refused => self.close(Close::Refused(error)),
                Some(error) => self.close(Close::Failed(error)),
                None if self.is_done() => self.close(Close::Well),
                None => {}
            }
        }
    }

    fn close(&mut self, how: Close<'_>) {
        if let Some(account) = self.account.take() {
            account.close(how, &self.sum());
        }
    }

    /// It is given up, for this reason.
    pub fn fail(&mut self, error: &ApiError) {
        self.close(Close::Failed(error));
    }

    /// Ends one choice: it has said what it was to say.
    pub fn stop(&mut self, at: usize) {
        if let Some(run) = &mut self.runs[at] {
            run.stop();
        }
    }

    /// Once all have ended.
    pub fn totals(&self) -> Result<Totals, ApiError> {
        match self.outcomes.iter().flatten().find_map(|outcome| outcome.error.clone()) {
            Some(error) => Err(error),
            None => Ok(self.sum()),
        }
    }

    /// Of what there is until now.
    fn sum(&self) -> Totals {
        let all: Vec<&Outcome> = self.outcomes.iter().flatten().collect();
        let reason = |outcome: &Option<Outcome>| outcome.as_ref().and_then(|outcome| outcome.reason);
        let reasons = self.outcomes.iter().map(|o| reason(o).unwrap_or(FinishReason::Cancelled)).collect();
        let mut usage = Usage { prompt_tokens: self.prompt_tokens, ..Usage::default() };
        for choices in self.outcomes.chunks(self.n) {
            // What one choice computed and the next found was not cached before.
            let cached = choices.iter().flatten().map(|c| c.usage.prompt_tokens_details.cached_tokens).min();
            usage.prompt_tokens_details.cached_tokens += cached.unwrap_or(0);
        }
        let still: u32 = self.runs.iter().flatten().map(Run::tokens).sum();
        usage.completion_tokens = still + all.iter().map(|o| o.usage.completion_tokens).sum::<u32>();
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
        let first = |of: fn(&Timings) -> Option<f64>| {
            all.iter().filter_map(|o| of(&o.timings)).min_by(f64::total_cmp)
        };
        let last = |of: fn(&Timings) -> Option<f64>| {
            all.iter().filter_map(|o| of(&o.timings)).max_by(f64::total_cmp)
        };
        let timings = Timings {
            queue_ms: first(|t| t.queue_ms),
            prefill_ms: first(|t| t.prefill_ms),
            ttft_ms: first(|t| t.ttft_ms),
            decode_ms: last(|t| t.decode_ms),
            prefilled_tokens: all.iter().map(|o| o.timings.prefilled_tokens).sum(),
            kv_bytes: all.iter().map(|o| o.timings.kv_bytes).sum(),
        };
        Totals { reasons, usage, timings }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.close(Close::Left);
    }
}
