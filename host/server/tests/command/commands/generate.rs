//! `infer generate`: the tokens of a host, and what it refuses before weights are read.

use std::process::Output;

use serde_json::{Value, json};

use super::serving;
use crate::process::{Home, complaint};

fn generate(home: &Home, arguments: &[&str]) -> Output {
    let usual = ["generate", "--threads", "1", "--prompt", "What is a prefix cache?", "--max-tokens", "24"];
    home.command("", &[&usual, arguments].concat()).output().expect("sh starts")
}

/// The same request as arguments and as JSON fields samples the same tokens.
#[test]
fn generate_samples_the_same_tokens_as_a_host() {
    let home = Home::new();
    let host = serving(&home);
    // At this temperature even the demo model, which is very certain, gives another output each time.
    let cases: [(&[&str], Value); 6] = [
        (&["--temperature", "0"], json!({"temperature": 0})),
        (&["--temperature", "0", "--stop", "keys"], json!({"temperature": 0, "stop": ["keys"]})),
        (
            &["--temperature", "0", "--repetition-penalty", "20"],
            json!({"temperature": 0, "repetition_penalty": 20}),
        ),
        (&["--temperature", "9", "--seed", "7"], json!({"temperature": 9, "seed": 7})),
        (
            &["--temperature", "9", "--seed", "7", "--top-p", "0.6", "--ignore-eos"],
            json!({"temperature": 9, "seed": 7, "top_p": 0.6, "ignore_eos": true}),
        ),
        (
            &["--temperature", "9", "--seed", "7", "--top-k", "3"],
            json!({"temperature": 9, "seed": 7, "top_k": 3}),
        ),
    ];
    let mut texts = Vec::new();
    for (arguments, fields) in &cases {
        let output = generate(&home, &[arguments, &["--json"][..]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", complaint(&output));
        let generated: Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut body = json!({"model": "demo", "prompt": "What is a prefix cache?", "max_tokens": 24,
                              "stream": false});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let served = host.completes(&body.to_string());
        let choice = &served["choices"][0];
        assert_eq!(
            (&generated["text"], &generated["finish_reason"], &generated["completion_tokens"]),
            (&choice["text"], &choice["finish_reason"], &served["usage"]["completion_tokens"]),
            "{arguments:?}: {generated}; {served}"
        );
        assert_eq!(generated["prompt_tokens"], served["usage"]["prompt_tokens"]);
        texts.push(choice["text"].as_str().unwrap().to_owned());
    }
    let distinct: std::collections::BTreeSet<&String> = texts.iter().collect();
    assert_eq!(distinct.len(), cases.len(), "the arguments of every case have an effect: {texts:?}");
    host.ends();

    let plain = generate(&home, &["--temperature", "0"]);
    assert_eq!(String::from_utf8(plain.stdout.clone()).unwrap(), format!("{}\n", texts[0]));
    assert!(complaint(&plain).contains(" prompt tokens, "), "the timing is on stderr");
    let words = ["generate", "--threads", "1", "--temperature", "0", "--max-tokens", "24"];
    let words = [&words[..], &["What is a", "prefix cache?"]].concat();
    let words = home.command("", &words).output().unwrap();
    assert_eq!(words.stdout, plain.stdout, "the prompt may be several arguments: {}", complaint(&words));
}

#[test]
fn invalid_generation_arguments_are_named() {
    let home = Home::new();
    let cases: [(&[&str], i32, &str); 5] = [
        (&["--stop", ""], 2, "--stop"),
        (&["--max-tokens", "0"], 2, "--max-tokens"),
        (&["--temperature=-1"], 2, "--temperature"),
        (&["--max-seq-len", "16"], 2, "--max-tokens: "),
        (&["--model", "nowhere"], 2, "nowhere"),
    ];
    for (arguments, code, words) in cases {
        let output = generate(&home, arguments);
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: `{words}` isn't in: {said}");
    }
    let prompts: [&[&str]; 4] = [&[], &["--prompt", ""], &[""], &["--prompt", "a", "b"]];
    for prompt in prompts {
        let output = home.command("", &[&["generate"], prompt].concat()).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains("PROMPT"), "{prompt:?}: {said}");
    }
}

#[test]
fn impossible_sizes_are_refused_before_weights_are_read() {
    let home = Home::new();
    let checkpoint = tempfile::tempdir().unwrap();
    for (name, bytes) in infer_demo::FILES.iter().filter(|(name, _)| !name.ends_with(".safetensors")) {
        std::fs::write(checkpoint.path().join(name), bytes).unwrap();
    }
    let directory = checkpoint.path().to_str().unwrap();
    for (flag, value, code) in [
        ("--max-seq-len", "9999999", 2),
        ("--kv-memory", "4KiB", 2),
        // What is available depends on the moment.
        ("--kv-memory", "20000GiB", 1),
        ("--max-prefill-memory", "1KiB", 2),
    ] {
        let words = [&format!("error: {flag}")[..]];
        home.fails(code, "", &["--model", directory, "--device", "cpu", flag, value], &words);
    }
    let output = generate(&home, &["--model", directory]);
    assert!(complaint(&output).contains(".safetensors"), "the weights are missing: {}", complaint(&output));
}

#[test]
fn names_from_a_file_control_no_terminal() {
    let home = Home::new();
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let file = [
        b"GGUF".to_vec(),
        3_u32.to_le_bytes().to_vec(),
        // One tensor, one key.
        1_u64.to_le_bytes().to_vec(),
        1_u64.to_le_bytes().to_vec(),
        text("general.architecture"),
        8_u32.to_le_bytes().to_vec(),
        text("llama"),
        text("\u{1b}]0;evil\u{7}\u{9b}31m"),
        // A row of 32 values, of a type that there isn't, at the beginning.
        1_u32.to_le_bytes().to_vec(),
        32_u64.to_le_bytes().to_vec(),
        99_u32.to_le_bytes().to_vec(),
        0_u64.to_le_bytes().to_vec(),
    ];
    std::fs::write(home.path("evil.gguf"), file.concat()).unwrap();
    let said = complaint(&generate(&home, &["--model", "./evil.gguf"]));
    assert!(said.contains("tensor \\u001b]0;evil\\u0007\\u009b31m is stored as"), "{said}");
}
