//! A conversation's history, and its forms in a request: token ids, text, chat messages.
//!
//! Token ids are exact: prompts have the requested lengths, and a later turn starts with exactly the tokens of the
//! earlier ones, outputs included if the server returns their ids. As text, each token becomes a short word, so lengths
//! are approximate and the server's usage is what counts.

use infer_api::completions::Prompt;
use serde_json::{Value, json};

use super::Job;

/// Words that are one token in most vocabularies.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not",
    "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an", "they", "which", "one",
    "you", "were", "all", "her", "she", "there", "would", "their", "we", "him", "been", "has", "when", "who",
    "will", "no", "more", "if", "out", "so", "up", "said", "what", "its", "about", "than", "into", "them",
    "can", "only", "other", "time", "new", "some",
];

/// The history of a conversation.
#[derive(Clone, Debug, Default)]
pub struct History {
    tokens: Vec<u32>,
    /// Prompts and outputs in turn, as text.
    said: Vec<String>,
}

impl History {
    /// Appends the prompt of a turn.
    pub fn ask(&mut self, job: &Job) {
        self.tokens.extend(&job.prompt);
        self.said.push(words(&job.prompt));
    }

    /// Appends the output of a turn; `tokens` is empty if the server returns no ids.
    pub fn answered(&mut self, tokens: &[u32], text: &str) {
        self.tokens.extend(tokens);
        self.said.push(text.to_owned());
    }

    /// The history as token ids.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The history as a prompt.
    pub fn prompt(&self, as_text: bool) -> Prompt {
        if as_text { Prompt::Text(self.said.join(" ")) } else { Prompt::Tokens(self.tokens.clone()) }
    }

    /// The history as chat messages.
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
    fn later_turn_starts_with_the_whole_history() {
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
