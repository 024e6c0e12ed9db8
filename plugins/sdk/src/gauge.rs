//! Numbers that a policy publishes about itself. Outside a component they are kept for [`crate::testing::gauge`].

/// Sets a number of this policy's own, which metrics, console and simulator show beside the host's: an estimate, or how
/// much of a limit is used. It decides nothing. A value that isn't finite removes it.
///
/// A policy may have 16. A name is up to 48 characters long, has a unit at its end, and consists of `a` to `z`, digits
/// and `_`, a letter first. The host drops what breaks these rules, and says so in the log.
///
/// ```
/// infer_policy_sdk::gauge("estimated_ttft_ms", 120.5);
/// assert_eq!(infer_policy_sdk::testing::gauge("estimated_ttft_ms"), Some(120.5));
/// ```
pub fn gauge(name: &str, value: f64) {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    crate::guest::gauge(name, value);
    #[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
    crate::testing::set_gauge(name, value);
}
