//! The head of a message: its author, whom it is for, its channel, and the type of its content.
//!
//! Models leave parts out, change their order and forget the mark that ends a head. So a head is text that is searched
//! for what it says, and what it can't have said belongs to the message.

use super::marks::{CHANNEL, CONSTRAIN, START, is_mark, pieces};

/// Longest head in bytes: the longest name of a function, and as much besides. What is longer is none.
const MAX_BYTES: usize = 512;
const CHANNELS: [(&str, Channel); 3] =
    [("analysis", Channel::Analysis), ("commentary", Channel::Commentary), ("final", Channel::Final)];
const AUTHORS: [&str; 5] = ["assistant", "user", "system", "developer", "tool"];
const RECIPIENT: &str = "to=";
/// The namespace of the functions that a request offers.
const FUNCTIONS: &str = "functions.";
/// A type of content that stands in heads also without its mark.
const JSON: &str = "json";

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Reasoning.
    Analysis,
    /// Calls, and what is said before them.
    Commentary,
    /// The reply.
    Final,
}

/// A head so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Its text with its marks.
    text: String,
    /// Bytes of it that the prompt ends with.
    given: usize,
}

impl Head {
    /// A head that the prompt has begun; `None` if that is too long for one.
    pub fn given(text: String) -> Option<Self> {
        let given = text.len();
        (given <= MAX_BYTES).then_some(Self { text, given })
    }

    /// A head that begins with this mark.
    pub fn of(mark: char) -> Self {
        Self { text: mark.to_string(), given: 0 }
    }

    /// Adds as much text as there is room for, and returns the rest.
    pub fn push<'a>(&mut self, text: &'a str) -> &'a str {
        let room = MAX_BYTES - self.text.len();
        let (more, rest) = text.split_at(text.floor_char_boundary(room));
        self.text.push_str(more);
        rest
    }

    /// The channel that it names last.
    pub fn channel(&self) -> Option<Channel> {
        let (_, name) = self.text.rsplit_once(CHANNEL)?;
        let name = name.trim_start();
        CHANNELS.iter().find(|(known, _)| name.starts_with(known)).map(|(_, channel)| *channel)
    }

    /// Whether the mark of a channel has come.
    pub fn has_channel(&self) -> bool {
        self.text.contains(CHANNEL)
    }

    /// Whether the name of a channel follows.
    pub fn ends_with_channel(&self) -> bool {
        self.text.ends_with(CHANNEL)
    }

    /// Whom the message is for.
    pub fn recipient(&self) -> Option<&str> {
        let mut words = self.text.split(|letter: char| letter.is_whitespace() || is_mark(letter));
        words.find_map(|word| word.strip_prefix(RECIPIENT)).filter(|name| !name.is_empty())
    }

    /// The function that the message calls. As in the syntax of Hermes, any may be called if some are offered; without its
    /// namespace, one of these.
    pub fn function(&self, offered: &[String]) -> Option<&str> {
        let recipient = self.recipient().filter(|_| !offered.is_empty())?;
        match recipient.strip_prefix(FUNCTIONS) {
            Some(name) => Some(name).filter(|name| !name.is_empty()),
            None => Some(recipient).filter(|name| offered.iter().any(|other| other == name)),
        }
    }

    /// What the model has said behind an author that the prompt gives, if no head goes on like that.
    pub fn as_text(&self) -> Option<&str> {
        let (given, own) = self.text.split_at(self.given);
        if given.is_empty() || given.contains(is_mark) || own.contains(is_mark) {
            return None;
        }
        let begun = own.trim_start();
        let may_go_on = RECIPIENT.starts_with(begun) || begun.starts_with(RECIPIENT);
        (!may_go_on).then_some(own)
    }

    /// What a head without an end has besides what heads have: the begin of its message. If the output `ends` with it, it
    /// may be cut off.
    pub fn surplus(&self, ends: bool) -> String {
        let (given, own) = self.text.split_at(self.given);
        let mut before = given.chars().rfind(|&letter| is_mark(letter)).unwrap_or(START);
        let mut first = given.rsplit(is_mark).next().is_none_or(|said| said.trim().is_empty());
        let mut surplus = String::new();
        for (said, mark) in pieces(own) {
            surplus.push_str(unexpected(said, before, first, ends));
            (before, first) = (mark.unwrap_or(before), true);
        }
        surplus
    }
}

