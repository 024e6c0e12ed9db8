//! The errors of the connection, with messages that say what to do. How an error becomes an exit code is not
//! decided here (`run`).

use std::path::PathBuf;

use super::token;

/// What can go wrong between the console and a host.
#[derive(Debug, thiserror::Error)]
pub enum ConnError {
    /// The address is not usable.
    #[error("--admin {address}: {message}")]
    Address {
        /// The address as given.
        address: String,
        /// What is wrong with it.
        message: String,
    },
    /// Nothing listens at the address.
    #[error(
        "no host answers at {url} ({message}); start one with `infer serve --admin {authority}`, \
         or give another address with --admin URL"
    )]
    Unreachable {
        /// The address.
        url: String,
        /// Its host and port.
        authority: String,
        /// The system's error.
        message: String,
    },
    /// Something else than an admin plane listens there.
    #[error(
        "{url} is not an admin plane; use the address that the host prints as `(admin URL)` when it starts"
    )]
    NotAdmin {
        /// The address.
        url: String,
    },
    /// The token is missing or wrong.
    #[error("{url} refuses access: {advice}; set {var} or use --token-file FILE", var = token::TOKEN_VARIABLE)]
    Unauthorized {
        /// The address.
        url: String,
        /// Where the token was looked for.
        advice: String,
    },
    /// The token file can't be read.
    #[error("cannot read the admin token from {}: {message}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The system's error.
        message: String,
    },
    /// A component can't be read.
    #[error("{path}: {message}")]
    Component {
        /// The file.
        path: String,
        /// What is wrong with it.
        message: String,
    },
    /// The host refused the request.
    #[error("{message} (HTTP {status})")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The host's message.
        message: String,
    },
    /// The response is not what the admin plane sends.
    #[error("{0}; is this the admin plane of a host of the same version?")]
    Protocol(String),
    /// The connection broke.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The connection broke after a request that changes the host.
    #[error("no response; it may still take effect: {0}")]
    Unanswered(String),
}

impl ConnError {
    /// Whether the command line is wrong, so that trying again can't help.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Address { .. })
    }
}
