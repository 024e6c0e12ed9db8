//! Flags and variables of commands, and `infer config check`.

use infer_server::tenants::KeyDigest;

use crate::process::{Home, complaint};

#[test]
fn flags_that_a_file_of_tenants_cannot_have_are_named() {
    let home = Home::new();
    for (flags, words) in [
        (&["--tokens-per-minute", "0"][..], "--tokens-per-minute"),
        (&["--requests-per-minute", "0"], "--requests-per-minute"),
        (&["--weight", "0"], "--weight"),
        (&["--burst", "5"], "--burst: needs --tokens-per-minute"),
    ] {
        let output = home.command("", &[&["keys", "new", "a"], flags].concat()).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains(words), "{flags:?}: {said}");
        assert!(!said.contains("tenants.toml:"), "{said}");
    }
    for (name, words) in
        [("", "error: a tenant's name must have 1 to "), ("a b", "error: a b: a tenant's name must have")]
    {
        let output = home.command("", &["keys", "new", name]).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains(words), "{said}");
    }
}

#[test]
fn empty_variables_count_as_absent() {
    let home = Home::new();
    std::fs::write(home.path("tenants.toml"), "").unwrap();
    let unset = home.command("export INFER_API_KEYS=", &["keys", "list"]).output().unwrap();
    assert!(unset.status.success(), "{}", complaint(&unset));
    let output = home.command("export INFER_ADMIN= TMPDIR=$PWD", &["policy", "list"]).output().unwrap();
    let said = complaint(&output);
    let default = ["http://127.0.0.1:8001 can't be reached", "admin-8001.token"];
    assert!(default.iter().any(|words| said.contains(words)), "the default address is used: {said}");
}

#[test]
fn variables_of_other_commands_are_accepted() {
    let home = Home::new();
    std::fs::write(home.path("tenants.toml"), "").unwrap();
    for variable in ["INFER_API_KEY=k", "INFER_PROT=1", "INFER_HOME=/opt/infer"] {
        let output = home.command(&format!("export {variable}"), &["keys", "list"]).output().unwrap();
        assert!(output.status.success(), "{variable}: {}", complaint(&output));
    }
    let bench = ["bench", "serve", "--url", "http://127.0.0.1:1", "--baseline", "off"];
    let output = home.command("export INFER_API_KEY=k", &bench).output().unwrap();
    let said = complaint(&output);
    assert!(output.status.code() == Some(1) && !said.contains("INFER_API_KEY"), "{said}");
}

#[test]
fn shells_complete_commands_and_flags() {
    let home = Home::new();
    for (words, at, completed) in [
        ("infer pol", 1, "policy"),
        ("infer policy sw", 2, "swap"),
        ("infer serve --policy-st", 2, "--policy-state"),
    ] {
        let (typed, before) = (words.rsplit(' ').next().unwrap(), words.rsplit(' ').nth(1).unwrap());
        let script = format!(
            "source ./completions; COMP_WORDS=({words}); COMP_CWORD={at}; _infer infer {typed} {before}; echo \"${{COMPREPLY[@]}}\""
        );
        let written = home.command("", &["completions", "bash"]).output().unwrap();
        std::fs::write(home.path("completions"), &written.stdout).unwrap();
        let bash =
            std::process::Command::new("bash").args(["-c", &script]).current_dir(home.path("")).output();
        let replies = String::from_utf8(bash.unwrap().stdout).unwrap();
        assert!(replies.split_whitespace().any(|reply| reply == completed), "{words}: {replies}");
    }
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let written = home.command("", &["completions", shell]).output().unwrap();
        let script = String::from_utf8(written.stdout).unwrap();
        assert!(script.contains("policy-state"), "{shell}: {script}");
    }
    let unknown = home.command("", &["completions", "tcsh"]).output().unwrap();
    assert!(unknown.status.code() == Some(2), "{}", complaint(&unknown));
}

#[test]
fn checked_operators_and_token_are_those_that_a_host_accepts() {
    let home = Home::new();
    let own = "the-hosts-own-token-0123456789";
    let table = format!("[operators.eve]\nrole = \"viewer\"\ntokens = [\"{}\"]\n", KeyDigest::of(own));
    std::fs::write(home.path("operators.toml"), table).unwrap();
    let check = |token: &str| {
        let before = format!("export INFER_ADMIN_TOKEN={token}");
        let file = ["--operators", "operators.toml", "--admin", "127.0.0.1:0", "--port", "0"];
        home.command(&before, &[&["config", "check"], &file[..]].concat()).output().expect("sh starts")
    };
    for (token, words) in [
        (own, "`eve` has the host's own token (INFER_ADMIN_TOKEN)"),
        ("short", "INFER_ADMIN_TOKEN: must have at least 8 "),
    ] {
        let output = check(token);
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{token}: {said}");
        assert!(said.contains(words), "{token}: `{words}` isn't in: {said}");
    }
    let fine = check("another-token-0123456789");
    assert!(fine.status.success(), "{}", complaint(&fine));
}