/// A part of a head, which follows the mark `before`, from the first word on that heads don't have. `first` says whether it
/// begins right behind the mark.
fn unexpected(said: &str, before: char, mut first: bool, ends: bool) -> &str {
    let mut rest = said.trim_start();
    loop {
        let word = rest.split(char::is_whitespace).next().unwrap_or_default();
        let expected = match before {
            _ if word.starts_with(RECIPIENT) || word == JSON => word.len(),
            CHANNEL if first => channel_bytes(word, ends),
            CONSTRAIN if first => word.len(),
            START if first && (AUTHORS.contains(&word) || word.starts_with(FUNCTIONS)) => word.len(),
            _ => 0,
        };
        if expected == 0 {
            return rest;
        }
        rest = rest[expected..].trim_start();
        first = false;
    }
}

/// Bytes of a word that name a channel, or may have begun to.
fn channel_bytes(word: &str, ends: bool) -> usize {
    let named = CHANNELS.iter().find(|(name, _)| word.starts_with(name)).map(|(name, _)| name.len());
    let cut_off = ends && CHANNELS.iter().any(|(name, _)| name.starts_with(word));
    named.unwrap_or(if cut_off { word.len() } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sequence::marks::marked;

    fn head(given: &str, own: &str) -> Head {
        let mut head = Head::given(marked(given)).unwrap();
        assert_eq!(head.push(&marked(own)), "");
        head
    }

    #[test]
    fn parts_are_found_in_any_order() {
        use Channel::{Analysis, Commentary, Final};
        for (given, own, channel, recipient) in [
            ("assistant", "<|channel|>analysis", Some(Analysis), None),
            ("assistant", "<|channel|>final <|constrain|>json", Some(Final), None),
            ("assistant", " to=functions.f<|channel|>commentary json", Some(Commentary), Some("functions.f")),
            (
                "",
                "assistant<|channel|>commentary to=functions.f<|constrain|>json",
                Some(Commentary),
                Some("functions.f"),
            ),
            ("assistant<|channel|>", "final", Some(Final), None),
            ("", "assistant<|channel|>other to=", None, None),
            ("", "<|channel|>analysis<|channel|>final", Some(Final), None),
            ("", "", None, None),
        ] {
            let head = head(given, own);
            assert_eq!((head.channel(), head.recipient()), (channel, recipient), "{own}");
        }
    }

    #[test]
    fn what_no_head_has_is_the_begin_of_the_message() {
        for (given, own, ends, surplus) in [
            ("assistant", "<|channel|>analysisLet me see.", false, "Let me see."),
            ("assistant", "<|channel|>commentary to=functions.f json {\"a\": 1}", false, "{\"a\": 1}"),
            ("", "assistant<|channel|>other way", false, "other way"),
            ("", "Hello there", false, "Hello there"),
            ("assistant", "<|channel|>anal", true, ""),
            ("assistant", "<|channel|>anal", false, "anal"),
            ("assistant", " to=functions.f<|channel|>commentary <|constrain|>xml", false, ""),
            ("assistant<|channel|>", "final Yes", false, "Yes"),
            ("assistant<|channel|>final", "ly", false, "ly"),
            ("assistant", "", true, ""),
        ] {
            assert_eq!(head(given, own).surplus(ends), surplus, "{given} {own}");
        }
        for (given, own, text) in [
            ("assistant", " Hello", Some(" Hello")),
            ("assistant", " to", None),
            ("assistant", "", None),
            ("assistant", "<|channel|>Hello", None),
            ("", "Hello", None),
        ] {
            assert_eq!(head(given, own).as_text(), text, "{given} {own}");
        }
    }

    #[test]
    fn head_has_a_bound() {
        let mut head = Head::of(START);
        let long = "é".repeat(400);
        assert_eq!(head.push(&long).chars().count(), 400 - (MAX_BYTES - 3) / 2);
        assert_eq!(head.push("a"), "");
        assert_eq!(head.push("a"), "a");
        assert_eq!(Head::given("a".repeat(MAX_BYTES + 1)), None);
    }
}
