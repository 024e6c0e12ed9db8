//! Parses request bodies: JSON without duplicate keys.
//!
//! Token ids are read directly into a vector: as JSON values a long prompt would take eight times the memory.
//! serde_json bounds the nesting depth; the number of values and of prompts is bounded here.

use std::fmt;

use infer_api::unique::{Limit, MORE_THAN, Unique, duplicate};
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::data::sequence::job::MAX_SEQUENCES;
use crate::http::shortened;

/// The fields of a JSON object in their order, with the prompt apart.
#[derive(Debug, Default)]
pub struct Fields {
    /// The field `prompt`, or what it is called at this endpoint.
    pub prompt: Option<PromptField>,
    /// All other fields. Names are unique.
    pub rest: Vec<(String, Value)>,
    /// Names passed to `take`, in debug builds only, to be compared with the documented fields.
    asked: Vec<String>,
}

/// Why a body can't be parsed.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyError {
    /// It is no JSON object, or an object in it has a key twice.
    Invalid(String),
    /// It has more values or fields than are read: how many those are.
    TooMany(String),
}

/// The value of a prompt.
#[derive(Debug, PartialEq, Eq)]
pub enum PromptField {
    /// `null`.
    Null,
    /// Text.
    Text(String),
    /// Integers.
    Tokens(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of integers.
    TokenLists(Vec<Vec<u32>>),
    /// More prompts than a request may have.
    TooMany,
    /// An integer that is no token of any model, and its index in its list.
    NoToken(i64, usize),
    /// Anything else.
    Wrong,
}

/// The values that it accepts, for error messages.
pub const NOT_A_PROMPT: &str = "text, a list of token ids, or a list of prompts of either kind";

impl Fields {
    /// Parses a body. The error says where the body is wrong.
    pub fn parse(body: &[u8]) -> Result<Self, BodyError> {
        Self::parse_with(body, "prompt")
    }

    /// Parses a body whose prompt has this name.
    pub fn parse_with(body: &[u8], prompt: &'static str) -> Result<Self, BodyError> {
        let mut from = serde_json::Deserializer::from_slice(body);
        let read = Body { prompt }.deserialize(&mut from).and_then(|fields| from.end().map(|()| fields));
        read.map_err(|e| {
            let error = e.to_string();
            if error.starts_with(MORE_THAN) {
                return BodyError::TooMany(error);
            }
            if HALF_PAIR.iter().any(|start| error.starts_with(start)) {
                let advice = "half of a surrogate pair, as of a cut emoji; send both halves";
                return BodyError::Invalid(format!("{error}: {advice}"));
            }
            BodyError::Invalid(shortened(&error))
        })
    }

    /// Removes and returns a field. `null` counts as absent.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        if cfg!(debug_assertions) {
            self.asked.push(name.to_owned());
        }
        let at = self.rest.iter().position(|(key, _)| key == name)?;
        let (_, value) = self.rest.swap_remove(at);
        (!value.is_null()).then_some(value)
    }

    /// Names passed to `take`; none in release builds.
    pub fn asked(&self) -> &[String] {
        &self.asked
    }
}

/// Reads the fields of a body.
struct Body {
    /// Name of the prompt.
    prompt: &'static str,
}

impl<'de> DeserializeSeed<'de> for Body {
    type Value = Fields;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Fields, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Body {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Fields::default();
        let limit = Limit::new(MAX_VALUES);
        while let Some(key) = map.next_key::<String>()? {
            let is_prompt = key == self.prompt;
            let seen = fields.rest.iter().any(|(k, _)| *k == key);
            if seen || (is_prompt && fields.prompt.is_some()) {
                return Err(duplicate(&key));
            }
            if is_prompt {
                fields.prompt = Some(map.next_value_seed(Part { depth: 0 })?.into_prompt());
            } else if fields.rest.len() == MAX_FIELDS {
                return Err(de::Error::custom(format!("{MORE_THAN}{MAX_FIELDS} fields")));
            } else {
                fields.rest.push((key, map.next_value_seed(Unique(&limit))?));
            }
        }
        Ok(fields)
    }
}

/// How serde_json's errors about `\u` escapes of halves of a pair begin.
const HALF_PAIR: [&str; 2] = ["unexpected end of hex escape", "lone leading surrogate"];

