//! `infer policy` changes what a host runs, and says why it can't.

use super::{Operator, serving};
use crate::process::{Home, complaint};

#[test]
fn policies_are_swapped_and_rolled_back_by_commands_that_find_the_token() {
    let home = Home::new();
    let host = serving(&home);
    let operator = Operator { home: &home, host: &host };
    let live =
        ["live:\n  scheduler     continuous ", "  admission     memory-aware ", "  prefix-cache  lru "];
    operator.sees_that(&["list"], &live);
    assert!(!operator.sees(&["list"]).contains("s3-fifo"), "only what is live");
    operator.sees_that(&["list", "--all"], &live);
    operator.sees_that(&["list", "--all"], &["can be swapped in:\n", "  prefix-cache  s3-fifo "]);
    operator.sees_that(&["describe", "prefix-cache"], &["lru 0.1.0 (prefix-cache, live)", "previous none"]);
    operator.sees_that(&["describe", "srpt"], &["srpt 0.1.0 (scheduler)", "patience_ms"]);

    let swapped = "scheduler: continuous -> static-batch before step ";
    let configured = ["swap", "scheduler", "static-batch", "--config", r#"{"batch_size": 2}"#];
    operator.sees_that(&configured, &[swapped]);
    operator.sees_that(&configured, &["scheduler: static-batch (", ") is live already; nothing changed"]);
    let component = infer_bundle::find("scheduler", "srpt").unwrap().component;
    std::fs::write(home.path("mine.wasm"), component).unwrap();
    std::fs::write(home.path("mine.json"), r#"{"patience_ms": 321}"#).unwrap();
    let from_files = ["swap", "scheduler", "mine.wasm", "--config", "mine.json"];
    assert_eq!(operator.sees_json(&from_files)["to"], "srpt");
    assert_eq!(operator.sees_json(&["describe", "scheduler"])["config"]["patience_ms"], 321);
    operator.sees_that(
        &["rollback", "scheduler"],
        &["scheduler: srpt -> static-batch before step ", ", config "],
    );
    assert_eq!(operator.sees_json(&["describe", "scheduler"])["config"]["batch_size"], 2);

    let history = operator.sees(&["history", "scheduler"]);
    let changes: Vec<&str> =
        history.lines().filter_map(|line| line.split_once(" -> ")).map(|l| l.1).collect();
    let names: Vec<&str> = changes.iter().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["continuous", "static-batch", "srpt", "static-batch"], "{history}");
    assert_eq!(history.matches(", config ").count(), 3, "all but the first are configured: {history}");
    host.serves();
    host.ends();
}

#[test]
fn policies_run_as_shadow_and_canary_by_commands() {
    let home = Home::new();
    let host = serving(&home);
    let operator = Operator { home: &home, host: &host };
    let tried = "scheduler: fair in shadow beside continuous before step ";
    operator.sees_that(&["swap", "scheduler", "fair", "--mode", "shadow"], &[tried]);
    host.serves();
    operator.sees_that(&["list"], &["    shadow: fair 0.1.0 agrees in "]);
    operator.sees_that(&["shadow", "scheduler"], &["fair 0.1.0 agrees in ", "(watching)", "  shadow  p50 "]);
    let watched = operator.sees_json(&["shadow", "scheduler"]);
    assert!(watched["questions"].as_u64() > Some(0), "{watched}");
    operator.sees_that(&["promote", "scheduler"], &["scheduler: continuous -> fair before step "]);

    operator.sees(&["swap", "scheduler", "static-batch", "--mode", "shadow"]);
    operator
        .sees_that(&["shadow", "scheduler", "--stop"], &["static-batch 0.1.0: no decision was compared yet"]);
    assert!(!operator.sees(&["list"]).contains("shadow:"));
    assert_eq!(operator.live("scheduler"), "fair");

    let canary = ["swap", "prefix-cache", "s3-fifo", "--mode", "canary", "--window", "300"];
    operator.sees_that(
        &canary,
        &["prefix-cache: lru -> s3-fifo before step ", "the canary is being watched: only faults"],
    );
    operator.sees_that(&["list"], &["canary: s3-fifo instead of lru: watching", " of 300.0 s "]);
    operator.sees(&["promote", "prefix-cache"]);
    assert_eq!(operator.live("prefix-cache"), "s3-fifo");
    let history = operator.sees_json(&["history", "prefix-cache"]);
    let modes: Vec<&str> = history.as_array().unwrap().iter().map(|e| e["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["start", "canary", "stays"], "{history}");
    host.ends();
}

#[test]
fn failing_command_says_why() {
    let home = Home::new();
    let host = serving(&home);
    let operator = Operator { home: &home, host: &host };
    std::fs::write(home.path("mine.wasm"), infer_bundle::find("scheduler", "srpt").unwrap().component)
        .unwrap();
    let long = &*format!(r#"{{"{}": 1}}"#, "k".repeat(9_000));
    let cases: [(&[&str], i32, &str); 20] = [
        (&["describe", "nothing"], 2, "policies are "),
        (&["swap", "scheduler", "nothing"], 1, "there is no scheduler policy `nothing`"),
        (&["swap", "scheduler", "nothing.wasm"], 2, "nothing.wasm"),
        (&["swap", "admission", "memory-aware,./nothing.wasm"], 2, "a list takes names"),
        (
            &["swap", "scheduler", "mine.wasm", "--config", long],
            2,
            "too long beside a component, which allows 8192",
        ),
        (
            &["swap", "scheduler", "fair", "--of", "srpt"],
            1,
            "the scheduler slot now runs `continuous`, not `srpt`; refresh and retry",
        ),
        (
            &["rollback", "scheduler", "--of", "srpt"],
            1,
            "the scheduler slot now runs `continuous`, not `srpt`; refresh and retry",
        ),
        (&["swap", "scheduler", "fair", "--config", "nothing.json"], 2, "--config: nothing.json"),
        (&["swap", "scheduler", "fair", "--config", "{"], 2, "--config: not valid JSON"),
        (&["swap", "scheduler", "fair", "--config", r#"{"a": 1, "a": 2}"#], 2, "the key `a` occurs twice"),
        (&["swap", "scheduler", "fair", "--mode", "shadow", "--window", "5"], 2, "--mode canary"),
        (&["swap", "scheduler", "fair", "--window", "5"], 2, "--mode canary"),
        (&["swap", "scheduler", "fair", "--mode", "canary", "--window", "301"], 2, "--window <SECONDS>"),
        (&["swap", "scheduler", "fair", "--mode", "canary", "--window", "0.5"], 2, "seconds from 1 to 300"),
        (&["rollback", "admission"], 1, "previous"),
        (&["promote", "admission"], 1, "neither"),
        (&["shadow", "admission"], 1, "shadow"),
        (&["shadow", "admission", "--stop"], 1, "shadow"),
        (&["list", "--admin", "ftp://127.0.0.1"], 2, "--admin"),
        (&["list", "--admin", "https://127.0.0.1"], 2, "its URL begins with http://"),
    ];
    for (arguments, code, words) in cases {
        let output = operator.types(arguments);
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: `{words}` isn't in: {said}");
    }
    assert_eq!(operator.live("scheduler"), "continuous");

    let mut wrong = home.command("", &["policy", "list", "--admin", &host.admin]);
    let output = wrong.env("INFER_ADMIN_TOKEN", "another-token").output().unwrap();
    let said = complaint(&output);
    assert!(output.status.code() == Some(1) && said.contains("token"), "{said}");
    assert!(!said.contains("--bundled"), "there is a host: {said}");
    let elsewhere = Home::new();
    let output = Operator { home: &elsewhere, host: &host }.types(&["list"]);
    let (said, folder) = (complaint(&output), elsewhere.path("run/infer"));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no admin token") && said.contains(folder.to_str().unwrap()), "{said}");
    let admin = host.admin.clone();
    host.ends();
    for command in [&["list"][..], &["describe", "fair"]] {
        let arguments = [&["policy"], command, &["--admin", &admin]].concat();
        let output = elsewhere.command("", &arguments).output().unwrap();
        let said = complaint(&output);
        assert!(said.contains(" can't be reached: ") && said.contains("Connection refused"), "{said}");
        assert!(said.contains("--bundled") && !said.contains("token"), "the host is what is missing: {said}");
    }
}

#[test]
fn path_that_is_no_component_is_named_before_a_host_is_asked() {
    let home = Home::new();
    for (policy, words) in [
        ("/etc/passwd", "is no component"),
        ("./nowhere", "is neither a component"),
        (".", "is a directory; `infer policy build`"),
    ] {
        let swap = ["policy", "swap", "scheduler", policy, "--admin", "127.0.0.1:1"];
        let output = home.command("", &swap).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains(&format!("{policy} {words}")), "{said}");
    }
}
