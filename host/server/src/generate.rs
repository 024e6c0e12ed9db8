//! One request after the other in this process, with no server and no batching: what `infer generate`
//! does, and the baseline that serving is measured against.

use std::sync::Arc;
use std::time::{Duration, Instant};

use infer_core::engine::Policies;
use infer_core::{
    AdapterId, Engine, Event, Executor, FinishReason, Micros, Request, SamplingParams, SessionId, StepOutput,
    TenantId,
};
use infer_model::{KvCacheKind, SamplingDefaults, StopStrings, Tokenizer};

use crate::config::Config;
use crate::engine::Clock;
use crate::serve::StartError;
use crate::startup::load::LoadedModel;

/// Generates, one request at a time.
pub struct Sequential {
    engine: Engine,
    executor: Box<dyn Executor + Send>,
    tokenizer: Tokenizer,
    stop_tokens: Arc<[u32]>,
    sampling: SamplingDefaults,
    max_seq_len: u32,
    vocab_size: u32,
    clock: Clock,
}

/// What to generate.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Not empty.
    pub prompt: Vec<u32>,
    /// At least 1.
    pub max_tokens: u32,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Whether the model's end tokens don't end it.
    pub ignore_eos: bool,
    /// Texts that end it.
    pub stop: Vec<String>,
}

/// What was generated, and how long it took.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The tokens, the end token included.
    pub tokens: Vec<u32>,
    /// Their text, without end token and stop string.
    pub text: String,
    /// Why it ended.
    pub reason: FinishReason,
    /// From the start to the first token.
    pub ttft: Duration,
    /// From the start to the last token.
    pub total: Duration,
}

/// Why nothing was generated.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct GenerateError(String);

impl Sequential {
    /// Loads the model that `config` names. Nothing is kept between requests: a baseline that reuses
    /// prefixes would not be one. Adapters are left out: its requests are for the model itself.
    pub fn load(config: &Config) -> Result<Self, StartError> {
        let config = Config {
            max_batch_size: 1,
            max_batch_tokens: Some(config.max_batch_tokens.unwrap_or(0).max(config.prefill_chunk)),
            prefix_caching: false,
            prompt_cache_entries: 0,
            kv_cache: KvCacheKind::Paged,
            kv_memory_bytes: None,
            lora: Vec::new(),
            max_adapters: 0,
            ..config.clone()
        };
        let loaded = LoadedModel::load(&config)?;
        let executor = loaded.executor(&config)?;
        let engine = Engine::new(loaded.engine_config(&config, [0, 0]), Policies::builtin());
        Ok(Self {
            engine,
            executor,
            stop_tokens: loaded.stop_tokens,
            sampling: loaded.sampling,
            vocab_size: loaded.model.vocab_size(),
            max_seq_len: loaded.sizing.max_seq_len,
            tokenizer: loaded.tokenizer,
            clock: Clock::start(),
        })
    }

    /// Text to tokens and back.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// How the model wishes its tokens drawn.
    pub fn sampling(&self) -> &SamplingDefaults {
        &self.sampling
    }

    /// Longest prompt plus output.
    pub fn max_seq_len(&self) -> u32 {
        self.max_seq_len
    }

