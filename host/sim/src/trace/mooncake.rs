//! Mooncake's traces: JSON lines with milliseconds, lengths, and an id for every 512 tokens of the prompt. Equal ids
//! mean equal text, including all text before it.

use std::io::BufRead;

use serde::Deserialize;

use super::lines::{Lines, wrong};
use super::{MAX_NEW_TOKENS, MAX_TOKENS, Recorded, Text, TraceError};

/// Tokens per id.
const BLOCK_TOKENS: u32 = 512;

#[derive(Deserialize)]
struct Row {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

pub(super) struct Mooncake<R> {
    lines: Lines<R>,
    id: u64,
}

impl<R: BufRead> Mooncake<R> {
    pub fn new(file: R) -> Self {
        Self { lines: Lines::new(file), id: 0 }
    }

    fn read(&mut self) -> Result<Option<Recorded>, TraceError> {
        let Some((line, text)) = self.lines.next()? else { return Ok(None) };
        let row: Row = serde_json::from_str(text)
            .map_err(|error| wrong(line, error.column(), without_position(&error)))?;
        let at = |field: &str| text.find(&format!("\"{field}\"")).map_or(1, |byte| byte + 1);
        if !(0.0..1e13).contains(&row.timestamp) {
            let message = format!("`timestamp` is {}, not from 0 to 10^13 milliseconds", row.timestamp);
            return Err(wrong(line, at("timestamp"), message));
        }
        let tokens = |field: &str, count: u64| {
            let message = || format!("`{field}` is {count}, more than {MAX_TOKENS}");
            if count > MAX_TOKENS { Err(wrong(line, at(field), message())) } else { Ok(count.max(1) as u32) }
        };
        let prompt_tokens = tokens("input_length", row.input_length)?;
        let output_tokens = tokens("output_length", row.output_length)?;
        let needed = prompt_tokens.div_ceil(BLOCK_TOKENS) as usize;
        if row.hash_ids.len() > needed {
            let message = format!(
                "`hash_ids` has {} ids, but {prompt_tokens} tokens are at most {needed} blocks of {BLOCK_TOKENS}",
                row.hash_ids.len()
            );
            return Err(wrong(line, at("hash_ids"), message));
        }
        let mut blocks = row.hash_ids;
        // The last id may belong to a block that the prompt doesn't fill.
        let whole = if blocks.len() > (prompt_tokens / BLOCK_TOKENS) as usize {
            blocks.pop().map_or(0, |name| name.wrapping_add(1) | 1 << 63)
        } else {
            0
        };
        self.id += 1;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above")]
        let at_us = (row.timestamp * 1e3) as u64;
        Ok(Some(Recorded {
            id: self.id,
            at_us,
            prompt_tokens,
            output_tokens,
            max_tokens: output_tokens.max(MAX_NEW_TOKENS),
            text: Text { block_tokens: BLOCK_TOKENS, blocks, whole, shares: None },
            ..Recorded::default()
        }))
    }
}

impl<R: BufRead> Iterator for Mooncake<R> {
    type Item = Result<Recorded, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// The message of `serde_json` without its position, which the error carries separately.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}
