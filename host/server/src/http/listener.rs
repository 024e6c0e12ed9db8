//! Accepts a bounded number of connections, serves each with hyper, and shuts them down gracefully.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};

use super::guard::{Guarded, Patience, Phase, ServedBody};
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
/// Most bytes drained after the host ends a connection: closing a socket with unread bytes resets it, and the
/// peer would not see its last response.
const LINGER_BYTES: u64 = 1 << 20;
/// Longest time spent draining.
const LINGER_TIME: Duration = Duration::from_millis(500);

/// Limits of a listener, and its encryption.
#[derive(Clone)]
pub struct ListenerOptions {
    /// Most open connections; more wait in the kernel's backlog.
    pub max_connections: usize,
    /// Timeouts for silent peers.
    pub patience: Patience,
    /// Plain HTTP if absent.
    pub tls: Option<Arc<Tls>>,
    /// Counts open connections, for the metrics.
    pub open: Arc<AtomicUsize>,
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
        let permits = Arc::new(Semaphore::new(options.max_connections));
        let (running, mut all_closed) = mpsc::channel::<()>(1);
        loop {
            let next = async {
                let permit =
                    Arc::clone(&permits).acquire_owned().await.expect("the semaphore is never closed");
                (self.socket.accept().await, permit)
            };
            let (accepted, permit) = tokio::select! {
                next = next => next,
                _ = shutdown.wait_for(|stop| *stop) => break,
            };
            match accepted {
                Ok((stream, peer)) => {
                    // A socket for both versions of IP shows IPv4 addresses inside IPv6 ones.
                    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                    let (handler, shutdown, running) = (handler.clone(), shutdown.clone(), running.clone());
                    let handler = move |request| handler(peer, request);
                    let options = options.clone();
                    tokio::spawn(async move {
                        let counted = Counted::new(&options.open);
                        open(stream, &options, shutdown, handler).await;
                        drop((counted, permit, running));
                    });
                }
                Err(error) => {
                    tracing::warn!("can't accept a connection: {error}");
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

/// One open connection.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(open: &'a AtomicUsize) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn open<H, F>(stream: TcpStream, options: &ListenerOptions, shutdown: watch::Receiver<bool>, handler: H)
where
    H: Fn(Request<Incoming>) -> F + Unpin,
    F: Future<Output = Answer> + Send + 'static,
{
    let _ = stream.set_nodelay(true);
    let Some(tls) = &options.tls else {
        return serve_connection(stream, options, shutdown, handler).await;
    };
    match tokio::time::timeout(options.patience.head, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve_connection(stream, options, shutdown, handler).await,
        Ok(Err(error)) => tracing::debug!("a TLS handshake failed: {error}"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

async fn serve_connection<S, H, F>(
    stream: S,
    options: &ListenerOptions,
    mut shutdown: watch::Receiver<bool>,
    handler: H,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Fn(Request<Incoming>) -> F + Unpin,
    F: Future<Output = Answer> + Send + 'static,
{
    let phase = Arc::new(Phase::new(options.unsent.clone()));
    let for_service = Arc::clone(&phase);
    let service = service_fn(move |request| {
        let serving = for_service.begin();
        let answer = handler(request);
        let served: HandlerFuture =
            Box::pin(async move { answer.await.map(|body| ServedBody::new(body, serving).boxed_unsync()) });
        InfallibleFuture(served)
    });
    let mut connection = http1::Builder::new()
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(Guarded::new(TokioIo::new(stream), options.patience, phase), service);
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
}
