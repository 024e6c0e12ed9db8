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

#[test]
fn grafana_has_no_account_with_a_known_password() {
    let compose = include_str!("../../deploy/compose.yaml");
    let has = |setting: &str| compose.lines().any(|line| line.trim() == setting);
    assert!(has("GF_AUTH_ANONYMOUS_ENABLED: \"true\""), "anyone may look");
    assert!(has("GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION: \"true\""), "admin has the password admin");
}
