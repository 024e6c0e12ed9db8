//! What trying a grammar out in the sandbox costs, beside compiling it natively.
//! `cargo bench -p infer-grammar`

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use infer_grammar::Rehearsal;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use serde_json::json;

fn rehearse(criterion: &mut Criterion) {
    let field = json!({"anyOf": [{"type": "string", "maxLength": 99}, {"type": "null"}]});
    let properties = |count: usize| -> serde_json::Map<_, _> {
        (0..count).map(|n| (format!("field_{n}"), field.clone())).collect()
    };
    let record = |count| {
        json!({"type": "object", "properties": properties(count), "additionalProperties": false,
            "required": properties(count).keys().collect::<Vec<_>>()})
    };
    let rehearsal = Rehearsal::new(None).expect("it compiles");
    let limits = ParserLimits::default();
    let mut group = criterion.benchmark_group("grammar");
    for (name, grammar) in [
        ("regex", TopLevelGrammar::from_regex(r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]")),
        ("10 fields", TopLevelGrammar::from_json_schema(record(10))),
        ("300 fields", TopLevelGrammar::from_json_schema(record(300))),
    ] {
        group.bench_function(format!("{name}, sandbox"), |bencher| {
            bencher.iter(|| rehearsal.check(black_box(&limits), &grammar).expect("it is fit"));
        });
        let request = serde_json::to_vec(&(&limits, &grammar)).expect("JSON");
        group.bench_function(format!("{name}, native"), |bencher| {
            bencher.iter(|| infer_grammar_guest::compile(black_box(&request)).expect("it is fit"));
        });
    }
    group.finish();
}

criterion_group!(benches, rehearse);
criterion_main!(benches);
