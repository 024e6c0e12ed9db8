//! The protocol. Atomics and the channel come from the parent module.
//!
//! A line that doesn't fit, by number or by bytes, is counted instead, and the count is reported once the queue is
//! empty. The writer may be asleep by then: whoever drops the first line since the last report sends an empty one. If
//! not even that fits, the writer has others to write, and looks at the count after them.

use std::sync::mpsc::TryRecvError;

use super::world::{Arc, AtomicU64, AtomicUsize, Ordering, Receiver, SyncSender, sync_channel};

/// The end of those who log.
pub(super) struct Lines {
    queue: SyncSender<Vec<u8>>,
    max_bytes: usize,
    state: Arc<State>,
}

/// The writer's end.
pub(super) struct Backlog {
    queue: Receiver<Vec<u8>>,
    state: Arc<State>,
}

/// What is yet to be written.
#[derive(Default)]
struct State {
    bytes: AtomicUsize,
    /// Lines that did not fit and have not been reported.
    dropped: AtomicU64,
}

/// What the writer writes.
pub(super) enum Entry<'a> {
    /// A line; empty if it only wakes the writer.
    Line(&'a [u8]),
    /// This many lines were dropped.
    Dropped(u64),
}

/// Returns a queue for so many lines with so many bytes in all.
pub(super) fn queue(max_lines: usize, max_bytes: usize) -> (Lines, Backlog) {
    let (queue, receiver) = sync_channel(max_lines);
    let state = Arc::new(State::default());
    (Lines { queue, max_bytes, state: Arc::clone(&state) }, Backlog { queue: receiver, state })
}

impl Lines {
    /// Adds a line, or drops and counts it. Never blocks.
    pub(super) fn add(&self, line: &[u8]) {
        // Counted first, so that a flush overlooks no line.
        let bytes = self.state.bytes.fetch_add(line.len(), Ordering::AcqRel) + line.len();
        if bytes > self.max_bytes || self.queue.try_send(line.to_vec()).is_err() {
            if self.state.dropped.fetch_add(1, Ordering::AcqRel) == 0 {
                let _ = self.queue.try_send(Vec::new());
            }
            self.state.bytes.fetch_sub(line.len(), Ordering::AcqRel);
        }
    }

    /// Whether every line so far is written or reported as dropped.
    pub(super) fn is_written(&self) -> bool {
        // In this order: a line that is being dropped counts in `bytes` until it counts in `dropped`.
        self.state.bytes.load(Ordering::Acquire) == 0 && self.dropped() == 0
    }

    /// Lines that were dropped and not reported so far.
    pub(super) fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::Acquire)
    }
}

impl Backlog {
    /// Writes lines as they come, until nobody is left who could log.
    pub(super) fn write_all(&self, mut write: impl FnMut(Entry<'_>)) {
        loop {
            let line = match self.queue.try_recv() {
                Ok(line) => line,
                Err(TryRecvError::Empty) => {
                    if self.report_dropped(&mut write) {
                        continue;
                    }
                    let Ok(line) = self.queue.recv() else { return };
                    line
                }
                Err(TryRecvError::Disconnected) => return,
            };
            write(Entry::Line(&line));
            self.state.bytes.fetch_sub(line.len(), Ordering::AcqRel);
        }
    }

    /// Returns whether any were dropped since the last report.
    fn report_dropped(&self, write: &mut impl FnMut(Entry<'_>)) -> bool {
        let lines = self.state.dropped.load(Ordering::Acquire);
        if lines == 0 {
            return false;
        }
        write(Entry::Dropped(lines));
        self.state.dropped.fetch_sub(lines, Ordering::AcqRel);
        true
    }
}
