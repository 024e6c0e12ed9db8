//! The engine thread's mailbox: a bounded channel to which sending never blocks, and a flag for messages that did
//! not fit.

mod protocol;

pub(super) use protocol::{Inbox, MailSender, mailbox};

/// The primitives that the protocol uses. `tests/interleave` replaces them with loom's.
mod world {
    pub use std::sync::Arc;
    pub use std::sync::atomic::{AtomicBool, Ordering};
    pub use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
}
