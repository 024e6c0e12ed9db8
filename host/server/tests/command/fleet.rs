//! Several hosts by command: where their policies differ.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use crate::commands::{KEPT, serving};
use crate::port::Port;
use crate::process::{Home, Host, complaint};

/// Hosts called `a`, `b` and so on in the file `hosts.toml`, all of one home, so that their tokens are found.
struct Fleet {
    home: Home,
    hosts: Vec<Host>,
}

impl Fleet {
    fn of(count: usize) -> Self {
        let home = Home::new();
        let hosts: Vec<Host> = (0..count).map(|_| serving(&home)).collect();
        let fleet = Self { home, hosts };
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
    let output = list(&["--json"]);
    let listed = json(&String::from_utf8(output.stdout).unwrap());
    assert_eq!(output.status.code(), Some(1), "{listed}");
    let hosts = listed["hosts"].as_array().unwrap();
    assert_eq!((&hosts[2]["host"], hosts.len()), (&"down".into(), 3), "{listed}");
    assert!(hosts.iter().all(|host| host["error"].is_string()), "{listed}");
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
    let fleet = Fleet { home, hosts };
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
