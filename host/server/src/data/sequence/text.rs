//! Turns tokens into the text that a client sees: incremental detokenization and stop strings.
//!
//! A request's last token (an end token, or the last one allowed) is recognized when it arrives, so held-back
//! text is sent with it and needs no extra token event.

use std::sync::Arc;

use infer_model::{Detokenizer, StopStep, StopStrings};

use super::marks;
use super::place::Place;

/// The text of one sequence.
pub struct Text {
    detokenizer: Detokenizer,
    stops: Option<StopStrings>,
    /// Where it is, if it consists of messages with heads.
    place: Option<Place>,
    ends: Arc<[u32]>,
    min_tokens: u32,
    max_tokens: u32,
    tokens: u32,
    last_token: u32,
}

/// What ends a sequence's text.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Stop strings, which count if they end after the first `min_tokens`.
    pub stops: Vec<String>,
    /// End tokens. They add no text.
    pub tokens: Arc<[u32]>,
    /// Nothing ends the text before this many tokens.
    pub min_tokens: u32,
    /// The text ends after this many tokens.
    pub max_tokens: u32,
}

/// What one token adds.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// Text that became complete; possibly empty.
    pub text: String,
    /// Characters that the token adds to the text, including those held back.
    pub chars: u32,
    /// A stop string was found. The text ends before it.
    pub stopped: bool,
}

impl Text {
    /// An empty text.
    pub fn new(detokenizer: Detokenizer, ending: Ending) -> Self {
        let Ending { stops, tokens: ends, min_tokens, max_tokens } = ending;
        let stops = (!stops.is_empty()).then(|| StopStrings::new(stops));
        let (place, last_token) = (None, u32::MAX);
        Self { detokenizer, stops, place, ends, min_tokens, max_tokens, tokens: 0, last_token }
    }

    /// The same of messages with heads, in which no stop string is found, from this place on. The detokenizer has to mark
    /// their tokens. `None` changes nothing.
    #[must_use]
    pub fn beginning_in(self, place: Option<Place>) -> Self {
        Self { place, ..self }
    }

    /// Takes the next token.
    pub fn push(&mut self, token: u32) -> Piece {
        self.tokens += 1;
        self.last_token = token;
        let is_end = self.ends.contains(&token);
        let is_last = is_end || self.tokens == self.max_tokens;
        // An end token has no text, but may be the mark that ends a message.
        let mut text = match is_end && !self.detokenizer.marks(token) {
            true => String::new(),
            false => self.detokenizer.push(token),
        };
        if is_last {
            text.push_str(&self.detokenizer.finish());
        }
        let chars = text.chars().count() as u32;
        let StopStep { mut text, stopped } = self.watch(text);
        if !stopped
            && is_last
            && let Some(stops) = &mut self.stops
        {
            text.push_str(&stops.finish());
        }
        Piece { text, chars, stopped }
    }

    /// Whether the tokenizer failed on a token, whose text is therefore missing.
    pub fn has_failed(&self) -> bool {
        self.detokenizer.has_failed()
    }

    /// Returns the text held back, if the sequence was cut off before its last token.
    pub fn finish(&mut self) -> String {
        let text = self.detokenizer.finish();
        let mut text = self.watch(text).text;
        if let Some(stops) = &mut self.stops {
            text.push_str(&stops.finish());
        }
        text
    }

    /// Looks for stop strings in the text of the last token.
    fn watch(&mut self, text: String) -> StopStep {
        let Some(stops) = &mut self.stops else { return StopStep { text, stopped: false } };
        let counts = self.tokens > self.min_tokens;
        let Some(place) = &mut self.place else {
            return if counts { stops.push(&text) } else { stops.pass(&text) };
        };
        let mut all = StopStep::default();
        for (piece, mark) in marks::pieces(&text) {
            let (outside, inside) = piece.split_at(place.text(piece));
            all.text.push_str(&stops.pass(outside).text);
            let step = if counts { stops.push(inside) } else { stops.pass(inside) };
            all.text.push_str(&step.text);
            all.stopped = step.stopped;
            if all.stopped {
                break;
            }
            if let Some(mark) = mark {
                all.text.push_str(&stops.pass(mark.encode_utf8(&mut [0; 4])).text);
                place.mark(mark);
            }
        }
        all
    }

