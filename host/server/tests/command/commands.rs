//! Commands as processes: those of an operator, which find the host's token without being given it, and
//! `infer generate`, which samples the same tokens as a host.

use std::process::Output;

use crate::process::{Home, Host, complaint};
use infer_server::tenants::KeyDigest;
use serde_json::{Value, json};

/// An operator at a terminal on the host's machine.
struct Operator<'a> {
    home: &'a Home,
    host: &'a Host,
}

impl Operator<'_> {
    fn types(&self, arguments: &[&str]) -> Output {
        self.types_to("policy", arguments)
    }

    fn types_to(&self, group: &str, arguments: &[&str]) -> Output {
        let mut command = self.home.command("", &[group]);
        command.args(arguments).env("INFER_ADMIN", &self.host.admin).output().expect("sh starts")
    }

    /// The output of a command that must succeed.
    fn sees(&self, arguments: &[&str]) -> String {
        let output = self.types(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", complaint(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn sees_json(&self, arguments: &[&str]) -> Value {
        let printed = self.sees(&[arguments, &["--json"]].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {printed}"))
    }

    /// Asserts that a command's output contains all of these.
    fn sees_that(&self, arguments: &[&str], words: &[&str]) {
        let printed = self.sees(arguments);
        for word in words {
            assert!(printed.contains(word), "{arguments:?}: `{word}` isn't in: {printed}");
        }
    }

    fn live(&self, kind: &str) -> Value {
        self.sees_json(&["describe", kind])["name"].clone()
    }
}

/// Keeps compiled policies for the next test, because all tests use the same ones.
pub const KEPT: &str = concat!("export XDG_CACHE_HOME='", env!("CARGO_TARGET_TMPDIR"), "/commands-cache'");

/// A host in the usual configuration.
pub fn serving(home: &Home) -> Host {
    Host::start(home.serve(KEPT, &[]))
}

#[test]
fn policies_are_swapped_and_rolled_back_by_commands_that_find_the_token() {
    let home = Home::new();
    let host = serving(&home);
    let operator = Operator { home: &home, host: &host };
    let live =
        ["live:\n  scheduler     continuous ", "  admission     memory-aware ", "  prefix-cache  lru "];
    operator.sees_that(&["list"], &live);
    assert!(!operator.sees(&["list"]).contains("s3-fifo"), "only what is live");
    operator.sees_that(&["list", "--all"], &live);
    operator.sees_that(&["list", "--all"], &["can be swapped in:\n", "  prefix-cache  s3-fifo "]);
    operator.sees_that(&["describe", "prefix-cache"], &["lru 0.1.0 (prefix-cache, live)", "previous none"]);
    operator.sees_that(&["describe", "srpt"], &["srpt 0.1.0 (scheduler)", "patience_ms"]);

    let swapped = "scheduler: continuous -> static-batch before step ";
    let configured = ["swap", "scheduler", "static-batch", "--config", r#"{"batch_size": 2}"#];
    operator.sees_that(&configured, &[swapped]);
    operator.sees_that(&configured, &["scheduler: static-batch (", ") is live already; nothing changed"]);
    let component = infer_bundle::find("scheduler", "srpt").unwrap().component;
    std::fs::write(home.path("mine.wasm"), component).unwrap();
    std::fs::write(home.path("mine.json"), r#"{"patience_ms": 321}"#).unwrap();
    let from_files = ["swap", "scheduler", "mine.wasm", "--config", "mine.json"];
    assert_eq!(operator.sees_json(&from_files)["to"], "srpt");
    assert_eq!(operator.sees_json(&["describe", "scheduler"])["config"]["patience_ms"], 321);
    operator.sees_that(
        &["rollback", "scheduler"],
        &["scheduler: srpt -> static-batch before step ", ", config "],
    );
    assert_eq!(operator.sees_json(&["describe", "scheduler"])["config"]["batch_size"], 2);

    let history = operator.sees(&["history", "scheduler"]);
    let changes: Vec<&str> =
        history.lines().filter_map(|line| line.split_once(" -> ")).map(|l| l.1).collect();
    let names: Vec<&str> = changes.iter().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["continuous", "static-batch", "srpt", "static-batch"], "{history}");
    assert_eq!(history.matches(", config ").count(), 3, "all but the first are configured: {history}");
    host.serves();
    host.ends();
}

#[test]
fn requests_queue_and_cache_are_operated_by_commands() {
    let home = Home::new();
    let host = Host::start(home.serve(KEPT, &["--max-batch-size", "1"]));
    let operator = Operator { home: &home, host: &host };
    let sees = |arguments: &[&str]| {
        let output = operator.types_to("admin", arguments);
        assert!(output.status.success(), "{arguments:?}: {}", complaint(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let requests = || -> Vec<Value> { serde_json::from_str(&sees(&["requests", "--json"])).unwrap() };
    assert_eq!(sees(&["requests"]), "no request is live\n");
    assert_eq!(sees(&["tenants"]), "no tenant has sent a request\n");
    let until =
        |condition: &dyn Fn() -> bool| assert!((0..200).any(|_| condition()), "{}", sees(&["requests"]));
    let endless = r#"{"model": "demo", "prompt": "x", "ignore_eos": true, "max_tokens": 1500}"#;
    let _streams = [host.ask(endless), host.ask(endless)];
    until(&|| requests().len() == 2);
    let listed = sees(&["requests"]);
    let mut lines = listed.lines();
    assert!(lines.next().unwrap().starts_with("id  state"), "{listed}");
    assert!(listed.contains("  default  ") && listed.contains("/1500  "), "{listed}");
    assert_eq!(sees(&["clear-queue"]), "failed 1 waiting requests\n");
    let id = requests()[0]["id"].to_string();
    assert_eq!(sees(&["cancel", &id]), format!("cancelled {id}\n"));
    assert_eq!(operator.types_to("admin", &["cancel", &id]).status.code(), Some(1));
    assert_eq!(operator.types_to("admin", &["cancel", "a/b"]).status.code(), Some(2));
    host.serves();
    until(&|| requests().is_empty());
    let tenants = sees(&["tenants"]);
    let row: Vec<&str> = tenants.lines().nth(1).unwrap().split_whitespace().take(5).collect();
    assert_eq!(row, ["default", "1", "0", "0", "0"], "weight, running, waiting, held: {tenants}");
    let rows: Value = serde_json::from_str(&sees(&["tenants", "--json"])).unwrap();
    assert_eq!((&rows[0]["name"], &rows[0]["failed"]), (&"default".into(), &1.into()), "the queue's");
    let state: Value = serde_json::from_str(&sees(&["state"])).unwrap();
    let dropped = format!("dropped {} cached blocks; 0 are in use\n", state["memory"]["cached"]);
    assert_eq!(sees(&["empty-cache"]), dropped);
    assert_eq!(sees(&["reload"]), "there is nothing to reload\n");
    assert_eq!(sees(&["drain"]), "the host refuses new requests; 0 are live\n");
    host.ends();
}

#[test]
fn reload_by_command_says_that_it_changed_nothing_where_an_operator_chose() {
    let home = Home::new();
    let write = |text: &str| std::fs::write(home.path("policies.json"), text).unwrap();
    write("{}");
    let host = Host::start(home.serve(KEPT, &["--scheduler", "srpt", "--policy-config", "policies.json"]));
    let operator = Operator { home: &home, host: &host };
    operator.sees(&["swap", "scheduler", "fair"]);
    write(r#"{"scheduler": {"patience_ms": 321}}"#);
    let output = operator.types_to("admin", &["reload"]);
    assert!(output.status.success(), "{}", complaint(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed, "scheduler: nothing changed, because an operator swapped in `fair`\n");
}

#[test]
fn reload_by_command_names_what_stays_as_it_was_and_why() {
    let home = Home::new();
    let write = |name: &str, text: &str| std::fs::write(home.path(name), text).unwrap();
    let digest = infer_server::tenants::KeyDigest::of("one");
    write("tenants.toml", &format!("[tenants.a]\nkeys = [\"{digest}\"]\n"));
    write("policies.json", "{}");
    let files = ["--api-keys", "tenants.toml", "--policy-config", "policies.json"];
    let host = Host::start(home.serve(KEPT, &files));
    let operator = Operator { home: &home, host: &host };
    let reloads = |arguments: &[&str]| {
        let output = operator.types_to("admin", &[&["reload"], arguments].concat());
        let said = complaint(&output);
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), said)
    };
    assert_eq!(reloads(&[]), (Some(0), "reloaded api-keys\n".to_owned(), String::new()));

    write("policies.json", r#"{"scheduler": {"nonsense": 1}}"#);
    let (code, printed, said) = reloads(&[]);
    assert_eq!((code, &*printed), (Some(1), "reloaded api-keys\n"), "{said}");
    assert!(said.starts_with("error: can't reload scheduler (the old one stays in use): "), "{said}");
    assert!(said.contains("nonsense"), "{said}");
    let (code, printed, said) = reloads(&["--json"]);
    let parts: Value = serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
    assert_eq!((code, parts["reloaded"].as_array().map(Vec::len)), (Some(1), Some(2)), "{parts}");
    assert!(said.contains("can't reload scheduler"), "{said}");

    write("tenants.toml", "");
    let (code, printed, said) = reloads(&[]);
    assert_eq!((code, &*printed), (Some(1), ""), "nothing was reloaded: {said}");
    let keys = said.lines().next().unwrap_or_default();
    assert!(
        keys.starts_with("error: can't reload api-keys (the old ones stay in use): ")
            && keys.contains("tenants.toml"),
        "{said}"
    );
    assert!(said.contains("\ncan't reload scheduler "), "each has a line of its own: {said}");
    host.ends();
}

#[test]
fn policies_run_as_shadow_and_canary_by_commands() {
    let home = Home::new();
    let host = serving(&home);
    let operator = Operator { home: &home, host: &host };
    let tried = "scheduler: fair in shadow beside continuous before step ";
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
    assert_eq!(operator.live("scheduler"), "fair");

    let canary = ["swap", "prefix-cache", "s3-fifo", "--mode", "canary", "--window", "300"];
    operator.sees_that(
        &canary,
        &["prefix-cache: lru -> s3-fifo before step ", "the canary is being watched: only faults"],
    );
    operator.sees_that(&["list"], &["canary: s3-fifo instead of lru: watching", " of 300.0 s "]);
    operator.sees(&["promote", "prefix-cache"]);
    assert_eq!(operator.live("prefix-cache"), "s3-fifo");
    let history = operator.sees_json(&["history", "prefix-cache"]);
    let modes: Vec<&str> = history.as_array().unwrap().iter().map(|e| e["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["start", "canary", "stays"], "{history}");
    host.ends();
}

#[test]
fn failing_command_says_why() {
    let home = Home::new();
    let host = serving(&home);
    let operator = Operator { home: &home, host: &host };
    std::fs::write(home.path("mine.wasm"), infer_bundle::find("scheduler", "srpt").unwrap().component)
        .unwrap();
    let long = &*format!(r#"{{"{}": 1}}"#, "k".repeat(9_000));
    let cases: [(&[&str], i32, &str); 20] = [
        (&["describe", "nothing"], 2, "policies are "),
        (&["swap", "scheduler", "nothing"], 1, "there is no scheduler policy `nothing`"),
        (&["swap", "scheduler", "nothing.wasm"], 2, "nothing.wasm"),
        (&["swap", "admission", "memory-aware,./nothing.wasm"], 2, "a list takes names"),
        (
            &["swap", "scheduler", "mine.wasm", "--config", long],
            2,
            "too long beside a component, which allows 8192",
        ),
        (
            &["swap", "scheduler", "fair", "--of", "srpt"],
            1,
            "the scheduler slot now runs `continuous`, not `srpt`; refresh and retry",
        ),
        (
            &["rollback", "scheduler", "--of", "srpt"],
            1,
            "the scheduler slot now runs `continuous`, not `srpt`; refresh and retry",
        ),
        (&["swap", "scheduler", "fair", "--config", "nothing.json"], 2, "--config: nothing.json"),
        (&["swap", "scheduler", "fair", "--config", "{"], 2, "--config: not valid JSON"),
        (&["swap", "scheduler", "fair", "--config", r#"{"a": 1, "a": 2}"#], 2, "the key `a` occurs twice"),
        (&["swap", "scheduler", "fair", "--mode", "shadow", "--window", "5"], 2, "--mode canary"),
        (&["swap", "scheduler", "fair", "--window", "5"], 2, "--mode canary"),
        (&["swap", "scheduler", "fair", "--mode", "canary", "--window", "301"], 2, "--window <SECONDS>"),
        (&["swap", "scheduler", "fair", "--mode", "canary", "--window", "0.5"], 2, "seconds from 1 to 300"),
        (&["rollback", "admission"], 1, "previous"),
        (&["promote", "admission"], 1, "neither"),
        (&["shadow", "admission"], 1, "shadow"),
        (&["shadow", "admission", "--stop"], 1, "shadow"),
        (&["list", "--admin", "ftp://127.0.0.1"], 2, "--admin"),
        (&["list", "--admin", "https://127.0.0.1"], 2, "its URL begins with http://"),
    ];
    for (arguments, code, words) in cases {
        let output = operator.types(arguments);
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: `{words}` isn't in: {said}");
    }
    assert_eq!(operator.live("scheduler"), "continuous");

    let mut wrong = home.command("", &["policy", "list", "--admin", &host.admin]);
    let output = wrong.env("INFER_ADMIN_TOKEN", "another-token").output().unwrap();
    let said = complaint(&output);
    assert!(output.status.code() == Some(1) && said.contains("token"), "{said}");
    let elsewhere = Home::new();
    let output = Operator { home: &elsewhere, host: &host }.types(&["list"]);
    let (said, folder) = (complaint(&output), elsewhere.path("run/infer"));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no admin token") && said.contains(folder.to_str().unwrap()), "{said}");
    let admin = host.admin.clone();
    host.ends();
    for command in [&["list"][..], &["describe", "fair"]] {
        let arguments = [&["policy"], command, &["--admin", &admin]].concat();
        let output = elsewhere.command("", &arguments).output().unwrap();
        let said = complaint(&output);
        assert!(said.contains(" can't be reached: ") && said.contains("Connection refused"), "{said}");
        assert!(said.contains("--bundled") && !said.contains("token"), "the host is what is missing: {said}");
    }
}

#[test]
fn named_token_file_wins_over_the_variable_and_the_default_place() {
    let home = Home::new();
    let host = serving(&home);
    let token = home.left("run").pop().expect("the host's token file");
    let elsewhere = Home::new();
    let list = |before: &str, file: &str| {
        let arguments = ["policy", "list", "--admin", &host.admin, "--token-file", file];
        elsewhere.command(before, &arguments).output().unwrap()
    };
    for before in ["", "export INFER_ADMIN_TOKEN=another-token"] {
        let listed = list(before, token.to_str().unwrap());
        assert!(listed.status.success(), "{before}: {}", complaint(&listed));
    }
    let missing = list("", "none.token");
    let said = complaint(&missing);
    assert!(
        missing.status.code() == Some(2) && said.contains("--token-file: can't read none.token"),
        "{said}"
    );
    let record =
        ["sim", "record", "--out", "t.jsonl", "--seconds", "1", "--admin", &host.admin, "--token-file"];
    let recorded = elsewhere.command("", &record).arg(&token).output().unwrap();
    assert!(recorded.status.success(), "{}", complaint(&recorded));
    host.ends();
}

/// The exit code says whether the fault recurs, so that a script can check a corrected policy.
#[test]
fn replay_fails_if_the_policy_still_fails() {
    let home = Home::new();
    let lifecycle = json!("lifecycle");
    let evict = json!({"evict": {"now": 1, "need": 1}});
    let cases = [
        // Not a call that this slot's policy has.
        (("scheduler", "builtin-fcfs"), "setup", &evict, 1, "the policy still fails, in the same way"),
        (("scheduler", "builtin-fcfs"), "trap", &evict, 1, "the policy still fails, in another way"),
        (("scheduler", "builtin-fcfs"), "trap", &lifecycle, 0, "does not fail in this one call; a fault"),
        (("scheduler", "builtin-fcfs"), "step-budget", &lifecycle, 0, "can't show"),
        (("scheduler", "builtin-fcfs"), "starvation", &lifecycle, 0, "can't show"),
        // The file does not contain the pool that the policy knew.
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
        if words.contains("this one call") {
            let said = String::from_utf8_lossy(&replay(&["--times", "3"]).stdout).into_owned();
            assert!(said.contains("(3 calls)\n") && said.contains("in these calls; a fault"), "{said}");
        }
        let output = replay(&["--json"]);
        assert_eq!(output.status.code(), Some(code), "{slot} {kind}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["fails"], code == 1, "{slot} {kind}: {answer}");
        let decided = if slot == "prefix-cache" { json!([]) } else { Value::Null };
        assert_eq!(answer["answer"], decided, "{slot} {kind}: {answer}");
        if slot == "prefix-cache" {
            let said = String::from_utf8_lossy(&replay(&["--show"]).stdout).into_owned();
            assert!(said.contains("asked\n  evict: now 1, need 1\nanswered\n  answer: []\n"), "{said}");
        }
    }
}

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
    let output = home.command("", &["generate", "--prompt", ""]).output().unwrap();
    assert!(output.status.code() == Some(2) && complaint(&output).contains("--prompt"));
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

#[test]
fn flags_that_a_file_of_tenants_cannot_have_are_named() {
    let home = Home::new();
    for (flags, words) in [
        (&["--tokens-per-minute", "0"][..], "--tokens-per-minute"),
        (&["--weight", "0"], "--weight"),
        (&["--burst", "5"], "--burst: needs --tokens-per-minute"),
    ] {
        let output = home.command("", &[&["keys", "new", "a"], flags].concat()).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains(words), "{flags:?}: {said}");
        assert!(!said.contains("tenants.toml:"), "{said}");
    }
    for (name, words) in
        [("", "error: a tenant's name must have 1 to "), ("a b", "error: a b: a tenant's name must have")]
    {
        let output = home.command("", &["keys", "new", name]).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains(words), "{said}");
    }
}

#[test]
fn path_that_is_no_component_is_named_before_a_host_is_asked() {
    let home = Home::new();
    for (policy, words) in [
        ("/etc/passwd", "is no component"),
        ("./nowhere", "is neither a component"),
        (".", "is a directory; `infer policy build`"),
    ] {
        let swap = ["policy", "swap", "scheduler", policy, "--admin", "127.0.0.1:1"];
        let output = home.command("", &swap).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains(&format!("{policy} {words}")), "{said}");
    }
}

#[test]
fn empty_variables_count_as_absent() {
    let home = Home::new();
    std::fs::write(home.path("tenants.toml"), "").unwrap();
    let unset = home.command("export INFER_API_KEYS=", &["keys", "list"]).output().unwrap();
    assert!(unset.status.success(), "{}", complaint(&unset));
    let output = home.command("export INFER_ADMIN= TMPDIR=$PWD", &["policy", "list"]).output().unwrap();
    let said = complaint(&output);
    let default = ["http://127.0.0.1:8001 can't be reached", "admin-8001.token"];
    assert!(default.iter().any(|words| said.contains(words)), "the default address is used: {said}");
}

#[test]
fn root_finds_the_token_of_another_users_host() {
    let home = Home::new();
    let host = serving(&home);
    let operator = Operator { home: &home, host: &host };
    // Like the runtime directory of a service. Only root can change owners; others see their own host.
    let _ = std::os::unix::fs::chown(home.path("run"), Some(10_001), None);
    let listed = operator.types(&["list"]);
    assert!(listed.status.success(), "{}", complaint(&listed));
    host.ends();
}

#[test]
fn variables_of_other_commands_are_accepted() {
    let home = Home::new();
    std::fs::write(home.path("tenants.toml"), "").unwrap();
    for variable in ["INFER_API_KEY=k", "INFER_PROT=1", "INFER_HOME=/opt/infer"] {
        let output = home.command(&format!("export {variable}"), &["keys", "list"]).output().unwrap();
        assert!(output.status.success(), "{variable}: {}", complaint(&output));
    }
    let bench = ["bench", "serve", "--url", "http://127.0.0.1:1", "--baseline", "off"];
    let output = home.command("export INFER_API_KEY=k", &bench).output().unwrap();
    let said = complaint(&output);
    assert!(output.status.code() == Some(1) && !said.contains("INFER_API_KEY"), "{said}");
}

#[test]
fn checked_operators_and_token_are_those_that_a_host_accepts() {
    let home = Home::new();
    let own = "the-hosts-own-token-0123456789";
    let table = format!("[operators.eve]\nrole = \"viewer\"\ntokens = [\"{}\"]\n", KeyDigest::of(own));
    std::fs::write(home.path("operators.toml"), table).unwrap();
    let check = |token: &str| {
        let before = format!("export INFER_ADMIN_TOKEN={token}");
        let file = ["--operators", "operators.toml", "--admin", "127.0.0.1:0", "--port", "0"];
        home.command(&before, &[&["config", "check"], &file[..]].concat()).output().expect("sh starts")
    };
    for (token, words) in [
        (own, "`eve` has the host's own token (INFER_ADMIN_TOKEN)"),
        ("short", "INFER_ADMIN_TOKEN: must have at least 8 "),
    ] {
        let output = check(token);
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{token}: {said}");
        assert!(said.contains(words), "{token}: `{words}` isn't in: {said}");
    }
    let fine = check("another-token-0123456789");
    assert!(fine.status.success(), "{}", complaint(&fine));
}

#[test]
fn checked_settings_are_those_that_a_host_accepts() {
    let home = Home::new();
    let check = |arguments: &[&str]| {
        home.command("", &[&["config", "check"], arguments].concat()).output().expect("sh starts")
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let fine = check(&["--admin", "127.0.0.1:0", "--port", &port]);
    assert!(fine.status.success(), "an address in use may be the running host's: {}", complaint(&fine));
    std::fs::write(home.path("none.toml"), "").unwrap();
    // A build for GPUs blames the machine, unless it contains no kernels.
    let gpu = check(&["--device", "cuda:99"]);
    let codes = if cfg!(feature = "cuda") { &[1, 2][..] } else { &[2] };
    let said = complaint(&gpu);
    assert!(
        gpu.status.code().is_some_and(|code| codes.contains(&code)) && said.contains("--device"),
        "{said}"
    );
    std::fs::create_dir(home.path("mute")).unwrap();
    let of_demo = |file: &str| infer_demo::FILES.iter().find(|(name, _)| *name == file).unwrap().1;
    std::fs::write(home.path("mute/config.json"), of_demo("config.json")).unwrap();
    for (folder, tokenizer) in [("torn", &b"{"[..]), ("silent", of_demo("tokenizer.json"))] {
        std::fs::create_dir(home.path(folder)).unwrap();
        std::fs::write(home.path(&format!("{folder}/config.json")), of_demo("config.json")).unwrap();
        std::fs::write(home.path(&format!("{folder}/tokenizer.json")), tokenizer).unwrap();
    }
    std::fs::write(home.path("silent/chat_template.jinja"), "{% if %}").unwrap();
    let silent = check(&["--model", "silent", "--admin", "127.0.0.1:0", "--port", "0"]);
    let said = complaint(&silent);
    assert!(silent.status.success(), "a host serves everything but chats: {said}");
    assert!(said.contains("chat completions are not available: "), "{said}");
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--lora", "x=mute"], 2, "--lora: x: "),
        (&["--model", "torn"], 2, "tokenizer.json can't be parsed: "),
        (
            &["--model", "mute"],
            2,
            "/mute has no tokenizer.json; a checkpoint in Hugging Face's layout has one",
        ),
        (&["--model", "/nonexistent/model"], 2, "--model: /nonexistent/model"),
        (&["--kv-memory", "1"], 2, "--kv-memory"),
        (&["--device", "cpu", "--kv-memory", "20000GiB"], 1, "--kv-memory: 20480000 MiB are more than the "),
        (&["--api-keys", "none.toml"], 2, "infer keys new TENANT --file none.toml"),
        (&["--max-seq-len", "9999999"], 2, "--max-seq-len"),
        (&["--host", "192.0.2.1"], 1, "--host: can't listen on 192.0.2.1:0"),
    ];
    for (arguments, code, words) in cases {
        let free = ["--admin", "127.0.0.1:0", "--port", "0"];
        let output = check(&[arguments, &free[..]].concat());
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: `{words}` isn't in: {said}");
    }
}

#[test]
fn checked_settings_include_variables() {
    let home = Home::new();
    let check = |variables: &str| {
        let arguments = ["config", "check", "--admin", "127.0.0.1:0", "--port", "0"];
        let output = home.command(&format!("export {variables}"), &arguments).output().expect("sh starts");
        (output.status.code(), complaint(&output))
    };
    let (code, said) = check("INFER_ADMIN_TOKEN=tok");
    assert!(code == Some(2) && said.contains("INFER_ADMIN_TOKEN: must have at least 8"), "{said}");
    let (code, said) = check("INFER_ADMIN_TOKEN=0123456789 INFER_LOG_LEVEL=debug INFER_API_KEY=token-abc123");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("INFER_LOG_LEVEL is not a variable of this host"), "{said}");
    assert!(said.contains("INFER_API_KEY is short enough to be guessed"), "{said}");
}
