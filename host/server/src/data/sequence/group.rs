//! All sequences of one request: the choices of each prompt, read in turn so that none of them starves.
//!
//! Dropping the group cancels its sequences, so a client that disconnects, or is disconnected because it reads
//! nothing, frees all of them. The first failure ends the group, too: a request that failed in part has failed.
//! In each case the request is accounted for once.

use std::future::poll_fn;
use std::task::Poll;

use infer_api::usage::{Timings, Usage};
use infer_core::FinishReason;
use tokio::time::Instant;

use super::account::{Account, Close};
use super::outcome::{Outcome, slow_reader};
use super::run::{Run, Step};
use crate::http::ApiError;

/// The runs of one request, by choice.
pub struct Group {
    runs: Vec<Option<Run>>,
    /// Choices of each prompt.
    n: usize,
    /// The run to poll first.
    next: usize,
    alive: usize,
    outcomes: Vec<Option<Outcome>>,
    /// Tokens of all prompts.
    prompt_tokens: u32,
    /// Taken when the end is recorded.
    account: Option<Account>,
    last_moment: Instant,
}

/// What a response reports of all choices at its end.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Each choice's finish reason.
    pub reasons: Vec<FinishReason>,
    /// Counts each prompt once, and every output.
    pub usage: Usage,
    /// From the first start to the last end. Work and memory are sums over all choices.
    pub timings: Timings,
}

impl Totals {
    /// The totals before any of the choices has started.
    pub fn before(choices: usize, prompt_tokens: u32) -> Self {
        let usage = Usage { prompt_tokens, total_tokens: prompt_tokens, ..Usage::default() };
        Self { reasons: vec![FinishReason::Cancelled; choices], usage, timings: Timings::default() }
    }
}

impl Group {
    /// Groups at least one run, with `n` runs per prompt.
    pub fn new(runs: Vec<Run>, n: usize, account: Account, last_moment: Instant) -> Self {
        let alive = runs.len();
        Self {
            outcomes: vec![None; alive],
            prompt_tokens: runs.iter().step_by(n).map(Run::prompt_tokens).sum(),
            runs: runs.into_iter().map(Some).collect(),
            n,
            next: 0,
            alive,
            account: Some(account),
            last_moment,
        }
    }

    /// When to give up on it, if the engine does not end it.
    pub fn last_moment(&self) -> Instant {
        self.last_moment
    }

    /// Number of choices.
    pub fn choices(&self) -> usize {
        self.runs.len()
    }

    /// Whether every choice has ended.
    pub fn is_done(&self) -> bool {
        self.alive == 0
    }

    /// Waits for the next event and returns it with its choice. Pends forever once all choices have ended.
    pub async fn next(&mut self) -> (usize, Step) {
        let (at, mut step) = poll_fn(|cx| {
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
        self.note(at, &mut step);
        (at, step)
    }

    /// Returns the next event if there is one already.
    pub fn try_next(&mut self) -> Option<(usize, Step)> {
        for turn in 0..self.runs.len() {
            let at = (self.next + turn) % self.runs.len();
            if let Some(mut step) = self.runs[at].as_mut().and_then(Run::try_next) {
                self.note(at, &mut step);
                return Some((at, step));
            }
        }
        None
    }

    fn note(&mut self, at: usize, step: &mut Step) {
        self.next = (at + 1) % self.runs.len();
        if let Step::End(outcome) = step {
            self.runs[at] = None;
            self.alive -= 1;
            self.outcomes[at] = Some((**outcome).clone());
            if let Some(error) = outcome.error.take_if(|error| error.is_too_late()) {
                outcome.error = Some(error.also(&self.so_far()));
                self.outcomes[at] = Some((**outcome).clone());
            }
            match &outcome.error {
                Some(error) if outcome.refused => {
                    self.close(Close::Refused { error, has_run: self.has_run() });
                }
                Some(error) => self.close(Close::Failed(error)),
                None if self.is_done() => self.close(Close::Well),
                None => {}
            }
        }
    }

    /// Whether any sequence has started, so that the request is charged for even if another one was refused.
    fn has_run(&self) -> bool {
        self.runs.iter().flatten().any(Run::has_run) || self.outcomes.iter().flatten().any(Outcome::has_run)
    }

    /// How far all sequences came together. The engine knows only one by one, and those that have ended no more.
    fn so_far(&self) -> String {
        match self.has_run() {
            true => format!("it had generated {} tokens", self.sum().usage.completion_tokens),
            false => "it had not started".to_owned(),
        }
    }

    fn close(&mut self, how: Close<'_>) {
        if let Some(account) = self.account.take() {
            account.close(how, &self.sum());
        }
    }

    /// Records that the request failed with this error, which is none of its sequences'.
    pub fn fail(&mut self, error: &ApiError) {
        if let Some(account) = self.account.take() {
            account.fail(error, &self.sum());
        }
    }

    /// Ends a choice whose output is complete.
    pub fn stop(&mut self, at: usize) {
        if let Some(run) = &mut self.runs[at] {
            run.stop();
        }
    }

    /// The totals once all choices have ended, or the error of one that failed.
    pub fn totals(&self) -> Result<Totals, ApiError> {
        match self.outcomes.iter().flatten().find_map(|outcome| outcome.error.clone()) {
            Some(error) => Err(error),
            None => Ok(self.sum()),
        }
    }

    /// The totals so far.
    fn sum(&self) -> Totals {
        let all: Vec<&Outcome> = self.outcomes.iter().flatten().collect();
        let reason = |outcome: &Option<Outcome>| outcome.as_ref().and_then(|outcome| outcome.reason);
        let reasons = self.outcomes.iter().map(|o| reason(o).unwrap_or(FinishReason::Cancelled)).collect();
        let mut usage = Usage { prompt_tokens: self.prompt_tokens, ..Usage::default() };
        for (ended, running) in self.outcomes.chunks(self.n).zip(self.runs.chunks(self.n)) {
            // What one choice computed and the next one hit had not been cached before the request.
            let ended = ended.iter().flatten().filter(|c| !c.refused);
            let ended = ended.map(|c| c.usage.prompt_tokens_details.cached_tokens);
            let cached = ended.chain(running.iter().flatten().filter_map(Run::cached_tokens)).min();
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
        if self.account.as_ref().is_some_and(|account| account.pace.is_too_slow()) {
            self.fail(&slow_reader());
        } else {
            self.close(Close::Left);
        }
    }
}