    /// The stop string that ended the text.
    pub fn stop_string(&self) -> Option<&str> {
        self.stops.as_ref()?.found()
    }

    /// Number of tokens so far.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// The last token; `u32::MAX`, which is not a token of any model, before the first.
    pub fn last_token(&self) -> u32 {
        self.last_token
    }
}

#[cfg(test)]
mod tests {
    use infer_model::{Source, Tokenizer};

    use super::*;
    use crate::data::sequence::head::Head;

    #[test]
    fn text_held_back_for_a_stop_string_counts_with_its_tokens_and_is_returned_by_finish() {
        let tokenizer = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
        let written = "A prefix cache keeps \u{1f600} what it has";
        let tokens = tokenizer.encode(written, false).unwrap();
        for taken in 0..=tokens.len() {
            let read = |stops: &[&str]| {
                let stops = stops.iter().map(|&stop| stop.to_owned()).collect();
                let ending = Ending { stops, tokens: Arc::default(), min_tokens: 0, max_tokens: 100 };
                let mut text = Text::new(tokenizer.detokenizer(), ending);
                let pieces: Vec<_> = tokens[..taken].iter().map(|&token| text.push(token)).collect();
                let shown: String = pieces.iter().map(|piece| &*piece.text).collect();
                let chars: Vec<u32> = pieces.iter().map(|piece| piece.chars).collect();
                (chars, shown + &text.finish())
            };
            assert_eq!(
                read(&["A prefix cache keeps \u{1f600} what it has not"]),
                read(&[]),
                "{taken} tokens"
            );
        }
    }

    #[test]
    fn stop_string_counts_only_after_min_tokens() {
        let tokenizer = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
        let tokens = tokenizer.encode("a cache, a cache, a cache", false).unwrap();
        let texts: Vec<String> = (0..tokens.len() as u32)
            .map(|min_tokens| {
                let stops = vec!["cache".to_owned()];
                let ending = Ending { stops, tokens: Arc::default(), min_tokens, max_tokens: 100 };
                let mut text = Text::new(tokenizer.detokenizer(), ending);
                let mut shown = String::new();
                for token in &tokens {
                    let piece = text.push(*token);
                    shown.push_str(&piece.text);
                    if piece.stopped {
                        assert!(text.tokens() > min_tokens);
                        break;
                    }
                }
                shown
            })
            .collect();
        assert_eq!(texts[0], "a ");
        assert!(texts.is_sorted_by_key(String::len), "{texts:?}");
        let expected = ["a ", "a cache, a ", "a cache, a cache, a ", "a cache, a cache, a cache"];
        assert!(texts.iter().all(|text| expected.contains(&text.as_str())), "{texts:?}");
        assert!(texts.contains(&expected[1].to_owned()), "{texts:?}");
    }

