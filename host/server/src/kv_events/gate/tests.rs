//! Frames in any pieces, and peers that wait, flood or don't read.

use futures_util::StreamExt;
use hyper::body::Bytes;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tempfile::TempDir;
use zeromq::{PubSocket, SocketEvent, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use super::frames::{PARTS, SUBSCRIPTIONS, TOPIC_BYTES};
use super::*;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// A frame; with a long length if the flags or the body say so.
fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    match u8::try_from(body.len()) {
        Ok(length) if flags & 2 == 0 => [&[flags, length][..], body].concat(),
        _ => [&[flags | 2][..], &(body.len() as u64).to_be_bytes(), body].concat(),
    }
}

fn greeting() -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend(b"NULL");
    bytes.resize(64, 0);
    bytes
}

/// Greeting and READY of a SUB socket.
fn hello() -> Vec<u8> {
    [greeting(), frame(4, b"\x05READY\x0bSocket-Type\0\0\0\x03SUB")].concat()
}

fn subscribe(topic: &[u8]) -> Vec<u8> {
    frame(0, &[&b"\x01"[..], topic].concat())
}

fn cancel(topic: &[u8]) -> Vec<u8> {
    frame(0, &[&b"\x00"[..], topic].concat())
}

/// What passes of these pieces, and the fault that ends it.
fn feed<'a>(role: Role, pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Option<Fault>) {
    let mut frames = Frames::new(role);
    let (mut waiting, mut passed) = (Vec::new(), Vec::new());
    for piece in pieces {
        waiting.extend_from_slice(piece);
        loop {
            match frames.judge(&waiting) {
                Ok(0) => break,
                Ok(sound) => passed.extend(waiting.drain(..sound)),
                Err(fault) => return (passed, Some(fault)),
            }
        }
    }
    (passed, None)
}

/// The fault of what follows the handshake.
fn fault(role: Role, after: &[u8]) -> Option<Fault> {
    feed(role, [&hello()[..], after]).1
}

/// The same bytes in pieces.
fn cut<'a>(bytes: &'a [u8], places: &[Index]) -> Vec<&'a [u8]> {
    let mut ends: Vec<usize> = places.iter().map(|place| place.index(bytes.len() + 1)).collect();
    ends.push(bytes.len());
    ends.sort_unstable();
    let mut from = 0;
    ends.into_iter().map(|to| &bytes[std::mem::replace(&mut from, to)..to]).collect()
}

fn sound() -> impl Strategy<Value = Vec<u8>> {
    let flags = select(vec![0, 2, 4, 6]);
    (flags, prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(flags, body)| frame(flags, &body))
}

fn wrong() -> impl Strategy<Value = (Vec<u8>, Fault)> {
    let flags = select((0..=u8::MAX).filter(|flags| flags & !7 != 0 || flags & 5 == 5).collect::<Vec<_>>());
    prop_oneof![
        (flags, any::<[u8; 9]>())
            .prop_map(|(flags, rest)| ([&[flags][..], &rest].concat(), Fault::Flags(flags))),
        (select(vec![2_u8, 3, 6]), 4_097..=u64::MAX).prop_map(|(flags, length)| {
            ([&[flags][..], &length.to_be_bytes()].concat(), Fault::Length(length))
        }),
    ]
}

proptest! {
    #[test]
    fn bytes_pass_up_to_the_first_wrong_frame(
        frames in prop::collection::vec(sound(), 0..20),
        wrong in prop::option::of(wrong()),
        places in prop::collection::vec(any::<Index>(), 0..20),
        is_pub in any::<bool>(),
    ) {
        let role = if is_pub { Role::Events } else { Role::Replay };
        let before = [hello(), frames.concat()].concat();
        let (end, fault) = wrong.unzip();
        let all = [&before[..], &end.unwrap_or_default()].concat();
        prop_assert_eq!(feed(role, cut(&all, &places)), (before, fault));
    }

    #[test]
    fn pieces_dont_change_the_verdict(
        frames in prop::collection::vec(sound(), 0..20),
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 0..4),
        places in prop::collection::vec(any::<Index>(), 0..20),
    ) {
        let mut all = [hello(), frames.concat()].concat();
        for (at, byte) in changes {
            let at = at.index(all.len());
            all[at] = byte;
        }
        let whole = feed(Role::Events, [&all[..]]);
        prop_assert!(all.starts_with(&whole.0));
        prop_assert_eq!(&feed(Role::Events, cut(&all, &places)), &whole);
        prop_assert_eq!(feed(Role::Events, all.chunks(1)), whole);
    }
}

