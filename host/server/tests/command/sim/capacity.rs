//! `infer sim capacity`.

use super::{results, rows, sim, text};

/// Many more requests than slots: with few, any load is sustained.
const QUICK: [&str; 8] =
    ["capacity", "--workload", "diverse", "--requests", "80", "--max-batch-size", "4", "--scheduler"];

fn quick<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    [&QUICK[..], &["continuous"], rest].concat()
}

#[test]
fn table_names_the_sustained_rate_and_what_limits_it() {
    let arguments = quick(&["--scheduler", "static-batch", "--slo-ttft-ms", "500", "--slo-itl-ms", "30"]);
    let first = sim(&arguments);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let table = text(&first.stdout);
    for says in [
        "90 % of the requests meet",
        "within 500 ms, then 30 ms per token",
        "diverse: 80 requests",
        "limited by ",
    ] {
        assert!(table.contains(says), "{says}: {table}");
    }
    let rate = |name: &str| {
        let row = table.lines().find(|line| line.trim_start().starts_with(name)).expect("a row");
        row.split_whitespace().nth(1).map(|rate| rate.trim_end_matches('*').parse::<f64>().expect("a rate"))
    };
    assert!(rate("continuous") > rate("static-batch"), "{table}");
    assert_eq!(text(&sim(&[&arguments[..], &["--threads", "1"]].concat()).stdout), table);
}

#[test]
fn other_formats_have_a_row_per_search() {
    let csv = sim(&quick(&["--seed", "3", "--seed", "4", "--format", "csv"]));
    let csv = rows(&text(&csv.stdout));
    assert_eq!(csv.iter().map(|row| row["seed"].as_str()).collect::<Vec<_>>(), ["3", "4"]);
    let json = results(&quick(&["--seed", "3"]));
    let load = json[0]["sustained"]["load"].as_f64().expect("a load is sustained");
    assert_eq!(format!("{load:.4}"), csv[0]["load"]);
    assert!(json[0]["probes"].as_array().is_some_and(|probes| probes.len() > 3));
    let page = text(&sim(&quick(&["--format", "html"])).stdout);
    assert!(page.starts_with("<!doctype html>") && page.contains("Requests that met the targets"), "{page}");
}

#[test]
fn targets_that_nothing_meets_are_a_result() {
    let output = sim(&quick(&["--slo-ttft-ms", "0.01"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(
        table.contains("continuous sustains no load, not even ") && table.contains("TTFT limits it"),
        "{table}"
    );
}

#[test]
fn fault_of_a_policy_is_marked_and_can_fail_the_command() {
    // Within a millisecond, the watchdog removes a scheduler that waits for its batch to end.
    let arguments = [&QUICK[..], &["static-batch", "--starvation-bound", "0.001"]].concat();
    let table = sim(&arguments);
    assert!(table.status.success(), "{}", text(&table.stderr));
    let failed = sim(&[&arguments[..], &["--fail-on-fault"]].concat());
    assert_eq!((failed.status.code(), &failed.stdout), (Some(1), &table.stdout));
    let (shown, said) = (text(&table.stdout), text(&failed.stderr));
    assert!(shown.contains("\n  static-batch (built-in 100.0 %)  "), "{shown}");
    assert!(
        said.starts_with("error: policies failed in 1 of 1 searches, the first: static-batch at load "),
        "{said}"
    );
    let csv = rows(&text(&sim(&[&arguments[..], &["--format", "csv"]].concat()).stdout));
    assert_eq!((&csv[0]["policy_faults"][..], &csv[0]["builtin_share"][..]), ("1", "1.00000"));
}

#[test]
fn bad_arguments_are_named() {
    for (rest, says) in [
        (&["--share", "0"][..], "--share must be more than 0 and at most 100 percent, not 0"),
        (&["--share", "NaN"], "--share must be more than 0"),
        (&["--seed", "2", "--seed", "2"], "--seed 2 is given twice"),
        (&["--slo-itl-ms", "0"], "--slo-itl-ms must be more than 0"),
        (&["--load", "1"], "--load"),
    ] {
        let output = sim(&quick(rest));
        assert_eq!(output.status.code(), Some(2), "{rest:?}");
        assert!(text(&output.stderr).contains(says), "{rest:?}: {}", text(&output.stderr));
    }
}
