//! One function for each parser of untrusted bytes. The fuzz targets (`tests/fuzz`) call them, and an
//! ordinary test with the same corpora (`host/server/tests/strangers.rs`); this is not an interface for
//! anything else.
//!
//! None of them may panic, hang or exceed its memory bounds for any bytes. Where a result has further
//! properties, they are asserted here.

use std::cell::RefCell;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use infer_api::sse::Events;
use infer_api::trace::Line;
use infer_chat::{ChatTemplate, Sandbox, Tools};
use infer_core::config::EngineConfig;
use infer_core::engine::Policies;
use infer_core::ids::{Micros, TenantId};
use infer_core::request::Constraint as _;
use infer_model::{Model, ModelConfig, ModelError, Source, Tokenizer};
use infer_sim::fuzz::{Case, Checks, Violation, generate, play};
use infer_sim::trace::{Format, Reader, in_order, limited};
use infer_sim::{Predictions, Profile, Settings as Simulated, Slo};
use infer_wasm::{LoaderConfig, PolicyLoader};
use serde_json::json;

use crate::bench::{Dialect, read};
use crate::config::{Config, Settings};
use crate::data::{
    Compiler, Expected, Opening, Part, Prelude, Speaker, Speech, check_chat, check_completion,
    check_embedding, check_messages, check_response, marked,
};
use crate::shares::Holder;
use crate::trace::{Question, RecordedLines, RecordedRequests};

/// Size of the demo model's vocabulary.
const DEMO_VOCAB: u32 = 1_792;

/// An edge.
pub type Edge = fn(&[u8]);

/// All edges, by the names of their corpora.
pub const ALL: [(&str, Edge); 20] = [
    ("request", request),
    ("chat", chat),
    ("messages", messages),
    ("grammar", grammar),
    ("calls", calls),
    ("events", events),
    ("config", config),
    ("tenants", tenants),
    ("model_config", model_config),
    ("safetensors", safetensors),
    ("gguf", gguf),
    ("tokenizer", tokenizer),
    ("template", template),
    ("component", component),
    ("trace", trace),
    ("recording", recording),
    ("fuzz_case", fuzz_case),
    ("cache_file", cache_file),
    ("adapter", adapter),
    ("policy_state", policy_state),
];

/// The body of a completion request, or of one for embeddings.
pub fn request(bytes: &[u8]) {
    let models = ["demo".to_owned()];
    let _ = check_completion(bytes, &models);
    let _ = check_embedding(bytes, &models);
}

/// The body of a chat in either form, up to the prompt's text.
pub fn chat(bytes: &[u8]) {
    let models = ["demo".to_owned()];
    let _ = check_chat(bytes, &models, template_with_tools());
    let _ = check_response(bytes, &models, template_with_tools());
}

/// The body of messages in Anthropic's form, or of a count of their tokens, up to the prompt's text.
pub fn messages(bytes: &[u8]) {
    let _ = check_messages(bytes, &["demo".to_owned()], template_with_tools());
}

/// A body's schema, grammar or regular expression: compiles it and generates an output within it.
pub fn grammar(bytes: &[u8]) {
    const TOKENS: usize = 24;
    thread_local! {
        static HOST: (tokio::runtime::Runtime, Compiler) = {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let tokenizer = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).expect("the demo's");
            (runtime.expect("a runtime"), Compiler::new(tokenizer, DEMO_VOCAB, Arc::from([1])))
        };
    }
    let models = ["demo".to_owned()];
    let shape = match check_completion(bytes, &models) {
        Ok(shape) => shape,
        Err(_) => check_chat(bytes, &models, template_with_tools()).ok().and_then(|(_, shape)| shape),
    };
    let Some(shape) = shape else { return };
    HOST.with(|(runtime, compiler)| {
        let holder = Holder { tenant: TenantId(0), alone: true };
        let Ok(masks) = runtime.block_on(compiler.masks(holder, &shape, 1, Prelude::None)) else {
            return;
        };
        let mut output = Vec::new();
        while output.len() < TOKENS {
            let mut logits = vec![0.0; DEMO_VOCAB as usize];
            if !masks[0].restrict(&output, &mut logits) {
                return;
            }
            // Varying the choice makes outputs longer.
            let allowed: Vec<usize> = (0..logits.len()).filter(|&token| logits[token] == 0.0).collect();
            let Some(&token) = allowed.get(output.len() * 7 % allowed.len().max(1)) else { return };
            if token == 1 {
                return;
            }
            output.push(token as u32);
        }
    });
}

