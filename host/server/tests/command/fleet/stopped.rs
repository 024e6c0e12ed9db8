//! Rollouts that somebody stops, by a change of their own or by a signal.

use std::fs;
use std::process::Command;

use super::{Fleet, json, row};
use crate::chaos::until;

#[test]
fn a_change_by_somebody_else_stops_the_rollout_and_stays() {
    let fleet = Fleet::of(2);
    let rollout = fleet.rolls_out(&["srpt"]);
    until("the first host is on trial", || fleet.is_on_trial(0));
    fleet.at(1, &["swap", "scheduler", "fair"]);
    fleet.at(0, &["promote", "scheduler", "--of", "srpt"]);
    let (said, printed) = Fleet::stops(rollout);
    assert!(said.contains("\nerror: the rollout stopped: b: runs fair ("), "{said}");
    assert!(said.contains("somebody else has changed it"), "{said}");
    assert!(row(&printed, "a").ends_with("rolled back"), "{printed}");
    assert_eq!([0, 1].map(|at| fleet.live(at)), ["continuous", "fair"]);

    // On the host that is on trial, too.
    let fails = |arguments: &[&str]| {
        let rollout = fleet.rolls_out(arguments);
        until("the first host is on trial", || fleet.is_on_trial(0));
        fleet.at(0, &["rollback", "scheduler", "--of", "srpt"]);
        Fleet::stops(rollout)
    };
    let (_, printed) = fails(&["srpt", "--json"]);
    let why = "the canary was rolled back: an operator rolled it back";
    assert_eq!(json(&printed)["stopped"], serde_json::json!({"host": "a", "why": why}), "{printed}");
    let (said, printed) = fails(&["srpt"]);
    let why = "\nerror: the rollout stopped: a: the canary was rolled back: an operator rolled it back\n";
    assert!(said.contains(why), "{said}");
    assert!(row(&printed, "b").ends_with("not reached"), "{printed}");
    assert_eq!([0, 1].map(|at| fleet.live(at)), ["continuous", "fair"]);
    fleet.ends();
}

#[test]
fn interrupted_rollout_is_rolled_back_unless_it_is_to_be_kept() {
    let fleet = Fleet::of(2);
    let interrupted = |signal: &str, arguments: &[&str]| {
        let rollout = fleet.rolls_out(arguments);
        until("the first host is on trial", || fleet.is_on_trial(0));
        let pid = rollout.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        Fleet::stops(rollout)
    };
    // The terminal is closed, unless that is ignored here (`nohup`).
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut masks = status.lines().filter_map(|line| line.strip_prefix("SigIgn:"));
    let ignores =
        masks.next().is_some_and(|mask| mask.trim().ends_with(['1', '3', '5', '7', '9', 'b', 'd', 'f']));
    let (said, printed) = interrupted(if ignores { "-TERM" } else { "-HUP" }, &["srpt"]);
    assert!(row(&printed, "a").contains("rolled back"), "{said}{printed}");
    assert_eq!([0, 1].map(|at| fleet.live(at)), ["continuous", "continuous"]);

    let (said, printed) = interrupted("-INT", &["srpt"]);
    assert!(said.contains("stopping, and rolling back what was swapped; "), "{said}");
    assert!(said.contains("\nerror: the rollout stopped: it was interrupted\n"), "{said}");
    assert!(row(&printed, "a").ends_with("rolled back: no verdict: it was interrupted"), "{printed}");
    assert!(row(&printed, "b").ends_with("not reached"), "{printed}");
    assert_eq!([0, 1].map(|at| fleet.live(at)), ["continuous", "continuous"]);

    let (_, printed) = interrupted("-INT", &["srpt", "--json"]);
    let done = json(&printed);
    let stopped = serde_json::json!({"host": null, "why": "it was interrupted"});
    assert_eq!((&done["stopped"], &done["live_on_all"]), (&stopped, &false.into()), "{done}");
    assert_eq!(done["hosts"][0]["detail"], "no verdict: it was interrupted", "{done}");

    let (_, printed) = interrupted("-INT", &["srpt", "--keep"]);
    assert!(row(&printed, "a").ends_with("no verdict: it was interrupted"), "{printed}");
    assert_eq!([0, 1].map(|at| fleet.live(at)), ["srpt", "continuous"]);
    fleet.ends();
}
