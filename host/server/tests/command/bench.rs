//! `infer bench` as a process: where its reports go, and what they say about what was measured.

use std::fs;

use infer_api::trace;
use serde_json::{Value, json};

use crate::commands::KEPT;
use crate::process::{Home, Host, complaint};
use crate::sim::recording;

#[test]
fn file_for_a_report_is_tried_before_anything_is_measured() {
    let home = Home::new();
    let serve = ["bench", "serve", "--url", "http://127.0.0.1:1", "--workload", "w1"];
    let run = |command: &[&str], file: &str| {
        let output = home.command("", &[command, &["--out", file]].concat()).output().expect("sh starts");
        (output.status.code(), complaint(&output))
    };
    for (command, file) in
        [(&serve[..], "nowhere/report.json"), (&["bench", "report", "missing.json"], "nowhere/page.html")]
    {
        let (code, said) = run(command, file);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(&format!("--out: can't write {file}")), "{said}");
    }
    fs::write(home.path("old.json"), "kept").unwrap();
    for file in ["old.json", "new.json"] {
        let (code, said) = run(&serve, file);
        assert!(code == Some(1) && said.contains("--url: "), "it fails after the check of the file: {said}");
    }
    assert_eq!(fs::read_to_string(home.path("old.json")).unwrap(), "kept");
    assert!(!home.path("new.json").exists(), "nothing is left behind");
}

#[test]
fn searches_for_a_rate_need_a_target_and_prompts_of_their_own() {
    let home = Home::new();
    let target = ["--find-rate", "--ttft-target-ms", "500"];
    for (flags, fault) in [
        (&["--find-rate"][..], "--find-rate: needs a target"),
        (&[&target[..], &["--trace", "day.csv"]].concat(), "--find-rate: a trace has times of its own"),
        (
            &[&target[..], &["--rate", "1,2"]].concat(),
            "--rate: with --find-rate, only the rate to begin with",
        ),
        (&[&target[..], &["--baseline", "on"]].concat(), "--baseline: --find-rate has none"),
        (&[&target[..], &["--share", "101"]].concat(), "at most 100 percent"),
        (&[&target[..], &["--probe-seconds", "0"]].concat(), "from 0.1 to 3600 seconds"),
        (&["--share", "95"], "--find-rate"),
    ] {
        let output = home.command("", &[&["bench", "serve"], flags].concat()).output().expect("sh starts");
        let (code, said) = (output.status.code(), complaint(&output));
        assert!(code == Some(2) && said.contains(fault), "{flags:?}: {code:?} {said}");
    }
}

