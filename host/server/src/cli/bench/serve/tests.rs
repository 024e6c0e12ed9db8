//! What reports say was given, and what a server of its own has not.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Parser as _;

use super::*;
use crate::config::Settings;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: ServeArgs,
}

/// What a report says was given, with these flags and this infer.toml.
fn given(flags: &[&str], file: &str) -> Vec<(String, String)> {
    let Line { args } = Line::parse_from([&["serve"][..], flags].concat());
    let settings = Settings::of_text(Path::new("infer.toml"), file).unwrap();
    args.given(&settings).unwrap_or_else(|_| panic!("{flags:?}")).into_iter().collect()
}

#[test]
fn reports_say_what_was_given_other_than_the_defaults() {
    let file = "max-batch-size = 4\nthreads = 2\nport = 9\noperators = \"o\"\nprefix-caching = false\nplan-ahead = false\nblock-size = 16";
    let host = [("max-batch-size", "4"), ("prefix-caching", "off"), ("threads", "2")];
    let load = [
        "--workload",
        "w1,w3",
        "--rate",
        "2,0.5",
        "--burstiness",
        "0.25",
        "--requests",
        "16",
        "--itl-target-ms",
        "50",
    ];
    let given_load =
        [("burstiness", "0.25"), ("itl-target-ms", "50"), ("rate", "2,0.5"), ("workload", "w1,w3")];
    let remote = ["--url", "http://h", "--api", "text", "--served-model", "m", "--api-key", "secret"];
    let cases = [
        (vec![], host.to_vec()),
        (load.to_vec(), [&host[..], &given_load].concat()),
        (vec!["--url", "http://h"], vec![]),
        (vec!["--url", "http://h", "--baseline", "on"], vec![("baseline", "on"), ("threads", "2")]),
        (remote.to_vec(), vec![("api", "text"), ("served-model", "m")]),
    ];
    for (flags, mut expected) in cases {
        expected.sort_unstable();
        let found = given(&flags, file);
        let found: Vec<(&str, &str)> = found.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        assert_eq!(found, expected, "{flags:?}");
    }
}

#[test]
fn server_of_its_own_has_nobodys_keys_and_tokens_and_swaps() {
    let file = || Some(PathBuf::from("/etc/infer/one.toml"));
    let given = Config { api_keys: file(), operators: file(), policy_state: file(), ..Config::default() };
    let own = of_its_own(given);
    assert_eq!((own.api_keys, own.operators, own.api_key), (None, None, None));
    assert_eq!(own.policy_state, None);
}

#[test]
fn remote_server_is_named_without_the_settings_of_the_baseline() {
    let subject = |flags: &[&str]| {
        let Line { args } = Line::parse_from([&["serve"][..], flags].concat());
        let settings = given(flags, "dtype = \"bf16\"\nspeculate = 4");
        args.subject(&Config::default(), &BTreeMap::from_iter(settings))
    };
    let own = subject(&[]);
    assert!(own.ends_with(", dtype bf16, speculate 4"), "{own}");
    assert_eq!(subject(&["--url", "http://h", "--baseline", "on"]), "remote server");
    assert_eq!(subject(&["--url", "http://h", "--label", "l"]), "l");
}