/// Most JSON values in a body, nested ones included and the prompt excepted. A value of two bytes can take a
/// hundred in memory. JSON within a text of the body has the same limit.
pub const MAX_VALUES: usize = 100_000;
/// Most fields of a body. Far more than the API has; it bounds the search for duplicates.
const MAX_FIELDS: usize = 256;

impl PromptField {
    /// Appends an element; the list starts as an empty list of tokens. Returns false if the element doesn't
    /// fit.
    fn push(&mut self, item: Item) -> bool {
        match (&mut *self, item) {
            (Self::Tokens(all), Item::Number(number)) => match u32::try_from(number) {
                Ok(token) => all.push(token),
                Err(_) => {
                    *self = Self::NoToken(number, all.len());
                    return false;
                }
            },
            (Self::Tokens(_) | Self::TokenLists(_), Item::List(wrong @ Self::NoToken(..))) => {
                *self = wrong;
                return false;
            }
            (Self::Tokens(none), Item::Text(text)) if none.is_empty() => *self = Self::Texts(vec![text]),
            (Self::Tokens(none), Item::List(Self::Tokens(list))) if none.is_empty() => {
                *self = Self::TokenLists(vec![list]);
            }
            (Self::Texts(all), Item::Text(text)) if all.len() < MAX_SEQUENCES => all.push(text),
            (Self::TokenLists(all), Item::List(Self::Tokens(list))) if all.len() < MAX_SEQUENCES => {
                all.push(list);
            }
            (Self::Texts(_), Item::Text(_)) | (Self::TokenLists(_), Item::List(Self::Tokens(_))) => {
                *self = Self::TooMany;
                return false;
            }
            _ => return false,
        }
        true
    }
}

/// A value inside a prompt.
enum Item {
    Null,
    Number(i64),
    Text(String),
    List(PromptField),
    Wrong,
}

impl Item {
    fn into_prompt(self) -> PromptField {
        match self {
            Self::Null => PromptField::Null,
            Self::Text(text) => PromptField::Text(text),
            Self::List(list) => list,
            Self::Number(_) | Self::Wrong => PromptField::Wrong,
        }
    }
}

/// Reads a prompt, one of its elements, or an element of those. Deeper values are skipped without recursion.
struct Part {
    depth: u8,
}

