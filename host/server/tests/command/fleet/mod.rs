//! Several hosts by command: where their policies differ, and one policy brought to all of them or to none.

mod gate;
mod hosts;
mod lists;
mod rollouts;
mod stopped;

use std::fs;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::chaos::until;
use crate::commands::{KEPT, serving};
use crate::port::Port;
use crate::process::{Home, Host, complaint};

/// Hosts called `a`, `b` and so on in the file `hosts.toml`, all of one home, so that their tokens are found.
struct Fleet {
    home: Home,
    hosts: Vec<Host>,
    /// What commands get in the environment.
    token: Option<&'static str>,
}

/// A host whose token outlives it.
fn with_token(home: &Home, token: &str, arguments: &[&str]) -> Host {
    let mut serve = home.serve(KEPT, arguments);
    serve.env("INFER_ADMIN_TOKEN", token);
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

    /// Two hosts with these arguments that can be restarted, because their token outlives them.
    fn that_restarts(arguments: [&[&str]; 2]) -> Self {
        let home = Home::new();
        let hosts = arguments.map(|arguments| with_token(&home, TOKEN, arguments)).into();
        let fleet = Self { home, hosts, token: Some(TOKEN) };
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

    /// Waits for the trial on the first host, promotes the policy there, and waits for the trial on the second.
    fn gets_to_the_second_host(&self) {
        until("the first host is on trial", || self.is_on_trial(0));
        self.at(0, &["promote", "scheduler"]);
        until("the second host is on trial", || self.is_on_trial(1));
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
        let again = with_token(&self.home, TOKEN, &[&["--admin", &address][..], arguments].concat());
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

const TOKEN: &str = "token-of-a-1234";
