//! Lack of memory and of descriptors.

use std::fs;
use std::io::Read as _;
use std::net::TcpStream;

use crate::commands::KEPT;
use crate::process::{Home, Host, complaint};

#[test]
fn lack_of_memory_is_named() {
    let home = Home::new();
    // Enough for the program and its model, but not for the address space of policy instances.
    home.fails(1, "ulimit -v 3000000", &[], &["memory"]);
    let said = home.fails(2, "", &["--kv-memory", "1000000GiB"], &["--kv-memory"]);
    assert!(!said.contains("overflow"), "{said}");
}

/// The host keeps what it has and works on; what it can't have now is refused for now.
#[cfg(target_os = "linux")]
#[test]
fn lack_of_memory_at_run_time_is_no_fault_of_a_request_and_passes() {
    let home = Home::new();
    let listed = |host: &Host| {
        let list = ["policy", "list", "--all", "--admin", &host.admin];
        let output = home.command("", &list).output().unwrap();
        assert!(output.status.success(), "{}", complaint(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let asked = |host: &Host, schema: &str| {
        let body = format!(
            r#"{{"model": "demo", "messages": [{{"role": "user", "content": "Hi"}}], "max_tokens": 4, "response_format":
            {{"type": "json_schema", "json_schema": {{"name": "x", "schema": {schema}}}}}}}"#
        );
        let mut answer = String::new();
        host.send("POST /v1/chat/completions", "", &body).read_to_string(&mut answer).unwrap();
        answer
    };
    // A host compiles the bundled policies by itself. One that has done so before it lacks memory can list them; then another
    // one begins with nothing compiled.
    let lacking = || {
        let _ = fs::remove_dir_all(home.path("cache/infer"));
        let host = Host::start(home.serve("exec 2>log.txt", &[]));
        let answer = asked(&host, r#"{"type": "integer"}"#);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // Half of what an instance reserves.
        limit_address_space(&host, Some(address_space(&host) + (2 << 30)));
        let list = listed(&host);
        assert!(list.contains("continuous"), "live and native ones: {list}");
        (!list.contains("s3-fifo")).then_some(host)
    };
    let host = (0..10).find_map(|_| lacking()).expect("what lacks memory isn't listed");
    let answer = asked(&host, r#"{"type": "boolean"}"#);
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: 1"), "{answer}");
    assert!(answer.contains(r#""code":"memory""#) && answer.contains("4 GiB of address space"), "{answer}");
    let swapped = super::swapping(&home, &host, "static-batch").output().unwrap();
    let said = complaint(&swapped);
    assert_eq!(swapped.status.code(), Some(1), "{said}");
    assert!(said.contains("4 GiB of address space") && !said.contains("check:"), "{said}");
    host.serves();

    limit_address_space(&host, None);
    let list = listed(&host);
    assert!(list.contains("s3-fifo"), "{list}");
    let answer = asked(&host, r#"{"type": "boolean"}"#);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let swapped = super::swapping(&home, &host, "static-batch").output().unwrap();
    assert!(swapped.status.success(), "{}", complaint(&swapped));
    host.ends();
    let log = fs::read_to_string(home.path("log.txt")).unwrap();
    assert_eq!(log.matches("bundled polic").count(), 1, "{log}");
}

/// Bytes of address space that a host has in use.
#[cfg(target_os = "linux")]
fn address_space(host: &Host) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", host.child.id())).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("Linux tells it");
    let kib: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

#[cfg(target_os = "linux")]
fn limit_address_space(host: &Host, bytes: Option<u64>) {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let maximum = getrlimit(Resource::As).maximum;
    let limit = Rlimit { current: bytes.or(maximum), maximum };
    prlimit(Some(Pid::from_child(&host.child)), Resource::As, limit).unwrap();
}

#[test]
fn connections_fit_the_limit_of_open_files() {
    let home = Home::new();
    for (before, places) in [("ulimit -n 2000", 912), ("ulimit -S -n 256", 3_000)] {
        let host = Host::start(home.serve(before, &["--max-connections", "3000"]));
        let mut metrics = String::new();
        host.send("GET /metrics", "", "").read_to_string(&mut metrics).unwrap();
        let limit = format!("\ninfer_http_connections_limit {places}.0\n");
        assert!(metrics.contains(&limit), "{before}: {metrics}");
        host.ends();
    }
}

#[test]
fn connections_of_one_plane_leave_descriptors_for_the_other() {
    let home = Home::new();
    home.fails(1, "ulimit -n 40", &[], &["open files are limited to 40", "64"]);
    let host = Host::start(home.serve(&format!("{KEPT}; exec 2>log.txt; ulimit -n 64"), &[]));
    let admin = host.admin.trim_start_matches("http://");
    let _silent: Vec<TcpStream> = (0..120).map(|_| TcpStream::connect(admin).unwrap()).collect();
    let mut metrics = String::new();
    host.send("GET /metrics", "", "").read_to_string(&mut metrics).unwrap();
    assert!(metrics.contains("\ninfer_http_connections_limit 14.0\n"), "{metrics}");
    host.ends();
    let log = fs::read_to_string(home.path("log.txt")).unwrap();
    assert!(log.contains("--max-connections is 14 instead of 4096"), "{log}");
    assert!(!log.contains("can't accept connections"), "{log}");
}
