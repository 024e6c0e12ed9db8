//! What policies know across the kill of a process (`--policy-state`).

use std::fs;
use std::io::Read as _;

use infer_server::tenants::{KeyDigest, fresh};
use serde_json::Value;

use crate::chaos::until;
use crate::commands::KEPT;
use crate::process::{Home, Host};

const FLAGS: [&str; 4] = ["--policy-state", "policies", "--api-keys", "tenants.toml"];
/// A prompt of 30 tokens.
const PROMPT: &str = r#"{"model": "demo", "stream": false, "max_tokens": 1, "ignore_eos": true,
    "prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
        29, 30]}"#;

/// The id of the next request, as it is saved.
fn next_id(home: &Home) -> Option<u64> {
    let bytes = fs::read(home.path("policies/exported.state")).ok()?;
    let head = bytes.split(|&byte| byte == b'\n').next()?;
    serde_json::from_slice::<Value>(head).unwrap()["next_id"].as_u64()
}

#[test]
fn killed_host_leaves_what_policies_knew() {
    let home = Home::new();
    let key = fresh().unwrap();
    let table = format!(
        "[tenants.limited]\nkeys = [\"{}\"]\ntokens-per-minute = 1\nburst = 40\n",
        KeyDigest::of(&key)
    );
    fs::write(home.path("tenants.toml"), table).unwrap();
    let asks = |host: &Host| {
        let mut answer = String::new();
        let headers = format!("authorization: Bearer {key}\r\n");
        host.send("POST /v1/completions", &headers, PROMPT).read_to_string(&mut answer).unwrap();
        answer
    };
    let host = Host::start(home.serve(KEPT, &FLAGS));
    let answer = asks(&host);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    until("it is saved while the host runs", || next_id(&home) > Some(1));
    drop(host);

    let host = Host::start(home.serve(KEPT, &FLAGS));
    let answer = asks(&host);
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    host.ends();
    assert!(next_id(&home) > Some(1));
}
