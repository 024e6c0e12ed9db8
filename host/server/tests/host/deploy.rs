//! The files of `deploy/` against the host that they are for: its limits, its paths.

use infer_server::config::Config;

/// The number after a key of a file.
fn number(text: &str, key: &str) -> u64 {
    let (_, rest) = text.split_once(key).unwrap_or_else(|| panic!("no {key}"));
    let digits = rest.trim_start_matches([':', '=', ' ']);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or_else(|_| panic!("{key} has no number"))
}

#[test]
fn envoy_cuts_off_no_request_that_a_host_accepts() {
    let (envoy, config) = (include_str!("../../deploy/envoy.yaml"), Config::default());
    assert!(number(envoy, "per_connection_buffer_limit_bytes") >= config.max_body_bytes as u64);
    assert!(number(envoy, "stream_idle_timeout") > config.bounds.request_timeout.as_secs());
}

/// By its status a refusal for good can't be told from one that another host wouldn't repeat.
#[test]
fn envoy_retries_what_hosts_ask_for() {
    let envoy = include_str!("../../deploy/envoy.yaml");
    let lines: Vec<&str> = envoy.lines().map(str::trim).collect();
    let retried = lines.iter().find_map(|line| line.strip_prefix("retry_on: ")).expect("retries");
    let retried: Vec<&str> = retried.split(',').collect();
    assert!(retried.contains(&"retriable-headers"), "{retried:?}");
    for by_status in ["5xx", "gateway-error", "retriable-4xx", "retriable-status-codes"] {
        assert!(!retried.contains(&by_status), "{retried:?}");
    }
    let header = ["retriable_headers:", "- name: x-should-retry", "string_match: { exact: \"true\" }"];
    assert!(lines.windows(3).any(|three| three == header), "{envoy}");
}

/// One that loads is alive but not ready: a probe that waits for more would restart it for ever with a large model.
#[test]
fn kubernetes_restarts_no_host_that_loads() {
    let text = include_str!("../../deploy/kubernetes.yaml");
    for (probe, path) in
        [("startupProbe", "/health"), ("livenessProbe", "/health"), ("readinessProbe", "/health/ready")]
    {
        let line = text.lines().find(|line| line.trim_start().starts_with(probe)).expect(probe);
        assert!(line.contains(&format!("path: {path}, port: http ")), "{line}");
    }
}

/// Starts every two seconds never reach systemd's own limit of five in ten.
#[test]
fn systemd_repeats_no_start_with_refused_settings() {
    let unit = include_str!("../../deploy/infer.service");
    let all = |key: &str| {
        let values = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.collect::<Vec<_>>()
    };
    assert_eq!(all("Restart"), ["on-failure"]);
    for other in ["ExecStartPre", "ExecCondition"] {
        assert!(
            all(other).is_empty(),
            "systemd looks at the exit code of the main process alone, not of {other}"
        );
    }
    let [start] = all("ExecStart")[..] else { panic!("one command starts the host") };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("infer.toml");
    std::fs::write(&file, "port = 70000\n").unwrap();
    let start = start.replace("/etc/infer/infer.toml", file.to_str().unwrap());
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_infer"))
        .args(start.split_whitespace().skip(1))
        .env_clear()
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code().unwrap_or_else(|| panic!("{said}"));
    assert!(said.contains("port"), "{said}");
    assert_eq!(all("RestartPreventExitStatus"), [code.to_string()], "{said}");
}

#[test]
fn grafana_has_no_account_with_a_known_password() {
    let compose = include_str!("../../deploy/compose.yaml");
    let has = |setting: &str| compose.lines().any(|line| line.trim() == setting);
    assert!(has("GF_AUTH_ANONYMOUS_ENABLED: \"true\""), "anyone may look");
    assert!(has("GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION: \"true\""), "admin has the password admin");
}
