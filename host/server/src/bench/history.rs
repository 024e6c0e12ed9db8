//! What was said so far, and how it is put to a server: as token ids, as text, as chat messages.
//!
//! Token ids are exact: prompts have the lengths they were made with, and a later turn begins with the very
//! tokens of the earlier ones, replies included, where the server tells the reply's ids. As text a token
//! stands for a short word, so lengths are near what was asked for and the server's usage counts.

use infer_api::completions::Prompt;
use serde_json::{Value, json};

use super::Job;

/// Words that most vocabularies hold as one token.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not",
    "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which", "one",
    "you", "were", "all", "her", "she", "there", "would", "their", "we", "him", "been", "has", "when", "who",
    "will", "no", "more", "if", "out", "so", "up", "said", "what", "its", "about", "than", "into", "them",
    "can", "only", "other", "time", "new", "some",
];

/// A conversation as it grows.
#[derive(Clone, Debug, Default)]
pub struct History {
    tokens: Vec<u32>,
    /// Questions and answers in turn, as text.
    said: Vec<String>,
}

impl History {
    /// A turn is asked.
    pub fn ask(&mut self, job: &Job) {
        self.tokens.extend(&job.prompt);
        self.said.push(words(&job.prompt));
    }

    /// It was answered; ids where the server tells them.
    pub fn answered(&mut self, tokens: &[u32], text: &str) {
        self.tokens.extend(tokens);
        self.said.push(text.to_owned());
    }

    /// Everything so far as token ids.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Everything so far as a prompt.
    pub fn prompt(&self, as_text: bool) -> Prompt {
        if as_text { Prompt::Text(self.said.join(" ")) } else { Prompt::Tokens(self.tokens.clone()) }
    }

    /// Everything so far as messages of a chat.
    pub fn messages(&self) -> Value {
        let roles = ["user", "assistant"].into_iter().cycle();
        self.said.iter().zip(roles).map(|(text, role)| json!({"role": role, "content": text})).collect()
    }
}

fn words(tokens: &[u32]) -> String {
    let all: Vec<&str> = tokens.iter().map(|&token| WORDS[token as usize % WORDS.len()]).collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_turn_begins_with_all_that_was_said_before() {
        let job = |prompt: &[u32]| Job { prompt: prompt.to_vec(), max_tokens: 2 };
        let mut history = History::default();
        history.ask(&job(&[0, 1]));
        history.answered(&[9, 8], " a reply");
        history.ask(&job(&[2]));
        assert_eq!(history.prompt(false), Prompt::Tokens(vec![0, 1, 9, 8, 2]));
        assert_eq!(history.prompt(true), Prompt::Text("the of  a reply and".to_owned()));
        let messages = history.messages();
        let roles: Vec<&str> =
            messages.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "assistant", "user"]);
    }
}
