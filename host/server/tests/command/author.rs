//! The commands for authors of policies, with only the binary and a toolchain: a new crate becomes a component
//! that passes every check, and failing commands say what to do.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

/// Held by `infer policy test`: Cargo gives the SDK of every new crate the same file, which documentation tests read
/// without its lock.
static TESTED: Mutex<()> = Mutex::new(());

fn infer(folder: &Path, args: &[&str]) -> Output {
    let _held = (args[0] == "test").then(|| TESTED.lock().unwrap_or_else(PoisonError::into_inner));
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    Command::new(env!("CARGO_BIN_EXE_infer"))
        .current_dir(folder)
        .arg("policy")
        .args(args)
        // Builds are kept for the next run. All dependencies were downloaded for this build.
        .env("CARGO_TARGET_DIR", temporary.join("author-target"))
        .env("CARGO_NET_OFFLINE", "true")
        .output()
        .expect("the binary runs")
}

fn succeeds(folder: &Path, args: &[&str]) -> String {
    let output = infer(folder, args);
    let said = String::from_utf8_lossy(&output.stderr);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{args:?}: {said}\n{shown}");
    shown.into_owned()
}

fn fails(folder: &Path, args: &[&str], code: i32, part: &str) {
    let output = infer(folder, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(said.contains(part), "{args:?} does not say `{part}`: {said}");
}

/// Appends the test that `infer policy replay --as-test` makes of a fault to those of a crate, under the name returned.
fn add_test_of_a_fault(folder: &Path, crate_name: &str, slot: &str, question: &Value) -> String {
    let fault = json!({
        "format": 1, "slot": slot, "step": 7, "at_us": 1, "shadow": false, "removed": false, "state": "",
        "policy": {"name": "mine", "version": "0.1.0",
            "members": [{"name": "mine", "version": "0.1.0", "sha256": "0".repeat(64), "config": {}}]},
        "fault": {"kind": "trap", "message": "it failed"}, "question": question,
    });
    std::fs::write(folder.join("fault.json"), fault.to_string()).unwrap();
    let test = succeeds(folder, &["replay", "fault.json", "--as-test"]);
    let tests = folder.join(crate_name).join("src/tests.rs");
    let others = std::fs::read_to_string(&tests).unwrap();
    std::fs::write(&tests, others + "\n" + &test).unwrap();
    let module = test.lines().find_map(|line| line.strip_prefix("mod ")?.strip_suffix(" {"));
    format!("test tests::{}::is_answered ...", module.unwrap())
}

/// Calls of every function of a kind, with something in every structure.
fn calls(kind: &str) -> Vec<Value> {
    let memory = json!({"block_size": 16, "total_blocks": 100, "free_blocks": 60, "cached_blocks": 10});
    let of = json!({"now": 9, "id": 3, "tenant": 1, "session": 4, "prompt_tokens": 64});
    let with = |more: Value| {
        let mut all = of.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    match kind {
        "admission" => {
            let load = super::sim::load(&memory, 8);
            let request =
                with(json!({"priority": -1, "arrived": 5, "deadline": u64::MAX, "cached_tokens": 32,
                "max_new_tokens": 8, "expected_tokens": 8}));
            vec![
                json!({"admit": {"request": request, "load": load}}),
                json!({"measure": load}),
                json!("lifecycle"),
            ]
        }
        "prefix-cache" => {
            let events = json!({"memory": memory, "at": [1, 2], "kind": [0, 2], "block": [4, 4],
                "parent": [u32::MAX, u32::MAX], "depth": [0, 0], "tenant": [1, 1], "session": [4, 4]});
            let ended = with(json!({"generated_tokens": 8, "reused_tokens": 32, "memory": memory}));
            vec![
                json!({"reuse": with(json!({"cached_tokens": 32, "same_session": true}))}),
                json!({"retain": ended}),
                json!({"observe": events}),
                json!({"evict": {"now": 9, "need": 1}}),
            ]
        }
        _ => {
            let rows = |id: u64, computed: u32, generated: u32| {
                json!({"id": [id], "tenant": [1], "session": [4], "priority": [-1], "arrived": [5],
                    "deadline": [u64::MAX], "prompt_tokens": [64], "computed_tokens": [computed],
                    "pending_tokens": [0], "idle_blocks": [0], "generated_tokens": [generated],
                    "max_new_tokens": [20], "expected_tokens": [8], "blocks": [4], "freeable_blocks": [4],
                    "preemptions": [0]})
            };
            let tenants = json!({"id": [1], "weight_permille": [1000], "running": [1], "waiting": [1],
                "prompt_tokens_served": [64], "output_tokens_served": [1]});
            let limits = json!({"max_batch_tokens": 64, "max_running": 4, "prefill_chunk": 64,
                "max_prefill_sequences": 4, "max_prefill_tokens": 64});
            vec![json!({"schedule": {
                "now": 9, "number": 7, "last_step": 1, "last_prefill_tokens": 0, "last_decodes": 1,
                "idle_since": u64::MAX, "starvation_bound": 5_000_000, "limits": limits, "memory": memory,
                "running": rows(1, 64, 1), "waiting": rows(2, 0, 0), "tenants": tenants,
            }})]
        }
    }
}

#[test]
fn new_scheduler_builds_and_passes_every_check() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    succeeds(folder, &["new", "mine", "--kind", "scheduler"]);
    let [readme, guide] = ["README.md", "GUIDE.md"].map(|name| {
        std::fs::read_to_string(folder.join("mine").join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    });
    assert!(readme.contains("infer sim compare --scheduler continuous --scheduler ./mine.wasm"), "{readme}");
    assert!(
        readme.contains("A scheduler policy for `infer` that begins as an example: it starts"),
        "{readme}"
    );
    let library = std::fs::read_to_string(folder.join("mine/src/lib.rs")).unwrap();
    assert!(library.contains("pub struct Mine ") && !library.contains("ShortestFirst"), "{library}");
    assert!(guide.starts_with("# Policies\n\nThis is "), "{guide}");
    let built = succeeds(folder, &["build", "mine"]);
    let file = PathBuf::from(built.lines().next().unwrap());
    assert_eq!(file.canonicalize().unwrap(), folder.join("mine/mine.wasm").canonicalize().unwrap());
    assert!(built.contains("mine 0.1.0, scheduler"), "{built}");

    let report = succeeds(folder, &["check", "mine/mine.wasm", "--json", "--seed", "7"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (&report["passed"], &report["name"], &report["seed"]),
        (&true.into(), &"mine".into(), &7.into())
    );
    let inspection = succeeds(folder, &["inspect", "mine/mine.wasm", "--json"]);
    let inspection: Value = serde_json::from_str(&inspection).unwrap();
    assert_eq!(inspection["sha256"], report["sha256"]);
    assert_eq!(inspection["interface"], "infer:policy@0.1.0");
    assert!(inspection["memory_at_start_bytes"].as_u64().unwrap() > 0);

    let home = std::env::var("HOME").unwrap_or_default();
    let component = std::fs::read(&file).unwrap();
    let holds = |text: &str| component.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(
        home.is_empty() || !holds(&home),
        "the component must not contain the home directory of its author"
    );
    fails(folder, &["new", "mine", "--kind", "scheduler"], 2, "not empty");
    fails(folder, &["check", "mine/mine.wasm", "--config", r#"{"patience": 1}"#], 1, "doesn't pass");
}

#[test]
fn new_policies_of_the_other_kinds_pass_their_tests_and_show_what_fails() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    for kind in ["admission", "prefix-cache"] {
        succeeds(folder, &["new", "mine", "--kind", kind, "--path", kind]);
        // What a configuration needs is there, even if the template has none.
        let source = folder.join(kind).join("src/lib.rs");
        let text = std::fs::read_to_string(&source).unwrap();
        let configured = "/// Of another policy.\n#[derive(serde::Deserialize, serde::Serialize)]\n\
            pub struct Other {\n    /// A key.\n    pub key: u64,\n}\n";
        std::fs::write(&source, format!("{text}\n{configured}")).unwrap();
        let of_faults: Vec<String> =
            calls(kind).iter().map(|call| add_test_of_a_fault(folder, kind, kind, call)).collect();
        let tested = succeeds(folder, &["test", kind]);
        assert!(tested.contains("test tests::configuration_matches_its_schema ... ok"), "{tested}");
        for test in of_faults {
            assert!(tested.contains(&test), "{test} {tested}");
        }
    }
    let source = folder.join("admission/src/lib.rs");
    let text = std::fs::read_to_string(&source).unwrap();
    let wrong = "#[cfg(test)]\nmod wrong {\n    #[test]\n    fn sum() {\n        \
        assert_eq!(1 + 1, 3, \"no such sum\");\n    }\n}\n";
    std::fs::write(&source, format!("{text}\n{wrong}")).unwrap();
    let output = infer(folder, &["test", "admission"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["src/lib.rs:", "no such sum", "left: 2"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let endless = "#[cfg(test)]\nmod wrong {\n    #[test]\n    fn spins() {\n        \
        turns();\n    }\n\n    #[inline(never)]\n    fn turns() {\n        for turn in 0..u64::MAX {\n            \
        std::hint::black_box(turn);\n        }\n    }\n}\n";
    std::fs::write(&source, format!("{text}\n{endless}")).unwrap();
    let output = infer(folder, &["test", "admission", "--limit", "1", "--", "--lib"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for part in ["was ended after 1 s of processor time", "wrong::turns"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// With its own tests, which compare it with a policy that comes along.
#[test]
fn copy_of_a_shipped_policy_passes_its_tests_and_every_check() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    let said = succeeds(folder, &["new", "mine", "--from", "srpt"]);
    assert!(said.starts_with("mine: a scheduler policy that does what `srpt` does."), "{said}");
    let readme = std::fs::read_to_string(folder.join("mine/README.md")).unwrap();
    assert!(readme.contains("infer sim compare --scheduler srpt --scheduler ./mine.wasm"), "{readme}");
    let of_fault = add_test_of_a_fault(folder, "mine", "scheduler", &calls("scheduler")[0]);
    let tested = succeeds(folder, &["test", "mine"]);
    assert!(tested.contains("test tests::configuration_matches_its_schema ... ok"), "{tested}");
    assert!(tested.contains(&of_fault), "{of_fault} {tested}");
    let built = infer(folder, &["inspect", "mine"]);
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(said.starts_with("building the crate in "), "{said}");
    let report = succeeds(folder, &["check", "mine", "--json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["passed"], &report["name"]), (&true.into(), &"mine".into()));
    let lock = std::fs::read_to_string(folder.join("mine/Cargo.lock")).unwrap();
    assert!(lock.contains("name = \"policy-continuous\""), "{lock}");
    fails(folder, &["new", "policy-continuous", "--from", "srpt"], 2, "taken");
    fails(folder, &["new", "other", "--from", "shortest"], 2, "static-batch");
    fails(folder, &["new", "other", "--from", "srpt", "--kind", "scheduler"], 2, "--from");
    fails(folder, &["new", "other"], 2, "--kind");
}

#[test]
fn failing_command_says_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    let manifest = "[package]\nname = \"plain\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
    std::fs::create_dir_all(folder.join("plain/src")).unwrap();
    std::fs::write(folder.join("plain/Cargo.toml"), manifest).unwrap();
    std::fs::write(folder.join("plain/src/lib.rs"), "").unwrap();
    std::fs::write(folder.join("text.wasm"), "text").unwrap();
    let with = |name: &str, more: &str| {
        std::fs::create_dir_all(folder.join(name).join("src")).unwrap();
        std::fs::create_dir_all(folder.join(name).join("examples")).unwrap();
        std::fs::write(folder.join(name).join("src/lib.rs"), "").unwrap();
        std::fs::write(folder.join(name).join("examples/shown.rs"), "").unwrap();
        std::fs::write(folder.join(name).join("Cargo.toml"), manifest.to_owned() + more).unwrap();
    };
    with("renamed", "[lib]\nname = \"other\"\ncrate-type = [\"rlib\", \"cdylib\"]\n");
    with("shown", "[[example]]\nname = \"shown\"\ncrate-type = [\"cdylib\"]\n");
    let twice = r#"{"patience_ms": 1, "patience_ms": 2}"#;
    let cases: [(&[&str], i32, &str); 14] = [
        (&["new", "Mine", "--kind", "scheduler"], 2, "shortest-first"),
        (&["new", "serde", "--kind", "scheduler"], 2, "taken"),
        (&["new", "if", "--kind", "scheduler"], 2, "taken"),
        (&["new", "mine", "--kind", "schedule"], 2, "prefix-cache"),
        (&["new", "mine", "--kind", "admission", "--path", "plain"], 2, "not empty"),
        (&["build", "nowhere"], 2, "infer policy new"),
        (&["build", "plain"], 1, "cdylib"),
        (&["build", "shown"], 1, "add `[lib]`"),
        (&["build", "renamed"], 1, "its library is named `other`"),
        (&["check", "nowhere.wasm"], 2, "nowhere.wasm"),
        (&["inspect", "text.wasm"], 1, "not a WebAssembly file"),
        (&["bench", "text.wasm"], 1, "not a WebAssembly file"),
        (&["check", "srpt", "--config", twice], 2, "the key `patience_ms` occurs twice"),
        (&["bench", "srpt", "--config", twice], 2, "the key `patience_ms` occurs twice"),
    ];
    for (args, code, part) in cases {
        fails(folder, args, code, part);
    }
    let report = infer(folder, &["check", "text.wasm"]);
    let shown = String::from_utf8_lossy(&report.stdout);
    assert!(report.status.code() == Some(1) && shown.contains("FAILED  load"), "{shown}");
}

#[test]
fn bundled_policies_are_shown_without_a_host() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    let listed = succeeds(folder, &["list", "--bundled"]);
    for policy in infer_bundle::POLICIES {
        assert!(listed.contains(&format!(" {} ", policy.name)), "{}: {listed}", policy.name);
    }
    let described = succeeds(folder, &["describe", "srpt", "--bundled"]);
    assert!(
        described.starts_with("srpt 0.1.0 (scheduler)") && described.contains("patience_ms"),
        "{described}"
    );
    let inspect = |source: &str| -> Value {
        serde_json::from_str(&succeeds(folder, &["inspect", source, "--json"])).unwrap()
    };
    assert_eq!(inspect("srpt")["name"], "srpt");
    // A file with the name of a bundled policy is that file.
    std::fs::write(folder.join("srpt"), infer_bundle::find("prefix-cache", "lru").unwrap().component)
        .unwrap();
    assert_eq!(inspect("srpt")["name"], "lru");
    fails(folder, &["describe", "scheduler", "--bundled"], 2, "slots of a running host");
    fails(folder, &["list", "--bundled", "--admin", "127.0.0.1:1"], 2, "--bundled");
    fails(folder, &["check", "sprt"], 2, "infer policy list --bundled");
}

#[test]
fn what_a_policy_logs_and_publishes_is_shown() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    succeeds(folder, &["new", "loud", "--kind", "scheduler"]);
    let source = folder.join("loud/src/lib.rs");
    let text = std::fs::read_to_string(&source).unwrap();
    let begins = "let mut planner = Planner::new(step);";
    assert!(text.contains(begins), "{text}");
    let lines = "infer_policy_sdk::log(infer_policy_sdk::Level::Warn, \"be warned\");
        infer_policy_sdk::log(infer_policy_sdk::Level::Debug, \"a detail\");
        infer_policy_sdk::gauge(\"waiting_requests\", step.waiting.len() as f64);";
    std::fs::write(&source, text.replacen(begins, &format!("{lines}\n        {begins}"), 1)).unwrap();
    succeeds(folder, &["build", "loud"]);
    let said = |arguments: &[&str], filter: Option<&str>| {
        let mut infer = Command::new(env!("CARGO_BIN_EXE_infer"));
        infer.current_dir(folder).args(arguments).env_remove("INFER_LOG").env_remove("INFER_LOG_FORMAT");
        let output =
            infer.envs(filter.map(|filter| ("INFER_LOG", filter))).output().expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        (String::from_utf8_lossy(&output.stdout).into_owned(), said)
    };
    let run = ["sim", "run", "--scheduler", "loud/loud.wasm", "--requests", "30"];
    for command in [&run[..], &["policy", "check", "loud/loud.wasm"]] {
        let (_, usual) = said(command, None);
        assert!(
            usual.matches(" WARN policy: be warned ").count() == 10 && !usual.contains("a detail"),
            "{command:?}: {usual}"
        );
        assert_eq!(usual.matches(" lines of its log were left out ").count(), 1, "{command:?}: {usual}");
    }
    let (_, all) = said(&run, Some("policy=debug"));
    let all = all.matches("DEBUG policy: a detail ").count();
    assert!(all > 200, "{all} lines: a step has one, however fast the steps follow each other");

    let (results, _) = said(&[&run[..], &["--format", "json"]].concat(), None);
    let results: Value = serde_json::from_str(&results).unwrap();
    let samples = results[0]["samples"].as_array().unwrap();
    // The last plan of a run sees nothing wait any more.
    let last = &samples.last().unwrap()["gauges"];
    assert_eq!(last, &json!({"loud.waiting_requests": 0.0, "memory-aware.claimed_blocks": 0.0}));
    assert!(
        samples.iter().any(|sample| sample["gauges"]["memory-aware.claimed_blocks"].as_f64() > Some(0.0))
    );
}

#[test]
fn work_that_a_check_refuses_is_a_fault_in_a_simulation() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path();
    succeeds(folder, &["new", "busy", "--kind", "scheduler"]);
    let source = folder.join("busy/src/lib.rs");
    let text = std::fs::read_to_string(&source).unwrap();
    let begins = "let mut planner = Planner::new(step);";
    assert!(text.contains(begins), "{text}");
    // Every hundredth call of an instance, which is beyond its self-test.
    let works = "static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
        if CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 100 == 0 {
            for turn in 0..20_000_000u32 {
                std::hint::black_box(turn);
            }
        }";
    std::fs::write(&source, text.replacen(begins, &format!("{works}\n        {begins}"), 1)).unwrap();
    succeeds(folder, &["build", "busy"]);
    let checked = infer(folder, &["check", "busy/busy.wasm"]);
    let report = String::from_utf8_lossy(&checked.stdout);
    let refusal = "used more than 40000000 units of fuel";
    assert!(checked.status.code() == Some(1) && report.contains(refusal), "{report}");
    let simulated = Command::new(env!("CARGO_BIN_EXE_infer"))
        .current_dir(folder)
        .args(["sim", "run", "--scheduler", "busy/busy.wasm", "--requests", "30", "--format", "json"])
        .output()
        .expect("the binary runs");
    let shown = String::from_utf8_lossy(&simulated.stdout);
    assert!(simulated.status.success() && shown.contains(refusal), "{shown}");
}
