//! Lines for the host's log. Outside a component they go to standard error.

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For the policy's author.
    Debug,
    /// For operators who want details.
    Info,
    /// For operators who should look.
    Warn,
    /// Something is broken.
    Error,
}

/// Writes one line, at most 1 KiB; the host limits the rate.
pub fn log(level: Level, message: &str) {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    crate::guest::log(level, message);
    #[cfg(not(all(target_arch = "wasm32", target_os = "unknown")))]
    eprintln!("{level:?}: {message}");
}
