//! Accepts a bounded number of connections, serves each with hyper, and shuts them down gracefully.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::header::CONNECTION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use super::guard::{Guarded, Patience, Phase, ServedBody};
use super::places::{Connections, Crowded, Keyless, Places};
use super::tls::Tls;
use super::{Answer, ApiError, Backlog, Unsent, wire};
use crate::sockets::{self, Acceptor};

/// Most bytes that hyper buffers per connection and direction.
const BUFFER_BYTES: usize = 64 << 10;
/// Most header fields of one request.
const MAX_HEADERS: usize = 100;
/// Most bytes of one request's head.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// Most bytes drained after the host ends a connection: closing a socket with unread bytes resets it, and the
/// peer would not see its last response.
const LINGER_BYTES: u64 = 1 << 20;
/// Longest time spent draining.
const LINGER_TIME: Duration = Duration::from_millis(500);
/// Longest stay in the waiting room.
const CROWDED_TIME: Duration = Duration::from_secs(10);
/// Limits of a listener, and its encryption.
#[derive(Clone)]
pub struct ListenerOptions {
    /// Most open connections. More make idle ones close, or are served one `Crowded` request each (see `places`).
    pub max_connections: usize,
    /// How many of the others may be open at once.
    pub waiting_room: usize,
    /// How long each of these waits for a place.
    pub room_time: Duration,
    /// Timeouts for silent peers.
    pub patience: Patience,
    /// Plain HTTP if absent.
    pub tls: Option<Arc<Tls>>,
    /// Counts connections, for the metrics.
    pub connections: Connections,
    /// Counts responses until they are sent, for the shutdown.
    pub unsent: Unsent,
    /// Bounds the memory of long responses until they are sent.
    pub backlog: Arc<Backlog>,
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
        let socket = sockets::listen(host, port).await?;
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
        let connections = options.connections.clone();
        let ListenerOptions { max_connections, waiting_room, room_time, .. } = options;
        let places = Places::new(max_connections, waiting_room, room_time, connections);
        let (running, mut all_closed) = mpsc::channel::<()>(1);
        let mut acceptor = Acceptor::new(self.socket, Some(options.patience.write));
        loop {
            let next = async {
                let place = places.next().await;
                (acceptor.accept().await, place)
            };
            let ((stream, peer), place) = tokio::select! {
                next = next => next,
                _ = shutdown.wait_for(|stop| *stop) => break,
            };
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
        drop((acceptor, running));
        let _ = all_closed.recv().await;
    }
}

/// How a connection was let in.
#[derive(Clone, Copy)]
struct Entry<'a> {
    options: &'a ListenerOptions,
    places: &'a Places,
    crowded: bool,
}

async fn open<H, F>(stream: TcpStream, entry: Entry<'_>, mut shutdown: watch::Receiver<bool>, handler: H)
where
    H: Fn(Request<Incoming>) -> F + Unpin,
    F: Future<Output = Answer> + Send + 'static,
{
    let Some(tls) = &entry.options.tls else {
        return serve_connection(stream, entry, shutdown, handler).await;
    };
    let handshake = tokio::time::timeout(entry.options.patience.head, tls.accept(stream));
    let crowd = entry.places.crowd_of(entry.crowded);
    let ended = tokio::select! {
        ended = handshake => ended,
        _ = shutdown.wait_for(|stop| *stop) => return,
        () = crowd.displaces(entry.options.patience.request) => {
            entry.options.connections.note_made_room();
            return;
        }
    };
    match ended {
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
    let (for_service, backlog) = (Arc::clone(&phase), Arc::clone(&entry.options.backlog));
    let service = service_fn(move |mut request: Request<Incoming>| {
        let serving = for_service.begin();
        // What only reads is as cheap with a response as without one, unless that is a stream.
        serving.leave_with_peer(![Method::GET, Method::HEAD].contains(request.method()));
        request.extensions_mut().insert(for_service.pace().clone());
        let (answer, backlog) = (handler(request), Arc::clone(&backlog));
        let served: HandlerFuture = Box::pin(async move {
            let answer = answer.await;
            if answer.headers().get(CONNECTION).is_some_and(|value| value == "close") {
                serving.mark_last();
            }
            serving.set_keyless(answer.extensions().get::<Keyless>().is_some());
            match answer.body().size_hint().exact() {
                Some(bytes) => serving.count(&backlog, bytes),
                None => serving.leave_with_peer(true),
            }
            answer.map(|body| ServedBody::new(body, serving).boxed_unsync())
        });
        InfallibleFuture(served)
    });
    let crowd = Arc::clone(entry.places.crowd_of(entry.crowded));
    let guarded = Guarded::new(TokioIo::new(stream), entry.options.patience, Arc::clone(&phase), crowd);
    let mut connection = http1::Builder::new()
        .keep_alive(!entry.crowded)
        // Whether a peer that has closed its side ends its request is the guard's decision.
        .half_close(true)
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
            phase.stop();
            Pin::new(&mut connection).graceful_shutdown();
        }
        connection.poll_without_shutdown(cx)
    })
    .await;
    let guarded = connection.into_parts().io;
    let made_room = guarded.made_room();
    if made_room {
        entry.options.connections.note_made_room();
    }
    // An idle connection that timed out or made room has no request to respond to.
    let error = if guarded.ended_in_head() {
        Some(ApiError::head("header_timeout", 408, "the request head did not arrive in time"))
    } else if guarded.cut_in_head() {
        Some(ApiError::draining().close())
    } else {
        guarded.refused_head().map(|status| refused_head(status, result.as_ref().err()))
    };
    let mut stream = guarded.into_inner().into_inner();
    let farewell = async {
        if let Some(error) = error {
            let _ = stream.write_all(&wire(error)).await;
        }
        let _ = stream.shutdown().await;
        // Whoever needs the place doesn't wait for what the peer may still send.
        if result.is_err() && !made_room {
            let _ = tokio::io::copy(&mut (&mut stream).take(LINGER_BYTES), &mut tokio::io::sink()).await;
        }
    };
    let _ = tokio::time::timeout(LINGER_TIME, farewell).await;
}

/// The error of a head that hyper refused with a status.
fn refused_head(status: u16, why: Option<&hyper::Error>) -> ApiError {
    if status == 431 {
        let message = "the request head has too many fields or is too long";
        return ApiError::head("header_fields_too_large", status, message);
    }
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    ApiError::head("malformed_head", 400, &format!("the request head is not valid HTTP/1.1{why}"))
}

/// A handler's future for hyper. Handlers never fail: their errors are responses.
struct InfallibleFuture(HandlerFuture);

impl Future for InfallibleFuture {
    type Output = Result<Answer, std::convert::Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}
