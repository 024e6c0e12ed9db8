//! `infer admin reload`. What is under way is operated in `tests/host/operation/commands.rs`.

use serde_json::Value;

use super::{KEPT, Operator};
use crate::process::{Home, Host, complaint};

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
