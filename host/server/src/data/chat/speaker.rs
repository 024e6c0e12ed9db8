//! One choice's output, divided into reasoning, text and calls.

use infer_chat::Tools;
use infer_core::FinishReason;
use serde::de::IgnoredAny;

use super::calls::{self, Calls, Part};
use super::harmony::{Harmony, Opening};
use super::reasoning::{self, Expected, Reasoning, Separated};
use crate::data::response::Go;
use crate::data::sequence::outcome::{Outcome, openai_reason};

/// What the outputs of a request may contain.
#[derive(Clone, Debug)]
pub struct Speech {
    /// Whether they begin with reasoning.
    pub reasoning: Expected,
    /// Whether a required form begins where the reasoning ends.
    pub shaped: bool,
    /// The syntax of the model's calls.
    pub style: Tools,
    /// Functions that the model may call; none if the prompt offers none.
    pub names: Vec<String>,
    /// Whether it must call one.
    pub forced: bool,
    /// Whether it may call several.
    pub parallel: bool,
    /// Where the prompt leaves its last message, if outputs are messages with channels.
    pub opening: Option<Opening>,
}

impl Speech {
    /// The tags that a [`Speaker`] looks for, which need text even where they are special tokens.
    pub fn tags(&self) -> Vec<&'static str> {
        let mut tags = Vec::new();
        if self.opening.is_some() {
            return tags;
        }
        if self.reasoning != Expected::Never {
            tags.extend(reasoning::TAGS);
        }
        if self.style == Tools::Hermes && !self.names.is_empty() {
            tags.extend(calls::TAGS);
        }
        tags
    }
}

/// Divides one choice's output into parts.
pub struct Speaker {
    reasoning: Reasoning,
    calls: Option<Calls>,
    /// In the place of both, if it consists of messages with channels.
    harmony: Option<Harmony>,
    parallel: bool,
    begun: u32,
    /// The last call's arguments.
    arguments: String,
    /// The last call can be made: it is complete, and its arguments are a JSON object.
    callable: bool,
    /// The only allowed call has ended.
    satisfied: bool,
    reasoning_tokens: u32,
}

impl Speaker {
    /// Expects outputs like these.
    pub fn new(speech: &Speech) -> Self {
        let Speech { reasoning, shaped, style, names, forced, parallel, opening } = speech;
        let separates = *reasoning != Expected::Never;
        let harmony =
            opening.as_ref().map(|opening| Harmony::new(opening, names.clone(), separates, *shaped));
        let has_calls = !names.is_empty() && harmony.is_none();
        Self {
            reasoning: Reasoning::new(*reasoning, *shaped),
            calls: has_calls.then(|| Calls::new(*style, names.clone(), *forced)),
            harmony,
            parallel: *parallel,
            begun: 0,
            arguments: String::new(),
            callable: false,
            satisfied: false,
            reasoning_tokens: 0,
        }
    }

    /// Reads the text that a token adds.
    pub fn token(&mut self, text: String) -> Vec<Part> {
        let before = self.is_reasoning();
        let parts = self.push(text);
        self.reasoning_tokens += u32::from(before || self.is_reasoning());
        parts
    }

    fn is_reasoning(&self) -> bool {
        self.harmony.as_ref().map_or_else(|| self.reasoning.is_open(), Harmony::is_reasoning)
    }

    /// Reads more text.
    pub fn push(&mut self, text: String) -> Vec<Part> {
        if let Some(harmony) = &mut self.harmony {
            let parts = harmony.push(&text);
            return self.allowed(parts);
        }
        let separated = self.reasoning.push(text);
        self.divide(separated)
    }

    /// Ends the output.
    pub fn finish(&mut self) -> Vec<Part> {
        if let Some(harmony) = &mut self.harmony {
            let parts = harmony.finish(is_object(&self.arguments));
            return self.allowed(parts);
        }
        let separated = self.reasoning.finish();
        let mut parts = self.divide(separated);
        let rest = self.calls.as_mut().map(Calls::finish).unwrap_or_default();
        parts.extend(self.allowed(rest));
        parts
    }

    fn divide(&mut self, Separated { reasoning, reply }: Separated) -> Vec<Part> {
        let mut parts = Vec::new();
        if !reasoning.is_empty() {
            parts.push(Part::Reasoning(reasoning));
        }
        match &mut self.calls {
            Some(calls) => {
                let found = calls.push(&reply);
                parts.extend(self.allowed(found));
            }
            None if reply.is_empty() => {}
            None => parts.push(Part::Text(reply)),
        }
        parts
    }