    #[test]
    fn heads_of_messages_contain_no_stop_string_and_no_end_of_a_message_is_lost() {
        let (_, file) = infer_demo::FILES.iter().find(|(name, _)| *name == "tokenizer.json").unwrap();
        let mut file = String::from_utf8(file.to_vec()).unwrap();
        for (own, name) in [("<|system|>", "<|channel|>"), ("<|user|>", "<|message|>")] {
            file = file.replace(own, name);
        }
        let tokenizer = Tokenizer::load(&Source::Embedded(&[("tokenizer.json", file.as_bytes())])).unwrap();
        let shown = |place: Place, written: &str, stop: &str, min_tokens: u32| {
            let ends = [tokenizer.id("<|end|>").unwrap()];
            let stops = vec![stop.to_owned()];
            let ending = Ending { stops, tokens: Arc::from(ends), min_tokens, max_tokens: 100 };
            let detokenizer = tokenizer.detokenizer().marking(&marks::NAMES);
            let mut text = Text::new(detokenizer, ending).beginning_in(Some(place));
            let mut shown = String::new();
            for token in tokenizer.encode(written, false).unwrap() {
                let piece = text.push(token);
                shown.push_str(&piece.text);
                if piece.stopped {
                    return shown;
                }
            }
            shown + &text.finish()
        };
        let written = "<|channel|>final<|message|>It is final now.<|end|>";
        for (stop, min_tokens, expected) in [
            ("final", 0, "<|channel|>final<|message|>It is "),
            ("final", 90, written),
            ("now.!", 0, written),
            ("<|end|>", 0, written),
            ("analysis", 0, written),
        ] {
            assert_eq!(shown(Place::Between, written, stop, min_tokens), marks::marked(expected), "{stop}");
        }
        // A reply without a head is a message.
        let reply = || Place::Head(Head::given("assistant".to_owned()).unwrap());
        for (place, written, min_tokens, expected) in [
            (reply(), "It is final now.<|end|>", 0, "It is "),
            (reply(), " to be final now.<|end|>", 0, " to be "),
            (Place::Between, "It is final now.<|end|>", 0, "It is "),
            (reply(), "It is final now.<|end|>", 90, "It is final now.<|end|>"),
            (reply(), " to=final<|channel|>final<|message|>a", 0, " to=final<|channel|>final<|message|>a"),
        ] {
            assert_eq!(shown(place, written, "final", min_tokens), marks::marked(expected), "{written}");
        }
        // A head that lacks its end is one until the message ends: by then it was handed on, so what it has of the message
        // is shown and was not searched.
        let written = "<|channel|>final It is final now.<|end|>";
        assert_eq!(shown(Place::Between, written, "now", 0), marks::marked(written));
        // Text that spells a mark, or is the character of one, is no mark.
        let spelled = "<|channel|>a<|message|><|start|>b\u{fdd0}";
        let expected = marks::marked("<|channel|>a<|message|>") + "<|start|>b\u{fffd}";
        assert_eq!(shown(Place::Between, spelled, "none", 0), expected);
    }

    #[test]
    fn stop_string_may_begin_within_min_tokens() {
        let tokenizer = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
        let tokens = tokenizer.encode("a cache, a cache, a cache", false).unwrap();
        let mut detokenizer = tokenizer.detokenizer();
        let texts: Vec<String> = tokens.iter().map(|&token| detokenizer.push(token)).collect();
        let ending = |stop: String, min_tokens: usize, max_tokens: usize| Ending {
            stops: vec![stop],
            tokens: Arc::default(),
            min_tokens: min_tokens as u32,
            max_tokens: max_tokens as u32,
        };
        for at in 1..tokens.len() {
            let mut text = Text::new(tokenizer.detokenizer(), ending(texts[at - 1..=at].concat(), at, 100));
            let pieces: Vec<Piece> = tokens[..=at].iter().map(|&token| text.push(token)).collect();
            let shown: String = pieces.iter().map(|piece| &*piece.text).collect();
            assert_eq!(shown, texts[..at - 1].concat(), "min_tokens {at}");
            assert!(pieces[at].stopped, "min_tokens {at}");
        }
        // What is held back for one is sent with the last token or, if that never arrives, by `finish`.
        let (written, all) = (texts.concat(), tokens.len());
        for max_tokens in [all, 100] {
            let mut text = Text::new(tokenizer.detokenizer(), ending(format!("{written}s"), all, max_tokens));
            let shown: String = tokens.iter().map(|&token| text.push(token).text).collect();
            assert_eq!(shown, if max_tokens == all { written.as_str() } else { "" });
            assert_eq!(shown + &text.finish(), written);
        }
    }
}
