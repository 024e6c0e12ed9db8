//! Stands between the network and zeromq, which trusts whoever connects: one announced length aborts the process,
//! and nothing limits connections, handshakes, subscriptions, or how long a peer may leave its messages unread.
//!
//! Each socket of zeromq is bound in a folder that only this user may enter. The gate listens at the public
//! address, and passes bytes on: those of a peer as whole frames that were judged (see `frames`), those of zeromq
//! as they are. A peer that falls behind for too long is cut off; until then zeromq queues for it, and beyond
//! 100,000 messages drops what is published.

mod frames;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, tcp, unix};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use zeromq::Socket;

use super::endpoint::Endpoint;
use crate::sockets::{self, Acceptor, Seldom};
use frames::{FRAME_BYTES, Fault, Frames};

pub use frames::Role;

/// Most connections of one socket.
const CONNECTIONS: usize = 64;
/// Bytes of the buffer for a peer's frames.
const INWARD_BYTES: usize = 8 << 10;
const _: () = assert!(INWARD_BYTES > FRAME_BYTES, "the longest frame fits, so there is always room to read");
/// Bytes of the buffer for what a peer gets.
const OUTWARD_BYTES: usize = 64 << 10;
/// What the peers of a socket may do, and how long they may take.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    role: Role,
    /// Time for greeting and READY.
    handshake: Duration,
    /// Time to read all that waits.
    behind: Duration,
}

impl Rules {
    /// The rules for a socket.
    pub fn of(role: Role) -> Self {
        Self { role, handshake: Duration::from_secs(10), behind: Duration::from_secs(60) }
    }
}

/// The public side of a socket. Dropped, it closes all connections and no longer listens.
pub struct Gate {
    endpoint: Endpoint,
    /// The task that accepts; the set ends it.
    _accepting: JoinSet<()>,
}

impl Gate {
    /// Binds a socket of zeromq inside the folder, and listens for its peers at the endpoint.
    pub async fn open(
        socket: &mut impl Socket,
        endpoint: &Endpoint,
        folder: &Path,
        rules: Rules,
    ) -> io::Result<Self> {
        let listener = sockets::listen(endpoint.host(), endpoint.port()).await?;
        let endpoint = endpoint.at(listener.local_addr()?.port());
        let inside = folder.join(match rules.role {
            Role::Events => "events",
            Role::Replay => "replay",
        });
        let private = UnixListener::bind(&inside).map_err(|error| {
            let told = format!("no socket at {}: {error}; TMPDIR can name another folder", inside.display());
            io::Error::new(error.kind(), told)
        })?;
        socket.bind_listener(private).await.map_err(io::Error::other)?;
        let acceptor = Acceptor::new(listener, None);
        let door = Door { acceptor, endpoint: endpoint.clone(), inside, rules };
        let mut accepting = JoinSet::new();
        accepting.spawn(door.accept());
        Ok(Self { endpoint, _accepting: accepting })
    }

    /// Where it listens, with the host as it was given.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// What the accepting task owns.
struct Door {
    acceptor: Acceptor,
    endpoint: Endpoint,
    inside: PathBuf,
    rules: Rules,
}

impl Door {
    async fn accept(mut self) {
        let mut connections = JoinSet::new();
        let mut full = Seldom::default();
        loop {
            let (peer, from) = self.acceptor.accept().await;
            while connections.try_join_next().is_some() {}
            if connections.len() == CONNECTIONS {
                if full.is_due() {
                    tracing::warn!(
                        "{} refuses connections: {CONNECTIONS} are open, the most that it serves",
                        self.endpoint
                    );
                }
                continue;
            }
            connections.spawn(connection(peer, from, self.inside.clone(), self.rules));
        }
    }
}

/// Why the gate ended a connection.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("it was not ready within {0:?}")]
    Silent(Duration),
    #[error("it did not read what waited for it within {0:?}")]
    Behind(Duration),
    #[error(transparent)]
    Broken(#[from] io::Error),
}

async fn connection(peer: TcpStream, from: SocketAddr, inside: PathBuf, rules: Rules) {
    match pass(peer, &inside, rules).await {
        Ok(()) => {}
        Err(ended @ Ended::Behind(_)) => {
            tracing::warn!("cut off a subscriber of KV events at {from}: {ended}");
        }
        Err(ended) => tracing::debug!("ended a connection for KV events from {from}: {ended}"),
    }
}

/// Passes bytes in both directions until either side closes.
async fn pass(mut peer: TcpStream, inside: &Path, rules: Rules) -> Result<(), Ended> {
    let mut inside = enter(&peer, inside).await?;
    let (from_peer, to_peer) = peer.split();
    let (from_inside, to_inside) = inside.split();
    tokio::select! {
        ended = inward(from_peer, to_inside, Frames::new(rules.role), rules.handshake) => ended,
        ended = outward(from_inside, to_peer, rules.behind) => ended,
    }
}

/// Connects to the socket of zeromq, which would try to accept without a pause if it had no file descriptor left: one
/// is kept for it until it is asked.
async fn enter(peer: &TcpStream, inside: &Path) -> io::Result<UnixStream> {
    let _kept = peer.as_fd().try_clone_to_owned()?;
    UnixStream::connect(inside).await
}

/// Passes a peer's frames on, each when it is whole.
async fn inward(
    mut from: tcp::ReadHalf<'_>,
    mut to: unix::WriteHalf<'_>,
    mut frames: Frames,
    handshake: Duration,
) -> Result<(), Ended> {
    let deadline = Instant::now() + handshake;
    let (mut buffer, mut filled) = (vec![0_u8; INWARD_BYTES], 0);
    loop {
        let read = from.read(&mut buffer[filled..]);
        let read = if frames.is_ready() {
            read.await?
        } else {
            timeout_at(deadline, read).await.map_err(|_| Ended::Silent(handshake))??
        };
        if read == 0 {
            return Ok(());
        }
        filled += read;
        loop {
            let sound = frames.judge(&buffer[..filled])?;
            if sound == 0 {
                break;
            }
            to.write_all(&buffer[..sound]).await?;
            buffer.copy_within(sound..filled, 0);
            filled -= sound;
        }
    }
}

/// Passes on what a peer gets. A peer that reads, but never all of it, is as bad as one that doesn't read.
async fn outward(
    from: unix::ReadHalf<'_>,
    mut to: tcp::WriteHalf<'_>,
    behind: Duration,
) -> Result<(), Ended> {
    let mut buffer = vec![0_u8; OUTWARD_BYTES];
    loop {
        from.readable().await?;
        let waiting = pass_all(&from, &mut to, &mut buffer);
        if timeout(behind, waiting).await.map_err(|_| Ended::Behind(behind))?? == Left::Closed {
            return Ok(());
        }
    }
}

/// What is left after all that waited was passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// More may come.
    Open,
    /// Nothing will come.
    Closed,
}

async fn pass_all(
    from: &unix::ReadHalf<'_>,
    to: &mut tcp::WriteHalf<'_>,
    buffer: &mut [u8],
) -> io::Result<Left> {
    loop {
        match from.try_read(buffer) {
            Ok(0) => return Ok(Left::Closed),
            Ok(read) => to.write_all(&buffer[..read]).await?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Left::Open),
            Err(error) => return Err(error),
        }
    }
}
