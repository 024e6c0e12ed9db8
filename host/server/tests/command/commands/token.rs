//! Where commands find the token of a host.

use super::{Operator, serving};
use crate::process::{Home, complaint};

#[test]
fn named_token_file_wins_over_the_variable_and_the_default_place() {
    let home = Home::new();
    let host = serving(&home);
    let token = home.left("run").pop().expect("the host's token file");
    let elsewhere = Home::new();
    let list = |before: &str, file: &str| {
        let arguments = ["policy", "list", "--admin", &host.admin, "--token-file", file];
        elsewhere.command(before, &arguments).output().unwrap()
    };
    for before in ["", "export INFER_ADMIN_TOKEN=another-token"] {
        let listed = list(before, token.to_str().unwrap());
        assert!(listed.status.success(), "{before}: {}", complaint(&listed));
    }
    let missing = list("", "none.token");
    let said = complaint(&missing);
    assert!(
        missing.status.code() == Some(2) && said.contains("--token-file: can't read none.token"),
        "{said}"
    );
    let record =
        ["sim", "record", "--out", "t.jsonl", "--seconds", "1", "--admin", &host.admin, "--token-file"];
    let recorded = elsewhere.command("", &record).arg(&token).output().unwrap();
    assert!(recorded.status.success(), "{}", complaint(&recorded));
    host.ends();
}

#[test]
fn root_finds_the_token_of_another_users_host() {
    let home = Home::new();
    let host = serving(&home);
    let operator = Operator { home: &home, host: &host };
    // Like the runtime directory of a service.
    if let Err(why) = std::os::unix::fs::chown(home.path("run"), Some(10_001), None) {
        return eprintln!("skipped: only root can make a host another user's: {why}");
    }
    let listed = operator.types(&["list"]);
    assert!(listed.status.success(), "{}", complaint(&listed));
    host.ends();
}
