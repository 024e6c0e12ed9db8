//! Files that commands write and read back.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{recording, results, rows, sim, text};

#[test]
fn run_writes_a_row_per_request() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("requests.csv");
    let shown = file.to_str().expect("UTF-8");
    let usual =
        ["run", "--workload", "repeat", "--requests", "200", "--load", "3", "--max-waiting-requests", "8"];
    let run = &results(&[&usual[..], &["--requests-out", shown]].concat())[0];
    let rows = rows(&std::fs::read_to_string(&file).expect("it is written"));
    let of = |column: &str, value: &str| rows.iter().filter(|row| row[column] == value).count() as u64;
    assert_eq!(Some(rows.len() as u64), run["requests"].as_u64());
    for ending in ["finished", "refused"] {
        assert!(
            of("ending", ending) > 0 && Some(of("ending", ending)) == run[ending].as_u64(),
            "{ending}: {run}"
        );
    }
    let events = run["cache"]["events"].as_object().expect("an object");
    assert!(events["FULL_HIT_NO_PREFILL_NEEDED"].as_u64() > Some(0), "{run}");
    for (name, count) in events {
        assert_eq!(Some(of("event", name)), count.as_u64(), "{name}");
    }
    let sum =
        |column: &str| rows.iter().map(|row| row[column].parse::<u64>().expect("a number")).sum::<u64>();
    let total =
        |map: &Value| map.as_object().expect("an object").values().filter_map(Value::as_u64).sum::<u64>();
    assert_eq!(sum("cached_tokens"), total(&run["cache"]["cached_tokens"]));
    let ttft: Vec<f64> = rows.iter().filter_map(|row| row["ttft_ms"].parse().ok()).collect();
    let (mean, reported) = (ttft.iter().sum::<f64>() / ttft.len() as f64, run["ttft_ms"]["mean"].as_f64());
    assert!(reported.is_some_and(|reported| (mean - reported).abs() < 1e-9 * mean), "{mean} {reported:?}");
    let longest = ttft.iter().copied().fold(0.0, f64::max);
    assert_eq!(run["ttft_ms"]["max"].as_f64(), Some(longest), "extremes are exact, too");
    let conversations = |workload: &str| {
        results(&["run", "--workload", workload, "--requests", "60", "--requests-out", shown]);
        let rows = self::rows(&std::fs::read_to_string(&file).expect("it is written"));
        rows.iter().map(|row| row["conversation"].clone()).collect::<BTreeSet<String>>()
    };
    assert!((2..50).contains(&conversations("chat").len()), "several turns each");
    assert_eq!(conversations("diverse"), BTreeSet::from([String::new()]));
    let late = sim(&["run", "--requests-out", "nowhere/requests.csv"]);
    assert_eq!(late.status.code(), Some(2), "{}", text(&late.stderr));
}

