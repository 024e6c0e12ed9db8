//! Hosts that are restarted, can't save or hang during a rollout.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Command;

use serde_json::Value;

use super::{Fleet, json, row};
use crate::commands::{KEPT, serving};
use crate::process::{Home, Host};

#[test]
fn host_that_was_restarted_meanwhile_gets_back_what_ran_before() {
    const STATE: [&str; 2] = ["--policy-state", "policies"];
    let mut fleet = Fleet::that_restarts([&STATE, &[]]);
    fleet.at(0, &["swap", "scheduler", "fair"]);
    let rollout = fleet.rolls_out(&["srpt"]);
    fleet.gets_to_the_second_host();
    fleet.restarts(0, &STATE);
    assert_eq!(fleet.live(0), "srpt");
    assert!(Command::new("kill").args(["-INT", &rollout.id().to_string()]).status().unwrap().success());
    let (said, printed) = Fleet::stops(rollout);
    assert!(row(&printed, "a").ends_with("rolled back"), "{said}{printed}");
    assert_eq!([0, 1].map(|at| fleet.live(at)), ["fair", "continuous"], "{said}");
    fleet.ends();
}

#[test]
fn host_that_lost_the_policy_in_a_restart_is_said_to_have_been_restarted() {
    let mut fleet = Fleet::that_restarts([&[], &[]]);
    let rollout = fleet.rolls_out(&["srpt"]);
    fleet.gets_to_the_second_host();
    fleet.restarts(0, &[]);
    fleet.at(1, &["promote", "scheduler"]);
    let (said, printed) = Fleet::stops(rollout);
    let why = "lost the policy: it was restarted meanwhile, and `continuous` is live there now";
    assert!(said.contains(&format!("\nerror: the rollout stopped: a: {why}\n")), "{said}");
    assert!(row(&printed, "a").ends_with(why), "{printed}");
    assert!(row(&printed, "b").ends_with("rolled back"), "{printed}");
    fleet.ends();
}

#[test]
fn host_that_could_not_save_what_a_rollout_changed_is_named() {
    let home = Home::new();
    let hosts = vec![Host::start(home.serve(KEPT, &["--policy-state", "policies"])), serving(&home)];
    let fleet = Fleet { home, hosts, token: None };
    fleet.is_listed_with("");
    // Its answer comes when all so far is saved.
    fleet.at(0, &["swap", "scheduler", "fair"]);
    // Not removed: the host may be writing what its policies know.
    fs::rename(fleet.home.path("policies"), fleet.home.path("elsewhere")).unwrap();
    let says = "a: not saved, so a restart would undo what was changed: ";
    let at_once = ["--canaries", "none", "--hosts", "hosts.toml"];
    let printed = fleet.sees(&[&["rollout", "scheduler", "srpt"], &at_once[..]].concat());
    assert!(printed.contains(says) && !printed.contains("b: not saved"), "{printed}");
    let listed = fleet.sees(&["list", "--hosts", "hosts.toml"]);
    assert!(listed.contains(says) && !listed.contains("b: not saved"), "{listed}");
    let again = json(&fleet.sees(&[&["rollout", "scheduler", "fair", "--json"], &at_once[..]].concat()));
    let not_saved = [0, 1].map(|at| again["hosts"][at]["not_saved"].is_string());
    assert_eq!((not_saved, &again["live_on_all"]), ([true, false], &Value::Bool(true)), "{again}");
    fleet.ends();
}

#[test]
fn host_that_hangs_is_named_and_holds_up_no_rollback_of_others() {
    let fleet = Fleet::of(2);
    let mut rollout = fleet.rolls_out(&["srpt"]);
    let mut said = BufReader::new(rollout.stderr.take().unwrap());
    fleet.gets_to_the_second_host();
    let signal = |signal: &str, pid: u32| {
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    };
    signal("-STOP", fleet.hosts[1].child.id());
    let mut until_said = |words: &str| {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "it never says: {words}");
        }
    };
    until_said("b: doesn't answer (1 of 5): ");
    signal("-INT", rollout.id());
    // It isn't known yet what becomes of the other one.
    until_said("a: rolled back");
    assert_eq!(fleet.live(0), "continuous");
    assert!(rollout.try_wait().unwrap().is_none());
    signal("-CONT", fleet.hosts[1].child.id());
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rollout.wait().unwrap().code(), Some(1), "{rest}");
    assert_eq!(fleet.live(1), "continuous", "{rest}");
    fleet.ends();
}
