//! What runs and comparisons report: the same whatever the threads, in each format, for each seed, beside failures.

use serde_json::Value;

use super::{results, rows, sim, text};

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
    assert!(page.starts_with("<!doctype html>") && page.matches("<figure>").count() == 10, "{page}");
    assert!(page.contains("<h3>memory-aware.claimed_blocks</h3>"), "{page}");
    for outside in ["http", "src=", "href=", "@import", "url(", "<link", "<script", "NaN", "inf "] {
        assert!(!page.contains(outside), "the page is self-contained: {outside}");
    }
    assert!(page.contains("seed 1; goodput counts requests whose first token came within 2000 ms"), "{page}");
    assert_eq!((&cells[0]["settings"]["device"], &cells[0]["settings"]["seed"]), (&"h100".into(), &1.into()));
    assert!(cells[0]["cache"]["events"]["CONVERSATIONAL_HIT"].as_u64() > Some(0), "{json}");
    assert_eq!((&cells[0]["contender"], &cells[0]["requests"]), (&"continuous".into(), &50.into()));
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
    let usual = ["compare", "--requests", "20", "--workload", "diverse", "--scheduler", "continuous"];
    for (seeds, expected) in
        [(&["--seed", "6,2..4", "--seed", "1"][..], &[6_u64, 2, 3, 4, 1][..]), (&[], &[1])]
    {
        let runs = results(&[&usual[..], seeds].concat());
        let of: Vec<u64> = runs.iter().filter_map(|run| run["settings"]["seed"].as_u64()).collect();
        assert_eq!(of, expected, "{seeds:?}");
    }
}

#[test]
fn workloads_are_sent_with_each_burstiness() {
    let usual = ["compare", "--workload", "diverse", "--requests", "60", "--scheduler", "srpt"];
    let shapes = ["--burstiness", "0.0625", "--burstiness", "1"];
    let (runs, plain) = (results(&[&usual[..], &shapes].concat()), results(&usual).remove(0));
    let of = |run: &Value| (run["workload"].clone(), run["burstiness"].clone());
    let expected = [("diverse burstiness=0.0625", 0.062_5), ("diverse burstiness=1", 1.0)];
    let expected = expected.map(|(name, burstiness)| (Value::from(name), Value::from(burstiness)));
    assert_eq!(runs.iter().map(of).collect::<Vec<_>>(), expected);
    assert_eq!(of(&plain), ("diverse".into(), 1.0.into()), "a Poisson process");
    assert_eq!(runs[1]["fingerprint"], plain["fingerprint"]);
    assert_ne!(runs[0]["fingerprint"], plain["fingerprint"]);
    assert_eq!(runs[0]["offered_per_second"], plain["offered_per_second"]);
    let noted =
        sim(&[&usual[..], &["--workload", "bursty", "--burstiness", "4", "--format", "csv"]].concat());
    let says = "bursty: --burstiness replaces Poisson processes alone; bursts and oscillating rates stay\n";
    assert_eq!((noted.status.code(), text(&noted.stderr)), (Some(0), says.to_owned()));
    let rows = rows(&text(&noted.stdout));
    let of = rows.iter().map(|row| ["workload", "burstiness"].map(|name| &row[name][..]));
    assert_eq!(of.collect::<Vec<_>>(), [["diverse burstiness=4", "4"], ["bursty", ""]]);
}

#[test]
fn seeds_are_summarized_for_scripts_as_the_tables_show_them() {
    let contenders = ["--scheduler", "continuous", "--scheduler", "continuous", "--scheduler", "srpt"];
    let seeds = ["--seed", "3", "--seed", "4", "--seed", "5"];
    let usual = ["compare", "--requests", "400", "--workload", "heavy-tail", "--load", "1.5"];
    let usual = [&usual[..], &contenders, &seeds].concat();
    let summary = results(&[&usual[..], &["--summary"]].concat());
    let csv = text(&sim(&[&usual[..], &["--summary", "--format", "csv"]].concat()).stdout);
    assert_eq!(summary.len(), rows(&csv).len());
    let runs = results(&usual);
    let rates = |nth: usize| {
        let own = runs[3 * nth..].iter().take(3);
        own.map(|run| run["output_per_second"].as_f64().expect("a rate")).collect::<Vec<_>>()
    };
    let of_rate: Vec<&Value> = summary.iter().filter(|row| row["quantity"] == "out tok/s").collect();
    let [first, same, srpt] = of_rate[..] else { panic!("three contenders: {summary:?}") };
    let mean = |values: &[f64]| values.iter().sum::<f64>() / 3.0;
    let is_near = |value: &Value, expected: f64| {
        value.as_f64().is_some_and(|value| (value - expected).abs() < 1e-6 * expected.abs())
    };
    assert!(is_near(&first["mean"], mean(&rates(0))) && first["difference"].is_null(), "{first}");
    assert_eq!((&same["difference"], &same["difference_low"]), (&0.0.into(), &Value::Null), "{same}");
    assert!(is_near(&srpt["difference"], mean(&rates(2)) - mean(&rates(0))), "{srpt}");
    let ends = ["difference_low", "difference_high"].map(|end| srpt[end].as_f64().expect("they vary"));
    assert!(ends[0] < ends[1] && srpt["seeds"] == 3, "{srpt}");
    let table = text(&sim(&usual).stdout);
    assert!(table.contains("\nseeds 3, 4, 5 (mean ± 95 % confidence interval); "), "{table}");
    assert!(
        table.contains("\n  against continuous  ") && table.contains("\n`*` is better than every rival"),
        "{table}"
    );
    let one = text(&sim(&usual[..usual.len() - 4]).stdout);
    assert!(one.contains("seed 3 (one can't tell which is best); ") && !one.contains('*'), "{one}");
}