    /// Drops what follows the only allowed call.
    fn allowed(&mut self, parts: Vec<Part>) -> Vec<Part> {
        let mut allowed = Vec::with_capacity(parts.len());
        for part in parts {
            if self.satisfied {
                break;
            }
            match &part {
                Part::Call { .. } => {
                    self.begun += 1;
                    self.callable = false;
                    self.arguments.clear();
                }
                Part::Arguments(text) => self.arguments.push_str(text),
                Part::Done => {
                    self.callable = is_object(&self.arguments);
                    self.satisfied = !self.parallel;
                }
                Part::Broken => self.satisfied = !self.parallel,
                Part::Reasoning(_) | Part::Text(_) => {}
            }
            allowed.push(part);
        }
        allowed
    }

    /// Whether the output is, as far as it is known, at what is no text of the reply: reasoning, calls, and their tags.
    pub fn is_aside(&self) -> bool {
        if let Some(harmony) = &self.harmony {
            return harmony.is_aside();
        }
        self.reasoning.precedes_reply() || self.calls.as_ref().is_some_and(Calls::is_within)
    }

    /// Number of calls that have begun.
    pub fn begun(&self) -> u32 {
        self.begun
    }

    /// Tokens of the reasoning, with its tags.
    pub fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }

    /// Whether the output should go on.
    pub fn go(&self) -> Go {
        if self.satisfied { Go::Stop } else { Go::On }
    }

    /// OpenAI's name of the finish reason. An output whose last call can't be made does not ask for it: the call's
    /// arguments may be cut off.
    pub fn reason(&self, outcome: &Outcome) -> Option<String> {
        let reason = outcome.reason?;
        let called = self.callable && matches!(reason, FinishReason::Eos | FinishReason::Stop);
        Some(if called { "tool_calls" } else { openai_reason(reason) }.to_owned())
    }
}

