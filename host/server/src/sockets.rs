//! Listening sockets, as both planes and the publisher of KV events have them.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::Instant;

/// Most connections that the kernel keeps until they are accepted; it lowers this to `net.core.somaxconn`. Beyond it,
/// Linux drops handshakes, which peers repeat only after a second, and may reset those that it answered with a SYN
/// cookie. The standard library's 128 are fewer than a load generator opens at once.
const BACKLOG: u32 = 4_096;
/// Pause after a failed accept. It may have run out of file descriptors, which other connections free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Shortest time between two warnings of the same kind.
const WARNING_PAUSE: Duration = Duration::from_secs(30);
/// A peer that was silent for this long is probed this often, and so many probes may stay unanswered. Devices between
/// two networks forget connections that are silent for some minutes.
#[cfg(target_os = "linux")]
const PROBE_AFTER: Duration = Duration::from_secs(30);
#[cfg(target_os = "linux")]
const PROBE_EVERY: Duration = Duration::from_secs(10);
#[cfg(target_os = "linux")]
const PROBES: u32 = 3;
/// Silence after which so many probes have stayed unanswered.
#[cfg(target_os = "linux")]
const LOST_AFTER: Duration = Duration::from_secs(60);

/// Listens at the first address of `host` that can be bound.
pub async fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    for address in tokio::net::lookup_host((host, port)).await? {
        match listen_at(address) {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted host binds although connections of the one before it linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A host's name or address; an IPv6 address may come in brackets, as URLs write it.
pub fn without_brackets(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inside) if inside.parse::<Ipv6Addr>().is_ok() => inside,
        _ => host,
    }
}

/// Accepts the connections of a socket.
pub struct Acceptor {
    socket: TcpListener,
    failing: Seldom,
}

impl Acceptor {
    /// Has the system end connections whose peer vanished without a word, also while there is nothing to send: requests
    /// may wait for long, and hold blocks. Data that stays unacknowledged for `unread`, if that is given, ends them too.
    pub fn new(socket: TcpListener, unread: Option<Duration>) -> Self {
        if let Err(error) = watch_for_lost_peers(&socket, unread) {
            tracing::warn!("can't have the system look for peers that vanished: {error}");
        }
        Self { socket, failing: Seldom::default() }
    }

    /// The next connection, which sends without delay. Where the system can't give one, it tries again until it can.
    pub async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.socket.accept().await {
                Ok((stream, peer)) => {
                    // It works with delays, too.
                    let _ = stream.set_nodelay(true);
                    // A socket for both versions of IP shows IPv4 addresses inside IPv6 ones.
                    return (stream, SocketAddr::new(peer.ip().to_canonical(), peer.port()));
                }
                Err(error) => {
                    if self.failing.is_due() {
                        let at =
                            self.socket.local_addr().map_or_else(|_| String::new(), |at| format!(" at {at}"));
                        tracing::warn!("can't accept connections{at}: {error}");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Accepted sockets inherit it.
fn watch_for_lost_peers(socket: &TcpListener, unread: Option<Duration>) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    #[cfg(target_os = "linux")]
    {
        sockopt::set_tcp_keepidle(socket, PROBE_AFTER)?;
        sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
        sockopt::set_tcp_keepcnt(socket, PROBES)?;
        // The system's own limit is a quarter of an hour. This one also ends peers that read nothing, so it must not come
        // before the host's own, and it replaces the number of probes.
        let most = unread.filter(|unread| *unread <= LOST_AFTER).unwrap_or_default();
        sockopt::set_tcp_user_timeout(socket, most.as_millis() as u32)?;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = unread;
    Ok(())
}

/// Keeps a warning that anyone can cause from filling the log.
#[derive(Default)]
pub struct Seldom(Option<Instant>);

impl Seldom {
    /// Whether the last warning was long ago; then this one counts as given.
    pub fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.0.is_none_or(|last| now - last >= WARNING_PAUSE);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer whose handshake was dropped repeats it, in vain as long as nobody accepts.
    #[tokio::test]
    async fn bursts_of_connections_wait_in_the_backlog() {
        let of_kernel = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
        let most = of_kernel.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(128);
        let listener = listen("127.0.0.1", 0).await.unwrap();
        let address = listener.local_addr().unwrap();
        let burst = (0..most.min(400)).map(|_| TcpStream::connect(address));
        let connected = futures_util::future::try_join_all(burst);
        let connected = tokio::time::timeout(Duration::from_secs(30), connected).await;
        assert_eq!(connected.expect("each handshake is answered").unwrap().len(), most.min(400));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn accepted_connections_send_at_once_and_look_for_vanished_peers() {
        for (unread, user_timeout) in [(Some(60), 60_000), (Some(61), 0), (None, 0)] {
            let listener = listen("127.0.0.1", 0).await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut acceptor = Acceptor::new(listener, unread.map(Duration::from_secs));
            let _peer = TcpStream::connect(address).await.unwrap();
            let (stream, _) = acceptor.accept().await;
            assert!(stream.nodelay().unwrap());
            assert!(sockopt::socket_keepalive(&stream).unwrap());
            assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), PROBE_AFTER);
            assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), PROBE_EVERY);
            assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), PROBES);
            assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), user_timeout);
        }
    }

    #[test]
    fn warnings_are_seldom() {
        let mut seldom = Seldom::default();
        assert!(seldom.is_due() && !seldom.is_due());
    }
}