#[test]
fn results_name_version_arguments_and_policies() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("mine.wasm");
    let srpt = infer_bundle::find("scheduler", "srpt").expect("it is shipped");
    std::fs::write(&path, srpt.component).expect("it can be written");
    let file = path.to_str().expect("UTF-8");
    let scheduler = format!(r#"{file}={{"patience_ms": 500}}"#);
    let what = ["compare", "--requests", "40", "--workload", "diverse", "--scheduler", &scheduler];
    let what =
        [&what[..], &["--admission", r#"slo,memory-aware={"memory-aware": {"reserve": 0.2}}"#]].concat();
    let made = |more: &[&str]| {
        let output = sim(&[&what[..], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let json = made(&["--format", "json", "--threads", "1"]);
    let out = dir.path().join("out.json");
    assert_eq!(made(&["--out", out.to_str().expect("UTF-8"), "--threads=3", "--format=json"]), "");
    assert_eq!(std::fs::read_to_string(&out).expect("it is written"), json);
    let runs: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(runs[0]["version"], env!("CARGO_PKG_VERSION"));
    let args: Vec<&str> = std::iter::once("sim").chain(what.iter().copied()).collect();
    assert_eq!(runs[0]["args"], serde_json::json!(args));
    let policies = &runs[0]["policies"];
    let used = &policies["scheduler"];
    assert_eq!((&used["name"], &used["sha256"]), (&"srpt".into(), &srpt.sha256.into()), "{used}");
    assert_eq!(used["config"], serde_json::json!({"patience_ms": 500}));
    let [slo, aware] =
        ["slo", "memory-aware"].map(|name| infer_bundle::find("admission", name).expect("it is shipped"));
    for (at, shipped, config) in [(0_usize, slo, "{}"), (1, aware, r#"{"reserve":0.2}"#)] {
        let member = &policies["admission"][at];
        let read = (&member["name"], &member["sha256"], member["config"].to_string());
        assert_eq!(read, (&shipped.name.into(), &shipped.sha256.into(), config.to_owned()), "{policies}");
    }
    assert_eq!(policies["prefix_cache"]["name"], "lru");
    let csv = rows(&made(&["--format", "csv"])).remove(0);
    assert_eq!(csv["admission"], "slo,memory-aware");
    assert_eq!(csv["scheduler_config"], r#"{"patience_ms":500}"#);
    assert_eq!(
        csv["prefix_cache_sha256"],
        infer_bundle::find("prefix-cache", "lru").expect("it is shipped").sha256
    );
    assert!(csv["args"].starts_with("sim compare --requests 40 "), "{csv:?}");
    let page = made(&["--format", "html"]);
    assert!(page.contains("<h2>What made this</h2>") && page.contains(srpt.sha256), "{page}");
}

#[test]
fn contender_that_the_built_in_stood_in_for_is_marked_and_can_fail_the_command() {
    // Within a millisecond, the watchdog removes a scheduler that waits for its batch to end.
    let contenders =
        ["--scheduler", "continuous", "--scheduler", "static-batch", "--starvation-bound", "0.001"];
    let usual = ["compare", "--workload", "heavy-tail", "--load", "1.5", "--requests", "200"];
    let run = |more: &[&str]| {
        let output = sim(&[&usual[..], &contenders, more].concat());
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, table, said) = run(&[]);
    assert_eq!((code, said), (Some(0), String::new()));
    let names = |name: &str| table.lines().filter(|line| line.trim_start().starts_with(name)).count();
    assert!(names("static-batch (built-in 100.0 %)  ") > 2 && names("continuous  ") > 2, "{table}");
    for format in ["text", "json", "csv", "html"] {
        let (code, report, said) = run(&["--format", format, "--fail-on-fault"]);
        assert_eq!((code, report), (Some(1), run(&["--format", format]).1), "{format}");
        let says = "error: policies failed in 1 of 2 runs, the first: static-batch at load 1.50 with seed 1 on \
                    heavy-tail: scheduler `static-batch` failed (starvation: ";
        assert!(said.starts_with(says), "{said}");
        assert!(said.ends_with("the built-in decided 100.0 % of the steps instead\n"), "{said}");
    }
    let well = [&usual[..], &contenders[..2], &["--fail-on-fault"]].concat();
    assert_eq!(sim(&well).status.code(), Some(0));
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
    assert!(shown.contains("diverse at load 0.90, 52.25 requests/s: 40 requests"), "{shown}");
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
