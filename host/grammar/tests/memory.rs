//! What a grammar takes natively, beside what it took in the sandbox. One test, because the process is measured.

use infer_grammar::{Rehearsal, STACK_BYTES};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use serde_json::{Value, json};

/// The most that this process has held since `forget_peak`, in bytes.
fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is there");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("it is this process");
}

#[test]
fn native_compilation_takes_at_most_three_times_the_memory_of_the_sandbox() {
    let names = |count: usize| (0..count).map(|n| format!("n{n}")).collect::<Vec<_>>();
    let field = json!({"anyOf": [{"type": "string", "maxLength": 99}, {"type": "null"}]});
    let properties: serde_json::Map<String, Value> =
        names(300).into_iter().map(|name| (name, field.clone())).collect();
    let record = json!({"type": "object", "properties": properties, "required": names(300)});
    let rehearsal = Rehearsal::new(None).expect("the module compiles");
    let limits = ParserLimits::default();
    for schema in [json!({"anyOf": vec![record; 20]}), json!({"type": "string", "enum": names(20_000)})] {
        let grammar = TopLevelGrammar::from_json_schema(schema);
        let request = serde_json::to_vec(&(&limits, &grammar)).unwrap();
        let work = || {
            let sandboxed = rehearsal.check(&limits, &grammar).expect("it is fit");
            forget_peak();
            let before = peak_bytes();
            infer_grammar_guest::compile(&request).expect("it is fit");
            (sandboxed, peak_bytes() - before)
        };
        let (sandboxed, native) = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, work).unwrap().join().unwrap()
        });
        assert!(native < 3 * sandboxed + (8 << 20), "{sandboxed} bytes became {native}");
        println!("{} KiB in the sandbox, {} KiB natively", sandboxed >> 10, native >> 10);
    }
}
