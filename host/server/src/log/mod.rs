//! The log on stderr; stdout is for the ready line and for results.
//!
//! Writing to stderr blocks while its reader is slow, and forever if nobody reads. A host must not wait for that: its
//! lines pass through a bounded queue to a thread of its own, and those that don't fit are dropped and counted. So are
//! those that can't be written, as on a full disk. Commands that end by themselves write directly.

mod protocol;

use std::cell::RefCell;
use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{ConfigError, Environment};
use protocol::{Entry, Lines};

/// The primitives that the protocol uses. `tests/interleave` replaces them with loom's.
mod world {
    pub use std::sync::Arc;
    pub use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    pub use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
}

/// The levels of a filter.
const LEVELS: &[&str] = &["trace", "debug", "info", "warn", "error", "off"];
/// Most lines in the queue, and most bytes in all of them.
const QUEUE_LINES: usize = 4_096;
const QUEUE_BYTES: usize = 4 << 20;
/// Pause between two looks at whether the queue is written.
const PAUSE: Duration = Duration::from_millis(2);
/// How long a panic waits for the lines before its message.
const BEFORE_PANIC: Duration = Duration::from_millis(200);

thread_local! {
    /// Lines that a queue's thread logs itself, which must not wait for it; `None` on all other threads.
    static OWN: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Starts logging with the filter of `INFER_LOG`, or with `usual`. `INFER_LOG_FORMAT=json` writes one flat JSON
/// object a line: `timestamp`, `level`, `target`, `message` and the event's fields.
pub fn start(usual: &str) -> Result<(), ConfigError> {
    start_on(usual, io::stderr)
}

/// Starts logging through a queue. A panic's message follows the lines before it, unless nobody reads them.
pub fn start_queued(usual: &str, queue: &Arc<Queue>) -> Result<(), ConfigError> {
    start_on(usual, Arc::clone(queue))?;
    let (queue, report) = (Arc::clone(queue), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| match queue.flush(BEFORE_PANIC) {
        true => report(panic),
        false => tracing::error!("{panic}"),
    }));
    Ok(())
}

