//! Where the sockets for KV events listen.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::str::FromStr;

use crate::sockets::without_brackets;

/// An address as ZMQ writes it: `tcp://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A name, an address, or `*` for all IPv4 addresses of this machine.
    host: String,
    /// 0 for any free one.
    port: u16,
}

impl Endpoint {
    /// The host to listen at.
    pub fn host(&self) -> &str {
        if self.host == "*" { "0.0.0.0" } else { without_brackets(&self.host) }
    }

    /// The port; 0 for any free one.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same host with the port that was found.
    #[must_use]
    pub fn at(&self, port: u16) -> Self {
        Self { host: self.host.clone(), port }
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.strip_prefix("tcp://")
            .and_then(|rest| rest.rsplit_once(':'))
            .and_then(|(host, port)| Some(Self { host: host.to_owned(), port: port.parse().ok()? }))
            .filter(|endpoint| !endpoint.host.is_empty())
            .ok_or_else(|| format!("`{text}` is not tcp://HOST:PORT"))
    }
}

impl Display for Endpoint {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}:{}", self.host, self.port)
    }
}

/// The addresses of both sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// Of the PUB socket, which publishes.
    pub events: Endpoint,
    /// Of the ROUTER socket, which resends.
    pub replay: Option<Endpoint>,
}

/// A socket that can't be opened.
#[derive(Debug)]
pub struct BindError {
    /// The setting with its address.
    pub flag: &'static str,
    /// The address.
    pub endpoint: Endpoint,
    /// The reason.
    pub error: io::Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_as_zmq_does() {
        for (text, host, port) in [
            ("tcp://0.0.0.0:5557", "0.0.0.0", 5557),
            ("tcp://*:5557", "0.0.0.0", 5557),
            ("tcp://[::]:5557", "::", 5557),
            ("tcp://::1:0", "::1", 0),
            ("tcp://localhost:65535", "localhost", 65_535),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.host(), endpoint.port()), (host, port));
            assert_eq!(endpoint.to_string(), text);
        }
        for wrong in ["5557", "tcp://:5557", "tcp://h", "tcp://h:65536", "ipc://feed"] {
            assert_eq!(wrong.parse::<Endpoint>(), Err(format!("`{wrong}` is not tcp://HOST:PORT")));
        }
    }
}
