//! Accepts a bounded number of connections, serves each with hyper, and shuts them down gracefully.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};

use super::guard::{Guarded, Patience, Phase, ServedBody};
use super::places::{Connections, Crowded, Places};
use super::tls::Tls;
use super::{Answer, ApiError, Unsent, wire};

/// Most bytes that hyper buffers per connection and direction.
const BUFFER_BYTES: usize = 64 << 10;
/// Most header fields of one request.
const MAX_HEADERS: usize = 100;
/// Most bytes of one request's head.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// Most connections that the kernel keeps until they are accepted; it lowers this to `net.core.somaxconn`. Beyond it,
/// Linux drops handshakes, which peers repeat only after a second, and may reset those that it answered with a SYN
/// cookie. The standard library's 128 are fewer than a load generator opens at once.
const BACKLOG: u32 = 4_096;
/// Pause after a failed accept. It may have run out of file descriptors, which other connections free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Pause between warnings of failed accepts.
const WARNING_PAUSE: Duration = Duration::from_secs(5);
/// Most bytes drained after the host ends a connection: closing a socket with unread bytes resets it, and the
/// peer would not see its last response.
const LINGER_BYTES: u64 = 1 << 20;
/// Longest time spent draining.
const LINGER_TIME: Duration = Duration::from_millis(500);
/// Longest stay in the waiting room.
const CROWDED_TIME: Duration = Duration::from_secs(10);
/// A peer that was silent for this many seconds is probed this often, and so many probes may stay unanswered. Devices
/// between two networks forget connections that are silent for some minutes.
#[cfg(target_os = "linux")]
const PROBE_AFTER: Duration = Duration::from_secs(30);
#[cfg(target_os = "linux")]
const PROBE_EVERY: Duration = Duration::from_secs(10);
#[cfg(target_os = "linux")]
const PROBES: u32 = 3;
/// Silence after which so many probes have stayed unanswered.
#[cfg(target_os = "linux")]
const LOST_AFTER: Duration = Duration::from_secs(60);

/// Limits of a listener, and its encryption.
#[derive(Clone)]
pub struct ListenerOptions {
    /// Most open connections. More make idle ones close, or are served one `Crowded` request each (see `places`).
    pub max_connections: usize,
    /// Timeouts for silent peers.
    pub patience: Patience,
    /// Plain HTTP if absent.
    pub tls: Option<Arc<Tls>>,
    /// Counts connections, for the metrics.
    pub connections: Connections,
    /// Counts responses until they are sent, for the shutdown.
    pub unsent: Unsent,
}

/// A bound socket that isn't served yet.
pub struct Listener {
    socket: TcpListener,
    /// The address it is bound to.
    pub address: SocketAddr,
}

type HandlerFuture = Pin<Box<dyn Future<Output = Answer> + Send>>;