    /// Rows of its embedding: token ids are below this.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// Generates; `each` gets the text as it becomes complete.
    pub fn generate(
        &mut self,
        what: &Generation,
        mut each: impl FnMut(&str),
    ) -> Result<Generated, GenerateError> {
        if let Some(token) = what.prompt.iter().find(|&&t| t >= self.vocab_size) {
            let last = self.vocab_size - 1;
            return Err(GenerateError(format!(
                "token {token} is no token of this model; ids go from 0 to {last}"
            )));
        }
        let begun = Instant::now();
        let ends = if what.ignore_eos { Arc::from([]) } else { Arc::clone(&self.stop_tokens) };
        let request = Request {
            tenant: TenantId(0),
            session: SessionId(0),
            cache_salt: 0,
            adapter: AdapterId::NONE,
            priority: 0,
            deadline: Micros::NEVER,
            prompt: what.prompt.as_slice().into(),
            max_new_tokens: what.max_tokens,
            expected_output: None,
            min_new_tokens: 0,
            stop_tokens: Arc::clone(&ends),
            sampling: what.sampling.clone(),
        };
        let id = self
            .engine
            .submit(request, self.clock.now())
            .map_err(|refusal| GenerateError(refusal.message))?;
        let mut text = Assembly {
            detokenizer: self.tokenizer.detokenizer_after(&what.prompt),
            stops: StopStrings::new(what.stop.clone()),
            text: String::new(),
        };
        let mut out = Generated {
            tokens: Vec::new(),
            text: String::new(),
            reason: FinishReason::Length,
            ttft: Duration::ZERO,
            total: Duration::ZERO,
        };
        let mut output = StepOutput::default();
        let mut events = Vec::new();
        let mut stopped = false;
        loop {
            if let Some(batch) = self.engine.begin_step(self.clock.now()) {
                let result = self.executor.execute(&batch, &mut output);
                let now = self.clock.now();
                self.engine.finish_step(batch, result.map(|()| &output), now);
            }
            self.engine.drain_events(&mut events);
            for event in events.drain(..) {
                match event {
                    // A step may draw several; those behind a stop string are discarded.
                    Event::Token { .. } if stopped => {}
                    Event::Token { token, .. } => {
                        out.total = begun.elapsed();
                        if out.tokens.is_empty() {
                            out.ttft = out.total;
                        }
                        out.tokens.push(token);
                        if !ends.contains(&token) && text.push(token, &mut each) {
                            stopped = true;
                            self.engine.finish(id, FinishReason::Stop, self.clock.now());
                        }
                    }
                    Event::Finished { reason, .. } => {
                        let reason = if stopped { FinishReason::Stop } else { reason };
                        out.text = text.finish(reason, &mut each)?;
                        out.reason = reason;
                        // The engine may hold more to say, about policies say; it is nothing to us.
                        return Ok(out);
                    }
                    Event::Failed { message, .. } => return Err(GenerateError(message)),
                    Event::Refused { refusal, .. } => return Err(GenerateError(refusal.message)),
                    _ => {}
                }
            }
        }
    }
}

struct Assembly {
    detokenizer: infer_model::Detokenizer,
    stops: StopStrings,
    text: String,
}

impl Assembly {
    /// True once a stop string was seen.
    fn push(&mut self, token: u32, each: &mut impl FnMut(&str)) -> bool {
        let text = self.detokenizer.push(token);
        let step = self.stops.push(&text);
        each(&step.text);
        self.text.push_str(&step.text);
        step.stopped
    }

    /// The whole text; fails if some of it is missing, which may show only in what was held back until now.
    fn finish(mut self, reason: FinishReason, each: &mut impl FnMut(&str)) -> Result<String, GenerateError> {
        if reason != FinishReason::Stop {
            let rest = self.detokenizer.finish();
            let step = self.stops.push(&rest);
            let mut rest = step.text;
            if !step.stopped {
                rest.push_str(&self.stops.finish());
            }
            each(&rest);
            self.text.push_str(&rest);
        }
        if self.detokenizer.has_failed() {
            let message = "the tokenizer can't turn a token of the output into text";
            return Err(GenerateError(message.to_owned()));
        }
        Ok(self.text)
    }
}

#[cfg(test)]
mod tests {
    use infer_model::Source;
    use serde_json::json;

    use super::*;

    /// The library's `Strip` takes an `a` off both ends of a token, and panics where both are the same. A run of bytes
    /// is decoded at its end.
    #[test]
    fn token_without_a_text_is_told_even_if_it_is_held_back_until_the_end() {
        let special = json!({"id": 0, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false});
        let strip = json!({"type": "Strip", "content": "a", "start": 1, "stop": 1});
        let file = json!({"version": "1.0", "added_tokens": [special], "normalizer": null, "pre_tokenizer": null,
            "post_processor": null,
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, strip]},
            "model": {"type": "WordLevel", "vocab": {"<s>": 0, "b": 1, "<0x61>": 2, "<0x62>": 3}, "unk_token": "<s>"}});
        let file = file.to_string();
        let tokenizer = Tokenizer::load(&Source::Embedded(&[("tokenizer.json", file.as_bytes())])).unwrap();
        let finished = |tokens: [u32; 2]| {
            let mut text = Assembly {
                detokenizer: tokenizer.detokenizer(),
                stops: StopStrings::new(Vec::new()),
                text: String::new(),
            };
            for token in tokens {
                assert!(!text.push(token, &mut |_: &str| {}));
            }
            assert!(!text.detokenizer.has_failed(), "so far");
            text.finish(FinishReason::Length, &mut |_: &str| {})
        };
        assert_eq!(finished([1, 3]).unwrap(), "bb");
        let error = finished([1, 2]).unwrap_err();
        assert!(error.0.contains("can't turn a token of the output into text"), "{error}");
    }
}
