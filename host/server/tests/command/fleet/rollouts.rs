//! A policy is brought to all hosts, one after the other, unless something speaks against it.

use std::fs;
use std::process::Stdio;

use super::{Fleet, json, row};
use crate::chaos::{trapping_scheduler, until};
use crate::port::Port;
use crate::process::{COMPLETION, complaint};

#[test]
fn rollout_brings_a_policy_to_all_hosts_one_after_the_other() {
    let fleet = Fleet::of(3);
    let config = ["srpt", "--config", r#"{"patience_ms": 5}"#];
    fleet.at(2, &[&["swap", "scheduler"][..], &config].concat());
    let planned = fleet.rolls_out(&[&config[..], &["--dry-run", "--canaries", "first"]].concat());
    let output = planned.wait_with_output().unwrap();
    let planned = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    for (host, ends) in [("a", "canary"), ("b", "swap at once"), ("c", "has it already")] {
        assert!(row(&planned, host).ends_with(ends), "{planned}");
    }
    assert!(planned.ends_with("nothing was changed\n"), "{planned}");
    assert_eq!([0, 1].map(|at| fleet.live(at)), ["continuous", "continuous"]);

    let mut rollout = fleet.rolls_out(&[&config[..], &["--window", "1", "--wait", "600", "--json"]].concat());
    // Nothing ran on a host before its canary, so there is nothing to compare with, whatever the machine does.
    let longer = COMPLETION.replace(": 5", ": 200");
    until("the rollout ends", || {
        for (at, host) in fleet.hosts.iter().enumerate().take(2) {
            if fleet.is_on_trial(at) {
                host.completes(&longer);
            }
        }
        rollout.try_wait().unwrap().is_some()
    });
    let output = rollout.wait_with_output().unwrap();
    let (said, printed) = (complaint(&output), String::from_utf8(output.stdout).unwrap());
    assert!(output.status.success(), "{said}{printed}");
    let done = json(&printed);
    assert_eq!(done["live_on_all"], true, "{done}");
    for (host, before, outcome) in
        [(0, "continuous", "live"), (1, "continuous", "live"), (2, "srpt", "unchanged")]
    {
        let row = &done["hosts"][host];
        assert_eq!((&row["before"]["name"], &row["outcome"]), (&before.into(), &outcome.into()), "{done}");
        assert_eq!(row["now"]["name"], "srpt", "{done}");
        let slot = fleet.slot(host);
        assert_eq!((&slot["config"]["patience_ms"], &slot["state"]), (&5.into(), &"live".into()), "{slot}");
    }
    let history = json(&fleet.at(1, &["history", "scheduler", "--json"]));
    let modes: Vec<&str> = history.as_array().unwrap().iter().map(|e| e["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["start", "canary", "stays"], "{history}");
    let begun = |host: &str| said.find(&format!("{host}: srpt (canary)")).unwrap_or_else(|| panic!("{said}"));
    assert!(begun("a") < said.find("a: stays: no fault in ").unwrap(), "{said}");
    assert!(said.find("a: stays: ").unwrap() < begun("b"), "{said}");

    let again = fleet.rolls_out(&config).wait_with_output().unwrap();
    assert!(again.status.success(), "{}", complaint(&again));
    assert_eq!(String::from_utf8_lossy(&again.stdout).matches("had it already").count(), 3);
    fleet.ends();
}

#[test]
fn nothing_is_changed_if_a_host_fails_the_preflight() {
    let fleet = Fleet::of(2);
    let port = Port::new();
    fs::write(fleet.home.path("wrong.token"), "not-that-of-a-host").unwrap();
    let state =
        fleet.home.command("", &["admin", "state", "--admin", &fleet.hosts[0].admin]).output().unwrap();
    let state = json(&String::from_utf8(state.stdout).unwrap());
    assert_eq!(state["host"]["policy_interface"], "infer:policy@0.1.0", "{}", state["host"]);
    let b = &fleet.hosts[1].admin;
    let own = format!("[hosts.b]\nadmin = \"{b}\"\n");
    let listed = fs::read_to_string(fleet.home.path("hosts.toml")).unwrap();
    let listed = listed.replace(&own, &format!("{own}token-file = \"wrong.token\"\n"));
    let down = format!("[hosts.down]\nadmin = \"127.0.0.1:{}\"\n", port.number);
    fs::write(fleet.home.path("hosts.toml"), listed + &down).unwrap();
    let (said, printed) = Fleet::stops(fleet.rolls_out(&["srpt"]));
    assert_eq!(printed, "");
    assert!(said.starts_with("error: the rollout can't begin; nothing was changed:\n"), "{said}");
    for words in ["\nb: the admin plane requires ", "\ndown: http://127.0.0.1:", " can't be reached: "] {
        assert!(said.contains(words), "`{words}` isn't in: {said}");
    }
    fleet.is_listed_with("");
    // A name that no host knows, and a component for another slot.
    let (said, _) = Fleet::stops(fleet.rolls_out(&["nothing"]));
    assert_eq!(said.matches("there is no scheduler policy `nothing`").count(), 2, "{said}");
    fs::write(fleet.home.path("lru.wasm"), infer_bundle::find("prefix-cache", "lru").unwrap().component)
        .unwrap();
    let output = fleet.rolls_out(&["lru.wasm"]).wait_with_output().unwrap();
    let said = complaint(&output);
    assert!(
        output.status.code() == Some(2) && said.contains("lru.wasm: it is no scheduler policy"),
        "{said}"
    );
    let twice = fleet.hosts[0].admin.replace("127.0.0.1", "localhost");
    let output =
        fleet.types(&["rollout", "scheduler", "srpt", "--admin", &fleet.hosts[0].admin, "--admin", &twice]);
    let said = complaint(&output);
    assert!(output.status.code() == Some(1) && said.contains(" are the same host; "), "{said}");
    for host in 0..2 {
        let history = json(&fleet.at(host, &["history", "scheduler", "--json"]));
        assert_eq!(history.as_array().unwrap().len(), 1, "{history}");
    }
    fleet.ends();
}

#[test]
fn hosts_are_rolled_back_if_the_policy_fails_on_a_later_one() {
    let fleet = Fleet::of(3);
    let component = trapping_scheduler(&fleet.home);
    let mut rollout = fleet.rolls_out(&[component]);
    fleet.gets_to_the_second_host();
    let longer = COMPLETION.replace(": 5", ": 200");
    until("the policy has failed", || {
        fleet.hosts[1].completes(&longer);
        rollout.try_wait().unwrap().is_some()
    });
    let (said, printed) = Fleet::stops(rollout);
    assert!(said.contains("\nerror: the rollout stopped: b: the canary was rolled back: "), "{said}");
    assert!(row(&printed, "a").ends_with("rolled back"), "{printed}");
    assert!(row(&printed, "b").contains("failed: the canary was rolled back: "), "{printed}");
    assert!(row(&printed, "c").ends_with("not reached"), "{printed}");
    for host in 0..3 {
        assert_eq!(fleet.live(host), "continuous", "{said}");
        fleet.hosts[host].serves();
    }
    let modes = |host: usize| {
        let history = json(&fleet.at(host, &["history", "scheduler", "--json"]));
        let entries = history.as_array().unwrap();
        entries.iter().map(|entry| entry["mode"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(modes(0), ["start", "canary", "stays", "rollback"]);
    assert_eq!(modes(1), ["start", "canary", "fault"]);
    assert_eq!(modes(2), ["start"]);

    // The host remembers the failure.
    let (said, _) = Fleet::stops(fleet.rolls_out(&[component]));
    assert!(said.contains("\nb: `trapping` is quarantined: "), "{said}");
    fleet.ends();
}

#[test]
fn rollout_that_nobody_hears_goes_on() {
    let fleet = Fleet::of(2);
    let at_once = ["rollout", "scheduler", "srpt", "--canaries", "none", "--hosts", "hosts.toml"];
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let status = fleet.command(&at_once).stdout(Stdio::null()).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!([0, 1].map(|at| fleet.live(at)), ["srpt", "srpt"]);
    // Neither does a failure become a panic.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let nothing = ["rollout", "scheduler", "nothing", "--hosts", "hosts.toml"];
    let status = fleet.command(&nothing).stdout(Stdio::null()).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(1));
    fleet.ends();
}