impl Listener {
    /// Binds to a port; 0 selects a free one.
    pub async fn bind(host: &str, port: u16) -> io::Result<Self> {
        let socket = listen(host, port).await?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// Serves until `shutdown` becomes true, then lets open requests finish. Returns when all connections are
    /// closed. The handler gets the peer's address with each request.
    pub async fn serve<H, F>(self, options: ListenerOptions, mut shutdown: watch::Receiver<bool>, handler: H)
    where
        H: Fn(SocketAddr, Request<Incoming>) -> F + Clone + Send + Sync + Unpin + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        if let Err(error) = watch_for_lost_peers(&self.socket, options.patience.write) {
            tracing::warn!("can't have the system look for peers that vanished: {error}");
        }
        let places = Places::new(options.max_connections, options.connections.clone());
        let (running, mut all_closed) = mpsc::channel::<()>(1);
        let mut last_warning: Option<Instant> = None;
        loop {
            let next = async {
                let place = places.next().await;
                (self.socket.accept().await, place)
            };
            let (accepted, place) = tokio::select! {
                next = next => next,
                _ = shutdown.wait_for(|stop| *stop) => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    // A socket for both versions of IP shows IPv4 addresses inside IPv6 ones.
                    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                    let (handler, shutdown, running) = (handler.clone(), shutdown.clone(), running.clone());
                    let (options, places) = (options.clone(), places.clone());
                    tokio::spawn(async move {
                        let counted = options.connections.enter();
                        let place = places.settle(place).await;
                        let crowded = place.crowded;
                        let handler = move |mut request: Request<Incoming>| {
                            if crowded {
                                request.extensions_mut().insert(Crowded);
                            }
                            handler(peer, request)
                        };
                        let entry = Entry { options: &options, places: &places, crowded };
                        let served = open(stream, entry, shutdown, handler);
                        if crowded {
                            let _ = tokio::time::timeout(CROWDED_TIME, served).await;
                        } else {
                            served.await;
                        }
                        drop((counted, place, running));
                    });
                }
                Err(error) => {
                    if last_warning.is_none_or(|last| last.elapsed() > WARNING_PAUSE) {
                        tracing::warn!("can't accept connections: {error}");
                        last_warning = Some(Instant::now());
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop((self.socket, running));
        let _ = all_closed.recv().await;
    }
}

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

/// Has the system end connections whose peer vanished without a word, also while there is nothing to send: requests
/// may wait for long, and hold blocks. Accepted sockets inherit it.
fn watch_for_lost_peers(socket: &TcpListener, write: Duration) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    #[cfg(target_os = "linux")]
    {
        sockopt::set_tcp_keepidle(socket, PROBE_AFTER)?;
        sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
        sockopt::set_tcp_keepcnt(socket, PROBES)?;
        // Data that nobody acknowledges; the system's own limit is a quarter of an hour. This one also ends peers that
        // read nothing, so it must not come before `write`, and it replaces the number of probes.
        let most = if write <= LOST_AFTER { write } else { Duration::ZERO };
        sockopt::set_tcp_user_timeout(socket, most.as_millis() as u32)?;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = write;
    Ok(())
}

/// How a connection was let in.
#[derive(Clone, Copy)]
struct Entry<'a> {
    options: &'a ListenerOptions,
    places: &'a Places,
    crowded: bool,
}

async fn open<H, F>(stream: TcpStream, entry: Entry<'_>, shutdown: watch::Receiver<bool>, handler: H)
where
    H: Fn(Request<Incoming>) -> F + Unpin,
    F: Future<Output = Answer> + Send + 'static,
{
    let _ = stream.set_nodelay(true);
    let Some(tls) = &entry.options.tls else {
        return serve_connection(stream, entry, shutdown, handler).await;
    };
    match tokio::time::timeout(entry.options.patience.head, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, entry, shutdown, handler).await,
        Ok(Err(error)) => tracing::debug!("a TLS handshake failed: {error}"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

async fn serve_connection<S, H, F>(
    stream: S,
    entry: Entry<'_>,
    mut shutdown: watch::Receiver<bool>,
    handler: H,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Fn(Request<Incoming>) -> F + Unpin,
    F: Future<Output = Answer> + Send + 'static,
{
    let phase = Arc::new(Phase::new(entry.options.unsent.clone()));
    let for_service = Arc::clone(&phase);
    let service = service_fn(move |request| {
        let serving = for_service.begin();
        let answer = handler(request);
        let served: HandlerFuture =
            Box::pin(async move { answer.await.map(|body| ServedBody::new(body, serving).boxed_unsync()) });
        InfallibleFuture(served)
    });
    let crowd = Arc::clone(&entry.places.crowd);
    let guarded = Guarded::new(TokioIo::new(stream), entry.options.patience, phase, crowd);
    let mut connection = http1::Builder::new()
        .keep_alive(!entry.crowded)
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(guarded, service);
    let mut stopping = pin!(shutdown.wait_for(|stop| *stop));
    let mut told = false;
    let result = poll_fn(|cx| {
        if !told && stopping.as_mut().poll(cx).is_ready() {
            told = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
        connection.poll_without_shutdown(cx)
    })
    .await;
    let guarded = connection.into_parts().io;
    if guarded.made_room() {
        entry.options.connections.note_made_room();
    }
    // An idle connection that timed out has no request to respond to.
    let late_head = guarded.ended_in_head();
    let mut stream = guarded.into_inner().into_inner();
    let farewell = async {
        if late_head {
            let error = ApiError::head("header_timeout", 408, "the request head did not arrive in time");
            let _ = stream.write_all(&wire(error)).await;
        }
        let _ = stream.shutdown().await;
        if result.is_err() {
            let _ = tokio::io::copy(&mut (&mut stream).take(LINGER_BYTES), &mut tokio::io::sink()).await;
        }
    };
    let _ = tokio::time::timeout(LINGER_TIME, farewell).await;
}

/// A handler's future for hyper. Handlers never fail: their errors are responses.
struct InfallibleFuture(HandlerFuture);

impl Future for InfallibleFuture {
    type Output = Result<Answer, std::convert::Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
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
        let listener = Listener::bind("127.0.0.1", 0).await.unwrap();
        let burst = (0..most.min(400)).map(|_| TcpStream::connect(listener.address));
        let connected = futures_util::future::try_join_all(burst);
        let connected = tokio::time::timeout(Duration::from_secs(30), connected).await;
        assert_eq!(connected.expect("each handshake is answered").unwrap().len(), most.min(400));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn accepted_connections_look_for_vanished_peers() {
        let listener = Listener::bind("127.0.0.1", 0).await.unwrap();
        for (write, user_timeout) in [(60, 60_000), (61, 0)] {
            watch_for_lost_peers(&listener.socket, Duration::from_secs(write)).unwrap();
            let _peer = TcpStream::connect(listener.address).await.unwrap();
            let (stream, _) = listener.socket.accept().await.unwrap();
            assert!(sockopt::socket_keepalive(&stream).unwrap());
            assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), PROBE_AFTER);
            assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), PROBE_EVERY);
            assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), PROBES);
            assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), user_timeout);
        }
    }
}