#[test]
fn trace_is_replayed_against_a_host_that_knows_its_tenants() {
    let home = Home::new();
    let rows = [
        "0.1,ChatGPT,40,5,45,API log",
        "0.2,GPT-4,30,4,34,API log",
        "0.5,ChatGPT,20,3,23,API log",
        "9,GPT-4,9,9,18,API log",
    ];
    let head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type";
    fs::write(home.path("day.csv"), [&[head], &rows[..]].concat().join("\n")).unwrap();
    let replay =
        ["bench", "serve", "--trace", "day.csv", "--first", "3", "--speed", "4", "--kv-memory", "32MiB"];
    let json = ["--scheduler", "fair", "--format", "json"];
    let output = home.command("", &[&replay[..], &json].concat()).output().expect("sh starts");
    let said = complaint(&output);
    assert!(output.status.success() && !said.contains("have more tokens"), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let settings = json!({
        "first": "3", "kv-memory": "32MiB", "scheduler": "fair", "speed": "4", "trace": "day.csv",
    });
    assert_eq!(report["settings"], settings);
    let result = &report["workloads"][0];
    assert_eq!((&result["name"], &result["arrival"]), (&json!("day"), &json!({"recorded": 4.0})));
    let rows =
        |key: &str| result["samples"].as_array().unwrap().iter().map(|s| s[key].clone()).collect::<Vec<_>>();
    assert_eq!(rows("prompt_tokens"), [40, 30, 20]);
    assert_eq!(rows("completion_tokens"), [5, 4, 3]);
    let tenants = rows("tenant");
    assert!(tenants[0] == tenants[2] && tenants[0] != tenants[1], "{tenants:?}");
    assert!(rows("sent_ms")[2].as_f64().unwrap() >= 100.0, "0.4 s after the first, four times as fast");

    // The first three have 5 requests per second.
    let scaled = replay.map(|flag| match flag {
        "--speed" => "--rate",
        "4" => "20",
        same => same,
    });
    let output = home.command("", &[&scaled[..], &json].concat()).output().expect("sh starts");
    assert!(output.status.success(), "{}", complaint(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["settings"]["rate"], &report["settings"]["speed"]), (&json!("20"), &Value::Null));
    let result = &report["workloads"][0];
    assert_eq!(result["arrival"], json!({"scaled": {"per_second": 20.0, "speed": 4.0}}));
    let description = result["description"].as_str().unwrap();
    assert!(description.contains("20 per second, at 4.00 times the recorded speed"), "{description}");

    let mut short = replay.to_vec();
    short.extend(["--max-seq-len", "40"]);
    let output = home.command("", &short).output().expect("sh starts");
    let (code, said) = (output.status.code(), complaint(&output));
    assert_eq!(code, Some(1), "{said}");
    let warned = "day: 1 of 3 requests have more tokens, prompt and output together, than the 40 that the server takes";
    assert!(said.contains(warned) && said.contains("1 requests failed"), "{said}");
    let looped = ["bench", "serve", "--trace", "day.csv", "--closed-loop"];
    let output = home.command("", &looped).output().expect("sh starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("--closed-loop: only a recording"), "{}", complaint(&output));
    for (file, text, said) in [
        ("none.csv", head, "the trace has no requests to replay"),
        ("bad.csv", &[head, "0,ChatGPT,x,5,45,API log"].join("\n"), "line 2, column 11"),
    ] {
        fs::write(home.path(file), text).unwrap();
        let output = home.command("", &["bench", "serve", "--trace", file]).output().expect("sh starts");
        assert!(!output.status.success() && complaint(&output).contains(said), "{}", complaint(&output));
    }
    fs::write(home.path("one.csv"), [head, "0.1,ChatGPT,40,5,45,API log"].join("\n")).unwrap();
    let alone = ["bench", "serve", "--trace", "one.csv", "--rate", "4"];
    let output = home.command("", &alone).output().expect("sh starts");
    let said = complaint(&output);
    assert!(said.contains("one.csv: its 1 requests came at one time, which has no rate to scale"), "{said}");
}

#[test]
fn policies_of_a_running_host_are_those_of_its_admin_plane() {
    let home = Home::new();
    let head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type";
    fs::write(home.path("day.csv"), [head, "0.1,ChatGPT,40,5,45,API log"].join("\n")).unwrap();
    let host = Host::start(home.serve(KEPT, &["--scheduler", "fair", "--admission", "slo,memory-aware"]));
    let measured = |admin: &str| {
        let bench = ["bench", "serve", "--url", &*host.data, "--trace", "day.csv", "--format", "json"];
        let output = home.command(&format!("export INFER_ADMIN={admin}"), &bench).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.success(), "{said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (report, said)
    };
    let (report, said) = measured(&host.admin);
    let policies = &report["policies"];
    assert_eq!(policies["scheduler"]["name"], "fair", "{said}: {policies}");
    assert_eq!(policies["admission"]["name"], "slo+memory-aware", "{policies}");
    let fair = infer_bundle::find("scheduler", "fair").unwrap();
    assert_eq!(policies["scheduler"]["sha256"], fair.sha256, "{policies}");
    assert_eq!(report.get("policies_after"), None, "they stayed");

    let (report, said) = measured("http://127.0.0.1:1");
    assert_eq!(report["policies"], json!({}));
    assert!(said.contains("INFER_ADMIN: ") && said.contains("names no policies"), "{said}");
    host.ends();
}

#[test]
fn replay_of_refused_requests_alone_says_so() {
    let home = Home::new();
    let path = recording(&home.path(""), "full", 819, 0);
    let refused = trace::Line::Refused(trace::Refused { prompt: 9, max: 9, ..trace::Refused::default() });
    let refused = serde_json::to_string(&refused).expect("JSON") + "\n";
    fs::write(&path, fs::read_to_string(&path).unwrap() + &refused.repeat(3)).unwrap();
    let output = home.command("", &["bench", "serve", "--trace", &path]).output().expect("sh starts");
    let said = complaint(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains(
            "the trace has no requests to replay; its host refused 3 requests while it was recorded, which no replay"
        ),
        "{said}"
    );
}

#[test]
fn replay_names_what_the_recorded_host_had_otherwise() {
    let home = Home::new();
    let trace = recording(&home.path(""), "hour", 819, 2);
    let host =
        ["--kv-memory", "32MiB", "--max-seq-len", "1024", "--max-batch-size", "4", "--block-size", "16"];
    let output = home.command("", &[&["bench", "serve", "--trace", &trace][..], &host].concat()).output();
    let output = output.expect("sh starts");
    let said = complaint(&output);
    assert!(output.status.success(), "{said}");
    let named =
        said.lines().find_map(|line| line.strip_prefix("hour: the recorded host had other settings, "));
    let named = named.unwrap_or_else(|| panic!("{said}"));
    assert!(named.contains("max-batch-size 8, here 4"), "{named}");
    for same in ["model ", "device ", "block-size ", "max-seq-len "] {
        assert!(!named.contains(same), "{same}: {named}");
    }
}

#[test]
fn report_names_settings_and_policies_of_its_own_host() {
    let home = Home::new();
    fs::write(home.path("policies.json"), r#"{"admission": {"reserve": 0.25}}"#).unwrap();
    let load = ["bench", "serve", "--workload", "w2", "--requests", "1", "--baseline", "off"];
    let host = ["--threads", "1", "--kv-memory", "32MiB", "--max-batch-size", "4", "--block-size", "16"];
    let policies = ["--policy-config", "policies.json", "--prefix-cache", "builtin", "--seed", "7"];
    let out = ["--format", "json", "--out", "report.json"];
    let output = home.command("", &[&load[..], &host, &policies, &out].concat()).output().expect("sh starts");
    assert!(output.status.success() && output.stdout.is_empty(), "{}", complaint(&output));
    let report: Value = serde_json::from_slice(&fs::read(home.path("report.json")).unwrap()).unwrap();
    assert_eq!((&report["version"], &report["seed"]), (&json!(env!("CARGO_PKG_VERSION")), &json!(7)));
    let settings = json!({
        "baseline": "off", "kv-memory": "32MiB", "max-batch-size": "4", "policy-config": "policies.json",
        "prefix-cache": "builtin", "requests": "1", "threads": "1", "workload": "w2",
    });
    assert_eq!(report["settings"], settings);
    let subject = "demo served in this process, 1 threads, scheduler continuous, kv-memory 32MiB, max-batch-size 4, \
                   policy-config policies.json, prefix-cache builtin";
    assert_eq!(report["subject"], subject);
    let slot = |kind: &str, key: &str| report["policies"][kind][key].as_str().expect("a text").to_owned();
    assert_eq!([slot("admission", "name"), slot("scheduler", "name")], ["memory-aware", "continuous"]);
    let digests = ["admission", "scheduler", "prefix-cache"].map(|kind| slot(kind, "sha256").len());
    assert_eq!(digests, [64, 64, 0], "a native policy has none");
    assert!(slot("admission", "config").contains("0.25"), "{}", report["policies"]);

    let page = home.command("", &["bench", "report", "report.json"]).output().expect("sh starts");
    let page = String::from_utf8_lossy(&page.stdout);
    for shown in ["--max-batch-size 4", &slot("scheduler", "sha256")[..12]] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
}
