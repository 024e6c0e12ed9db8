//! Lists of several hosts, and how hosts and their tokens are named.

use std::fs;

use super::{Fleet, json, row, with_token};
use crate::port::Port;
use crate::process::{Home, Host, complaint};

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
    let hosts = given.map(|token| with_token(&home, token, &[])).into();
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
