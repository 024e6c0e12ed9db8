//! Several hosts by command: where their policies differ, and one policy brought to all of them or to none.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::chaos::{trapping_scheduler, until};
use crate::commands::{KEPT, serving};
use crate::port::Port;
use crate::process::{COMPLETION, Home, Host, complaint};

/// Hosts called `a`, `b` and so on in the file `hosts.toml`, all of one home, so that their tokens are found.
struct Fleet {
    home: Home,
    hosts: Vec<Host>,
    /// What commands get in the environment.
    token: Option<&'static str>,
}

/// A host whose token outlives it.
fn with_token(home: &Home, arguments: &[&str]) -> Host {
    let mut serve = home.serve(KEPT, arguments);
    serve.env("INFER_ADMIN_TOKEN", TOKEN);
    Host::start(serve)
}

impl Fleet {
    fn of(count: usize) -> Self {
        let home = Home::new();
        let hosts: Vec<Host> = (0..count).map(|_| serving(&home)).collect();
        let fleet = Self { home, hosts, token: None };
        fleet.is_listed_with("");
        fleet
    }

    /// Writes `hosts.toml`, with more at its end.
    fn is_listed_with(&self, more: &str) {
        let tables = ["a", "b", "c"].iter().zip(&self.hosts);
        let tables: String =
            tables.map(|(name, host)| format!("[hosts.{name}]\nadmin = \"{}\"\n", host.admin)).collect();
        fs::write(self.home.path("hosts.toml"), tables + more).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.command("", &["policy"]);
        command.args(arguments).env_remove("INFER_HOSTS").env_remove("INFER_ADMIN");
        command.envs(self.token.map(|token| ("INFER_ADMIN_TOKEN", token)));
        command
    }

    fn types(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("sh starts")
    }