fn start_on<W>(usual: &str, writer: W) -> Result<(), ConfigError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let environment = Environment::of_process();
    let filter = filter(environment.get("INFER_LOG")?.unwrap_or(usual))?;
    let json = is_json(environment.get("INFER_LOG_FORMAT")?.unwrap_or("text"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    // A second start, for example in a test, keeps the first.
    let _ = if json {
        builder.json().flatten_event(true).try_init()
    } else {
        builder.with_ansi(io::stderr().is_terminal()).try_init()
    };
    Ok(())
}

/// Lines on their way to a slow writer. Adding one never blocks.
pub struct Queue(Lines);

impl Queue {
    /// Starts a thread that writes to `out`.
    pub fn start(out: impl io::Write + Send + 'static) -> io::Result<Arc<Self>> {
        let (lines, backlog) = protocol::queue(QUEUE_LINES, QUEUE_BYTES);
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || {
            OWN.set(Some(Vec::new()));
            let mut output = Output::new(out);
            backlog.write_all(|entry| output.write(entry));
        })?;
        Ok(Arc::new(Self(lines)))
    }

    /// Waits until all lines are written, but no longer than `limit`. Returns whether they are.
    pub fn flush(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        while !self.0.is_written() {
            if begun.elapsed() >= limit {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }
}

/// The subscriber writes a line at a time.
impl io::Write for &Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        OWN.with_borrow_mut(|own| match own {
            Some(own) => own.extend_from_slice(line),
            None => self.0.add(line),
        });
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes what comes from a queue. What is missing is reported before the next line that can be written.
struct Output<W> {
    out: W,
    /// It ends within a line.
    torn: bool,
    /// Lines that did not fit into the queue, and are not reported yet.
    dropped: u64,
    /// Lines that could not be written, are not reported yet, and the last reason.
    failed: u64,
    error: Option<io::Error>,
}

impl<W: io::Write> Output<W> {
    fn new(out: W) -> Self {
        Self { out, torn: false, dropped: 0, failed: 0, error: None }
    }

    fn write(&mut self, entry: Entry<'_>) {
        let written = match entry {
            Entry::Line([]) => return,
            Entry::Line(line) => {
                self.report().and_then(|()| self.put(line)).inspect_err(|_| self.failed += 1)
            }
            Entry::Dropped(lines) => {
                self.dropped += lines;
                self.report()
            }
        };
        if let Err(error) = written {
            self.error = Some(error);
        }
    }

    fn report(&mut self) -> io::Result<()> {
        if self.dropped > 0 {
            let lines = self.dropped;
            tracing::warn!(lines, "log lines were dropped because stderr takes them too slowly");
        }
        if let Some(error) = self.error.as_ref().filter(|_| self.failed > 0) {
            let lines = self.failed;
            tracing::warn!(lines, %error, "log lines are missing because stderr could not be written");
        }
        self.put(&OWN.replace(Some(Vec::new())).unwrap_or_default())?;
        (self.dropped, self.failed) = (0, 0);
        Ok(())
    }

    /// Writes whole lines, behind what is there of one that failed.
    fn put(&mut self, lines: &[u8]) -> io::Result<()> {
        let end: &[u8] = if self.torn && !lines.is_empty() { b"\n" } else { b"" };
        for mut rest in [end, lines] {
            while !rest.is_empty() {
                match self.out.write(rest) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(taken) => {
                        rest = &rest[taken..];
                        self.torn = !rest.is_empty();
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

fn filter(text: &str) -> Result<EnvFilter, ConfigError> {
    let advice = "give a level (`info`, `debug`), or levels of targets (`infer_server=debug,hyper=info`)";
    // `EnvFilter` takes any other word for the name of a target, and silences everything else.
    let is_level = |word: &str| LEVELS.contains(&word.to_ascii_lowercase().as_str());
    let is_clear = |word: &&str| {
        word.is_empty() || word.contains(['=', '[']) || word.starts_with("infer") || is_level(word)
    };
    if let Some(word) = text.split(',').map(str::trim).find(|word| !is_clear(word)) {
        return Err(ConfigError(format!("INFER_LOG: `{word}` is not a level; {advice}")));
    }
    EnvFilter::try_new(text).map_err(|error| ConfigError(format!("INFER_LOG: `{text}`: {error}; {advice}")))
}

fn is_json(text: &str) -> Result<bool, ConfigError> {
    match text.to_ascii_lowercase().as_str() {
        "json" => Ok(true),
        "text" => Ok(false),
        _ => Err(ConfigError(format!("INFER_LOG_FORMAT: `{text}` is neither `text` nor `json`"))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::Mutex;
    use std::sync::mpsc::Receiver;

    use super::*;

    /// Takes nothing until the other end of the channel is dropped.
    struct Closed(Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl io::Write for Closed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_beyond_the_queue_are_dropped_and_the_others_written_in_order() {
        let (open, closed) = std::sync::mpsc::channel();
        let taken = Arc::new(Mutex::new(Vec::new()));
        let queue = Queue::start(Closed(closed, Arc::clone(&taken))).unwrap();
        assert!(queue.flush(Duration::ZERO), "there is nothing to write");
        for letter in *b"abcdef" {
            let line = vec![letter; QUEUE_BYTES / 4];
            assert_eq!((&*queue).write(&line).unwrap(), line.len());
        }
        assert!(!queue.flush(Duration::from_millis(20)), "nothing is written");
        assert_eq!(queue.0.dropped(), 2);
        drop(open);
        assert!(queue.flush(Duration::from_secs(60)));
        let mut lines = taken.lock().unwrap().clone();
        assert_eq!(lines.len(), QUEUE_BYTES);
        lines.dedup();
        assert_eq!(lines, b"abcd");
    }

    #[test]
    fn line_that_never_fits_is_reported_without_waiting_for_another() {
        let queue = Queue::start(io::sink()).unwrap();
        for _ in 0..2 {
            (&*queue).write_all(&vec![b'a'; QUEUE_BYTES + 1]).unwrap();
            assert!(queue.flush(Duration::from_secs(60)), "{} are not reported", queue.0.dropped());
        }
    }

    /// A disk with so many free bytes.
    struct Disk(usize, Vec<u8>);

    impl io::Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0 -= taken;
            self.1.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_a_full_disk_does_not_take_are_reported_when_it_has_room() {
        let queue = Queue::start(io::sink()).unwrap();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(queue).finish();
        let mut output = Output::new(Disk(9, Vec::new()));
        OWN.set(Some(Vec::new()));
        tracing::subscriber::with_default(subscriber, || {
            for line in [&b"first\n"[..], b"second\n", b"third\n"] {
                output.write(Entry::Line(line));
            }
            output.write(Entry::Dropped(4));
            output.out.0 = 1 << 20;
            for line in [&b"fourth\n"[..], b"fifth\n"] {
                output.write(Entry::Line(line));
            }
        });
        OWN.set(None);
        let text = String::from_utf8(output.out.1).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((&lines[..2], &lines[4..]), (&["first", "sec"][..], &["fourth", "fifth"][..]), "{text}");
        assert!(lines[2].contains("too slowly") && lines[2].ends_with("lines=4"), "{text}");
        assert!(lines[3].contains("could not be written") && lines[3].contains("lines=2 "), "{text}");
    }

    #[test]
    fn invalid_filters_are_refused() {
        for good in [
            "info",
            "WARN",
            "infer_server=debug",
            "hyper=off,info",
            "infer_server[{x}]=trace",
            "infer",
            "infer_server,warn",
        ] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in [
            "debgu",
            "verbose",
            "infer_server=debgu",
            "info,infer_server=loud",
            "wran,hyper=info",
            "info,hyper",
        ] {
            assert!(filter(bad).is_err_and(|error| error.to_string().starts_with("INFER_LOG: ")), "{bad}");
        }
        assert!(is_json("JSON").unwrap() && !is_json("text").unwrap() && is_json("yaml").is_err());
    }
}