#[test]
fn checked_tenants_may_name_models_that_are_not_served_which_is_told() {
    let home = Home::new();
    let table = format!("[tenants.a]\nkeys = [\"{}\"]\nmodels = [\"demo\", \"gone\"]\n", KeyDigest::of("a"));
    std::fs::write(home.path("tenants.toml"), table).unwrap();
    let arguments =
        ["config", "check", "--api-keys", "tenants.toml", "--admin", "127.0.0.1:0", "--port", "0"];
    let output = home.command("", &arguments).output().expect("sh starts");
    let said = complaint(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("`gone` is no model that this host serves") && !said.contains("`demo`"), "{said}");
}

#[test]
fn keys_are_listed_with_the_models_of_their_tenants() {
    let home = Home::new();
    let run = |arguments: &[&str]| {
        let output = home.command("", &[&["keys"], arguments].concat()).output().unwrap();
        assert!(output.status.success(), "{}", complaint(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["new", "a", "--model", "sql", "--model", "demo"]);
    run(&["new", "b"]);
    let listed = run(&["list"]);
    let ends: Vec<_> = listed.lines().map(|line| line.rsplit_once("  ").unwrap().1).collect();
    assert_eq!(ends, ["models", "demo, sql", "all"], "{listed}");
}

#[test]
fn checked_settings_are_those_that_a_host_accepts() {
    let home = Home::new();
    let check = |arguments: &[&str]| {
        home.command("", &[&["config", "check"], arguments].concat()).output().expect("sh starts")
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let fine = check(&["--admin", "127.0.0.1:0", "--port", &port]);
    assert!(fine.status.success(), "an address in use may be the running host's: {}", complaint(&fine));
    std::fs::write(home.path("none.toml"), "").unwrap();
    // A build for GPUs blames the machine, unless it contains no kernels.
    let gpu = check(&["--device", "cuda:99"]);
    let codes = if cfg!(feature = "cuda") { &[1, 2][..] } else { &[2] };
    let said = complaint(&gpu);
    assert!(
        gpu.status.code().is_some_and(|code| codes.contains(&code)) && said.contains("--device"),
        "{said}"
    );
    std::fs::create_dir(home.path("mute")).unwrap();
    let of_demo = |file: &str| infer_demo::FILES.iter().find(|(name, _)| *name == file).unwrap().1;
    std::fs::write(home.path("mute/config.json"), of_demo("config.json")).unwrap();
    for (folder, tokenizer) in [("torn", &b"{"[..]), ("silent", of_demo("tokenizer.json"))] {
        std::fs::create_dir(home.path(folder)).unwrap();
        std::fs::write(home.path(&format!("{folder}/config.json")), of_demo("config.json")).unwrap();
        std::fs::write(home.path(&format!("{folder}/tokenizer.json")), tokenizer).unwrap();
    }
    std::fs::write(home.path("silent/chat_template.jinja"), "{% if %}").unwrap();
    let silent = check(&["--model", "silent", "--admin", "127.0.0.1:0", "--port", "0"]);
    let said = complaint(&silent);
    assert!(silent.status.success(), "a host serves everything but chats: {said}");
    assert!(said.contains("chat completions are not available"), "{said}");
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--lora", "x=mute"], 2, "--lora: x: "),
        (&["--model", "torn"], 2, "tokenizer.json can't be parsed: "),
        (
            &["--model", "mute"],
            2,
            "/mute has no tokenizer.json; a checkpoint in Hugging Face's layout has one",
        ),
        (&["--model", "/nonexistent/model"], 2, "--model: /nonexistent/model"),
        (&["--kv-memory", "1"], 2, "--kv-memory"),
        (&["--device", "cpu", "--kv-memory", "20000GiB"], 1, "--kv-memory: 20480000 MiB are more than the "),
        (&["--api-keys", "none.toml"], 2, "infer keys new TENANT --file none.toml"),
        (&["--max-seq-len", "9999999"], 2, "--max-seq-len"),
        (&["--host", "192.0.2.1"], 1, "--host: can't listen on 192.0.2.1:0"),
    ];
    for (arguments, code, words) in cases {
        let free = ["--admin", "127.0.0.1:0", "--port", "0"];
        let output = check(&[arguments, &free[..]].concat());
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: `{words}` isn't in: {said}");
    }
}

#[test]
fn checked_settings_include_variables() {
    let home = Home::new();
    let check = |variables: &str| {
        let arguments = ["config", "check", "--admin", "127.0.0.1:0", "--port", "0"];
        let output = home.command(&format!("export {variables}"), &arguments).output().expect("sh starts");
        (output.status.code(), complaint(&output))
    };
    let (code, said) = check("INFER_ADMIN_TOKEN=tok");
    assert!(code == Some(2) && said.contains("INFER_ADMIN_TOKEN: must have at least 8"), "{said}");
    let (code, said) = check("INFER_ADMIN_TOKEN=0123456789 INFER_LOG_LEVEL=debug INFER_API_KEY=token-abc123");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("INFER_LOG_LEVEL is not a variable of this host"), "{said}");
    for secret in ["INFER_API_KEY", "INFER_ADMIN_TOKEN"] {
        assert!(said.contains(&format!("{secret} is short enough to be guessed")), "{said}");
    }
    let long = "0123456789abcdef".repeat(2);
    let (code, said) = check(&format!("INFER_ADMIN_TOKEN={long} INFER_API_KEY={long}"));
    assert!(code == Some(0) && !said.contains("short enough"), "{said}");
}
