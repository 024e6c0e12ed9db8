//! Tells the service manager when the host is ready and when it ends, as systemd's `Type=notify` expects it
//! (sd_notify(3)): a datagram to the socket that `NOTIFY_SOCKET` names. Without that variable it does nothing.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The host accepts requests.
pub const READY: &str = "READY=1";

/// The host refuses new requests and will end, at the latest after `most`. The manager's own limit may be shorter, as
/// it knows no --drain-timeout: it would kill the host and cut its streams.
pub fn stopping(most: Duration) -> String {
    format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", most.as_micros())
}

/// Sends a state. A failure is only logged: the host can serve without a service manager.
pub fn tell(state: &str) {
    let socket = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty());
    let Some(socket) = socket else { return };
    if let Err(error) = send(&socket, state) {
        let state = state.replace('\n', " ");
        tracing::warn!("can't send {state} to {}: {error} (NOTIFY_SOCKET)", socket.display());
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => abstract_address(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let own = UnixDatagram::unbound()?;
    // A manager that reads nothing must not hold up the host.
    own.set_nonblocking(true)?;
    own.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

/// The address of a socket that has no file.
#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt as _;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_name: &[u8]) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn state_arrives_at_a_socket_with_and_without_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), READY).unwrap();
        assert_eq!(received(&socket), "READY=1");

        if cfg!(target_os = "linux") {
            let name = path.to_str().unwrap();
            let socket = UnixDatagram::bind_addr(&abstract_address(name.as_bytes()).unwrap()).unwrap();
            send(format!("@{name}").as_ref(), &stopping(Duration::from_secs(660))).unwrap();
            assert_eq!(received(&socket), "STOPPING=1\nEXTEND_TIMEOUT_USEC=660000000");
        }
        drop(socket);
        assert!(send(path.as_os_str(), READY).is_err(), "nobody listens");
    }
}