#[test]
fn handshakes_of_others_are_refused_when_they_show() {
    let changed = |at: usize, to: u8| {
        let mut bytes = greeting();
        bytes[at] = to;
        bytes.truncate(at + 1);
        bytes
    };
    for (bytes, want) in [
        (b"GET / HTTP/1.1".to_vec(), Fault::Greeting),
        (changed(9, 0), Fault::Greeting),
        (changed(10, 1), Fault::Version(1)),
        (changed(12, b'P'), Fault::Mechanism),
        ([greeting(), subscribe(b"")].concat(), Fault::Handshake),
        ([greeting(), frame(4, b"\x04PING")].concat(), Fault::Handshake),
    ] {
        assert_eq!(feed(Role::Events, [&bytes[..]]).1, Some(want));
    }
}

#[test]
fn announced_lengths_are_bounded() {
    assert_eq!(fault(Role::Replay, &frame(0, &[0; 4_096])), None);
    assert_eq!(fault(Role::Replay, &frame(0, &[0; 4_097])), Some(Fault::Length(4_097)));
    let huge = [&[2_u8, 0x40][..], &[0; 7]].concat();
    let (passed, fault) = feed(Role::Events, [&greeting()[..], &huge]);
    assert_eq!((passed, fault), (greeting(), Some(Fault::Length(1 << 62))));
}

#[test]
fn subscriptions_are_bounded_as_zeromq_keeps_them() {
    let topics = |range: std::ops::Range<usize>, make: fn(&[u8]) -> Vec<u8>| -> Vec<u8> {
        range.flat_map(|topic| make(&topic.to_be_bytes())).collect()
    };
    let full = topics(0..SUBSCRIPTIONS, subscribe);
    assert_eq!(fault(Role::Events, &full), None);
    let too_many = Some(Fault::Subscriptions);
    let again = subscribe(&0_usize.to_be_bytes());
    assert_eq!(fault(Role::Events, &[&full[..], &again].concat()), too_many, "twice counts as two");
    let command = frame(4, b"\x09SUBSCRIBEx");
    assert_eq!(fault(Role::Events, &[&full[..], &command].concat()), too_many, "so do commands");
    let cancelled = cancel(&0_usize.to_be_bytes());
    assert_eq!(fault(Role::Events, &[&full[..], &cancelled, &again].concat()), None);
    let by_command = frame(4, &[&b"\x06CANCEL"[..], &0_usize.to_be_bytes()].concat());
    assert_eq!(fault(Role::Events, &[&full[..], &by_command, &again].concat()), None);
    let nothing = topics(SUBSCRIPTIONS..2 * SUBSCRIPTIONS, cancel);
    assert_eq!(fault(Role::Events, &[&full[..], &nothing, &again].concat()), too_many);
    // One byte of a body says that it subscribes.
    let long = subscribe(&[b'x'; 4_095]);
    let many = long.repeat(TOPIC_BYTES / 4_095);
    assert_eq!(fault(Role::Events, &many), None);
    assert_eq!(fault(Role::Events, &[many, long].concat()), too_many, "bytes are bounded, too");
    assert_eq!(fault(Role::Replay, &[full, again].concat()), None, "there is nothing to subscribe to");
}

#[test]
fn parts_of_a_message_are_bounded() {
    let parts = |n: usize| [frame(1, b"x").repeat(n - 1), frame(0, b"x")].concat();
    for role in [Role::Events, Role::Replay] {
        assert_eq!(fault(role, &parts(PARTS).repeat(3)), None);
        assert_eq!(fault(role, &parts(PARTS + 1)), Some(Fault::Parts));
        let between = [frame(1, b"x"), frame(4, b"\x04PING")].concat();
        assert_eq!(fault(role, &between.repeat(PARTS + 1)), Some(Fault::Parts));
    }
    // Only a message of one part subscribes.
    let pairs = [frame(1, b"\x01"), frame(0, b"\x01")].concat();
    assert_eq!(fault(Role::Events, &pairs.repeat(SUBSCRIPTIONS + 1)), None);
}

/// A PUB socket behind a gate.
struct Site {
    socket: PubSocket,
    gate: Gate,
    /// How often it told a subscriber something.
    told: usize,
    _folder: TempDir,
}

impl Site {
    async fn open(rules: Rules) -> Self {
        Self::open_at("tcp://127.0.0.1:0", rules).await
    }

