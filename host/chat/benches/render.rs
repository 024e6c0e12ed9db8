//! What the sandbox costs: one render beside the same renderer compiled natively, which is what the host would run
//! without it; and what it costs to have one at all. Qwen3's template, the largest of the golden checkpoints.
//! `cargo bench -p infer-chat`

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;

use common::{native, source, variables};
use criterion::{Criterion, criterion_group, criterion_main};
use infer_chat::{ChatTemplate, Sandbox};
use infer_model::Source;
use serde_json::{Map, Value as Json, json};

/// A conversation, as the server hands it over.
struct Case {
    name: &'static str,
    messages: Json,
    variables: Map<String, Json>,
}

fn cases() -> Vec<Case> {
    let case = |name, messages, variables| Case { name, messages, variables };
    vec![
        case("a question", talk(1, 60), Map::new()),
        case("with tools", talk(1, 60), variables(&json!({"tools": tools()}))),
        case("200 messages", talk(200, 400), Map::new()),
        case("4 MiB", talk(200, 20_971), Map::new()),
    ]
}

/// So many messages of so many letters.
fn talk(messages: usize, letters: usize) -> Json {
    let text = "What is a prefix cache, and what is it good for? ".repeat(letters / 49 + 1);
    let role = |at: usize| if at.is_multiple_of(2) { "user" } else { "assistant" };
    (0..messages).map(|at| json!({"role": role(at), "content": text[..letters]})).collect()
}

fn tools() -> Json {
    let tool = |name: &str| {
        json!({"type": "function", "function": {
            "name": name,
            "description": "Tells what is asked for, for one place and one day.",
            "parameters": {
                "type": "object",
                "required": ["place"],
                "properties": {
                    "place": {"type": "string", "description": "A town, a country"},
                    "day": {"type": "string", "enum": ["today", "tomorrow"]},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 50},
                },
            },
        }})
    };
    ["weather", "time", "population", "news", "routes"].map(tool).into_iter().collect()
}

fn renders(criterion: &mut Criterion) {
    let sandbox = Sandbox::new(None).expect("it compiles");
    let template = ChatTemplate::load(&sandbox, &source("qwen3-bf16")).expect("it loads");
    let template = template.expect("it has a template");
    let oracle = native::Oracle::load(&source("qwen3-bf16"));
    for Case { name, messages, variables } in cases() {
        let mut group = criterion.benchmark_group(name);
        let sandboxed = || template.render_with(&messages, true, &variables).expect("it renders");
        let natively = || oracle.render(&messages, true, &variables).expect("it renders");
        assert_eq!(sandboxed(), natively(), "{name}");
        group.bench_function("sandboxed", |bencher| bencher.iter(|| black_box(sandboxed())));
        group.bench_function("native", |bencher| bencher.iter(|| black_box(natively())));
        group.finish();
    }
}

fn setups(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("cache");
    let sandbox = Sandbox::new(Some(&cache)).expect("it compiles");
    let mut group = criterion.benchmark_group("set up");
    group.sample_size(10);
    group.bench_function("compile", |bencher| bencher.iter(|| Sandbox::new(None).expect("it compiles")));
    group.bench_function("from the cache", |bencher| {
        bencher.iter(|| Sandbox::new(Some(&cache)).expect("it is kept"));
    });
    let source: Source<'static> = source("qwen3-bf16");
    group.bench_function("an instance with its template", |bencher| {
        bencher.iter(|| ChatTemplate::load(&sandbox, &source).expect("it loads"));
    });
    group.finish();
}

criterion_group!(benches, renders, setups);
criterion_main!(benches);
