//! The commands that people type, as processes: those of an operator, who finds the host's token by themselves, and
//! `infer generate`, which draws what a host draws.

mod common;

use std::process::Output;

use common::process::{Home, Host, complaint};
use serde_json::{Value, json};

/// Somebody at a terminal beside a host.
struct Operator<'a> {
    home: &'a Home,
    host: &'a Host,
}

impl Operator<'_> {
    fn types(&self, arguments: &[&str]) -> Output {
        let mut command = self.home.command("", &["policy"]);
        command.args(arguments).env("INFER_ADMIN", &self.host.admin).output().expect("sh starts")
    }

    /// What a command that succeeds prints.
    fn sees(&self, arguments: &[&str]) -> String {
        let output = self.types(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", complaint(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn sees_json(&self, arguments: &[&str]) -> Value {
        let printed = self.sees(&[arguments, &["--json"]].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {printed}"))
    }

    /// A command's output has all of these.
    fn sees_that(&self, arguments: &[&str], words: &[&str]) {
        let printed = self.sees(arguments);
        for word in words {
            assert!(printed.contains(word), "{arguments:?}: `{word}` isn't in: {printed}");
        }
    }

    fn in_force(&self, kind: &str) -> Value {
        self.sees_json(&["describe", kind])["name"].clone()
    }
}

/// A host whose compiled policies stay for the next test: all of them run the same.
fn serving(home: &Home) -> Host {
    let kept = concat!("export XDG_CACHE_HOME='", env!("CARGO_TARGET_TMPDIR"), "/commands-cache'");
    Host::start(home.serve(kept, &[]))
}

#[test]
fn policies_are_swapped_and_brought_back_by_commands_that_find_the_token_by_themselves() {
    let home = Home::new();
    let host = serving(&home);
    let operator = Operator { home: &home, host: &host };
    let in_force =
        ["in force:\n  scheduler     continuous ", "  admission     memory-aware ", "  prefix-cache  lru "];
    operator.sees_that(&["list"], &in_force);
    operator.sees_that(&["list"], &["can be swapped in:\n", "  prefix-cache  s3-fifo "]);
    operator.sees_that(&["describe", "prefix-cache"], &["lru 0.1.0 (prefix-cache, live)", "previous none"]);
    operator.sees_that(&["describe", "srpt"], &["srpt 0.1.0 (scheduler)", "patience_ms"]);

    let swapped = "scheduler: continuous -> static-batch before step ";
    operator
        .sees_that(&["swap", "scheduler", "static-batch", "--config", r#"{"batch_size": 2}"#], &[swapped]);
    let component = infer_bundle::find("scheduler", "srpt").unwrap().component;
    std::fs::write(home.path("mine.wasm"), component).unwrap();
    std::fs::write(home.path("mine.json"), r#"{"patience_ms": 321}"#).unwrap();
    let from_files = ["swap", "scheduler", "mine.wasm", "--config", "mine.json"];
    assert_eq!(operator.sees_json(&from_files)["to"], "srpt");
    assert_eq!(operator.sees_json(&["describe", "scheduler"])["config"]["patience_ms"], 321);
    operator.sees_that(&["rollback", "scheduler"], &["scheduler: srpt -> static-batch before step "]);
    assert_eq!(operator.sees_json(&["describe", "scheduler"])["config"]["batch_size"], 2);

    let history = operator.sees(&["history", "scheduler"]);
    let changes: Vec<&str> =
        history.lines().filter_map(|line| line.split_once(" -> ")).map(|l| l.1).collect();
    let names: Vec<&str> = changes.iter().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["continuous", "static-batch", "srpt", "static-batch"], "{history}");
    host.serves();
    host.ends();
}

#[test]
fn policies_are_tried_beside_the_live_one_and_on_trial_by_commands() {
    let home = Home::new();
    let host = serving(&home);
    let operator = Operator { home: &home, host: &host };
    let tried = "scheduler: continuous beside it in shadow: fair before step ";
    operator.sees_that(&["swap", "scheduler", "fair", "--mode", "shadow"], &[tried]);
    host.serves();
    operator.sees_that(&["list"], &["    shadow: fair 0.1.0 agrees in "]);
    operator.sees_that(&["shadow", "scheduler"], &["fair 0.1.0 agrees in ", "(watching)", "  shadow  p50 "]);
    let watched = operator.sees_json(&["shadow", "scheduler"]);
    assert!(watched["questions"].as_u64() > Some(0), "{watched}");
    operator.sees_that(&["promote", "scheduler"], &["scheduler: continuous -> fair before step "]);

    operator.sees(&["swap", "scheduler", "static-batch", "--mode", "shadow"]);
    operator.sees_that(&["shadow", "scheduler", "--stop"], &["static-batch 0.1.0 agrees in "]);
    assert!(!operator.sees(&["list"]).contains("shadow:"));
    assert_eq!(operator.in_force("scheduler"), "fair");

    let canary = ["swap", "prefix-cache", "s3-fifo", "--mode", "canary", "--window", "300"];
    operator.sees_that(&canary, &["prefix-cache: lru -> s3-fifo before step ", "it is watched"]);
    operator.sees_that(&["list"], &["canary: s3-fifo instead of lru: watching", " of 300.0 s "]);
    operator.sees(&["promote", "prefix-cache"]);
    assert_eq!(operator.in_force("prefix-cache"), "s3-fifo");
    let history = operator.sees_json(&["history", "prefix-cache"]);
    let modes: Vec<&str> = history.as_array().unwrap().iter().map(|e| e["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["start", "canary", "stays"], "{history}");
    host.ends();
}

#[test]
fn a_command_that_can_not_be_carried_out_says_why() {
    let home = Home::new();
    let host = serving(&home);
    let operator = Operator { home: &home, host: &host };
    std::fs::write(home.path("mine.wasm"), infer_bundle::find("scheduler", "srpt").unwrap().component)
        .unwrap();
    let long = &*format!(r#"{{"{}": 1}}"#, "k".repeat(9_000));
    let cases: [(&[&str], i32, &str); 15] = [
        (&["describe", "nothing"], 2, "policies are "),
        (&["swap", "scheduler", "nothing"], 1, "there is no scheduler policy `nothing`"),
        (&["swap", "scheduler", "nothing.wasm"], 2, "nothing.wasm"),
        (&["swap", "admission", "memory-aware,./nothing.wasm"], 2, "a list takes names"),
        (
            &["swap", "scheduler", "mine.wasm", "--config", long],
            2,
            "beside a component it has at most 8192 bytes",
        ),
        (&["swap", "scheduler", "fair", "--of", "srpt"], 1, "`continuous` is in the scheduler slot by now"),
        (&["rollback", "scheduler", "--of", "srpt"], 1, "`continuous` is in the scheduler slot by now"),
        (&["swap", "scheduler", "fair", "--config", "nothing.json"], 2, "--config: nothing.json"),
        (&["swap", "scheduler", "fair", "--config", "{"], 2, "--config: not valid JSON"),
        (&["swap", "scheduler", "fair", "--mode", "shadow", "--window", "5"], 2, "--mode canary"),
        (&["rollback", "admission"], 1, "previous"),
        (&["promote", "admission"], 1, "neither"),
        (&["shadow", "admission"], 1, "shadow"),
        (&["shadow", "admission", "--stop"], 1, "shadow"),
        (&["list", "--admin", "ftp://127.0.0.1"], 2, "--admin"),
    ];
    for (arguments, code, words) in cases {
        let output = operator.types(arguments);
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: `{words}` isn't in: {said}");
    }
    assert_eq!(operator.in_force("scheduler"), "continuous");

    let mut wrong = home.command("", &["policy", "list", "--admin", &host.admin]);
    let output = wrong.env("INFER_ADMIN_TOKEN", "another-token").output().unwrap();
    let said = complaint(&output);
    assert!(output.status.code() == Some(1) && said.contains("token"), "{said}");
    let elsewhere = Home::new();
    let output = Operator { home: &elsewhere, host: &host }.types(&["list"]);
    let (said, folder) = (complaint(&output), elsewhere.path("run/infer"));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no admin token") && said.contains(folder.to_str().unwrap()), "{said}");
    host.ends();
}

/// Whether a fault would come again decides the exit code, so that a script can ask for a mended policy.
#[test]
fn a_replay_fails_where_the_policy_fails_now() {
    let home = Home::new();
    let lifecycle = json!("lifecycle");
    let evict = json!({"evict": {"now": 1, "need": 1}});
    let cases = [
        // No question for this slot's policy.
        (("scheduler", "builtin-fcfs"), "setup", &evict, 1, "it fails as it did"),
        (("scheduler", "builtin-fcfs"), "trap", &evict, 1, "it fails, but not as it did"),
        (("scheduler", "builtin-fcfs"), "trap", &lifecycle, 0, "it does not fail any more"),
        (("scheduler", "builtin-fcfs"), "step-budget", &lifecycle, 0, "can't show"),
        (("scheduler", "builtin-fcfs"), "starvation", &lifecycle, 0, "can't show"),
        // The pool of which the policy knew is not in the file.
        (("prefix-cache", "builtin-keep"), "trap", &evict, 0, "can't show"),
    ];
    for ((slot, name), kind, question, code, words) in cases {
        let fault = json!({
            "format": 1, "slot": slot, "step": 1, "at_us": 1, "shadow": false, "removed": false, "state": "",
            "policy": {"name": name, "version": "0.1.0",
                "members": [{"name": name, "version": "0.1.0", "sha256": "", "config": {}}]},
            "fault": {"kind": kind, "message": "it failed"}, "question": question,
        });
        std::fs::write(home.path("fault.json"), fault.to_string()).unwrap();
        let replay = |more: &[&str]| {
            let mut command = home.command("", &["policy", "replay", "fault.json"]);
            command.args(more).output().expect("sh starts")
        };
        let output = replay(&[]);
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{slot} {kind}: {said}");
        assert!(said.contains(words), "{slot} {kind}: `{words}` isn't in: {said}");
        let output = replay(&["--json"]);
        assert_eq!(output.status.code(), Some(code), "{slot} {kind}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["fails"], code == 1, "{slot} {kind}: {answer}");
    }
}

fn generate(home: &Home, arguments: &[&str]) -> Output {
    let usual = ["generate", "--threads", "1", "--prompt", "What is a prefix cache?", "--max-tokens", "24"];
    home.command("", &[&usual, arguments].concat()).output().expect("sh starts")
}

/// The same request as arguments and as fields draws the same tokens.
#[test]
fn generating_draws_what_a_host_draws() {
    let home = Home::new();
    let host = serving(&home);
    // Hot enough that the demo model, which is sure of itself, says something else each time.
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
    assert_eq!(distinct.len(), cases.len(), "every case shows that its arguments count: {texts:?}");
    host.ends();

    let plain = generate(&home, &["--temperature", "0"]);
    assert_eq!(String::from_utf8(plain.stdout.clone()).unwrap(), format!("{}\n", texts[0]));
    assert!(complaint(&plain).contains(" prompt tokens, "), "its timing is beside its text");
}

#[test]
fn what_can_not_be_generated_is_named() {
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
    let output = home.command("", &["generate", "--prompt", ""]).output().unwrap();
    assert!(output.status.code() == Some(2) && complaint(&output).contains("--prompt"));
}

#[test]
fn sizes_that_no_weights_could_make_right_are_refused_before_any_are_read() {
    let home = Home::new();
    let checkpoint = tempfile::tempdir().unwrap();
    for (name, bytes) in infer_demo::FILES.iter().filter(|(name, _)| !name.ends_with(".safetensors")) {
        std::fs::write(checkpoint.path().join(name), bytes).unwrap();
    }
    let directory = checkpoint.path().to_str().unwrap();
    for (flag, value) in
        [("--max-seq-len", "9999999"), ("--kv-memory", "4KiB"), ("--max-prefill-memory", "1KiB")]
    {
        let output = generate(&home, &["--model", directory, flag, value]);
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains(flag), "{flag}: {said}");
    }
    let output = generate(&home, &["--model", directory]);
    assert!(complaint(&output).contains(".safetensors"), "its weights aren't there: {}", complaint(&output));
}