/// Whether a text is a JSON object, which may be deeper or hold larger numbers than this host could.
pub fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use infer_model::{Source, Tokenizer};

    use super::*;
    use crate::data::chat::calls::joined;

    fn speech(parallel: bool) -> Speech {
        let names = vec!["time".to_owned(), "weather".to_owned()];
        Speech {
            reasoning: Expected::Tagged,
            shaped: false,
            style: Tools::Hermes,
            names,
            forced: false,
            parallel,
            opening: None,
        }
    }

    fn speaker(parallel: bool) -> Speaker {
        Speaker::new(&speech(parallel))
    }

    #[test]
    fn nothing_follows_the_one_call_allowed_even_if_it_is_broken() {
        let broken = "<tool_call>{\"name\": \"time\" oops</tool_call>";
        let whole = "<tool_call>{\"name\": \"time\"}</tool_call>";
        let none = Part::Arguments("{}".to_owned());
        for (first, end) in [(broken, vec![Part::Broken]), (whole, vec![none, Part::Done])] {
            let mut speaker = speaker(false);
            let mut parts = speaker.push(first.to_owned());
            assert_eq!(speaker.go(), Go::Stop, "{first}");
            parts.extend(speaker.push("<tool_call>{\"name\": \"weather\"}</tool_call> and more".to_owned()));
            parts.extend(speaker.finish());
            let name = "time".to_owned();
            let expected = [vec![Part::Call { name }], end].concat();
            assert_eq!(parts, expected, "{first}");
        }
    }

    #[test]
    fn output_does_not_ask_for_a_call_that_is_cut_off_or_broken() {
        use FinishReason::{Eos, Length, Stop};
        let whole = "<tool_call>{\"name\": \"time\", \"arguments\": {\"a\": 1}}";
        let cut = "<tool_call>{\"name\": \"time\", \"arguments\": {\"a\":";
        let two = format!("{whole}</tool_call>{cut}");
        let second = format!("<tool_call>{{\"name\": \"time\" oops</tool_call>{whole}</tool_call>");
        let with = |a: &str| format!("<tool_call>{{\"name\": \"time\", \"arguments\": {{\"a\": {a}}}}}");
        let deep = with(&("[".repeat(300) + &"]".repeat(300)));
        let (large, alone, bare) = (with("1e999"), with("\"\\ud800\""), with("\"\\x\""));
        for (text, reason, expected) in [
            (whole, Eos, "tool_calls"),
            (whole, Stop, "tool_calls"),
            (whole, Length, "length"),
            (cut, Eos, "stop"),
            (cut, Stop, "stop"),
            (cut, Length, "length"),
            ("<tool_call>{\"name\": \"time\"", Eos, "stop"),
            ("<tool_call>{\"name\": \"time\" oops</tool_call>", Eos, "stop"),
            ("<tool_call>{\"name\": \"time\", \"arguments\": {\"a\": oops}}</tool_call>", Eos, "stop"),
            ("<tool_call>{\"name\": \"time\", \"arguments\": [1]}</tool_call>", Eos, "stop"),
            ("<tool_call>{\"name\": \"time\", \"arguments\": null}</tool_call>", Eos, "tool_calls"),
            (two.as_str(), Eos, "stop"),
            (second.as_str(), Eos, "tool_calls"),
            (deep.as_str(), Eos, "tool_calls"),
            (large.as_str(), Eos, "tool_calls"),
            (alone.as_str(), Eos, "tool_calls"),
            (bare.as_str(), Eos, "stop"),
            ("none", Eos, "stop"),
        ] {
            let mut speaker = speaker(true);
            speaker.push(text.to_owned());
            speaker.finish();
            assert_eq!(speaker.reason(&Outcome::ended(reason)).as_deref(), Some(expected), "{text}");
        }
    }

    /// The parts of an output, with adjacent texts joined. All tags are special tokens.
    fn parts_of(speech: &Speech, output: &str) -> Vec<Part> {
        let (_, file) = infer_demo::FILES.iter().find(|(name, _)| *name == "tokenizer.json").unwrap();
        let mut file = String::from_utf8(file.to_vec()).unwrap();
        let tags = ["<think>", "</think>", "<tool_call>", "</tool_call>"];
        let own = ["<|begin|>", "<|system|>", "<|user|>", "<|assistant|>"];
        for (own, tag) in own.into_iter().zip(tags) {
            file = file.replace(own, tag);
        }
        let tokenizer = Tokenizer::load(&Source::Embedded(&[("tokenizer.json", file.as_bytes())])).unwrap();
        assert!(tags.into_iter().all(|tag| tokenizer.is_special(tag)));
        let mut detokenizer = tokenizer.detokenizer().spelling(&speech.tags());
        let mut speaker = Speaker::new(speech);
        let mut parts = Vec::new();
        for token in tokenizer.encode(output, false).unwrap() {
            parts.extend(speaker.token(detokenizer.push(token)));
        }
        parts.extend(speaker.push(detokenizer.finish()));
        parts.extend(speaker.finish());
        joined(parts)
    }

    #[test]
    fn tags_that_are_special_tokens_are_found_and_have_no_text_where_nobody_looks_for_them() {
        let call = r#"{"name": "time", "arguments": {"a": 1}}"#;
        let output = &format!("<think>One or two.</think>So:<tool_call>{call}</tool_call>");
        let reasoned = Part::Reasoning("One or two.".to_owned());
        let called = [
            Part::Text("So:".to_owned()),
            Part::Call { name: "time".to_owned() },
            Part::Arguments(r#"{"a": 1}"#.to_owned()),
            Part::Done,
        ];
        let both = speech(true);
        assert_eq!(parts_of(&both, output), [vec![reasoned.clone()], called.to_vec()].concat());
        let no_calls = Speech { names: Vec::new(), ..both.clone() };
        assert_eq!(parts_of(&no_calls, output), [reasoned, Part::Text(format!("So:{call}"))]);
        let unseparated = Speech { reasoning: Expected::Never, ..both.clone() };
        let text = Part::Text("One or two.So:".to_owned());
        assert_eq!(parts_of(&unseparated, output), [vec![text], called[1..].to_vec()].concat());
        let llama = Speech { style: Tools::Llama3, reasoning: Expected::Never, ..both };
        assert_eq!(parts_of(&llama, output), [Part::Text(format!("One or two.So:{call}"))]);
    }

    #[test]
    fn calls_in_the_reasoning_are_not_made() {
        let call = "<tool_call>{\"name\": \"time\"}</tool_call>";
        let mut speaker = speaker(true);
        let mut parts = Vec::new();
        for token in ["<think>", call, "\n", "</think>", "\n\n", call] {
            parts.extend(speaker.token(token.to_owned()));
        }
        parts.extend(speaker.finish());
        let made = [Part::Call { name: "time".to_owned() }, Part::Arguments("{}".to_owned()), Part::Done];
        assert_eq!(parts, [vec![Part::Reasoning(call.to_owned())], made.to_vec()].concat());
        assert_eq!((speaker.begun(), speaker.reasoning_tokens()), (1, 4));
    }
}
