//! The log's queue: lines that don't fit are counted, and the writer sleeps while there is nothing to write.

use std::sync::Mutex;

use protocol::{Entry, Lines, queue};
use world::{Arc, AtomicUsize, JoinHandle, Ordering};

#[path = "../../../host/server/src/log/protocol.rs"]
#[allow(dead_code, unreachable_pub, reason = "its own crate uses more of it, and in other places")]
mod protocol;

use crate::world;

/// What the writer was given.
#[derive(Default)]
struct Written {
    /// The lines, a byte each. The mutex is std's, because loom's would order more than the queue does.
    lines: Mutex<Vec<u8>>,
    /// How many lines there were, and how many were reported as dropped, in all.
    known: AtomicUsize,
}

impl Written {
    fn note(&self, entry: Entry<'_>) {
        let known = match entry {
            Entry::Line(line) => {
                self.lines.lock().unwrap().extend(line.first());
                usize::from(!line.is_empty())
            }
            Entry::Dropped(lines) => usize::try_from(lines).unwrap(),
        };
        // Relaxed, because the queue itself must make it visible to whoever flushes.
        self.known.fetch_add(known, Ordering::Relaxed);
    }
}

/// Starts a writer.
fn start(max_lines: usize, max_bytes: usize) -> (Arc<Lines>, Arc<Written>, JoinHandle<()>) {
    let (lines, backlog) = queue(max_lines, max_bytes);
    let written = Arc::new(Written::default());
    let out = Arc::clone(&written);
    let writer = world::spawn(move || backlog.write_all(|entry| out.note(entry)));
    (Arc::new(lines), written, writer)
}

/// Waits as `Queue::flush` does, and checks that `added` lines are written or reported.
fn flush(lines: &Lines, written: &Written, added: usize) {
    while !lines.is_written() {
        world::yield_now();
    }
    assert_eq!(written.known.load(Ordering::Relaxed), added);
}

/// Two threads log, with room for one line. The thread that flushes logs nothing itself: loom would take the end of
/// another thread for the release of a lock that it waits for.
#[test]
fn each_line_is_written_in_order_or_reported_as_dropped() {
    world::check(2, || {
        let (lines, written, writer) = start(1, 100);
        let theirs = Arc::clone(&lines);
        let thread = world::spawn(move || {
            theirs.add(b"a");
            theirs.add(b"b");
        });
        let theirs = Arc::clone(&lines);
        let other = world::spawn(move || theirs.add(b"x"));
        thread.join().unwrap();
        other.join().unwrap();
        flush(&lines, &written, 3);
        let mut own = written.lines.lock().unwrap().clone();
        own.retain(|&line| line != b'x');
        assert!(own.is_sorted(), "{own:?}");
        drop(lines);
        writer.join().unwrap();
    });
}

/// No later line wakes the writer, which may be awake, about to sleep, or asleep.
#[test]
fn dropped_lines_are_reported_even_if_none_follows() {
    world::check(3, || {
        let (lines, written, writer) = start(1, 1);
        lines.add(b"too long");
        lines.add(b"too long");
        flush(&lines, &written, 2);
        lines.add(b"too long");
        flush(&lines, &written, 3);
        drop(lines);
        writer.join().unwrap();
    });
}
