//! `infer sim fuzz`, `judge` and `calibrate` as processes: their formats and files.

use std::fs;
use std::process::{Command, Output};

use infer_sim::fuzz::generate;
use serde_json::{Value, json};

use crate::process::complaint;

fn sim(arguments: &[&str]) -> Output {
    let mut infer = Command::new(env!("CARGO_BIN_EXE_infer"));
    infer.arg("sim").args(arguments).output().expect("infer starts")
}

/// The output of a command that must succeed.
fn said(arguments: &[&str]) -> String {
    let output = sim(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", complaint(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn seeds_without_a_violation_are_one_object_that_says_what_the_text_says() {
    let seeds = ["fuzz", "--seed", "3", "--seeds", "4", "--threads", "2"];
    let text = said(&seeds);
    let found: Value =
        serde_json::from_str(&said(&[&seeds[..], &["--format", "json"]].concat())).expect("JSON");
    assert_eq!((&found["seed"], &found["seeds"]), (&json!(3), &json!(4)));
    assert_eq!((&found["violation"], &found["minimized"]), (&Value::Null, &Value::Null));
    let (steps, batches) = (&found["steps"], &found["batches"]);
    let print = found["fingerprint"].as_str().expect("a text");
    let first =
        format!("seeds from 3: 4 without a violation, {steps} steps, {batches} batches, fingerprint {print}");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(&first[..]));
    let rows: Vec<_> = lines.map(|line| line.trim().rsplit_once(' ').expect("a count")).collect();
    assert_eq!(found["reached"].as_object().map(serde_json::Map::len), Some(rows.len()));
    for (name, count) in rows {
        assert_eq!(found["reached"][name.trim_end()].to_string(), count, "{name}");
    }
}

#[test]
fn replayed_files_are_a_list() {
    let dir = tempfile::tempdir().expect("a directory");
    let [one, other] = [1, 2].map(|seed| {
        let path = dir.path().join(format!("{seed}.json"));
        fs::write(&path, generate(seed, 60, &[]).to_text("none")).expect("it can be written");
        path.to_str().expect("UTF-8").to_owned()
    });
    let replays = ["fuzz", "--replay", &one, "--replay", &other];
    let found: Vec<Value> =
        serde_json::from_str(&said(&[&replays[..], &["--format", "json"]].concat())).expect("JSON");
    let lines = found.iter().map(|file| {
        assert_eq!(file["violation"], Value::Null, "{file}");
        let [name, print] = ["file", "fingerprint"].map(|key| file[key].as_str().expect("a text"));
        format!("{name}: no violation in {} steps, fingerprint {print}\n", file["steps"])
    });
    assert_eq!(said(&replays), lines.collect::<Vec<_>>().concat());
    assert_eq!((&found[0]["file"], &found[1]["file"]), (&json!(one), &json!(other)));
}

#[test]
fn wrong_files_and_formats_are_refused_first() {
    for (arguments, says) in [
        (
            &["judge", "missing.jsonl", "--device", "h100", "--out", "nowhere/figures.csv"][..],
            "--out: can't write nowhere/figures.csv",
        ),
        (
            &["fuzz", "--seeds", "1", "--minimize", "--out", "nowhere/mine.json"],
            "--out: can't write nowhere/mine.json",
        ),
        (&["calibrate", "missing.jsonl", "--format", "csv"], "possible values: json"),
        (&["judge", "missing.jsonl", "--device", "h100", "--format", "html"], "text, json, csv, markdown"),
    ] {
        let output = sim(arguments);
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains(says), "{arguments:?}: {said}");
    }
}
