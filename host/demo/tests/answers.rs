//! Quality of the demo model: twenty questions get readable answers on topic, through the decoder that serves it. Ten
//! are worded as in the training text, ten otherwise.

mod greedy;

use std::collections::BTreeSet;
use std::path::Path;

use greedy::Demo;

/// A question, and words that its answer must all contain.
type Case = (&'static str, &'static [&'static str]);

const AS_TRAINED: [Case; 10] = [
    ("What is a prefix cache?", &["prompt", "reuse"]),
    ("What is continuous batching?", &["every step", "join"]),
    ("Explain paged attention.", &["block"]),
    ("Why is decoding slow?", &["weights", "memory bandwidth"]),
    ("What happens when the client disconnects?", &["cancel", "blocks"]),
    ("How do I replace the scheduler without a restart?", &["swap"]),
    ("What does temperature 0 mean?", &["most likely token"]),
    ("Who watches the policies?", &["watchdog", "sequence"]),
    ("Why do I get a 503?", &["queue", "Retry-After"]),
    ("Tell me about grouped-query attention.", &["heads", "keys and values"]),
];

/// Wordings that are in no template and no line of the corpus, as a test below checks.
const UNSEEN: [Case; 10] = [
    ("In one sentence, what is the KV cache?", &["keys and values", "token"]),
    ("Help me understand backpressure.", &["slow down", "refus"]),
    ("Introduce me to chunked prefill.", &["prompt", "pieces"]),
    ("I keep hearing about WebAssembly policies. What are they?", &["component", "decision"]),
    ("could somebody clarify copy-on-write", &["block", "copy"]),
    ("What role does a tokenizer play?", &["text", "tokens"]),
    ("Teach me the basics of static batching", &["8 requests", "50 milliseconds"]),
    ("My colleague mentioned TTFT, what did she mean?", &["first token"]),
    ("Would you kindly outline stop strings?", &["generation", "output"]),
    ("How would one summarize preemption?", &["blocks", "running"]),
];

#[test]
fn questions_as_trained_are_answered() {
    check(&AS_TRAINED);
}

#[test]
fn questions_in_unseen_wordings_are_answered() {
    check(&UNSEEN);
}

#[test]
fn unknown_questions_are_declined() {
    let mut demo = Demo::load();
    for question in ["What is the capital of France?", "Who is Einstein?", "What is the weather like?"] {
        let answer = demo.complete(question, 128);
        assert!(answer.text.contains("I only know about inference serving"), "{question} {answer:?}");
    }
}

#[test]
fn conversations_use_the_chat_template() {
    let mut demo = Demo::load();
    let first = "What is a prefix cache?";
    let opening = serde_json::json!([
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": first}
    ]);
    let answer = demo.chat(&opening);
    assert!(answer.ended && answer.text.contains("prompt"), "{answer:?}");
    let going_on = serde_json::json!([
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": first},
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": "And what does the scheduler do?"}
    ]);
    let answer = demo.chat(&going_on);
    assert!(answer.ended && answer.text.contains("sequences run"), "{answer:?}");
}

#[test]
fn unseen_wordings_are_not_in_the_training_text() {
    let known = training_text().to_lowercase();
    for (question, _) in UNSEEN {
        // Only the first words of the wording, without the topic's name, which is in the corpus.
        let start: Vec<_> = question.split(' ').take(3).collect();
        let start = start.join(" ").to_lowercase();
        assert!(!known.contains(&start), "{start:?} is in the training text");
    }
}

/// Checks that every answer is readable, complete and on topic.
fn check(cases: &[Case]) {
    let mut demo = Demo::load();
    let known = words(&training_text());
    let (mut unreadable, mut missed) = (Vec::new(), Vec::new());
    for (question, expected) in cases {
        let answer = demo.complete(question, 128);
        let text = answer.text.to_lowercase();
        let missing: Vec<_> = expected.iter().filter(|word| !text.contains(&word.to_lowercase())).collect();
        let strange: Vec<_> = words(&answer.text).difference(&known).cloned().collect();
        let fits = answer.ended && answer.tokens <= 64 && answer.text.trim_end().ends_with(['.', '?']);
        if !fits || !strange.is_empty() {
            unreadable.push(format!("{question}\n  {answer:?}\n  no words: {strange:?}"));
        }
        if !missing.is_empty() {
            missed.push(format!("{question}\n  {answer:?}\n  missing {missing:?}"));
        }
    }
    assert!(unreadable.is_empty(), "{}", unreadable.join("\n"));
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// The corpus and the question templates.
fn training_text() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = std::fs::read_to_string(here.join("src/train/wording.rs")).expect("the templates");
    for file in std::fs::read_dir(here.join("corpus")).expect("the corpus") {
        text.push_str(&std::fs::read_to_string(file.expect("a file").path()).expect("a text"));
    }
    text
}

fn words(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_alphanumeric());
    words.map(str::to_lowercase).collect()
}
