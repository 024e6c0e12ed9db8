//! From the engine thread to subscribers: a bounded channel that the engine never waits for, a buffer of what
//! was sent, two sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::Bytes;
use infer_core::kv_events::KvEvent;
use tokio::sync::{Notify, mpsc, watch};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

use super::sent::Sent;
use super::wire::{Batch, encode};
use crate::engine::EngineHandle;

/// Batches on their way from the engine.
const CHANNEL: usize = 4_096;
/// Ends a replay: no batch has this number.
const END: [u8; 8] = (-1i64).to_be_bytes();
/// For a subscriber to take one of the batches that it asked for again.
const REPLAY_PATIENCE: Duration = Duration::from_secs(5);

/// Where it is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// Of the PUB socket, `tcp://HOST:PORT`.
    pub events: String,
    /// Of the ROUTER socket.
    pub replay: Option<String>,
}

/// The engine thread's end.
#[derive(Clone)]
pub struct KvSender {
    batches: mpsc::Sender<Vec<KvEvent>>,
    lost: Arc<AtomicBool>,
    /// Wakes the publisher for what was lost: by then it may have read everything else.
    wake: Arc<Notify>,
}

impl KvSender {
    /// Sends what happened; where the channel is full it is lost, and everything will be told anew.
    pub fn send(&self, happened: Vec<KvEvent>) {
        if self.batches.try_send(happened).is_err() {
            self.lost.store(true, Ordering::Release);
            self.wake.notify_one();
        }
    }
}

/// The other end.
pub struct KvReceiver {
    batches: mpsc::Receiver<Vec<KvEvent>>,
    lost: Arc<AtomicBool>,
    wake: Arc<Notify>,
}

/// Both ends.
pub fn channel() -> (KvSender, KvReceiver) {
    let (sender, batches) = mpsc::channel(CHANNEL);
    // Nobody has been told anything yet.
    let lost = Arc::new(AtomicBool::new(true));
    let wake = Arc::new(Notify::new());
    let sender = KvSender { batches: sender, lost: Arc::clone(&lost), wake: Arc::clone(&wake) };
    (sender, KvReceiver { batches, lost, wake })
}

/// Sends batches to subscribers.
pub struct Publisher {
    events: PubSocket,
    replay: Option<RouterSocket>,
    topic: Bytes,
    next: u64,
    sent: Sent,
    bound: Endpoints,
}

impl Publisher {
    /// Binds both sockets.
    pub async fn bind(endpoints: &Endpoints) -> Result<Self, ZmqError> {
        let mut events = PubSocket::new();
        let events_endpoint = events.bind(&endpoints.events).await?.to_string();
        let (mut replay, mut replay_endpoint) = (None, None);
        if let Some(endpoint) = &endpoints.replay {
            let mut socket = RouterSocket::new();
            replay_endpoint = Some(socket.bind(endpoint).await?.to_string());
            replay = Some(socket);
        }
        Ok(Self {
            events,
            replay,
            topic: Bytes::new(),
            next: 0,
            sent: Sent::default(),
            bound: Endpoints { events: events_endpoint, replay: replay_endpoint },
        })
    }

    /// Where the sockets listen.
    pub fn endpoints(&self) -> Endpoints {
        self.bound.clone()
    }

    /// Publishes under a topic from now on.
    pub fn about(self, topic: String) -> Self {
        Self { topic: topic.into(), ..self }
    }

    /// Publishes until `stop` turns true.
    pub async fn run(mut self, mut inbox: KvReceiver, engine: EngineHandle, mut stop: watch::Receiver<bool>) {
        loop {
            // Of what was lost some came after what waits here: that must not be told after the snapshot.
            if inbox.lost.swap(false, Ordering::AcqRel) {
                while inbox.batches.try_recv().is_ok() {}
                let Ok(blocks) = engine.kv_snapshot().await else { return };
                self.publish(&Batch::anew(now(), blocks)).await;
            }
            let replay = async {
                match &mut self.replay {
                    Some(socket) => socket.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = async { drop(stop.wait_for(|stop| *stop).await) } => return,
                happened = inbox.batches.recv() => match happened {
                    Some(happened) if !inbox.lost.load(Ordering::Acquire) => {
                        self.publish(&Batch::new(now(), &happened)).await;
                    }
                    // A snapshot is on its way that holds it.
                    Some(_) => {}
                    None => return,
                },
                () = inbox.wake.notified() => {}
                asked = replay => match asked {
                    Ok(asked) => {
                        if self.send_again(asked).await == Reach::TooShort {
                            inbox.lost.store(true, Ordering::Release);
                        }
                    }
                    Err(error) => tracing::debug!("a replay could not be read: {error}"),
                },
            }
        }
    }

    async fn publish(&mut self, batch: &Batch) {
        let payload = Bytes::from(encode(batch));
        let number = self.next;
        self.next += 1;
        let frames = vec![self.topic.clone(), Bytes::copy_from_slice(&number.to_be_bytes()), payload.clone()];
        if let Err(error) = self.events.send(message(frames)).await {
            tracing::debug!("KV events could not be sent: {error}");
        }
        self.sent.push(number, payload, batch.begins_anew());
    }

    /// Answers `[identity, "", number]` with every batch from that number on, then with the end mark.
    async fn send_again(&mut self, asked: ZmqMessage) -> Reach {
        let frames = asked.into_vec();
        let [identity, _, number] = &frames[..] else { return Reach::Enough };
        let Ok(from) = <[u8; 8]>::try_from(&number[..]) else { return Reach::Enough };
        let from = u64::from_be_bytes(from);
        let Some(socket) = &mut self.replay else { return Reach::Enough };
        let answers = self.sent.from(from).map(|(number, payload)| (number.to_be_bytes(), payload));
        for (number, payload) in answers.chain([(END, Bytes::new())]) {
            let frames = vec![identity.clone(), Bytes::new(), Bytes::copy_from_slice(&number), payload];
            // Everybody's events wait meanwhile.
            match tokio::time::timeout(REPLAY_PATIENCE, socket.send(message(frames))).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::debug!("a subscriber left during a replay: {error}");
                    return Reach::Enough;
                }
                Err(_) => {
                    tracing::warn!("a subscriber doesn't read the events that it asked for again");
                    return Reach::Enough;
                }
            }
        }
        if self.sent.reaches(from) { Reach::Enough } else { Reach::TooShort }
    }
}

/// What a subscriber gets of what it missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// All that its copy needs, or nobody is there any more.
    Enough,
    /// Not that: everything has to be told anew.
    TooShort,
}

fn message(frames: Vec<Bytes>) -> ZmqMessage {
    ZmqMessage::try_from(frames).expect("a message has frames")
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
