//! `infer sim` as a process: its output depends only on the arguments and the seed, and errors name the bad argument.

use std::path::Path;
use std::process::{Command, Output};

use infer_api::trace;

fn sim(arguments: &[&str]) -> Output {
    let mut infer = Command::new(env!("CARGO_BIN_EXE_infer"));
    infer.arg("sim").args(arguments).output().expect("infer starts")
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).expect("UTF-8")
}

#[test]
fn comparison_does_not_depend_on_the_number_of_threads() {
    let run = |threads: &str| {
        let output = sim(&[
            "compare",
            "--scheduler",
            "continuous",
            "--scheduler",
            r#"srpt={"patience_ms": 500}"#,
            "--workload",
            "heavy-tail",
            "--workload",
            "tenants",
            "--requests",
            "150",
            "--threads",
            threads,
        ]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let (one, four) = (run("1"), run("4"));
    assert_eq!(one, four);
    assert!(one.contains("heavy-tail at load 0.90: 150 requests"), "{one}");
    assert!(one.contains(r#"srpt{"patience_ms": 500}"#) && one.contains("tenant 2:"), "{one}");
}

#[test]
fn results_come_as_csv_json_and_html() {
    let csv = text(&sim(&["run", "--requests", "50", "--format", "csv"]).stdout);
    let (head, row) = csv.split_once('\n').expect("two lines");
    assert_eq!(head.split(',').count(), row.trim().split(',').count(), "{csv}");
    let json = text(&sim(&["run", "--requests", "50", "--format", "json"]).stdout);
    let cells: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let page = text(&sim(&["run", "--requests", "50", "--format", "html"]).stdout);
    assert!(page.starts_with("<!doctype html>") && page.matches("<figure>").count() == 8, "{page}");
    assert!(
        !page.contains("http") && !page.contains("NaN") && !page.contains("inf "),
        "the page is self-contained"
    );
    assert_eq!((&cells[0]["contender"], &cells[0]["requests"]), (&"continuous".into(), &50.into()));
}

#[test]
fn unwritable_output_is_a_failure() {
    let mut infer = Command::new(env!("CARGO_BIN_EXE_infer"));
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device that is always full");
    let output = infer.args(["sim", "run", "--list"]).stdout(full).output().expect("infer starts");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("can't write the output"), "{}", text(&output.stderr));
}

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
        (&["run", "--hardware", "l4", "--model", "70b"], "choose a larger device"),
        (&["run", "--scheduler", "unknown"], "use one of continuous"),
        (&["run", "--closed-loop"], "--closed-loop: only a recording"),
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
fn public_trace_formats_are_replayed_and_compared() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/tests/traces/");
    let [azure, burstgpt, mooncake] =
        ["azure.csv", "burstgpt.csv", "mooncake.jsonl"].map(|name| format!("{dir}{name}"));
    let output = sim(&[
        "compare",
        "--trace",
        &azure,
        "--trace",
        &burstgpt,
        "--trace",
        &mooncake,
        "--scheduler",
        "continuous",
        "--scheduler",
        "srpt",
        "--load",
        "1",
        "--load",
        "4",
        "--format",
        "csv",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = text(&output.stdout);
    assert_eq!(rows.lines().count(), 1 + 3 * 2 * 2, "{rows}");
    assert!(rows.contains("\nburstgpt,4,srpt,3,3,0,0,"), "{rows}");
    let one = text(&sim(&["run", "--trace", &mooncake, "--requests", "2", "--format", "csv"]).stdout);
    assert!(one.contains("\nmooncake,1,continuous,2,2,0,0,"), "{one}");
}

#[test]
fn traces_with_equal_names_stay_apart_and_keep_their_speed() {
    let dir = tempfile::tempdir().expect("a directory");
    let head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
    let [one, other] = [("one", "00:00:03"), ("other", "00:00:05")].map(|(folder, end)| {
        let path = dir.path().join(folder);
        std::fs::create_dir(&path).expect("it can be made");
        let path = path.join("chat.csv");
        let rows = format!("{head}2024-05-10 00:00:00,7,9\n2024-05-10 {end},9,7\n");
        std::fs::write(&path, rows).expect("it can be written");
        path.to_str().expect("UTF-8").to_owned()
    });
    let arguments = ["--workload", "diverse", "--requests", "40", "--trace", &one, "--trace", &other];
    let compare = ["compare", "--scheduler", "continuous", "--scheduler", "srpt"];
    let output = sim(&[&compare[..], &arguments].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for group in
        ["diverse at load 0.90: 40", &format!("{one} at load 1.00: 2"), &format!("{other} at load 1.00: 2")]
    {
        assert!(table.contains(group), "{group}: {table}");
    }
    assert!(table.contains(" 3 s of traffic") && table.contains(" 5 s of traffic"), "{table}");
}

/// Writes a recording of a host with so many blocks and requests. Returns its path.
fn recording(dir: &Path, name: &str, total_blocks: u32, requests: u64) -> String {
    let engine = trace::Settings {
        block_size: 16,
        total_blocks,
        max_seq_len: 1_024,
        max_batch_tokens: 512,
        max_batch_size: 8,
        prefill_chunk: 256,
        max_prefill_requests: 8,
        max_prefill_tokens: 512,
        max_waiting_requests: 100,
        ..trace::Settings::default()
    };
    let (model, device) = ("demo".to_owned(), "cpu".to_owned());
    let head = trace::Head { format: trace::FORMAT, model, device, engine, ..trace::Head::default() };
    let request = |id| trace::Request { id, prompt: 8, max: 4, ..trace::Request::default() };
    let lines = std::iter::once(trace::Line::Head(Box::new(head)))
        .chain((1..=requests).map(|id| trace::Line::Request(request(id))));
    let text: String = lines.map(|line| serde_json::to_string(&line).expect("JSON") + "\n").collect();
    let path = dir.join(name);
    std::fs::write(&path, text).expect("it can be written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn recordings_of_hosts_with_different_settings_are_not_compared() {
    let dir = tempfile::tempdir().expect("a directory");
    let small = recording(dir.path(), "small.jsonl", 100, 1);
    let large = recording(dir.path(), "large.jsonl", 200, 1);
    let compare = |flags: &[&str]| {
        let traces = ["compare", "--scheduler", "builtin", "--trace", &small, "--trace", &large];
        sim(&[&traces[..], flags].concat())
    };
    let refused = compare(&[]);
    assert_eq!(refused.status.code(), Some(2));
    let says = format!("--trace {large}: its host had other settings than that of {small}");
    assert!(text(&refused.stderr).contains(&says), "{}", text(&refused.stderr));
    let same = compare(&["--blocks", "300"]);
    assert!(same.status.success(), "{}", text(&same.stderr));
}

#[test]
fn replay_names_the_simulated_host_and_says_where_the_recorded_one_differs() {
    let dir = tempfile::tempdir().expect("a directory");
    let monday = recording(dir.path(), "monday.jsonl", 100, 3);
    let compare = |more: &[&str]| {
        let usual =
            ["compare", "--scheduler", "builtin", "--admission", "builtin", "--prefix-cache", "builtin"];
        let output = sim(&[&usual[..], &["--trace", &monday], more].concat());
        assert!(output.status.success(), "{more:?}: {}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let differs = "monday was recorded with demo on cpu, and is replayed on ";
    let (shown, said) = compare(&[]);
    assert!(shown.starts_with("simulated host: h100 with a model of shape 8b, at most 8 running"), "{shown}");
    assert!(
        said.contains(&format!("{differs}h100 with a model of shape 8b; see --device and --model")),
        "{said}"
    );
    let (shown, said) = compare(&["--device", "cpu", "--model", "demo"]);
    assert!(shown.starts_with("simulated host: cpu with a model of shape demo, "), "{shown}");
    assert!(!said.contains(differs), "{said}");
}

#[test]
fn trace_without_requests_is_a_failure() {
    let dir = tempfile::tempdir().expect("a directory");
    let idle = recording(dir.path(), "idle.jsonl", 100, 0);
    let output = sim(&["compare", "--scheduler", "builtin", "--trace", &idle]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("idle: the trace has no requests to replay"),
        "{}",
        text(&output.stderr)
    );
    assert!(output.stdout.is_empty(), "no table of zeros");
}

#[test]
fn decisions_behind_a_gap_are_no_empty_recording() {
    let head = trace::Head { format: trace::FORMAT, decisions: true, ..trace::Head::default() };
    let asked = trace::Asked {
        kind: "prefix-cache".to_owned(),
        question: serde_json::json!({"evict": {"now": 1, "need": 1}}),
        answer: serde_json::json!([]),
        ..trace::Asked::default()
    };
    let (head, asked) = (trace::Line::Head(Box::new(head)), trace::Line::Asked(Box::new(asked)));
    let gap = trace::Line::Lost { happenings: 3 };
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("gap.jsonl");
    for (lines, says) in [
        (vec![&head, &gap, &asked, &asked], "all 2 are behind a gap"),
        (vec![&head], "the recording contains no decisions"),
    ] {
        let line = |line: &&trace::Line| serde_json::to_string(line).expect("JSON") + "\n";
        std::fs::write(&path, lines.iter().map(line).collect::<String>()).expect("it can be written");
        let output = sim(&["decisions", path.to_str().expect("UTF-8")]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(says), "{says}: {}", text(&output.stderr));
    }
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
    let old = file("old.jsonl", "{\"head\":{\"format\":9}}\n");
    let empty = file("empty.csv", "");
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
            "not a trace; expected a recording of a host, or one of the formats azure",
        ),
        (
            &["run", "--trace", &broken],
            1,
            "broken: line 2, column 23: GeneratedTokens is `nine`, not a whole number",
        ),
        (&["run", "--trace", &old], 2, "missing field `host`"),
        (&["run", "--trace", &empty], 2, "is empty"),
        (&["run", "--trace", "nowhere.csv"], 2, "nowhere.csv: can't be read"),
        (&["run", "--device", &profile], 2, "format 1 is not supported, only 3; calibrate again"),
        (&["run", "--device", &zero], 2, "`step_us` must be more than 0"),
        (&["run", "--device", &zero, "--model", "8b"], 2, "a profile file includes its model"),
        (&["run", "--device", "missing.json"], 2, "--device missing.json: can't be read"),
        (&["run", "--slo-ttft-ms", "0"], 2, "--slo-ttft-ms must be more than 0"),
        (&["decisions", &notes], 2, "line 1, column 1: expected value"),
        (&["judge", "--device", "h100", &broken], 2, "not a recording of a host, so nothing was measured"),
        (&["calibrate", &notes], 2, "notes.csv: line 1, column 1"),
    ] {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(says), "{arguments:?}: {}", text(&output.stderr));
    }
}
