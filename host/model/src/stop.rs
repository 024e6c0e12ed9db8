//! Stop strings in a stream of text, across the boundaries of its pieces.
//!
//! One Knuth-Morris-Pratt automaton per stop string (Knuth, Morris, Pratt 1977): its state is how much of the string the end
//! of the text matches, which is exactly what must be held back. Time is linear in the text for any strings. The match that
//! ends first wins; of two that end together, the longer one.

/// Watches one stream for its stop strings.
pub struct StopStrings {
    automata: Vec<Automaton>,
    held: String,
    /// Which of them ended the stream.
    found: Option<usize>,
}

/// Result of a piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that can be sent: it precedes any stop string and can't become part of one.
    pub text: String,
    /// Whether a stop string is complete, which ends the stream.
    pub stopped: bool,
}

impl StopStrings {
    /// Watches for `strings`; empty ones are left out.
    #[must_use]
    pub fn new(strings: Vec<String>) -> Self {
        let automata = strings.into_iter().filter(|string| !string.is_empty()).map(Automaton::new);
        Self { automata: automata.collect(), held: String::new(), found: None }
    }

    /// Processes the next piece of text. After a stop it returns no more text.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.found.is_some() {
            return StopStep { text: String::new(), stopped: true };
        }
        let seen = self.held.len();
        self.held.push_str(text);
        for (index, byte) in text.bytes().enumerate() {
            let step = |(at, automaton): (usize, &mut Automaton)| Some((automaton.step(byte)?, at));
            if let Some((longest, at)) = self.automata.iter_mut().enumerate().filter_map(step).max() {
                self.found = Some(at);
                self.held.truncate(seen + index + 1 - longest);
                return StopStep { text: std::mem::take(&mut self.held), stopped: true };
            }
        }
        StopStep { text: self.release(), stopped: false }
    }

    /// The stop string that ended the stream.
    pub fn found(&self) -> Option<&str> {
        std::str::from_utf8(&self.automata[self.found?].string).ok()
    }

    /// Processes a piece of text in which the stream can't stop: a stop string that ends in it doesn't count, one that only
    /// begins in it does.
    pub fn pass(&mut self, text: &str) -> StopStep {
        self.held.push_str(text);
        for byte in text.bytes() {
            for automaton in &mut self.automata {
                automaton.step(byte);
            }
        }
        StopStep { text: self.release(), stopped: false }
    }

    /// Takes the text that can't become part of a stop string.
    fn release(&mut self) -> String {
        let matched = self.automata.iter().map(|automaton| automaton.matched).max().unwrap_or(0);
        // A match begins with the first byte of a stop string, so this is a character boundary.
        let rest = self.held.split_off(self.held.len() - matched);
        std::mem::replace(&mut self.held, rest)
    }

    /// Returns the text held back when no more follows.
    pub fn finish(&mut self) -> String {
        for automaton in &mut self.automata {
            automaton.matched = 0;
        }
        std::mem::take(&mut self.held)
    }
}

struct Automaton {
    string: Vec<u8>,
    /// For each length of a match, the longest shorter match that ends with the same bytes.
    shorter: Vec<usize>,
    matched: usize,
}

impl Automaton {
    fn new(string: String) -> Self {
        let string = string.into_bytes();
        let mut shorter = vec![0; string.len()];
        let mut matched = 0;
        for end in 1..string.len() {
            while matched > 0 && string[matched] != string[end] {
                matched = shorter[matched - 1];
            }
            matched += usize::from(string[matched] == string[end]);
            shorter[end] = matched;
        }
        Self { string, shorter, matched: 0 }
    }

    /// Advances by one byte. Returns the string's length if `byte` completes it.
    fn step(&mut self, byte: u8) -> Option<usize> {
        while self.matched > 0 && self.string[self.matched] != byte {
            self.matched = self.shorter[self.matched - 1];
        }
        self.matched += usize::from(self.string[self.matched] == byte);
        let whole = self.string.len();
        if self.matched < whole {
            return None;
        }
        // The end of this match may begin the next one.
        self.matched = self.shorter[whole - 1];
        Some(whole)
    }
}