    async fn open_at(endpoint: &str, rules: Rules) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut socket = PubSocket::new();
        let gate = Gate::open(&mut socket, &endpoint.parse().unwrap(), folder.path(), rules).await.unwrap();
        Self { socket, gate, told: 0, _folder: folder }
    }

    /// A peer that has sent these bytes.
    async fn peer(&self, bytes: &[u8]) -> TcpStream {
        let mut peer =
            TcpStream::connect((self.gate.endpoint().host(), self.gate.endpoint().port())).await.unwrap();
        peer.write_all(bytes).await.unwrap();
        peer
    }

    /// A subscriber whose handshake was fast enough, which is a matter of luck on a busy machine.
    async fn subscriber(&self) -> SubSocket {
        let endpoint = self.gate.endpoint().to_string();
        let connected = async {
            loop {
                let mut subscriber = SubSocket::new();
                if subscriber.connect(&endpoint).await.is_ok() {
                    break subscriber;
                }
            }
        };
        let mut subscriber = timeout(LONG, connected).await.expect("it can connect");
        subscriber.subscribe("news").await.unwrap();
        subscriber
    }

    /// Publishes something new until the subscriber gets it. A subscription takes its time.
    async fn tells(&mut self, subscriber: &mut SubSocket) {
        self.told += 1;
        let news = Bytes::from(format!("news {}", self.told));
        let mut gets_it =
            std::pin::pin!(async { while subscriber.recv().await.unwrap().into_vec() != [news.clone()] {} });
        for _ in 0..6_000 {
            self.publish(&news).await;
            if timeout(Duration::from_millis(10), &mut gets_it).await.is_ok() {
                return;
            }
        }
        panic!("the subscriber is never told");
    }

    async fn publish(&mut self, body: &Bytes) {
        self.socket.send(ZmqMessage::from(body.clone())).await.unwrap();
    }
}

/// What a peer gets until its connection is ended.
async fn until_ended(mut peer: TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    let ended = timeout(LONG, peer.read_to_end(&mut got)).await;
    let _ = ended.expect("the gate ends the connection");
    got
}

#[tokio::test]
async fn connections_beyond_the_most_are_closed_at_once() {
    let site = Site::open(Rules { handshake: LONG, ..Rules::of(Role::Events) }).await;
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS {
        silent.push(site.peer(b"").await);
    }
    assert_eq!(until_ended(site.peer(b"").await).await, b"");
    for mut peer in silent.drain(1..) {
        let mut signature = [0; 10];
        peer.read_exact(&mut signature).await.unwrap();
        assert_eq!(signature[0], 0xff, "those before it are served");
    }
    let freed = async {
        loop {
            let mut peer = site.peer(b"").await;
            if peer.read(&mut [0]).await.is_ok_and(|read| read == 1) {
                break;
            }
        }
    };
    timeout(LONG, freed).await.expect("places become free");
}

#[tokio::test]
async fn handshake_has_a_deadline_and_a_subscriber_has_none() {
    let rules = Rules { handshake: Duration::from_secs(2), ..Rules::of(Role::Events) };
    let mut site = Site::open(rules).await;
    let mut subscriber = site.subscriber().await;
    let ended = async {
        loop {
            let (silent, slow, greeted) =
                (site.peer(b"").await, site.peer(&greeting()[..40]).await, site.peer(&greeting()).await);
            let (silent, slow, greeted) =
                tokio::join!(until_ended(silent), until_ended(slow), until_ended(greeted));
            // Unless the gate itself is so slow, on a busy machine.
            if (silent.len(), slow.len()) == (64, 64) && greeted.len() > 64 {
                break;
            }
        }
    };
    timeout(LONG, ended).await.expect("the first two get a greeting, and the last one's is answered");
    site.tells(&mut subscriber).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_that_stops_reading_is_cut_off_and_others_are_not() {
    let rules = Rules { behind: Duration::from_secs(2), ..Rules::of(Role::Events) };
    let mut site = Site::open(rules).await;
    let mut events = site.socket.monitor();
    let mut subscriber = site.subscriber().await;
    let mut idle = site.peer(&[hello(), subscribe(b"large")].concat()).await;
    site.tells(&mut subscriber).await;
    let large = Bytes::from([&b"large"[..], &vec![0; 1 << 20]].concat());
    // Its subscription has arrived when it gets more than greeting and READY.
    let mut got = 0;
    while got < 1_024 {
        site.publish(&large).await;
        let read = timeout(Duration::from_millis(10), idle.read(&mut [0; 1_024])).await;
        match read {
            Ok(Ok(read @ 1..)) => got += read,
            Ok(_) => {
                // A busy machine may have read for it too late.
                while !matches!(events.next().await.unwrap(), SocketEvent::Disconnected(_)) {}
                (idle, got) = (site.peer(&[hello(), subscribe(b"large")].concat()).await, 0);
            }
            Err(_) => {}
        }
    }
    let cut_off = async { while !matches!(events.next().await.unwrap(), SocketEvent::Disconnected(_)) {} };
    // In the end more than all buffers on the way hold.
    let flood = async {
        for _ in 0..6_000 {
            site.publish(&large).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = cut_off => {}
        () = flood => panic!("the peer that doesn't read is still there"),
    }
    drop(idle);
    site.tells(&mut subscriber).await;
}

#[tokio::test]
async fn gate_names_its_port_and_closes_with_its_socket() {
    let site = Site::open_at("tcp://localhost:0", Rules::of(Role::Events)).await;
    let endpoint = site.gate.endpoint();
    assert!(endpoint.to_string().starts_with("tcp://localhost:") && endpoint.port() != 0);
    let peer = site.peer(b"").await;
    drop(site);
    until_ended(peer).await;
}
