//! Replays of public traces.

use serde_json::Value;

use super::{results, rows, sim, text};

#[test]
fn public_trace_formats_are_replayed_and_compared() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/tests/traces/");
    let [azure, burstgpt, mooncake, bailian] =
        ["azure.csv", "burstgpt.csv", "mooncake.jsonl", "bailian.jsonl"].map(|name| format!("{dir}{name}"));
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
    let csv = text(&output.stdout);
    let (runs, tenants): (Vec<_>, Vec<_>) = rows(&csv).into_iter().partition(|row| row["tenant"].is_empty());
    assert_eq!(runs.len(), 3 * 2 * 2, "{csv}");
    assert!(csv.contains("\nburstgpt,4,srpt,3,3,0,0,"), "{csv}");
    let of = tenants.iter().map(|row| ["workload", "tenant", "finished"].map(|name| &row[name][..]));
    let models = [["burstgpt", "0", "2"], ["burstgpt", "1", "1"]];
    assert_eq!(of.collect::<Vec<_>>(), models.repeat(4), "a row per tenant where there are several");
    let one = text(&sim(&["run", "--trace", &mooncake, "--requests", "2", "--format", "csv"]).stdout);
    assert!(one.contains("\nmooncake,1,continuous,2,2,0,0,"), "{one}");
    let chats = text(&sim(&["run", "--trace", &bailian, "--format", "csv"]).stdout);
    assert!(chats.contains("\nbailian,1,continuous,5,5,0,0,"), "{chats}");
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
    for group in [
        "diverse at load 0.90, 52.25 requests/s: 40",
        &format!("{one} at load 1.00: 2"),
        &format!("{other} at load 1.00: 2"),
    ] {
        assert!(table.contains(group), "{group}: {table}");
    }
    let runs = results(&[&compare[..], &arguments].concat());
    let seconds: Vec<f64> =
        runs.iter().map(|run| run["seconds"].as_f64().expect("seconds").round()).collect();
    assert_eq!(seconds[2..], [3.0, 3.0, 5.0, 5.0]);
}

#[test]
fn rate_scales_a_trace_and_next_to_it_a_workload() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("day.csv");
    let row = |second: u32| format!("2024-05-10 00:00:{second:02},7,9\n");
    let rows = [0, 2, 3, 20].map(row).concat();
    std::fs::write(&path, format!("TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")).expect("it is written");
    let usual = ["compare", "--trace", path.to_str().expect("UTF-8"), "--scheduler", "continuous"];
    let run = |more: &[&str]| {
        let runs = results(&[&usual[..], more].concat());
        let of =
            |run: &Value| ["load", "offered_per_second", "offered_seconds"].map(|name| run[name].as_f64());
        runs.iter().map(of).collect::<Vec<_>>()
    };
    let (slow, fast) = ([1.0, 0.15, 20.0].map(Some), [2.0, 0.3, 10.0].map(Some));
    assert_eq!(run(&["--rate", "0.15", "--rate", "0.3"]), [slow, fast]);
    assert_eq!(run(&["--load", "2"]), [[Some(2.0), None, Some(10.0)]]);
    let three = run(&["--requests", "3", "--rate", "0.5"]);
    assert_eq!(three, [[Some(0.75), Some(0.5), Some(4.0)]], "the first three came at 2/3 per second");
    let both = run(&["--rate", "0.3", "--workload", "diverse", "--requests", "4"]);
    assert_eq!((both[0][1], both[1]), (Some(0.3), fast), "the workload comes first");
}

