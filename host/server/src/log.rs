//! The log on stderr; stdout belongs to the ready line and to results.

use tracing_subscriber::EnvFilter;

/// Starts logging at `INFER_LOG`'s filter, `info` by default. `INFER_LOG_FORMAT=json` writes one object a line.
pub fn start() {
    let filter = EnvFilter::try_from_env("INFER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let json = std::env::var("INFER_LOG_FORMAT").is_ok_and(|format| format == "json");
    // A second start, in a test say, keeps the first.
    let _ = if json {
        builder.json().try_init()
    } else {
        builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init()
    };
}
