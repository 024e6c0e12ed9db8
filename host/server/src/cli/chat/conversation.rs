//! The turns of a chat, and the requests that they make. What is asked becomes a turn only with its answer, so a request
//! that fails leaves the conversation as it was.

use infer_api::chat::Message;
use serde_json::{Value, json};

/// How answers are drawn; the server decides what is left out.
#[derive(Clone, Debug, Default)]
pub struct Sampling {
    pub temperature: Option<f64>,
    pub max_tokens: Option<u32>,
    pub seed: Option<u64>,
}

/// A conversation.
pub struct Conversation {
    /// Names it to hosts of ours.
    session: String,
    system: Option<String>,
    turns: Vec<Turn>,
    /// Without an answer yet, or because its request failed.
    asked: Option<Asked>,
}

/// A question and its answer.
struct Turn {
    question: String,
    /// How many other answers this one took the place of.
    attempt: u64,
    reasoning: String,
    text: String,
}

struct Asked {
    question: String,
    attempt: u64,
    /// Whether its answer takes the place of the last turn.
    again: bool,
}

impl Conversation {
    /// Nothing is said yet.
    pub fn new(session: String, system: Option<String>) -> Self {
        let mut new = Self { session, system: None, turns: Vec::new(), asked: None };
        new.set_system(system);
        new
    }

    /// Forgets what was said.
    pub fn reset(&mut self, session: String) {
        self.session = session;
        self.turns.clear();
        self.asked = None;
    }

    /// Sets the system message of all further requests.
    pub fn set_system(&mut self, text: Option<String>) {
        self.system = text.filter(|text| !text.is_empty());
    }

    /// Asks.
    pub fn ask(&mut self, question: String) {
        self.asked = Some(Asked { question, attempt: 0, again: false });
    }

    /// Asks the last question again, whether it was answered or its request failed; false if there is none.
    pub fn ask_again(&mut self) -> bool {
        if self.asked.is_none() {
            self.asked = self.turns.last().map(|turn| Asked {
                question: turn.question.clone(),
                attempt: turn.attempt + 1,
                again: true,
            });
        }
        self.asked.is_some()
    }

    /// Keeps the answer to what was asked.
    pub fn keep(&mut self, reasoning: String, text: String) {
        let Asked { question, attempt, again } = self.asked.take().expect("an answer follows a question");
        if again {
            self.turns.pop();
        }
        self.turns.push(Turn { question, attempt, reasoning, text });
    }

    /// The request for an answer to what was asked. Fields that OpenAI's interface lacks are for hosts of ours alone,
    /// because other servers may refuse them.
    pub fn request(&self, model: &str, is_infer: bool, sampling: &Sampling) -> Value {
        let asked = self.asked.as_ref().expect("a request has a question");
        let earlier = &self.turns[..self.turns.len() - usize::from(asked.again)];
        let mut messages = self.messages(earlier, is_infer);
        messages.push(message("user", &asked.question));
        let mut body = json!({
            "model": model, "messages": messages, "stream": true, "stream_options": {"include_usage": true},
        });
        if let Some(temperature) = sampling.temperature {
            body["temperature"] = temperature.into();
        }
        if let Some(max_tokens) = sampling.max_tokens {
            body["max_tokens"] = max_tokens.into();
        }
        // The same seed would draw the same answer again.
        if let Some(seed) = sampling.seed {
            body["seed"] = seed.wrapping_add(asked.attempt).into();
        }
        if is_infer {
            body["session_id"] = self.session.as_str().into();
        }
        body
    }

    /// All that was said and answered, with the reasoning.
    pub fn said(&self) -> Vec<Message> {
        self.messages(&self.turns, true)
    }

    fn messages(&self, turns: &[Turn], with_reasoning: bool) -> Vec<Message> {
        let mut messages: Vec<Message> = self.system.iter().map(|text| message("system", text)).collect();
        for turn in turns {
            messages.push(message("user", &turn.question));
            let reasoning = (with_reasoning && !turn.reasoning.is_empty()).then(|| turn.reasoning.clone());
            messages.push(Message { reasoning_content: reasoning, ..message("assistant", &turn.text) });
        }
        messages
    }
}