#[test]
fn requests_of_a_trace_that_are_too_long_are_counted_on_stderr() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("long.csv");
    // The second would not fit with the usual `max_tokens`, but with its output.
    let rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,9000,50\n\
                2024-05-10 00:00:01,8000,20\n2024-05-10 00:00:02,100,20\n";
    std::fs::write(&path, rows).expect("it can be written");
    let path = path.to_str().expect("UTF-8");
    let run = |more: &[&str]| {
        let output = sim(&[&["run", "--trace", path, "--format", "json"][..], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let runs: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (runs[0]["refused"].clone(), text(&output.stderr))
    };
    let says = "long: 1 of 3 requests exceed --max-seq-len 8192 (the longest has 9050 tokens) and are refused; a \
                --max-seq-len of 9050 takes all if the pool can hold them (--blocks)\n";
    assert_eq!(run(&[]), (1.into(), says.to_owned()));
    assert_eq!(run(&["--max-seq-len", "9050"]), (0.into(), String::new()));
    let file = dir.path().join("requests.csv");
    run(&["--requests-out", file.to_str().expect("UTF-8")]);
    let refused = self::rows(&std::fs::read_to_string(&file).expect("it is written"));
    let refused = refused.iter().find(|row| row["ending"] == "refused").expect("one is refused");
    assert_eq!((&*refused["prompt_tokens"], &*refused["new_tokens"]), ("9000", "9000"), "as in the trace");
}

#[test]
fn traffic_that_lacks_what_policies_go_by_is_noted_and_gets_a_deadline() {
    let azure = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/tests/traces/azure.csv");
    let run = |command: &str, more: &[&str]| {
        let output = sim(&[&[command, "--trace", azure, "--format", "json"][..], more].concat());
        assert!(output.status.success(), "{more:?}: {}", text(&output.stderr));
        let runs: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (runs[0]["in_time"].clone(), text(&output.stderr))
    };
    let deadlines = |who: &str| {
        format!(
            "azure: no request has a deadline, which {who} would go by; --ttft-deadline-ms gives all one\n"
        )
    };
    let priorities = "azure: all requests have the same priority, which scheduler priority would go by\n";
    for (policies, says) in [
        (&["--scheduler", "continuous", "--admission", "memory-aware"][..], String::new()),
        (&["--scheduler", "deadline"], deadlines("scheduler deadline")),
        (
            &["--scheduler", "deadline", "--admission", "slo,memory-aware"],
            deadlines("admission slo and scheduler deadline"),
        ),
        (&["--scheduler", "srpt", "--admission", r#"slo={"default_ttft_ms": 9}"#], String::new()),
        (&["--scheduler", "priority"], priorities.to_owned()),
    ] {
        assert_eq!(run("run", policies), (Value::Null, says), "{policies:?}");
    }
    let due = |ms: &str| run("run", &["--scheduler", "deadline", "--ttft-deadline-ms", ms]);
    assert_eq!(due("60000"), (1.0.into(), String::new()));
    assert_eq!(due("1"), (0.0.into(), String::new()));
    let (_, said) = run("compare", &["--scheduler", "priority", "--workload", "urgent", "--requests", "40"]);
    assert_eq!(said, priorities, "the workload has priorities");
}

#[test]
fn rows_of_public_traces_without_tokens_are_noted() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = |name: &str, rows: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, rows).expect("it can be written");
        let output = sim(&["compare", "--scheduler", "continuous", "--trace", path.to_str().expect("UTF-8")]);
        (output.status.code(), text(&output.stderr))
    };
    let head = "Timestamp,Model,Request tokens,Response tokens\n";
    let failed = format!("{head}1,M,9,0\n2,M,9,0\n3,M,0,4\n");
    let left_out = "left out of 4 rows read: 2 without output tokens, 1 without prompt tokens\n";
    assert_eq!(run("burst.csv", &format!("{failed}4,M,9,4\n")), (Some(0), format!("burst: {left_out}")));
    assert_eq!(run("whole.csv", &format!("{head}4,M,9,4\n")), (Some(0), String::new()));
    let (code, said) = run("none.csv", &failed);
    let says = "none: the trace has no requests to replay; left out of 3 rows read: 2 without output tokens, 1 without";
    assert!(code == Some(1) && said.contains(says), "{said}");
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,7,0\n2024-05-10 00:00:01,7,9\n";
    let says = "azure: of 2 rows read, these have one token instead of none: 1 as their output\n";
    assert_eq!(run("azure.csv", azure), (Some(0), says.to_owned()));
}

#[test]
fn max_tokens_of_a_public_trace_can_be_chosen() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pair.csv");
    let rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,3000,200\n\
                2024-05-10 00:00:00,3000,200\n";
    std::fs::write(&path, rows).expect("it can be written");
    let path = path.to_str().expect("UTF-8");
    // 8,320 tokens, of which a tenth stays free: two requests fit if no more than their outputs is promised.
    let run = |more: &[&str]| {
        let usual = ["run", "--trace", path, "--blocks", "520"];
        results(&[&usual[..], more].concat())[0]["ttft_ms"]["p99"].as_f64().expect("a time")
    };
    let (usual, exact) = (run(&[]), run(&["--max-tokens", "1"]));
    assert!(usual > 1.5 * exact, "the second waits for the first: {usual} {exact}");
    assert_eq!(run(&["--max-tokens", "1024"]), usual);
}
