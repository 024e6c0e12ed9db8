//! Replies that consist of messages with channels, in the format that OpenAI calls Harmony and gpt-oss writes:
//!
//! ```text
//! <|channel|>analysis<|message|>..<|end|>
//! <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{..}<|call|>
//! <|start|>assistant<|channel|>final<|message|>..<|return|>
//! ```
//!
//! Messages are divided by special tokens alone, which the text has as characters of their own (`sequence::marks`). Nothing
//! that a model says is lost, however it says it: what is in no known channel is text of the reply, and so is a head that
//! never ends. Where the reply has a required form, it is reasoning. `sequence::head` knows heads, `opening` where a prompt
//! leaves its last message, `history` the messages of a request.

mod history;
mod opening;

pub use history::{as_read, describe};
pub use opening::{Opening, Required};

use super::calls::Part;
use crate::data::sequence::head::{Channel, Head};
use crate::data::sequence::marks::{CALL, CHANNEL, CONSTRAIN, MESSAGE, START, pieces};

/// What stands between two messages of a kind.
const BETWEEN: &str = "\n\n";
/// Arguments of a call that has none, as JSON.
const NO_ARGUMENTS: &str = "{}";

/// Divides one choice's output.
pub struct Harmony {
    /// Functions that may be called; none if the prompt offers none.
    names: Vec<String>,
    /// Whether reasoning is apart from the reply.
    separates: bool,
    /// Whether the reply has a required form, so that nothing else belongs to it.
    shaped: bool,
    state: State,
    /// Whether there was any reasoning, and any reply.
    said: [bool; 2],
}

#[derive(Debug)]
enum State {
    /// Between two messages.
    Between,
    Head(Head),
    Reasoning {
        /// Whether it has no text yet.
        fresh: bool,
    },
    Reply {
        /// Whether it has no text yet.
        fresh: bool,
    },
    Call {
        /// Whether its arguments are blank so far.
        blank: bool,
    },
}

impl Harmony {
    /// Expects an output to go on where a prompt ends.
    pub fn new(opening: &Opening, names: Vec<String>, separates: bool, shaped: bool) -> Self {
        let mut this = Self { names, separates, shaped, state: State::Between, said: [false; 2] };
        this.state = match opening {
            Opening::Between => State::Between,
            Opening::Head(head) => State::Head(head.clone()),
            Opening::Body(head) if this.reasons(head.channel()) => State::Reasoning { fresh: false },
            Opening::Body(_) => State::Reply { fresh: false },
        };
        this
    }

