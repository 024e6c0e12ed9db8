//! A reply's parts as blocks that begin, grow and end, which streams pass on and bodies collect.

use infer_api::messages::{Block, BlockDelta};
use serde_json::Map;

use crate::data::chat::{Part, random_id};

/// What happens to the last block.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It begins, without content.
    Start(Block),
    /// It grows.
    Delta(BlockDelta),
    /// It is complete.
    Stop,
}

/// What a client gets of a model's reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// Blocks with their text.
    Shown,
    /// Blocks without text.
    Omitted,
    /// Nothing: it didn't ask for any, and may take the first block for the reply.
    None,
}

/// Divides one reply into blocks.
pub struct Blocks {
    thinking: Thinking,
    open: Option<Kind>,
    /// Blanks between blocks, which become text only if other text follows.
    blank: String,
    /// Whether any block has begun.
    begun: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    ToolUse,
}

impl Blocks {
    /// A reply without blocks.
    pub fn new(thinking: Thinking) -> Self {
        Self { thinking, open: None, blank: String::new(), begun: false }
    }

    /// Takes more parts, in their order.
    pub fn push(&mut self, parts: Vec<Part>) -> Vec<Change> {
        let mut changes = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Part::Reasoning(_) if self.thinking == Thinking::None => {}
                Part::Reasoning(text) => self.think(&mut changes, text),
                Part::Text(text) => self.text(&mut changes, text),
                Part::Call { name } => {
                    self.blank.clear();
                    let block = Block::ToolUse { id: random_id("toolu"), name, input: Map::new() };
                    self.start(&mut changes, Kind::ToolUse, block);
                }
                Part::Arguments(partial_json) => {
                    changes.push(Change::Delta(BlockDelta::InputJsonDelta { partial_json }));
                }
                Part::Done | Part::Broken => self.stop(&mut changes),
            }
        }
        changes
    }

    /// Ends the reply.
    pub fn finish(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let blank = std::mem::take(&mut self.blank);
        if !self.begun && !blank.is_empty() {
            self.start(&mut changes, Kind::Text, Block::Text { text: String::new() });
            changes.push(Change::Delta(BlockDelta::TextDelta { text: blank }));
        }
        self.stop(&mut changes);
        changes
    }

    fn think(&mut self, changes: &mut Vec<Change>, thinking: String) {
        if self.open != Some(Kind::Thinking) {
            let block = Block::Thinking { thinking: String::new(), signature: String::new() };
            self.start(changes, Kind::Thinking, block);
        }
        if self.thinking == Thinking::Shown {
            changes.push(Change::Delta(BlockDelta::ThinkingDelta { thinking }));
        }
    }

    fn text(&mut self, changes: &mut Vec<Change>, mut text: String) {
        if self.open != Some(Kind::Text) {
            self.blank.push_str(&text);
            if self.blank.trim().is_empty() {
                return;
            }
            text = std::mem::take(&mut self.blank);
            self.start(changes, Kind::Text, Block::Text { text: String::new() });
        }
        changes.push(Change::Delta(BlockDelta::TextDelta { text }));
    }

    fn start(&mut self, changes: &mut Vec<Change>, kind: Kind, block: Block) {
        self.stop(changes);
        (self.open, self.begun) = (Some(kind), true);
        changes.push(Change::Start(block));
    }

    fn stop(&mut self, changes: &mut Vec<Change>) {
        changes.extend(self.open.take().map(|_| Change::Stop));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes in short: `(` and `)` around blocks, `?` for thinking, `'` for text, `!` for tools.
    fn shown(changes: Vec<Change>) -> String {
        let one = |change| match change {
            Change::Start(Block::Thinking { .. }) => "(?".to_owned(),
            Change::Start(Block::Text { .. }) => "('".to_owned(),
            Change::Start(Block::ToolUse { name, .. }) => format!("(!{name} "),
            Change::Delta(BlockDelta::ThinkingDelta { thinking }) => thinking,
            Change::Delta(BlockDelta::TextDelta { text }) => text,
            Change::Delta(BlockDelta::InputJsonDelta { partial_json }) => partial_json,
            Change::Stop => ")".to_owned(),
        };
        changes.into_iter().map(one).collect()
    }

    #[test]
    fn parts_become_blocks_without_blank_ones_between() {
        let reasoning = |text: &str| Part::Reasoning(text.to_owned());
        let text = |text: &str| Part::Text(text.to_owned());
        let call = |name: &str| Part::Call { name: name.to_owned() };
        let arguments = |text: &str| Part::Arguments(text.to_owned());
        for (parts, expected) in [
            (vec![], ""),
            (vec![text("a"), text(" "), text("b")], "('a b)"),
            (vec![text(" "), text("a")], "(' a)"),
            (vec![text(" "), text("\n")], "(' \n)"),
            (vec![reasoning("a"), reasoning("b"), text("\n"), text("c")], "(?ab)('\nc)"),
            (vec![reasoning("a"), text("\n")], "(?a)"),
            (
                vec![
                    text("a"),
                    call("f"),
                    arguments("{"),
                    arguments("}"),
                    Part::Done,
                    text("\n"),
                    call("g"),
                    arguments("{}"),
                    Part::Done,
                ],
                "('a)(!f {})(!g {})",
            ),
            (vec![text("\n"), call("f"), arguments("{\"a")], "(!f {\"a)"),
            (vec![call("f"), arguments("{}"), Part::Broken, text("b")], "(!f {})('b)"),
        ] {
            // In one piece, and each part alone.
            let mut whole = Blocks::new(Thinking::Shown);
            let mut changes = whole.push(parts.clone());
            changes.extend(whole.finish());
            let mut single = Blocks::new(Thinking::Shown);
            let mut alone: Vec<Change> =
                parts.iter().flat_map(|part| single.push(vec![part.clone()])).collect();
            alone.extend(single.finish());
            assert_eq!(shown(changes), expected, "{parts:?}");
            assert_eq!(shown(alone), expected, "{parts:?}");
        }
        for (thinking, expected) in [(Thinking::Omitted, "(?)('b)(?)('c)"), (Thinking::None, "('bc)")] {
            let mut blocks = Blocks::new(thinking);
            let mut changes = blocks.push(vec![reasoning("a"), text("b"), reasoning("a"), text("c")]);
            changes.extend(blocks.finish());
            assert_eq!(shown(changes), expected);
        }
        let mut only = Blocks::new(Thinking::None);
        assert_eq!(only.push(vec![reasoning("a")]), []);
        assert_eq!(only.finish(), [], "a reply that is cut off within its reasoning");
    }

    #[test]
    fn each_use_has_an_id_of_its_own() {
        let call = || Part::Call { name: "f".to_owned() };
        let changes = Blocks::new(Thinking::Shown).push(vec![call(), call()]);
        let ids: Vec<String> = changes
            .into_iter()
            .filter_map(|change| match change {
                Change::Start(Block::ToolUse { id, .. }) => Some(id),
                _ => None,
            })
            .collect();
        assert!(ids[0] != ids[1] && ids.iter().all(|id| id.starts_with("toolu_")), "{ids:?}");
    }
}
