//! Wordings of questions about a topic: templates around its names, and the carelessness of real typing.
//!
//! The model must answer wordings that are in no template, so it sees each topic in many of them. The held-out wordings
//! of the quality test are in none of these lists.

use super::{Entry, Random};

const SINGULAR: &[&str] = &[
    "What is {}?",
    "What is {}?",
    "What is {}?",
    "What's {}?",
    "What exactly is {}?",
    "What does {} do?",
    "What does {} mean?",
    "How does {} work?",
    "How does {} work here?",
    "Why does {} matter?",
    "What is {} for?",
    "What is {} good for?",
    "Tell me what {} is.",
    "Can you tell me what {} is?",
    "Do you know what {} is?",
    "I do not know what {} is.",
    "When does {} help?",
];

const PLURAL: &[&str] = &[
    "What are {}?",
    "What are {}?",
    "What are {}?",
    "What exactly are {}?",
    "What do {} do?",
    "What do {} mean?",
    "How do {} work?",
    "How do {} work here?",
    "Why do {} matter?",
    "What are {} for?",
    "What are {} good for?",
    "Tell me what {} are.",
    "Can you tell me what {} are?",
    "Do you know what {} are?",
    "I do not know what {} are.",
    "When do {} help?",
];

const EITHER: &[&str] = &[
    "Explain {}.",
    "Explain {} to me.",
    "Explain {} in simple words.",
    "Please explain {}.",
    "Can you explain {}?",
    "Could you explain {} briefly?",
    "Could you please outline {}?",
    "Tell me about {}.",
    "Tell me something about {}.",
    "Please tell me about {}.",
    "Define {}.",
    "Outline {}.",
    "Summarize {}.",
    "Describe {}.",
    "Describe {} in a few words.",
    "What do you know about {}?",
    "What is meant by {}?",
    "What should I know about {}?",
    "I want to know more about {}.",
    "I would like to understand {}.",
    "I have a question about {}.",
    "Why do we need {}?",
    "Why would I want {}?",
    "Why use {}?",
    "Give me a definition of {}.",
    "Write a sentence about {}.",
    "How would you describe {}?",
    "Is there {}?",
    "Does infer have {}?",
    "How does infer handle {}?",
    "{}?",
    "{}",
    "{}, please.",
    "About {}.",
    "{}: what is it?",
];

const OPENINGS: &[&str] = &[
    "Hi, ",
    "Hello, ",
    "Hello! ",
    "Please, ",
    "Question: ",
    "Q: ",
    "So, ",
    "Quick question: ",
    "OK, ",
    "Now: ",
];

/// Words without any relation to a topic; strung together, they stand for unforeseen wordings.
const FILLERS: &[&str] = &[
    "a",
    "again",
    "all",
    "and",
    "anybody",
    "asked",
    "basically",
    "basics",
    "beginner",
    "book",
    "briefly",
    "can",
    "clear",
    "could",
    "day",
    "details",
    "did",
    "does",
    "example",
    "expert",
    "fact",
    "few",
    "for",
    "friend",
    "from",
    "give",
    "good",
    "had",
    "has",
    "he",
    "heard",
    "help",
    "here",
    "how",
    "I",
    "idea",
    "important",
    "in",
    "introduction",
    "is",
    "it",
    "know",
    "learn",
    "lesson",
    "let",
    "like",
    "line",
    "long",
    "main",
    "me",
    "mean",
    "meeting",
    "more",
    "my",
    "name",
    "need",
    "notes",
    "of",
    "one",
    "our",
    "outline",
    "part",
    "people",
    "play",
    "point",
    "quick",
    "read",
    "really",
    "role",
    "say",
    "sentence",
    "she",
    "short",
    "show",
    "so",
    "some",
    "somebody",
    "student",
    "summary",
    "talk",
    "teach",
    "term",
    "text",
    "that",
    "the",
    "their",
    "they",
    "thing",
    "things",
    "today",
    "topic",
    "understand",
    "us",
    "use",
    "want",
    "was",
    "we",
    "what",
    "when",
    "who",
    "why",
    "wonder",
    "word",
    "words",
    "would",
    "you",
    "your",
];

const SYSTEM_MESSAGES: &[&str] = &[
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "Answer in one sentence.",
    "You answer questions about inference serving.",
    "You are the demo model of infer.",
    "Be brief and friendly.",
];

/// A question for `entry`'s answer.
pub fn question(entry: &Entry, random: &mut Random) -> String {
    let from_names = !entry.names.is_empty() && (entry.questions.is_empty() || random.chance(60));
    let asked = if from_names {
        let name = &entry.names[random.below(entry.names.len())];
        from_template(name, random)
    } else {
        entry.questions[random.below(entry.questions.len())].clone()
    };
    careless(asked, random)
}

/// A system message for a conversation.
pub fn system_message(random: &mut Random) -> &'static str {
    random.pick(SYSTEM_MESSAGES)
}

/// A question for `entry`'s answer whose frame may be nonsense, so that only the topic counts.
pub fn strange_question(entry: &Entry, random: &mut Random) -> String {
    if entry.names.is_empty() || random.chance(65) {
        return question(entry, random);
    }
    let name = entry.names[random.below(entry.names.len())].trim_start_matches("+ ");
    let mut words = Vec::new();
    for _ in 0..1 + random.below(6) {
        words.push(random.pick(FILLERS));
    }
    words.push(name);
    if random.chance(40) {
        for _ in 0..1 + random.below(4) {
            words.push(random.pick(FILLERS));
        }
    }
    let end = ["?", ".", "", ", what is it?"][random.below(4)];
    let asked = words.join(" ") + end;
    if random.chance(70) { capitalized(&asked) } else { asked }
}

fn from_template(name: &str, random: &mut Random) -> String {
    let (name, own) = match name.strip_prefix("+ ") {
        Some(plural) => (plural, PLURAL),
        None => (name, SINGULAR),
    };
    let template = if random.chance(50) { random.pick(own) } else { random.pick(EITHER) };
    let bare = name.trim_start_matches("the ").trim_start_matches("an ").trim_start_matches("a ");
    // People often omit the article of a bare term, and some do so in a sentence.
    let filler = if template.starts_with("{}") || random.chance(15) { bare } else { name };
    capitalized(&template.replace("{}", filler))
}

fn careless(asked: String, random: &mut Random) -> String {
    let mut text = asked;
    if random.chance(12) {
        let opening = random.pick(OPENINGS);
        text = format!("{opening}{}", if random.chance(70) { uncapitalized(&text) } else { text });
    }
    if random.chance(25) {
        text = text.to_lowercase();
    }
    if random.chance(25) {
        text = text.trim_end_matches(['?', '.', '!']).to_owned();
    }
    text
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Leaves abbreviations such as `KV` and `I` alone.
fn uncapitalized(text: &str) -> String {
    let mut letters = text.chars();
    match (letters.next(), text.chars().nth(1)) {
        (Some(first), Some(second)) if second.is_lowercase() || second == '\'' => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}
