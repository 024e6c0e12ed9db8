//! A scripted admin plane: the real wire types over real HTTP, with made-up contents, to test the console's
//! connection without a model. The real host's responses are tested with the host. Killing the peer also ends
//! its connections, as when a host dies.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use infer_api::admin::{ErrorBody, ErrorInfo, SwapAnswer, SwapRequest};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use super::port::Port;
use super::sample;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A running peer.
pub struct Peer {
    /// The address it listens on.
    pub address: SocketAddr,
    port: Port,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    token: String,
    /// All requests so far, as `METHOD /path?query`.
    asked: Mutex<Vec<String>>,
    /// The live scheduler.
    scheduler: Mutex<String>,
}

impl Peer {
    /// Listens on a port of its own and requires `token`.
    pub async fn start(token: &str) -> Self {
        Self::start_on(Port::new(), token).await
    }

    /// Listens on the port of a peer that was killed, as a host that was restarted.
    pub async fn start_on(port: Port, token: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port.number)).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared {
            token: token.to_owned(),
            asked: Mutex::default(),
            scheduler: Mutex::new("continuous".to_owned()),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self { address, port, shared, accepting }
    }

    /// Returns all requests so far, as `METHOD /path?query`.
    pub fn asked(&self) -> Vec<String> {
        self.shared.asked.lock().expect("not poisoned").clone()
    }

    /// Ends the peer: no connection survives, and nobody listens on the port when this returns.
    pub async fn kill(self) -> Port {
        self.accepting.abort();
        let _ = self.accepting.await;
        self.port
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Owned by this task, so that aborting it aborts every connection.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = shared.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| answer(shared.clone(), request));
            let io = TokioIo::new(stream);
            // A client may disconnect at any time.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Ends a connection without a response.
#[derive(Debug)]
struct Gone;

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("gone")
    }
}

impl std::error::Error for Gone {}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Gone> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let asked = format!("{} {}", head.method, head.uri.path_and_query().map_or(&*path, |all| all.as_str()));
    shared.asked.lock().expect("not poisoned").push(asked);
    let given = head.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    if given != format!("Bearer {}", shared.token) {
        return Ok(error(StatusCode::UNAUTHORIZED, "wrong or missing admin token"));
    }
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    if parts.as_slice() == ["admin", "requests", "444"] {
        // The connection ends without a response.
        return Err(Gone);
    }
    Ok(match (&head.method, parts.as_slice()) {
        (&Method::GET, ["admin", "state"]) => json(&sample::state(60)),
        (&Method::GET, ["admin", "events"]) => events(shared),
        (&Method::GET, ["admin", "blocks", "map"]) => json(&sample::map()),
        (&Method::GET, ["admin", "blocks", _]) => json(&sample::block()),
        (&Method::GET, ["admin", "cache"]) => json(&sample::cache()),
        (&Method::GET, ["admin", "requests", _]) => json(&sample::request(60)),
        (&Method::GET, ["admin", "policies"]) => json(&sample::policies()),
        (&Method::GET, ["admin", "policies", _, "history"]) => json(&sample::history()),
        (&Method::PUT, ["admin", "policies", kind]) if is_component(&head.headers) => {
            json(&exchange(&shared, kind, format!("component of {} bytes", body.len())))
        }
        (&Method::PUT, ["admin", "policies", kind]) => match serde_json::from_slice::<SwapRequest>(&body) {
            Ok(swap) if swap.name == "broken" => {
                error(StatusCode::UNPROCESSABLE_ENTITY, "broken: the self-test trapped")
            }
            Ok(swap) => json(&exchange(&shared, kind, swap.name)),
            Err(_) => error(StatusCode::BAD_REQUEST, "not a swap request"),
        },
        (&Method::POST, ["admin", "policies", kind, "rollback" | "promote"]) => {
            json(&exchange(&shared, kind, "static-batch".to_owned()))
        }
        (&Method::DELETE, ["admin", "policies", _, "shadow"] | ["admin", "queue" | "cache" | "drain"])
        | (&Method::POST, ["admin", "drain"]) => json(&serde_json::json!({})),
        (&Method::DELETE, ["admin", "requests", "999"]) => error(StatusCode::NOT_FOUND, "no request 999"),
        (&Method::DELETE, ["admin", "requests", "403"]) => {
            error(StatusCode::FORBIDDEN, "this takes the role `operator`; `ana` is a `viewer`")
        }
        (&Method::DELETE, ["admin", "requests", _]) => json(&serde_json::json!({})),
        (&Method::GET, ["crowded", "admin", "events"]) => {
            let frame = sample::frame("snapshot", &sample::crowd());
            Response::new(Full::new(Bytes::from(frame)).boxed_unsync())
        }
        (_, ["rude", ..]) => {
            error(StatusCode::INTERNAL_SERVER_ERROR, "\u{1b}[31mRED\n\u{1b}]0;title\u{7}\u{9b}2J")
        }
        _ => error(StatusCode::NOT_FOUND, "no such endpoint"),
    })
}

fn is_component(headers: &hyper::HeaderMap) -> bool {
    headers.get("content-type").is_some_and(|kind| kind == "application/wasm")
}

fn exchange(shared: &Shared, kind: &str, to: String) -> SwapAnswer {
    let from = std::mem::replace(&mut *shared.scheduler.lock().expect("not poisoned"), to.clone());
    SwapAnswer {
        kind: kind.to_owned(),
        from,
        to,
        at_step: 4_711,
        pause_us: 38.5,
        state: "restored".into(),
        ..SwapAnswer::default()
    }
}

/// Sends a fault, a refusal and a preemption, then ten snapshots per second.
fn events(shared: Arc<Shared>) -> Response<Body> {
    let frames = stream::unfold((0u64, shared), |(tick, shared)| async move {
        let text = match tick {
            0..3 => sample::event(tick),
            _ => {
                if tick > 3 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                let mut state = sample::state(tick - 3);
                state.policies[0].name = shared.scheduler.lock().expect("not poisoned").clone();
                sample::frame("snapshot", &state)
            }
        };
        Some((Ok(Frame::data(Bytes::from(text))), (tick + 1, shared)))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    response.headers_mut().insert("content-type", "text/event-stream".parse().expect("a header"));
    response
}

fn json(value: &impl serde::Serialize) -> Response<Body> {
    let bytes = serde_json::to_vec(value).expect("wire types are JSON");
    Response::new(Full::new(Bytes::from(bytes)).boxed_unsync())
}

fn error(status: StatusCode, message: &str) -> Response<Body> {
    let error = ErrorInfo { message: message.to_owned(), ..ErrorInfo::default() };
    let mut response = json(&ErrorBody { error });
    *response.status_mut() = status;
    response
}
