//! `infer sim` as a process: its output depends only on the arguments and the seed, and errors name the bad argument.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

use infer_api::trace;
use serde_json::Value;

fn sim(arguments: &[&str]) -> Output {
    let mut infer = Command::new(env!("CARGO_BIN_EXE_infer"));
    infer.arg("sim").args(arguments).output().expect("infer starts")
}

/// The results of a command that must succeed, one per run.
fn results(arguments: &[&str]) -> Vec<Value> {
    let output = sim(&[arguments, &["--format", "json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).expect("UTF-8")
}

/// The rows of CSV as maps from the names of the columns.
fn rows(text: &str) -> Vec<BTreeMap<String, String>> {
    csv::Reader::from_reader(text.as_bytes()).deserialize().map(|row| row.expect("a row")).collect()
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
    assert!(one.contains("heavy-tail at load 0.90, ") && one.contains(" requests/s: 150 requests"), "{one}");
    assert!(one.contains(r#"srpt{"patience_ms": 500}"#) && one.contains(", tenant 2"), "{one}");
}

#[test]
fn results_come_as_csv_json_and_html() {
    let csv = text(&sim(&["run", "--requests", "50", "--format", "csv"]).stdout);
    let run = rows(&csv).remove(0);
    let names = ["contender", "requests", "seed", "device", "model", "tenant", "error"];
    assert_eq!(names.map(|name| &run[name][..]), ["continuous", "50", "1", "h100", "8b", "", ""]);
    for share in ["hit_rate", "pool_used_mean", "pool_used_peak"] {
        let share: f64 = run[share].parse().expect("a number");
        assert!(share > 0.0 && share <= 1.0, "{csv}");
    }
    let json = text(&sim(&["run", "--requests", "50", "--format", "json"]).stdout);
    let cells: Value = serde_json::from_str(&json).expect("JSON");
    let page = text(&sim(&["run", "--requests", "50", "--format", "html"]).stdout);
    assert!(page.starts_with("<!doctype html>") && page.matches("<figure>").count() == 8, "{page}");
    for outside in ["http", "src=", "href=", "@import", "url(", "<link", "<script", "NaN", "inf "] {
        assert!(!page.contains(outside), "the page is self-contained: {outside}");
    }
    assert!(page.contains("seed 1; goodput counts requests whose first token came within 2000 ms"), "{page}");
    assert_eq!((&cells[0]["settings"]["device"], &cells[0]["settings"]["seed"]), (&"h100".into(), &1.into()));
    assert!(cells[0]["cache"]["events"]["CONVERSATIONAL_HIT"].as_u64() > Some(0), "{json}");
    assert_eq!((&cells[0]["contender"], &cells[0]["requests"]), (&"continuous".into(), &50.into()));
}

#[test]
fn hosts_and_policies_are_compared_in_all_combinations() {
    let usual =
        ["compare", "--workload", "diverse", "--requests", "60", "--rate", "5", "--scheduler", "srpt"];
    let hosts = ["--device", "l4", "--device", "a100", "--prefill-chunk", "128", "--prefill-chunk", "512"];
    let runs = results(&[&usual[..], &hosts, &["--scheduler", "continuous"]].concat());
    let shown = |run: &Value| {
        let settings = &run["settings"];
        (run["contender"].to_string(), settings["device"].to_string(), settings["prefill_chunk"].as_u64())
    };
    let mut expected = Vec::new();
    for device in ["l4", "a100"] {
        for chunk in [128, 512] {
            for scheduler in ["srpt", "continuous"] {
                let name = format!("\"{device} prefill-chunk={chunk} {scheduler}\"");
                expected.push((name, format!("\"{device}\""), Some(chunk)));
            }
        }
    }
    assert_eq!(runs.iter().map(shown).collect::<Vec<_>>(), expected);
    for run in &runs {
        assert_eq!((run["offered_per_second"].as_f64(), run["finished"].as_u64()), (Some(5.0), Some(60)));
    }
    let alone = results(&[&usual[..], &["--device", "a100", "--prefill-chunk", "128"]].concat());
    assert_eq!((&alone[0]["fingerprint"], &alone[0]["contender"]), (&runs[4]["fingerprint"], &"srpt".into()));
    let output = sim(&[&usual[..], &hosts].concat());
    let (table, chunked) =
        (text(&output.stdout), "  l4 prefill-chunk=128: l4 with a model of shape 8b, at most 64");
    assert!(
        table.starts_with("simulated hosts; all get the same requests") && table.contains(chunked),
        "{table}"
    );
    assert!(table.contains(", 5.00 requests/s: 60 requests"), "{table}");
}

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
    assert!(reported.is_some_and(|reported| (mean - reported).abs() < 0.01 * mean), "{mean} {reported:?}");
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
fn devices_are_listed_and_read_from_files() {
    let listed = text(&sim(&["devices"]).stdout);
    assert!(["cpu ", "h200 ", "70b "].iter().all(|name| listed.contains(name)), "{listed}");
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("it can be written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let (device, model) = (text(&sim(&["devices", "l4"]).stdout), text(&sim(&["devices", "8b"]).stdout));
    let (same, shape) = (file("l4.json", &device), file("8b.json", &model));
    let usual = ["run", "--workload", "diverse", "--requests", "50", "--rate", "2"];
    let outcome = |more: &[&str]| results(&[&usual[..], more].concat()).remove(0);
    let named = outcome(&["--device", "l4", "--model", "8b"]);
    assert_eq!(outcome(&["--device", &same, "--model", &shape]), named);
    let double = device.replace("300000000000.0", "600000000000.0").replace("\"l4\"", "\"fast l4\"");
    assert_ne!(double, device);
    let fast = outcome(&["--device", &file("fast.json", &double)]);
    assert_eq!(fast["settings"]["device"], "fast l4");
    assert!(fast["itl_ms"]["p50"].as_f64() < named["itl_ms"]["p50"].as_f64(), "{fast}");
    let unknown = text(&sim(&["devices", "abacus"]).stderr);
    assert!(unknown.contains("unknown device or model `abacus`; use one of cpu"), "{unknown}");
    let broken = file("broken.json", &device.replace("\"memory\"", "\"memories\""));
    let refused = text(&sim(&["run", "--device", &broken]).stderr);
    assert!(refused.contains("not a device: unknown field `memories`"), "{refused}");
    let cut = file("cut.json", &device[..40]);
    let refused = text(&sim(&["run", "--device", &cut, "--model", "8b"]).stderr);
    assert!(refused.contains("cut.json: not a JSON object: EOF"), "{refused}");
}

#[test]
fn caching_can_be_switched_off_in_comparisons() {
    let usual = ["compare", "--workload", "chat", "--requests", "150", "--scheduler", "continuous"];
    let runs = results(&[&usual[..], &["--prefix-caching", "on", "--prefix-caching", "off"]].concat());
    let names: Vec<&Value> = runs.iter().map(|run| &run["contender"]).collect();
    assert_eq!(names, ["prefix-caching=on", "prefix-caching=off"]);
    let prefilled: Vec<f64> =
        runs.iter().map(|run| run["cache"]["prefilled_ratio"].as_f64().expect("a ratio")).collect();
    assert!(prefilled[0] < 0.6 && prefilled[1] == 1.0, "{prefilled:?}");
    let limits = ["--max-prefill-requests", "3", "--prompt-cache-entries", "7", "--prompt-cache-ttl", "9"];
    let settings =
        results(&[&["run", "--requests", "20"][..], &limits].concat()).remove(0)["settings"].take();
    let read = ["max_prefill_requests", "prompt_cache_entries", "prompt_cache_ttl_s"]
        .map(|name| settings[name].as_f64());
    assert_eq!(read, [Some(3.0), Some(7.0), Some(9.0)]);
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
        (&["compare", "--load", "0.5", "--load", "1", "--load", "0.5"], "--load 0.5 is given twice"),
        (&["compare", "--seed", "3", "--seed", "3"], "--seed 3 is given twice; give each seed once"),
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
        (
            &["run", "--device", "l4", "--device", "h100"],
            "not several (l4; h100); `infer sim compare` compares hosts",
        ),
        (&["compare", "--plan-ahead", "off", "--plan-ahead", "off"], "--plan-ahead off is given twice"),
        (&["run", "--out", "same.csv", "--requests-out", "same.csv"], "the file is that of --out"),
        (&["fuzz", "--seeds", "1", "--out", "case.json"], "--minimize"),
        (&["run", "--hardware", "l4", "--model", "70b"], "choose a larger device"),
        (&["run", "--scheduler", "unknown"], "use one of continuous"),
        (&["run", "--closed-loop"], "--closed-loop: only a recording"),
        (&["run", "--max-tokens", "9"], "--max-tokens: only public traces lack it"),
        (&["run", "--starvation-bound", "0"], "--starvation-bound must be from 0.001 to 3600 seconds, not 0"),
        (&["run", "--api-keys", "nowhere.toml"], "--api-keys: can't read nowhere.toml"),
        (&["run", "--workload", "nowhere.json"], "--workload nowhere.json: can't be read"),
        (&["run", "--list", "--format", "csv"], "--list: workloads are listed as text or JSON"),
        (&["run", "--out", "nowhere/result.txt"], "--out: can't write nowhere/result.txt"),
        (
            &["fuzz", "--seeds", "1", "--minimize", "--out", "nowhere"],
            "--out: can't write nowhere/fuzz-1.json",
        ),
        (
            &["calibrate", "nothing.jsonl", "--out", "nowhere/host.json"],
            "--out: can't write nowhere/host.json",
        ),
        (&["run", "--admission", "slo,unknown"], "use one of memory-aware"),
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
    let csv = text(&output.stdout);
    let (runs, tenants): (Vec<_>, Vec<_>) = rows(&csv).into_iter().partition(|row| row["tenant"].is_empty());
    assert_eq!(runs.len(), 3 * 2 * 2, "{csv}");
    assert!(csv.contains("\nburstgpt,4,srpt,3,3,0,0,"), "{csv}");
    let of = tenants.iter().map(|row| ["workload", "tenant", "finished"].map(|name| &row[name][..]));
    let models = [["burstgpt", "0", "2"], ["burstgpt", "1", "1"]];
    assert_eq!(of.collect::<Vec<_>>(), models.repeat(4), "a row per tenant where there are several");
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
    for group in [
        "diverse at load 0.90, 57.91 requests/s: 40",
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

#[test]
fn listed_workload_is_a_template_that_can_be_read_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("mine.json");
    let shown = path.to_str().expect("UTF-8");
    let listed = sim(&["run", "--list", "--workload", "instruct", "--format", "json", "--out", shown]);
    assert!(listed.status.success() && listed.stdout.is_empty(), "{}", text(&listed.stderr));
    let all: Vec<Value> = results(&["compare", "--list"]);
    assert!(all.len() == 13 && all.iter().all(|workload| workload["streams"].is_array()), "{all:?}");

    let run = |workload: &str| results(&["run", "--workload", workload, "--requests", "60"]);
    assert_eq!(run(shown), run("instruct"));
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

#[test]
fn everything_is_run_with_each_seed() {
    let seeds = ["compare", "--seed", "3", "--seed", "4", "--requests", "40", "--workload", "diverse"];
    let runs = results(&[&seeds[..], &["--scheduler", "continuous", "--scheduler", "srpt"]].concat());
    let of = |run: &Value| (run["contender"].clone(), run["settings"]["seed"].clone());
    let expected = [("continuous", 3), ("continuous", 4), ("srpt", 3), ("srpt", 4)];
    let expected = expected.map(|(name, seed)| (Value::from(name), Value::from(seed)));
    assert_eq!(runs.iter().map(of).collect::<Vec<_>>(), expected);
    let alone =
        results(&["run", "--seed", "4", "--requests", "40", "--workload", "diverse", "--load", "0.9"]);
    assert_eq!(alone[0]["fingerprint"], runs[1]["fingerprint"]);
    assert_ne!(runs[0]["fingerprint"], runs[1]["fingerprint"]);
}

#[test]
fn planning_ahead_hides_the_host_s_time() {
    let gap = |more: &[&str]| {
        let usual = ["run", "--workload", "diverse", "--load", "0.5", "--requests", "300"];
        results(&[&usual[..], more].concat())[0]["itl_ms"]["p50"].as_f64().expect("a time")
    };
    let (free, waiting) = (gap(&[]), gap(&["--host-us", "2000"]));
    assert!(waiting > free + 1.5, "{waiting} against {free} ms");
    let ahead = gap(&["--host-us", "2000", "--plan-ahead"]);
    assert!(ahead < free + 0.5, "{ahead} against {free} ms");
    assert_eq!(gap(&["--host-us", "2000", "--plan-ahead=false"]), waiting);
}

#[test]
fn starvation_bound_limits_the_patience_of_policies() {
    let run = |more: &[&str]| {
        let usual = ["run", "--workload", "heavy-tail", "--load", "1.2", "--requests", "400"];
        results(&[&usual[..], &["--scheduler", "srpt"], more].concat())[0]["fingerprint"].clone()
    };
    let usual = run(&[]);
    assert_eq!(run(&["--starvation-bound", "5"]), usual);
    assert_ne!(run(&["--starvation-bound", "0.05"]), usual);
}

#[test]
fn weights_and_rates_of_a_tenants_file_apply_in_its_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).expect("it can be written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let rates = file("rates.toml", "[tenants.z-flood]\ntokens-per-minute = 600\n[tenants.a-quiet]\n");
    let weights = file("weights.toml", "[tenants.flood]\n[tenants.quiet]\nweight = 0.1\n");
    let run = |more: &[&str]| {
        let usual = ["run", "--workload", "tenants", "--load", "1", "--requests", "300"];
        results(&[&usual[..], more].concat()).remove(0)
    };
    let refused =
        |run: &Value| [0_usize, 1].map(|tenant| run["tenants"][tenant]["refused"].as_u64().expect("a count"));
    let limited = ["--admission", "memory-aware,token-bucket"];
    assert_eq!(refused(&run(&limited)), [0, 0], "nobody has a rate");
    let [flood, quiet] = refused(&run(&[&limited[..], &["--api-keys", &rates]].concat()));
    assert!(flood > 200 && quiet == 0, "{flood} and {quiet}: the first of the file is tenant 1");

    let template = text(&sim(&["run", "--list", "--workload", "tenants", "--format", "json"]).stdout);
    let sparse = file("sparse.json", &template.replace("\"tenant\": 2,", "\"tenant\": 40,"));
    let late = file("late.toml", "[tenants.z-flood]\n[tenants.a-quiet]\ntokens-per-minute = 600\n");
    let usual = ["run", "--workload", &sparse, "--load", "1", "--requests", "300", "--api-keys", &late];
    let run_sparse = results(&[&usual[..], &limited].concat()).remove(0);
    let [flood, quiet] = refused(&run_sparse);
    assert_eq!(run_sparse["tenants"][1]["tenant"], 40);
    assert!(flood == 0 && quiet > 0, "{flood} and {quiet}: the second of the file is tenant 40");

    let fair = |more: &[&str]| run(&[&["--scheduler", "fair"][..], more].concat());
    let ttft = |run: &Value| run["tenants"][1]["ttft_ms"]["mean"].as_f64().expect("a time");
    let (equal, light) = (fair(&[]), fair(&["--api-keys", &weights]));
    assert!(ttft(&light) > 2.0 * ttft(&equal), "{} against {} ms", ttft(&light), ttft(&equal));

    let mixed = sim(&["compare", "--workload", "chat", "--workload", "tenants", "--api-keys", &rates]);
    let says = "--api-keys: the tenants of chat have the numbers 0, those of tenants 1, 2; compare them";
    assert!(mixed.status.code() == Some(2) && text(&mixed.stderr).contains(says), "{}", text(&mixed.stderr));
}

#[test]
fn runs_that_finish_are_reported_beside_one_that_fails() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("broken.csv");
    let lines =
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,7,9\n2024-05-10 00:00:01,7,nine\n";
    std::fs::write(&path, lines).expect("it can be written");
    let path = path.to_str().expect("UTF-8");
    let run = |format: &str| {
        let compare = ["compare", "--scheduler", "continuous", "--workload", "diverse", "--requests", "40"];
        let output = sim(&[&compare[..], &["--trace", path, "--format", format]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let says =
            "1 of 2 runs failed, the first: continuous at load 1.00 with seed 1 on broken: line 3, column 23";
        assert!(said.contains(says), "{said}");
        text(&output.stdout)
    };
    let shown = run("text");
    assert!(shown.contains("diverse at load 0.90, 57.91 requests/s: 40 requests"), "{shown}");
    let rows = rows(&run("csv"));
    let of = |row: usize| ["workload", "finished"].map(|name| &rows[row][name][..]);
    assert_eq!([of(0), of(1)], [["diverse", "40"], ["broken", ""]]);
    assert_eq!(rows[0]["error"], "");
    let runs: Value = serde_json::from_str(&run("json")).expect("JSON");
    assert_eq!(runs[0]["finished"], 40);
    for said in [shown, rows[1]["error"].clone(), runs[1]["error"].to_string(), run("html")] {
        assert!(said.contains("line 3, column 23: GeneratedTokens is"), "{said}");
    }
}

/// Writes a recording of a host with so many blocks and requests. Returns its path.
fn recording(dir: &Path, name: &str, total_blocks: u32, requests: u64) -> String {
    recording_with(dir, name, total_blocks, requests, Vec::new())
}

/// The same with terms of tenants; all requests belong to tenant 0.
fn recording_with(
    dir: &Path,
    name: &str,
    total_blocks: u32,
    requests: u64,
    tenants: Vec<trace::Tenant>,
) -> String {
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
    let head =
        trace::Head { format: trace::FORMAT, model, device, engine, tenants, ..trace::Head::default() };
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
fn replay_grants_tenants_what_the_recorded_host_did() {
    let dir = tempfile::tempdir().expect("a directory");
    let poor = trace::Tenant { tenant: 0, weight_permille: 1_000, rate_per_minute: 20, burst: 0 };
    let [free, limited] = [("free.jsonl", Vec::new()), ("limited.jsonl", vec![poor])]
        .map(|(name, tenants)| recording_with(dir.path(), name, 100, 10, tenants));
    let refused = |path: &str, more: &[&str]| {
        let usual = ["run", "--trace", path, "--scheduler", "builtin", "--admission", "token-bucket"];
        results(&[&usual[..], &["--prefix-cache", "builtin"], more].concat())[0]["refused"]
            .as_u64()
            .expect("a count")
    };
    assert_eq!(refused(&free, &[]), 0);
    assert!((5..10).contains(&refused(&limited, &[])));
    let own = dir.path().join("own.toml");
    std::fs::write(&own, "[tenants.first]\n").expect("it can be written");
    assert_eq!(refused(&limited, &["--api-keys", own.to_str().expect("UTF-8")]), 0, "a file replaces them");
    let compared = sim(&["compare", "--scheduler", "builtin", "--trace", &free, "--trace", &limited]);
    let says = "its host had other weights or rates of tenants than that of";
    assert!(text(&compared.stderr).contains(says), "{}", text(&compared.stderr));
    assert!(text(&compared.stderr).contains("or give all the same by --api-keys"));
}

#[test]
fn terms_of_recorded_tenants_do_not_reach_other_traffic() {
    let dir = tempfile::tempdir().expect("a directory");
    let poor = trace::Tenant { tenant: 0, weight_permille: 1_000, rate_per_minute: 20, burst: 0 };
    let limited = recording_with(dir.path(), "limited.jsonl", 100, 10, vec![poor]);
    let azure = concat!(env!("CARGO_MANIFEST_DIR"), "/../sim/tests/traces/azure.csv");
    let compare = |more: &[&str]| {
        sim(&[&["compare", "--scheduler", "builtin", "--trace", &limited][..], more].concat())
    };
    for other in [["--workload", "diverse"], ["--trace", azure]] {
        let output = compare(&other);
        let says = format!(
            "--trace {limited}: its host's weights and rates of tenants don't apply to other traffic"
        );
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(&says), "{}", text(&output.stderr));
    }
    let own = dir.path().join("own.toml");
    std::fs::write(&own, "[tenants.first]\n").expect("it can be written");
    let own = own.to_str().expect("UTF-8");
    let output = compare(&["--trace", azure, "--api-keys", own]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(compare(&[]).status.success(), "by itself");
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
