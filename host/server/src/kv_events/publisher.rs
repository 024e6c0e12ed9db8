//! Carries events from the engine thread to subscribers: a bounded channel that the engine never waits for, a
//! buffer of sent batches, and two sockets, each with a task of its own: however slowly a subscriber reads what it
//! asked for again, the others are told what happens.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::Bytes;
use tempfile::TempDir;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::endpoint::{BindError, Endpoint, Endpoints};
use super::gate::{Gate, Role, Rules};
use super::sent::Sent;
use super::wire::{Batch, encode};
use crate::engine::{EngineHandle, EngineStopped, KvBatch};

/// Capacity of the channel from the engine, in batches.
const CHANNEL: usize = 4_096;
/// The number that ends a replay; no batch has it.
const END: [u8; 8] = (-1i64).to_be_bytes();
/// How long a subscriber may take to read one resent batch.
const REPLAY_PATIENCE: Duration = Duration::from_secs(5);
/// Least time between two snapshots that subscribers ask for: the engine's next step waits for each.
const ASKED_APART: Duration = Duration::from_secs(1);

/// The engine thread's end of the channel.
#[derive(Clone)]
struct KvSender {
    batches: mpsc::Sender<KvBatch>,
    lost: Arc<AtomicBool>,
    /// Wakes the publisher after a loss: the channel may be empty by then.
    wake: Arc<Notify>,
}

impl KvSender {
    /// Sends a batch. If the channel is full, the batch is lost and the publisher sends a snapshot instead.
    fn send(&self, happened: KvBatch) {
        if self.batches.try_send(happened).is_err() {
            self.lost.store(true, Ordering::Release);
            self.wake.notify_one();
        }
    }
}

/// The publisher's end of the channel.
struct KvReceiver {
    batches: mpsc::Receiver<KvBatch>,
    lost: Arc<AtomicBool>,
    wake: Arc<Notify>,
    /// Number of the first batch that the last snapshot doesn't contain.
    next: u64,
}

impl KvReceiver {
    /// Whether subscribers are to be told of a batch. Those before the last snapshot still come after it, and
    /// would undo and repeat what it says; if one was lost, the next snapshot contains this one.
    fn is_news(&self, happened: &KvBatch) -> bool {
        happened.number >= self.next && !self.lost.load(Ordering::Acquire)
    }
}

fn channel() -> (KvSender, KvReceiver) {
    let (sender, batches) = mpsc::channel(CHANNEL);
    // The first batch is a snapshot.
    let lost = Arc::new(AtomicBool::new(true));
    let wake = Arc::new(Notify::new());
    let sender = KvSender { batches: sender, lost: Arc::clone(&lost), wake: Arc::clone(&wake) };
    (sender, KvReceiver { batches, lost, wake, next: 0 })
}

/// Sends batches to subscribers.
pub struct Publisher {
    events: PubSocket,
    replay: Option<RouterSocket>,
    topic: Bytes,
    /// Number of the next batch.
    next: u64,
    sent: Kept,
    bound: Endpoints,
    /// Let peers reach the sockets.
    _gates: Vec<Gate>,
    /// Where only the gates do.
    _folder: TempDir,
}

impl Publisher {
    /// Binds both sockets, and opens their gates.
    pub async fn bind(endpoints: &Endpoints) -> Result<Self, BindError> {
        let wrong = |role, endpoint: &Endpoint| {
            let (flag, endpoint) = (flag(role), endpoint.clone());
            move |error| BindError { flag, endpoint, error }
        };
        let folder = private_folder().map_err(wrong(Role::Events, &endpoints.events))?;
        let mut events = PubSocket::new();
        let gate = Gate::open(&mut events, &endpoints.events, folder.path(), Rules::of(Role::Events)).await;
        let mut gates = vec![gate.map_err(wrong(Role::Events, &endpoints.events))?];
        let mut bound = Endpoints { events: gates[0].endpoint().clone(), replay: None };
        let mut replay = None;
        if let Some(endpoint) = &endpoints.replay {
            let mut socket = RouterSocket::new();
            let gate = Gate::open(&mut socket, endpoint, folder.path(), Rules::of(Role::Replay)).await;
            let gate = gate.map_err(wrong(Role::Replay, endpoint))?;
            bound.replay = Some(gate.endpoint().clone());
            gates.push(gate);
            replay = Some(socket);
        }
        Ok(Self {
            events,
            replay,
            topic: Bytes::new(),
            // Read after binding: an earlier process at these addresses sends no more.
            next: first_number(since_1970()),
            sent: Kept::default(),
            bound,
            _gates: gates,
            _folder: folder,
        })
    }

