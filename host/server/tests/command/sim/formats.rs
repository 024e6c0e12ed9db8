//! `infer sim fuzz`, `judge` and `calibrate` as processes: their formats and files.

use std::fs;
use std::path::Path;

use infer_api::trace;
use infer_sim::fuzz::generate;
use serde_json::{Value, json};

use super::{recording, rows, sim};
use crate::process::complaint;

/// The output of a command that must succeed.
fn said(arguments: &[&str]) -> String {
    let output = sim(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", complaint(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Writes a recording of 100 steps, which take longer the more sequences they have. Returns its path.
pub fn measured(dir: &Path) -> String {
    let path = recording(dir, "host.jsonl", 99, 0);
    let step = |number: u64| {
        let (count, at) = (1 + number % 4, 10_000 * number);
        let of_each = usize::try_from(count).expect("a few");
        trace::Step {
            step: number,
            at,
            end: at + 1_000 + 200 * count,
            waited: true,
            ids: (1..=count).collect(),
            tokens: vec![1; of_each],
            context: vec![8; of_each],
            drew: vec![1; of_each],
            ..trace::Step::default()
        }
    };
    let line = |number| serde_json::to_string(&trace::Line::Step(step(number))).expect("JSON") + "\n";
    let head = fs::read_to_string(&path).expect("it is there");
    fs::write(&path, head + &(0..100).map(line).collect::<String>()).expect("it can be written");
    path
}

/// Writes two cases that pass. Returns their paths.
fn cases(dir: &Path) -> [String; 2] {
    [1, 2].map(|seed| {
        let path = dir.join(format!("{seed}.json"));
        fs::write(&path, generate(seed, 60, &[]).to_text("none")).expect("it can be written");
        path.to_str().expect("UTF-8").to_owned()
    })
}

/// What a command's help says of a flag.
fn help(command: &str, flag: &str) -> String {
    let all = said(&[command, "--help"]);
    let (_, rest) = all.split_once(&format!("\n      {flag} ")).unwrap_or_else(|| panic!("{flag}: {all}"));
    rest.split("\n      -").next().unwrap_or_default().trim_end().to_owned()
}

#[test]
fn format_and_out_mean_the_same_in_all_commands() {
    let (format, out) = (help("run", "--format"), help("run", "--out"));
    assert!(format.contains("[default: text]") && out.contains("[default: stdout]"), "{format}\n{out}");
    for (command, default) in [("compare", "text"), ("calibrate", "json"), ("fuzz", "text")] {
        let own = format.replace("[default: text]", &format!("[default: {default}]"));
        assert_eq!((help(command, "--format"), help(command, "--out")), (own, out.clone()), "{command}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (path, [one, other]) = (measured(dir.path()), cases(dir.path()));
    let (file, seeds) = (dir.path().join("result"), ["fuzz", "--seed", "3", "--seeds", "4"]);
    let shown = file.to_str().expect("UTF-8");
    let compare = ["compare", "--requests", "20", "--workload", "diverse", "--scheduler", "srpt"];
    let replays = ["fuzz", "--replay", &one, "--replay", &other];
    for command in [&["run", "--requests", "20"][..], &compare, &["calibrate", &path], &seeds, &replays] {
        for format in ["text", "json", "csv", "html"] {
            let command = [command, &["--format", format]].concat();
            let printed = said(&command);
            assert_eq!(said(&[&command[..], &["--out", shown]].concat()), "", "{command:?}");
            assert_eq!(fs::read_to_string(&file).expect("it was written"), printed, "{command:?}");
        }
    }
}

#[test]
fn every_format_of_a_calibration_has_its_costs_and_its_fit() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = measured(dir.path());
    let of = |format: &str| said(&["calibrate", &path, "--format", format]);
    let json = said(&["calibrate", &path]);
    assert_eq!(json, of("json"), "a profile, if nothing else is asked for");
    let profile: Value = serde_json::from_str(&json).expect("JSON");
    let step_us = profile["cost"]["step_us"].as_f64().expect("a cost");
    assert_eq!(profile["fit"]["steps"], 100, "{json}");

    let (text, page) = (of("text"), of("html"));
    let heading = "demo on cpu: fitted to 100 steps; 99 blocks of 16 tokens";
    assert!(text.starts_with(&format!("{heading}\n")), "{text}");
    let step = text.lines().find(|line| line.starts_with("  step  ")).expect("a cost");
    assert_eq!(step.split_whitespace().next_back(), Some(&format!("{step_us:.4}")[..]), "{text}");
    for says in [
        "<!doctype html>",
        &format!("<h2>{heading}</h2>"),
        &format!("<td>step</td><td>{step_us:.4}</td>"),
        "<figure>",
    ] {
        assert!(page.contains(says), "{says}: {page}");
    }
    let csv = rows(&of("csv"));
    assert!(csv.iter().all(|row| row["profile"] == "demo on cpu"), "{csv:?}");
    for part in ["cost", "fit"] {
        for (name, value) in profile[part].as_object().expect("an object") {
            let Some(value) = value.as_f64() else { continue };
            let row = csv.iter().find(|row| row["what"] == *name).expect("a row");
            let written: f64 = row["value"].parse().expect("a number");
            assert!((written - value).abs() <= 1e-9 * value.abs(), "{name}: {row:?}");
        }
    }
}

#[test]
fn every_format_of_a_hunt_has_its_counts() {
    let of = |format: &str| said(&["fuzz", "--seed", "3", "--seeds", "4", "--format", format]);
    let (text, page, csv) = (of("text"), of("html"), rows(&of("csv")));
    let found: Value = serde_json::from_str(&of("json")).expect("JSON");
    let heading = text.lines().next().expect("a line");
    assert!(heading.starts_with("seeds from 3: 4 without a violation, "), "{text}");
    assert!(page.contains(&format!("<h1>infer sim fuzz</h1><h2>{heading}</h2>")), "{page}");
    assert_eq!(csv.len(), 1);
    for name in ["seed", "seeds", "steps", "batches", "fingerprint"] {
        assert_eq!(found[name].to_string().trim_matches('"'), csv[0][name], "{name}");
    }
    let reached = found["reached"].as_object().expect("an object");
    assert!(reached["tokens"].as_u64() > Some(0), "{found}");
    for (name, count) in reached {
        assert_eq!(count.to_string(), csv[0][name], "{name}");
        assert!(page.contains(&format!("<td>{name}</td><td>{count}</td>")), "{name}: {page}");
    }
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
    let [one, other] = cases(dir.path());
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
    let csv = rows(&said(&[&replays[..], &["--format", "csv"]].concat()));
    assert_eq!(csv.iter().map(|row| &row["file"]).collect::<Vec<_>>(), [&one, &other]);
    let page = said(&[&replays[..], &["--format", "html"]].concat());
    assert_eq!(page.matches("<h2>").count(), 2, "{page}");
}

#[test]
fn report_of_replays_has_those_before_a_wrong_file_and_is_not_written_without_any() {
    let dir = tempfile::tempdir().expect("a directory");
    let ([case, _], report) = (cases(dir.path()), dir.path().join("report.json"));
    fs::write(&report, "kept").expect("it can be written");
    let reported = |replays: &[&str]| {
        let out = ["fuzz", "--format", "json", "--out", report.to_str().expect("UTF-8")];
        let output = sim(&[&out[..], replays].concat());
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains("--replay nowhere.json: "), "{said}");
        fs::read_to_string(&report).expect("it is there")
    };
    assert_eq!(reported(&["--replay", "nowhere.json"]), "kept");
    let text = reported(&["--replay", &case, "--replay", "nowhere.json"]);
    let found: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    assert_eq!(found.iter().map(|file| &file["file"]).collect::<Vec<_>>(), [&json!(case)]);
}

#[test]
fn wrong_files_and_formats_are_refused_first() {
    for (arguments, says) in [
        (
            &["judge", "missing.jsonl", "--device", "h100", "--out", "nowhere/figures.csv"][..],
            "--out: can't write nowhere/figures.csv",
        ),
        (&["calibrate", "missing.jsonl", "--format", "markdown"], "possible values: text, json, csv, html]"),
        (&["fuzz", "--format", "markdown"], "possible values: text, json, csv, html]"),
        (&["judge", "missing.jsonl", "--device", "h100", "--format", "html"], "text, json, csv, markdown"),
    ] {
        let output = sim(arguments);
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains(says), "{arguments:?}: {said}");
    }
}
