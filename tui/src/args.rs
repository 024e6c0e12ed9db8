//! Command line of `infer-tui`. Flags win over the environment; a bad one ends with exit code 2.

use std::path::PathBuf;

use clap::Parser;

/// Live console for an infer host: throughput, KV blocks, queues and policies over the admin plane.
#[derive(Parser, Debug, Clone)]
#[command(
    name = "infer-tui",
    version,
    after_help = "The bearer token comes from --token-file, else INFER_ADMIN_TOKEN, else the file that a host on this\n\
                  machine writes: $XDG_RUNTIME_DIR/infer/admin-PORT.token, or TMPDIR/infer-UID/admin-PORT.token\n\
                  where XDG_RUNTIME_DIR is not set. NO_COLOR turns colours off.\n\n\
                  Exit codes: 0 fine, 1 failed, 2 bad usage."
)]
pub struct Args {
    /// Address of the admin plane, as the host's ready line prints it.
    #[arg(long, env = "INFER_ADMIN", value_name = "URL", default_value = "http://127.0.0.1:8001")]
    pub admin: String,

    /// File that holds the admin token.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Print one text snapshot and exit.
    #[arg(long)]
    pub once: bool,

    /// Print the host's state as JSON once and exit.
    #[arg(long)]
    pub json: bool,

    /// Refuse every key that would change something on the host.
    #[arg(long)]
    pub read_only: bool,

    /// Snapshots a second.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub hz: u32,
}
