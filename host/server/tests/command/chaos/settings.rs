//! Settings that a host can't have are named, before a model is downloaded.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use crate::process::{Home, complaint};

/// A model that can't be downloaded, because there is no hub.
const UNREACHABLE: [&str; 2] = ["--model", "org/none"];
const NO_HUB: &str = "export HF_ENDPOINT=http://127.0.0.1:1 HF_HUB_CACHE=hub HF_TOKEN= HF_HUB_OFFLINE=";

#[test]
fn errors_that_need_no_model_come_before_a_download() {
    let home = Home::new();
    let with = |more: &[&'static str]| [&UNREACHABLE[..], more].concat();
    home.fails(1, NO_HUB, &UNREACHABLE, &["org/none", "can't be reached"]);
    home.fails(2, &format!("{NO_HUB}1"), &UNREACHABLE, &["HF_HUB_OFFLINE"]);
    home.fails(2, NO_HUB, &with(&["--scheduler", "contiuous"]), &["--scheduler", "contiuous"]);
    home.fails(2, NO_HUB, &with(&["--admission", "./none.wasm"]), &["--admission", "none.wasm"]);
    fs::write(home.path("policies.json"), r#"{"scheduler": {"nonsense": 1}}"#).unwrap();
    home.fails(2, NO_HUB, &with(&["--policy-config", "policies.json"]), &["--scheduler", "nonsense"]);
    fs::write(home.path("damaged.wasm"), "not a component").unwrap();
    home.fails(
        2,
        NO_HUB,
        &with(&["--scheduler", "./damaged.wasm"]),
        &["--scheduler", "not a WebAssembly file"],
    );
    fs::write(home.path("broken.jinja"), "{% for m in messages %}").unwrap();
    let broken = ["--chat-template", "broken.jinja"];
    home.fails(2, NO_HUB, &with(&broken), &["--chat-template: broken.jinja", "syntax error"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", taken.local_addr().unwrap());
    home.fails(
        1,
        NO_HUB,
        &[&UNREACHABLE[..], &["--kv-events", &endpoint]].concat(),
        &["--kv-events", &endpoint],
    );
    let replay = ["--kv-events", "tcp://127.0.0.1:0", "--kv-events-replay", &endpoint];
    home.fails(
        1,
        NO_HUB,
        &[&UNREACHABLE[..], &replay].concat(),
        &["--kv-events-replay:", &endpoint, "in use"],
    );
    let readable = ["--fault-dir", "readable"];
    fs::create_dir(home.path("readable")).unwrap();
    fs::set_permissions(home.path("readable"), fs::Permissions::from_mode(0o755)).unwrap();
    let words = ["--fault-dir: readable: it must be", "mode 0700"];
    home.fails(2, NO_HUB, &with(&readable), &words);
    for wrong in [["--scheduler", "contiuous"], broken, readable] {
        let output = home.command("", &[&["config", "check"], &wrong[..]].concat()).output().unwrap();
        let said = complaint(&output);
        assert!(output.status.code() == Some(2) && said.contains(wrong[1]), "{said}");
    }
}

#[test]
fn wrong_settings_of_a_file_are_named_with_their_line() {
    let home = Home::new();
    for (settings, words) in [
        (
            "port = 0\nscheduler = 'contiuous'\n",
            "infer.toml:2: scheduler: there is no scheduler policy `contiuous`",
        ),
        ("host = '192.0.2.1'\nport = 0\n", "infer.toml:1: host: can't listen on 192.0.2.1:0"),
        ("tls_cert = 'none.pem'\ntls-key = 'none.pem'\n", "infer.toml:1: tls_cert: "),
    ] {
        fs::write(home.path("infer.toml"), settings).unwrap();
        let serve = ["serve", "--threads", "1", "--admin", "127.0.0.1:0"];
        for command in [&serve[..], &["config", "check", "--admin", "127.0.0.1:0"]] {
            let output = home.command("", command).output().unwrap();
            let said = complaint(&output);
            assert!(!output.status.success() && said.contains(words), "{command:?}: {said}");
        }
    }
}

#[test]
fn misspelt_variables_are_named() {
    let home = Home::new();
    for (variable, words) in [
        ("INFER_MAX_BATCH_SISE=3", &["INFER_MAX_BATCH_SISE", "INFER_MAX_BATCH_SIZE"][..]),
        ("INFER_LOG=debgu", &["INFER_LOG", "debgu"]),
        ("INFER_LOG_FORMAT=yaml", &["INFER_LOG_FORMAT", "`json`"]),
    ] {
        home.fails(2, &format!("export {variable}"), &UNREACHABLE, words);
    }
}

#[test]
fn address_in_use_is_named() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let port = taken.local_addr().unwrap().port().to_string();
    home.fails(1, "", &["--admin", &address], &["--admin", &address, "in use"]);
    home.fails(1, "", &["--port", &port], &["--port", &port, "in use"]);
    assert_eq!(home.left("run"), Vec::<PathBuf>::new());
}
