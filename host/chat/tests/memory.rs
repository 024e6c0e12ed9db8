//! What the host's memory does while templates want all of it, and while an honest one gets what it needs. One test,
//! for the process is measured.

mod common;

use common::{sandbox, source, template};
use infer_chat::ChatTemplate;
use serde_json::{Value as Json, json};

/// The most that this process has held since `forget_peak`, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("it is there");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
}

fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").expect("it is this process");
}

/// Conversations of so many bytes: many short messages, or a few long ones.
fn talk(messages: usize, bytes: usize) -> Json {
    let content = "Ein prefix cache keeps blocks. ".repeat(bytes / messages / 31 + 1);
    let role = |at: usize| if at.is_multiple_of(2) { "user" } else { "assistant" };
    (0..messages).map(|at| json!({"role": role(at), "content": content[..bytes / messages]})).collect()
}

#[test]
fn the_host_grows_by_a_renderers_limit_at_most_and_that_is_enough_for_long_conversations() {
    sandbox();
    forget_peak();
    let before = peak_mib();
    for step in ["ns.x ~ ns.x", "(ns.x ~ ns.x) | trim", "[ns.x | join('0123'), ns.x | join('4567')]"] {
        let text = format!(
            "{{% set ns = namespace(x='0123456789abcdef') %}}\
             {{% for turn in range(40) %}}{{% set ns.x = {step} %}}{{% endfor %}}{{{{ ns.x | length }}}}"
        );
        let template = template(&text).expect("it is sound");
        for _ in 0..10 {
            let error = template.render(&json!([]), true).expect_err("it wants everything");
            assert!(error.message.contains("more than 64 MiB"), "{error}");
        }
    }
    let hostile = peak_mib();
    assert!(hostile < before + 80, "{before} MiB became {hostile} MiB");

    for name in ["llama-bf16", "qwen3-bf16", "gemma3-bf16"] {
        let template = ChatTemplate::load(sandbox(), &source(name)).expect("it loads").expect("it has one");
        // As many messages and bytes as the server takes, and as many bytes as a prompt may have.
        for (messages, bytes) in [(1, 4 << 20), (4_095, 4 << 20), (201, 8 << 20), (1, 15 << 20)] {
            let prompt = template.render(&talk(messages, bytes), true);
            let prompt = prompt.unwrap_or_else(|error| panic!("{name}, {bytes} bytes: {error}"));
            assert!(prompt.len() > bytes / 2, "{name}: {} bytes of {bytes}", prompt.len());
        }
    }
}