/// A model's output with reasoning and function calls. What is found must not depend on how the text is split.
pub fn calls(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let shaped = text.len() % 2 == 1;
    let speech = |reasoning, style, opening| {
        let names = vec!["weather".to_owned(), "time".to_owned()];
        Speech { reasoning, shaped, style, names, forced: false, parallel: true, opening }
    };
    for reasoning in [Expected::Never, Expected::Tagged, Expected::Opened, Expected::Within] {
        for style in [Tools::Hermes, Tools::Llama3] {
            divide(&speech(reasoning, style, None), text);
        }
    }
    // The names of special tokens stand for them.
    let text = marked(text);
    for prompt in ["<|start|>assistant", "<|start|>assistant<|channel|>final<|message|>One", "<|end|>"] {
        for reasoning in [Expected::Never, Expected::Tagged] {
            divide(&speech(reasoning, Tools::Harmony, Some(Opening::after(prompt))), &text);
        }
    }
}

fn divide(speech: &Speech, text: &str) {
    let letters: Vec<char> = text.chars().collect();
    let all = |step: usize| {
        let mut speaker = Speaker::new(speech);
        let mut parts: Vec<Part> = Vec::new();
        for piece in letters.chunks(step) {
            parts.extend(speaker.push(piece.iter().collect()));
        }
        parts.extend(speaker.finish());
        joined(parts)
    };
    assert_eq!(all(usize::MAX >> 1), all(1), "{speech:?}: parts must not depend on how the text is split");
}

/// Joins adjacent parts of the same kind.
fn joined(parts: Vec<Part>) -> Vec<Part> {
    let mut whole: Vec<Part> = Vec::new();
    for part in parts {
        match (whole.last_mut(), part) {
            (Some(Part::Reasoning(before)), Part::Reasoning(more))
            | (Some(Part::Text(before)), Part::Text(more))
            | (Some(Part::Arguments(before)), Part::Arguments(more)) => before.push_str(&more),
            (_, Part::Text(text) | Part::Arguments(text)) if text.is_empty() => {}
            (_, part) => whole.push(part),
        }
    }
    whole
}

/// A stream of events, as the load generator reads it. What is found must not depend on how the bytes are
/// split.
pub fn events(bytes: &[u8]) {
    let all = |chunks: &mut dyn Iterator<Item = &[u8]>| {
        let mut events = Events::default();
        let mut found = Vec::new();
        for chunk in chunks {
            events.push(chunk)?;
            while let Some(event) = events.next() {
                found.push(event);
            }
        }
        Ok::<_, String>(found)
    };
    let whole = all(&mut std::iter::once(bytes));
    let cut = all(&mut bytes.chunks(1 + bytes.first().map_or(0, |&b| usize::from(b % 7))));
    // Only bytes too long for one event can be accepted in pieces and refused as a whole.
    if let Ok(whole) = &whole {
        assert_eq!(Some(whole), cut.as_ref().ok(), "events must not depend on how the bytes are split");
    }
    for (name, data) in whole.unwrap_or_default() {
        for dialect in [Dialect::Named, Dialect::Openai] {
            let _ = read(dialect, &name, &data);
        }
    }
}

/// A host's configuration file.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(settings) = Settings::of_text(Path::new("infer.toml"), text) {
        let _ = Config::from_settings(&settings);
    }
}

/// A file of tenants and keys, or one of operators.
pub fn tenants(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = crate::tenants::grants("tenants.toml", text);
        let _ = crate::admin::operators::parse("operators.toml", text);
    }
}

/// A checkpoint's `config.json`.
pub fn model_config(bytes: &[u8]) {
    let _ = ModelConfig::parse(bytes, Some(bytes));
}

/// A checkpoint's weights, with the configuration of the demo model.
pub fn safetensors(bytes: &[u8]) {
    let mut files: Vec<(&str, &[u8])> = demo();
    files.push(("model.safetensors", bytes));
    let _ = Model::load(&Source::Embedded(&files), None);
}

/// The two files of an adapter of the demo model, with a zero byte between them: settings, tensors.
pub fn adapter(bytes: &[u8]) {
    let _ = check_adapter(bytes);
}

