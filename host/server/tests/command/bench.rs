//! `infer bench` as a process: where its reports go, and what they say about what was measured.

use std::fs;

use serde_json::{Value, json};

use crate::process::{Home, complaint};

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
