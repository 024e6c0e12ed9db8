//! Where an output is among messages with heads. Where one doesn't keep to their format, a message begins with the first
//! text that can't be of a head: so what a client gets as text is a message, whatever precedes it.

use super::head::Head;
use super::marks::{CHANNEL, CONSTRAIN, MESSAGE, START};

/// Where a prompt or an output is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Between two messages.
    Between,
    /// Within a head.
    Head(Head),
    /// Within the message of a head, which has nothing in it if there is none.
    Body(Head),
}

impl Place {
    /// Goes on with text that has no mark. Returns how many bytes of it precede the message, all of them if it stays
    /// outside.
    pub fn text(&mut self, text: &str) -> usize {
        match self {
            Self::Between => {
                let blank = text.len() - text.trim_start().len();
                if blank < text.len() {
                    *self = Self::Body(Head::default());
                }
                blank
            }
            Self::Head(head) => {
                let rest = head.push(text);
                if head.as_text().is_some() {
                    *self = Self::Body(Head::default());
                    return 0;
                }
                if !rest.is_empty() {
                    // Too long for a head.
                    *self = Self::Body(std::mem::take(head));
                }
                text.len() - rest.len()
            }
            Self::Body(_) => 0,
        }
    }

    /// Goes on with a mark.
    pub fn mark(&mut self, mark: char) {
        match (mark, &mut *self) {
            (CHANNEL | CONSTRAIN, Self::Head(head)) => {
                if !head.push(mark.encode_utf8(&mut [0; 4])).is_empty() {
                    *self = Self::Body(std::mem::take(head));
                    self.mark(mark);
                }
            }
            (MESSAGE, Self::Head(head)) => *self = Self::Body(std::mem::take(head)),
            (MESSAGE, Self::Between) => *self = Self::Body(Head::default()),
            (MESSAGE | CONSTRAIN, _) => {}
            // A new message begins, whether the one before it has ended or not.
            (START | CHANNEL, _) => *self = Self::Head(Head::of(mark)),
            _ => *self = Self::Between,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sequence::marks::{marked, pieces};

    /// The text of messages, when it comes in pieces of this many characters.
    fn said(from: Place, output: &str, width: usize) -> String {
        let letters: Vec<char> = marked(output).chars().collect();
        let (mut place, mut said) = (from, String::new());
        for piece in letters.chunks(width) {
            for (text, mark) in pieces(&piece.iter().collect::<String>()) {
                said.push_str(&text[place.text(text)..]);
                mark.into_iter().for_each(|mark| place.mark(mark));
            }
        }
        said
    }

    #[test]
    fn messages_are_what_heads_end_with_and_what_is_in_none() {
        let reply = || Place::Head(Head::given("assistant".to_owned()).unwrap());
        let long = "x".repeat(600);
        let too_long = format!("<|start|>{long}");
        for (from, output, expected) in [
            (reply(), "<|channel|>final<|message|>a<|end|>", "a"),
            (
                reply(),
                "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
                "ab",
            ),
            (reply(), " to=functions.f<|channel|>commentary json<|message|>{}<|call|>", "{}"),
            (reply(), "<|message|>a<|message|>b<|constrain|>c", "abc"),
            (reply(), "<|channel|>final", ""),
            // Known as a message only behind it.
            (reply(), "<|channel|>finalFour.<|end|>Five.", "Five."),
            (Place::Between, " \n a<|end|> <|start|>assistant<|message|>b", "ab"),
            (Place::Between, "<|message|>a", "a"),
            (Place::Body(Head::default()), "a<|channel|>final<|message|>b<|return|>", "ab"),
            (reply(), too_long.as_str(), "x".repeat(600 - 509).as_str()),
        ] {
            for width in [1, 3, 10_000] {
                assert_eq!(said(from.clone(), output, width), expected, "{output} by {width}");
            }
        }
        // Without a head it is a message from where it can't be one.
        for (width, expected) in [(1, "Hello"), (4, " Hello"), (10_000, " Hello")] {
            assert_eq!(said(reply(), " Hello", width), expected);
        }
        assert_eq!(said(reply(), " together", 1), "gether");
    }

    #[test]
    fn message_keeps_its_head() {
        let names = ["f".to_owned()];
        let calls = |output: &str| {
            let mut place = Place::Between;
            for (text, mark) in pieces(&marked(output)) {
                place.text(text);
                mark.into_iter().for_each(|mark| place.mark(mark));
            }
            matches!(place, Place::Head(head) | Place::Body(head) if head.function(&names).is_some())
        };
        for (output, expected) in [
            ("<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}", true),
            ("<|start|>assistant<|channel|>commentary to=f", true),
            ("<|start|>assistant<|channel|>commentary to=functions.f<|message|>{}<|end|>", false),
            ("<|start|>assistant<|channel|>analysis<|message|>to=functions.f", false),
            ("<|start|>assistant<|channel|>commentary to=python<|message|>1", false),
        ] {
            assert_eq!(calls(output), expected, "{output}");
        }
    }
}
