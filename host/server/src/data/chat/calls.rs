//! Finds function calls in the model's output while it streams: text is passed on as text, a call's name as
//! soon as it is known, and its arguments as they arrive. Text that looks like a call but isn't one is passed
//! on as text.

use infer_chat::Tools;

use super::call_json::{CallJson, Found};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// The tags of calls in the style of Hermes.
pub const TAGS: [&str; 2] = [OPEN, CLOSE];

/// A part of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Reasoning, which precedes everything else, except where messages have channels.
    Reasoning(String),
    /// Text.
    Text(String),
    /// A call begins.
    Call {
        /// The function's name.
        name: String,
    },
    /// More of the last call's arguments: JSON text. A call that ends without any, before it is complete, has none, so that it
    /// isn't taken for one that needs none.
    Arguments(String),
    /// The end of the last call, which is complete.
    Done,
    /// The end of the last call, whose rest is not JSON.
    Broken,
}

/// Finds the calls in one choice's output.
pub struct Calls {
    style: Tools,
    /// Functions that may be called.
    names: Vec<String>,
    /// Whether the output must be calls.
    forced: bool,
    state: State,
    /// Text that may turn out to be part of a call.
    held: String,
    /// Whether the last part was a call: blanks between calls are dropped.
    after_call: bool,
}

enum State {
    Text,
    Call(CallJson),
    /// After a call and before its closing tag. Holds text that is dropped if the tag follows.
    Behind(String),
}

impl Calls {
    /// Looks for calls of `names` in the syntax of models with this kind of template. If they are `forced`, the beginning of a
    /// call is no text, even if nothing follows.
    pub fn new(style: Tools, names: Vec<String>, forced: bool) -> Self {
        Self { style, names, forced, state: State::Text, held: String::new(), after_call: false }
    }

    /// Reads more text.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        self.held.push_str(text);
        while self.advance(&mut parts) {}
        parts
    }

    /// Ends the text.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        let rest = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text | State::Call(_) if self.forced => {}
            State::Text => self.text(&mut parts, rest),
            State::Call(mut call) if !call.has_begun() => {
                let seen = call.take_seen();
                self.text(&mut parts, self.opening() + &seen + &rest);
            }
            State::Call(_) => {}
            State::Behind(passed) => {
                let text = (passed + &rest).trim().to_owned();
                if self.style != Tools::Hermes || !CLOSE.starts_with(&text) {
                    self.text(&mut parts, text);
                }
            }
        }
        parts
    }

    /// Whether a call has begun and its closing tag, if it has one, has not been seen.
    pub fn is_within(&self) -> bool {
        match &self.state {
            State::Text => false,
            State::Call(call) => call.has_begun(),
            State::Behind(_) => true,
        }
    }

    fn opening(&self) -> String {
        if self.style == Tools::Hermes { OPEN.to_owned() } else { String::new() }
    }

    /// Takes one step. Returns false if it needs more text.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        match &mut self.state {
            State::Text if self.style == Tools::Hermes => self.look_for_tag(parts),
            State::Text => self.look_for_object(parts),
            State::Call(call) => {
                let text = std::mem::take(&mut self.held);
                let mut found = Vec::new();
                self.held = call.push(&text, &mut found);
                let (done, broken, begun) = (call.is_done(), call.is_broken(), call.has_begun());
                parts.extend(found.into_iter().map(|found| match found {
                    Found::Name(name) => Part::Call { name },
                    Found::Arguments(text) => Part::Arguments(text),
                }));
                self.after_call |= begun;
                if broken && !begun {
                    let mut seen = call.take_seen();
                    self.state = State::Text;
                    // The character that breaks it may begin another tag.
                    if seen.ends_with('<') {
                        seen.pop();
                        self.held.insert(0, '<');
                    }
                    self.text(parts, self.opening() + &seen);
                    // With Llama no call follows text.
                    if self.style == Tools::Llama3 {
                        self.style = Tools::None;
                    }
                } else if done || broken {
                    self.state = State::Behind(String::new());
                    parts.push(if done { Part::Done } else { Part::Broken });
                }
                (done || broken) && !self.held.is_empty()
            }
            State::Behind(_) => self.pass_end(parts),
        }
    }

    /// Passes on text up to a tag, or up to what may become one.
    fn look_for_tag(&mut self, parts: &mut Vec<Part>) -> bool {
        if let Some(at) = self.held.find(OPEN) {
            let rest = self.held.split_off(at + OPEN.len());
            let mut before = std::mem::replace(&mut self.held, rest);
            before.truncate(at);
            before.truncate(before.trim_end().len());
            self.text(parts, before);
            self.state = State::Call(CallJson::new("arguments", None));
            return true;
        }
        let mut keep = longest_overlap(&self.held, OPEN);
        // Blanks before a call belong to it.
        let settled = self.held[..self.held.len() - keep].trim_end().len();
        keep = self.held.len() - settled;
        let rest = self.held.split_off(self.held.len() - keep);
        let before = std::mem::replace(&mut self.held, rest);
        self.text(parts, before);
        false
    }

    /// Llama's calls stand alone: the text begins with a call or has none.
    fn look_for_object(&mut self, parts: &mut Vec<Part>) -> bool {
        if self.style == Tools::Llama3 {
            match self.held.trim_start().chars().next() {
                None => return false,
                Some('{') => {
                    self.state = State::Call(CallJson::new("parameters", Some(self.names.clone())));
                    return true;
                }
                Some(_) => {}
            }
        }
        self.style = Tools::None;
        let all = std::mem::take(&mut self.held);
        self.text(parts, all);
        false
    }

    /// Skips the rest of a call up to its closing tag. The next call's opening tag ends it, too, because
    /// small models forget closing tags.
    fn pass_end(&mut self, parts: &mut Vec<Part>) -> bool {
        if let (Tools::Hermes, State::Behind(passed)) = (self.style, &mut self.state) {
            let (open, close) = (self.held.find(OPEN), self.held.find(CLOSE));
            if let Some(at) = close.filter(|&close| open.is_none_or(|open| close < open)) {
                self.held.drain(..at + CLOSE.len());
                self.state = State::Text;
                return true;
            }
            if let Some(at) = open {
                passed.extend(self.held.drain(..at));
                let passed = passed.trim().to_owned();
                self.state = State::Text;
                self.text(parts, passed);
                return true;
            }
            let keep = longest_overlap(&self.held, CLOSE).max(longest_overlap(&self.held, OPEN));
            passed.extend(self.held.drain(..self.held.len() - keep));
            return false;
        }
        let rest = self.held.trim_start_matches([';', ' ', '\n', '\t', ',']);
        if rest.is_empty() {
            self.held.clear();
            return false;
        }
        self.held = rest.to_owned();
        self.state = State::Text;
        true
    }

    fn text(&mut self, parts: &mut Vec<Part>, text: String) {
        if text.is_empty() || (self.after_call && text.trim().is_empty()) {
            return;
        }
        self.after_call = false;
        parts.push(Part::Text(text));
    }
}

