//! `infer admin`: requests, queue, cache, and reloads.

use serde_json::Value;

use super::{KEPT, Operator};
use crate::process::{Home, Host, complaint};

#[test]
fn requests_queue_and_cache_are_operated_by_commands() {
    let home = Home::new();
    let host = Host::start(home.serve(KEPT, &["--max-batch-size", "1"]));
    let operator = Operator { home: &home, host: &host };
    let sees = |arguments: &[&str]| {
        let output = operator.types_to("admin", arguments);
        assert!(output.status.success(), "{arguments:?}: {}", complaint(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let requests = || -> Vec<Value> { serde_json::from_str(&sees(&["requests", "--json"])).unwrap() };
    assert_eq!(sees(&["requests"]), "no request is live\n");
    assert_eq!(sees(&["tenants"]), "no tenant has sent a request\n");
    let until =
        |condition: &dyn Fn() -> bool| assert!((0..200).any(|_| condition()), "{}", sees(&["requests"]));
    let endless = r#"{"model": "demo", "prompt": "x", "ignore_eos": true, "max_tokens": 1500}"#;
    let _streams = [host.ask(endless), host.ask(endless)];
    until(&|| requests().len() == 2);
    let listed = sees(&["requests"]);
    let mut lines = listed.lines();
    assert!(lines.next().unwrap().starts_with("id  state"), "{listed}");
    assert!(listed.contains("  default  ") && listed.contains("/1500  "), "{listed}");
    assert_eq!(sees(&["clear-queue"]), "failed 1 waiting requests\n");
    let id = requests()[0]["id"].to_string();
    assert_eq!(sees(&["cancel", &id]), format!("cancelled {id}\n"));
    assert_eq!(operator.types_to("admin", &["cancel", &id]).status.code(), Some(1));
    assert_eq!(operator.types_to("admin", &["cancel", "a/b"]).status.code(), Some(2));
    host.serves();
    until(&|| requests().is_empty());
    let tenants = sees(&["tenants"]);
    let row: Vec<&str> = tenants.lines().nth(1).unwrap().split_whitespace().take(5).collect();
    assert_eq!(row, ["default", "1", "0", "0", "0"], "weight, running, waiting, held: {tenants}");
    let rows: Value = serde_json::from_str(&sees(&["tenants", "--json"])).unwrap();
    assert_eq!((&rows[0]["name"], &rows[0]["failed"]), (&"default".into(), &1.into()), "the queue's");
    let state: Value = serde_json::from_str(&sees(&["state"])).unwrap();
    let dropped = format!("dropped {} cached blocks; 0 are in use\n", state["memory"]["cached"]);
    assert_eq!(sees(&["empty-cache"]), dropped);
    assert_eq!(sees(&["reload"]), "there is nothing to reload\n");
    assert_eq!(sees(&["drain"]), "the host refuses new requests; 0 are live\n");
    assert_eq!(sees(&["undrain"]), "the host takes new requests\n");
    host.serves();
    host.ends();
}

#[test]
fn reload_by_command_says_that_it_changed_nothing_where_an_operator_chose() {
    let home = Home::new();
    let write = |text: &str| std::fs::write(home.path("policies.json"), text).unwrap();
    write("{}");
    let host = Host::start(home.serve(KEPT, &["--scheduler", "srpt", "--policy-config", "policies.json"]));
    let operator = Operator { home: &home, host: &host };
    operator.sees(&["swap", "scheduler", "fair"]);
    write(r#"{"scheduler": {"patience_ms": 321}}"#);
    let output = operator.types_to("admin", &["reload"]);
    assert!(output.status.success(), "{}", complaint(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed, "scheduler: nothing changed, because an operator swapped in `fair`\n");
}

#[test]
fn reload_by_command_names_what_stays_as_it_was_and_why() {
    let home = Home::new();
    let write = |name: &str, text: &str| std::fs::write(home.path(name), text).unwrap();
    let digest = infer_server::tenants::KeyDigest::of("one");
    write("tenants.toml", &format!("[tenants.a]\nkeys = [\"{digest}\"]\n"));
    write("policies.json", "{}");
    let files = ["--api-keys", "tenants.toml", "--policy-config", "policies.json"];
    let host = Host::start(home.serve(KEPT, &files));
    let operator = Operator { home: &home, host: &host };
    let reloads = |arguments: &[&str]| {
        let output = operator.types_to("admin", &[&["reload"], arguments].concat());
        let said = complaint(&output);
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), said)
    };
    assert_eq!(reloads(&[]), (Some(0), "reloaded api-keys\n".to_owned(), String::new()));

    write("policies.json", r#"{"scheduler": {"nonsense": 1}}"#);
    let (code, printed, said) = reloads(&[]);
    assert_eq!((code, &*printed), (Some(1), "reloaded api-keys\n"), "{said}");
    assert!(said.starts_with("error: can't reload scheduler (the old one stays in use): "), "{said}");
    assert!(said.contains("nonsense"), "{said}");
    let (code, printed, said) = reloads(&["--json"]);
    let parts: Value = serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
    assert_eq!((code, parts["reloaded"].as_array().map(Vec::len)), (Some(1), Some(2)), "{parts}");
    assert!(said.contains("can't reload scheduler"), "{said}");

    write("tenants.toml", "");
    let (code, printed, said) = reloads(&[]);
    assert_eq!((code, &*printed), (Some(1), ""), "nothing was reloaded: {said}");
    let keys = said.lines().next().unwrap_or_default();
    assert!(
        keys.starts_with("error: can't reload api-keys (the old ones stay in use): ")
            && keys.contains("tenants.toml"),
        "{said}"
    );
    assert!(said.contains("\ncan't reload scheduler "), "each has a line of its own: {said}");
    host.ends();
}
