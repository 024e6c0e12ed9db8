//! What a peer of the sockets for KV events may send: a greeting, READY, and small frames of ZMTP 3.
//!
//! Peers only subscribe and ask for replays, so all of it is bounded: zeromq reserves whatever length a frame
//! announces, and keeps every part of a message and every subscription.

use std::collections::HashMap;

/// Bytes of a greeting.
const GREETING_BYTES: usize = 64;
/// The only mechanism that the sockets know, as a greeting names it.
const MECHANISM: &[u8; 20] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// Most bytes of a frame's flags and length.
const HEADER_BYTES: usize = 9;
/// Most bytes of a frame's body.
const BODY_BYTES: usize = 4 << 10;
/// Most bytes that wait for the rest of their frame.
pub const FRAME_BYTES: usize = HEADER_BYTES + BODY_BYTES;
/// Most parts of a message. A request for a replay has two.
pub const PARTS: usize = 16;
/// Most subscriptions of a peer.
pub const SUBSCRIPTIONS: usize = 1_024;
/// Most bytes of their topics.
pub const TOPIC_BYTES: usize = 64 << 10;

/// Flag of a frame that others of its message follow.
const MORE: u8 = 1;
/// Flag of a frame whose length has eight bytes.
const LONG: u8 = 2;
/// Flag of a command.
const COMMAND: u8 = 4;

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A PUB socket: peers subscribe.
    Events,
    /// A ROUTER socket: peers ask for batches.
    Replay,
}

/// What a peer did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The first bytes aren't a greeting.
    #[error("it doesn't begin with a greeting of ZMTP")]
    Greeting,
    /// The greeting has an older version.
    #[error("it speaks ZMTP {0}; 3 or later is needed")]
    Version(u8),
    /// The greeting names another mechanism.
    #[error("its mechanism is not NULL")]
    Mechanism,
    /// Flags that no frame has.
    #[error("a frame has the flags {0:#04x}")]
    Flags(u8),
    /// A frame is too long.
    #[error("a frame announces {0} bytes; {most} may be sent", most = BODY_BYTES)]
    Length(u64),
    /// The handshake has another frame.
    #[error("its first frame is not the command READY")]
    Handshake,
    /// A message has too many parts.
    #[error("a message has more than {most} parts", most = PARTS)]
    Parts,
    /// There are too many subscriptions.
    #[error("it makes more than {} subscriptions, or {} bytes of them", SUBSCRIPTIONS, TOPIC_BYTES)]
    Subscriptions,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Greeting,
    Handshake,
    Ready,
}

/// Judges what one peer sends.
pub struct Frames {
    stage: Stage,
    /// Parts so far of the message that hasn't ended.
    parts: usize,
    /// Of a peer that may subscribe.
    topics: Option<Topics>,
}

impl Frames {
    /// Before the first byte.
    pub fn new(role: Role) -> Self {
        let topics = (role == Role::Events).then(Topics::default);
        Self { stage: Stage::Greeting, parts: 0, topics }
    }

    /// Whether greeting and READY have passed.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// Judges bytes that begin with a frame. Returns how many of them are whole frames that may pass; the rest is
    /// shown again. 0: the first frame isn't whole yet. Fails if the first frame may not pass.
    pub fn judge(&mut self, received: &[u8]) -> Result<usize, Fault> {
        let mut sound = 0;
        loop {
            match self.frame(&received[sound..]) {
                Ok(Some(bytes)) => sound += bytes,
                Ok(None) => return Ok(sound),
                Err(fault) if sound == 0 => return Err(fault),
                Err(_) => return Ok(sound),
            }
        }
    }