/// Bytes at the end of `text` that may be the beginning of `mark`.
pub fn longest_overlap(text: &str, mark: &str) -> usize {
    (1..=mark.len().min(text.len()))
        .rev()
        .find(|&n| text.is_char_boundary(text.len() - n) && mark.starts_with(&text[text.len() - n..]))
        .unwrap_or(0)
}

/// Joins adjacent parts of the same kind.
#[cfg(test)]
pub fn joined(parts: Vec<Part>) -> Vec<Part> {
    let mut joined: Vec<Part> = Vec::new();
    for part in parts {
        match (joined.last_mut(), part) {
            (Some(Part::Text(before)), Part::Text(more))
            | (Some(Part::Reasoning(before)), Part::Reasoning(more))
            | (Some(Part::Arguments(before)), Part::Arguments(more)) => before.push_str(&more),
            (_, part) => joined.push(part),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts found, with adjacent texts and arguments joined.
    fn read(style: Tools, text: &str, width: usize) -> Vec<Part> {
        read_of(style, false, text, width)
    }

    fn read_of(style: Tools, forced: bool, text: &str, width: usize) -> Vec<Part> {
        let mut calls = Calls::new(style, vec!["weather".to_owned(), "time".to_owned()], forced);
        let letters: Vec<char> = text.chars().collect();
        let mut parts = Vec::new();
        for piece in letters.chunks(width) {
            parts.extend(calls.push(&piece.iter().collect::<String>()));
        }
        parts.extend(calls.finish());
        let mut joined: Vec<Part> = Vec::new();
        for part in parts {
            match (joined.last_mut(), part) {
                (Some(Part::Text(a)), Part::Text(b)) | (Some(Part::Arguments(a)), Part::Arguments(b)) => {
                    a.push_str(&b);
                }
                (_, part) => joined.push(part),
            }
        }
        joined
    }

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned())
    }

    fn call(name: &str, arguments: &str) -> Vec<Part> {
        vec![Part::Call { name: name.to_owned() }, Part::Arguments(arguments.to_owned()), Part::Done]
    }

    fn broken(name: &str) -> Vec<Part> {
        vec![Part::Call { name: name.to_owned() }, Part::Broken]
    }

    #[test]
    fn beginning_of_a_forced_call_is_no_text() {
        let name = |name: &str| vec![Part::Call { name: name.to_owned() }];
        let hermes = [
            ("<tool", vec![]),
            ("<tool_call>\n{\"na", vec![]),
            ("<tool_call>\n{\"name\": \"time\", ", name("time")),
        ];
        let llama = [("{\"na", vec![]), ("{\"name\": \"time\", ", name("time"))];
        for (style, all) in [(Tools::Hermes, &hermes[..]), (Tools::Llama3, &llama)] {
            for (written, parts) in all {
                for width in [1, 3, 1_000] {
                    assert_eq!(read_of(style, true, written, width), *parts, "{written:?} by {width}");
                }
            }
        }
    }

    #[test]
    fn calls_are_found_however_the_text_is_split() {
        let tagged = |json: &str| format!("<tool_call>\n{json}\n</tool_call>");
        let weather = r#"{"name": "weather", "arguments": {"city": "Köln \"}]", "n": [1, {"x": null}]}}"#;
        let weather_arguments = r#"{"city": "Köln \"}]", "n": [1, {"x": null}]}"#;
        let late = r#"{"arguments": {"a": 1}, "id": 7, "name": "time"}"#;
        let bare = r#"{"name": "time"}"#;
        let as_text = r#"{"name": "time", "arguments": "{\"a\": 2}"}"#;
        let hermes = [
            ("just < text <tool".to_owned(), vec![text("just < text <tool")]),
            (tagged(weather), call("weather", weather_arguments)),
            (
                format!("Let me see.\n{}\n{}\n", tagged(weather), tagged(late)),
                [vec![text("Let me see.")], call("weather", weather_arguments), call("time", r#"{"a": 1}"#)]
                    .concat(),
            ),
            (tagged(bare), call("time", "{}")),
            (tagged(as_text), call("time", r#"{"a": 2}"#)),
            (format!("{} done", tagged(bare)), [call("time", "{}"), vec![text(" done")]].concat()),
            // Repeated opening tags, and missing closing tags.
            (
                format!("<tool_call>\n{}", tagged(bare)),
                [vec![text("<tool_call>\n")], call("time", "{}")].concat(),
            ),
            (
                format!("<tool_call>{bare}\n{}", tagged(late)),
                [call("time", "{}"), call("time", r#"{"a": 1}"#)].concat(),
            ),
            (
                format!("<tool_call>{bare}}}\n{} x", tagged(bare)),
                [call("time", "{}"), vec![text("}")], call("time", "{}"), vec![text(" x")]].concat(),
            ),
            (
                format!("<tool_call>{bare} and so < on"),
                [call("time", "{}"), vec![text("and so < on")]].concat(),
            ),
            (format!("<tool_call>{bare}}} </tool_call>"), call("time", "{}")),
            (format!("<tool_call>{bare}\n</tool"), call("time", "{}")),
            // Arguments are JSON, even if they are missing, unless the call is broken or cut off.
            (tagged(r#"{"name": "time", "arguments": null}"#), call("time", "{}")),
            (tagged(r#"{"name": "time", "arguments": ""}"#), call("time", "{}")),
            (tagged(r#"{"arguments": " ", "name": "time"}"#), call("time", "{}")),
            (tagged(r#"{"name": "time" oops"#), broken("time")),
            ("<tool_call>{\"name\": \"time\"".to_owned(), vec![Part::Call { name: "time".to_owned() }]),
            (
                "<tool_call>{\"name\": \"time\", \"arguments\": \"{\\\"a".to_owned(),
                vec![Part::Call { name: "time".to_owned() }],
            ),
            (tagged("no json"), vec![text("<tool_call>\nno json\n</tool_call>")]),
            (tagged(r#"{"x": 1}"#), vec![text("<tool_call>\n{\"x\": 1}\n</tool_call>")]),
            ("<tool_call>\n{\"na".to_owned(), vec![text("<tool_call>\n{\"na")]),
            (
                "<tool_call>{\"name\": \"time\", \"arguments\": {\"a\":".to_owned(),
                vec![Part::Call { name: "time".to_owned() }, Part::Arguments("{\"a\":".to_owned())],
            ),
        ];
        for (written, parts) in hermes {
            for width in [1, 2, 5, 1_000] {
                assert_eq!(read(Tools::Hermes, &written, width), parts, "{written:?} by {width}");
            }
        }
        let llama = [
            (r#"{"name": "time", "parameters": {"a": 1}}"#, call("time", r#"{"a": 1}"#)),
            (
                r#" {"name": "time", "parameters": {}}; {"name": "weather", "parameters": {"b": 2}}"#,
                [call("time", "{}"), call("weather", r#"{"b": 2}"#)].concat(),
            ),
            (r#"{"name": "Bob", "parameters": 3}"#, vec![text(r#"{"name": "Bob", "parameters": 3}"#)]),
            (r#"{"answer": [1, 2]} and more"#, vec![text(r#"{"answer": [1, 2]} and more"#)]),
            ("Hello {", vec![text("Hello {")]),
            (
                r#"{"name": "time", "parameters": {}} {"name": "Bob", "parameters": {}}"#,
                [call("time", "{}"), vec![text(r#"{"name": "Bob", "parameters": {}}"#)]].concat(),
            ),
        ];
        for (written, parts) in llama {
            for width in [1, 3, 1_000] {
                assert_eq!(read(Tools::Llama3, written, width), parts, "{written:?} by {width}");
            }
        }
    }
}