impl<'de> DeserializeSeed<'de> for Part {
    type Value = Item;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Item, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NOT_A_PROMPT)
    }

    fn visit_unit<E>(self) -> Result<Item, E> {
        Ok(Item::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Item, E> {
        Ok(Item::Wrong)
    }

    fn visit_u64<E>(self, number: u64) -> Result<Item, E> {
        Ok(i64::try_from(number).map_or(Item::Wrong, Item::Number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Item, E> {
        Ok(Item::Number(number))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Item, E> {
        Ok(Item::Wrong)
    }

    fn visit_str<E>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Item, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Item::Wrong)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
        let mut all = PromptField::Tokens(Vec::new());
        let mut fits = self.depth < 2;
        while fits && let Some(item) = list.next_element_seed(Self { depth: self.depth + 1 })? {
            fits = all.push(item);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        let said = fits || matches!(all, PromptField::TooMany | PromptField::NoToken(..));
        Ok(if said { Item::List(all) } else { Item::Wrong })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(json: &str) -> PromptField {
        Fields::parse(format!("{{\"prompt\": {json}}}").as_bytes()).unwrap().prompt.unwrap()
    }

    #[test]
    fn prompt_is_text_or_token_ids() {
        assert_eq!(prompt("\"a\\n\""), PromptField::Text("a\n".to_owned()));
        assert_eq!(prompt("[1, 2]"), PromptField::Tokens(vec![1, 2]));
        assert_eq!(prompt("[1, -1, 99999999999]"), PromptField::NoToken(-1, 1));
        assert_eq!(prompt("[99999999999]"), PromptField::NoToken(99_999_999_999, 0));
        assert_eq!(prompt("null"), PromptField::Null);
        assert_eq!(prompt("[\"a\", \"b\"]"), PromptField::Texts(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(prompt("[[1, 2], [3], []]"), PromptField::TokenLists(vec![vec![1, 2], vec![3], vec![]]));
        assert_eq!(prompt("[[1, 2], [4, 5, -3], []]"), PromptField::NoToken(-3, 2));
        let wrong =
            ["3", "true", "{\"a\": [1]}", "[1.5, 2]", "[\"a\", 1]", "[[1], 2]", "[[1], [[2]]]", "[null, 1]"];
        for wrong in wrong {
            assert!(matches!(prompt(wrong), PromptField::Wrong), "{wrong}");
        }
    }

    #[test]
    fn too_many_prompts_are_not_read() {
        for one in ["\"x\"", "[1]", "[]"] {
            let list = |n: usize| prompt(&format!("[{}]", vec![one; n].join(",")));
            match list(MAX_SEQUENCES) {
                PromptField::Texts(all) => assert_eq!(all.len(), MAX_SEQUENCES),
                PromptField::TokenLists(all) => assert_eq!(all.len(), MAX_SEQUENCES),
                other => panic!("{one}: {other:?}"),
            }
            assert_eq!(list(MAX_SEQUENCES + 1), PromptField::TooMany, "{one}");
        }
        assert_eq!(
            prompt(&format!("[[{}]]", vec!["\"x\""; MAX_SEQUENCES + 1].join(","))),
            PromptField::Wrong
        );
        assert!(matches!(prompt(&format!("[{}]", vec!["1"; 2_000].join(","))), PromptField::Tokens(_)));
    }

    #[test]
    fn hostile_bodies_give_clean_errors() {
        let deep = format!("{{\"metadata\": {}1{}}}", "[".repeat(500), "]".repeat(500));
        let wide = format!("{{\"metadata\": [{}0]}}", "0,".repeat(100_000));
        let nested = format!("{{\"metadata\": [{}0]}}", "{\"\":0},".repeat(50_000));
        let cases = [
            ("{\"n\": 1, \"n\": 2}", "`n` occurs twice"),
            ("{\"prompt\": 1, \"prompt\": 2}", "`prompt` occurs twice"),
            ("{\"metadata\": {\"a\": 1, \"a\": 2}}", "`a` occurs twice"),
            ("{\"temperature\": NaN}", "expected"),
            ("{\"temperature\": 1e999}", "out of range"),
            ("[1]", "a JSON object"),
            ("", "EOF"),
            ("{} {}", "trailing"),
            ("{\"prompt\": \"a \\ud83d\"}", "half of a surrogate pair"),
            ("{\"user\": \"\\ud83d\\n\"}", "half of a surrogate pair"),
            ("{\"user\": \"\\ud83d\\ud83d\"}", "half of a surrogate pair"),
            ("{\"\\ude00\": 1}", "half of a surrogate pair"),
            (&deep, "recursion"),
            ("{\"more than \": 1, \"more than \": 2}", "`more than ` occurs twice"),
        ];
        for (body, part) in cases {
            let BodyError::Invalid(error) = Fields::parse(body.as_bytes()).unwrap_err() else {
                panic!("{body}");
            };
            assert!(error.contains(part), "{body}: {error}");
        }
        let fields: String = (0..300).map(|n| format!(",\"f{n}\":0")).collect();
        for (body, part) in [
            (&wide, "more than 100000 values"),
            (&nested, "more than 100000 values"),
            (&format!("{{\"prompt\": \"x\"{fields}}}"), "more than 256 fields"),
        ] {
            let error = Fields::parse(body.as_bytes()).unwrap_err();
            assert!(matches!(&error, BodyError::TooMany(said) if said.starts_with(part)), "{error:?}");
        }
        // Neither a whole pair nor a name that reads like the error is one.
        assert_eq!(prompt("\"\\ud83d\\ude00\""), PromptField::Text("\u{1f600}".to_owned()));
        let twice = b"{\"lone leading surrogate\": 1, \"lone leading surrogate\": 2}";
        let error = Fields::parse(twice).unwrap_err();
        assert!(matches!(&error, BodyError::Invalid(said) if !said.contains("half")), "{error:?}");
        assert!(Fields::parse(b"{\"user\": \"\xff\"}").is_err());
        // A body that is one long text is not repeated.
        let text = format!("\"{}\"", "é".repeat(100_000));
        let error = Fields::parse(text.as_bytes()).unwrap_err();
        assert!(
            matches!(&error, BodyError::Invalid(said) if said.len() < 300
                && said.starts_with("invalid type: string") && said.contains("expected a JSON object at line 1")),
            "{error:?}"
        );
        // Any depth is skipped without recursion.
        let deep_prompt = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(matches!(prompt(&deep_prompt), PromptField::Wrong));
    }
}