#[test]
fn comparison_writes_the_requests_of_all_runs_in_the_order_of_its_results() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("requests.csv");
    let compare = |threads: &str| {
        let usual = ["compare", "--workload", "urgent", "--workload", "diverse", "--requests", "60"];
        let seeds = ["--seed", "3", "--seed", "4", "--threads", threads];
        let policies = ["--scheduler", "fair", "--scheduler", "continuous"];
        let out = ["--requests-out", file.to_str().expect("UTF-8")];
        let runs = results(&[&usual[..], &seeds, &policies, &out].concat());
        (runs, std::fs::read_to_string(&file).expect("it is written"))
    };
    let (runs, text) = compare("3");
    assert_eq!(compare("1").1, text, "whatever the threads");
    let all = rows(&text);
    assert_eq!(all.len(), 8 * 60);
    for (run, rows) in runs.iter().zip(all.chunks(60)) {
        let names = ["workload", "contender"].map(|name| run[name].as_str().expect("a name"));
        let seed = run["settings"]["seed"].to_string();
        let load = run["load"].as_f64().expect("a load");
        for row in rows {
            assert_eq!(["workload", "contender"].map(|name| &row[name][..]), names);
            assert_eq!((&row["seed"], row["load"].parse()), (&seed, Ok(load)));
            let is_urgent = row["tenant"] == "2";
            assert_eq!((&row["stream"] == "1", &row["priority"] == "3"), (is_urgent, is_urgent), "{row:?}");
            assert_eq!((&row["deadline_ms"][..], &row["max_tokens"][..]), ("2000.0", "1024"));
            let known = |name: &str| row[name].parse::<f64>().expect("a number");
            assert_eq!(row["in_time"] == "true", known("ttft_ms") <= 2_000.0, "{row:?}");
            if known("output_tokens") > 1.0 {
                assert!(known("itl_p99_ms") <= known("itl_max_ms"), "{row:?}");
                let later = known("output_tokens") - 1.0;
                let tpot = (known("latency_ms") - known("ttft_ms")) / later;
                assert!((known("tpot_ms") - tpot).abs() <= 0.000_501, "{row:?}");
            }
        }
        let longest = |name: &str| rows.iter().filter_map(|row| row[name].parse().ok()).fold(0.0, f64::max);
        assert_eq!(Some(longest("itl_max_ms")), run["itl_ms"]["max"].as_f64(), "{names:?}");
        assert_eq!(Some(longest("tpot_ms")), run["tpot_ms"]["max"].as_f64(), "{names:?}");
        assert!(
            run["ttft_ms"]["p90"].is_number() && run["ttft_ms"]["p999"].is_null(),
            "of 60 requests: {run}"
        );
        let in_time = rows.iter().filter(|row| row["in_time"] == "true").count() as f64;
        assert_eq!(Some(in_time / 60.0), run["in_time"].as_f64(), "{names:?}");
    }
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
fn result_that_its_file_does_not_take_goes_to_stdout() {
    let seeds = ["fuzz", "--seed", "3", "--seeds", "1", "--format", "json"];
    for command in [&["run", "--requests", "20"][..], &seeds] {
        let (printed, output) = (sim(command), sim(&[command, &["--out", "/dev/full"]].concat()));
        assert_eq!((printed.status.code(), output.status.code()), (Some(0), Some(1)), "{command:?}");
        assert_eq!(text(&output.stdout), text(&printed.stdout), "{command:?}");
        assert!(text(&output.stderr).contains("error: can't write /dev/full: "), "{}", text(&output.stderr));
    }
}

#[test]
fn results_overwrite_neither_each_other_nor_what_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("folder")).expect("it can be made");
    recording(dir.path(), "host.jsonl", 99, 1);
    let trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,7,9\n";
    for (name, content) in [("case.json", "a case"), ("trace.csv", trace)] {
        std::fs::write(dir.path().join(name), content).expect("it can be written");
    }
    let files = || {
        let entries = std::fs::read_dir(dir.path()).expect("it is there");
        let paths = entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file());
        paths.map(|path| (std::fs::read_to_string(&path).expect("a text"), path)).collect::<BTreeSet<_>>()
    };
    let before = files();
    let hunt = ["fuzz", "--seeds", "1", "--minimize", "--out"];
    let is_out = "the file is that of --out; choose another one";
    for (command, more, says) in [
        (&["run", "--requests", "20", "--out"][..], &["a.csv", "--requests-out", "a.csv"][..], is_out),
        (&["run", "--requests", "20", "--out"], &["./a.csv", "--requests-out", "a.csv"], is_out),
        (&hunt, &["./same.json", "--case-out", "same.json"], is_out),
        (&hunt, &["same.json", "--case-out", "folder/../same.json"], is_out),
        (&hunt, &["fuzz-19.json", "--format", "json"], is_out),
        (&["fuzz", "--replay", "case.json", "--out"], &["folder/../case.json"], "one of --replay; choose"),
        (&["calibrate", "host.jsonl", "--out"], &["./host.jsonl"], "one of the recordings; choose"),
        (
            &["judge", "host.jsonl", "--device", "cpu", "--out"],
            &["./host.jsonl"],
            "one of the recordings; choose",
        ),
        (&["run", "--trace", "trace.csv", "--out"], &["./trace.csv"], "--out: the file is one of --trace"),
        (&["run", "--trace", "trace.csv", "--requests-out"], &["trace.csv"], "is one of --trace; choose"),
        (&["compare", "--trace", "trace.csv", "--out"], &["trace.csv"], "is one of --trace; choose"),
        (&["compare", "--trace", "trace.csv", "--requests-out"], &["trace.csv"], "is one of --trace; choose"),
    ] {
        let mut infer = Command::new(env!("CARGO_BIN_EXE_infer"));
        let infer = infer.current_dir(dir.path()).arg("sim").args(command).args(more);
        let output = infer.output().expect("infer starts");
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(says), "{command:?} {more:?}: {said}");
        assert_eq!(files(), before, "{command:?} {more:?}");
    }
}