fn check_adapter(bytes: &[u8]) -> Result<(), ModelError> {
    static SHAPE: OnceLock<ModelConfig> = OnceLock::new();
    let shape = SHAPE.get_or_init(|| ModelConfig::load(&Source::Embedded(&demo())).expect("it is sound"));
    // Text in JSON has no zero byte.
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (settings, tensors) = (&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
    let files = [("adapter_config.json", settings), ("adapter_model.safetensors", tensors)];
    Model::check_adapter(&Source::Embedded(&files), shape)
}

/// A GGUF file: header, configuration, tokenizer, template, tensors.
pub fn gguf(bytes: &[u8]) {
    thread_local! {
        static FILE: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
    }
    FILE.with_borrow_mut(|file| {
        let path = file.get_or_insert_with(|| {
            let thread = format!("{:?}", std::thread::current().id());
            std::env::temp_dir().join(format!("infer-edge-{}-{thread}.gguf", std::process::id()))
        });
        if std::fs::write(&*path, bytes).is_ok() {
            if let Ok(source) = Source::gguf(path) {
                let _ = ModelConfig::load(&source);
                let _ = Tokenizer::load(&source);
                let _ = ChatTemplate::load(sandbox(), &source);
                let _ = Model::load(&source, None);
            }
            let _ = std::fs::remove_file(path);
        }
    });
}

/// A checkpoint's `tokenizer.json`.
pub fn tokenizer(bytes: &[u8]) {
    let files = [("tokenizer.json", bytes)];
    let Ok(tokenizer) = Tokenizer::load(&Source::Embedded(&files)) else { return };
    if let Ok(tokens) = tokenizer.encode("What is a prefix cache? \u{fc}\u{1f600} 12", true) {
        let _ = tokenizer.decode(&tokens, true);
        let mut detokenizer = tokenizer.detokenizer();
        for token in tokens {
            let _ = detokenizer.push(token);
        }
    }
}

/// A checkpoint's chat template.
pub fn template(bytes: &[u8]) {
    let files = [("chat_template.jinja", bytes)];
    let Ok(Some(template)) = ChatTemplate::load(sandbox(), &Source::Embedded(&files)) else { return };
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is a {{ block }}?"},
        {"role": "assistant", "content": null},
    ]);
    let render = || template.render(&messages, true).ok();
    let (first, second) = (render(), render());
    if let (Some(first), Some(second)) = (first, second) {
        assert_eq!(first, second, "a render must not affect the next one");
    }
}

/// The sandbox for all templates of this process.
fn sandbox() -> &'static Sandbox {
    static SANDBOX: OnceLock<Sandbox> = OnceLock::new();
    SANDBOX.get_or_init(|| Sandbox::new(None).expect("the renderer compiles"))
}

/// An uploaded policy.
pub fn component(bytes: &[u8]) {
    static LOADER: OnceLock<PolicyLoader> = OnceLock::new();
    let loader = LOADER.get_or_init(|| {
        let config = LoaderConfig { fuel: Some(10_000_000), ..LoaderConfig::default() };
        PolicyLoader::new(config).expect("a loader with limits")
    });
    let Ok((kind, _)) = loader.describe(bytes) else { return };
    let Ok(mut policy) = loader.load(kind, bytes, "{}") else { return };
    let policy = policy.lifecycle();
    if let Ok(state) = policy.export_state() {
        let _ = policy.import_state(&state);
    }
    let _ = policy.restart();
}

/// A file of cached prefixes (`--cache-file`).
pub fn cache_file(bytes: &[u8]) {
    let _ = crate::cache_file::examine(bytes);
}

/// A file of swaps and the quarantine, or of what policies exported (`--policy-state`).
pub fn policy_state(bytes: &[u8]) {
    let _ = crate::policy_state::examine(bytes);
}

/// Longest request on the host of replays.
const REPLAY_SEQ_LEN: u32 = 64;

/// A public trace, which is also replayed. Requests must be ordered by time, and none may be empty.
pub fn trace(bytes: &[u8]) {
    for format in Format::ALL {
        replay_trace(format, bytes);
    }
    let _ = Format::of(&String::from_utf8_lossy(bytes));
}

/// A host's recording: its policy calls, and its requests, which are replayed.
pub fn recording(bytes: &[u8]) {
    for line in bytes.split(|&byte| byte == b'\n') {
        match serde_json::from_slice::<Line>(line) {
            Ok(Line::Decision(decision)) => drop(Question::of_decision(*decision)),
            Ok(Line::Asked(asked)) => drop(Question::of_asked(*asked)),
            Ok(_) | Err(_) => {}
        }
    }
    for closed_loop in [false, true] {
        replay_recording(bytes, closed_loop);
    }
}

fn replay_trace(format: Format, bytes: &[u8]) -> u64 {
    replay_ordered(&|| limited(format.read(bytes), REPLAY_SEQ_LEN, REPLAY_SEQ_LEN))
}

fn replay_recording(bytes: &[u8], closed_loop: bool) -> u64 {
    replay_ordered(&|| {
        let lines = RecordedLines::new(Box::new(Cursor::new(bytes.to_vec())), Box::new(|| {}));
        in_order(RecordedRequests::new(lines, closed_loop))
    })
}

