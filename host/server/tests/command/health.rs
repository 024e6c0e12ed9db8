//! `infer health` as a process: it asks the host that the same settings start, or the one at a URL.

use std::fs;

use crate::chaos::until;
use crate::commands::KEPT;
use crate::port::Port;
use crate::process::{Home, Host, complaint};

/// The arguments of a host that are not in its environment or file.
const REST: [&str; 7] = ["serve", "--threads", "1", "--admin", "127.0.0.1:0", "--kv-memory", "32MiB"];

fn health(home: &Home, before: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = home.command(before, &[&["health"], arguments].concat()).output().unwrap();
    (output.status.code(), complaint(&output))
}

/// Asks until the host says that it is ready: a busy one may need longer than the seconds that each answer may take.
fn becomes_ready(home: &Home, before: &str, arguments: &[&str]) {
    until(&format!("{arguments:?}: it is ready"), || {
        let (code, said) = health(home, before, arguments);
        assert_ne!(code, Some(2), "{arguments:?}: {said}");
        code == Some(0)
    });
}

#[test]
fn health_asks_the_host_of_the_same_environment() {
    let home = Home::new();
    let kept = Port::new();
    let port = kept.number;
    let variables = format!("export INFER_PORT={port} INFER_HOST=0.0.0.0");
    let host = Host::start(home.command(&format!("{KEPT}\n{variables}"), &REST));
    becomes_ready(&home, &variables, &[]);
    for url in [format!("127.0.0.1:{port}"), format!("http://localhost:{port}/")] {
        becomes_ready(&home, "", &["--url", &url]);
    }
    host.ends();
    let (code, said) = health(&home, &variables, &[]);
    assert!(code == Some(1) && said.contains(&format!("http://127.0.0.1:{port}/health/ready")), "{said}");
    let (code, said) = health(&home, "export INFER_PORT=0", &[]);
    assert!(code == Some(2) && said.contains("INFER_PORT") && said.contains("--url"), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn health_asks_the_host_that_a_process_is() {
    let home = Home::new();
    let kept = Port::new();
    let port = kept.number.to_string();
    let host = Host::start(home.command(KEPT, &[&REST[..], &["--port", &port]].concat()));
    let pid = host.child.id().to_string();
    becomes_ready(&home, "", &["--process", &pid]);
    host.ends();
    let (code, said) = health(&home, "", &["--process", &pid]);
    assert!(code == Some(2) && said.contains(&format!("/proc/{pid}/cmdline")), "{said}");
}

#[test]
fn health_asks_the_host_of_the_same_file_over_tls() {
    let home = Home::new();
    let made = rcgen::generate_simple_self_signed(["inference.example.org".to_owned()]).unwrap();
    fs::write(home.path("cert.pem"), made.cert.pem()).unwrap();
    fs::write(home.path("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let port = Port::new();
    let settings = format!("port = {}\ntls-cert = \"cert.pem\"\ntls-key = \"key.pem\"\n", port.number);
    fs::write(home.path("infer.toml"), &settings).unwrap();
    let host = Host::start(home.command(KEPT, &REST));
    becomes_ready(&home, "", &[]);
    fs::rename(home.path("infer.toml"), home.path("other.toml")).unwrap();
    becomes_ready(&home, "", &["--config", "other.toml"]);
    until("another name than the certificate's is said", || {
        let (code, said) = health(&home, "", &["--config", "other.toml", "--cacert", "cert.pem"]);
        assert_eq!(code, Some(1), "{said}");
        said.contains("certificate")
    });
    host.ends();
}