#[test]
fn listed_workload_is_a_template_that_can_be_read_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("mine.json");
    let shown = path.to_str().expect("UTF-8");
    let listed = sim(&["run", "--list", "--workload", "instruct", "--format", "json", "--out", shown]);
    assert!(listed.status.success() && listed.stdout.is_empty(), "{}", text(&listed.stderr));
    let all: Vec<Value> = results(&["compare", "--list"]);
    assert!(all.len() == 16 && all.iter().all(|workload| workload["streams"].is_array()), "{all:?}");

    let run = |workload: &str| {
        let mut run = results(&["run", "--workload", workload, "--requests", "60"]).remove(0);
        assert_eq!(run["args"].take()[3], workload);
        run
    };
    assert_eq!(run(shown), run("instruct"));
    let bursts = sim(&["run", "--list", "--workload", "chat", "--burstiness", "0.25", "--format", "json"]);
    let bursts: Value = serde_json::from_slice(&bursts.stdout).expect("JSON");
    assert_eq!(bursts["streams"][0]["arrivals"], serde_json::json!({"gamma": {"burstiness": 0.25}}));
    assert_eq!(bursts["name"], "chat burstiness=0.25");
    let template = std::fs::read_to_string(&path).expect("it was written");
    let edited = template.replace("\"requests\": 2000", "\"requests\": 33").replace("instruct", "mine");
    std::fs::write(&path, &edited).expect("it can be written");
    let own = &results(&["run", "--workload", shown])[0];
    assert_eq!((&own["workload"], &own["requests"]), (&"mine".into(), &33.into()));

    std::fs::write(&path, edited.replace("\"tokens\": 800", "\"tokens\": 0")).expect("it can be written");
    let refused = sim(&["run", "--workload", shown]);
    let says = format!("--workload {shown}: streams[0].text.shared.tokens is 0, not from 1 to 16777216");
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains(&says), "{}", text(&refused.stderr));
}

#[test]
fn output_file_is_tried_before_the_simulation_and_written_after_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let [old, new] = ["old.csv", "new.csv"].map(|name| dir.path().join(name));
    std::fs::write(&old, "kept").expect("it can be written");
    let run = |path: &Path, more: &[&str]| {
        let usual = ["run", "--requests", "20", "--format", "csv", "--out", path.to_str().expect("UTF-8")];
        sim(&[&usual[..], more].concat()).status.code()
    };
    for path in [&old, &new] {
        assert_eq!(run(path, &["--load", "0"]), Some(2), "it fails after the check of the file");
    }
    assert_eq!(std::fs::read_to_string(&old).expect("it is there"), "kept");
    assert!(!new.exists(), "nothing is left behind");
    for path in [&old, &new] {
        assert_eq!(run(path, &[]), Some(0));
        assert!(std::fs::read_to_string(path).expect("it is there").starts_with("workload,"));
    }
    assert_eq!(run(dir.path(), &[]), Some(2), "a folder is no file");
}