    /// Reads more text.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        let mut parts = Vec::new();
        for (text, mark) in pieces(text) {
            self.text(text, &mut parts);
            if let Some(mark) = mark {
                self.mark(mark, &mut parts);
            }
        }
        parts
    }

    /// Ends the text. `callable` says whether the last call's arguments are a JSON object, so that it is complete though its
    /// end is missing.
    pub fn finish(&mut self, callable: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        match std::mem::replace(&mut self.state, State::Between) {
            State::Head(head) => {
                self.begin_with(&head, &head.surplus(true), &mut parts);
            }
            State::Call { blank: false } if callable => parts.push(Part::Done),
            State::Between | State::Reasoning { .. } | State::Reply { .. } | State::Call { .. } => {}
        }
        parts
    }

    /// Whether the output is within reasoning, as far as it is known. Commentary may turn out to be a call.
    pub fn is_reasoning(&self) -> bool {
        match &self.state {
            State::Reasoning { .. } => true,
            State::Head(head) => head.channel() == Some(Channel::Analysis) && self.called(head).is_none(),
            State::Between | State::Reply { .. } | State::Call { .. } => false,
        }
    }

    /// Whether the output is at what is no text of the reply.
    pub fn is_aside(&self) -> bool {
        !matches!(self.state, State::Reply { .. })
    }

    fn text(&mut self, text: &str, parts: &mut Vec<Part>) {
        match &mut self.state {
            State::Head(head) => {
                let rest = head.push(text);
                let (said, ends) = match head.as_text() {
                    Some(said) => (Some(said.to_owned()), true),
                    None => (None, !rest.is_empty()),
                };
                if ends {
                    self.leave_head(said, parts);
                    self.text(rest, parts);
                }
            }
            State::Between => {
                let text = text.trim_start();
                if !text.is_empty() {
                    self.state = self.message_in(None);
                    self.add(text, parts);
                }
            }
            State::Reasoning { .. } | State::Reply { .. } | State::Call { .. } => self.add(text, parts),
        }
    }

    fn mark(&mut self, mark: char, parts: &mut Vec<Part>) {
        match (mark, &mut self.state) {
            (CHANNEL | CONSTRAIN, State::Head(head)) => {
                if !head.push(mark.encode_utf8(&mut [0; 4])).is_empty() {
                    self.leave_head(None, parts);
                    self.mark(mark, parts);
                }
            }
            (MESSAGE, State::Head(head)) => {
                let head = std::mem::take(head);
                self.begin(&head, parts);
            }
            (MESSAGE, State::Between) => self.state = self.message_in(None),
            (MESSAGE | CONSTRAIN, _) => {}
            // A new message begins, whether the one before it has ended or not.
            (START | CHANNEL, _) => {
                self.end(false, parts);
                self.state = State::Head(Head::of(mark));
            }
            (mark, _) => self.end(mark == CALL, parts),
        }
    }

    /// Goes on with the message of a head that has no end, or with what it `said`, if it is no head at all.
    fn leave_head(&mut self, said: Option<String>, parts: &mut Vec<Part>) {
        let State::Head(head) = std::mem::replace(&mut self.state, State::Between) else { return };
        match said {
            Some(said) => {
                self.state = self.message_in(None);
                self.add(&said, parts);
            }
            None => {
                self.begin(&head, parts);
                self.add(&head.surplus(false), parts);
            }
        }
    }

    /// Ends the message, if there is one. `called` says whether by the mark of calls.
    fn end(&mut self, called: bool, parts: &mut Vec<Part>) {
        if let State::Head(head) = &mut self.state {
            let head = std::mem::take(head);
            let said = head.surplus(false);
            if said.is_empty() && called && self.called(&head).is_some() {
                self.begin(&head, parts);
            } else {
                self.begin_with(&head, &said, parts);
            }
        }
        if let State::Call { blank } = self.state {
            parts.extend(blank.then(|| Part::Arguments(NO_ARGUMENTS.to_owned())));
            parts.push(Part::Done);
        }
        self.state = State::Between;
    }

    /// Begins the message of a head with text, if there is any.
    fn begin_with(&mut self, head: &Head, text: &str, parts: &mut Vec<Part>) {
        if !text.is_empty() {
            self.begin(head, parts);
            self.add(text, parts);
        }
    }

    /// Begins the message of a head.
    fn begin(&mut self, head: &Head, parts: &mut Vec<Part>) {
        self.state = match self.called(head) {
            Some(name) => {
                parts.push(Part::Call { name });
                State::Call { blank: true }
            }
            None => self.message_in(head.channel()),
        };
    }

    /// A message that begins and is no call.
    fn message_in(&self, channel: Option<Channel>) -> State {
        if self.reasons(channel) { State::Reasoning { fresh: true } } else { State::Reply { fresh: true } }
    }

    /// The function that a message calls.
    fn called(&self, head: &Head) -> Option<String> {
        head.function(&self.names).map(str::to_owned)
    }

    /// Whether a message that is no call is reasoning. What comes before a required form is, too.
    fn reasons(&self, channel: Option<Channel>) -> bool {
        match channel {
            Some(Channel::Analysis) => true,
            Some(Channel::Commentary) | None => self.shaped,
            Some(Channel::Final) => false,
        }
    }

    /// Adds text to the message.
    fn add(&mut self, text: &str, parts: &mut Vec<Part>) {
        let reply = matches!(self.state, State::Reply { .. }) || !self.separates;
        match &mut self.state {
            State::Call { blank } => {
                let text = if *blank { text.trim_start() } else { text };
                if !text.is_empty() {
                    *blank = false;
                    parts.push(Part::Arguments(text.to_owned()));
                }
            }
            State::Reasoning { fresh } | State::Reply { fresh } if !text.is_empty() => {
                let said = &mut self.said[usize::from(reply)];
                let between = if std::mem::take(fresh) && *said { BETWEEN } else { "" };
                *said = true;
                let text = format!("{between}{text}");
                parts.push(if reply { Part::Text(text) } else { Part::Reasoning(text) });
            }
            State::Between | State::Head(_) | State::Reasoning { .. } | State::Reply { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests;