/// Reads a trace, checks it, and replays its first requests on a small host. A replay must give the same result again.
/// Returns how many of them finished.
fn replay_ordered<'a>(read: &dyn Fn() -> Reader<'a>) -> u64 {
    /// Requests to read, and to replay.
    const READ: usize = 10_000;
    const REPLAYED: u64 = 12;
    let mut last = 0;
    let mut whole = false;
    for recorded in read().take(READ) {
        let Ok(recorded) = recorded else { break };
        assert!(recorded.at_us >= last, "{} after {last}", recorded.at_us);
        assert!(recorded.prompt_tokens > 0 && recorded.output_tokens > 0, "{recorded:?}");
        (last, whole) = (recorded.at_us, true);
    }
    if !whole {
        return 0;
    }
    let engine = EngineConfig {
        total_blocks: 24,
        block_size: 4,
        max_seq_len: REPLAY_SEQ_LEN,
        max_waiting: 8,
        ..EngineConfig::default()
    };
    let settings = Simulated {
        engine,
        profile: Profile::named("cpu", "demo").expect("a known device and model"),
        host: Micros::ZERO,
        load: 1.0,
        slo: Slo::default(),
        seed: 1,
        tenants: Vec::new(),
        predictions: Predictions::Learned,
    };
    let play = || infer_sim::replay(&settings, Policies::builtin(), read(), REPLAYED, |_| {}).ok();
    let outcome = play();
    assert_eq!(outcome, play(), "a replay must not depend on anything else");
    outcome.map_or(0, |outcome| outcome.finished)
}

/// A case of the fault machine: its file, or bytes that select a host and operations among generated ones. Every valid
/// case must end when played, without a violation.
pub fn fuzz_case(bytes: &[u8]) {
    let case = match bytes {
        [b'{', ..] => {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            let Ok(case) = Case::from_text(text) else { return };
            let again = Case::from_text(&case.to_text(""));
            assert_eq!(again.ok().as_ref(), Some(&case), "a written case reads back");
            case
        }
        [first, second, chosen @ ..] => drawn(u16::from_le_bytes([*first, *second]), chosen),
        _ => return,
    };
    if let Err(Violation { message, place, .. }) = play(&case, &[], Checks::default()) {
        panic!("{place}: {message}\n{}", case.to_text(&message));
    }
}

/// The host of the case `seed`, with any of its operations in any order: a pair of bytes is the index of one.
fn drawn(seed: u16, chosen: &[u8]) -> Case {
    const POOL: usize = 1_024;
    let Case { setup, ops } = generate(seed.into(), POOL, &[]);
    let chosen = chosen.chunks_exact(2).map(|pair| usize::from(u16::from_le_bytes([pair[0], pair[1]])));
    Case { setup, ops: chosen.map(|at| ops[at % ops.len()].clone()).collect() }
}

/// A template with tools, in the style of Hermes.
fn template_with_tools() -> &'static ChatTemplate {
    static TEMPLATE: OnceLock<ChatTemplate> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let text: &[u8] = b"{% if tools %}{{ tools | tojson }}<tool_call></tool_call>{% endif %}\
            {% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ m.tool_calls }}{% endfor %}";
        let files = [("chat_template.jinja", text)];
        let template = ChatTemplate::load(sandbox(), &Source::Embedded(&files)).expect("it can be read");
        template.expect("there is one")
    })
}

/// The demo model's files without its weights.
fn demo() -> Vec<(&'static str, &'static [u8])> {
    let all = infer_demo::FILES.iter().copied();
    all.filter(|(name, _)| !name.ends_with(".safetensors")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_vocabulary_matches_its_configuration() {
        let (_, config) = infer_demo::FILES.iter().find(|(name, _)| *name == "config.json").unwrap();
        let config: serde_json::Value = serde_json::from_slice(config).unwrap();
        assert_eq!(config["vocab_size"], DEMO_VOCAB);
    }

    #[test]
    fn corpora_have_an_adapter_that_can_be_loaded() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/adapter");
        let bytes = std::fs::read(corpus.join("two.adapter")).unwrap();
        assert_eq!(check_adapter(&bytes), Ok(()));
    }

    #[test]
    fn corpora_have_traces_that_are_replayed_to_their_end() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus");
        let file = |name: &str| std::fs::read(corpus.join(name)).unwrap();
        let traces = [
            ("short.csv", Format::Azure, 4),
            ("short.jsonl", Format::Mooncake, 3),
            ("chats.jsonl", Format::Bailian, 5),
            ("sessions.csv", Format::BurstGpt, 4),
        ];
        for (name, format, requests) in traces {
            assert_eq!(replay_trace(format, &file(&format!("trace/{name}"))), requests, "{name}");
        }
        for closed_loop in [false, true] {
            assert_eq!(replay_recording(&file("recording/linked.jsonl"), closed_loop), 3);
        }
    }
}