    /// Where the sockets listen.
    pub fn endpoints(&self) -> Endpoints {
        self.bound.clone()
    }

    /// Starts to publish the engine's events under `topic`, until `stop` turns true. Returns the task that does it.
    pub fn publish(
        self,
        topic: String,
        engine: &EngineHandle,
        stop: watch::Receiver<bool>,
    ) -> Result<JoinHandle<()>, EngineStopped> {
        let (sender, inbox) = channel();
        engine.watch_kv(Box::new(move |happened| sender.send(happened)))?;
        Ok(tokio::spawn(Self { topic: topic.into(), ..self }.run(inbox, engine.clone(), stop)))
    }

    async fn run(mut self, mut inbox: KvReceiver, engine: EngineHandle, mut stop: watch::Receiver<bool>) {
        // Ends with this task.
        let mut resending = JoinSet::new();
        if let Some(socket) = self.replay.take() {
            let (lost, wake) = (Arc::clone(&inbox.lost), Arc::clone(&inbox.wake));
            let resender = Resender { socket, sent: self.sent.clone() };
            resending.spawn(resender.run(move || {
                lost.store(true, Ordering::Release);
                wake.notify_one();
            }));
        }
        loop {
            if inbox.lost.swap(false, Ordering::AcqRel) {
                // Makes room, or the next ones would be lost while the engine is asked.
                while inbox.batches.try_recv().is_ok() {}
                let Ok(snapshot) = engine.kv_snapshot().await else { return };
                inbox.next = snapshot.next;
                self.send(&Batch::snapshot(now(), snapshot.blocks, &snapshot.adapters)).await;
            }
            tokio::select! {
                () = async { drop(stop.wait_for(|stop| *stop).await) } => return,
                happened = inbox.batches.recv() => match happened {
                    Some(happened) if inbox.is_news(&happened) => {
                        self.send(&Batch::new(now(), &happened.events, &happened.adapters)).await;
                    }
                    Some(_) => {}
                    None => return,
                },
                () = inbox.wake.notified() => {}
            }
        }
    }

    async fn send(&mut self, batch: &Batch) {
        let payload = Bytes::from(encode(batch));
        let number = self.next;
        self.next += 1;
        // First, so that a replay has whatever a subscriber may have missed.
        self.sent.lock().push(number, payload.clone(), batch.is_snapshot());
        let frames = vec![self.topic.clone(), Bytes::copy_from_slice(&number.to_be_bytes()), payload];
        if let Err(error) = self.events.send(message(frames)).await {
            tracing::debug!("can't send KV events: {error}");
        }
    }
}

/// The buffer of sent batches, which both tasks use.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Sent>>);

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Sent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kept batches from a number on, and whether they are enough.
    fn from(&self, number: u64) -> (Vec<(u64, Bytes)>, Reach) {
        let sent = self.lock();
        let reach = if sent.reaches(number) { Reach::Enough } else { Reach::TooShort };
        (sent.from(number).collect(), reach)
    }
}

/// Answers subscribers that missed batches, one after the other.
struct Resender {
    socket: RouterSocket,
    sent: Kept,
}

