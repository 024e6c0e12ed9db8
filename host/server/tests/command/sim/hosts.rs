//! The simulated hosts: devices, settings, tenants.

use serde_json::Value;

use super::{results, rows, sim, text};

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
    let outcome = |more: &[&str]| {
        let mut outcome = results(&[&usual[..], more].concat()).remove(0);
        outcome["args"].take();
        outcome
    };
    let named = outcome(&["--device", "l4", "--model", "8b"]);
    assert_eq!(outcome(&["--device", &same, "--model", &shape]), named);
    let double = device.replace("300000000000.0", "600000000000.0").replace("\"l4\"", "\"fast l4\"");
    assert_ne!(double, device);
    let fast = outcome(&["--device", &file("fast.json", &double)]);
    assert_eq!(fast["settings"]["device"], "fast l4");
    assert!(fast["itl_ms"]["p50"].as_f64() < named["itl_ms"]["p50"].as_f64(), "{fast}");
    let half = file("half.json", &model.replace("\"8b\"", "\"half of it\""));
    let compared = |models: &[&str]| {
        let compare = [
            "compare",
            "--scheduler",
            "continuous",
            "--requests",
            "20",
            "--workload",
            "chat",
            "--device",
            "h100",
        ];
        let runs = results(&[&compare[..], models].concat());
        runs.iter().map(|run| run["contender"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(compared(&["--model", "8b", "--model", &half]), ["8b", "half of it"], "as its file calls it");
    assert_eq!(compared(&["--model", "8b", "--model", &shape]), ["8b", &*shape], "both are called 8b");
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
fn predictions_of_lengths_are_compared_and_reported() {
    let usual = ["compare", "--workload", "open-ended", "--load", "1.2", "--requests", "400"];
    let given = ["--predictions", "learned", "--predictions", "exact", "--predictions", "0"];
    let given = [&usual[..], &["--scheduler", "srpt"], &given].concat();
    let runs = results(&given);
    let of = |run: &Value| [&run["contender"], &run["settings"]["predictions"]].map(ToString::to_string);
    let names = [["predictions=learned", "learned"], ["predictions=exact", "exact"], ["predictions=0", "0"]];
    let names = names.map(|pair| pair.map(|name| format!("\"{name}\"")));
    assert_eq!(runs.iter().map(of).collect::<Vec<_>>(), names);
    assert_ne!(runs[0]["fingerprint"], runs[1]["fingerprint"], "the scheduler goes by them");
    assert_eq!(runs[1]["fingerprint"], runs[2]["fingerprint"], "no error");
    let csv = sim(&[&given[..], &["--format", "csv"]].concat());
    let rows = rows(&text(&csv.stdout));
    assert_eq!(rows.iter().map(|row| &row["predictions"]).collect::<Vec<_>>(), ["learned", "exact", "0"]);
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
