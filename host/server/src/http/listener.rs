//! Accepts connections within a bound, serves each with hyper, ends them gracefully.
//!
//! hyper bounds heads and their time but answers a late head with silence; the 408 is written here.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};

use super::Answer;
use super::stall::Stalling;

/// Bytes that hyper buffers per connection and direction.
const BUFFER_BYTES: usize = 64 << 10;
/// Header fields of one request.
const MAX_HEADERS: usize = 100;
/// Bytes of one request's head.
const MAX_HEAD_BYTES: usize = 32 << 10;
/// Pause after a failed accept: file descriptors may be short, and come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bounds of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerBounds {
    /// Open connections; more wait in the kernel's backlog.
    pub max_connections: usize,
    /// For a request's head; also how long a connection may idle.
    pub header_timeout: Duration,
    /// How long a peer may take nothing of what is sent to it.
    pub write_timeout: Duration,
}

/// A bound socket, not yet served.
pub struct Listener {
    socket: TcpListener,
    /// Where it listens.
    pub address: SocketAddr,
}

type HandlerFuture = Pin<Box<dyn Future<Output = Answer> + Send>>;

impl Listener {
    /// Binds; port 0 takes any free one.
    pub async fn bind(host: &str, port: u16) -> std::io::Result<Self> {
        let socket = TcpListener::bind((host, port)).await?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// Serves until `shutdown` turns true, then lets open requests end. Completes when all connections
    /// are closed.
    pub async fn serve<H, F>(self, bounds: ListenerBounds, mut shutdown: watch::Receiver<bool>, handler: H)
    where
        H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + Unpin + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let permits = Arc::new(Semaphore::new(bounds.max_connections));
        let (open, mut all_closed) = mpsc::channel::<()>(1);
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
                Ok((stream, _peer)) => {
                    let (handler, shutdown, open) = (handler.clone(), shutdown.clone(), open.clone());
                    tokio::spawn(async move {
                        serve_connection(stream, bounds, shutdown, handler).await;
                        drop((permit, open));
                    });
                }
                Err(error) => {
                    tracing::warn!("can't accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop((self.socket, open));
        let _ = all_closed.recv().await;
    }
}

async fn serve_connection<H, F>(
    stream: TcpStream,
    bounds: ListenerBounds,
    mut shutdown: watch::Receiver<bool>,
    handler: H,
) where
    H: Fn(Request<Incoming>) -> F + Unpin,
    F: Future<Output = Answer> + Send + 'static,
{
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let answer: HandlerFuture = Box::pin(handler(request));
        InfallibleFuture(answer)
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.header_timeout)
        .max_headers(MAX_HEADERS)
        .max_header_size(MAX_HEAD_BYTES)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(Stalling::new(TokioIo::new(stream), bounds.write_timeout), service);
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
    let parts = connection.into_parts();
    let mut stream = parts.io.into_inner().into_inner();
    // An idle connection that timed out has asked nothing and is owed nothing.
    if result.is_err_and(|e| e.is_timeout()) && !parts.read_buf.is_empty() {
        let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(late_head().as_bytes())).await;
    }
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.shutdown()).await;
}

fn late_head() -> String {
    let body = r#"{"error":{"message":"the request's head did not arrive in time","type":"invalid_request_error","param":null,"code":"header_timeout"}}"#;
    format!(
        "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// A handler never fails: what goes wrong is an answer.
struct InfallibleFuture(HandlerFuture);

impl Future for InfallibleFuture {
    type Output = Result<Answer, std::convert::Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        self.0.as_mut().poll(cx).map(Ok)
    }
}
