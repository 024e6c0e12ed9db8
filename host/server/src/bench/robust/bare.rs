//! A minimal streaming server as a baseline: hyper, one task per stream, the same frames as the host's. All streams
//! advance together by one token, as they do with an engine's steps.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

/// The current step, and how many streams have yet to write its token.
struct Steps {
    now: watch::Sender<u64>,
    alive: AtomicUsize,
    behind: AtomicUsize,
    all_there: Notify,
}

/// Serves until the future is dropped.
pub async fn serve_bare(listener: TcpListener) {
    let steps = Arc::new(Steps {
        now: watch::Sender::new(0),
        alive: AtomicUsize::new(0),
        behind: AtomicUsize::new(0),
        all_there: Notify::new(),
    });
    tokio::spawn(turn(Arc::clone(&steps)));
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        let _ = socket.set_nodelay(true);
        let steps = Arc::clone(&steps);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&steps)));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
        });
    }
}

/// Starts a step, waits until every stream has written its token, and repeats.
async fn turn(steps: Arc<Steps>) {
    loop {
        let alive = steps.alive.load(Ordering::Acquire);
        if alive == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            continue;
        }
        steps.behind.store(alive, Ordering::Release);
        steps.now.send_modify(|now| *now += 1);
        // The timeout covers a stream that starts or ends during the step, which makes the count wrong.
        let _ = tokio::time::timeout(std::time::Duration::from_millis(2), steps.all_there.notified()).await;
    }
}

struct Writer {
    steps: Arc<Steps>,
    now: watch::Receiver<u64>,
    sent: u64,
    tokens: u64,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.steps.alive.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn answer(
    request: Request<Incoming>,
    steps: Arc<Steps>,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let value: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let tokens = value["max_tokens"].as_u64().unwrap_or(0);
    steps.alive.fetch_add(1, Ordering::AcqRel);
    let now = steps.now.subscribe();
    let writer = Writer { steps, now, sent: 0, tokens };
    let frames = stream::unfold(Some(writer), |writer| async move {
        let mut writer = writer?;
        if writer.sent == writer.tokens {
            let done = "event: done\ndata: {\"finish_reason\":\"length\"}\n\n";
            return Some((Ok(Frame::data(Bytes::from_static(done.as_bytes()))), None));
        }
        writer.now.changed().await.ok()?;
        let frame = format!("event: token\ndata: {{\"token\":\" word\",\"token_id\":{}}}\n\n", writer.sent);
        writer.sent += 1;
        if writer.steps.behind.fetch_sub(1, Ordering::AcqRel) == 1 {
            writer.steps.all_there.notify_one();
        }
        Some((Ok(Frame::data(Bytes::from(frame))), Some(writer)))
    });
    let mut answer = Response::new(StreamBody::new(frames));
    answer.headers_mut().insert("content-type", "text/event-stream".parse().expect("it is a header"));
    Ok(answer)
}
