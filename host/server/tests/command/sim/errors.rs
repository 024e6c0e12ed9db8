//! Errors name the bad argument or file, and the valid values.

use super::{sim, text};

#[test]
fn errors_name_the_bad_argument_and_the_valid_values() {
    for (arguments, says) in [
        (&["run", "--workload", "silence"][..], "use one of chat, instruct"),
        (&["run", "--load", "0"], "--load must be from 0.01 to 100"),
        (
            &["run", "--workload", "diverse", "--max-seq-len", "1024"],
            "requests of `diverse` have up to 2300 tokens",
        ),
        (&["run", "--hardware", "abacus"], "use one of cpu, l4"),
        (&["run", "--workload", "chat", "--trace", "x"], "cannot be used with"),
        (&["compare", "--load", "0.5", "--load", "1", "--load", "0.5"], "--load 0.5 is given twice"),
        (&["compare", "--seed", "3", "--seed", "3"], "--seed 3 is given twice; give each seed once"),
        (&["compare", "--seed", "1..4,3"], "--seed 3 is given twice; give each seed once"),
        (&["compare", "--seed", "4..1"], "the range ends before it begins; 1..4 does not"),
        (
            &["compare", "--blocks", "600", "--blocks", "600"],
            "--blocks 600 is given twice; give each value once",
        ),
        (&["compare", "--blocks", "600", "--blocks", "60"], "blocks=60: a pool of 60 blocks can't hold"),
        (
            &["compare", "--rate", "4", "--rate", "0"],
            "--rate must be from 0.001 to 1000000 requests per second, not 0",
        ),
        (&["run", "--rate", "4", "--load", "1"], "cannot be used with"),
        (&["run", "--trace", "x", "--rate", "4", "--closed-loop"], "cannot be used with"),
        (&["run", "--burstiness", "0"], "expected a number from 0.01 to 10000"),
        (&["run", "--burstiness", "2", "--trace", "x"], "cannot be used with"),
        (
            &["run", "--workload", "bursty", "--burstiness", "2"],
            "it replaces Poisson processes, and the arrivals of",
        ),
        (&["compare", "--burstiness", "2", "--burstiness", "2"], "--burstiness 2 is given twice"),
        (
            &["run", "--device", "l4", "--device", "h100"],
            "not several (l4; h100); `infer sim compare` compares hosts",
        ),
        (&["run", "--predictions", "perfect"], "expected learned, exact, or a number from 0 to 5"),
        (&["run", "--predictions", "6"], "expected learned, exact, or a number from 0 to 5"),
        (
            &["run", "--predictions", "exact", "--predictions", "0.5"],
            "not several (predictions=exact; predictions=0.5)",
        ),
        (&["compare", "--predictions", "0.5", "--predictions", "0.5"], "--predictions 0.5 is given twice"),
        (&["compare", "--plan-ahead", "off", "--plan-ahead", "off"], "--plan-ahead off is given twice"),
        (&["fuzz", "--seeds", "1", "--case-out", "case.json"], "--minimize"),
        (
            &["run", "--hardware", "l4", "--model", "70b"],
            "the weights of 70b take 141.2 GB and leave no room for a KV block in the 24.0 GB of l4, a tenth of",
        ),
        (&["run", "--hardware", "l4", "--model", "8b", "--blocks", "9"], "a pool of 9 blocks can't hold"),
        (&["run", "--scheduler", "unknown"], "no scheduler policy `unknown`; available are `continuous`"),
        (&["compare", "--summary"], "--summary: tables and pages have it; choose --format json or csv"),
        (&["run", "--closed-loop"], "--closed-loop: only a recording"),
        (&["run", "--max-tokens", "9"], "--max-tokens: only public traces lack it"),
        (
            &["run", "--ttft-deadline-ms", "500"],
            "--ttft-deadline-ms: all requests have a deadline of their own",
        ),
        (&["run", "--starvation-bound", "0"], "must be from 0.001 to 3600 seconds, not 0"),
        (&["run", "--api-keys", "nowhere.toml"], "--api-keys: can't read nowhere.toml"),
        (&["run", "--workload", "nowhere.json"], "--workload nowhere.json: can't be read"),
        (&["run", "--list", "--format", "csv"], "--list: workloads are listed as text or JSON"),
        (&["run", "--out", "nowhere/result.txt"], "--out: can't write nowhere/result.txt"),
        (
            &["fuzz", "--seeds", "1", "--minimize", "--case-out", "nowhere"],
            "--case-out: can't write nowhere/fuzz-1.json",
        ),
        (&["fuzz", "--seeds", "1", "--out", "nowhere/seeds.html"], "--out: can't write nowhere/seeds.html"),
        (&["fuzz", "--replay", "case.json", "--out", "nowhere/a.csv"], "--out: can't write nowhere/a.csv"),
        (
            &["calibrate", "nothing.jsonl", "--out", "nowhere/host.json"],
            "--out: can't write nowhere/host.json",
        ),
        (
            &["run", "--admission", "slo,unknown"],
            "no admission policy `unknown`; available are `memory-aware`",
        ),
        (&["run", "--scheduler", "srpt={"], "not a JSON object"),
        (&["run", "--scheduler", r#"srpt={"speed": 1}"#], "unknown field `speed`"),
        (&["run", "--scheduler", "missing.wasm"], "can't read missing.wasm"),
    ] {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(says), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn errors_name_the_flag_and_the_file_of_a_policy_that_cannot_be_loaded() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("srpt.wasm");
    let component = infer_bundle::find("scheduler", "srpt").expect("it is shipped").component;
    std::fs::write(&path, component).expect("it can be written");
    let file = path.to_str().expect("UTF-8");
    let misfit = "the component is a scheduler policy and does not fit the admission slot";
    let list = format!("memory-aware,{file}");
    for (admission, says) in [
        (file, format!("error: --admission {file}: {misfit}")),
        (&list, format!("error: --admission {list}: {file}: {misfit}")),
    ] {
        for command in ["run", "compare"] {
            let output = sim(&[command, "--scheduler", "continuous", "--admission", admission]);
            assert_eq!(output.status.code(), Some(2), "{command}");
            assert!(text(&output.stderr).contains(&says), "{command}: {}", text(&output.stderr));
        }
    }
}

#[test]
fn directory_of_a_policy_is_to_be_built_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let folder = dir.path().to_str().expect("UTF-8");
    let output = sim(&["run", "--scheduler", folder]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("--scheduler: {folder} is a directory")), "{said}");
    assert!(said.contains(&format!("infer policy build {folder}")), "{said}");
}

#[test]
fn errors_name_the_bad_trace_or_profile_and_its_fault() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).expect("it can be written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let notes = file("notes.csv", "a,b\n1,2\n");
    let broken = file("broken.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,7,nine\n");
    let packed = file("packed.csv.gz", "");
    std::fs::write(&packed, [0x1f, 0x8b, 8, 0, 0, 0, 0, 0]).expect("it can be written");
    let old = file("old.jsonl", "{\"head\":{\"format\":9}}\n");
    let empty = file("empty.csv", "");
    let mooncake = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/tests/traces/mooncake.jsonl");
    let profile = file("profile.json", "{\"format\": 1}");
    let head = "{\"format\":3,\"name\":\"x\",\"block_size\":16,\"total_blocks\":99,\"spread\":[],\"fit\":{\"steps\":1,\
                \"error_p50_percent\":0,\"error_p95_percent\":0,\"total_percent\":0}";
    let zero = file(
        "zero.json",
        &format!(
            "{head},\"cost\":{{\"step_us\":0,\"row_us\":1,\"drawing_us\":0,\"drawn_us\":0,\"decode_context_us\":0,\
             \"repeated_context_us\":0,\"chunk_attended_us\":0,\"tokens\":[]}}}}"
        ),
    );
    for (arguments, code, says) in [
        (
            &["run", "--trace", &notes][..],
            2,
            "not a trace; expected a recording of a host, or one of the formats azure (the columns TIMESTAMP, \
             ContextTokens, GeneratedTokens), mooncake (JSON lines with timestamp, input_length, output_length, hash_ids), \
             bailian (these and chat_id), burstgpt (the columns Timestamp, Model, Request tokens, Response tokens); its \
             first line is \"a,b\"",
        ),
        (
            &["run", "--trace", &broken],
            1,
            "broken: line 2, column 23: GeneratedTokens is `nine`, not a whole number",
        ),
        (&["run", "--trace", &old], 2, "missing field `host`"),
        (&["run", "--trace", &empty], 2, "is empty"),
        (
            &["run", "--trace", &packed],
            2,
            "packed.csv.gz: is compressed (gzip); unpack it first, with `gunzip",
        ),
        (&["calibrate", &packed], 2, "packed.csv.gz: is compressed (gzip)"),
        (&["run", "--trace", "nowhere.csv"], 2, "nowhere.csv: can't be read"),
        (&["run", "--device", &profile], 2, "format 1 is not supported, only 3; calibrate again"),
        (&["run", "--device", &zero], 2, "`step_us` must be more than 0"),
        (&["run", "--device", &zero, "--model", "8b"], 2, "a profile file includes its model"),
        (&["run", "--device", "missing.json"], 2, "--device missing.json: can't be read"),
        (&["run", "--slo-ttft-ms", "0"], 2, "--slo-ttft-ms must be more than 0"),
        (&["decisions", &notes], 2, "notes.csv: not a recording of a host; make one with `infer sim record`"),
        (&["decisions", mooncake], 2, "mooncake.jsonl: not a recording of a host; make one"),
        (&["decisions", &empty], 2, "a recording must start with its head"),
        (&["judge", "--device", "h100", &broken], 2, "broken.csv: not a recording of a host; make one"),
        (&["judge", "--device", "h100", mooncake], 2, "mooncake.jsonl: not a recording of a host; make one"),
        (&["calibrate", mooncake], 2, "mooncake.jsonl: not a recording of a host; make one"),
        (&["calibrate", &old], 2, "missing field `host`"),
    ] {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(says), "{arguments:?}: {}", text(&output.stderr));
    }
}
