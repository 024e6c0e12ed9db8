//! How words reach the engine thread: a bounded channel that nobody waits for, and a flag for what found no room.

mod protocol;

pub(super) use protocol::{Inbox, Mail, mailbox};

/// What the protocol is made of. `tests/interleave` gives it another one.
mod world {
    pub use std::sync::Arc;
    pub use std::sync::atomic::{AtomicBool, Ordering};
    pub use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
}
