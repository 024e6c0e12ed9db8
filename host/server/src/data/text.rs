//! From tokens to text as a client sees it: incremental detokenizing and stop strings.
//!
//! Which token is a request's last is known when it arrives (an end token, or the last one allowed),
//! so text that was held back leaves with it and no token event has to be invented for it.

use std::sync::Arc;

use infer_model::{Detokenizer, StopStrings};

/// One request's text.
pub struct Text {
    detokenizer: Detokenizer,
    stops: Option<StopStrings>,
    ends: Arc<[u32]>,
    max_tokens: u32,
    tokens: u32,
    last_token: u32,
}

/// What one token adds.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// Text that became complete; may be empty.
    pub text: String,
    /// A stop string was seen; the text ends before it and nothing may follow.
    pub stopped: bool,
}

impl Text {
    /// Text of a request that ends at one of `ends`, at a stop string or after `max_tokens`.
    pub fn new(detokenizer: Detokenizer, stops: Vec<String>, ends: Arc<[u32]>, max_tokens: u32) -> Self {
        let stops = (!stops.is_empty()).then(|| StopStrings::new(stops));
        Self { detokenizer, stops, ends, max_tokens, tokens: 0, last_token: u32::MAX }
    }

    /// Takes the next token.
    pub fn push(&mut self, token: u32) -> Piece {
        self.tokens += 1;
        self.last_token = token;
        let is_end = self.ends.contains(&token);
        let is_last = is_end || self.tokens == self.max_tokens;
        // The end token stands for the end, not for text.
        let mut text = if is_end { String::new() } else { self.detokenizer.push(token) };
        if is_last {
            text.push_str(&self.detokenizer.finish());
        }
        let Some(stops) = &mut self.stops else { return Piece { text, stopped: false } };
        let step = stops.push(&text);
        text = step.text;
        if !step.stopped && is_last {
            text.push_str(&stops.finish());
        }
        Piece { text, stopped: step.stopped }
    }

    /// Tokens taken.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// The token taken last; none of the model's before the first.
    pub fn last_token(&self) -> u32 {
        self.last_token
    }
}
