//! `infer sim` from outside: what it prints depends on the arguments and the seed alone, and bad arguments
//! are named.

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    let mut infer = Command::new(env!("CARGO_BIN_EXE_infer"));
    infer.arg("sim").args(arguments).output().expect("infer starts")
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).expect("UTF-8")
}

#[test]
fn a_comparison_is_the_same_whatever_the_threads() {
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
fn results_are_csv_and_json_too() {
    let csv = text(&sim(&["run", "--requests", "50", "--format", "csv"]).stdout);
    let (head, row) = csv.split_once('\n').expect("two lines");
    assert_eq!(head.split(',').count(), row.trim().split(',').count(), "{csv}");
    let json = text(&sim(&["run", "--requests", "50", "--format", "json"]).stdout);
    let cells: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let page = text(&sim(&["run", "--requests", "50", "--format", "html"]).stdout);
    assert!(page.starts_with("<!doctype html>") && page.matches("<svg").count() == 4, "{page}");
    assert!(
        !page.contains("http") && !page.contains("NaN") && !page.contains("inf "),
        "it needs nothing else"
    );
    assert_eq!((&cells[0]["contender"], &cells[0]["requests"]), (&"continuous".into(), &50.into()));
}

#[test]
fn bad_arguments_are_named_with_what_would_be_right() {
    for (arguments, says) in [
        (&["run", "--workload", "silence"][..], "there are chat, instruct"),
        (&["run", "--load", "0"], "--load must be from 0.01 to 100"),
        (&["run", "--hardware", "abacus"], "there are cpu, l4"),
        (&["run", "--hardware", "l4", "--model", "70b"], "choose a larger device"),
        (&["run", "--scheduler", "nobody"], "there are continuous"),
        (&["run", "--scheduler", "srpt={"], "no JSON object"),
        (&["run", "--scheduler", r#"srpt={"speed": 1}"#], "unknown field `speed`"),
        (&["run", "--scheduler", "missing.wasm"], "can't read missing.wasm"),
    ] {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(says), "{arguments:?}: {}", text(&output.stderr));
    }
}
