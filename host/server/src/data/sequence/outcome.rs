//! How a sequence ended, as the API reports it: finish reason, usage, timings.

use infer_api::usage::{PromptTokensDetails, Timings, Usage};
use infer_core::{FailureCause, FinishReason, Micros};

use crate::engine::End;
use crate::http::ApiError;

/// What the last event of a stream reports, and what the metrics record.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Finish reason; `None` if it failed.
    pub reason: Option<FinishReason>,
    /// Tokens in and out.
    pub usage: Usage,
    /// Durations of its phases.
    pub timings: Timings,
    /// Time from submission to the end.
    pub e2e_ms: f64,
    /// Why it failed, as an error response.
    pub error: Option<ApiError>,
    /// Whether it was refused after it had waited.
    pub refused: bool,
    /// Text that was held back and is sent with the end.
    pub rest: String,
    /// The stop string that ended the output.
    pub stop_string: Option<String>,
}

#[cfg(test)]
impl Outcome {
    /// One with this finish reason, of which nothing else matters.
    pub fn ended(reason: FinishReason) -> Self {
        Self {
            reason: Some(reason),
            usage: Usage::default(),
            timings: Timings::default(),
            e2e_ms: 0.0,
            error: None,
            refused: false,
            rest: String::new(),
            stop_string: None,
        }
    }
}

/// What an outcome is computed from, besides the engine's last event.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// When it was submitted to the engine, possibly during a step.
    pub submitted: Micros,
    /// Now.
    pub now: Micros,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Prompt tokens that were cached when it started.
    pub cached_tokens: u32,
    /// Token events sent.
    pub sent_tokens: u32,
    /// Bytes per KV block.
    pub block_bytes: u64,
    /// Whether it was ended because its output was complete, by a stop string or a call, whatever the engine
    /// reports.
    pub stopped: bool,
    /// Whether its last token is one of the model's end tokens.
    pub model_end: bool,
    /// Whether the engine still runs.
    pub engine_alive: bool,
}

/// The error of a request whose client lags behind, or reads nothing.
pub fn slow_reader() -> ApiError {
    ApiError::internal("slow_reader", "the client read too slowly, so its request was cancelled")
}

impl Outcome {
    /// The outcome of a sequence whose last event is `end`; `None` if the engine dropped it without one.
    pub fn new(end: Option<&End>, known: Known) -> Self {
        let (reason, engine, error) = match end {
            Some(End::Finished { reason, usage }) => (Some(*reason), Some(*usage), None),
            Some(End::Failed { cause, message, usage }) => {
                let error = match cause {
                    FailureCause::Device => ApiError::internal("device_fault", message),
                    FailureCause::Memory => ApiError::internal("memory", message),
                    FailureCause::Cleared => ApiError::unavailable_here("queue_cleared", message),
                    FailureCause::Overdue => ApiError::too_late(message),
                };
                (None, Some(*usage), Some(error))
            }
            Some(End::Refused(refusal)) => (None, None, Some(ApiError::refused(refusal))),
            None if known.engine_alive => (None, None, Some(slow_reader())),
            None => (None, None, Some(ApiError::unavailable("stopped", "the host stopped"))),
        };
        let (reason, error) = match reason {
            // The output was already complete, so later faults do not change the outcome.
            _ if known.stopped => (Some(FinishReason::Stop), None),
            Some(FinishReason::Eos) if !known.model_end => (Some(FinishReason::Stop), error),
            reason => (reason, error),
        };
        let usage = engine.unwrap_or_default();
        let ms = |from: Micros, to: Micros| {
            let never = from == Micros::NEVER || to == Micros::NEVER || engine.is_none();
            (!never).then(|| to.since(from).0 as f64 / 1_000.0)
        };
        Self {
            reason,
            usage: Usage {
                prompt_tokens: known.prompt_tokens,
                completion_tokens: known.sent_tokens,
                total_tokens: known.prompt_tokens + known.sent_tokens,
                prompt_tokens_details: PromptTokensDetails { cached_tokens: known.cached_tokens },
                completion_tokens_details: None,
            },
            timings: Timings {
                queue_ms: ms(known.submitted, usage.started),
                prefill_ms: ms(usage.started, usage.first_token),
                ttft_ms: ms(known.submitted, usage.first_token),
                decode_ms: ms(usage.first_token, usage.ended),
                prefilled_tokens: usage.prefilled_tokens,
                kv_bytes: u64::from(usage.peak_blocks) * known.block_bytes,
            },
            e2e_ms: known.now.since(known.submitted).0 as f64 / 1_000.0,
            error,
            refused: matches!(end, Some(End::Refused(_))),
            rest: String::new(),
            stop_string: None,
        }
    }

    /// Whether it was started.
    pub fn has_run(&self) -> bool {
        self.timings.queue_ms.is_some() || self.usage.completion_tokens > 0
    }
}

/// OpenAI's name of a finish reason.
pub fn openai_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Eos => FinishReason::Stop.name(),
        other => other.name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(stopped: bool) -> Known {
        Known {
            submitted: Micros(0),
            now: Micros(9),
            prompt_tokens: 3,
            cached_tokens: 2,
            sent_tokens: 4,
            block_bytes: 1,
            stopped,
            model_end: false,
            engine_alive: true,
        }
    }

    #[test]
    fn stopped_sequence_finishes_whatever_the_engine_reports() {
        let failed =
            |cause| Some(End::Failed { cause, message: "it failed".to_owned(), usage: Default::default() });
        let reason = FinishReason::Length;
        let ends = [
            failed(FailureCause::Device),
            failed(FailureCause::Overdue),
            Some(End::Finished { reason, usage: Default::default() }),
            None,
        ];
        for end in &ends {
            let outcome = Outcome::new(end.as_ref(), known(true));
            assert_eq!(outcome.reason, Some(FinishReason::Stop), "{end:?}");
            assert!(outcome.error.is_none(), "{end:?}");
            let cached = outcome.usage.prompt_tokens_details.cached_tokens;
            assert_eq!(cached, 2, "{end:?}: whether or not the engine reports its usage");
            let fails = !matches!(end, Some(End::Finished { .. }));
            assert_eq!(Outcome::new(end.as_ref(), known(false)).error.is_some(), fails, "{end:?}");
        }
    }
}