impl Resender {
    /// Answers until the task is dropped. Calls `ask` for a snapshot after answers that were too short.
    async fn run(mut self, ask: impl Fn()) {
        let mut asked: Option<Instant> = None;
        let mut due: Option<Instant> = None;
        loop {
            let at_due = async move {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                request = self.socket.recv() => match request {
                    Ok(request) => {
                        if self.resend(request).await == Reach::TooShort && due.is_none() {
                            let now = Instant::now();
                            due = Some(asked.map_or(now, |asked| now.max(asked + ASKED_APART)));
                        }
                    }
                    Err(error) => tracing::debug!("can't read a replay request: {error}"),
                },
                () = at_due => {
                    due = None;
                    asked = Some(Instant::now());
                    ask();
                }
            }
        }
    }

    /// Answers `[identity, "", number]` with every batch from that number on, then with the end mark.
    async fn resend(&mut self, request: ZmqMessage) -> Reach {
        let frames = request.into_vec();
        let [identity, _, number] = &frames[..] else { return Reach::Enough };
        let Ok(from) = <[u8; 8]>::try_from(&number[..]) else { return Reach::Enough };
        let (batches, reach) = self.sent.from(u64::from_be_bytes(from));
        let batches = batches.into_iter().map(|(number, payload)| (number.to_be_bytes(), payload));
        for (number, payload) in batches.chain([(END, Bytes::new())]) {
            let frames = vec![identity.clone(), Bytes::new(), Bytes::copy_from_slice(&number), payload];
            // Meanwhile the other replays wait.
            match tokio::time::timeout(REPLAY_PATIENCE, self.socket.send(message(frames))).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::debug!("a subscriber disconnected during a replay: {error}");
                    return Reach::Enough;
                }
                Err(_) => {
                    tracing::warn!(
                        "a subscriber doesn't read the KV events that it asked to resend; the replay is cut off"
                    );
                    return Reach::Enough;
                }
            }
        }
        reach
    }
}

/// Whether a replay was enough for an exact index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// The subscriber got everything, or is gone.
    Enough,
    /// The buffer no longer has all of it: a snapshot must follow.
    TooShort,
}

/// A folder that only this user may enter.
fn private_folder() -> io::Result<TempDir> {
    let mut folder = tempfile::Builder::new();
    folder.prefix("infer-kv-").permissions(Permissions::from_mode(0o700));
    folder.tempdir().map_err(|error| {
        io::Error::new(error.kind(), format!("no private folder: {error}; TMPDIR can name another place"))
    })
}

/// The setting with a socket's address.
fn flag(role: Role) -> &'static str {
    match role {
        Role::Events => "--kv-events",
        Role::Replay => "--kv-events-replay",
    }
}

fn message(frames: Vec<Bytes>) -> ZmqMessage {
    ZmqMessage::try_from(frames).expect("a message has frames")
}

/// The number of the first batch of a process that starts at this time since 1970. It is above all of an earlier
/// process, which sent less than one batch per microsecond, so what that one's subscribers ask for is never mistaken for
/// a batch of this one. Numbers stay below 2^53 until the year 2255, for subscribers that read them as floats.
fn first_number(since_1970: Duration) -> u64 {
    u64::try_from(since_1970.as_micros()).unwrap_or(0)
}