    /// The output of a command that must succeed.
    fn sees(&self, arguments: &[&str]) -> String {
        let output = self.types(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", complaint(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What another operator does at one of the hosts.
    fn at(&self, host: usize, arguments: &[&str]) -> String {
        self.sees(&[arguments, &["--admin", &self.hosts[host].admin]].concat())
    }

    /// The scheduler's slot of a host.
    fn slot(&self, host: usize) -> Value {
        serde_json::from_str(&self.at(host, &["describe", "scheduler", "--json"])).unwrap()
    }

    fn live(&self, host: usize) -> String {
        self.slot(host)["name"].as_str().unwrap().to_owned()
    }

    fn is_on_trial(&self, host: usize) -> bool {
        self.slot(host)["state"] == "canary"
    }

    /// Begins a rollout to the scheduler's slot of all hosts.
    fn rolls_out(&self, arguments: &[&str]) -> Child {
        let all = [&["rollout", "scheduler"], arguments, &["--hosts", "hosts.toml"]].concat();
        self.command(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("sh starts")
    }

    /// The words of a rollout that must stop, and its table.
    fn stops(rollout: Child) -> (String, String) {
        let output = rollout.wait_with_output().unwrap();
        // It may quote a policy's panic.
        let [said, printed] = [output.stderr, output.stdout].map(|text| String::from_utf8(text).unwrap());
        assert_eq!(output.status.code(), Some(1), "{said}{printed}");
        (said, printed)
    }

    /// Kills a host with a token of the environment, and starts it again at the same address.
    fn restarts(&mut self, host: usize, arguments: &[&str]) {
        let address = self.hosts[host].admin.trim_start_matches("http://").to_owned();
        let port = address.rsplit(':').next().unwrap().parse().unwrap();
        drop(self.hosts.remove(host));
        let _kept = Port::at(port);
        let again = with_token(&self.home, &[&["--admin", &address][..], arguments].concat());
        self.hosts.insert(host, again);
    }

    fn ends(self) {
        self.hosts.into_iter().for_each(Host::ends);
    }
}

/// The line of a host in a table.
fn row<'a>(table: &'a str, host: &str) -> &'a str {
    let mut lines = table.lines().filter(|line| line.split_whitespace().next() == Some(host));
    lines.next().unwrap_or_else(|| panic!("no row of {host}: {table}"))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn list_and_history_show_several_hosts_and_where_they_differ() {
    let fleet = Fleet::of(2);
    let listed = fleet.sees(&["list", "--hosts", "hosts.toml"]);
    assert!(listed.starts_with("host  slot "), "{listed}");
    assert!(listed.contains("\nthese hosts have the same policies in all slots\n"), "{listed}");
    assert!(row(&listed, "a").contains("scheduler") && row(&listed, "b").contains("scheduler"), "{listed}");
    assert!(fleet.at(0, &["list"]).starts_with("live:\n"), "one host looks as ever");

    fleet.at(1, &["swap", "scheduler", "srpt", "--config", r#"{"patience_ms": 5}"#]);
    let two = ["--admin", &fleet.hosts[0].admin, "--admin", &fleet.hosts[1].admin];
    let listed = fleet.sees(&[&["list"][..], &two].concat());
    let addresses = [0, 1].map(|at| fleet.hosts[at].admin.trim_start_matches("http://"));
    let difference = listed.lines().find(|line| line.starts_with("the hosts differ in scheduler: "));
    let difference = difference.unwrap_or_else(|| panic!("no difference: {listed}"));
    for words in [format!(") on {}; srpt (", addresses[0]), format!(") on {}", addresses[1])] {
        assert!(difference.contains(&words) && difference.contains(", config "), "{words}: {difference}");
    }
    assert_eq!(listed.matches("the hosts differ in ").count(), 1, "{listed}");

    let history = fleet.sees(&["history", "scheduler", "--hosts", "hosts.toml"]);
    let last = history.lines().rfind(|line| line.contains(" -> ")).unwrap();
    assert!(last.starts_with("b ") && last.contains(" continuous -> srpt "), "{history}");
    assert!(history.contains("the hosts differ in scheduler: "), "{history}");
    assert!(row(&history, "a").contains(" - -> continuous "), "{history}");

    // One that is down has a row, too.
    let port = Port::new();
    fleet.is_listed_with(&format!("[hosts.down]\nadmin = \"127.0.0.1:{}\"\n", port.number));
    let list = |arguments: &[&str]| {
        let mut command = fleet.command(&[&["list"], arguments].concat());
        command.env("INFER_HOSTS", "hosts.toml").env("INFER_ADMIN_TOKEN", "not-that-of-a-host");
        command.output().unwrap()
    };
    let output = list(&[]);
    let (said, printed) = (complaint(&output), String::from_utf8(output.stdout).unwrap());
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(row(&printed, "down").ends_with("no answer"), "{printed}");
    assert!(said.contains("down: ") && said.contains(" can't be reached: "), "{said}");
    assert!(said.contains("a: the admin plane requires "), "a wrong token is no answer either: {said}");
    // Alone it has its name, too.
    let down = format!("[hosts.down]\nadmin = \"127.0.0.1:{}\"\n", port.number);
    fs::write(fleet.home.path("one.toml"), down).unwrap();
    for asks in [&["list"][..], &["history", "scheduler"]] {
        let said = complaint(&fleet.types(&[asks, &["--hosts", "one.toml"]].concat()));
        let start = "error: down: http://127.0.0.1:";
        assert!(said.starts_with(start) && !said.contains("--bundled"), "{said}");
    }
    let output = list(&["--json"]);
    let listed = json(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(output.status.code(), Some(1), "{listed}");
    let hosts = listed["hosts"].as_array().unwrap();
    assert_eq!((&hosts[2]["host"], hosts.len()), (&"down".into(), 3), "{listed}");
    assert!(hosts.iter().all(|host| host["error"].is_string()), "{listed}");
    fleet.ends();
}

#[test]
fn variables_name_hosts_only_where_no_flag_does() {
    let fleet = Fleet::of(2);
    let [a, b] = [0, 1].map(|at| fleet.hosts[at].admin.clone());
    let (a, b) = (a.as_str(), b.as_str());
    let listed = |arguments: &[&str]| {
        let mut list =
            fleet.command(&[&["rollout", "scheduler", "srpt", "--dry-run", "--json"], arguments].concat());
        let output = list.env("INFER_HOSTS", "hosts.toml").env("INFER_ADMIN", b).output().unwrap();
        assert!(output.status.success(), "{}", complaint(&output));
        let hosts = json(&String::from_utf8(output.stdout).unwrap());
        let hosts = hosts["hosts"].as_array().unwrap();
        hosts.iter().map(|host| host["admin"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]), [a, b]);
    assert_eq!(listed(&["--admin", a]), [a]);
    fs::write(fleet.home.path("one.toml"), format!("[hosts.a]\nadmin = \"{a}\"\n")).unwrap();
    assert_eq!(listed(&["--hosts", "one.toml"]), [a]);
    assert_eq!(listed(&["--hosts", "one.toml", "--admin", b]), [a, b]);
    fleet.ends();
}

#[test]
fn token_of_the_file_is_for_its_host_alone() {
    let home = Home::new();
    let given = ["token-of-a-1234", "token-of-b-1234"];
    let start = |token: &str| {
        let mut serve = home.serve(KEPT, &[]);
        serve.env("INFER_ADMIN_TOKEN", token);
        Host::start(serve)
    };
    let hosts = given.map(start).into();
    let fleet = Fleet { home, hosts, token: None };
    fs::create_dir(fleet.home.path("site")).unwrap();
    let table = |name: &str, host: &Host| {
        fs::write(fleet.home.path(&format!("site/{name}.token")), given[usize::from(name == "b")]).unwrap();
        format!("[hosts.{name}]\nadmin = \"{}\"\ntoken-file = \"{name}.token\"\n", host.admin)
    };
    let text = table("a", &fleet.hosts[0]) + &table("b", &fleet.hosts[1]);
    fs::write(fleet.home.path("site/hosts.toml"), &text).unwrap();
    let list = |file: &str| fleet.types(&["list", "--json", "--hosts", file]);
    let output = list("site/hosts.toml");
    assert!(output.status.success(), "{}", complaint(&output));

    // Without its own file, `b` is not given that of `a`.
    let text = text.replace("token-file = \"b.token\"\n", "");
    fs::write(fleet.home.path("site/hosts.toml"), text).unwrap();
    let output = list("site/hosts.toml");
    let said = complaint(&output);
    assert!(output.status.code() == Some(1) && said.starts_with("error: b: no admin token: "), "{said}");
    let mut command = fleet.command(&["list", "--hosts", "site/hosts.toml"]);
    let output = command.env("INFER_ADMIN_TOKEN", given[1]).output().unwrap();
    assert!(output.status.success(), "the variable is for those without: {}", complaint(&output));
    fleet.ends();
}

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
    until("the first host is on trial", || fleet.is_on_trial(0));
    fleet.at(0, &["promote", "scheduler"]);
    until("the second host is on trial", || fleet.is_on_trial(1));
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

#[test]
fn host_that_was_restarted_meanwhile_gets_back_what_ran_before() {
    const STATE: [&str; 2] = ["--policy-state", "policies"];
    let home = Home::new();
    let hosts = vec![with_token(&home, &STATE), with_token(&home, &[])];
    let mut fleet = Fleet { home, hosts, token: Some(TOKEN) };
    fleet.is_listed_with("");
    fleet.at(0, &["swap", "scheduler", "fair"]);
    let rollout = fleet.rolls_out(&["srpt"]);
    until("the first host is on trial", || fleet.is_on_trial(0));
    fleet.at(0, &["promote", "scheduler"]);
    until("the second host is on trial", || fleet.is_on_trial(1));
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
    let home = Home::new();
    let hosts = vec![with_token(&home, &[]), with_token(&home, &[])];
    let mut fleet = Fleet { home, hosts, token: Some(TOKEN) };
    fleet.is_listed_with("");
    let rollout = fleet.rolls_out(&["srpt"]);
    until("the first host is on trial", || fleet.is_on_trial(0));
    fleet.at(0, &["promote", "scheduler"]);
    until("the second host is on trial", || fleet.is_on_trial(1));
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
    fs::remove_dir_all(fleet.home.path("policies")).unwrap();
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
    until("the first host is on trial", || fleet.is_on_trial(0));
    fleet.at(0, &["promote", "scheduler"]);
    until("the second host is on trial", || fleet.is_on_trial(1));
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

/// In front of a host: holds swaps back until they may pass, and loses connections.
struct Gate {
    fleet: Fleet,
    rollout: Child,
    pass: Sender<()>,
    /// How many looks at the policies get no answer.
    lost: Arc<AtomicU32>,
}

const TOKEN: &str = "token-of-a-1234";

impl Gate {
    /// Begins a rollout through it, to one host and at once. Returns when the swap is held.
    fn before_a_swap() -> Self {
        let home = Home::new();
        let mut serve = home.serve(KEPT, &[]);
        serve.env("INFER_ADMIN_TOKEN", TOKEN);
        let fleet = Fleet { home, hosts: vec![Host::start(serve)], token: None };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let behind = fleet.hosts[0].admin.trim_start_matches("http://").to_owned();
        let ((holds, held), (pass, passes)) = (channel(), channel());
        let (lost, passes) = (Arc::<AtomicU32>::default(), Arc::new(Mutex::new(passes)));
        let loses = Arc::clone(&lost);
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let host = TcpStream::connect(&behind).unwrap();
                let (mut from, mut to) = (host.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || io::copy(&mut from, &mut to));
                let (holds, passes, loses) = (holds.clone(), Arc::clone(&passes), Arc::clone(&loses));
                std::thread::spawn(move || relay(client, host, &holds, &passes, &loses));
            }
        });
        let at_once = ["rollout", "scheduler", "srpt", "--canaries", "none", "--admin", &address];
        let mut rollout = fleet.command(&at_once);
        rollout.env("INFER_ADMIN_TOKEN", TOKEN).stdout(Stdio::null()).stderr(Stdio::piped());
        let rollout = rollout.spawn().expect("sh starts");
        held.recv_timeout(Duration::from_secs(60)).expect("it swaps");
        Self { fleet, rollout, pass, lost }
    }

    fn live(&self) -> Value {
        let host = &self.fleet.hosts[0].admin;
        let mut describe = self.fleet.command(&["describe", "scheduler", "--json", "--admin", host]);
        let output = describe.env("INFER_ADMIN_TOKEN", TOKEN).output().unwrap();
        json(&String::from_utf8(output.stdout).unwrap())["name"].clone()
    }
}

/// Hands a client's requests on to a host.
fn relay(
    mut client: TcpStream,
    mut host: TcpStream,
    holds: &Sender<()>,
    passes: &Mutex<Receiver<()>>,
    loses: &AtomicU32,
) {
    let mut part = [0; 65_536];
    while let Ok(length @ 1..) = client.read(&mut part) {
        if part.starts_with(b"PUT ") {
            let _ = holds.send(());
            let _ = passes.lock().unwrap().recv();
        }
        if part.starts_with(b"GET /admin/policies ") && loses.load(Ordering::SeqCst) > 0 {
            loses.fetch_sub(1, Ordering::SeqCst);
            let _ = client.shutdown(Shutdown::Both);
            break;
        }
        let _ = host.write_all(&part[..length]);
    }
    let _ = host.shutdown(Shutdown::Both);
}

#[test]
fn rollout_that_is_interrupted_during_its_last_swap_is_rolled_back() {
    let mut gate = Gate::before_a_swap();
    let pid = gate.rollout.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut said = BufReader::new(gate.rollout.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("stopping, and rolling back what was swapped; ") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it has ended");
    }
    gate.pass.send(()).unwrap();
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(gate.rollout.wait().unwrap().code(), Some(1), "{rest}");
    assert!(rest.ends_with("error: the rollout stopped: it was interrupted\n"), "{rest}");
    assert_eq!(gate.live(), "continuous", "{rest}");
    gate.fleet.ends();
}

#[test]
fn lost_connection_does_not_stop_a_rollout() {
    let gate = Gate::before_a_swap();
    gate.lost.store(2, Ordering::SeqCst);
    gate.pass.send(()).unwrap();
    let Gate { fleet, rollout, .. } = gate;
    let output = rollout.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", complaint(&output));
    fleet.ends();
}