    /// Bytes of the first frame or of the greeting, `None` before it is whole.
    fn frame(&mut self, received: &[u8]) -> Result<Option<usize>, Fault> {
        if self.stage == Stage::Greeting {
            let whole = greeting(received)?;
            if whole.is_some() {
                self.stage = Stage::Handshake;
            }
            return Ok(whole);
        }
        let Some((&flags, rest)) = received.split_first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(Fault::Flags(flags));
        }
        let (header, length) = if flags & LONG == 0 {
            let Some(&length) = rest.first() else { return Ok(None) };
            (2, u64::from(length))
        } else {
            let Some(length) = rest.first_chunk() else { return Ok(None) };
            (HEADER_BYTES, u64::from_be_bytes(*length))
        };
        if length > BODY_BYTES as u64 {
            return Err(Fault::Length(length));
        }
        let whole = header + length as usize;
        let Some(body) = received.get(header..whole) else { return Ok(None) };
        self.admit(flags, body)?;
        Ok(Some(whole))
    }

    fn admit(&mut self, flags: u8, body: &[u8]) -> Result<(), Fault> {
        let is_command = flags & COMMAND != 0;
        if self.stage == Stage::Handshake {
            if !is_command || !body.starts_with(b"\x05READY") {
                return Err(Fault::Handshake);
            }
            self.stage = Stage::Ready;
            return Ok(());
        }
        let more = flags & MORE != 0;
        if !is_command && self.parts == PARTS {
            return Err(Fault::Parts);
        }
        let is_whole = is_command || (self.parts == 0 && !more);
        if let Some(topics) = self.topics.as_mut().filter(|_| is_whole) {
            match change(is_command, body) {
                Some(Change::Subscribe(topic)) => topics.add(topic)?,
                Some(Change::Cancel(topic)) => topics.remove(topic),
                None => {}
            }
        }
        if !is_command {
            self.parts = if more { self.parts + 1 } else { 0 };
        }
        Ok(())
    }
}

/// Bytes of a greeting, `None` before it is whole. What is wrong is seen as soon as it is there.
fn greeting(received: &[u8]) -> Result<Option<usize>, Fault> {
    let differs = |at: usize, byte: u8| received.get(at).is_some_and(|&there| there != byte);
    if differs(0, 0xff) || differs(9, 0x7f) {
        return Err(Fault::Greeting);
    }
    if let Some(&version) = received.get(10).filter(|&&version| version < 3) {
        return Err(Fault::Version(version));
    }
    let mechanism = received.get(12..received.len().min(32)).unwrap_or_default();
    if !MECHANISM.starts_with(mechanism) {
        return Err(Fault::Mechanism);
    }
    Ok((received.len() >= GREETING_BYTES).then_some(GREETING_BYTES))
}

enum Change<'a> {
    Subscribe(&'a [u8]),
    Cancel(&'a [u8]),
}

/// The change of subscriptions that a message or command stands for. ZMTP 3.0 has messages for it, 3.1 commands.
fn change(is_command: bool, body: &[u8]) -> Option<Change<'_>> {
    if is_command {
        let subscribe = body.strip_prefix(b"\x09SUBSCRIBE").map(Change::Subscribe);
        return subscribe.or_else(|| body.strip_prefix(b"\x06CANCEL").map(Change::Cancel));
    }
    match body.split_first()? {
        (1, topic) => Some(Change::Subscribe(topic)),
        (0, topic) => Some(Change::Cancel(topic)),
        _ => None,
    }
}

/// A peer's subscriptions as zeromq keeps them: each as often as it was made, less the cancelled ones.
#[derive(Default)]
struct Topics {
    /// How often each topic is subscribed to.
    times: HashMap<Vec<u8>, usize>,
    subscriptions: usize,
    bytes: usize,
}

impl Topics {
    fn add(&mut self, topic: &[u8]) -> Result<(), Fault> {
        if self.subscriptions == SUBSCRIPTIONS || self.bytes + topic.len() > TOPIC_BYTES {
            return Err(Fault::Subscriptions);
        }
        *self.times.entry(topic.to_vec()).or_default() += 1;
        self.subscriptions += 1;
        self.bytes += topic.len();
        Ok(())
    }

    /// Cancelling what isn't there changes nothing.
    fn remove(&mut self, topic: &[u8]) {
        let Some(times) = self.times.get_mut(topic) else { return };
        *times -= 1;
        if *times == 0 {
            self.times.remove(topic);
        }
        self.subscriptions -= 1;
        self.bytes -= topic.len();
    }
}
