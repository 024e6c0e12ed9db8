//! JSON lines with times, lengths, and ids of each prompt's blocks: Mooncake's traces and Alibaba Bailian's.
//!
//! Bailian's also name the request before in the same chat. When requests ended is unknown, so all arrive at their recorded
//! times. Their types don't become tenants, because they share text, and tenants of a host don't.

use std::collections::{BTreeMap, VecDeque};
use std::io::BufRead;

use infer_core::testing::SplitMix;
use serde::Deserialize;

use super::empty::{Empty, Rows};
use super::lines::{Lines, wrong};
use super::{MAX_NEW_TOKENS, MAX_TOKENS, Recorded, Text, TraceError};

/// Block ids that are remembered of earlier requests in chats, each of which counts as one more.
const MAX_KEPT: usize = 1 << 22;

/// Whether a first line is one of a trace of this kind.
pub(super) fn is_first(line: &str) -> bool {
    line.starts_with('{') && line.contains("\"hash_ids\"")
}

/// Whether such a line is Bailian's.
pub(super) fn is_bailian(line: &str) -> bool {
    is_first(line) && line.contains("\"chat_id\"")
}

#[derive(Deserialize)]
struct Row {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
    chat_id: Option<u64>,
    /// Negative for the first of a chat.
    parent_chat_id: Option<i64>,
}

/// In what the formats differ.
struct Dialect {
    /// Tokens per id.
    block_tokens: u32,
    us_per_unit: f64,
    unit: &'static str,
    /// Latest time, in its unit.
    latest: f64,
    /// Whether ids are those of the blocks' text alone, not of all text before it, too.
    of_text_alone: bool,
}

const MOONCAKE: Dialect =
    Dialect { block_tokens: 512, us_per_unit: 1e3, unit: "milliseconds", latest: 1e13, of_text_alone: false };
const BAILIAN: Dialect =
    Dialect { block_tokens: 16, us_per_unit: 1e6, unit: "seconds", latest: 1e10, of_text_alone: true };

pub(super) struct Hashed<R> {
    lines: Lines<R>,
    dialect: Dialect,
    chats: Chats,
    rows: Rows,
    id: u64,
}

impl<R: BufRead> Hashed<R> {
    pub fn mooncake(file: R, empty: &Empty) -> Self {
        Self::new(file, MOONCAKE, empty)
    }

    pub fn bailian(file: R, empty: &Empty) -> Self {
        Self::new(file, BAILIAN, empty)
    }

    fn new(file: R, dialect: Dialect, empty: &Empty) -> Self {
        Self { lines: Lines::new(file), dialect, chats: Chats::default(), rows: Rows::new(empty), id: 0 }
    }

    fn read(&mut self) -> Result<Option<Recorded>, TraceError> {
        let Some((line, text)) = self.lines.next()? else { return Ok(None) };
        let row: Row = serde_json::from_str(text)
            .map_err(|error| wrong(line, error.column(), without_position(&error)))?;
        let at = |field: &str, message: String| {
            wrong(line, text.find(&format!("\"{field}\"")).map_or(1, |byte| byte + 1), message)
        };
        let Dialect { block_tokens, us_per_unit, unit, latest, of_text_alone } = self.dialect;
        if !(0.0..latest).contains(&row.timestamp) {
            let message = format!("`timestamp` is {}, not from 0 to {latest:.0} {unit}", row.timestamp);
            return Err(at("timestamp", message));
        }
        let tokens = |field: &str, count: u64| {
            let message = || format!("`{field}` is {count}, more than {MAX_TOKENS}");
            if count > MAX_TOKENS { Err(at(field, message())) } else { Ok(count.max(1) as u32) }
        };
        let prompt_tokens = tokens("input_length", row.input_length)?;
        let output_tokens = tokens("output_length", row.output_length)?;
        self.rows.add(row.input_length, row.output_length);
        let needed = prompt_tokens.div_ceil(block_tokens) as usize;
        if row.hash_ids.len() > needed {
            let message = format!(
                "`hash_ids` has {} ids, but {prompt_tokens} tokens are at most {needed} blocks of {block_tokens}",
                row.hash_ids.len()
            );
            return Err(at("hash_ids", message));
        }
        let mut blocks = row.hash_ids;
        if of_text_alone {
            of_prefixes(&mut blocks);
        }
        // The last id may belong to a block that the prompt doesn't fill.
        let whole = if blocks.len() > (prompt_tokens / block_tokens) as usize {
            blocks.pop().map_or(0, |name| name.wrapping_add(1) | 1 << 63)
        } else {
            0
        };
        let parent = row.parent_chat_id.and_then(|id| u64::try_from(id).ok());
        let (session, continued) = row.chat_id.map_or((0, 0), |chat| self.chats.add(chat, parent, &blocks));
        self.id += 1;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded above")]
        let at_us = (row.timestamp * us_per_unit) as u64;
        Ok(Some(Recorded {
            id: self.id,
            at_us,
            session,
            prompt_tokens,
            output_tokens,
            max_tokens: output_tokens.max(MAX_NEW_TOKENS),
            continued: continued * block_tokens,
            text: Text { block_tokens, blocks, whole, shares: None },
            ..Recorded::default()
        }))
    }
}

impl<R: BufRead> Iterator for Hashed<R> {
    type Item = Result<Recorded, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// Requests in chats, by id. The first to come are forgotten first.
#[derive(Default)]
struct Chats {
    requests: BTreeMap<u64, Turn>,
    order: VecDeque<u64>,
    kept: usize,
}

struct Turn {
    /// That of the chat's first request.
    session: u64,
    /// Ids of its full blocks.
    blocks: Box<[u64]>,
}

impl Chats {
    /// Adds a request that follows `parent` or is the first of its chat. Returns its session, which is named after the first
    /// one, and how many of its blocks begin `parent`, too.
    fn add(&mut self, id: u64, parent: Option<u64>, blocks: &[u64]) -> (u64, u32) {
        let before = parent.and_then(|parent| self.requests.get(&parent));
        // 0 stands for no session.
        let first = parent.unwrap_or(id).wrapping_add(1).max(1);
        let session = before.map_or(first, |turn| turn.session);
        let equal = |turn: &Turn| turn.blocks.iter().zip(blocks).take_while(|(a, b)| a == b).count();
        let common = before.map_or(0, equal) as u32;
        self.kept += blocks.len() + 1;
        match self.requests.insert(id, Turn { session, blocks: blocks.into() }) {
            Some(replaced) => self.kept -= replaced.blocks.len() + 1,
            None => self.order.push_back(id),
        }
        while self.kept > MAX_KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.kept -= self.requests.remove(&oldest).map_or(0, |turn| turn.blocks.len() + 1);
        }
        (session, common)
    }
}

/// Makes ids of blocks' texts those of whole prefixes: equal only if all ids before are, too.
fn of_prefixes(blocks: &mut [u64]) {
    let mut before = 0;
    for block in blocks {
        let text = SplitMix(*block).next_u64();
        before = SplitMix(before ^ text).next_u64();
        *block = before;
    }
}

/// The message of `serde_json` without its position, which the error carries separately.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}