fn now() -> f64 {
    since_1970().as_secs_f64()
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use infer_core::kv_events::KvEvent;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use zeromq::SubSocket;

    use super::*;
    use crate::engine::AdapterNames;

    #[test]
    fn batches_that_a_snapshot_contains_do_not_follow_it() {
        let (sender, mut inbox) = channel();
        inbox.lost.store(false, Ordering::Release);
        // Told while the engine was asked for the snapshot, which is of after the second.
        for number in 5..8 {
            let events = vec![KvEvent::Removed { hash: number }];
            sender.send(KvBatch { number, events, adapters: Arc::default() });
        }
        inbox.next = 7;
        let mut news = || {
            let happened = inbox.batches.try_recv().unwrap();
            inbox.is_news(&happened).then_some(happened.number)
        };
        assert_eq!([news(), news(), news()], [None, None, Some(7)]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_replay_that_nobody_reads_holds_up_no_events() {
        let any = || "tcp://127.0.0.1:0".parse::<Endpoint>().unwrap();
        let mut publisher = Publisher::bind(&Endpoints { events: any(), replay: Some(any()) }).await.unwrap();
        let Endpoints { events, replay } = publisher.endpoints();
        // More than all buffers on the way take.
        let large = Bytes::from(vec![7; 48 << 20]);
        publisher.sent.lock().push(publisher.next, large, true);
        publisher.next += 1;
        let socket = publisher.replay.take().unwrap();
        tokio::spawn(Resender { socket, sent: publisher.sent.clone() }.run(|| {}));
        let mut peer =
            TcpStream::connect(replay.unwrap().to_string().trim_start_matches("tcp://")).await.unwrap();
        let mut greeting = [&[0xff_u8][..], &[0; 8], &[0x7f, 3, 0], b"NULL"].concat();
        greeting.resize(64, 0);
        let ready = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER";
        let request = [&[1_u8, 0, 0, 8][..], &[0; 8]].concat();
        peer.write_all(&[&greeting[..], ready, &request].concat()).await.unwrap();
        // The replay has begun, and can't end.
        let mut begun = vec![0; 1 << 20];
        peer.read_exact(&mut begun).await.unwrap();

        let mut subscriber = SubSocket::new();
        subscriber.connect(&events.to_string()).await.unwrap();
        subscriber.subscribe("").await.unwrap();
        let told = tokio::spawn(async move { subscriber.recv().await.unwrap() });
        // Its subscription may still be on its way.
        while !told.is_finished() {
            publisher.send(&Batch { at: 0.0, events: Vec::new() }).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        told.await.unwrap();
        drop(peer);
    }

    #[test]
    fn numbers_begin_above_those_of_an_earlier_process() {
        let [started, restarted] =
            [1_800_000_000, 1_800_000_001].map(|seconds| first_number(Duration::from_secs(seconds)));
        assert!(restarted >= started + 1_000_000, "{started}, {restarted}");
        let year_2200 = Duration::from_secs(7_258_118_400);
        assert!(first_number(year_2200) < 1_u64 << 53);
    }

    #[tokio::test]
    async fn a_number_of_an_earlier_process_is_answered_from_the_snapshot_on() {
        let any = || "tcp://127.0.0.1:0".parse::<Endpoint>().unwrap();
        let mut publisher = Publisher::bind(&Endpoints { events: any(), replay: None }).await.unwrap();
        let [earlier, first] = [1, 2].map(|seconds| first_number(Duration::from_secs(seconds)));
        publisher.next = first;
        publisher.send(&Batch::snapshot(0.0, Vec::new(), &AdapterNames::new())).await;
        for _ in 1..5 {
            publisher.send(&Batch { at: 0.0, events: Vec::new() }).await;
        }
        // The earlier process sent three; this one has sent more.
        let (batches, reach) = publisher.sent.from(earlier + 3);
        let numbers: Vec<u64> = batches.into_iter().map(|(number, _)| number).collect();
        assert_eq!((numbers, reach), ((first..first + 5).collect::<Vec<u64>>(), Reach::Enough));
        let (batches, reach) = publisher.sent.from(first + 3);
        assert_eq!((batches.len(), reach), (2, Reach::Enough), "one of its own misses only the last two");
    }

    #[tokio::test]
    async fn sockets_are_for_this_user_alone_and_leave_nothing_behind() {
        let any = || "tcp://127.0.0.1:0".parse::<Endpoint>().unwrap();
        let publisher = Publisher::bind(&Endpoints { events: any(), replay: Some(any()) }).await.unwrap();
        let folder = publisher._folder.path().to_owned();
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert!(folder.join("events").exists() && folder.join("replay").exists());
        let Endpoints { events, replay } = publisher.endpoints();
        assert!(events.port() != 0 && replay.unwrap().port() != 0, "{events}");
        drop(publisher);
        assert!(!folder.exists());
    }
}