fn message(role: &str, text: &str) -> Message {
    Message { role: role.to_owned(), content: Some(text.into()), ..Message::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation() -> Conversation {
        Conversation::new("s1".to_owned(), Some("Be brief.".to_owned()))
    }

    fn request(conversation: &Conversation) -> Value {
        conversation.request("m", true, &Sampling::default())
    }

    /// What a request says, a word per message.
    fn words(body: &Value) -> Vec<&str> {
        let messages = body["messages"].as_array().unwrap();
        messages.iter().map(|message| message["content"].as_str().unwrap()).collect()
    }

    fn keep(conversation: &mut Conversation, text: &str) {
        conversation.keep(String::new(), text.to_owned());
    }

    #[test]
    fn each_request_has_the_whole_conversation_and_its_session() {
        let mut chat = conversation();
        chat.ask("one?".to_owned());
        let expected = json!({
            "model": "m", "stream": true, "stream_options": {"include_usage": true}, "session_id": "s1",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one?"}],
        });
        assert_eq!(request(&chat), expected);
        chat.keep("think".to_owned(), "one.".to_owned());
        chat.ask("two?".to_owned());
        let body = request(&chat);
        assert_eq!(words(&body), ["Be brief.", "one?", "one.", "two?"]);
        let answer = json!({"role": "assistant", "content": "one.", "reasoning_content": "think"});
        assert_eq!((&body["messages"][2], &body["session_id"]), (&answer, &json!("s1")));
        keep(&mut chat, "two.");
        chat.set_system(None);
        chat.ask("three?".to_owned());
        assert_eq!(words(&request(&chat)), ["one?", "one.", "two?", "two.", "three?"]);
        chat.reset("s2".to_owned());
        assert!(!chat.ask_again(), "nothing is left to ask again");
        chat.ask("four?".to_owned());
        assert_eq!((words(&request(&chat)), &request(&chat)["session_id"]), (vec!["four?"], &json!("s2")));
    }

    #[test]
    fn other_servers_get_only_fields_of_openai() {
        let mut chat = conversation();
        chat.ask("one?".to_owned());
        chat.keep("think".to_owned(), "one.".to_owned());
        chat.ask("two?".to_owned());
        let sampling = Sampling { temperature: Some(0.7), max_tokens: Some(9), seed: Some(u64::MAX) };
        let body = chat.request("m", false, &sampling);
        let fields: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
        let known = ["max_tokens", "messages", "model", "seed", "stream", "stream_options", "temperature"];
        assert!(fields.len() == known.len() && known.iter().all(|name| fields.contains(name)), "{fields:?}");
        assert_eq!((&body["temperature"], &body["max_tokens"]), (&json!(0.7), &json!(9)));
        assert_eq!(body["seed"], u64::MAX);
        assert_eq!(body["messages"][2], json!({"role": "assistant", "content": "one."}));
    }

    #[test]
    fn failed_request_leaves_the_conversation_as_it_was_and_can_be_repeated() {
        let mut chat = conversation();
        chat.ask("one?".to_owned());
        keep(&mut chat, "one.");
        let before = chat.said();
        chat.ask("two?".to_owned());
        assert_eq!(chat.said(), before, "it has no answer yet");
        assert!(chat.ask_again());
        assert_eq!(words(&request(&chat)), ["Be brief.", "one?", "one.", "two?"]);
        chat.ask("three?".to_owned());
        assert_eq!(
            words(&request(&chat)),
            ["Be brief.", "one?", "one.", "three?"],
            "in place of the failed one"
        );
    }

    #[test]
    fn another_answer_takes_the_place_of_the_last_one_once_it_is_there() {
        let mut chat = conversation();
        let seeded = |chat: &Conversation| {
            let body = chat.request("m", true, &Sampling { seed: Some(5), ..Sampling::default() });
            body["seed"].as_u64().unwrap()
        };
        assert!(!chat.ask_again(), "nothing was asked");
        chat.ask("one?".to_owned());
        assert_eq!(seeded(&chat), 5);
        keep(&mut chat, "one.");
        assert!(chat.ask_again());
        assert_eq!(words(&request(&chat)), ["Be brief.", "one?"]);
        assert_eq!(seeded(&chat), 6, "the same seed would draw the same answer");
        let said = |chat: &Conversation| words(&json!({"messages": chat.said()})).join(" ");
        assert_eq!(said(&chat), "Be brief. one? one.");
        // Its request has failed.
        assert!(chat.ask_again());
        assert_eq!((words(&request(&chat)), seeded(&chat)), (vec!["Be brief.", "one?"], 6));
        keep(&mut chat, "uno.");
        assert_eq!(said(&chat), "Be brief. one? uno.");
        assert!(chat.ask_again());
        assert_eq!(seeded(&chat), 7);
        chat.ask("two?".to_owned());
        assert_eq!(words(&request(&chat)), ["Be brief.", "one?", "uno.", "two?"]);
        assert_eq!(seeded(&chat), 5);
    }
}
